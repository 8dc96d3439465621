"""Rows in order: merges in which every element looks up its own place, by a binary search in the other run.

A block sorts as many elements as fit its shared memory; of longer rows, whole launches merge what blocks have sorted.
Where few are wanted, each block hands on its first ones, until one block has all of them.  Equal elements keep their
order, NaN counts as the largest, as :mod:`minitvm.ir.ops.more.sorting` has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from minitvm.codegen.cuda.schedules.elements import THREADS, in_block, in_threads
from minitvm.codegen.cuda.schedules.teams import rounded
from minitvm.codegen.loops import unflatten, with_memory
from minitvm.codegen.problem import TEMPLATES, Choice, Template
from minitvm.ir.decision import Declined, Exactness
from minitvm.ir.loop import (
    Barrier,
    Binary,
    Buffer,
    Const,
    If,
    LoopExpr,
    LoopKind,
    Select,
    Stmt,
    Store,
    const,
    guarded,
    intrin,
    loop,
    minimum,
    seq,
)
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.ops.more.sorting import ArgSort, Sort, TopK, less

TILE = 2048
"""Elements that a block sorts."""
_EACH = 4
"""Elements of a thread, at most."""
_MOST = 1 << 31
"""Positions are kept in 32 bits."""

Put: TypeAlias = Callable[[LoopExpr, LoopExpr, LoopExpr, LoopExpr], Stmt]
"""What becomes of an element: ``(row, place, key, position)``."""


@dataclass(frozen=True)
class Rows:
    """``rows`` rows of ``extent`` elements: ``key(row, k)``, of ``dtype``, and the position that stands for it."""

    rows: int
    extent: int
    dtype: str
    ascending: bool
    key: Callable[[LoopExpr, LoopExpr], LoopExpr]
    position: Callable[[LoopExpr, LoopExpr], LoopExpr] = lambda row, k: k.astype("int32")

    def sorted(self, put: Put) -> Stmt:
        """``put`` for every element, at its place."""
        if self.extent <= TILE:
            return _Tiles(self).nest(put)
        first = self._memory(self.extent)
        steps, held, width = [_Tiles(self).nest(first.put)], [first], TILE
        while width < self.extent:
            made = self._memory(self.extent)
            last = width * 2 >= self.extent
            steps += [Barrier(), held[-1].over(self)._merged(width, put if last else made.put)]
            held += [made] * (not last)
            width *= 2
        return with_memory([b for memory in held for b in (memory.keys, memory.positions)], seq(*steps))

    def first(self, count: int, put: Put) -> Stmt:
        """``put`` for the first ``count`` elements of every row only, at their places."""

        def some(row: LoopExpr, place: LoopExpr, key: LoopExpr, position: LoopExpr) -> Stmt:
            return If(place < count, put(row, place, key, position))

        if self.extent <= TILE or count > TILE // 2:
            return self.sorted(put if count == self.extent else some)
        tiles, rest = divmod(self.extent, TILE)
        found = self._memory(tiles * count + min(rest, count))

        def hand_on(row: LoopExpr, place: LoopExpr, key: LoopExpr, position: LoopExpr) -> Stmt:
            tile, at = place // TILE, place % TILE
            return If(at < count, found.put(row, tile * count + at, key, position))

        fewer = found.over(replace(self, extent=found.keys.shape[1]))
        steps = seq(_Tiles(self).nest(hand_on), Barrier(), fewer.first(count, put))
        return with_memory([found.keys, found.positions], steps)

    def _memory(self, extent: int) -> _Memory:
        return _Memory(*(Buffer(n, (self.rows, extent), t) for n, t in (("keys", self.dtype), ("positions", "int32"))))

    def _merged(self, width: int, put: Put) -> Stmt:
        """Pairs of runs of ``width`` become one each: a thread for each element."""

        def thread(number: LoopExpr) -> Stmt:
            row, k = unflatten(number, (self.rows, self.extent))
            key = Buffer("key", (1,), self.dtype, "local")
            search = _Search(self, lambda at: self.key(row, at), key[0], k.astype("int32"))
            found = search.loops(Const(width.bit_length()), const(width, "int32"), const(self.extent, "int32"))
            stored = put(row, search.place(const(width, "int32")), key[0], self.position(row, k))
            memory = [key, search.count, search.stride]
            return with_memory(memory, seq(Store(key, (Const(0),), self.key(row, k)), found, stored))

        return in_threads(self.rows * self.extent, thread)

    def before(self, a: LoopExpr, b: LoopExpr) -> LoopExpr:
        """Tells whether a key comes strictly before another one."""
        return less(a, b) if self.ascending else less(b, a)


@dataclass(frozen=True)
class _Search:
    """The place where the element at ``k`` goes as its run and the one beside it are merged.

    Behind as many of the other run as come before it: of elements of the right-hand run, those of the left-hand one
    that are equal, too.  Runs have a power of two of elements, ``width``, so places in them are bits of ``k``.
    """

    rows: Rows
    keys: Callable[[LoopExpr], LoopExpr]
    key: LoopExpr
    k: LoopExpr
    count: Buffer = field(default_factory=lambda: Buffer("count", (1,), "int32", "local"))
    stride: Buffer = field(default_factory=lambda: Buffer("stride", (1,), "int32", "local"))

    def place(self, width: LoopExpr) -> LoopExpr:
        return (self.k + self.count[0] - (self.k & width)).astype("int64")

    def loops(self, steps: LoopExpr, width: LoopExpr, extent: LoopExpr) -> Stmt:
        """Finds ``count``, bit by bit, the highest first; ``steps``: log2(width) + 1."""
        count, stride, zero = self.count[0], self.stride[0], (Const(0),)
        start = Binary("xor", self.k & -width, width)
        left = minimum(extent - start, width)
        next_ = count + stride

        def step(_: LoopExpr) -> Stmt:
            other = self.keys((start + next_ - 1).astype("int64"))
            from_right = intrin("not", self.rows.before(self.key, other))
            passed = Select((self.k & width).equal(0), self.rows.before(other, self.key), from_right)
            take = If(next_ <= left, If(passed, Store(self.count, zero, next_)))
            return seq(take, Store(self.stride, zero, Binary("shr", stride, const(1, "int32"))))

        begin = seq(Store(self.count, zero, const(0, "int32")), Store(self.stride, zero, width))
        return seq(begin, loop(steps, step, name="step"))


@dataclass(frozen=True)
class _Memory:
    """Elements that one launch leaves to the next."""

    keys: Buffer
    positions: Buffer

    def put(self, row: LoopExpr, place: LoopExpr, key: LoopExpr, position: LoopExpr) -> Stmt:
        return seq(Store(self.keys, (row, place), key), Store(self.positions, (row, place), position))

    def over(self, rows: Rows) -> Rows:
        """The same rows, taken from here."""
        return replace(rows, key=lambda row, k: self.keys[row, k], position=lambda row, k: self.positions[row, k])


@dataclass(frozen=True)
class _Tiles:
    """Pieces of rows, each sorted by some threads of a block in its shared memory."""

    rows: Rows

    @cached_property
    def size(self) -> int:
        """Elements of a tile, a power of two."""
        return min(TILE, rounded(self.rows.extent))

    @cached_property
    def each(self) -> int:
        """Elements of a thread."""
        return min(_EACH, max(1, self.size // THREADS))

    @cached_property
    def tiles(self) -> int:
        """Of a row."""
        return -(-self.rows.extent // self.size)

    @cached_property
    def together(self) -> int:
        """Tiles of a block."""
        return max(1, min(THREADS // (self.size // self.each), rounded(self.rows.rows * self.tiles)))

    def nest(self, put: Put) -> Stmt:
        """``put`` for every element, at its place in its row where all tiles before it are full."""
        shape, count = (self.rows.rows, self.tiles), self.rows.rows * self.tiles
        keys, positions = (
            Buffer(name, (self.together, self.size), dtype, "shared")
            for name, dtype in (("sorted", self.rows.dtype), ("order", "int32"))
        )
        code = LoopBuilder()
        blocks = code.loop(-(-count // self.together), "block", LoopKind.BLOCK_X)
        threads = in_block(code, self.together, self.size // self.each)
        with blocks as number, code.memory(keys, positions), threads as (y, lane):
            piece = number * self.together + y
            guards = [piece < count] if count % self.together else []
            row, tile = unflatten(minimum(piece, count - 1) if guards else piece, shape)
            code.emit(self._thread(_Team(self, keys, positions, y, lane), row, tile, guards, put))
        return code.stmt

    def _thread(self, team: _Team, row: LoopExpr, tile: LoopExpr, guards: list[LoopExpr], put: Put) -> Stmt:
        rows, y = self.rows, team.y
        first = tile * self.size
        count: LoopExpr = Const(rows.extent) if self.tiles == 1 else minimum(self.size, rows.extent - first)

        def load(at: LoopExpr) -> Stmt:
            key, position = rows.key(row, first + at), rows.position(row, first + at)
            return seq(Store(team.keys, (y, at), key), Store(team.positions, (y, at), position))

        def leave(at: LoopExpr) -> Stmt:
            return guarded(guards, put(row, first + at, team.keys[y, at], team.positions[y, at]))

        width, count32 = Buffer("width", (1,), "int32", "local"), count.astype("int32")

        def level(number: LoopExpr) -> Stmt:
            double = Store(width, (Const(0),), width[0] + width[0])
            return seq(team.merge(number + 1, width[0], count, count32), double)

        levels = loop(self.size.bit_length() - 1, level, name="level")
        begin = seq(team.turn(load, count), Store(width, (Const(0),), const(1, "int32")), Barrier())
        return with_memory([width], seq(begin, levels, team.turn(leave, count)))


@dataclass(frozen=True)
class _Team:
    """One thread, and what it shares with others of its tile."""

    of: _Tiles
    keys: Buffer
    positions: Buffer
    y: LoopExpr
    lane: LoopExpr

    def turn(self, body: Callable[[LoopExpr], Stmt], count: LoopExpr) -> Stmt:
        """``body(at)`` for the thread's elements."""
        return self.each(lambda i, at: If(at < count, body(at)))

    def each(self, body: Callable[[LoopExpr, LoopExpr], Stmt]) -> Stmt:
        lanes = self.of.size // self.of.each
        return loop(self.of.each, lambda i: body(i, i * lanes + self.lane), LoopKind.UNROLLED, "i")

    def merge(self, steps: LoopExpr, width: LoopExpr, count: LoopExpr, count32: LoopExpr) -> Stmt:
        """Runs of ``width`` elements become runs of twice as many."""
        rows, each = self.of.rows, (self.of.each,)
        key, own = Buffer("key", each, rows.dtype, "local"), Buffer("position", each, "int32", "local")
        places = Buffer("place", each, "int32", "local")

        def look(i: LoopExpr, at: LoopExpr) -> Stmt:
            search = _Search(rows, lambda k: self.keys[self.y, k], key[i], at.astype("int32"))
            taken = [Store(key, (i,), self.keys[self.y, at]), Store(own, (i,), self.positions[self.y, at])]
            looked = [search.loops(steps, width, count32), Store(places, (i,), search.place(width).astype("int32"))]
            return with_memory([search.count, search.stride], If(at < count, seq(*taken, *looked)))

        def move(i: LoopExpr, at: LoopExpr) -> Stmt:
            to = (self.y, places[i].astype("int64"))
            return If(at < count, seq(Store(self.keys, to, key[i]), Store(self.positions, to, own[i])))

        return with_memory([key, own, places], seq(self.each(look), Barrier(), self.each(move), Barrier()))


