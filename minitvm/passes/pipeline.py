"""The default pipeline: what ``build`` runs before lowering, in Relay's order."""

from __future__ import annotations

from minitvm.passes.alter_op_layout import AlterOpLayout
from minitvm.passes.fold_constant import FoldConstant
from minitvm.passes.fuse_ops import FuseOps
from minitvm.passes.infer_type import InferType, bind_module, bind_params
from minitvm.passes.manager import Sequential
from minitvm.passes.simplify_inference import SimplifyInference
from minitvm.target import MachineModel

__all__ = ["bind_module", "bind_params", "default_pipeline"]


def default_pipeline(machine: MachineModel, kind: str = "llvm") -> Sequential:
    """The passes for a machine, gated by the current ``PassContext``; ``kind`` is the target's."""
    return Sequential(
        (
            InferType(),
            SimplifyInference(),
            FoldConstant(fold_qnn=True),
            AlterOpLayout(machine, kind),
            FoldConstant(fold_qnn=True),
            FuseOps(),
        ),
        name="default_pipeline",
    )
