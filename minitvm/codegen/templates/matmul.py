"""Matrix products: dense (plain and packed weights), matmul, batch_matmul.

The right-hand side is read in panels ``[column block][k][lanes]``: a packed weight is one already, anything else is
copied into one first, unless it is too small a product to pay for the copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minitvm.codegen.nests import unflatten
from minitvm.codegen.problem import TEMPLATES, Config, Declined, Problem
from minitvm.codegen.templates.tile import Run, Step, Tile, accumulate, choose_tile, runs
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    Const,
    Kernel,
    LoopExpr,
    LoopKind,
    Stmt,
    Store,
    const,
    loop,
    select,
    seq,
)
from minitvm.target import MachineModel

_FEW_ROWS = 4  # below this, packing the right-hand side costs more than it saves
_K_UNROLL = 4
_ITEMS_PER_THREAD = 4  # so that threads end at about the same time


@dataclass(frozen=True)
class Gemm:
    """``out[p, i, j] = sum over r of left(p, i, r) * panel(p, block, r, lane)`` with ``j = block * lanes + lane``."""

    batch: int
    rows: int
    columns: int
    depth: int
    lanes: int
    dtype: str
    left: Callable[[LoopExpr, LoopExpr, LoopExpr], LoopExpr]
    panel: Callable[[LoopExpr, LoopExpr, LoopExpr, LoopExpr], LoopExpr]
    store: Callable[[LoopExpr, LoopExpr, LoopExpr, LoopExpr], Stmt]

    @property
    def blocks(self) -> int:
        return -(-self.columns // self.lanes)

    def nest(self, machine: MachineModel, granule: int = 1) -> Stmt:
        """The loops; a tile's blocks are a multiple of ``granule`` or divide it (a packed panel's vectors).

        A work item is a group of columns with all of its rows, or where these are few a single tile.
        """
        tile = choose_tile(self.rows, self.blocks, machine)
        if tile.blocks % granule and granule % tile.blocks:
            tile = Tile(tile.columns, math.gcd(tile.blocks, granule))
        columns, rows = self._column_runs(tile.blocks), runs(self.rows, tile.columns)
        if self.batch * sum(c.count for c, _ in columns) >= _ITEMS_PER_THREAD * machine.threads:
            return seq(*(self._items(c, last, rows) for c, last in columns))
        return seq(*(self._single_tiles(c, last, r) for c, last in columns for r in rows))

    def _column_runs(self, most: int) -> list[tuple[Run, int]]:
        """The blocks in groups of at most ``most``, with the width of a group's last block."""
        rest = self.columns % self.lanes
        *found, final = runs(self.blocks, most)
        whole = [(run, self.lanes) for run in (*found, *final.without_last)] if rest else []
        return [*whole, (final.last, rest)] if rest else [(run, self.lanes) for run in (*found, final)]

    def _items(self, groups: Run, last: int, rows: Sequence[Run]) -> Stmt:
        """All rows of a group of columns by one thread, which so keeps its part of the panels in its cache."""

        def work(flat: LoopExpr) -> Stmt:
            p, group = unflatten(flat, (self.batch, groups.count))
            block = groups.start(group)
            tiles = [
                loop(r.count, lambda t, r=r: self._tile(p, block, r.start(t), r.size, groups.size, last), name="tile")  # type: ignore[misc]
                for r in rows
            ]
            return seq(*tiles)

        return loop(self.batch * groups.count, work, LoopKind.PARALLEL, name="work")

    def _single_tiles(self, groups: Run, last: int, rows: Run) -> Stmt:
        order = (self.batch, groups.count, rows.count)

        def work(flat: LoopExpr) -> Stmt:
            p, group, t = unflatten(flat, order)
            return self._tile(p, groups.start(group), rows.start(t), rows.size, groups.size, last)

        return loop(math.prod(order), work, LoopKind.PARALLEL, name="work")

    def _tile(self, p: LoopExpr, block: LoopExpr, row: LoopExpr, rows: int, size: int, last: int) -> Stmt:
        unroll = _K_UNROLL if self.depth % _K_UNROLL == 0 else 1

        def reduction(step: Step) -> Stmt:
            def at(r: LoopExpr) -> Stmt:
                return step(lambda t, _: self.left(p, row + t, r), lambda b, lane: self.panel(p, block + b, r, lane))

            return loop(
                self.depth // unroll,
                lambda q: loop(unroll, lambda u: at(q * unroll + u), LoopKind.UNROLLED, name="u"),
                name="k",
            )

        def finish(t: LoopExpr, b: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
            return self.store(p, row + t, (block + b) * self.lanes + lane, value)

        return accumulate(rows, size, self.lanes, self.dtype, reduction, finish, last)


@TEMPLATES.register("llvm", "nn.contrib_dense_pack")
def dense_pack(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """x: (m, k), weight: (n / c, k, c) -> (m, n)."""
    (x, weight), out = problem.inputs, problem.output
    lanes = machine.lanes(problem.accumulator)
    width = weight.shape[2]
    if (refusal := problem.not_floats) is not None:
        return refusal
    if width % lanes:
        return Declined(f"the weight's blocks of {width} are not whole vectors of {lanes}")
    per = width // lanes

    def panel(_: LoopExpr, block: LoopExpr, r: LoopExpr, lane: LoopExpr) -> LoopExpr:
        return weight[block // per, r, (block % per) * lanes + lane]

    gemm = Gemm(
        1,
        x.shape[0],
        out.shape[1],
        x.shape[1],
        lanes,
        problem.accumulator,
        lambda _, i, r: x[i, r],
        panel,
        lambda _, i, j, value: Store(out, (i, j), value.astype(out.dtype)),
    )
    return Kernel(problem.op.name, (x, weight, out), gemm.nest(machine, per))


@TEMPLATES.register("llvm", "nn.dense", "nn.matmul", "nn.batch_matmul")
def matmul(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """Any layout of two operands of rank 2 or 3, the right-hand side packed into panels first."""
    if (refusal := problem.not_floats) is not None:
        return refusal
    (a, b), out = problem.inputs, problem.output
    attributes = problem.op.attributes()
    transpose_a = bool(attributes.get("transpose_a", False))
    transpose_b = bool(attributes.get("transpose_b", problem.op.name == "nn.dense"))
    rows, columns = out.shape[-2:]
    depth = a.shape[-2] if transpose_a else a.shape[-1]
    lanes = machine.lanes(problem.accumulator)
    if rows < _FEW_ROWS or columns < lanes:
        return Declined(f"{rows} rows and {columns} columns are too few to pack the right-hand side for")

    def element(buffer: Buffer, p: LoopExpr, i: LoopExpr, j: LoopExpr, swapped: bool) -> LoopExpr:
        index = (j, i) if swapped else (i, j)
        if len(buffer.shape) == 2:
            return buffer[index]
        return buffer[(p if buffer.shape[0] > 1 else Const(0)), index[0], index[1]]

    batch = out.shape[0] if len(out.shape) == 3 else 1
    shared = len(b.shape) == 2 or b.shape[0] == 1
    blocks = -(-columns // lanes)
    packed = Buffer("packed", (1 if shared else batch, blocks, depth, lanes), problem.accumulator)
    pack = _pack(packed, columns, lambda p, r, j: element(b, p, r, j, transpose_b))
    gemm = Gemm(
        batch,
        rows,
        columns,
        depth,
        lanes,
        problem.accumulator,
        lambda p, i, r: element(a, p, i, r, transpose_a),
        lambda p, block, r, lane: packed[Const(0) if shared else p, block, r, lane],
        lambda p, i, j, value: Store(out, (p, i, j) if len(out.shape) == 3 else (i, j), value.astype(out.dtype)),
    )
    body = Alloc(packed, seq(pack, Barrier(), gemm.nest(machine)))
    return Kernel(problem.op.name, (a, b, out), body)


def _pack(packed: Buffer, columns: int, element: Callable[[LoopExpr, LoopExpr, LoopExpr], LoopExpr]) -> Stmt:
    """Fill the panels; lanes beyond the last column are zero."""
    batch, blocks, depth, lanes = packed.shape

    def block(flat: LoopExpr) -> Stmt:
        p, j = unflatten(flat, (batch, blocks))

        def one(r: LoopExpr, lane: LoopExpr) -> Stmt:
            column = j * lanes + lane
            value = element(p, r, column).astype(packed.dtype)
            if columns % lanes:
                value = select(column < columns, value, const(0, packed.dtype))
            return Store(packed, (p, j, r, lane), value)

        return loop(depth, lambda r: loop(lanes, lambda lane: one(r, lane), LoopKind.VECTORIZED, name="lane"), name="k")

    return loop(batch * blocks, block, LoopKind.PARALLEL, name="panel")