class OfPositions(Template):
    """Elements are known by their positions, in 32 bits."""

    exactness = Exactness.EXACT

    def refusal(self) -> Declined | None:
        size = self.problem.inputs[0].size
        if not size:
            return Declined("there are no elements")
        return Declined(f"positions of {size} elements need more than 32 bits") if size >= _MOST else None


@TEMPLATES.register("cuda", Sort, ArgSort, TopK)
class GpuSort(OfPositions):
    """Any dtype, shape and axis."""

    op: Sort | ArgSort | TopK

    def loops(self, choice: Choice) -> Stmt:
        (data,), outs, op = self.problem.inputs, self.problem.outputs, self.op
        axis = op.axis % len(data.shape)
        others = [n for d, n in enumerate(data.shape) if d != axis]
        extent, wanted = data.shape[axis], outs[0].shape[axis]

        def at(row: LoopExpr, k: LoopExpr) -> tuple[LoopExpr, ...]:
            index = unflatten(row, others)
            return (*index[:axis], k, *index[axis:])

        def put(row: LoopExpr, place: LoopExpr, key: LoopExpr, position: LoopExpr) -> Stmt:
            found = [key, position.astype(outs[-1].dtype)]
            if isinstance(op, ArgSort) or (isinstance(op, TopK) and op.ret_type == "indices"):
                found = found[1:]
            stores = (Store(out, at(row, place), value) for out, value in zip(outs, found, strict=False))
            return seq(*stores)

        rows = Rows(data.size // extent, extent, data.dtype, op.is_ascend, lambda row, k: data[at(row, k)])
        return rows.first(wanted, put)
