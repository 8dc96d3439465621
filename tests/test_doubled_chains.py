"""Values that are used twice at every link of a chain take steps and code as many as there are nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import minitvm
from minitvm.ir import dims, polynomials
from minitvm.ir.dims import symbol
from tests.doubled import MOST_GROWTH, chain, counted, growth, links
from tests.steps import assert_linear

PAIRS = (
    ("Gather", "Gather", {}),
    ("Einsum", "Einsum", {}),
    ("ReverseSequence", "ReverseSequence", {}),
    ("Pad", "Concat", {"level": 3}),
    ("Resize", "Slice", {"level": 1}),
    ("Transpose", "Flatten", {"target": "cuda"}),
    ("Concat", "Neg", {"symbolic": True}),
    ("GridSample", "Tile", {"level": 3}),
)
"""Each with what grew exponentially when values were computed anew by each user: moves, and what reads elsewhere."""


@pytest.mark.parametrize(("first", "second", "how"), PAIRS, ids=lambda p: p if isinstance(p, str) else "")
def test_pairs_of_operators(first: str, second: str, how: dict[str, Any]) -> None:
    given, compiling = links(), {name: value for name, value in how.items() if name != "symbolic"}
    make = partial(chain, given[first], given[second], symbolic="symbolic" in how)
    counted(make(2), **compiling)  # imports modules
    assert growth(make, partial(counted, **compiling)) < MOST_GROWTH


Step = Callable[[Callable[..., str], str], str]


def _numbers(count: int, step: Step, dtype: int = TensorProto.INT64) -> onnx.ModelProto:
    """``x = step(x)``, of six numbers."""
    nodes: list[onnx.NodeProto] = []

    def op(kind: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"], **attributes))
        return f"v{len(nodes) - 1}"

    value = "x"
    for _ in range(count):
        value = step(op, value)
    weights = {"three": np.array(3), "five": np.array([5]), "turned": np.arange(6)[::-1].copy()}
    graph = helper.make_graph(
        nodes,
        "numbers",
        [helper.make_tensor_value_info("x", dtype, [6])],
        [helper.make_tensor_value_info(value, dtype, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


INTEGERS: dict[str, Step] = {
    "sums": lambda op, x: op("Add", op("Add", x, "three"), op("Sub", x, "five")),
    "extremes": lambda op, x: op("Add", op("Max", x, "three"), op("Min", x, "five")),
    "extremes of extremes": lambda op, x: op("Max", op("Min", x, op("Max", x, "three")), "five"),
    "quotients": lambda op, x: op("Add", op("Div", x, "three"), op("Mod", x, "five")),
    "choices": lambda op, x: op("Where", op("Less", x, "three"), op("Neg", x), x),
    "indices": lambda op, x: op("Gather", "turned", op("Min", x, op("Abs", x))),
    "turned": lambda op, x: op("Add", op("Gather", x, "turned"), x),
    "joined": lambda op, x: op("Add", op("Gather", op("Concat", x, x, axis=0), "turned"), x),
}


@pytest.mark.parametrize("step", INTEGERS.values(), ids=INTEGERS)
def test_integers_are_values_and_indices(step: Step) -> None:
    """What is known of indices is asked of data, too: sums, extremes and choices of one value."""
    assert growth(partial(_numbers, step=step), counted) < MOST_GROWTH


def test_what_is_made_in_several_kernels_is_right() -> None:
    """A chain that is cut has the numbers of one that is not fused."""
    model = _numbers(12, INTEGERS["turned"], TensorProto.FLOAT)
    data = np.random.default_rng(1).standard_normal(6).astype(np.float32)
    results = []
    for level in (0, 3):
        graph = minitvm.GraphModule(minitvm.compile(model, opt_level=level)["default"](minitvm.cpu()))
        graph.run(x=data)
        results.append(graph.get_output(0).numpy())
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_dimensions_that_grow_become_anonymous() -> None:
    n = symbol("n")
    for grow in (
        lambda d: d * d,
        lambda d: (d + 1) * (d + 1),
        lambda d: d // 2 + (d + 1) // 3,
        lambda d: dims.smaller(d // 3, dims.larger(d, 7)),
        lambda d: dims.truncating_divide(d - 5, 2) + d,
        lambda d: dims.broadcast_dims(d // 3, d + 1),
    ):
        found, was = n, False
        for _ in range(100):
            found = grow(found)
            assert isinstance(found, int) or found.parts <= polynomials.MOST_PARTS
            was = was or dims.is_anonymous(found)
        assert was
    assert not dims.is_anonymous((n + 1) * (n + 2) * (n + 3))


def _nested(depth: int) -> bytes:
    value = helper.make_tensor_value_info
    inner = helper.make_graph([helper.make_node("Exp", ["x"], ["y0"])], "b", [], [value("y0", 1, [3])])
    for i in range(1, depth):
        then = helper.make_graph([helper.make_node("Neg", ["x"], [f"n{i}"])], "b", [], [value(f"n{i}", 1, [3])])
        node = helper.make_node("If", ["c"], [f"y{i}"], then_branch=inner, else_branch=then)
        inner = helper.make_graph([node], "b", [], [value(f"y{i}", 1, [3])])
    given = [value("x", 1, [3]), value("c", 9, [])]
    graph = helper.make_graph(inner.node, "g", given, inner.output)
    made: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made.SerializeToString()  # type: ignore[attr-defined]


def test_branches_in_branches_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many instances as there are branches: each level made all of the levels inside it twice."""
    monkeypatch.delenv("MINITVM_POISON", raising=False)  # then all runs twice, natively and in Python
    monkeypatch.setenv("MINITVM_CACHE_DIR", "")  # what is found there is read as a run asks for it

    def first_run(depth: int) -> Callable[[], object]:
        session = minitvm.InferenceSession(_nested(depth), num_threads=1)
        return lambda: session.run(None, {"x": np.ones(3, np.float32), "c": np.array(True)})

    assert_linear(first_run, 8)
