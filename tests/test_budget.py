"""What compiling may cost: asked before the work; what folding does not have is left to the model's runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from minitvm import InferenceSession
from minitvm.errors import CompilerError, ConfigError, MiniTVMError
from minitvm.frontend import from_onnx
from minitvm.ir.budget import DEFAULTS, NAME, Budget, compiling, current, limits
from minitvm.ir.expr import Constant
from minitvm.ir.visitor import post_order
from tests.steps import steps

THREE = np.ones(3, np.float32)
node = helper.make_node


def summed(nodes: Sequence[onnx.NodeProto], last: str, **weights: Any) -> onnx.ModelProto:
    """``x`` and the sum of a value that follows from constants."""
    ends = [node("ReduceSum", [last], ["total"], keepdims=0), node("Add", ["total", "x"], ["y"])]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [3]), ("y", None))]
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph([*nodes, *ends], "summed", value[:1], value[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def loop(body: Sequence[onnx.NodeProto], trips: int, first: np.ndarray, **weights: Any) -> onnx.ModelProto:
    """A loop of constants, which carries ``v`` to ``w``."""
    shape = list(first.shape)
    given = [("i", 7, []), ("c", 9, []), ("v", 1, shape if len(body) < 2 else None)]
    made = [helper.make_tensor_value_info("d", 9, []), helper.make_tensor_value_info("w", 1, given[2][2])]
    inside = [helper.make_tensor_value_info(*one) for one in given]
    graph = helper.make_graph([node("Identity", ["c"], ["d"]), *body], "body", inside, made)
    return summed([node("Loop", ["n", "", "v0"], ["l"], body=graph)], "l", n=np.array(trips), v0=first, **weights)


def total(model: onnx.ModelProto) -> float:
    session = InferenceSession(model.SerializeToString(), num_threads=1)
    return float(session.run(None, {"x": np.zeros(3, np.float32)})[0][0])


HALVED = [node("Mul", ["v", "half"], ["w"])]
HALF = np.array([0.5], np.float32)


def test_a_loop_of_constants_is_folded_as_far_as_there_are_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer ones run with the model, and give the same."""
    monkeypatch.setenv(NAME, "steps=400")
    for trips in (10, 100, 1000):
        assert total(loop(HALVED, trips, THREE, half=HALF)) == pytest.approx(3 * 0.5**trips)


def test_opening_takes_no_more_steps_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(trips: int) -> int:
        model = loop(HALVED, trips, THREE, half=HALF).SerializeToString()
        return steps(lambda: InferenceSession(model, num_threads=1))

    monkeypatch.setenv(NAME, "steps=400")
    opened(1000)
    assert opened(10**6) < 1.1 * opened(1000)


def test_a_loop_that_doubles_stops_before_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "bytes=100000")
    doubled = [node("Concat", ["v", "v"], ["u"], axis=0), node("Identity", ["u"], ["w"])]
    assert total(loop(doubled, 12, THREE)) == 3 * 2**12
    InferenceSession(loop(doubled, 60, THREE).SerializeToString(), num_threads=1)


GROWING = {
    "Concat": lambda a, b: node("Concat", [a, a], [b], axis=0),
    "Tile": lambda a, b: node("Tile", [a, "two"], [b]),
}


@pytest.mark.parametrize("kind", ["Concat", "Tile"])
def test_constants_that_double_are_left_to_the_run(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bytes are asked for before they are made."""
    monkeypatch.setenv(NAME, "bytes=100000")
    nodes = [GROWING[kind](f"c{i}", f"c{i + 1}") for i in range(18)]
    model = summed(nodes, "c18", c0=THREE, two=np.array([2]))
    module, _ = from_onnx(model, freeze_params=True)
    assert max(e.value.nbytes for e in post_order(module.main.body) if isinstance(e, Constant)) <= 1 << 20
    assert total(model) == 3 * 2**18


def test_what_a_builder_makes_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that follow from numbers in the model: a clear error, before memory is touched."""
    spectrum = [node("MelWeightMatrix", ["n", "p", "r", "l", "h"], ["m"])]
    numbers = {"n": np.array(1 << 20), "p": np.array(1 << 20), "r": np.array(16000)}
    edges = {"l": np.float32(1), "h": np.float32(8000)}
    with pytest.raises(MiniTVMError, match=r"(?s)1,048,576 bands.*bytes.*MINITVM_BUDGET=bytes=268435456 is its limit"):
        from_onnx(summed(spectrum, "m", **numbers, **edges))
    ranges = [node("Range", ["a", "b", "c"], [f"r{i}"]) for i in range(4)]
    joined = [node("Concat", [f"r{i}" for i in range(4)], ["m"], axis=0)]
    model = summed(ranges + joined, "m", a=np.float32(0), b=np.float32(1 << 24), c=np.float32(1))
    with pytest.raises(MiniTVMError, match=r"a range of 16,777,216 numbers would cost 134,217,728 bytes"):
        from_onnx(model)


def test_a_sparse_tensor_is_not_made_larger_than_there_is_room() -> None:
    model = summed([node("Identity", ["s"], ["m"])], "m")
    values, indices = numpy_helper.from_array(THREE[:1], "s"), numpy_helper.from_array(np.zeros(1, np.int64))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [1 << 40]))
    with pytest.raises(MiniTVMError, match="all elements of a sparse tensor"):
        from_onnx(model)


def test_what_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits() == dict(DEFAULTS)
    monkeypatch.setenv(NAME, " nodes=7, seconds=0 ,")
    assert limits() == {**DEFAULTS, "nodes": 7}
    for wrong in ("nodes", "trips=3", "bytes=-1", "bytes=many"):
        monkeypatch.setenv(NAME, wrong)
        with pytest.raises(ConfigError, match="which is no limit of a budget"):
            limits()


def test_a_budget_is_one_for_all_inside() -> None:
    with compiling() as outer:
        with compiling() as inner:
            assert inner is outer is current()
        outer.require("nodes", 1, "a function")
    assert current() is not outer
    budget = Budget({**DEFAULTS, "nodes": 10})
    budget.require("nodes", 8, "f")
    with pytest.raises(
        CompilerError, match=r"^g would cost 5 nodes, and the budget has 2 left\n.*MINITVM_BUDGET=nodes=10"
    ):
        budget.require("nodes", 5, "g")
    assert budget.refusal("nodes", 2) is None and budget.refusal("nodes", 3) is not None
    Budget({**DEFAULTS, "nodes": 0}).require("nodes", 1e9, "no limit")


def test_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked at between stages."""
    monkeypatch.setattr("minitvm.ir.budget.time.monotonic", iter(range(0, 10**6, 100)).__next__)
    monkeypatch.setenv(NAME, "seconds=30")
    with pytest.raises(MiniTVMError, match=r"compiling takes more than 30 seconds; it had come to"):
        total(summed([node("Exp", ["x"], ["m"])], "m"))
