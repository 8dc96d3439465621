"""Matrix products: dense (plain and packed weights), matmul, batch_matmul.

The right-hand side is read in panels ``[column block][k][lanes]``: a packed weight is one already, anything else is
copied into one first, unless it is too small a product to pay for the copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from minitvm.codegen.nests import unflatten
from minitvm.codegen.problem import TEMPLATES, Config, Declined, Problem
from minitvm.codegen.templates.tile import (
    Step,
    Tile,
    accumulate,
    choose_tile,
    divisor_at_most,
    over_pieces,
    split_evenly,
)
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
        """The loops; a tile's blocks are a multiple of ``granule`` or divide it (a packed panel's vectors)."""
        tile = choose_tile(self.rows, self.blocks, machine)
        if tile.blocks % granule and granule % tile.blocks:
            tile = Tile(tile.columns, math.gcd(tile.blocks, granule))
        return seq(*(self._segment(machine, tile, *segment) for segment in self._segments(tile)))

    def _segments(self, tile: Tile) -> list[tuple[int, int, int, int]]:
        """(first block, groups, blocks of a group, lanes of the last block): one nest each."""
        found, begin = [], 0
        remainder = self.columns % self.lanes
        pieces = split_evenly(self.blocks, tile.blocks)
        for position, (count, size) in enumerate(pieces):
            ragged = remainder and position == len(pieces) - 1
            whole = count - 1 if ragged else count
            if whole:
                found.append((begin, whole, size, self.lanes))
            if ragged:
                found.append((begin + whole * size, 1, size, remainder))
            begin += count * size
        return found

    def _segment(self, machine: MachineModel, tile: Tile, begin: int, groups: int, size: int, last: int) -> Stmt:
        wanted = 4 * machine.threads
        most = max(1, self.rows // tile.columns)
        chunks = divisor_at_most(most, max(1, wanted // (self.batch * groups))) if most > 1 else 1
        per_chunk = -(-self.rows // chunks)

        def work(flat: LoopExpr) -> Stmt:
            p, group, chunk = unflatten(flat, (self.batch, groups, chunks))
            block = group * size + begin
            if self.rows % chunks == 0:
                return self._rows(p, block, chunk * per_chunk, per_chunk, tile, size, last)
            return self._rows(p, block, Const(0), self.rows, tile, size, last)

        count = self.batch * groups * (chunks if self.rows % chunks == 0 else 1)
        return loop(count, work, LoopKind.PARALLEL, name="work")

    def _rows(
        self, p: LoopExpr, block: LoopExpr, first: LoopExpr, count: int, tile: Tile, size: int, last: int
    ) -> Stmt:
        return over_pieces(
            count, tile.columns, lambda start, rows: self._tile(p, block, first + start, rows, size, last)
        )

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


def _floats(problem: Problem) -> Declined | None:
    dtypes = {b.dtype for b in (*problem.inputs, *problem.outputs)}
    if len(dtypes) > 1 or not problem.output.dtype.startswith("float"):
        return Declined(f"registers hold floats of one dtype; here {', '.join(sorted(dtypes))}")
    return None


@TEMPLATES.register("llvm", "nn.contrib_dense_pack")
def dense_pack(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """x: (m, k), weight: (n / c, k, c) -> (m, n)."""
    (x, weight), out = problem.inputs, problem.output
    lanes = machine.lanes(out.dtype)
    width = weight.shape[2]
    if (refusal := _floats(problem)) is not None:
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
        out.dtype,
        lambda _, i, r: x[i, r],
        panel,
        lambda _, i, j, value: Store(out, (i, j), value),
    )
    return Kernel(problem.op.name, (x, weight, out), gemm.nest(machine, per))


@TEMPLATES.register("llvm", "nn.dense", "nn.matmul", "nn.batch_matmul")
def matmul(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """Any layout of two operands of rank 2 or 3, the right-hand side packed into panels first."""
    if (refusal := _floats(problem)) is not None:
        return refusal
    (a, b), out = problem.inputs, problem.output
    attributes = problem.op.attributes()
    transpose_a = bool(attributes.get("transpose_a", False))
    transpose_b = bool(attributes.get("transpose_b", problem.op.name == "nn.dense"))
    rows, columns = out.shape[-2:]
    depth = a.shape[-2] if transpose_a else a.shape[-1]
    lanes = machine.lanes(out.dtype)
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
    packed = Buffer("packed", (1 if shared else batch, blocks, depth, lanes), out.dtype)
    pack = _pack(packed, columns, lambda p, r, j: element(b, p, r, j, transpose_b))
    gemm = Gemm(
        batch,
        rows,
        columns,
        depth,
        lanes,
        out.dtype,
        lambda p, i, r: element(a, p, i, r, transpose_a),
        lambda p, block, r, lane: packed[Const(0) if shared else p, block, r, lane],
        lambda p, i, j, value: Store(out, (p, i, j) if len(out.shape) == 3 else (i, j), value),
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
            value = element(p, r, column)
            if columns % lanes:
                value = select(column < columns, value, const(0, packed.dtype))
            return Store(packed, (p, j, r, lane), value)

        return loop(depth, lambda r: loop(lanes, lambda lane: one(r, lane), LoopKind.VECTORIZED, name="lane"), name="k")

    return loop(batch * blocks, block, LoopKind.PARALLEL, name="panel")
