"""Products of warps and warpgroups in the loop interpreter: matrices of which each thread holds a few elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from minitvm.errors import CompilerError
from minitvm.ir.dtypes import register
from minitvm.ir.loop import Const, Ldmatrix, Load, LoopExpr, Mma, Wgmma
from minitvm.ir.loop.lanes import WARP, Array
from minitvm.ir.loop.scalar import as_array

if TYPE_CHECKING:
    from minitvm.ir.loop.interp import Running

_G, _T = np.arange(WARP) // 4, np.arange(WARP) % 4
"""Where a thread of a warp stands in matrices (:class:`Mma`)."""


def run_warps(running: Running, stmt: Mma | Ldmatrix | Wgmma) -> None:
    """Does what a statement says, in the warps that are active."""
    match stmt:
        case Mma():
            _mma(running, stmt)
        case Ldmatrix():
            _matrices(running, stmt)
        case Wgmma():
            _group_product(running, stmt)


def _half(kind: str) -> np.dtype[Any]:
    register()
    return np.dtype(kind)


def _tf32(value: Array) -> Array:
    """Rounded to TF32, ties away from zero: 10 bits of mantissa are left."""
    bits = value.astype("float32").view("int32")
    return np.where(np.isfinite(value), (bits + 0x1000) & ~0x1FFF, bits).astype("int32").view("float32")


def _mma(running: Running, stmt: Mma) -> None:
    """Matrices from the threads of each warp, their product, and back."""
    warps = running.whole_warps("a product").reshape(-1, WARP)
    a, b = ([_factor(running, value, stmt.kind)[:, warps] for value in factor] for factor in (stmt.a, stmt.b))
    per = len(a[0])
    left, right = np.zeros((len(warps), 16, 8 * per)), np.zeros((len(warps), 8 * per, 8))
    for part in range(per):
        for number, value in enumerate(a):
            left[:, _G + number % 2 * 8, (_T + number // 2 * 4) * per + part] = value[part]
        for number, value in enumerate(b):
            right[:, (_T + number * 4) * per + part, _G] = value[part]
    product = left @ right
    for number in range(4):
        place = Load(stmt.sums, (*stmt.at, Const(number)))
        found = product[:, _G + number // 2 * 8, 2 * _T + number % 2].ravel()
        total = running.load(place, stmt.sums, place.index) + found
        running.store(place, stmt.sums, place.index, total.astype("float32"))


def _factor(running: Running, value: LoopExpr, kind: str) -> Array:
    """What a value holds in every lane: one number, or the two of a word."""
    found = np.broadcast_to(as_array(running.eval(value)), running.count)
    if kind == "tf32":
        return _tf32(found)[None]
    pairs: Array = np.ascontiguousarray(found).view(_half(kind)).reshape(-1, 2)
    wide: Array = pairs.T.astype("float32")
    return wide


def _matrices(running: Running, stmt: Ldmatrix) -> None:
    """Rows from the threads of each warp, and words back."""
    warps, row = running.whole_warps("a load of matrices").reshape(-1, WARP), stmt.row
    assert isinstance(row, Load)
    if (as_array(running.address(row, row.buffer, row.index)) % 8).any():
        raise CompilerError(f"{running.kernel.name}: a row of matrices in {row.buffer.name} that is not on 16 bytes")
    elements = (Load(row.buffer, (*row.index[:-1], row.index[-1] + n)) for n in range(8))
    loaded = [np.broadcast_to(running.load(e, e.buffer, e.index), running.count).view("uint16") for e in elements]
    matrices = np.stack(loaded, axis=-1)[warps].reshape(-1, 4, 8, 8)
    swapped = matrices.swapaxes(2, 3) if stmt.transposed else matrices
    for number in range(stmt.count):
        low, high = (swapped[:, number, _G, 2 * _T + n].astype("uint32") for n in (0, 1))
        place = Load(stmt.to, (*stmt.at, Const(number)))
        running.store(place, stmt.to, place.index, (low | high << 16).ravel())


def _group_product(running: Running, stmt: Wgmma) -> None:
    """At once, whenever it is waited for."""
    groups, pieces = running.whole_warps("a product of a warpgroup").reshape(-1, 4 * WARP), stmt.sums.shape[-2]
    left = _factor_rows(running, stmt.a, groups[:, 0], 64, False)
    right = _factor_rows(running, stmt.b, groups[:, 0], 8 * pieces, stmt.transposed)
    product = left @ right.swapaxes(1, 2)
    lanes = np.arange(4 * WARP)
    row, column = lanes // WARP * 16 + lanes % WARP // 4, lanes % 4 * 2
    for piece, number in np.ndindex(pieces, 4):
        found = np.empty(running.count)
        found[groups] = product[:, row + number // 2 * 8, column + piece * 8 + number % 2]
        place = Load(stmt.sums, (*stmt.at, Const(piece), Const(number)))
        total = running.load(place, stmt.sums, place.index) + found
        running.store(place, stmt.sums, place.index, total.astype("float32"))


def _factor_rows(running: Running, first: LoopExpr, lanes: Array, lines: int, transposed: bool) -> Array:
    """(lane, lines, 16) of a warpgroup's factor in shared memory."""
    assert isinstance(first, Load)
    buffer, (*_, line, r) = first.buffer, first.index
    last = (line + 15, r + 63) if transposed else (line + (lines - 1), r + 15)
    for index in (first.index, (*first.index[:-2], *last)):
        running.load(Load(buffer, index), buffer, index)
    start = np.broadcast_to(as_array(running.address(first, buffer, first.index)), running.count)[lanes]
    n, k = np.arange(lines)[:, None], np.arange(16)
    inside = n // 64 * buffer.strides[-3] + k * 64 + n % 64 if transposed else n * buffer.strides[-2] + k
    where = start[:, None, None] + inside
    if not running.memory[buffer].written[where].all():
        raise CompilerError(f"{running.kernel.name}: a warpgroup's factor in {buffer.name} that nobody wrote")
    found: Array = running.memory[buffer].data[where].astype("float32")
    return found
