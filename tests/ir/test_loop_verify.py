"""The kernel verifier: each rule broken once, and what must be let through."""

from __future__ import annotations

import pytest

from minitvm.errors import CompilerError
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Binary,
    Buffer,
    Cast,
    Const,
    For,
    If,
    Intrin,
    Kernel,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Prefetch,
    Reduce,
    Select,
    Stmt,
    Store,
    const,
    loop,
    maximum,
    minimum,
    nest,
    select,
    seq,
    store,
)
from minitvm.ir.loop.affine import Range, bounds
from minitvm.ir.loop.verify import evaluate, verify_kernel

X, Y = Buffer("x", (8, 4), "float32"), Buffer("y", (8, 4), "float32")
IDX, TMP = Buffer("idx", (8,), "int64"), Buffer("tmp", (4,), "float32", "local")
ONE = const(1, "float32")


def check(body: Stmt, *inputs: Buffer) -> None:
    verify_kernel(Kernel("k", (*(inputs or (X,)), Y), body))


def rejected(body: Stmt, *inputs: Buffer) -> str:
    with pytest.raises(CompilerError) as caught:
        check(body, *inputs)
    return str(caught.value)


def copy(element: LoopExpr | None = None) -> Stmt:
    return nest((8, 4), lambda i, j: store(Y, (i, j), X[i, j] if element is None else element))


def test_good_kernels() -> None:
    check(copy())
    check(nest((8, 4), lambda i, j: store(Y, (i, j), X[i, j]), LoopKind.PARALLEL))  # perfectly nested
    lanes = loop(8, lambda i: loop(4, lambda j: store(Y, (i, j), ONE), LoopKind.VECTORIZED), LoopKind.PARALLEL)
    check(seq(lanes, Barrier(), loop(8, lambda i: store(Y, (i, Const(0)), Y[i, 1] + 1), LoopKind.PARALLEL)))


def test_the_statement_is_shown() -> None:
    assert rejected(loop(8, lambda i: store(X, (i, Const(0)), ONE))) == ("k: stores to x, an input\n  | x[i, 0] = 1f")


def test_scopes() -> None:
    z = Buffer("z", (4,), "float32", "local")
    assert "z is neither a parameter nor allocated around here" in rejected(Store(z, (Const(0),), ONE))
    assert "z is neither a parameter" in rejected(copy(z[0]))
    late = seq(Alloc(z, Store(z, (Const(0),), ONE)), copy(z[0]))
    assert "z is neither a parameter" in rejected(late)
    assert "z is allocated twice" in rejected(Alloc(z, Alloc(z, copy())))
    with pytest.raises(CompilerError, match="k: parameter z has scope 'local', not 'global'"):
        verify_kernel(Kernel("k", (z, Y), copy(ONE)))


def test_reads_before_anything_is_stored() -> None:
    assert "reads y, a result, before anything is stored there" in rejected(copy(Y[0, 0]))
    assert "reads tmp, local memory, before anything is stored there" in rejected(Alloc(TMP, copy(TMP[0])))
    check(Alloc(TMP, seq(loop(4, lambda i: store(TMP, (i,), ONE)), copy(TMP[0]))))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (Binary("add", ONE, const(1, "float64")), "float32 and float64 in 1f + 1f64"),
        (Binary("plus", ONE, ONE), "unknown operator 'plus' in plus(1f, 1f)"),
        (Binary("and", ONE, ONE), "and of float32 in 1f & 1f"),
        (Cast(Binary("shl", Const(True, "bool"), Const(True, "bool")), "float32"), "shl of bool in True << True"),
        (Select(ONE, ONE, ONE), "the condition is float32, not bool, in select(1f, 1f, 1f)"),
        (Select(Const(True, "bool"), ONE, const(1, "int32")), "float32 and int32 in select(True, 1f, 1i32)"),
        (Intrin("exp", (ONE, ONE)), "exp does not take 2 operands in exp(1f, 1f)"),
        (Intrin("gamma", (ONE,)), "unknown gamma in gamma(1f)"),
        (Intrin("fma", (ONE, ONE, const(1, "float64"))), "operands of different dtypes in fma(1f, 1f, 1f64)"),
        (Reduce("sum", ((LoopVar("r"), 4),), ONE), "a reduction that is not lowered to loops in sum(r < 4: 1f)"),
        (LoopVar("q").astype("float32"), "the loop variable q is bound by no loop in q"),
        (const(1, "int32"), "y is float32, the value int32"),
    ],
)
def test_expressions(value: LoopExpr, problem: str) -> None:
    text = rejected(Store(Y, (Const(0), Const(0)), value))
    assert text.splitlines()[0] == f"k: {problem}"


