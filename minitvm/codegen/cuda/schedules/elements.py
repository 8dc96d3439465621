"""Nests without reductions: a thread for each 16 bytes of the result, or for each element; transposes by tiles.

Neighbouring threads store neighbouring elements: coalesced accesses, so a warp's store is a few whole lines of memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np

from minitvm.codegen.cuda.machine import WARP, GpuModel
from minitvm.codegen.default_schedule import Axis, crossing
from minitvm.codegen.loops import unflatten
from minitvm.codegen.stages import Output
from minitvm.codegen.walks import Walk
from minitvm.ir.decision import Declined, decide
from minitvm.ir.loop import (
    Barrier,
    Buffer,
    Const,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Select,
    Stmt,
    Store,
    map_expr,
    seq,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.loop.affine import depends_on, loads, stride_along
from minitvm.ir.loop.builder import LoopBuilder

THREADS = 256
"""Of a block, unless something speaks for another number."""
BUSY = 512
"""Threads of an SM, below which elements are not worth fewer threads that move 16 bytes each."""
_MOST = 8
"""Elements of a thread: 16 bytes of single ones do not fit in its registers."""
_TILE_ROWS = 8
_SHORTEST = 4  # of a tile's axes


@contextmanager
def threads(code: LoopBuilder, count: int) -> Iterator[LoopExpr]:
    """Code in here runs in a thread for each of ``count`` numbers."""
    each = min(THREADS, -(-count // WARP) * WARP)
    with (
        code.loop(-(-count // each), "block", LoopKind.BLOCK_X) as block,
        code.loop(each, "thread", LoopKind.THREAD_X) as lane,
    ):
        number = block * each + lane
        with code.when(number < count if count % each else None):
            yield number


def in_threads(count: int, body: Callable[[LoopExpr], Stmt]) -> Stmt:
    """``body(number)`` by a thread each."""
    code = LoopBuilder()
    with threads(code, count) as number:
        code.emit(body(number))
    return code.stmt


@contextmanager
def in_block(code: LoopBuilder, rows: int, lanes: int) -> Iterator[tuple[LoopExpr, LoopExpr]]:
    """Code in here runs in the threads of a block: in each row those of all lanes."""
    row: AbstractContextManager[LoopExpr] = nullcontext(Const(0))
    if rows > 1:
        row = code.loop(rows, "row", LoopKind.THREAD_Y)
    with row as y, code.loop(lanes, "lane", LoopKind.THREAD_X) as lane:
        yield y, lane


def vector_width(value: LoopExpr, out: Buffer, last: LoopVar, extent: int | None) -> int:
    """Elements along ``last`` that are worth one access; ``extent`` (where there is one) is a multiple of them."""
    found = loads(value)
    strides = {load: stride_along(load.buffer, load.index, last) for load in found}
    asks = any(isinstance(node, Select) and depends_on(node.condition, last) for node in walk_exprs(value))
    if asks or any(stride not in (0, 1) for stride in strides.values()):
        return 1
    moving = [out.dtype, *(load.buffer.dtype for load in found if strides[load])]
    width = min(_MOST, 16 // max(np.dtype(dtype).itemsize for dtype in moving))
    return width if extent is None else math.gcd(width, extent)


@dataclass(frozen=True)
class Elements:
    """Results over the same axes."""

    outs: tuple[Output, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.outs[0].buffer.shape

    def at(self, index: Sequence[LoopExpr]) -> Stmt:
        """The stores of one element."""
        return seq(*(_stored(out, index) for out in self.outs))

    def width(self, machine: GpuModel) -> int:
        """Elements of a thread."""
        if not self.shape or math.prod(self.shape) < 2 * BUSY * machine.sms:
            return 1
        extent = None if len(self.shape) == 1 else self.shape[-1]
        return min(vector_width(out.value, out.buffer, out.axes[-1], extent) for out in self.outs)


def _stored(out: Output, index: Sequence[LoopExpr]) -> Stmt:
    value = substitute_vars(out.value, dict(zip(out.axes, index, strict=True)))
    return Store(out.buffer, tuple(index), value)


def elements(outs: Sequence[Output], machine: GpuModel) -> Stmt:
    """Results of one shape, element by element: nothing is reduced."""
    if len(outs) == 1:
        walk = Walk.over(outs[0])
        found = crossing(walk)
        if isinstance(found, tuple) and min(found[1][1], found[2][1]) >= _SHORTEST:
            decide("schedule", walk.out.name, f"tiles of {WARP} x {WARP} through shared memory, to transpose them")
            return _tiles(walk, *found)
        if isinstance(found, Declined):
            decide("schedule", walk.out.name, found)
    whole = Elements(tuple(outs))
    width, count = whole.width(machine), math.prod(whole.shape)
    decide("schedule", outs[0].buffer.name, f"a thread for {width if width > 1 else 'each'} of {count} elements")
    return _vectors(whole, width) if width > 1 else in_threads(count, lambda n: whole.at(unflatten(n, whole.shape)))


def _vectors(whole: Elements, width: int) -> Stmt:
    """What is left over of the only axis is the last thread's."""
    code, (vectors, rest) = LoopBuilder(), divmod(math.prod(whole.shape), width)
    shape = (*whole.shape[:-1], whole.shape[-1] // width)
    with threads(code, vectors + bool(rest)) as number:
        *index, last = unflatten(number, shape)
        with code.when(number < vectors if rest else None), code.lanes(width) as lane:
            code.emit(whole.at((*index, last * width + lane)))
        if rest:
            with code.otherwise(), code.loop(rest) as i:
                code.emit(whole.at((i + vectors * width,)))
    return code.stmt


# --- across the order of the result ---------------------------------------------------------------------------


def _tiles(walk: Walk, source: Load, across: Axis, along: Axis) -> Stmt:
    """Tiles of 32 x 32: read row by row of what is read, stored row by row of the result.

    One element behind each row keeps a column's elements in different banks of shared memory.
    """
    outer = [pair for pair in walk.loops if pair not in (across, along)]
    grid = [*(extent for _, extent in outer), -(-along[1] // WARP), -(-across[1] // WARP)]
    tile = Buffer("tile", (WARP, WARP + 1), source.dtype, "shared")
    code = LoopBuilder()
    with code.loop(math.prod(grid), "block", LoopKind.BLOCK_X) as number, code.memory(tile):
        *at, row, column = unflatten(number, grid)
        values = dict(zip((v for v, _ in outer), at, strict=True))

        def place(i: LoopExpr, j: LoopExpr) -> tuple[dict[LoopVar, LoopExpr], list[LoopExpr]]:
            """Element ``i`` along the result and ``j`` along the source; the conditions under which there is one."""
            here = {**values, along[0]: row * WARP + i, across[0]: column * WARP + j}
            return here, [here[var] < extent for var, extent in (along, across) if extent % WARP]

        with _each(code) as (y, x):
            here, inside = place(y, x)
            with code.where(inside):
                code.store(tile, (y, x), substitute_vars(source, here))
        code.emit(Barrier())
        with _each(code) as (y, x):
            here, inside = place(x, y)
            moved = map_expr(walk.value, lambda node: tile[x, y] if node == source else node)
            index, value = replace(walk, value=moved).at(here)
            with code.where(inside):
                code.store(walk.out, index, value)
    return code.stmt


@contextmanager
def _each(code: LoopBuilder) -> Iterator[tuple[LoopExpr, LoopExpr]]:
    """Row and column of each element of a tile, whose rows are shared by rows of threads."""
    with in_block(code, _TILE_ROWS, WARP) as (y, x), code.unrolled(range(WARP // _TILE_ROWS), "i") as i:
        yield i * _TILE_ROWS + y, x
