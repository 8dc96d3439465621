"""Passes over the graph: pure functions from module to module, named as in Relay."""

from minitvm.ir.decision import Declined
from minitvm.passes.canonicalize import CanonicalizeCast, CanonicalizeOps, Legalize
from minitvm.passes.combine import CombineParallelBatchMatmul, CombineParallelConv2D, CombineParallelDense
from minitvm.passes.dead_code_elimination import DeadCodeElimination
from minitvm.passes.eliminate_common_subexpr import EliminateCommonSubexpr
from minitvm.passes.fold_constant import FoldConstant, fold_constant_expr
from minitvm.passes.fold_scale_axis import BackwardFoldScaleAxis, ForwardFoldScaleAxis
from minitvm.passes.fuse.fuse_ops import FuseOps
from minitvm.passes.infer_type import InferType, bind_module, bind_params
from minitvm.passes.instrument import PassInfo, PassInstrument, PassLog, PassRecord, PassTiming, PrintIR
from minitvm.passes.layout.alter_op_layout import AlterOpLayout
from minitvm.passes.layout.convert_layout import ConvertLayout
from minitvm.passes.manager import (
    FunctionPass,
    ModulePass,
    Pass,
    PassContext,
    Sequential,
    function_pass,
    get_pass,
    module_pass,
    register_config,
)
from minitvm.passes.pipeline import FoldScaleAxis, default_pipeline
from minitvm.passes.rule import Exactness, Replacement, Rule, RulePass, apply_rules, rule, rule_pass
from minitvm.passes.simplify.simplify_expr import SimplifyExpr, SimplifyExprPostAlterOp
from minitvm.passes.simplify.simplify_inference import SimplifyInference
from minitvm.passes.sink_reshape import SinkReshape
from minitvm.passes.verify import Verify

__all__ = ["FunctionPass", "ModulePass", "Pass", "PassContext", "Sequential"]
__all__ += ["function_pass", "get_pass", "module_pass", "register_config"]
__all__ += ["Declined", "Exactness", "Replacement", "Rule", "RulePass", "apply_rules", "rule", "rule_pass"]
__all__ += ["PassInfo", "PassInstrument", "PassLog", "PassRecord", "PassTiming", "PrintIR", "Verify"]
__all__ += ["AlterOpLayout", "CanonicalizeCast", "CanonicalizeOps", "ConvertLayout", "Legalize"]
__all__ += ["BackwardFoldScaleAxis", "FoldConstant", "FoldScaleAxis", "ForwardFoldScaleAxis", "fold_constant_expr"]
__all__ += ["CombineParallelBatchMatmul", "CombineParallelConv2D", "CombineParallelDense", "EliminateCommonSubexpr"]
__all__ += ["DeadCodeElimination", "FuseOps", "InferType", "bind_module", "bind_params", "default_pipeline"]
__all__ += ["SimplifyExpr", "SimplifyExprPostAlterOp", "SimplifyInference", "SinkReshape"]
