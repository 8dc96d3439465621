"""Long chains of arithmetic that are written out take turns."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from native_kernel import run_native

from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.llvm.emit import emit
from minitvm.ir.loop import Alloc, Buffer, Kernel, LoopExpr, LoopKind, Stmt, const, intrin, loop, seq, store
from minitvm.target import MachineModel


def in_lanes(out: Buffer, row: LoopExpr | int, value: Callable[[LoopExpr], LoopExpr]) -> Stmt:
    return loop(16, lambda j: store(out, (row, j), value(j)), LoopKind.VECTORIZED)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    "count, function, together, written",
    [(4, sigmoid, 4, 4), (11, sigmoid, 5, 11), (16, sigmoid, 4, 4), (17, sigmoid, 4, 5), (4, np.abs, 1, 4)],
)
def test_some_at_a_time(count: int, function: np.ufunc, together: int, written: int) -> None:
    """Eight at most, in groups as even as can be: all of a group are loaded before the first is stored.  Sixteen and
    more go in rounds, and what is left over is written out."""
    x, out = Buffer("x", (count, 16), "float32"), Buffer("out", (count, 16), "float32")
    name = "abs" if function is np.abs else "sigmoid"
    body = loop(count, lambda i: in_lanes(out, i, lambda j: intrin(name, x[i, j] + 1) - 2), LoopKind.UNROLLED)
    kernel = legalize(Kernel("chains", (x, out), body), SPELLINGS)
    before_stores = emit(kernel, MachineModel(64, 32)).split("store <16 x float>")
    loaded = [text.count("= load <16 x float>") for text in before_stores]
    assert loaded[0] == together and sum(loaded) == written
    a = np.random.default_rng(0).standard_normal((count, 16), np.float32)
    np.testing.assert_allclose(run_native(kernel, a)[0], function(a + 1) - 2, rtol=1e-6)


def test_what_reads_what_another_stores_waits_for_it() -> None:
    x, out = Buffer("x", (16,), "float32"), Buffer("out", (5, 16), "float32")
    rows = loop(4, lambda i: in_lanes(out, i + 1, lambda j: intrin("sigmoid", out[i, j])), LoopKind.UNROLLED)
    kernel = legalize(Kernel("rows", (x, out), seq(in_lanes(out, 0, lambda j: x[j]), rows)), SPELLINGS)
    (found,) = run_native(kernel, np.random.default_rng(0).standard_normal(16, np.float32))
    for before, after in itertools.pairwise(found):
        np.testing.assert_allclose(after, sigmoid(before), rtol=1e-6)


def test_sums_in_registers_are_kept_for_rounds() -> None:
    """Two vectors a row: 9 rows are four rounds of two and one row.  The sums stay where they are while they grow."""
    x, out = Buffer("x", (9, 20), "float32"), Buffer("out", (9, 2, 16), "float32")
    sums = Buffer("sums", (9, 2, 16), "float32", "local")

    def rows(body: Callable[[LoopExpr, LoopExpr, LoopExpr], Stmt]) -> Stmt:
        def lanes(i: LoopExpr, b: LoopExpr) -> Stmt:
            return loop(16, lambda j: body(i, b, j), LoopKind.VECTORIZED)

        return loop(9, lambda i: loop(2, lambda b: lanes(i, b), LoopKind.UNROLLED), LoopKind.UNROLLED)

    added = loop(
        20, lambda k: rows(lambda i, b, j: store(sums, (i, b, j), sums[i, b, j] + x[i, k] * (b + 1).astype("float32")))
    )
    last = rows(lambda i, b, j: store(out, (i, b, j), intrin("sigmoid", sums[i, b, j]) * sums[i, b, j]))
    body = Alloc(sums, seq(rows(lambda i, b, j: store(sums, (i, b, j), const(0, "float32"))), added, last))
    kernel = legalize(Kernel("tile", (x, out), body), SPELLINGS)
    text = emit(kernel, MachineModel(64, 32))
    assert text.count("fdiv <16 x float>") == 3 * 2 and "!prof" in text
    a = np.random.default_rng(0).standard_normal((9, 20), np.float32)
    total = np.repeat(a.sum(1)[:, None, None] * np.array([1, 2], np.float32)[:, None], 16, axis=2)
    np.testing.assert_allclose(run_native(kernel, a)[0], sigmoid(total) * total, rtol=1e-5, atol=1e-6)


def test_what_is_stored_lane_by_lane_goes_in_rounds() -> None:
    """Sixteen rows of sums whose lanes lie four elements apart: a row a round, not 1024 stores."""
    x, out = Buffer("x", (16, 16), "float32"), Buffer("out", (16, 64), "float32")
    sums = Buffer("sums", (16, 16), "float32", "local")

    def rows(body: Callable[[LoopExpr, LoopExpr], Stmt]) -> Stmt:
        return loop(16, lambda i: loop(16, lambda j: body(i, j), LoopKind.VECTORIZED), LoopKind.UNROLLED)

    def apart(i: LoopExpr, j: LoopExpr) -> Stmt:
        return seq(*(store(out, (i, j * 4 + k), sums[i, j]) for k in range(4)))

    kernel = Kernel("apart", (x, out), Alloc(sums, seq(rows(lambda i, j: store(sums, (i, j), x[i, j])), rows(apart))))
    assert emit(kernel, MachineModel(64, 32)).count("store float") == 4 * 16
    a = np.random.default_rng(0).standard_normal((16, 16), np.float32)
    np.testing.assert_array_equal(run_native(kernel, a)[0], np.repeat(a, 4, axis=1))