def test_indices() -> None:
    assert "y has 2 dimensions, 1 indices given" in rejected(Store(Y, (Const(0),), ONE))
    assert "x has 2 dimensions, 3 indices given" in rejected(copy(Load(X, (Const(0),) * 3)))
    assert "the index 1i32 is int32, not int64" in rejected(copy(Load(X, (Const(0), Const(1, "int32")))))
    assert "the condition is int64, not bool" in rejected(If(Const(1), copy()))


def test_loops() -> None:
    i = LoopVar("i")
    twice = For(i, Const(8), For(i, Const(4), store(Y, (i, i), ONE)))
    assert "the loop variable i is bound by a loop around it already" in rejected(twice)
    assert "the extent is int32, not int64" in rejected(For(i, Const(4, "int32"), copy()))
    varying = loop(4, lambda j: For(i, j + 1, store(Y, (i, j), ONE), LoopKind.UNROLLED))
    assert "only serial loops have an extent that varies, this one is unrolled" in rejected(varying)
    check(loop(4, lambda j: For(i, j + 1, store(Y, (i, j), ONE))))


def test_kinds_of_loops() -> None:
    def inside(outer: LoopKind, inner: LoopKind) -> Stmt:
        return loop(
            8, lambda i: seq(loop(4, lambda j: store(Y, (i, j), ONE), inner), store(Y, (i, Const(0)), ONE)), outer
        )

    vectorized, parallel = LoopKind.VECTORIZED, LoopKind.PARALLEL
    assert "a serial loop inside a vectorized one" in rejected(inside(vectorized, LoopKind.SERIAL))
    assert "a parallel loop inside another loop" in rejected(inside(parallel, parallel))
    assert "a parallel loop inside another loop" in rejected(inside(LoopKind.SERIAL, parallel))
    assert "threadIdx.x is bound to two loops around each other" in rejected(
        inside(LoopKind.THREAD_X, LoopKind.THREAD_X)
    )
    check(loop(8, lambda i: seq(loop(4, lambda j: store(Y, (i, j), ONE), parallel), Barrier())))
    check(inside(LoopKind.BLOCK_X, LoopKind.THREAD_X))
    within = loop(4, lambda i: Alloc(TMP, store(Y, (i, i), ONE)), vectorized)
    assert "tmp is allocated inside a vectorized loop" in rejected(within)
    assert "a barrier inside a parallel loop" in rejected(loop(8, lambda i: Barrier(), parallel))


def row(extent: int, index: LoopExpr | None = None, var: str = "i") -> Stmt:
    return loop(extent, lambda i: store(Y, (i if index is None else index, Const(0)), ONE), name=var)


def test_bounds_of_stores_and_loads() -> None:
    assert rejected(row(9)) == ("k: index i leaves dimension 0 of y, 8 long: 8 at i=8\n  | y[i, 0] = 1f")
    assert "index -1 leaves dimension 0 of y, 8 long: -1" in rejected(Store(Y, (Const(-1), Const(0)), ONE))
    assert "leaves dimension 1 of x, 4 long: 4 at j=0" in rejected(
        nest((8, 4), lambda i, j: store(Y, (i, j), X[i, Const(4) - j]))
    )
    check(row(0, Const(99)))  # never runs


def test_a_prefetch_is_of_an_element_that_is_there() -> None:
    check(seq(copy(), loop(8, lambda i: Prefetch(X[i, 0]))))
    assert "index i leaves dimension 0 of x, 8 long: 8 at i=8" in rejected(loop(9, lambda i: Prefetch(X[i, 0])))
    assert rejected(Prefetch(ONE)) == "k: a prefetch is of an element of memory\n  | prefetch 1f"


