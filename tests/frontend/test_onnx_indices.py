"""Indices out of range are errors that name the node: while importing where they are known, after the run elsewhere."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx_build import build, error_of, one_node, run, value
from onnx_oracle import check_as_onnx_runtime, check_same, compiled, onnx_runtime, onnx_runtime_refuses

import minitvm
from minitvm.errors import InputError, TypeInferenceError
from minitvm.ir.ops.checks import OutOfRange
from minitvm.runtime.checks import from_zigzag
from minitvm.runtime.debug import GraphModuleDebug
from minitvm.runtime.executor import GraphModule

INT64 = np.iinfo(np.int64)
DATA = np.arange(12, dtype=np.float32).reshape(3, 4)
UPDATES = -np.ones((2, 4), np.float32)
NAMES = ("x0", "x1", "x2")

# operator -> its attributes, the operands behind the indices, how good indices become operands of the right shape
CASES: dict[str, tuple[dict[str, Any], list[np.ndarray], Callable[[int, int], np.ndarray]]] = {
    "Gather": ({"axis": 0}, [], lambda a, b: np.array([[a], [b]])),
    "GatherElements": ({"axis": 0}, [], lambda a, b: np.array([[a, b, 0], [0, 1, a]])),
    "GatherND": ({}, [], lambda a, b: np.array([[a, 3], [b, -4]])),
    "ScatterElements": ({"axis": 0}, [UPDATES], lambda a, b: np.array([[0, 1, 2, a], [1, 2, b, 1]])),
    "ScatterND": ({}, [UPDATES], lambda a, b: np.array([[a], [b]])),
}
GOOD, BAD = (-3, -1, 0, 2), (-4, 3, -100, INT64.min, INT64.max)


def model_of(op: str, indices: np.ndarray, known: bool = False) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    attributes, rest, _ = CASES[op]
    operands = [DATA, indices, *rest]
    feeds = {n: a for n, a in zip(NAMES, operands, strict=False) if not (known and a is indices)}
    constants = {1: indices} if known else None
    return one_node(op, *feeds.values(), constants=constants, **attributes), feeds


@pytest.mark.parametrize("op", list(CASES))
def test_in_range(op: str) -> None:
    for good in GOOD:
        model, feeds = model_of(op, CASES[op][2](good, (good + 1) % 3))
        check_as_onnx_runtime(model, feeds)


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("op", list(CASES))
def test_out_of_range(op: str, dtype: str) -> None:
    for bad in BAD:
        if dtype == "int32" and (abs(bad) > 2**31 or op in ("GatherND", "ScatterND")):
            continue  # those two take int64 alone
        model, feeds = model_of(op, CASES[op][2](1, bad).astype(dtype))
        assert onnx_runtime_refuses(model, feeds)
        for call in (run, compiled, lambda m, f: compiled(m, f, opt_level=0), lambda m, f: compiled(m, f, threads=2)):
            with pytest.raises(InputError) as error:
                call(model, feeds)
            assert str(error.value).startswith(f"index {bad} is outside of dimension 0"), str(error.value)
            assert "the_node" in str(error.value)
        model, _ = model_of(op, CASES[op][2](1, bad).astype(dtype), known=True)
        assert error_of(TypeInferenceError, model).startswith(f"{op}: index {bad} is outside of dimension 0")


def test_the_whole_text() -> None:
    model, feeds = model_of("Gather", np.array([0, 7]))
    with pytest.raises(InputError) as error:
        compiled(model, feeds)
    assert str(error.value) == (
        'index 7 is outside of dimension 0 of Tensor[(3, 4), float32]\n  | from ONNX node "the_node"'
    )


def test_a_module_can_run_again_and_has_no_results_meanwhile(tmp_path: pathlib.Path) -> None:
    """Also one that was saved; the debug executor says the same."""
    model, feeds = model_of("GatherElements", np.array([[0, 1, 2, 0]]))
    minitvm.compile(model).save(tmp_path / "gather.mtvm")
    for library in (minitvm.compile(model), minitvm.load(tmp_path / "gather.mtvm")):
        for module in (GraphModule(library["default"]()), GraphModuleDebug(library["default"]())):
            quiet = module.run_quietly if isinstance(module, GraphModuleDebug) else module.run
            quiet(feeds)
            expected = module.outputs()
            with pytest.raises(InputError, match="index 9 is outside of dimension 0"):
                quiet({"x1": np.array([[0, 9, 2, 0]])})
            with pytest.raises(InputError, match="has not run"):
                module.get_output(0)
            quiet(feeds)
            check_same(module.outputs(), expected)


def test_in_a_branch_that_is_taken() -> None:
    branches = {}
    for name, nodes in (
        ("then_branch", [helper.make_node("Gather", ["x", "i"], ["r"], name="pick")]),
        ("else_branch", [helper.make_node("Gather", ["x", "zero"], ["r"])]),
    ):
        branches[name] = helper.make_graph(nodes, name, [], [value("r", None)])
    node = helper.make_node("If", ["flag"], ["y"], **branches)
    indices = np.array([5])
    inputs = [value("flag", (), "bool"), value("x", DATA), value("i", indices)]
    model = build([node], inputs, ["y"], {"zero": np.array([0])})
    feeds = {"x": DATA, "i": indices}
    (found,) = compiled(model, {"flag": np.array(False), **feeds})
    np.testing.assert_array_equal(found, DATA[:1])
    with pytest.raises(InputError, match="index 5 is outside of dimension 0"):
        compiled(model, {"flag": np.array(True), **feeds})


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.data())
def test_many_indices_in_rows_and_of_every_size(data: st.DataObject) -> None:
    """Around the size from which each row has a result of its own; the worst index anywhere is found."""
    shape = (data.draw(st.integers(1, 5)), data.draw(st.sampled_from([1, 7, 511, 512, 513, 1100])))
    extent = data.draw(st.integers(1, 9))
    x = np.arange(extent, dtype=np.float32)
    indices = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-extent, extent, shape)
    model = one_node("Gather", x, indices)
    check_same(compiled(model, {"x0": x, "x1": indices}, threads=2), onnx_runtime(model, {"x0": x, "x1": indices}))
    place = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    indices[place] = bad = data.draw(st.sampled_from([extent, -extent - 1, INT64.min, INT64.max]))
    with pytest.raises(InputError, match=f"index {bad} is outside"):
        compiled(model, {"x0": x, "x1": indices}, threads=2)


def test_codes_stand_for_every_index() -> None:
    for index in (0, 1, -1, 7, -8, INT64.max, INT64.min):
        code = 2 * index if index >= 0 else -2 * index - 1
        assert 0 <= code < 2**64 and from_zigzag(code) == index


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("count", [2, 3, 7, 40])
def test_a_condition_of_compress_may_be_longer_or_shorter_than_the_axis(axis: int | None, count: int) -> None:
    """What goes beyond the end is left out, as ONNX Runtime does."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    condition = np.arange(count) % 3 != 1
    given = {} if axis is None else {"axis": axis}
    check_as_onnx_runtime(one_node("Compress", x, constants={1: condition}, **given), {"x0": x})


def test_weights_are_looked_at_while_importing() -> None:
    """An index that the model brings along costs nothing when it runs."""
    library = minitvm.compile(model_of("Gather", np.array([0, 2]), known=True)[0])
    assert not any(node.check for node in library.graph.nodes)
    assert not any(isinstance(c.op, OutOfRange) for c in minitvm.ir.visitor.calls(library.ir_mod.main.body))
