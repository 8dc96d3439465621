"""Tiles of rows that only a run counts fetch the next group's panels: each line once, by steps of the reduction."""

from __future__ import annotations

from minitvm.codegen.problem import Problem
from minitvm.codegen.templates.matmul import DensePack
from minitvm.ir.builder import call_op, var
from minitvm.ir.expr import Call
from minitvm.ir.loop import For, If, Kernel, Prefetch, walk_exprs, walk_stmts
from minitvm.target import MachineModel


def test_lines_of_open_rows_are_counted_by_the_reduction_alone() -> None:
    """No step divides: the panel is the tile's, the line the step's, and later tiles fetch nothing."""
    x, w = var("x", shape=("n", 64)), var("w", shape=(6, 64, 16))
    call = call_op("nn.contrib_dense_pack", x, w, weight_layout="NC16n")
    assert isinstance(call, Call)
    kernel = DensePack(Problem.of(call), MachineModel(64, 32, l1_bytes=4096, l2_bytes=8192)).kernel()
    assert isinstance(kernel, Kernel)
    loops = [s for s in walk_stmts(kernel.body) if isinstance(s, For) and s.var.name == "k"]
    fetching = [s for s in loops if any(isinstance(inner, Prefetch) for inner in walk_stmts(s.body))]
    assert fetching and len(fetching) < len(loops)
    for step in fetching:
        guards = [s for s in walk_stmts(step.body) if isinstance(s, If)]
        fetched = [s for s in walk_stmts(step.body) if isinstance(s, Prefetch)]
        assert len(fetched) == len(guards) == 1
        divided = [e for e in walk_exprs(fetched[0].element) if getattr(e, "op", "") in ("floordiv", "floormod")]
        assert all(step.var not in set(walk_exprs(e)) for e in divided)