def test_bounds_that_intervals_alone_cannot_see() -> None:
    check(loop(8, lambda i: store(Y, ((i // 3) * 3 + i % 3, Const(0)), ONE)))
    check(loop(32, lambda i: store(Y, (i // 4, i - i // 4 * 4), ONE)))
    assert "8 at i=7" in rejected(loop(8, lambda i: store(Y, ((i // 3) * 3 + i % 3 + 1, Const(0)), ONE)))


def test_conditions_keep_indices_inside() -> None:
    check(loop(10, lambda i: If(i < 8, store(Y, (i, Const(0)), ONE))))
    check(loop(10, lambda i: If((i < 1) | (i >= 9), seq(), store(Y, (i - 1, Const(0)), ONE))))
    assert "8 at i=8" in rejected(loop(10, lambda i: If(i <= 8, store(Y, (i, Const(0)), ONE))))
    assert "9 at i=9" in rejected(loop(10, lambda i: If(i < 9, seq(), store(Y, (i, Const(0)), ONE))))
    padded = lambda low: nest(  # noqa: E731
        (8, 4), lambda i, j: store(Y, (i, j), select(Binary("le", Const(low), i), X[i - 1, j], 0))
    )
    check(padded(1))
    assert "index i - 1 leaves dimension 0 of x, 8 long: -1 at i=0" in rejected(padded(0))


def test_a_load_that_is_shared_is_guarded_on_every_way_to_it() -> None:
    def body(i: LoopVar) -> Stmt:
        load = X[i - 1, 0]
        return store(Y, (i, Const(0)), select(i >= 1, load, 0) + load)

    assert "-1 at i=0" in rejected(loop(8, body))
    check(
        loop(8, lambda i: store(Y, (i, Const(0)), (lambda x: select(i >= 1, x, 0) + select(i >= 2, x, 0))(X[i - 1, 0])))
    )


def test_indices_that_depend_on_data() -> None:
    gather = lambda at: loop(8, lambda i: store(Y, (i, Const(0)), X[at(IDX[i]), 0]))  # noqa: E731
    check(gather(lambda v: v), X, IDX)
    check(gather(lambda v: maximum(minimum(v, 7), 0)), X, IDX)
    check(loop(9, lambda i: If(IDX[minimum(i, 7)] < 3, store(Y, (i, Const(0)), ONE))), X, IDX)


def test_loops_whose_extent_varies() -> None:
    triangle = lambda extra: loop(  # noqa: E731
        4, lambda i: loop(i + extra, lambda j: store(Y, (Const(0), j), ONE), name="j")
    )
    check(triangle(1))
    assert "4 at i=3, j=4" in rejected(triangle(2))


def test_large_nests_are_checked_at_their_corners() -> None:
    big = Buffer("big", (1000, 1000), "float32")
    body = nest((1000, 1000), lambda i, j: store(big, (i, (j + i % 2) - i % 2 + 1), ONE))
    with pytest.raises(CompilerError, match="leaves dimension 1 of big, 1000 long: 1000 at"):
        verify_kernel(Kernel("k", (big,), body))


def test_chains_of_selects_take_linear_time() -> None:
    def body(i: LoopVar) -> Stmt:
        value: LoopExpr = X[i, 0]
        for n in range(300):
            value = select(value < float(n), value + 1, value * 2)
        return store(Y, (i, Const(0)), value)

    check(loop(8, body))


def test_intervals_and_values_agree() -> None:
    """Every value lies in its interval, for expressions drawn at random."""
    import random

    import numpy as np

    rng = random.Random(5)
    i, j = LoopVar("i"), LoopVar("j")
    points = {i: np.arange(6).repeat(5), j: np.tile(np.arange(5), 6)}
    for _ in range(300):
        expr: LoopExpr = i
        for _ in range(rng.randrange(1, 6)):
            other = rng.choice([i, j, Const(rng.randrange(-4, 5))])
            op = rng.choice(["add", "sub", "mul", "min", "max"])
            expr = (
                Binary(op, expr, other)
                if rng.random() < 0.7
                else Binary(rng.choice(["floordiv", "floormod"]), expr, Const(rng.randrange(1, 5)))
            )
        value = evaluate(expr, points)
        found = bounds(expr, {i: Range(0, 5), j: Range(0, 4)})
        assert value is not None and found.low is not None and found.high is not None
        assert Range(int(value.min()), int(value.max())).within(found.low, found.high)
