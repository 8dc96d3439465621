"""Passes over the graph: pure functions from module to module, named as in Relay.  Importing this package registers all
that are there.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from minitvm.ir.decision import Declined, Exactness
from minitvm.passes.alter_op_layout import AlterOpLayout
from minitvm.passes.bound import Bound, Of
from minitvm.passes.canonicalize import CanonicalizeCast, CanonicalizeOps, InferType, Legalize, SimplifyInference
from minitvm.passes.fold_scale_axis import BackwardFoldScaleAxis, ForwardFoldScaleAxis
from minitvm.passes.fuse_ops import FuseOps
from minitvm.passes.instrument import PassInfo, PassInstrument, PassLog, PassRecord, PassTiming, PrintIR
from minitvm.passes.manager import (
    PASSES,
    FunctionPass,
    ModulePass,
    Pass,
    PassContext,
    function_pass,
    module_pass,
    register_config,
)
from minitvm.passes.pipeline import FoldScaleAxis, Sequential, default_pipeline, get_pass
from minitvm.passes.redundancy import (
    DeadCodeElimination,
    EliminateCommonSubexpr,
    FoldConstant,
    bind_module,
    bind_params,
    fold_constant_expr,
)
from minitvm.passes.rule import Replacement, Rule, RulePass, apply_rules, rule, rule_pass
from minitvm.passes.simplify_expr import SimplifyExpr, SimplifyExprPostAlterOp, SinkReshape

if TYPE_CHECKING:
    from minitvm.passes.attention import FuseAttention
    from minitvm.passes.by_parts import MultiplyByParts
    from minitvm.passes.call_libraries import CallLibraries
    from minitvm.passes.combine import CombineParallelBatchMatmul, CombineParallelConv2D, CombineParallelDense
    from minitvm.passes.convert_layout import ConvertLayout
    from minitvm.passes.mixed_precision import ToMixedPrecision
    from minitvm.passes.parallel_blocks import CombineParallelBlocks
    from minitvm.passes.quantized import FakeQuantizationToInteger
    from minitvm.passes.share_memory import ShareMemory
    from minitvm.passes.share_rows import ShareRows
    from minitvm.passes.sink_cast import SinkCast
    from minitvm.passes.tile_windows import TileWindows
    from minitvm.passes.verify import Verify

__all__ = ["FunctionPass", "ModulePass", "Pass", "PassContext", "Sequential"]
__all__ += ["function_pass", "get_pass", "module_pass", "register_config"]
__all__ += [
    "Bound",
    "Declined",
    "Exactness",
    "Of",
    "Replacement",
    "Rule",
    "RulePass",
    "apply_rules",
    "rule",
    "rule_pass",
]
__all__ += ["PassInfo", "PassInstrument", "PassLog", "PassRecord", "PassTiming", "PrintIR", "Verify"]
__all__ += ["AlterOpLayout", "CanonicalizeCast", "CanonicalizeOps", "ConvertLayout", "Legalize", "TileWindows"]
__all__ += ["BackwardFoldScaleAxis", "FoldConstant", "FoldScaleAxis", "ForwardFoldScaleAxis", "fold_constant_expr"]
__all__ += ["CombineParallelBatchMatmul", "CombineParallelConv2D", "CombineParallelDense", "EliminateCommonSubexpr"]
__all__ += [
    "CallLibraries",
    "CombineParallelBlocks",
    "DeadCodeElimination",
    "FakeQuantizationToInteger",
    "FuseAttention",
    "FuseOps",
    "InferType",
    "MultiplyByParts",
    "bind_module",
    "bind_params",
    "default_pipeline",
]
__all__ += ["ShareMemory", "ShareRows", "SimplifyExpr", "SimplifyExprPostAlterOp", "SimplifyInference", "SinkCast"]
__all__ += ["SinkReshape", "ToMixedPrecision"]

for _file in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_file.name)


def __getattr__(name: str) -> Any:
    if name == "Verify":
        return importlib.import_module(f"{__name__}.verify").Verify
    if name in PASSES and name in __all__:
        return PASSES[name]
    raise AttributeError(f"minitvm.passes has no attribute {name!r}")
