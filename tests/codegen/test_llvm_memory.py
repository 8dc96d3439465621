"""Loads, stores and guards in hand-written kernels, compiled and run, against numpy and the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from hand_written import PARALLEL, SERIAL, UNROLLED, VECTORIZED, random_array
from native_kernel import run_native

from minitvm.codegen.llvm.compile import host, machine_model
from minitvm.codegen.llvm.emit import emit
from minitvm.ir.loop import Binary, Buffer, Const, If, Kernel, LoopExpr, LoopKind, Stmt, const, loop, select, seq, store
from minitvm.target import MachineModel

# --- loads and stores -----------------------------------------------------------------------------------------

LENGTHS = [1, 2, 3, 7, 8, 16, 33, 64, 100, 200]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("stride", [0, 1, 2, 3, -1, -2])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_load_strides(n: int, stride: int, dtype: str) -> None:
    start = 5 + max(0, -stride) * n
    x = Buffer("x", (start + max(stride, 0) * n + 1,), dtype)
    out = Buffer("out", (n,), dtype)
    kernel = Kernel("strided", (x, out), loop(n, lambda i: store(out, (i,), x[i * stride + start]), VECTORIZED))
    a = random_array(x.shape, dtype, n)
    np.testing.assert_array_equal(run_native(kernel, a)[0], a[start + stride * np.arange(n)])


@pytest.mark.parametrize("n", [3, 8, 20, 77])
@pytest.mark.parametrize("stride", [1, 2, 5])
def test_store_strides(n: int, stride: int) -> None:
    x, out = Buffer("x", (n,), "float32"), Buffer("out", (n * stride + 2,), "float32")
    fill = loop(n * stride + 2, lambda i: store(out, (i,), const(-1, "float32")))
    scatter = loop(n, lambda i: store(out, (i * stride + 1,), x[i]), VECTORIZED)
    a = random_array((n,), "float32")
    expected = np.full(out.shape, -1, np.float32)
    expected[1 + stride * np.arange(n)] = a
    np.testing.assert_array_equal(run_native(Kernel("scatter", (x, out), seq(fill, scatter)), a)[0], expected)


@pytest.mark.parametrize("kind", [SERIAL, VECTORIZED])
def test_indices_of_reshapes_and_gathers(kind: LoopKind) -> None:
    """Floor division and modulo of the lane, negative operands, an index read from memory."""
    n = 60
    x, at, out = Buffer("x", (5, 12), "float32"), Buffer("at", (n,), "int32"), Buffer("out", (3, n), "float32")

    def body(i: LoopExpr) -> object:
        shifted = i - 30
        return seq(
            store(out, (0, i), x[i % 5, i // 5]),
            store(out, (1, i), x[(shifted // 7) % 5, shifted % 12]),
            store(out, (2, i), x[at[i].astype("int64") // 12, at[i].astype("int64") % 12]),
        )

    a, where = random_array((5, 12), "float32"), np.random.default_rng(1).integers(0, 60, n).astype(np.int32)
    kernel = Kernel("indices", (x, at, out), loop(n, body, kind))
    i = np.arange(n)
    (found,) = run_native(kernel, a, where)
    np.testing.assert_array_equal(found[0], a[i % 5, i // 5])
    np.testing.assert_array_equal(found[1], a[((i - 30) // 7) % 5, (i - 30) % 12])
    np.testing.assert_array_equal(found[2], a.reshape(-1)[where])


# --- guards ---------------------------------------------------------------------------------------------------


def padded(n: int, pad: int, x: Buffer, i: LoopExpr) -> LoopExpr:
    inside = Binary("and", const(pad, "int64") <= i, i < n + pad)
    return select(inside, x[i - pad], 0.5)


@pytest.mark.parametrize("kind", [SERIAL, VECTORIZED, UNROLLED])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int64"])
@pytest.mark.parametrize("n", [1, 5, 40])
def test_guarded_loads_pad(kind: LoopKind, dtype: str, n: int) -> None:
    x, out = Buffer("x", (n,), dtype), Buffer("out", (n + 6,), dtype)

    def value(i: LoopExpr) -> LoopExpr:
        inside = Binary("and", const(3, "int64") <= i, i < n + 3)
        return select(inside, x[i - 3], const(1, dtype))

    kernel = Kernel("pad", (x, out), loop(n + 6, lambda i: store(out, (i,), value(i)), kind))
    a = random_array((n,), dtype, 11)
    np.testing.assert_array_equal(run_native(kernel, a)[0], np.pad(a, 3, constant_values=1))


def test_guarded_loads_never_touch_what_lies_outside() -> None:
    """Addresses far outside of the process's memory, behind conditions that are false there."""
    far, n = 1 << 44, 16
    x, c, out = Buffer("x", (n,), "float32"), Buffer("c", (n,), "bool"), Buffer("out", (5, n), "float32")

    def body(i: LoopExpr) -> object:
        away = select(c[i], Const(0), Const(far))
        return seq(
            store(out, (0, i), select(c[i], x[i + away], -1.0)),  # by lane, gathered
            store(out, (1, i), select(i < 8, x[i + (i // 8) * far], -1.0)),
            store(out, (2, i), select(c[0], -1.0, x[i + far])),  # the same for all lanes: a branch
            store(out, (3, i), select(c[i], x[i], select(c[i], x[i + far * 2], 2.0))),
            store(out, (4, i), select(c[i], x[0 * i + away], 3.0)),
        )

    a, mask = random_array((n,), "float32"), np.arange(n) % 3 == 0
    for kind in (VECTORIZED, SERIAL):
        (found,) = run_native(Kernel("far", (x, c, out), loop(n, body, kind)), a, mask)
        np.testing.assert_array_equal(found[0], np.where(mask, a, -1))
        np.testing.assert_array_equal(found[1], np.where(np.arange(n) < 8, a, -1))
        np.testing.assert_array_equal(found[2], np.full(n, -1))
        np.testing.assert_array_equal(found[3], np.where(mask, a, 2))
        np.testing.assert_array_equal(found[4], np.where(mask, a[0], 3))


@pytest.mark.parametrize(("rows", "masked"), [(7, False), (8, True)])
def test_lanes_beyond_their_row_need_a_mask_only_at_the_buffer_s_end(rows: int, masked: bool) -> None:
    x, out = Buffer("x", (8, 5), "float32"), Buffer("out", (rows, 8), "float32")

    def element(i: LoopExpr, lane: LoopExpr) -> Stmt:
        return store(out, (i, lane), select(lane < 5, x[i, lane], const(-1, "float32")))

    kernel = Kernel("k", (x, out), loop(rows, lambda i: loop(8, lambda lane: element(i, lane), VECTORIZED)))
    assert ("masked.load" in emit(kernel, machine_model(host()))) == masked
    given = random_array((8, 5), "float32")
    (found,) = run_native(kernel, given)
    np.testing.assert_array_equal(found, np.pad(given[:rows], ((0, 0), (0, 3)), constant_values=-1))


@pytest.mark.parametrize("lanes", [3, 7, 15])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool"])
def test_odd_vectors_are_accessed_under_masks_where_these_are_cheap(lanes: int, dtype: str) -> None:
    x, out = Buffer("x", (9, lanes), dtype), Buffer("out", (9, lanes), dtype)
    rows = loop(9, lambda i: loop(lanes, lambda lane: store(out, (i, lane), x[i, lane]), VECTORIZED))
    kernel, given = Kernel("odd", (x, out), rows), random_array((9, lanes), dtype, 5)
    np.testing.assert_array_equal(run_native(kernel, given)[0], given)
    found = {nbytes: emit(kernel, MachineModel(nbytes, 16)) for nbytes in (64, 32, 16)}
    assert {n: "masked.store" in text for n, text in found.items()} == {64: True, 32: False, 16: False}
    avx2 = lanes != 3 and dtype == "float32"
    assert {n: "masked.load" in text for n, text in found.items()} == {64: lanes != 3, 32: avx2, 16: False}


def test_uniform_load_behind_a_mask_that_no_lane_passes() -> None:
    x, c, out = Buffer("x", (1,), "float32"), Buffer("c", (8,), "bool"), Buffer("out", (4, 8), "float32")
    row = lambda r, i: store(out, (r, i), select(c[i], x[r * (1 << 44)], 5.0))  # noqa: E731
    kernel = Kernel("none", (x, c, out), loop(4, lambda r: loop(8, lambda i: row(r, i), VECTORIZED)))
    (found,) = run_native(kernel, np.array([2.0]), np.zeros(8, bool))
    np.testing.assert_array_equal(found, np.full((4, 8), 5))


@pytest.mark.parametrize("n", [5, 16, 29])
def test_if_by_lane_masks_stores(n: int) -> None:
    x, out = Buffer("x", (n,), "float32"), Buffer("out", (2 * n,), "float32")

    def body(i: LoopExpr) -> object:
        return seq(
            store(out, (i,), const(9, "float32")),
            store(out, (n + i,), const(8, "float32")),
            If(x[i] < 0.0, store(out, (i,), x[i]), If(i < 3, store(out, (n + i,), x[i] * 2.0))),
        )

    a = random_array((n,), "float32", 3)
    i = np.arange(n)
    expected = np.concatenate([np.where(a < 0, a, 9), np.where((a >= 0) & (i < 3), a * 2, 8)]).astype(np.float32)
    for kind in (VECTORIZED, SERIAL, PARALLEL):
        (found,) = run_native(Kernel("masked", (x, out), loop(n, body, kind)), a)
        np.testing.assert_array_equal(found, expected)


def test_masked_stores_with_a_stride() -> None:
    x, out = Buffer("x", (12,), "float32"), Buffer("out", (24,), "float32")
    fill = loop(24, lambda i: store(out, (i,), const(1, "float32")))
    body = loop(12, lambda i: If(x[i] < 0.0, store(out, (i * 2,), x[i])), VECTORIZED)
    a = random_array((12,), "float32", 4)
    expected = np.ones(24, np.float32)
    expected[::2][a < 0] = a[a < 0]
    np.testing.assert_array_equal(run_native(Kernel("every_other", (x, out), seq(fill, body)), a)[0], expected)
