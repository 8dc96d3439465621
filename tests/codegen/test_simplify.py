"""The simplifier: its rules, its bounds, what it can prove; and that it changes no result."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm.codegen.simplify import simplify, simplify_expr
from minitvm.ir.loop import (
    Alloc,
    Binary,
    Buffer,
    Cast,
    Const,
    For,
    If,
    Kernel,
    LoopExpr,
    LoopKind,
    LoopVar,
    Select,
    Stmt,
    Store,
    const,
    dependency_order,
    intrin,
    loop,
    maximum,
    minimum,
    select,
    seq,
)
from minitvm.ir.loop.affine import Range, bounds, prove
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.text import print_kernel, print_loop_expr

I, J, N = LoopVar("i"), LoopVar("j"), LoopVar("n")
RANGES = {I: Range(0, 7), J: Range(0, 3)}  # n is not known


def simpler(expr: LoopExpr) -> str:
    return print_loop_expr(simplify_expr(expr, RANGES)).replace("?", "")


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ((I * 4 + J) // 4, "i"),
        ((I * 4 + J) % 4, "j"),
        ((I * 8 + J) // 4, "i * 2"),
        ((I * 8 + J + 5) % 4, "(j + 1) % 4"),
        ((I * 6 + J) % 4, "(i * 6 + j) % 4"),
        ((I * 4 + 3) // 4, "i"),
        ((N * 4 + J) // 4, "n"),
        ((N * 4 + I) // 4, "(n * 4 + i) // 4"),
        (I // 8, "0"),
        (I % 8, "i"),
        ((I - 1) // 8, "(i - 1) // 8"),
        ((I + 8) // 8, "1"),
        (I // 3 * 3 + I % 3, "i"),
        (N // 5 * 10 + N % 5 * 2 + 1, "n * 2 + 1"),
        (N // 5 * 10 + N % 5 * 3, "n // 5 * 10 + n % 5 * 3"),
        (select(I < 8, I, J), "i"),
        (select(J >= 4, I, J), "j"),
        (select(I < N, I, J), "select(i < n, i, j)"),
        ((I < 8) & (J < N), "j < n"),
        ((I > 7) & (J < N), "False"),
        ((I < 8) | (J < N), "True"),
        (Binary("or", I > 7, J < N), "j < n"),
        (I.equal(9), "False"),
        (I.not_equal(-1), "True"),
        (Cast(const(2.75, "float32"), "int32"), "2i32"),
        (Binary("add", const(250, "uint8"), const(10, "uint8")), "4u8"),
        (Binary("div", const(-7, "int32"), const(2, "int32")), "-3i32"),
        (Binary("lt", const(1.0, "float32"), const(2.0, "float32")), "True"),
    ],
    ids=str,
)
def test_rules(expr: LoopExpr, expected: str) -> None:
    assert simpler(expr).replace("i + -1", "i - 1") == expected


def test_shared_parts_stay_shared() -> None:
    x = Buffer("x", (64,), "float32")
    load = x[I // 1 + (J * 4 + I % 4) // 4]
    result = simplify_expr(Binary("mul", load, load), RANGES)
    left, right = result.operands
    assert left is right


def test_what_cannot_be_simplified_is_returned_as_it_is() -> None:
    expr = (N + 1) // 3
    assert simplify_expr(expr, RANGES) is expr


# --- bounds and proofs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "low", "high"),
    [
        (Const(5), 5, 5),
        (I + J, 0, 10),
        (I - J, -3, 7),
        (I - I, 0, 0),
        (I * -2 + 1, -13, 1),
        (I // 2, 0, 3),
        ((I - 4) // 3, -2, 1),
        (I % 3, 0, 2),
        ((I + 8) % 16, 8, 15),
        (minimum(I, 5), 0, 5),
        (maximum(I - 2, J), 0, 5),
        (minimum(N, 5), None, 5),
        (maximum(N, 5), 5, None),
        (N % 7, 0, 6),
        (N + 1, None, None),
        (I * N, None, None),
    ],
    ids=str,
)
def test_bounds(expr: LoopExpr, low: int | None, high: int | None) -> None:
    assert bounds(expr, RANGES) == Range(low, high)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (I < 8, True),
        (I < 7, None),
        (I < 0, False),
        (I <= 7, True),
        (I + J <= J + 7, True),
        (I.equal(J + 8), False),
        (I.equal(I), True),
        (I.not_equal(J), None),
        ((I < 8) & (J < 4), True),
        ((I < N) & (J < 0), False),
        (Binary("or", I < N, J < 4), True),
        (intrin("not", I < 8), False),
        (const(True, "bool"), True),
        (const(1.0, "float32") < const(2.0, "float32"), None),
    ],
    ids=str,
)
def test_prove(condition: LoopExpr, expected: bool | None) -> None:
    assert prove(condition, RANGES) is expected


# --- statements -----------------------------------------------------------------------------------------------

X, Y = Buffer("x", (8,), "float32"), Buffer("y", (8,), "float32")


def body_of(stmt: Stmt) -> str:
    return print_kernel(simplify(Kernel("k", (X, Y), stmt))).split("\n", 1)[1]


def copy(i: LoopExpr) -> Store:
    return Store(Y, (i,), X[i])


def test_loops_of_one_iteration_go() -> None:
    assert body_of(loop(1, copy)) == "  y[0] = x[0]\n"
    assert body_of(loop(1, copy, LoopKind.UNROLLED)) == "  y[0] = x[0]\n"
    assert body_of(loop(1, copy, LoopKind.PARALLEL)) == "  parallel i in 1:\n    y[i] = x[i]\n"


def test_loops_without_iterations_go() -> None:
    assert body_of(seq(loop(0, copy), copy(Const(3)))) == "  y[3] = x[3]\n"
    assert body_of(loop(4, lambda i: For(J, i - 5, copy(J)))) == "  pass\n"


def test_branches_that_are_known_go() -> None:
    assert body_of(loop(8, lambda i: If(i < 8, copy(i), Store(Y, (i,), const(0, "float32"))))) == (
        "  for i in 8:\n    y[i] = x[i]\n"
    )
    assert body_of(loop(8, lambda i: If(i > 8, copy(i)))) == "  pass\n"


def test_branch_whose_side_is_empty_is_turned_around() -> None:
    stmt = loop(8, lambda i: If(i < 4, loop(0, copy), copy(i)))
    assert body_of(stmt) == "  for i in 8:\n    if not(i < 4):\n      y[i] = x[i]\n"


def test_memory_that_nothing_uses_goes() -> None:
    t = Buffer("t", (4,), "float32", "local")
    assert body_of(seq(Alloc(t, loop(0, lambda i: Store(t, (i,), X[i]))), copy(Const(0)))) == "  y[0] = x[0]\n"


def test_ranges_of_outer_loops_are_used_inside() -> None:
    stmt = loop(2, lambda i: loop(4, lambda j: Store(Y, ((i * 4 + j) // 4 * 4 + (i * 4 + j) % 4,), X[j]), name="j"))
    assert body_of(stmt) == "  for i in 2:\n    for j in 4:\n      y[i * 4 + j] = x[j]\n"


# --- the property ---------------------------------------------------------------------------------------------

_NUMBERS = st.integers(-9, 9)


def _indices(variables: list[LoopVar]) -> st.SearchStrategy[LoopExpr]:
    """Index arithmetic over variables, divisions by constants and by what may be zero included."""
    leaves = st.one_of(st.sampled_from(variables), _NUMBERS.map(Const))

    def extend(inner: st.SearchStrategy[LoopExpr]) -> st.SearchStrategy[LoopExpr]:
        conditions = st.builds(Binary, st.sampled_from(["lt", "le", "eq", "ne"]), inner, inner)
        both = st.builds(Binary, st.sampled_from(["and", "or"]), conditions, conditions)
        return st.one_of(
            st.builds(Binary, st.sampled_from(["add", "sub", "mul", "min", "max"]), inner, inner),
            st.builds(Binary, st.sampled_from(["floordiv", "floormod"]), inner, _NUMBERS.map(Const)),
            st.builds(Binary, st.sampled_from(["floordiv", "floormod", "div", "mod"]), inner, inner),
            st.builds(Select, st.one_of(conditions, both), inner, inner),
        )

    return st.recursive(leaves, extend, max_leaves=12)


_EXPRS = _indices([I, J])


@settings(max_examples=60, deadline=None)
@given(value=_EXPRS, sides=st.none() | st.tuples(_EXPRS, _EXPRS), first=st.integers(1, 4), second=st.integers(1, 4))
def test_results_stay_the_same(
    value: LoopExpr, sides: tuple[LoopExpr, LoopExpr] | None, first: int, second: int
) -> None:
    out = Buffer("out", (first, second), "int64")
    store: Stmt = Store(out, (I, J), value)
    if sides is not None:
        store = If(Binary("lt", *sides), store, Store(out, (I, J), Const(-1)))
    kernel = Kernel("k", (out,), For(I, Const(first), For(J, Const(second), store, LoopKind.VECTORIZED)))
    np.testing.assert_array_equal(run_kernel(simplify(kernel))[0], run_kernel(kernel)[0])


@settings(max_examples=60, deadline=None)
@given(expr=_EXPRS)
def test_bounds_hold_every_value(expr: LoopExpr) -> None:
    out = Buffer("out", (8, 4), "int64")
    (values,) = run_kernel(Kernel("k", (out,), For(I, Const(8), For(J, Const(4), Store(out, (I, J), expr)))))
    found = bounds(expr, RANGES)
    assert found.low is None or found.low <= values.min()
    assert found.high is None or found.high >= values.max()


def test_float_arithmetic_is_left_alone() -> None:
    x = Buffer("x", (3,), "float32")
    expr = x[0] * const(1.0, "float32") + const(0.0, "float32")
    assert simplify_expr(expr, {}) is expr
    assert len(dependency_order([expr])) == 6
