"""Passes over the graph: pure functions from module to module, named as in Relay; and the default pipeline of them,
what ``build`` runs before lowering, in Relay's order."""

from functools import partial

from minitvm.ir.decision import Declined, Exactness
from minitvm.passes.alter_op_layout import AlterOpLayout
from minitvm.passes.attention import FuseAttention, Slower
from minitvm.passes.call_libraries import CallLibraries, LibraryOf
from minitvm.passes.canonicalize import CanonicalizeCast, CanonicalizeOps, InferType, Legalize, SimplifyInference
from minitvm.passes.combine import CombineParallelBatchMatmul, CombineParallelConv2D, CombineParallelDense
from minitvm.passes.convert_layout import ConvertLayout
from minitvm.passes.fold_scale_axis import BackwardFoldScaleAxis, ForwardFoldScaleAxis
from minitvm.passes.fuse_ops import FuseOps
from minitvm.passes.instrument import PassInfo, PassInstrument, PassLog, PassRecord, PassTiming, PrintIR, Verify
from minitvm.passes.manager import (
    FunctionPass,
    ModulePass,
    Pass,
    PassContext,
    function_pass,
    module_pass,
    register_config,
)
from minitvm.passes.mixed_precision import ToMixedPrecision, weighed
from minitvm.passes.quantized import FakeQuantizationToInteger
from minitvm.passes.redundancy import (
    DeadCodeElimination,
    EliminateCommonSubexpr,
    FoldConstant,
    bind_module,
    bind_params,
    fold_constant_expr,
)
from minitvm.passes.rule import Replacement, Rule, RulePass, apply_rules, rule, rule_pass
from minitvm.passes.sequential import Sequential, get_pass
from minitvm.passes.simplify_expr import SimplifyExpr, SimplifyExprPostAlterOp, SinkReshape
from minitvm.passes.sink_cast import SinkCast
from minitvm.passes.winograd import Predict, faster, remembering
from minitvm.target import MachineModel

__all__ = ["FunctionPass", "ModulePass", "Pass", "PassContext", "Sequential"]
__all__ += ["function_pass", "get_pass", "module_pass", "register_config"]
__all__ += ["Declined", "Exactness", "Replacement", "Rule", "RulePass", "apply_rules", "rule", "rule_pass"]
__all__ += ["PassInfo", "PassInstrument", "PassLog", "PassRecord", "PassTiming", "PrintIR", "Verify"]
__all__ += ["AlterOpLayout", "CanonicalizeCast", "CanonicalizeOps", "ConvertLayout", "Legalize"]
__all__ += ["BackwardFoldScaleAxis", "FoldConstant", "FoldScaleAxis", "ForwardFoldScaleAxis", "fold_constant_expr"]
__all__ += ["CombineParallelBatchMatmul", "CombineParallelConv2D", "CombineParallelDense", "EliminateCommonSubexpr"]
__all__ += [
    "CallLibraries",
    "DeadCodeElimination",
    "FakeQuantizationToInteger",
    "FuseAttention",
    "FuseOps",
    "InferType",
    "bind_module",
    "bind_params",
    "default_pipeline",
]
__all__ += ["SimplifyExpr", "SimplifyExprPostAlterOp", "SimplifyInference", "SinkCast", "SinkReshape"]
__all__ += ["ToMixedPrecision"]

_TF32 = (
    "products of float32 on a GPU's tensor cores, factors rounded to TF32 where that is predicted to save two fifths"
)
register_config("cuda.allow_tf32", bool, False, _TF32)
register_config("cuda.split_tf32", bool, False, "products of float32 on a GPU's tensor cores, as three of TF32")
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
    SinkCast(),  #                                    level 2
    CombineParallelConv2D(min_num_branches=3),  #     level 3
    CombineParallelDense(3, to_batch=False),  #       level 3
    FoldConstant(fold_qnn=True),  #                   level 2
    FoldScaleAxis(),  #                               level 3
    SimplifyExpr(),  #                                level 0: exact rules; 2: all
)
MIXED = ToMixedPrecision("")
CANONICAL = (CanonicalizeCast(), CanonicalizeOps(), Legalize())  # level 3
AFTER_LAYOUTS = (
    FoldConstant(fold_qnn=True, has_layouts=True),  # level 2
    SimplifyExprPostAlterOp(),  #                     level 0: exact rules; 2: all
    FoldConstant(fold_qnn=True, has_layouts=True),  # level 2
    DeadCodeElimination(),  #                         level 1
    FuseOps(),  #                                     level 0: one operator a kernel; 1: groups
)


def default_pipeline(
    machine: MachineModel,
    kind: str = "llvm",
    library_of: LibraryOf | None = None,
    slower: Slower | None = None,
    predict: Predict | None = None,
) -> Sequential:
    """The passes for a machine, gated by the current ``PassContext``; ``kind`` is the target's.

    ``library_of`` says which library is called for what, where any is; ``slower`` why a larger operator would not be
    faster than those that it is made of; ``predict`` how long the target takes for a call: without it, convolutions
    are direct ones, and all products worth fewer bits where an option asks for these.
    """
    libraries = () if library_of is None else (CallLibraries(library_of),)  # level 0
    integers = FakeQuantizationToInteger(machine)  # level 3
    ways = None if predict is None else partial(faster, remembering(predict))
    layouts = AlterOpLayout(machine, kind, weigh=True, faster=ways)  # level 3
    (types, inference, common, *others), attention = BEFORE_LAYOUTS, FuseAttention(slower)  # level 3
    first = (types, integers, inference, common, attention)
    weighs = predict if PassContext.current().option(MIXED.option) else None
    mixed = ToMixedPrecision("", weighed(weighs, machine)) if weighs else MIXED  # level 0, by an option
    before = (*first, *others, mixed, *CANONICAL, *libraries)
    return Sequential((*before, layouts, *AFTER_LAYOUTS), name="default_pipeline")
