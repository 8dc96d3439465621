"""Attention by blocks of threads, in one launch: some queries of a head each (FlashAttention, Dao et al. 2022,
arXiv:2205.14135).

The queries stay in shared memory, keys and values go through it in pieces: keys for the scores, values for what these
mix.  A thread has a few rows and columns of the scores and of the results in registers; threads that share rows are
neighbours in a warp and agree on the running maximum and sum by shuffles (online softmax).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.cuda.templates.blocks import Lines
from minitvm.codegen.cuda.templates.product import Operand, Staging, unrolled
from minitvm.codegen.cuda.templates.tile import VECTOR, power_of_two
from minitvm.codegen.loops import or_zero, unflatten, with_memory
from minitvm.codegen.problem import Problem, Tile
from minitvm.ir.loop import (
    Barrier,
    Buffer,
    Load,
    LoopExpr,
    LoopKind,
    Shuffle,
    Stmt,
    Store,
    as_index,
    const,
    intrin,
    loop,
    maximum,
    minimum,
    select,
    seq,
)
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.ops.nn_attention import Attention

_OVERHEAD = 1.15  # instructions beside multiply-adds
_STEPS = 8  # of a reduction that are written out


@dataclass(frozen=True)
class AttentionTile(Tile):
    """``rows`` queries by ``blocks`` keys; of each a thread has ``thread_rows x thread_columns`` scores."""

    thread_rows: int = 4
    thread_columns: int = 4

    def __str__(self) -> str:
        return f"{self.rows} queries x {self.blocks} keys, {self.thread_rows} x {self.thread_columns} a thread"

    @property
    def down(self) -> int:
        return self.rows // self.thread_rows

    @property
    def across(self) -> int:
        """Threads that share rows."""
        return self.blocks // self.thread_columns

    @property
    def threads(self) -> int:
        return self.down * self.across

    def columns(self, width: int) -> int:
        """The columns of the results that a thread has: whole vectors, or less than one."""
        each = -(-width // self.across)
        return each if each < VECTOR else -(-each // VECTOR) * VECTOR

    def depth(self, size: int) -> int:
        """The depth of the scores' sums, with what fills up the last step."""
        return size


def shape_of(problem: Problem) -> tuple[int, ...]:
    """Batch, length, heads, key_length, d, e."""
    (batch, length, heads, size), _, value = (b.shape for b in problem.inputs[:3])
    return batch, length, heads, value[1], size, value[3]


