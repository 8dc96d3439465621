"""Many inputs, many outputs, long chains, huge sizes: compiled in seconds, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_build import build, error_of, one_node, run, value
from onnx_oracle import check_as_onnx_runtime, check_same, compiled, onnx_runtime

import minitvm
from minitvm.errors import TypeInferenceError
from minitvm.frontend import from_onnx
from minitvm.ir import builder as ir
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Function, Module
from minitvm.ir.types import TensorType
from minitvm.runtime.executor import GraphModule
from tests.steps import assert_linear

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def many(op: str, count: int, **attributes: Any) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    feeds = {f"x{i}": np.full((2, 2), i % 7, np.float32) + np.float32([[0, 1], [2, 3]]) for i in range(count)}
    node = helper.make_node(op, list(feeds), ["y"], name="the_node", **attributes)
    return build([node], [value(n, a) for n, a in feeds.items()], ["y"]), feeds


@pytest.mark.parametrize(
    ("op", "count", "attributes"),
    [
        ("Concat", 200, {"axis": 1}),
        ("Concat", 130, {"axis": 0}),
        ("Sum", 300, {}),
        ("Max", 300, {}),
        ("Mean", 130, {}),
        ("Einsum", 26, {"equation": ",".join(["ij"] * 26) + "->ij"}),
    ],
)
def test_many_inputs(op: str, count: int, attributes: dict[str, Any]) -> None:
    model, feeds = many(op, count, **attributes)
    check_as_onnx_runtime(model, feeds, rtol=1e-4)


def test_thousands_of_inputs() -> None:
    """The operator itself too: halves are looked at first, so that nothing nests thousands of times."""
    model, feeds = many("Concat", 2000, axis=1)
    (found,) = compiled(model, feeds)
    assert_linear(lambda count: partial(compiled, *many("Concat", count, axis=1)), 100)
    np.testing.assert_array_equal(found, np.concatenate(list(feeds.values()), axis=1))
    parts = [ir.var(f"x{i}", TensorType((2, 2))) for i in range(300)]
    joined = ir.concatenate(parts, axis=0), ir.stack(parts, axis=1)
    values = list(feeds.values())[:300]
    for body, expected in zip(joined, (np.concatenate(values), np.stack(values, 1)), strict=True):
        module = GraphModule(minitvm.build(Module(Function(parts, body)))["default"]())
        module.run(dict(zip((p.name for p in parts), values, strict=True)))
        np.testing.assert_array_equal(module.outputs()[0], expected)


def test_many_outputs() -> None:
    x = np.arange(600, dtype=np.float32).reshape(300, 2)
    names = [f"y{i}" for i in range(300)]
    model = build([helper.make_node("Split", ["x"], names, axis=0)], [value("x", x)], names)
    for found in (run(model, {"x": x}), compiled(model, {"x": x})):
        check_same(found, [x[i : i + 1] for i in range(300)])


@pytest.mark.parametrize("op", ["Relu", "Transpose", "Softmax"])
def test_long_chains(op: str) -> None:
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"]) for i in range(300)]
    model = build(nodes, [value("v0", X)], ["v300"])
    check_as_onnx_runtime(model, {"v0": X}, rtol=1e-4)


@pytest.mark.parametrize("size", [7, 8, 2**20 + 1, 2**40 + 1, 2**63 - 1])
def test_a_normalisation_wider_than_the_channels(size: int) -> None:
    """Neighbours that are not there count for nothing but the mean."""
    x = np.random.default_rng(1).standard_normal((1, 4, 2, 3)).astype(np.float32)
    model = one_node("LRN", x, size=size, alpha=0.3)
    total = np.stack(
        [sum(x[0, d] ** 2 for d in range(4) if c - (size - 1) // 2 <= d <= c + size // 2) for c in range(4)]
    )
    expected = x / (1.0 + 0.3 / size * total[None]) ** 0.75
    check_same(run(model, {"x0": x}), [expected.astype(np.float32)])
    check_same(compiled(model, {"x0": x}), [expected.astype(np.float32)])


REFUSED: list[tuple[str, Callable[[], onnx.ModelProto], str]] = [
    (
        "a pad",
        lambda: one_node("Pad", X, constants={1: np.array([2**24, 0, 0, 2**24])}),
        "nn.pad: the result, Tensor[(16777218, 16777219), float32], would take 1,125,900,242,386,968 bytes",
    ),
    (
        "a range",
        lambda: one_node("Range", constants={0: np.int64(0), 1: np.int64(2**26), 2: np.int64(1)}),
        "Range: from 0 to 67108864 in steps of 1 are more than 16,777,216 numbers",
    ),
    (
        "no range",
        lambda: one_node("Range", constants={0: np.int64(0), 1: np.int64(2), 2: np.int64(0)}),
        "Range: from 0 to 2 in steps of 0 is no range",
    ),
    (
        "an index",
        lambda: one_node("Gather", X, constants={1: np.array([-(2**63)])}),
        "Gather: index -9223372036854775808 is outside of dimension 0 of Tensor[(2, 3), float32]",
    ),
    (
        "a tile",
        lambda: one_node("Tile", X, constants={1: np.array([2**40, 2**20])}),
        "tile: the result, Tensor[(2199023255552, 3145728), float32], would take 27,670,116,110,564,327,424 bytes",
    ),
    (
        "a fill",
        lambda: one_node("ConstantOfShape", constants={0: np.array([2**62])}),
        "full: the result, Tensor[(4611686018427387904,), float32], would take 18,446,744,073,709,551,616 bytes",
    ),
    (
        "a resize",
        lambda: one_node("Resize", X, constants={1: np.float32([]), 2: np.float32([1, 1e7])}, mode="cubic"),
        "Resize: axis 1 of Tensor[(2, 3), float32] cannot be resized to 30000000",
    ),
]


@pytest.mark.parametrize(("model", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused_at_once(model: Callable[[], onnx.ModelProto], message: str) -> None:
    assert error_of(TypeInferenceError, model()).startswith(message)


def test_a_range_at_the_ends_of_int64() -> None:
    low, high, step = (np.int64(v) for v in (-(2**63), 2**63 - 1, 2**62))
    model = one_node("Range", constants={0: low, 1: high, 2: step})
    check_same(run(model, {}), [np.array([-(2**63), -(2**62), 0, 2**62])])
    backwards = one_node("Range", constants={0: np.int64(3), 1: np.int64(-4), 2: np.int64(-2)})
    check_same(run(backwards, {}), onnx_runtime(backwards, {}))


def test_conditions_within_conditions() -> None:
    def branch(depth: int) -> onnx.GraphProto:
        other = helper.make_graph([helper.make_node("Abs", ["x"], ["a"])], "other", [], [value("a", None)])
        inner = other if depth == 0 else branch(depth - 1)
        node = helper.make_node("If", ["flag"], ["r"], then_branch=inner, else_branch=other)
        return helper.make_graph([node], f"depth{depth}", [], [value("r", None)])

    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch(20), else_branch=branch(0))
    model = build([node], [value("flag", (), "bool"), value("x", X)], ["y"])
    module, _ = from_onnx(model)
    np.testing.assert_array_equal(evaluate(module, np.array(True), -X), X)
