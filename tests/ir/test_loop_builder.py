"""Loops written in the order in which they run are the loops made of functions."""

from __future__ import annotations

import numpy as np
import pytest

from minitvm.codegen.loops import in_vectors
from minitvm.codegen.templates.tile import Run, over, over_all, steps
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    Const,
    Kernel,
    LoopExpr,
    LoopKind,
    Stmt,
    const,
    loop,
    nest,
    seq,
    store,
)
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.text import print_kernel

OUT = Buffer("out", (3, 8), "int64")


def text(body: Stmt) -> str:
    return print_kernel(Kernel("k", (OUT,), body))


def test_blocks_are_what_stands_in_them() -> None:
    code = LoopBuilder()
    with code.nest((3, 4), "yx") as (y, x):
        with code.when(x < 2):
            code.store(OUT, (y, x), x)
        with code.otherwise(), code.lanes(1) as lane:
            code.store(OUT, (y, x + lane), y)
    (found,) = run_kernel(Kernel("k", (OUT,), seq(nest((3, 8), lambda *i: store(OUT, i, Const(9))), code.stmt)))
    np.testing.assert_array_equal(found[:, :5], [[0, 1, y, y, 9] for y in range(3)])


def test_only_a_condition_has_an_otherwise() -> None:
    code = LoopBuilder()
    code.emit(Barrier())
    with pytest.raises(AssertionError), code.otherwise():
        pass


def test_the_same_loops_as_of_functions() -> None:
    code, held = LoopBuilder(), Buffer("held", (4,), "int64", "local")
    with code.loop(3, "y", LoopKind.PARALLEL) as y, code.memory(held):
        with code.lanes(4) as lane:
            code.store(held, (lane,), y + lane)
        with code.unrolled(range(4, 8), "x") as x:
            code.store(OUT, (y, x), held[x - 4])

    def row(y: LoopExpr) -> Stmt:
        fill = loop(4, lambda lane: store(held, (lane,), y + lane), LoopKind.VECTORIZED, "lane")
        moved = loop(4, lambda x: store(OUT, (y, x + 4), held[x + 4 - 4]), LoopKind.UNROLLED, "x")
        return Alloc(held, seq(fill, moved))

    expected = loop(3, row, LoopKind.PARALLEL, "y")
    assert text(code.stmt) == text(expected)


@pytest.mark.parametrize("extent", [0, 1, 3, 4, 5, 8])
def test_bodies_of_taken_apart_loops_run_once_for_every_position(extent: int) -> None:
    count = Buffer("count", (max(extent, 1), 4), "int64")
    code = LoopBuilder()
    with code.nest(count.shape) as at:
        code.store(count, at, Const(0))
    for k in steps(code, extent, 4):
        code.store(count, (k, 0), count[k, 0] + 1)
    for start, width in in_vectors(code, extent, 4):
        with code.lanes(width) as lane:
            code.store(count, (start + lane, 1), count[start + lane, 1] + 1)
    pieces = [run for run in (Run(0, extent // 2, 2), Run(extent // 2 * 2, extent % 2, 1)) if run.count]
    for start, size in over(code, pieces):
        with code.loop(size) as i:
            code.store(count, (start + i, 2), count[start + i, 2] + 1)
    for start, size in over_all(code, pieces, "all") if pieces else ():
        with code.loop(size) as i:
            code.store(count, (start + i, 3), count[start + i, 3] + 1)
    (found,) = run_kernel(Kernel("k", (count,), code.stmt))
    np.testing.assert_array_equal(found[:extent], np.ones((extent, 4)))


def test_what_is_open_is_no_statement() -> None:
    code = LoopBuilder()
    for _ in steps(code, 9, 4):
        break
    with pytest.raises(ValueError, match="unpack"):
        _ = code.stmt


def test_a_value_of_another_dtype_is_refused() -> None:
    with pytest.raises(AssertionError, match="out is int64, the value float32"):
        LoopBuilder().store(OUT, (0, 0), const(1, "float32"))
    assert nest((1,), lambda i: store(OUT, (i, 0), Const(1))) is not None