@dataclass(frozen=True)
class Block:
    """What a block does: ``tile.rows`` queries of a head with all keys."""

    problem: Problem
    tile: AttentionTile
    gpu: GpuModel

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Batch, length, heads, key_length, d, e."""
        return shape_of(self.problem)

    @property
    def dtype(self) -> str:
        return self.problem.accumulator

    @property
    def op(self) -> Attention:
        assert isinstance(self.problem.op, Attention)
        return self.problem.op

    # --- what it takes ----------------------------------------------------------------------------------------

    @property
    def registers(self) -> int:
        """The registers of a thread, as predicted."""
        rows, own = self.rows.count, self.key_lines.count + self.columns.count
        return rows * (own + 4) + 2 * own + self._carried + 48

    @property
    def _carried(self) -> int:
        """Elements that a thread has on their way to shared memory."""
        return max(share.rounds * share.vector for share in (self.queries, self.keys, self.values))

    @property
    def reads(self) -> float:
        """The vectors of shared memory that a thread reads for a piece."""
        rows, (size, _) = self.rows.count, self.shape[4:]
        both = size * (rows + self.key_lines.count) + self.tile.blocks * (rows + self.columns.count)
        return both / VECTOR

    @property
    def rate(self) -> float:
        """Multiply-adds that an SM does in a cycle."""
        return self.gpu.lanes_of_sm / _OVERHEAD

    # --- memory -----------------------------------------------------------------------------------------------

    room = VECTOR
    """Elements between lines of shared memory."""

    def _staged(self, number: int, lines: int, depth: int, along_depth: bool) -> Staging:
        """An operand's way to shared memory as (depth, lines), the lines being queries, keys or columns."""
        buffer, (_, _, heads, keys, *_) = self.problem.inputs[number], self.shape

        def at(head: LoopExpr, line: LoopExpr, r: LoopExpr) -> LoopExpr:
            place, element = (line, r) if along_depth else (self._key_at(r), line)
            value = buffer[head // heads, place, head % heads, element]
            return value if along_depth or keys % self.tile.blocks == 0 else or_zero(place < keys, value)

        count = buffer.shape[1 if along_depth else 3]
        operand = Operand(count, at, along_depth, power_of_two(buffer.shape[3]), buffer.nbytes)
        total = buffer.shape[3] if along_depth else -(-keys // self.tile.blocks) * self.tile.blocks
        return Staging(operand, lines, depth, self.tile.threads, total, self.dtype, self.room, stages=1)

    @cached_property
    def queries(self) -> Staging:
        return self._staged(0, self.tile.rows, self.tile.depth(self.shape[4]), along_depth=True)

    @cached_property
    def keys(self) -> Staging:
        return self._staged(1, self.tile.blocks, self.tile.depth(self.shape[4]), along_depth=True)

    @cached_property
    def values(self) -> Staging:
        columns = self.tile.columns(self.shape[5]) * self.tile.across
        return self._staged(2, columns, self.tile.blocks, along_depth=False)

    @cached_property
    def exponentials(self) -> Buffer:
        """(key, row): keys of neighbouring threads are neighbours, vectors of rows an odd number of vectors apart."""
        return Buffer("exponentials", (self.tile.blocks, self.tile.rows + self._beside), self.dtype, "shared")

    @property
    def _beside(self) -> int:
        width = self.rows.vector
        return width * (self.tile.rows // width % 2 == 0)

    def _key_at(self, r: LoopExpr) -> LoopExpr:
        """The key whose exponential is at a position among all."""
        keys, across = self.tile.blocks, self.tile.across
        return r // keys * keys + self.key_lines.at(r % keys // across, r % across)

    @property
    def shared(self) -> list[Buffer]:
        return [self.queries.shared, self.keys.shared, self.values.shared, self.exponentials]

    def _own(self, name: str, *shape: int) -> Buffer:
        return Buffer(name, shape, self.dtype, "local")

    @cached_property
    def rows(self) -> Lines:
        return Lines(self.tile.thread_rows, self.tile.down)

    @cached_property
    def key_lines(self) -> Lines:
        return Lines(self.tile.thread_columns, self.tile.across)

    @cached_property
    def columns(self) -> Lines:
        return Lines(self.tile.columns(self.shape[5]), self.tile.across)

    @cached_property
    def scores(self) -> Buffer:
        return self._sums("scores", self.key_lines)

    @cached_property
    def weighted(self) -> Buffer:
        return self._sums("weighted", self.columns)

    def _sums(self, name: str, columns: Lines) -> Buffer:
        return self._own(name, self.rows.count, columns.count)

    def _sum(self, sums: Buffer, i: LoopExpr | int, j: LoopExpr | int) -> Load:
        """Of a thread's row and column."""
        return Load(sums, (as_index(i), as_index(j)))

    @cached_property
    def of_rows(self) -> tuple[Buffer, Buffer, Buffer, Buffer]:
        """The maximum and the sum so far, those of a piece, and what earlier keys count: the state of online
        softmax."""
        running_max, running_sum, part, rescale = (
            self._own(name, self.rows.count) for name in ("running_max", "running_sum", "part", "rescale")
        )
        return running_max, running_sum, part, rescale

    # --- loops ------------------------------------------------------------------------------------------------

    def nest(self) -> Stmt:
        batch, length, heads, *_ = self.shape
        pieces = -(-length // self.tile.rows)

        code = LoopBuilder()
        blocks = code.loop(batch * heads * pieces, "block", LoopKind.BLOCK_X)
        threads = code.loop(self.tile.threads, "thread", LoopKind.THREAD_X)
        with blocks as number, code.memory(*self.shared), threads as t:
            head, piece = unflatten(number, (batch * heads, pieces))
            code.emit(self._thread(head, piece, t))
        return code.stmt

    def _thread(self, head: LoopExpr, piece: LoopExpr, t: LoopExpr) -> Stmt:
        down, across = self._place(t)
        running_max, running_sum, *_ = self.of_rows
        key_length = self.shape[3]

        def carried(staging: Staging, tile: LoopExpr, start: LoopExpr) -> Stmt:
            return with_memory([staging.held], seq(staging.load(head, tile, start, t), staging.put(0, t)))

        def step(number: LoopExpr) -> Stmt:
            start, zero = number * self.tile.blocks, const(0, "int64")
            brought = seq(Barrier(), carried(self.keys, number, zero), carried(self.values, zero, start), Barrier())
            scores = self._multiply(self.scores, self.queries.depth, self._query, self._key, down, across)
            softmax = self._softmax(head, piece, start, down, across)
            weighted = self._multiply(self.weighted, self.tile.blocks, self._power, self._value, down, across)
            return seq(brought, self._each(self.scores, lambda *at: const(0, self.dtype)), scores, softmax, weighted)

        begin = [
            self._each(running_max, lambda i: const(-math.inf, self.dtype)),
            self._each(running_sum, lambda i: const(0, self.dtype)),
            self._each(self.weighted, lambda *at: const(0, self.dtype)),
            carried(self.queries, piece, const(0, "int64")),
        ]
        rounds = loop(-(-key_length // self.tile.blocks), step, name="piece")
        own = [self.scores, self.weighted, *self.of_rows]
        return with_memory(own, seq(*begin, rounds, self._stores(head, piece, down, across)))

    def _place(self, t: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        """Of a thread: which rows it has, which columns."""
        return t // self.tile.across, t % self.tile.across

    def _each(self, buffer: Buffer, value: Callable[..., LoopExpr]) -> Stmt:
        """Every element of a thread's own: of rows, or of sums."""
        if buffer in self.of_rows:
            return unrolled(self.rows.count, lambda i: Store(buffer, (i,), value(i)), "i")
        code, columns = LoopBuilder(), self.key_lines if buffer is self.scores else self.columns
        with code.unrolled(range(self.rows.count), "i") as i, code.unrolled(range(columns.count), "j") as j:
            code.store(buffer, self._sum(buffer, i, j).index, value(i, j))
        return code.stmt

    # --- products ---------------------------------------------------------------------------------------------

    def _query(self, r: LoopExpr, line: LoopExpr) -> LoopExpr:
        return self.queries.at(const(0, "int64"), r, line)

    def _key(self, r: LoopExpr, line: LoopExpr) -> LoopExpr:
        return self.keys.at(const(0, "int64"), r, line)

    def _power(self, r: LoopExpr, line: LoopExpr) -> LoopExpr:
        return self.exponentials[r, line]

    def _value(self, r: LoopExpr, line: LoopExpr) -> LoopExpr:
        return self.values.at(const(0, "int64"), r, line)

    def _multiply(self, sums: Buffer, depth: int, left: Read, right: Read, down: LoopExpr, across: LoopExpr) -> Stmt:
        """``sums += left(r, row) * right(r, column)`` for all r."""
        columns = self.key_lines if sums is self.scores else self.columns
        a, b = self._own("a", self.rows.count), self._own("b", columns.count)

        code = LoopBuilder()
        for r in _steps(code, depth):
            with code.memory(a, b):
                with self.rows.each(code) as i:
                    code.store(a, (i,), left(r, self.rows.at(i, down)))
                with columns.each(code) as j:
                    code.store(b, (j,), right(r, columns.at(j, across)))
                code.emit(self._each(sums, lambda i, j: intrin("fma", a[i], b[j], sums[i, j])))
        return code.stmt

    # --- softmax ----------------------------------------------------------------------------------------------

    def _softmax(self, head: LoopExpr, piece: LoopExpr, start: LoopExpr, down: LoopExpr, across: LoopExpr) -> Stmt:
        """Scores become exponentials, in shared memory; what was added up before is rescaled.  A maximum of -inf takes
        nothing off, so that masked keys count nothing whatever piece they are in."""
        scores, (running_max, running_sum, part, rescale) = self.scores, self.of_rows
        zeros = self.op.empty_rows == "zero"

        def power(i: LoopExpr, j: LoopExpr) -> LoopExpr:
            return intrin("exp", self._sum(scores, i, j) - self._subtracted(i))

        def correction(i: LoopExpr) -> LoopExpr:
            found = intrin("exp", rescale[i] - self._subtracted(i))
            return select(intrin("isnan", found), 0, found) if zeros else found

        shared = LoopBuilder()
        with shared.unrolled(range(self.key_lines.count), "j") as j, self.rows.each(shared) as i:
            found = self._sum(scores, i, j)
            kept = select(intrin("isnan", found), 0, found) if zeros else found
            shared.store(self.exponentials, (j * self.tile.across + across, self.rows.at(i, down)), kept)

        return seq(
            self._each(scores, lambda i, j: self._masked(head, piece, start, i, j, down, across)),
            self._each(rescale, lambda i: running_max[i]),
            *self._across(part, maximum),
            self._each(running_max, lambda i: maximum(running_max[i], part[i])),
            self._each(scores, power),
            self._each(rescale, correction),
            *self._across(part, lambda a, b: a + b),
            self._each(running_sum, lambda i: intrin("fma", running_sum[i], rescale[i], part[i])),
            self._each(self.weighted, lambda i, j: self._sum(self.weighted, i, j) * rescale[i]),
            shared.stmt,
            Barrier(),
        )

    def _subtracted(self, i: LoopExpr) -> LoopExpr:
        running_max = self.of_rows[0]
        return select(running_max[i].equal(-math.inf), 0, running_max[i])

    def _masked(
        self, head: LoopExpr, piece: LoopExpr, start: LoopExpr, i: LoopExpr, j: LoopExpr, *place_of: LoopExpr
    ) -> LoopExpr:
        """A score; of a place that there is not, -inf."""
        _, length, heads, key_length, *_ = self.shape
        mask = self.problem.inputs[3] if len(self.problem.inputs) > 3 else None
        row = piece * self.tile.rows + self.rows.at(i, place_of[0])
        place = start + self.key_lines.at(j, place_of[1])
        inside = minimum(row, length - 1), minimum(place, key_length - 1)
        score = self._sum(self.scores, i, j) * self.op.scale
        found = self.op.masked(score, mask, (head // heads, head % heads, *inside))
        return select(place < key_length, found, -math.inf) if key_length % self.tile.blocks else found

    def _across(self, to: Buffer, combine: Callable[[LoopExpr, LoopExpr], LoopExpr]) -> list[Stmt]:
        """Of every row the scores combined, in all threads that share it."""
        own = [self._each(to, lambda i: self._sum(self.scores, i, 0))]
        for j in range(1, self.key_lines.count):
            own.append(self._each(to, lambda i, j=j: combine(to[i], self._sum(self.scores, i, j))))
        masks = [self.tile.across >> s for s in range(1, self.tile.across.bit_length())]
        return [*own, *(self._each(to, lambda i, m=m: combine(to[i], Shuffle(to[i], m))) for m in masks)]

    # --- results ----------------------------------------------------------------------------------------------

    def _stores(self, head: LoopExpr, piece: LoopExpr, down: LoopExpr, across: LoopExpr) -> Stmt:
        _, length, heads, key_length, _, width = self.shape
        out, running_sum = self.problem.output, self.of_rows[1]
        vector = min(self.columns.vector, power_of_two(width))

        code, chunks = LoopBuilder(), range(self.columns.count // vector)
        with code.unrolled(range(self.rows.count), "i") as i, code.unrolled(chunks, "chunk") as chunk:
            row, first = piece * self.tile.rows + self.rows.at(i, down), chunk * vector
            column = self.columns.at(first, across)
            guards = [row < length] * bool(length % self.tile.rows)
            guards += [column < width] * (self.columns.count * self.tile.across != width)
            with code.where(guards), code.lanes(vector) as lane:
                found = self.op.averaged(self._sum(self.weighted, i, first + lane), running_sum[i], key_length)
                code.store(out, (head // heads, row, head % heads, column + lane), found.astype(out.dtype))
        return code.stmt


def _steps(code: LoopBuilder, depth: int) -> Iterator[LoopExpr]:
    """The steps of a reduction, some of them written out together; what is left over, too."""
    whole, rest = divmod(depth, _STEPS)
    if whole:
        with code.loop(whole, "r") as q, code.unrolled(range(_STEPS), "u") as u:
            yield q * _STEPS + u
    if rest:
        with code.unrolled(range(rest), "u") as u:
            yield u + whole * _STEPS


Read = Callable[[LoopExpr, LoopExpr], LoopExpr]
"""An element of a factor: (position in the depth, line)."""
