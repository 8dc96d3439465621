"""Attention with its scores in the cache: some queries by one thread, the keys in blocks (Rabe and Staats 2021,
arXiv:2112.05682), by online softmax: a running maximum and sum of each row (Milakov and Gimelshein 2018,
arXiv:1805.02867).

Queries are the lanes, in every step: scores lie as (key, query), so a row's maximum and sum are a vector's
operations, and keys and values are read where they lie, an element at a time, as a left-hand side is.  Only the
queries are transposed before and the results after, in squares of vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from minitvm.codegen.long_sums import LONGEST
from minitvm.codegen.loops import or_zero, parallel, transposed
from minitvm.codegen.problem import TEMPLATES, Choice, Template, Tile
from minitvm.codegen.templates.attention_few import Query
from minitvm.codegen.templates.attention_seen import Seen
from minitvm.codegen.templates.matmul import along_lanes, product_choices
from minitvm.codegen.templates.product import Matrix, Product
from minitvm.codegen.templates.tile import (
    TYPICAL,
    Run,
    TileKernel,
    halves,
    over,
    runs,
    step_cycles,
    steps,
    tile_choices,
)
from minitvm.ir.decision import Declined
from minitvm.ir.dims import ceil_divide
from minitvm.ir.loop import Buffer, LoopExpr, Stmt, Store, as_index, const, intrin, maximum, minimum, select
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.op import broadcast_index
from minitvm.ir.ops.nn_attention import Attention as AttentionOp

FEW = 4  # queries, up to which each is taken by itself: half of those that cost as much together
_WIDEST = 4  # vectors of queries that a thread takes at a time
_SCORES = 4  # parts of the second-level cache, one of which holds the scores of a block of keys
_EXP, _TURN = 14, 0.9  # cycles of a vector of scores that become exponentials, of an element of a square
_SOFTMAX, _MOVED = 18, 0.8  # the same where they are in memory; of an element of a transposed copy


@TEMPLATES.register("llvm", AttentionOp)
class Attention(Template):
    """query: (batch, length, heads, d), key, value: (batch, key_length, heads, d or e), a mask or none."""

    symbolic = True
    op: AttentionOp

    @cached_property
    def shape(self) -> tuple[Any, ...]:
        """Batch, length, heads, key_length, d, e."""
        query, _, value = self.problem.inputs[:3]
        batch, length, heads, size = query.shape
        return batch, length, heads, value.shape[1], size, value.shape[3]

    def refusal(self) -> Declined | None:
        if not all(isinstance(n, int) for n in self.shape[4:]):
            return Declined("only a run knows how wide its heads are")
        return None

    def slower(self) -> Declined | None:
        """Against two products, a softmax and the copies that these need of what is transposed."""
        batch, length, heads, key_length, size, width = self._typical
        many, parts = batch * heads, 0.0
        for rows, columns, depth, swapped in ((length, key_length, size, True), (length, width, key_length, False)):
            shapes = (
                (many, rows, depth),
                (many, columns, depth) if swapped else (many, depth, columns),
                (many, rows, columns),
            )
            left, right, out = (Buffer("part", shape, self.problem.output.dtype) for shape in shapes)
            product = Product(Matrix.of(left), Matrix.of(right, swapped), Matrix.of(out), self.accumulator)
            parts += min(c.cycles for c in product_choices(along_lanes(product), self.machine) if not c.why_not)
        parts += many * (
            length * -(-key_length // self.lanes) * _SOFTMAX + (length + key_length) * (size + width) * _MOVED
        )
        mine = self.choice.cycles
        return Declined(f"{mine:,.0f} cycles predicted, {parts:,.0f} of its parts") if mine > parts else None

    @property
    def _typical(self) -> tuple[int, ...]:
        """The shape with numbers for what only a run knows."""
        batch, *rest = self.shape
        return (batch if isinstance(batch, int) else 1, *(n if isinstance(n, int) else TYPICAL for n in rest))

    def choices(self) -> Sequence[Choice]:
        """Tiles of rows of keys, and as many vectors of queries as a thread takes at a time."""
        batch, _, heads, key_length, size, width = self._typical
        vectors = -(-self._typical[1] // self.lanes)
        found = []
        known = isinstance(self._vectors, int)
        for blocks in (b for b in range(1, min(vectors, _WIDEST) + 1) if known or b.bit_count() == 1):
            pieces, tile = runs(vectors, blocks), self.tile(max(1, key_length), blocks)
            each = sum(run.count * self._cycles(run.size, key_length, size, width) for run in pieces)
            items, threads = batch * heads * sum(run.count for run in pieces), self.machine.threads
            idle = -(-items // threads) * threads / items if items else 1
            found.append(Choice("queries in lanes", tile, batch * heads * each * idle))
        return found

    def tile(self, rows: int, blocks: int, halved: bool = False) -> Tile:
        """The best one of so many blocks; ``halved``: of a power of two of rows."""
        able = [c for c in tile_choices("", rows, blocks, 1, self.machine) if c.tile.blocks == blocks]
        fit = [c for c in able if not halved or c.tile.rows.bit_count() == 1]
        return min(fit, key=lambda c: (round(c.cycles, 6), c.tile.rows)).tile

    @property
    def _vectors(self) -> Any:
        """Of the queries of a head."""
        return ceil_divide(self.shape[1], self.lanes)

    @property
    def has_square_mask(self) -> bool:
        """True if a mask differs by query and by key."""
        mask = (*self.problem.inputs, None)[3]
        return mask is not None and len(mask.shape) > 1 and mask.shape[-1] != 1 and mask.shape[-2] != 1

    def _cycles(self, blocks: int, key_length: int, size: int, width: int) -> float:
        """Of ``blocks`` vectors of queries."""
        scores = step_cycles(key_length, blocks, self.tile(max(1, key_length), blocks)) * size
        weighted = step_cycles(width, blocks, self.tile(max(1, width), blocks)) * key_length
        moved = size + width + key_length * self.has_square_mask
        return scores + weighted + blocks * (_EXP * key_length + _TURN * self.lanes * moved)

    def loops(self, choice: Choice) -> Stmt:
        code, length = LoopBuilder(), self.shape[1]
        if isinstance(length, int):
            self._few(code) if length <= FEW else self._many(code, choice)
        else:
            with code.when(as_index(length) <= FEW):
                self._few(code)
            with code.otherwise():
                self._many(code, choice)
        return code.stmt

    def _few(self, code: LoopBuilder) -> None:
        """Queries one by one."""
        batch, length, heads, *_ = self.shape
        with parallel(code, (batch, heads, length)) as (p, h, i):
            Query(code, self.problem, self.shape, self.lanes, p, h, i).nest()

    def _many(self, code: LoopBuilder, choice: Choice) -> None:
        """Queries by the vector."""
        batch, _, heads, *_ = self.shape
        most, vectors = choice.tile.blocks, self._vectors
        for run in runs(vectors, most) if isinstance(vectors, int) else halves(vectors, most):
            with parallel(code, (batch, heads, run.count)) as (p, h, i):
                _Queries(code, self, p, h, run.start(i), run.size).nest()


@dataclass(frozen=True)
class _Queries:
    """``blocks`` vectors of queries of one head, from vector ``first`` on."""

    code: LoopBuilder
    template: Attention
    p: LoopExpr
    h: LoopExpr
    first: LoopExpr
    blocks: int

    @property
    def lanes(self) -> int:
        return self.template.lanes

    @property
    def width(self) -> int:
        return self.blocks * self.lanes

    @property
    def dtype(self) -> str:
        return self.template.accumulator

    @property
    def op(self) -> AttentionOp:
        return self.template.op

    @cached_property
    def at_once(self) -> int:
        """The most keys of a block; where only a run counts them, as many as are added up without blocks of sums."""
        room = self.template.machine.l2_bytes // _SCORES // (self.width * self.template.machine.vector_bytes)
        most, key_length = max(self.lanes, room * self.lanes // self.lanes * self.lanes), self.template.shape[3]
        return runs(key_length, most)[0].size if isinstance(key_length, int) and key_length else min(most, LONGEST)

    @property
    def is_whole(self) -> bool:
        """True if one block has all keys."""
        return bool(self.at_once == self.template.shape[3])

    # --- memory -----------------------------------------------------------------------------------------------

    def _memory(self, name: str, *rows: int) -> Buffer:
        return Buffer(name, (*rows, self.width), self.dtype, "shared" if rows else "local")

    @cached_property
    def queries(self) -> Buffer:
        return self._memory("queries", self.template.shape[4])

    @cached_property
    def scores(self) -> Buffer:
        return self._memory("scores", self.at_once)

    @cached_property
    def weighted(self) -> Buffer:
        return self._memory("weighted", self.template.shape[5])

    @cached_property
    def transposed_mask(self) -> Buffer | None:
        """A mask that says of each query and key what holds, as (key, query)."""
        if not self.template.has_square_mask:
            return None
        return self._memory("masks", -(-self.at_once // self.lanes) * self.lanes)

    @cached_property
    def rows(self) -> dict[str, Buffer]:
        """The state of online softmax, by query: the maximum and the sum so far, what is taken off its scores, what
        earlier keys count, and their sum."""
        return {name: self._memory(name) for name in ("running_max", "running_sum", "subtracted", "rescale", "before")}

    # --- loops ------------------------------------------------------------------------------------------------

    def nest(self) -> None:
        code, key_length = self.code, self.template.shape[3]
        masks = [] if self.transposed_mask is None else [self.transposed_mask]
        with code.memory(self.queries, self.scores, self.weighted, *masks, *self.rows.values()):
            self._transpose_queries()
            if isinstance(key_length, int):
                self._begin()
                for start, count in over(code, runs(key_length, self.at_once), "block"):
                    self._keys(start, count)
            else:
                self._open_keys(as_index(key_length))
            self._transpose_results()

    def _begin(self) -> None:
        """No keys yet."""
        self._set(self.rows["running_max"], -float("inf"))
        self._set(self.rows["running_sum"], 0)
        if not self.is_whole:
            with self.code.loop(self.weighted.shape[0], "e") as e:
                self._set(self.weighted, 0, e)

    def _open_keys(self, key_length: LoopExpr) -> None:
        """Blocks of keys that only a run counts, those that these queries look at."""
        code, problem = self.code, self.template.problem
        seen = None
        if Seen.applies(problem):
            seen = Seen(code, problem, self.template.lanes, self.p, self.h, self.width, self._query)
        first, end = (const(0, "int64"), key_length) if seen is None else (seen.begin, seen.end)
        with nullcontext() if seen is None else seen.turns(self.rows["running_max"]):
            self._begin()
            with code.loop((end - first + (self.at_once - 1)) // self.at_once, "block") as number:
                start = number * self.at_once + first
                self._keys(start, minimum(end - start, self.at_once))

    def _keys(self, start: LoopExpr, count: Any) -> None:
        """A block of keys: their scores, exponentials of these, and what they add to the results."""
        if self.transposed_mask is not None:
            self._transpose_mask(self.transposed_mask, start, count)
        self._product(start, count)
        self._exponentials(count)
        self._weigh(start, count)

    @contextmanager
    def _vector(self) -> Iterator[LoopExpr]:
        """Every query, a vector at a time."""
        with self.code.unrolled(range(self.blocks), "block") as b, self.code.lanes(self.lanes) as lane:
            yield b * self.lanes + lane

    def _set(self, buffer: Buffer, value: float, *at: LoopExpr) -> None:
        with self._vector() as v:
            self.code.store(buffer, (*at, v), const(value, self.dtype))

    def _query(self, number: LoopExpr) -> LoopExpr:
        """The query that is the ``number``-th here; beyond the last one another, of which nothing is stored."""
        length, at = self.template.shape[1], self.first * self.lanes + number
        whole = isinstance(length, int) and length % self.lanes == 0
        return at if whole else minimum(at, as_index(length) - 1)

    # --- the two products -------------------------------------------------------------------------------------

    def _product(self, start: LoopExpr, count: Any) -> None:
        """Scores of ``count`` keys."""
        most = self.template.tile(self.at_once, self.blocks, halved=not isinstance(count, int)).rows
        for first, rows in over(self.code, runs(count, most) if isinstance(count, int) else halves(count, most)):
            is_rest = not isinstance(count, int) and rows < most  # which is not worth the code of several steps
            self._scores_of(start, first, rows, float("inf") if is_rest else rows * self.blocks)

    def _scores_of(self, start: LoopExpr, first: LoopExpr, rows: int, sums: float) -> None:
        key, size = self.template.problem.inputs[1], self.template.shape[4]
        mask = (*self.template.problem.inputs, None)[3]

        def store(t: LoopExpr, b: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
            v = b * self.lanes + lane
            if self.transposed_mask is None:
                found = self.op.masked(value, mask, (self.p, self.h, self._query(v), start + first + t))
            else:
                found = self._as_masked(value, self.transposed_mask[first + t, v])
            return Store(self.scores, (first + t, v), found)

        kernel = TileKernel(
            rows,
            self.blocks,
            self.lanes,
            self.dtype,
            lambda t, _, r: key[self.p, start + first + t, self.h, r],
            lambda b, lane, r: self.queries[r, b * self.lanes + lane],
            store,
        )
        with kernel.sums(self.code) as step:
            for r in steps(self.code, size, sums):
                step(r)

    def _weigh(self, start: LoopExpr, count: Any) -> None:
        """What was added up before is rescaled, and these keys are added."""
        width = self.template.shape[5]
        for first, rows in over(self.code, runs(width, self.template.tile(max(1, width), self.blocks).rows)):
            self._weighted_of(start, count, first, rows)

    def _weighted_of(self, start: LoopExpr, count: Any, first: LoopExpr, rows: int) -> None:
        value, rescale = self.template.problem.inputs[2], self.rows["rescale"]

        def store(t: LoopExpr, b: LoopExpr, lane: LoopExpr, found: LoopExpr) -> Stmt:
            at = first + t, b * self.lanes + lane
            before = intrin("fma", self.weighted[at], rescale[at[1]], found)
            return Store(self.weighted, at, found if self.is_whole else before)

        kernel = TileKernel(
            rows,
            self.blocks,
            self.lanes,
            self.dtype,
            lambda t, _, r: value[self.p, start + r, self.h, first + t],
            lambda b, lane, r: self.scores[r, b * self.lanes + lane],
            store,
        )
        with kernel.sums(self.code) as step:
            for r in steps(self.code, count, rows * self.blocks):
                step(r)

    # --- softmax ----------------------------------------------------------------------------------------------

    def _exponentials(self, count: Any) -> None:
        """Scores become exponentials.  A maximum of -inf takes nothing off, so that masked keys count nothing
        whatever block they are in; then the sum is 0, and 0 / 0 no number.  Where what is no number counts nothing,
        it does so after the sum has it."""
        code, scores, zeros = self.code, self.scores, self.op.empty_rows == "zero"
        running_max, running_sum, subtracted, rescale, before = self.rows.values()
        if not self.is_whole:
            with self._vector() as v:
                code.store(rescale, (v,), running_max[v])
        with code.loop(count, "j") as j, self._vector() as v:
            code.store(running_max, (v,), maximum(running_max[v], scores[j, v]))
        with self._vector() as v:
            code.store(subtracted, (v,), select(running_max[v].equal(-float("inf")), 0, running_max[v]))
        if not self.is_whole:
            with self._vector() as v:
                correction = intrin("exp", rescale[v] - subtracted[v])
                code.store(rescale, (v,), _or_nothing(correction) if zeros else correction)
            with self._vector() as v:
                code.store(before, (v,), running_sum[v] * rescale[v])
                code.store(running_sum, (v,), const(0, self.dtype))
        with code.loop(count, "j") as j:
            with self._vector() as v:
                code.store(scores, (j, v), intrin("exp", scores[j, v] - subtracted[v]))
            with self._vector() as v:
                code.store(running_sum, (v,), running_sum[v] + scores[j, v])
            if zeros:
                with self._vector() as v:
                    code.store(scores, (j, v), _or_nothing(scores[j, v]))
        if not self.is_whole:
            with self._vector() as v:
                code.store(running_sum, (v,), running_sum[v] + before[v])

    # --- from rows to lanes and back --------------------------------------------------------------------------

    def _squares(self, extent: int) -> Iterator[tuple[LoopExpr, LoopExpr, int]]:
        """The vector of queries, the start and the length of pieces of ``extent`` no longer than a vector."""
        whole, rest = Run(0, extent // self.lanes, self.lanes), extent % self.lanes
        last = [Run(extent - rest, 1, rest)] * bool(rest)
        with self.code.loop(self.blocks) as b:
            for start, count in over(self.code, [run for run in (whole, *last) if run.count]):
                yield b, start, count

    def _as_masked(self, score: LoopExpr, mask: LoopExpr) -> LoopExpr:
        """A score by its transposed mask; of bool, 0 where it stays."""
        is_bool = self.template.problem.inputs[3].dtype == "bool"
        return select(mask.equal(0), score, self.op.fill) if is_bool else score + mask

    def _transpose_mask(self, transposed_mask: Buffer, start: LoopExpr, count: Any) -> None:
        """The mask of ``count`` keys; what is beyond them is not looked at."""
        code, whole = self.code, count // self.lanes
        with code.loop(self.blocks) as b:
            if not isinstance(count, int) or whole:
                with code.loop(whole, "r") as r:
                    self._mask_square(transposed_mask, start, b, r * self.lanes, True)
            if not isinstance(count, int) or count % self.lanes:
                with code.when(None if isinstance(count, int) else whole * self.lanes < count):
                    self._mask_square(transposed_mask, start, b, as_index(whole * self.lanes), False)

    def _mask_square(self, transposed_mask: Buffer, start: LoopExpr, b: LoopExpr, first: LoopExpr, whole: bool) -> None:
        mask, key_length = self.template.problem.inputs[3], as_index(self.template.shape[3])

        def load(i: LoopExpr, lane: LoopExpr) -> LoopExpr:
            position = start + first + lane
            index = (self.p, self.h, self._query(b * self.lanes + i), position)
            found = mask[broadcast_index(mask, index)]
            value = select(found, const(0, self.dtype), 1) if mask.dtype == "bool" else found.astype(self.dtype)
            return value if whole else or_zero(position < key_length, value)

        with transposed(self.code, self.lanes, self.dtype, self.lanes, self.lanes, load) as (j, lane, value):
            self.code.store(transposed_mask, (first + j, b * self.lanes + lane), value)

    def _transpose_queries(self) -> None:
        """Queries times the scale, as (d, query)."""
        for b, start, count in self._squares(self.template.shape[4]):
            load = partial(self._scaled, b, start, count)
            with transposed(self.code, self.lanes, self.dtype, self.lanes, count, load) as (r, lane, value):
                self.code.store(self.queries, (start + r, b * self.lanes + lane), value)

    def _scaled(self, b: LoopExpr, start: LoopExpr, count: int, i: LoopExpr, lane: LoopExpr) -> LoopExpr:
        """An element of a query; zero behind the ``count`` that it has from ``start`` on."""
        at = (self.p, self._query(b * self.lanes + i), self.h, start + lane)
        found = self.template.problem.inputs[0][at].astype(self.dtype) * self.op.scale
        return found if count == self.lanes else or_zero(lane < count, found)

    def _transpose_results(self) -> None:
        """The weighted sums over the sum, as the result has it."""
        length, out, code = self.template.shape[1], self.template.problem.output, self.code
        whole = isinstance(length, int) and length % self.lanes == 0
        for b, start, count in self._squares(self.template.shape[5]):
            load = partial(self._averaged, b, start)
            with transposed(code, self.lanes, self.dtype, count, self.lanes, load) as (i, lane, value):
                at = self.first * self.lanes + b * self.lanes + i
                with code.when(None if whole else at < as_index(length)):
                    code.store(out, (self.p, at, self.h, start + lane), value.astype(out.dtype))

    def _averaged(self, b: LoopExpr, start: LoopExpr, e: LoopExpr, lane: LoopExpr) -> LoopExpr:
        v = b * self.lanes + lane
        return self.op.averaged(self.weighted[start + e, v], self.rows["running_sum"][v], self.template.shape[3])


def _or_nothing(value: LoopExpr) -> LoopExpr:
    """Zero in place of what is no number."""
    return select(intrin("isnan", value), 0, value)
