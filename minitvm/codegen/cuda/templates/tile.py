"""The block tile of a product on a GPU: what a block computes, how threads share that, what it takes of an SM.

A block of threads computes ``rows x columns`` results.  Pieces of both factors, ``depth`` elements of the reduction
long, go through shared memory, by registers or by asynchronous copy; each thread keeps ``thread_rows x thread_columns``
sums in registers.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from minitvm.codegen.cuda.arrival import CLUSTER
from minitvm.codegen.cuda.machine import REGISTERS, WARP, GpuModel
from minitvm.codegen.problem import Tile
from minitvm.ir.dtypes import SHORT

VECTOR = 4
"""Elements of 16 bytes: what a thread loads and stores at once, of float32."""
WIDEST = 8
"""Elements of 16 bytes, of floats of two."""
_HIDING = 6
"""Warps of an SM that take twice as long as their arithmetic, for want of others; twice as many, half as long again."""
_ROUNDING = 0.84
"""Cycles in which an SM rounds 32 elements to TF32: three instructions each, as it is emulated."""
_OF_A_PIECE, _OF_A_COPY = 50, 8
"""Instructions of a thread for a piece, beside what it multiplies and loads for that, and for each vector that it
copies, as NVRTC makes them."""
_SCHEDULERS = 4
"""Instructions of an SM in a cycle."""
_ADDRESSES = 40
"""Registers of a thread beside sums, factors and what it carries to shared memory."""
SHARED_BYTES = 128
"""Bytes that shared memory gives or takes in a cycle: 32 banks of 4."""
HALF_OF_BANKS = 16
"""Floats that are in half of the banks of shared memory."""
SUM_BYTES = 4
"""Of a sum that is a part of a result."""
_MEETING = 100
"""Cycles in which the threads of a block meet once more."""


@dataclass(frozen=True)
class BlockTile(Tile):
    """``rows`` x ``blocks`` results a block of threads (there, ``blocks`` are columns)."""

    depth: int = 8
    thread_rows: int = 8
    thread_columns: int = 8
    split: int = 1
    """Parts of the depth (split-K), whose sums are added up by the blocks that have them."""
    copied: int = 0
    """Pieces in shared memory that asynchronous copies fill in turn; 0: two, by way of registers."""
    slices: int = 1
    """Groups of threads that multiply a part of every piece's depth each (sliced-K), whose sums are added in shared
    memory: more warps hide latency, with no more parts in global memory."""

    def __str__(self) -> str:
        parts = f", depth in {self.split} parts" if self.split > 1 else ""
        stages = f", {self.copied} stages copied" if self.copied else ""
        each = f"{self.thread_rows} x {self.thread_columns} a thread"
        slices = f", {self.slices} slices" if self.slices > 1 else ""
        return f"{self.rows} x {self.columns} x {self.depth}, {each}{slices}{stages}{parts}"

    def is_cluster(self, machine: GpuModel, tiles: int) -> bool:
        """True if the parts of each of so many tiles run at the same time."""
        return self.split <= CLUSTER and machine.runs_clusters(tiles, self.split)

    @property
    def stages(self) -> int:
        """Pieces in shared memory."""
        return self.copied or 2

    @property
    def carried(self) -> int:
        """Elements of a piece that a thread has in registers on their way to shared memory."""
        return 0 if self.copied else (self.rows + self.columns) * self.depth // self.threads

    @property
    def columns(self) -> int:
        return self.blocks

    @property
    def down(self) -> int:
        """Threads along the rows."""
        return self.rows // self.thread_rows

    @property
    def across(self) -> int:
        """Threads along the columns."""
        return self.columns // self.thread_columns

    @property
    def threads(self) -> int:
        return self.down * self.across * self.slices

    def shared_bytes(self, size: int) -> int:
        """The bytes of shared memory for all pieces of both operands, with what keeps rows apart, and for slices' sums;
        ``size`` is an element's."""
        sums = self.slices * self.rows * (self.columns + HALF_OF_BANKS) if self.slices > 1 else 0
        return (self.stages * self._piece + sums) * size

    @property
    def _piece(self) -> int:
        """Elements of both factors, with room between lines; those of the left-hand one may be rows."""
        return self.depth * (self.rows + self.columns + 2 * VECTOR) + self.rows * VECTOR * bool(self.copied)

    @property
    def registers(self) -> int:
        """The registers of a thread, of 4 bytes each, as predicted."""
        rows = self.thread_rows * (VECTOR if self.copied else 2)
        return self.thread_rows * self.thread_columns + rows + 2 * self.thread_columns + self.carried + _ADDRESSES

    def step_cycles(self, blocks: int, size: int, machine: GpuModel) -> float:
        """Cycles of an SM for an element of the depth of so many blocks: of arithmetic, shared memory or loads."""
        each = (self.down, self.across, self.thread_rows, self.thread_columns)
        issued, shared = _of_a_slice(*each, self.copied > 0)
        copies = (self.rows + self.columns) * self.depth / VECTOR / self.threads
        beside = self.threads / WARP * (_OF_A_PIECE + _OF_A_COPY * copies) / self.depth
        arithmetic = max((issued + beside) / _SCHEDULERS, self.rows * self.columns / machine.lanes_of_sm)
        return self._slowest(arithmetic, shared, blocks, size, machine)

    @property
    def ending(self) -> float:
        """Cycles in which slices' sums go to shared memory and back."""
        moved = 2 * self.slices * self.rows * self.columns * SUM_BYTES / SHARED_BYTES
        return moved + _MEETING if self.slices > 1 else 0

    @property
    def warp(self) -> tuple[int, int]:
        """Threads of a warp along rows and columns."""
        return _warp(self.down, self.across)

    @property
    def _hiding(self) -> float:
        return _HIDING

    def _slowest(self, arithmetic: float, shared: float, blocks: int, size: int, machine: GpuModel) -> float:
        loads = (self.rows + self.columns) * size / machine.seen.from_second_level
        alone = 1 + self._hiding / (blocks * self.threads / WARP)
        put = (self.rows + self.columns) * size / SHARED_BYTES
        return blocks * max(arithmetic * alone, shared + put, loads)


