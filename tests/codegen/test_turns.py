"""Long chains of arithmetic that are written out take turns."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from native_kernel import run_native

from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.llvm.emit import emit
from minitvm.ir.loop import Buffer, Kernel, LoopExpr, LoopKind, Stmt, intrin, loop, seq, store
from minitvm.target import MachineModel


def in_lanes(out: Buffer, row: LoopExpr | int, value: Callable[[LoopExpr], LoopExpr]) -> Stmt:
    return loop(16, lambda j: store(out, (row, j), value(j)), LoopKind.VECTORIZED)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    "count, function, together", [(4, sigmoid, 4), (11, sigmoid, 5), (16, sigmoid, 8), (4, np.abs, 1)]
)
def test_some_at_a_time(count: int, function: np.ufunc, together: int) -> None:
    """Eight at most, in groups as even as can be: all of a group are loaded before the first is stored."""
    x, out = Buffer("x", (count, 16), "float32"), Buffer("out", (count, 16), "float32")
    name = "abs" if function is np.abs else "sigmoid"
    body = loop(count, lambda i: in_lanes(out, i, lambda j: intrin(name, x[i, j] + 1) - 2), LoopKind.UNROLLED)
    kernel = legalize(Kernel("chains", (x, out), body), SPELLINGS)
    before_stores = emit(kernel, MachineModel(64, 32)).split("store <16 x float>")
    loaded = [text.count("= load <16 x float>") for text in before_stores]
    assert loaded[0] == together and sum(loaded) == count
    a = np.random.default_rng(0).standard_normal((count, 16), np.float32)
    np.testing.assert_allclose(run_native(kernel, a)[0], function(a + 1) - 2, rtol=1e-6)


def test_what_reads_what_another_stores_waits_for_it() -> None:
    x, out = Buffer("x", (16,), "float32"), Buffer("out", (5, 16), "float32")
    rows = loop(4, lambda i: in_lanes(out, i + 1, lambda j: intrin("sigmoid", out[i, j])), LoopKind.UNROLLED)
    kernel = legalize(Kernel("rows", (x, out), seq(in_lanes(out, 0, lambda j: x[j]), rows)), SPELLINGS)
    (found,) = run_native(kernel, np.random.default_rng(0).standard_normal(16, np.float32))
    for before, after in itertools.pairwise(found):
        np.testing.assert_allclose(after, sigmoid(before), rtol=1e-6)
