"""A batch of matrix products as blocks of threads, strict float32 and the like: factors in shared memory, sums in
registers.

Double buffering: while the threads multiply what one half of shared memory holds, each has its share of the next piece
on the way in registers, and puts it into the other half: one barrier a piece.  Where elements are taken as they are in
memory, asynchronous copies bring two or three pieces without registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from minitvm.codegen.cuda.machine import WARP
from minitvm.codegen.cuda.templates.extent import Extent
from minitvm.codegen.cuda.templates.tile import SHARED_BYTES, VECTOR, WIDEST, power_of_two
from minitvm.codegen.loops import or_zero, unflatten
from minitvm.ir.loop import Buffer, Const, CopyAsync, Load, LoopExpr, LoopKind, Select, Stmt, const, loop, minimum
from minitvm.ir.loop.builder import LoopBuilder

Element = Callable[[LoopExpr, LoopExpr, LoopExpr], LoopExpr]
"""Of a factor: (batch, line, position in the depth)."""


@dataclass(frozen=True)
class Operand:
    """Lines of a product: the rows of the left-hand factor, the columns of the right-hand one.

    ``along_depth``: neighbours in memory are neighbours in the depth, else they are in neighbouring lines; groups of
    ``vector`` of them, from multiples of ``vector`` on, lie one after the other.
    """

    lines: int
    at: Element
    along_depth: bool
    vector: int
    nbytes: int
    windows: bool = False
    """Whether it takes long to tell where an element is."""

    @property
    def one_by_one(self) -> bool:
        """True if copies to rows of lines, which bring single elements, ask where each is instead of each vector."""
        return self.windows and self.along_depth and self.vector > 1

    @staticmethod
    def of(buffer: Buffer, depth_first: bool) -> Operand:
        """A matrix, or a batch of them: (depth, lines) or (lines, depth)."""
        *outer, a, b = buffer.shape
        batched = len(outer) == 1 and outer[0] != 1

        def at(p: LoopExpr, line: LoopExpr, r: LoopExpr) -> LoopExpr:
            where = (r, line) if depth_first else (line, r)
            return buffer[where if not outer else ((p if batched else 0), *where)]

        return Operand(b if depth_first else a, at, not depth_first, power_of_two(b, WIDEST), buffer.nbytes)


@dataclass(frozen=True)
class GpuProduct:
    """``store(p, i, j, sum over r of left.at(p, i, r) * right.at(p, j, r))``, sums kept in ``dtype``.

    Results of neighbouring columns lie in memory one after the other, from multiples of ``vector`` on.
    """

    batch: int
    depth: int
    left: Operand
    right: Operand
    dtype: str
    store: Callable[[LoopExpr, LoopExpr, LoopExpr, LoopExpr], Stmt]
    vector: int

    @property
    def extent(self) -> Extent:
        nbytes = self.left.nbytes + self.right.nbytes
        size = np.dtype(self.dtype).itemsize
        return Extent(self.batch, self.left.lines, self.right.lines, self.depth, size, nbytes)


_QUARTER = 8
"""Lanes whose vectors of 16 bytes shared memory takes at once."""
_OF_A_BLOCK = 256
_BLOCKS = 128
"""About as many as a large GPU has SMs."""


@contextmanager
def threads(code: LoopBuilder, total: int) -> Iterator[LoopExpr]:
    """Code in here runs in a thread for every position; blocks are small where there would be few of them."""
    each = min(_OF_A_BLOCK, max(1, total // (_BLOCKS * WARP)) * WARP)
    blocks = code.loop(-(-total // each), "block", LoopKind.BLOCK_X)
    with blocks as block, code.loop(each, "thread", LoopKind.THREAD_X) as thread:
        position = block * each + thread
        with code.when(position < total if total % each else None):
            yield position


def in_blocks(count: int, body: Callable[[LoopExpr], Stmt]) -> Stmt:
    return loop(count, body, LoopKind.BLOCK_X, name="block")


def in_block(threads: int, body: Callable[[LoopExpr], Stmt]) -> Stmt:
    return loop(threads, body, LoopKind.THREAD_X, name="thread")


def unrolled(count: int, body: Callable[[LoopExpr], Stmt], name: str) -> Stmt:
    return loop(count, body, LoopKind.UNROLLED, name=name)


# --- a factor's way: global memory, registers, shared memory --------------------------------------------------------


@dataclass(frozen=True)
class Staging:
    """What the threads of a block carry of a factor to shared memory: ``lines x depth`` in vectors, in turn."""

    operand: Operand
    lines: int
    depth: int
    threads: int
    total_depth: int
    dtype: str
    room: int
    """Elements between one line of shared memory and the next."""
    stages: int = 2
    copied: bool = False
    """By asynchronous copies, not by way of registers."""
    depth_inside: bool = False
    """Whether neighbours in shared memory are neighbours in the depth."""

    @cached_property
    def vector(self) -> int:
        """Elements carried at once."""
        if self.copied and self.operand.along_depth and not self.depth_inside:
            return 1
        most = VECTOR if np.dtype(self.dtype).itemsize > 2 else WIDEST
        return math.gcd(self.operand.vector, self.depth if self.operand.along_depth else self.lines, most)

    @property
    def vectors(self) -> int:
        return self.lines * self.depth // self.vector

    @property
    def rounds(self) -> int:
        """Vectors that a thread carries."""
        return -(-self.vectors // self.threads)

    @cached_property
    def shared(self) -> Buffer:
        """All pieces: (stage, depth, lines), with room that keeps what is stored across in different banks."""
        name = "left" if self.operand.along_depth else "right"
        rows, columns = (self.lines, self.depth) if self.depth_inside else (self.depth, self.lines)
        return Buffer(name, (self.stages, rows, columns + self.room), self.dtype, "shared")

    def at(self, stage: LoopExpr, r: LoopExpr, line: LoopExpr) -> Load:
        """An element in shared memory."""
        return Load(self.shared, (stage, line, r) if self.depth_inside else (stage, r, line))

    def row(self, stage: LoopExpr, r: LoopExpr, line: LoopExpr, number: LoopExpr) -> tuple[Load, bool]:
        """The place where row ``number`` of a matrix begins whose first element is given; whether rows are of the
        depth."""
        inside = self.depth_inside
        return self.at(stage, r if inside else r + number, line + number if inside else line), not inside

    @cached_property
    def held(self) -> Buffer:
        return Buffer("held", (self.rounds, self.vector), self.dtype, "local")

    @contextmanager
    def _each(self, code: LoopBuilder, thread: LoopExpr) -> Iterator[tuple[LoopExpr, LoopExpr, LoopExpr]]:
        """Round, line and position in the depth of the first element of every vector."""
        with code.unrolled(range(self.rounds), "round") as i:
            number = i * self.threads + thread
            if self.operand.along_depth:
                line, at = self._spread(number)
                at = at * self.vector
            else:
                line, at = self._across(number)
            with code.when(number < self.vectors if self.vectors % self.threads else None):
                yield i, line, at

    def _across(self, number: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        """The same where neighbours are of different lines.  Eight lanes that fill half of the banks twice have two
        places, so far apart that the second ones are in the other half."""
        along = self.lines // self.vector
        at, line = unflatten(number, (self.depth, along))
        for apart in (2, 4) if 2 * along == _QUARTER else ():
            step = apart * self.shared.shape[-1] * np.dtype(self.dtype).itemsize
            if step % SHARED_BYTES == SHARED_BYTES // 2 and self.depth % (2 * apart) == 0:
                at = at // (2 * apart) * (2 * apart) + at % 2 * apart + at // 2 % apart
                break
        return line * self.vector, at

    def _spread(self, number: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        """The line of a vector and its place there, so that banks of shared memory differ.

        Where lines are rows there, eight lanes have the same place of eight lines, an odd number of vectors apart.
        Where they are columns, element by element, two times sixteen lanes have neighbouring places, which are half of
        the banks apart; of single elements, four lines have eight places.  A warp reads whole sectors of global memory
        all the same.
        """
        places = self.depth // self.vector
        if not self.depth_inside and self.vector == VECTOR and not (places % 2 or self.lines % (2 * _QUARTER)):
            many, pair, second, line = unflatten(number, (self.lines // 16, places // 2, 2, 16))
            return many * 16 + line, pair * 2 + second
        if not self.depth_inside and self.vector == 1 and not (places % _QUARTER or self.lines % 4):
            many, eight, line, at = unflatten(number, (self.lines // 4, places // _QUARTER, 4, _QUARTER))
            return many * 4 + line, eight * _QUARTER + at
        if not self.depth_inside or self.lines % _QUARTER:
            line, at = unflatten(number, (self.lines, places))
            return line, at
        eight, at, line = unflatten(number, (self.lines // _QUARTER, places, _QUARTER))
        return eight * _QUARTER + line, at

    def load(self, p: LoopExpr, tile: LoopExpr, start: LoopExpr, thread: LoopExpr) -> Stmt:
        """The piece of a tile's lines that begins at ``start``, to registers; what is beyond the depth is 0."""
        code = LoopBuilder()
        with self._each(code, thread) as (i, line, at):
            element = self._elements(p, tile, line, start + at)
            with code.lanes(self.vector) as lane:
                code.store(self.held, (i, lane), element(lane))
        return code.stmt

    def copy(self, p: LoopExpr, tile: LoopExpr, start: LoopExpr, thread: LoopExpr, stage: LoopExpr | int) -> Stmt:
        """The same to shared memory, where it is once it has been waited for."""
        code = LoopBuilder()
        with self._each(code, thread) as (_, line, at):
            element = self._elements(p, tile, line, start + at)
            with code.lanes(self.vector) as lane:
                code.emit(CopyAsync(self.shared, self._place(stage, line, at, lane), element(lane)))
        return code.stmt

    def _place(self, stage: LoopExpr | int, line: LoopExpr, at: LoopExpr, lane: LoopExpr) -> tuple[LoopExpr, ...]:
        """Where an element of a vector is in shared memory."""
        where = (at + lane, line) if self.operand.along_depth else (at, line + lane)
        return self.at(_index(stage), *where).index

    def _elements(self, p: LoopExpr, tile: LoopExpr, line: LoopExpr, r: LoopExpr) -> Callable[[LoopExpr], LoopExpr]:
        """Of a vector from a tile's ``line`` and ``r`` on, by lane."""
        operand, first = self.operand, self._line(tile, line)

        def element(lane: LoopExpr) -> LoopExpr:
            where = (first, r + lane) if operand.along_depth else (first + lane, r)
            value = narrowed(operand.at(p, *where), self.dtype)
            return or_zero(r < self.total_depth, value) if self._ends_within else value

        return element

    @property
    def _ends_within(self) -> bool:
        """True if the depth ends before its last piece does; a product of nothing has one piece all the same."""
        return self.total_depth == 0 or self.total_depth % self.depth != 0

    def _line(self, tile: LoopExpr, line: LoopExpr) -> LoopExpr:
        """A line of a tile; beyond the last one some other, with which something is computed that is not stored."""
        step, lines = 1 if self.operand.along_depth else self.vector, self.operand.lines
        if lines % self.lines == 0:
            return tile * self.lines + line
        return minimum(tile * (self.lines // step) + line // step, lines // step - 1) * step

    def put(self, half: LoopExpr | int, thread: LoopExpr) -> Stmt:
        """Copies elements from registers to shared memory."""
        code, across = LoopBuilder(), self.operand.along_depth and not self.depth_inside
        lanes = code.unrolled(range(self.vector), "lane") if across else code.lanes(self.vector)
        with self._each(code, thread) as (i, line, at), lanes as lane:
            code.store(self.shared, self._place(half, line, at, lane), self.held[i, lane])
        return code.stmt


def narrowed(value: LoopExpr, dtype: str) -> LoopExpr:
    """A value, or a choice of one or 0, in a dtype."""
    if isinstance(value, Select) and isinstance(value.orelse, Const):
        return Select(value.condition, narrowed(value.then, dtype), const(value.orelse.value, dtype))
    return value.astype(dtype)


def _index(value: LoopExpr | int) -> LoopExpr:
    return const(value, "int64") if isinstance(value, int) else value