@functools.cache
def _of_a_slice(down: int, across: int, rows: int, columns: int, copied: bool) -> tuple[float, float]:
    """What threads that have so many rows and columns each do for an element of their slice's depth: instructions of
    all warps to load and multiply, and cycles of shared memory.  Copied rows are loaded along the depth."""
    warps, (high, wide) = down * across / WARP, _warp(down, across)
    row_width, column_width = VECTOR if copied else power_of_two(rows), power_of_two(columns)
    loads = rows / row_width + columns / column_width
    reads = _read_cycles(rows, row_width, wide > 1) + _read_cycles(columns, column_width, high > 1)
    return warps * (rows * columns + loads), warps * reads


def _warp(down: int, across: int) -> tuple[int, int]:
    """Threads of a warp along rows and columns: 4 x 8 where that divides both, else whatever does; (1, 1) where threads
    come in the order of columns."""
    for high in (4, 8, 2, 16):
        if down % high == 0 and across % (WARP // high) == 0:
            return high, WARP // high
    return 1, 1


def _read_cycles(count: int, width: int, pairs: bool) -> float:
    """Cycles in which shared memory gives every thread of a warp ``count`` elements, in vectors of some ``width``.

    A warp's vectors of 16 bytes take 4 cycles, of 8 bytes 2, of 4 bytes 1: 128 bytes each; half of that, where lanes
    that are next to each other, or all lanes and the next but one, ask for the same address (``pairs``).
    """
    return count / width * max(1, width // (2 if pairs else 1))


MMA = (16, 8)
"""Rows and columns of what a warp multiplies at once."""
ROOM = 16
"""Bytes between one line of shared memory and the next that keep what is read across in different banks."""


@dataclass(frozen=True)
class MmaTile(BlockTile):
    """A tile of tensor cores: ``thread_rows`` x ``thread_columns`` are a warp's.

    ``kind``: what is multiplied (:class:`minitvm.ir.loop.Mma`).  ``products``: 1 of factors rounded to TF32, or of
    floats of two bytes as they are; 3 of upper and lower halves, which is float32 but for the product of the lower
    halves.
    """

    products: int = 1
    kind: str = "tf32"

    @property
    def element(self) -> int:
        """Bytes, in shared memory."""
        return 2 if self.kind in SHORT else 4

    @property
    def deep(self) -> int:
        """The elements of the depth that a warp multiplies at once."""
        return 32 // self.element

    def __str__(self) -> str:
        return super().__str__().replace(" a thread", " a warp")

    @property
    def threads(self) -> int:
        return self.down * self.across * WARP

    @property
    def registers(self) -> int:
        factors = self.thread_rows // 4 + self.thread_columns // 4
        return self.thread_rows * self.thread_columns // WARP + self.products * factors + self.carried + _ADDRESSES

    @property
    def _hiding(self) -> float:
        """Of factors of two bytes, arithmetic takes half as long beside the same latencies."""
        return _HIDING * 4 / self.element

    @property
    def _piece(self) -> int:
        """Lines of one of the factors may be the rows of shared memory."""
        lines, room = self.rows + self.columns, ROOM // self.element
        inside = self.depth * (lines + 2 * 8)
        return max(inside, lines * (self.depth + room)) if self.copied or self.element == 2 else inside

    def step_cycles(self, blocks: int, size: int, machine: GpuModel) -> float:
        rate = machine.tensor_flops / self.element / machine.sms / machine.clock * machine.seen.tensor_use
        reads = (self.thread_rows + self.thread_columns) / (8 * self.deep // 2)
        shared = self.threads / WARP * reads
        halves = 1.5 if self.products > 1 else float(self.kind == "tf32")
        rounded = halves * _ROUNDING * self.threads * (self.thread_rows + self.thread_columns) / WARP**2
        multiplied = self.rows * self.columns * self.products / rate
        return self._slowest(multiplied + rounded, shared, blocks, size, machine)


GROUP = 128
"""Threads of a warpgroup."""
_ROW_BYTES = 128
"""Of the swizzled rows that warpgroups multiply."""


@dataclass(frozen=True)
class WgmmaTile(MmaTile):
    """A tile of warpgroups: ``thread_rows`` x ``thread_columns`` are a warpgroup's, factors of two bytes."""

    def __str__(self) -> str:
        return super().__str__().replace(" a warp", " a warpgroup")

    @property
    def threads(self) -> int:
        return self.down * self.across * GROUP

    @property
    def registers(self) -> int:
        return self.thread_rows * self.thread_columns // GROUP + _ADDRESSES

    @property
    def _piece(self) -> int:
        return self.depth * (self.rows + self.columns)

    def step_cycles(self, blocks: int, size: int, machine: GpuModel) -> float:
        rate = machine.tensor_flops / self.element / machine.sms / machine.clock * machine.seen.group_use
        loads = (self.rows + self.columns) * size / machine.seen.from_second_level
        return blocks * max(self.rows * self.columns / rate, loads)


def group_tiles(kind: str) -> list[BlockTile]:
    """Tiles of one to four warpgroups, fed by asynchronous copies in three stages or more."""
    low = [(64, n, 64, n) for n in (64, 128, 256)]
    high = [(128, n, 64, n) for n in (64, 128, 192, 256)] + [(128, 128, 128, 128), (256, 128, 128, 128)]
    many = [(192, 128, 64, 128), (192, 192, 64, 192), (256, 64, 64, 64)]
    return [
        WgmmaTile(rows, columns, _ROW_BYTES // 2, down, across, kind=kind, copied=stages)
        for rows, columns, down, across in (*low, *high, *many)
        for stages in (3, 4, 5)
    ]


def power_of_two(value: int, most: int = VECTOR) -> int:
    """The largest power of two that divides a number, at most ``most``."""
    return math.gcd(value, most) if value else most


_SIDES = (128, 64, 32, 16)
_OF_A_THREAD = (8, 4, 2)


def _shapes() -> list[BlockTile]:
    """Tiles of one to eight warps or so, whatever the problem."""
    return [
        BlockTile(rows, columns, depth, down, across)
        for rows in _SIDES
        for columns in _SIDES
        for depth in (8, 16)
        for down in _OF_A_THREAD
        for across in _OF_A_THREAD
        if across >= VECTOR and WARP <= rows // down * (columns // across) <= 256
    ]


TILES = _shapes()


_SLICES = ((1, 32), (2, 64), (4, 64), (8, 64), (8, 128))
"""Slices, and the depth of their pieces."""
_WINDOWS = 60
"""Registers of a thread beside sums and factors where it copies windows."""


def _sliced() -> list[BlockTile]:
    """Tiles of 8 threads down, of any number of rows each: pixels of images, 49 times a power of two, fit few others.
    Asynchronous copies bring their long pieces."""
    return [
        BlockTile(8 * down, columns, depth, down, across, slices=slices, copied=stages)
        for down in range(2, 9)
        for columns in (32, 64)
        for across in (4, 8)
        for slices, depth in _SLICES
        for stages in (3, 2)
        if 128 <= (threads := 8 * (columns // across) * slices) <= 512
        and (down * across + VECTOR * down + 2 * across + _WINDOWS) * threads <= REGISTERS
    ]


SLICED = _sliced()


_WARPS = ((64, 32), (32, 32), (16, 32), (32, 16))


def tensor_tiles(kind: str = "tf32", products: int = 1) -> list[BlockTile]:
    """Tiles of two to eight warps, of a kind of products on tensor cores."""
    one = MmaTile(16, 8, kind=kind)
    large = one.element == 2  # whose factors are half as many registers
    sides, warps = ((256, *_SIDES), ((64, 64), *_WARPS)) if large else (_SIDES, _WARPS)
    return [
        MmaTile(rows, columns, depth, down, across, products=products, kind=kind)
        for rows in sides
        for columns in sides
        for depth in (2 * one.deep, 4 * one.deep)
        for down, across in warps
        if rows % down == 0 and columns % across == 0 and 2 <= rows // down * (columns // across) <= 8
    ]


def with_copies(tiles: Sequence[BlockTile]) -> list[BlockTile]:
    """The same by way of registers and, in two stages and in three, by asynchronous copies."""
    return [replace(tile, copied=stages) for tile in tiles for stages in (3, 2, 0)]
