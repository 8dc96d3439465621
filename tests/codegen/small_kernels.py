"""Kernels for schedule steps, and how a step is held beside what it was given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from minitvm.codegen.loops import or_zero
from minitvm.errors import ScheduleError
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    Const,
    Kernel,
    LoopExpr,
    Stmt,
    Store,
    const,
    intrin,
    loop,
    minimum,
    seq,
)
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.text import print_kernel
from minitvm.ir.loop.verify import verify_kernel

A, B, C = Buffer("a", (6, 5), "float32"), Buffer("b", (5, 8), "float32"), Buffer("c", (6, 8), "float32")


def matmul() -> Kernel:
    def element(i: LoopExpr, j: LoopExpr) -> Stmt:
        zero = Store(C, (i, j), const(0, "float32"))
        update = loop(5, lambda k: Store(C, (i, j), C[i, j] + A[i, k] * B[k, j]), name="k")
        return seq(zero, update)

    return Kernel("matmul", (A, B, C), loop(6, lambda i: loop(8, lambda j: element(i, j), name="j"), name="i"))


X, Y = Buffer("x", (6, 10), "float32"), Buffer("y", (6, 10), "float32")


def scale() -> Kernel:
    body = loop(6, lambda i: loop(10, lambda j: Store(Y, (i, j), X[i, j] * const(2, "float32")), name="j"), name="i")
    return Kernel("scale", (X, Y), body)


def prefix_sum() -> Kernel:
    first = loop(6, lambda i: Store(Y, (i, Const(0)), X[i, 0]), name="first")
    rest = loop(6, lambda i: loop(9, lambda j: Store(Y, (i, j + 1), Y[i, j] + X[i, j + 1]), name="j"), name="i")
    return Kernel("prefix_sum", (X, Y), seq(first, rest))


def shifted() -> Kernel:
    """A temporary, then a window of three over it."""
    t, y = Buffer("t", (6, 10), "float32"), Buffer("y", (6, 8), "float32")
    fill = loop(6, lambda p: loop(10, lambda q: Store(t, (p, q), intrin("exp", X[p, q])), name="q"), name="p")
    window = loop(
        6, lambda i: loop(8, lambda j: Store(y, (i, j), t[i, j] + t[i, j + 1] + t[i, j + 2]), name="j"), name="i"
    )
    return Kernel("shifted", (X, y), Alloc(t, seq(fill, Barrier(), window)))


def check(before: Kernel, after: Kernel, expected: str | None = None, exact: bool = True) -> Kernel:
    """The same numbers, a well-formed kernel, and (where given) this text of its body."""
    verify_kernel(after)
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=b.shape).astype(b.dtype) for b in before.inputs]
    want, have = run_kernel(before, *arrays), run_kernel(after, *arrays, check_races=True)
    for w, h in zip(want, have, strict=True):
        np.testing.assert_allclose(h, w, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)
    if expected is not None:
        assert print_kernel(after).split("\n", 1)[1] == expected
    return after


def refusal(step: Callable[[], Kernel]) -> str:
    with pytest.raises(ScheduleError) as error:
        step()
    return str(error.value)


def triangle() -> Kernel:
    zero = loop(6, lambda i: loop(10, lambda j: Store(Y, (i, j), const(0, "float32")), name="j"), name="i")
    body = loop(6, lambda r: loop(minimum(r + 1, 4), lambda s: Store(Y, (r, s), X[r, s]), name="s"), name="r")
    return Kernel("triangle", (X, Y), seq(zero, body))


def sums(value: Callable[[LoopExpr, LoopExpr, LoopExpr], LoopExpr]) -> Kernel:
    """``z[i] = value(z[i], ...)`` over two loops."""
    z = Buffer("z", (6,), "float32")
    zero = loop(6, lambda i: Store(z, (i,), const(0, "float32")), name="zero")
    body = loop(
        6,
        lambda i: loop(2, lambda r: loop(5, lambda s: Store(z, (i,), value(z[i], i, r * 5 + s)), name="s"), name="r"),
        name="i",
    )
    return Kernel("sums", (X, z), seq(zero, body))


def padded() -> Kernel:
    """A window of three over rows with a zero before and behind."""
    z = Buffer("z", (6, 10), "float32")

    def element(i: LoopExpr, j: LoopExpr) -> Stmt:
        def term(k: LoopExpr) -> LoopExpr:
            at = j + k - 1
            return or_zero((at >= 0) & (at < 10), X[i, at])

        zero = Store(z, (i, j), const(0, "float32"))
        return seq(zero, loop(3, lambda k: Store(z, (i, j), z[i, j] + term(k)), name="k"))

    return Kernel("padded", (X, z), loop(6, lambda i: loop(10, lambda j: element(i, j), name="j"), name="i"))


def wavefront() -> Kernel:
    """Iterations of both loops meet along anti-diagonals, those of one never."""
    z = Buffer("z", (15,), "float32")
    zero = loop(15, lambda i: Store(z, (i,), const(0, "float32")), name="zero")
    body = loop(6, lambda i: loop(10, lambda j: Store(z, (i + j,), z[i + j] * const(2, "float32") + X[i, j]), name="j"))
    return Kernel("wavefront", (X, z), seq(zero, body))
