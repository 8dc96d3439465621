"""Graphs of many forms: whatever is repeated in a model, each stage takes steps as many as there are nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import minitvm
from minitvm.driver import optimize
from minitvm.driver.program import read_program
from minitvm.frontend import from_onnx
from minitvm.runtime.memory import plan_memory
from minitvm.target import MachineModel
from tests.steps import assert_linear

EYE = np.eye(4, dtype=np.float32)
X = ("x", (2, 4))

Given = tuple[str, Sequence[int]]


def model(
    nodes: Iterable[onnx.NodeProto], outputs: Sequence[Given], inputs: Sequence[Given] = (X,), **weights: Any
) -> onnx.ModelProto:
    made = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in given] for given in (inputs, outputs)]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(list(nodes), "growing", *made, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def chain(count: int, *steps: Callable[[str, str, int], Sequence[onnx.NodeProto]]) -> list[onnx.NodeProto]:
    """From ``x`` to ``y``; a step makes its nodes from the value before, the one behind and its number."""
    names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
    return [n for i in range(count) for n in steps[i % len(steps)](names[i], names[i + 1], i)]


def node(kind: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, outputs, name=f"the_{outputs[0]}", **attributes)


def functions(count: int) -> onnx.ModelProto:
    kinds = ("Sigmoid", "Tanh", "Abs", "Neg", "Exp")
    return model(chain(count, *(lambda a, b, i, k=k: [node(k, [a], b)] for k in kinds)), [("y", (2, 4))])


def additions(count: int) -> onnx.ModelProto:
    return model(chain(count, lambda a, b, i: [node("Add", [a, "c"], b)]), [("y", (2, 4))], c=EYE[0])


def residual_convolutions(count: int) -> onnx.ModelProto:
    def block(a: str, b: str, i: int) -> list[onnx.NodeProto]:
        conv = node("Conv", [a, "w"], f"c{i}", pads=[1] * 4)
        return [conv, node("Relu", [f"c{i}"], f"r{i}"), node("Add", [f"r{i}", a], b)]

    shape = (1, 8, 6, 6)
    return model(chain(count, block), [("y", shape)], [("x", shape)], w=np.full((8, 8, 3, 3), 0.01, np.float32))


def branches(count: int, ends: bool = False) -> onnx.ModelProto:
    """Products of one input, added up, or each a result; they are combined."""
    names = [f"y{i}" for i in range(count)]
    products = [node("MatMul", ["x", f"w{i}"], name) for i, name in enumerate(names)]
    weights = {f"w{i}": EYE * i for i in range(count)}
    if ends:
        return model(products, [(name, (2, 4)) for name in names], **weights)
    return model([*products, node("Sum", names, "y")], [("y", (2, 4))], **weights)


def many_inputs(count: int) -> onnx.ModelProto:
    given = [(f"x{i}", (2, 4)) for i in range(count)]
    products = [node("MatMul", [name, "w"], f"y{i}") for i, (name, _) in enumerate(given)]
    joined = node("Concat", [f"y{i}" for i in range(count)], "y", axis=0)
    return model([*products, joined], [("y", (2 * count, 4))], given, w=EYE)


def growing_concatenations(count: int) -> onnx.ModelProto:
    def block(a: str, b: str, i: int) -> list[onnx.NodeProto]:
        return [node("ReduceMean", [a], f"m{i}", axes=[1]), node("Concat", [a, f"m{i}"], b, axis=1)]

    return model(chain(count, block), [("y", (2, 4 + count))])


def concatenations_in_place(count: int) -> onnx.ModelProto:
    """Each within the next one, where kernels make their operands."""

    def block(a: str, b: str, i: int) -> list[onnx.NodeProto]:
        return [node("ReduceMean", [a], f"m{i}", axes=[1]), node("Concat", [a, f"m{i}"], b, axis=1)]

    return model(chain(count, block), [("y", (1, 2 + count, 16))], [("x", (1, 2, 16))])


def shapes(count: int) -> onnx.ModelProto:
    def block(a: str, b: str, i: int) -> list[onnx.NodeProto]:
        moved = [node("Shape", [a], f"s{i}"), node("Reshape", [a, f"s{i}"], f"r{i}")]
        return [*moved, node("Transpose", [f"r{i}"], f"t{i}", perm=[1, 0]), node("Relu", [f"t{i}"], b)]

    return model(chain(count, block), [("y", (4, 4))], [("x", (4, 4))])


def parts(count: int) -> onnx.ModelProto:
    names = [f"p{i}" for i in range(count)]
    work = [node("Relu", [name], f"q{i}") for i, name in enumerate(names)]
    joined = node("Concat", [f"q{i}" for i in reversed(range(count))], "y", axis=0)
    return model([node("Split", ["x"], *names, axis=0), *work, joined], [("y", (count, 4))], [("x", (count, 4))])


def quantized(count: int) -> onnx.ModelProto:
    def block(a: str, b: str, i: int) -> list[onnx.NodeProto]:
        stored = [
            node("QuantizeLinear", [a, "s", "z"], f"q{i}"),
            node("DequantizeLinear", [f"q{i}", "s", "z"], f"d{i}"),
        ]
        return [*stored, node("Relu", [f"d{i}"], b)]

    return model(chain(count, block), [("y", (2, 4))], s=np.float32(0.1), z=np.uint8(3))


def conditions(count: int) -> onnx.ModelProto:
    def branch(kind: str, a: str, name: str) -> onnx.GraphProto:
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 4))
        return helper.make_graph([node(kind, [a], name)], name, [], [value])

    def block(a: str, b: str, i: int) -> list[onnx.NodeProto]:
        both = {"then_branch": branch("Relu", a, f"t{i}"), "else_branch": branch("Neg", a, f"e{i}")}
        total = [node("ReduceSum", [a], f"s{i}", keepdims=0), node("Cast", [f"s{i}"], f"c{i}", to=TensorProto.BOOL)]
        return [*total, node("If", [f"c{i}"], b, **both)]

    return model(chain(count, block), [("y", (2, 4))])


ends = partial(branches, ends=True)
BUILT = (functions, additions, shapes, parts, quantized)
"""Of few kernels, so that whole builds are quick."""
_JOINED = (many_inputs, growing_concatenations, concatenations_in_place)
SIZES = dict.fromkeys((*BUILT, branches, ends, residual_convolutions, *_JOINED), 100) | {conditions: 25}
MACHINE = MachineModel(vector_bytes=32, vector_registers=16, threads=2)


def name_of(form: Any) -> str | None:
    return "ends" if form is ends else getattr(form, "__name__", "")


@pytest.mark.parametrize(("form", "size"), SIZES.items(), ids=name_of)
def test_passes_and_the_plan_of_memory_take_linear_time(form: Callable[[int], onnx.ModelProto], size: int) -> None:
    def plan(count: int) -> Callable[[], object]:
        module, params = from_onnx(form(count))
        return lambda: plan_memory(read_program(optimize(module, MACHINE, params, 3).main).graph)

    assert_linear(plan, size)


@pytest.mark.parametrize("form", BUILT, ids=name_of)
def test_building_saving_and_loading_take_linear_time(form: Callable[[int], onnx.ModelProto], tmp_path: Path) -> None:
    def everything(count: int) -> Callable[[], None]:
        made = form(count)

        def work() -> None:
            minitvm.compile(made).save(tmp_path / "x.mtvm")
            minitvm.load(tmp_path / "x.mtvm")

        return work

    assert_linear(everything, 80)
