"""Matrix products a few rows of the right-hand side at a time, where these lie so far apart that caches lose them."""

from __future__ import annotations

from dataclasses import replace

from minitvm.codegen.spread import unflatten
from minitvm.codegen.templates.gemm import ITEMS_PER_THREAD, Gemm
from minitvm.codegen.templates.tile import Run, runs
from minitvm.ir.loop import Alloc, Buffer, Const, LoopExpr, LoopKind, Stmt, Store, const, loop, nest, seq
from minitvm.target import MachineModel

_ROWS = 16  # that are read at a time
_COLUMNS = 256  # that they are read over: so many neighbours the processor fetches ahead


def in_pieces(gemm: Gemm, machine: MachineModel) -> Stmt:
    """The loops.  A work item is some groups of columns with all of their rows."""
    width = gemm.tile(machine).blocks
    most = max(1, min(_COLUMNS // gemm.lanes, gemm.blocks // (ITEMS_PER_THREAD * machine.threads)) // width)

    def work(groups: Run, some: Run, last: int) -> Stmt:
        def one(flat: LoopExpr) -> Stmt:
            p, item = unflatten(flat, (gemm.batch, some.count))
            return _summed(gemm, p, groups.start(some.start(item)), Run(0, some.size, groups.size), last, machine)

        return loop(gemm.batch * some.count, one, LoopKind.PARALLEL, name="work")

    return seq(*(work(g, some, last) for g, last in gemm.column_runs(width) for some in runs(g.count, most)))


def _summed(gemm: Gemm, p: LoopExpr, first: LoopExpr, groups: Run, last: int, machine: MachineModel) -> Stmt:
    """``groups`` of columns from block ``first`` on; sums stay in memory until the last piece of the depth."""
    sums = Buffer("sums", (gemm.rows, groups.count * groups.size * gemm.lanes), gemm.dtype, "shared")
    rows = runs(gemm.rows, gemm.tile(machine).columns)

    def kept(i: LoopExpr, column: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        return i, column - first * gemm.lanes

    def piece(begin: LoopExpr, depth: int, final: bool = False) -> Stmt:
        part = replace(
            gemm,
            depth=depth,
            left=lambda p, i, r: gemm.left(p, i, r + begin),
            panel=lambda p, block, r, lane: gemm.panel(p, block, r + begin, lane),
            store=gemm.store if final else lambda p, i, j, value: Store(sums, kept(i, j), value),
            start=lambda p, i, j: sums[kept(i, j)],
        )

        def group(g: LoopExpr) -> Stmt:
            return part.all_rows(p, first + groups.start(g), rows, groups.size, last)

        return loop(groups.count, group, name="group")

    def zero(i: LoopExpr, v: LoopExpr) -> Stmt:
        at = v * gemm.lanes
        return loop(gemm.lanes, lambda x: Store(sums, (i, at + x), const(0, sums.dtype)), LoopKind.VECTORIZED)

    *more, final = runs(gemm.depth, _ROWS)
    before = [
        loop(run.count, lambda k, run=run: piece(run.start(k), run.size), name="piece")  # type: ignore[misc]
        for run in (*more, *final.without_last)
    ]
    end = piece(Const(final.last.begin), final.size, True)
    return Alloc(sums, seq(nest((gemm.rows, groups.count * groups.size), zero), *before, end))
