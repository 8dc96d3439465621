"""Integers wrap around: no simplification, at any level, forgets it.  Random expressions over extreme values."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitvm
from minitvm.codegen.simplify import simplify, simplify_expr
from minitvm.ir import builder as ir
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Constant, Expr, Function, Module, Tuple
from minitvm.ir.loop import Binary, Buffer, Const, Kernel, LoopExpr, Store, loop, maximum, minimum, select
from minitvm.ir.loop.affine import Range, prove
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.types import TensorType
from minitvm.runtime.executor import GraphModule

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
MIN, MAX = -(2**63), 2**63 - 1
DATA = Buffer("data", (12,), "int64")
EXTREMES = np.array([MIN, MIN + 1, -(2**62), -1, 0, 1, 2, 3, 2**62, 2**62 + 1, MAX - 1, MAX])


# --- the loops' own arithmetic ----------------------------------------------------------------------------------------

CONSTANTS = st.sampled_from([MIN, MAX, 2**62, -(2**62), 2**40, -3, -2, -1, 0, 1, 2, 3, 5, 7])
_SUMS: list[Any] = [lambda a, b: a + b, lambda a, b: a - b, minimum, maximum]


def _terms(leaves: st.SearchStrategy[LoopExpr]) -> st.SearchStrategy[LoopExpr]:
    sums = st.builds(lambda f, a, b: f(a, b), st.sampled_from(_SUMS), leaves, leaves)
    products = st.builds(lambda a, c: a * Const(c), leaves, CONSTANTS)
    divided = st.builds(
        lambda op, a, c: Binary(op, a, Const(c)),
        st.sampled_from(["floordiv", "floormod"]),
        leaves,
        st.sampled_from([1, 2, 3, 4, 7, 8, 2**40, MAX]),
    )
    chosen = st.builds(
        lambda op, a, b, c: select(Binary(op, a, b), c, b),
        st.sampled_from(["lt", "le", "eq", "ne"]),
        leaves,
        leaves,
        leaves,
    )
    return sums | products | divided | chosen


def kernel_of(value: Any) -> Kernel:
    """One element of data, the loop variable, and what is made of them."""
    out = Buffer("out", (12,), "int64")
    return Kernel("k", (DATA, out), loop(12, lambda i: Store(out, (i,), value(DATA[i], i))), results=1)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data())
def test_simplified_kernels_compute_the_same(data: st.DataObject) -> None:
    def value(x: LoopExpr, i: LoopExpr) -> LoopExpr:
        leaves = st.sampled_from([x, i]) | CONSTANTS.map(Const)
        return data.draw(st.recursive(leaves, _terms, max_leaves=8))

    kernel = kernel_of(value)
    with np.errstate(all="ignore"):
        before, after = (run_kernel(k, EXTREMES)[0] for k in (kernel, simplify(kernel)))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    "condition",
    [
        lambda x, i: x < x + 1,
        lambda x, i: maximum(x, 5) + 3 < 8,
        lambda x, i: minimum(x, -5) - 3 > -8,
        lambda x, i: x * 2 <= x * 2 + 1,
        lambda x, i: (x % 2**40) * 2**40 >= 0,
    ],
)
def test_what_data_could_wrap_around_is_not_known(condition: Any) -> None:
    i = loop(12, lambda i: Store(DATA, (i,), Const(0))).var  # type: ignore[attr-defined]
    assert prove(condition(DATA[i], i), {i: Range(0, 11)}) is None


def test_what_holds_for_every_integer_is_known() -> None:
    i = loop(12, lambda i: Store(DATA, (i,), Const(0))).var  # type: ignore[attr-defined]
    x, ranges = DATA[i], {i: Range(0, 11)}
    assert prove((x % 7) * 3 < 19, ranges) is True
    assert prove((x % 7).equal(7), ranges) is False
    assert prove(i < i + 1, ranges) is True
    assert simplify_expr((x % 8 * 4 + 3) // 4, ranges) == x % 8


# --- whole graphs -----------------------------------------------------------------------------------------------------

_GRAPH: list[Any] = [
    ir.add,
    ir.subtract,
    ir.multiply,
    ir.floor_mod,
    ir.floor_divide,
    ir.mod,
    ir.maximum,
    ir.minimum,
    ir.divide,
]


def extremes(dtype: str) -> np.ndarray:
    info = np.iinfo(dtype)
    top, low = int(info.max), int(info.min)
    return np.array([low, low + 1, low // 2, 0, 1, 2, 3, top // 3, top // 2, top // 2 + 1, top - 1, top], dtype)


def constants(dtype: str) -> st.SearchStrategy[Expr]:
    values = st.sampled_from(extremes(dtype).tolist()) | st.integers(1, 7)
    return values.map(lambda v: Constant(np.asarray(v, dtype)))


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(BITS)), st.data())
def test_graphs_mean_the_same_at_every_level(dtype: str, data: st.DataObject) -> None:
    """Also in the order of the folded constants: (x * 3) % 3 is no 0 where x * 3 wraps around."""
    x = ir.var("x", TensorType((12,), dtype))

    def grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.builds(lambda f, a, c: f(a, c), st.sampled_from(_GRAPH), inner, constants(dtype)) | st.builds(
            lambda f, a, b: f(a, b), st.sampled_from(_GRAPH), inner, inner
        )

    outputs = [data.draw(st.recursive(st.just(x), grown, max_leaves=5)) for _ in range(6)]
    check_all_levels(Function([x], Tuple([ir.add(o, x) for o in outputs])), extremes(dtype))


def check_all_levels(function: Function, value: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        expected = evaluate(function, value)
    for level in range(4):
        module = GraphModule(minitvm.build(Module(function), opt_level=level)["default"](minitvm.cpu()))
        module.run({"x": value})
        for mine, theirs in zip(module.outputs(), expected, strict=True):
            np.testing.assert_array_equal(mine, theirs, err_msg=f"level {level}")


def test_products_and_remainders_at_the_ends() -> None:
    x = ir.var("x", TensorType((12,), "int64"))
    c = partial(np.asarray, dtype="int64")
    three, big = Constant(c(3)), Constant(c(2**62))
    outputs = [
        ir.floor_mod(x * three, three),
        ir.floor_divide(x * three, three),
        ir.mod(x * three, three),
        ir.floor_divide(x + big, Constant(c(4))),
        x * big * Constant(c(4)),
        ir.cast(ir.less(x, x + Constant(c(1))), dtype="int64"),
    ]
    check_all_levels(Function([x], Tuple(outputs)), EXTREMES)
