"""The register tiles of packed products as a list of steps: loops equal to the template's up to names, however ragged.

What is compared: kinds and extents of loops, statements, affine forms of indices; dimensions of registers in any order.
"""

from __future__ import annotations

import numpy as np
import pytest

from minitvm.codegen import schedule
from minitvm.codegen.lower import plain
from minitvm.codegen.problem import Problem, Tile
from minitvm.codegen.simplify import simplify
from minitvm.codegen.templates.matmul import DensePack
from minitvm.codegen.templates.product import Gemm
from minitvm.codegen.templates.tile import Run, written_out
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.expr import Call
from minitvm.ir.loop import Alloc, Buffer, For, If, Kernel, Load, LoopExpr, LoopVar, Seq, Stmt, Store, walk_stmts
from minitvm.ir.loop.affine import affine
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.loop.interp import run_kernel
from minitvm.target import MachineModel

LANES = 8


def product_of(rows: int, columns: int, depth: int, tile: Tile) -> tuple[Call, Gemm]:
    """Weights in panels, the last one filled up."""
    x, w = var("x", shape=(rows, depth)), var("w", shape=(-(-columns // LANES), depth, LANES))
    call = call_op("nn.contrib_dense_pack", x, w, weight_layout=f"NC{LANES}n", units=columns)
    assert isinstance(call, Call)
    return call, Gemm(DensePack(Problem.of(call), MachineModel(32, 16)).product, tile, LANES)


def in_tiles(kernel: Kernel, gemm: Gemm) -> schedule.Steps:
    """``Gemm.by_tiles``: columns in blocks of lanes, groups of blocks and pieces of rows, a nest for each size."""
    s = schedule.Steps(kernel)
    (block, lane), _ = s.do(schedule.split, "j", LANES)
    if gemm.product.columns % LANES:
        s.do(schedule.predicate, lane)
    if len(gemm.groups) > 1:
        s.do(schedule.partition, block, tuple(group.begin for group in gemm.groups[1:]))
        s.do(schedule.fission, "i")
    for band in [f.var for f in schedule.loops(s.kernel) if f.var.name.startswith("i")]:
        if len(gemm.rows) > 1:
            s.do(schedule.partition, band, tuple(rows.begin for rows in gemm.rows[1:]))
    nests = [f.var for f in schedule.loops(s.kernel) if f.var.name.startswith("i")]
    for row, (group, rows) in zip(nests, [(g, r) for g in gemm.groups for r in gemm.rows], strict=True):
        register_tile(s, row, group, rows)
    return s


def below(s: schedule.Steps, var: LoopVar) -> list[For]:
    return [part for part in walk_stmts(schedule.find_loop(s.kernel, var).body) if isinstance(part, For)]


def register_tile(s: schedule.Steps, row: LoopVar, group: Run, rows: Run) -> None:
    block, lane, depth = (f.var for f in below(s, row))
    (across, wide), _ = s.do(schedule.split, block, group.size, "exact")
    (down, tall), _ = s.do(schedule.split, row, rows.size, "exact")
    s.do(schedule.reorder, across, down, tall, wide, lane)
    s.do(schedule.vectorize, lane)
    s.do(schedule.jam, *((tall, wide) if rows.size >= group.size else (wide, tall)))
    if (turn := written_out(rows.size * group.size)) > 1:
        s.do(schedule.unroll, depth, turn)
    (work,), _ = s.do(schedule.parallel, across, down)
    if group.width:
        last_block(s, work, group, rows)


def last_block(s: schedule.Steps, work: LoopVar, group: Run, rows: Run) -> None:
    """Of the last block some lanes are stored; what there are fewer of, rows or whole blocks, is the inner loop."""
    *_, lane = below(s, work)
    if group.size > 1:
        nest = [f for f in below(s, work)[-3 if rows.size > 1 else -2 :] if f.var is not lane.var]
        row_first = rows.size >= group.size
        block = nest[-1 if row_first else 0]
        (whole, *_), _ = s.do(schedule.partition, block.var, (group.size - 1,))
        if len(nest) > 1 and row_first:
            s.do(schedule.fission, nest[0].var)
        elif len(nest) > 1 and rows.size >= group.size - 1:
            s.do(schedule.reorder, below(s, whole)[0].var, whole)
        *_, lane = below(s, work)
    s.do(schedule.partition, lane.var)


def shape_of(kernel: Kernel) -> str:
    """A text that two kernels share if they differ in names, in how sums are spelled, and in where registers lie."""
    names: dict[Buffer, str] = {b: f"p{n}" for n, b in enumerate(kernel.params)}
    depths: dict[LoopVar, str] = {}

    def index(at: LoopExpr) -> str:
        form = affine(at)
        return " + ".join([*sorted(f"{k}*{value(t)}" for t, k in form.terms.items()), str(form.constant)])

    def place(buffer: Buffer, at: tuple[LoopExpr, ...]) -> str:
        parts = [index(i) for i, n in zip(at, buffer.shape, strict=True) if n > 1]
        return f"{names[buffer]}[{', '.join(sorted(parts) if buffer.scope == 'local' else parts)}]"

    def value(e: LoopExpr) -> str:
        if isinstance(e, Load):
            return place(e.buffer, e.index)
        if isinstance(e, LoopVar):
            return depths[e]
        return f"{type(e).__name__}{getattr(e, 'op', getattr(e, 'name', getattr(e, 'value', '')))}" + (
            f"({', '.join(map(value, e.operands))})" if e.operands else ""
        )

    def lines(stmt: Stmt, depth: int) -> list[str]:
        match stmt:
            case For(var_, extent, body, kind):
                depths[var_] = f"v{depth}"
                return [f"{' ' * depth}{kind.value} {value(extent)}", *lines(body, depth + 1)]
            case Seq(stmts):
                return [line for part in stmts for line in lines(part, depth)]
            case Alloc(buffer, body):
                names[buffer] = f"b{len(names)}"
                return [f"{' ' * depth}alloc {sorted(n for n in buffer.shape if n > 1)}", *lines(body, depth)]
            case Store(buffer, at, stored):
                return [f"{' ' * depth}{place(buffer, at)} = {value(stored)}"]
            case If(condition, then, None):
                return [f"{' ' * depth}if {value(condition)}", *lines(then, depth + 1)]
        raise AssertionError(stmt)

    return "\n".join(lines(kernel.body, 0))


SIZES = [
    *((12, 32, 9, 6, 2), (13, 40, 9, 6, 2), (13, 37, 9, 3, 2), (5, 5, 6, 2, 1)),
    *((1, 24, 5, 1, 3), (7, 43, 4, 2, 4), (4, 61, 5, 2, 2), (7, 64, 4, 7, 3)),
]  # the plain loops of a depth below 4 are written out already


@pytest.mark.parametrize(("rows", "columns", "depth", "tall", "wide"), SIZES)
def test_steps_make_the_templates_loops(rows: int, columns: int, depth: int, tall: int, wide: int) -> None:
    call, gemm = product_of(rows, columns, depth, Tile(tall, wide))
    x, w = call.args
    start = plain(function(call, [x, w]), "k")  # type: ignore[list-item]
    steps = in_tiles(start, gemm)
    problem = DensePack(Problem.of(call), MachineModel(32, 16)).problem
    template = Gemm(DensePack(problem, MachineModel(32, 16)).product, gemm.tile, LANES)
    code = LoopBuilder()
    template.by_tiles(code)
    written = Kernel("k", (*problem.inputs, *problem.outputs), code.stmt)
    assert shape_of(simplify(steps.kernel)) == shape_of(simplify(written))
    rng = np.random.default_rng(rows)
    arrays = [rng.normal(size=b.shape).astype("float32") for b in start.inputs]
    want, have = run_kernel(start, *arrays)[0], run_kernel(steps.kernel, *arrays, check_races=True)[0]
    np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)
