"""The default pipeline: what ``build`` runs before lowering, in Relay's order."""

from __future__ import annotations

from minitvm.passes.canonicalize import CanonicalizeCast, CanonicalizeOps, Legalize
from minitvm.passes.combine import CombineParallelConv2D, CombineParallelDense
from minitvm.passes.dead_code_elimination import DeadCodeElimination
from minitvm.passes.eliminate_common_subexpr import EliminateCommonSubexpr
from minitvm.passes.fold_constant import FoldConstant
from minitvm.passes.fold_scale_axis import BackwardFoldScaleAxis, ForwardFoldScaleAxis
from minitvm.passes.fuse.fuse_ops import FuseOps
from minitvm.passes.infer_type import InferType, bind_module, bind_params
from minitvm.passes.layout.alter_op_layout import AlterOpLayout
from minitvm.passes.manager import Sequential, register_config
from minitvm.passes.simplify.simplify_expr import SimplifyExpr, SimplifyExprPostAlterOp
from minitvm.passes.simplify.simplify_inference import SimplifyInference
from minitvm.passes.sink_reshape import SinkReshape
from minitvm.target import MachineModel

__all__ = ["SCHEDULES", "FoldScaleAxis", "bind_module", "bind_params", "default_pipeline"]

SCHEDULES = register_config(
    "minitvm.schedules", dict, {}, "schedules of one's own by kernel: functions from plain loops to those that run"
)


def FoldScaleAxis() -> Sequential:
    """Per-channel scales go into the weights before or after them."""
    steps = (BackwardFoldScaleAxis(), ForwardFoldScaleAxis(), FoldConstant())
    return Sequential(steps, opt_level=3, name="FoldScaleAxis")


BEFORE_LAYOUTS = (
    InferType(),  #                                   level 0
    SimplifyInference(),  #                           level 0
    EliminateCommonSubexpr(),  #                      level 3
    SinkReshape(),  #                                 level 2
    CombineParallelConv2D(min_num_branches=3),  #     level 3
    CombineParallelDense(3, to_batch=False),  #       level 3
    FoldConstant(fold_qnn=True),  #                   level 2
    FoldScaleAxis(),  #                               level 3
    SimplifyExpr(),  #                                level 0: exact rules; 2: all
    CanonicalizeCast(),  #                            level 3
    CanonicalizeOps(),  #                             level 3
    Legalize(),  #                                    level 3
)
AFTER_LAYOUTS = (
    FoldConstant(fold_qnn=True),  #                   level 2
    SimplifyExprPostAlterOp(),  #                     level 0: exact rules; 2: all
    FoldConstant(fold_qnn=True),  #                   level 2
    DeadCodeElimination(),  #                         level 1
    FuseOps(),  #                                     level 0: one operator a kernel; 1: groups
)


def default_pipeline(machine: MachineModel, kind: str = "llvm") -> Sequential:
    """The passes for a machine, gated by the current ``PassContext``; ``kind`` is the target's."""
    layouts = AlterOpLayout(machine, kind, weigh=True)  # level 3
    return Sequential((*BEFORE_LAYOUTS, layouts, *AFTER_LAYOUTS), name="default_pipeline")
