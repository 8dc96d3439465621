"""Passes over the graph: pure functions from module to module, named as in Relay."""

from minitvm.passes.alter_op_layout import AlterOpLayout
from minitvm.passes.convert_layout import ConvertLayout
from minitvm.passes.fold_constant import FoldConstant, fold_constant_expr
from minitvm.passes.fuse_ops import FuseOps
from minitvm.passes.infer_type import InferType, bind_module, bind_params
from minitvm.passes.instrument import PassInfo, PassInstrument, PassLog, PassRecord, PassTiming, PrintIR
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
from minitvm.passes.pipeline import default_pipeline
from minitvm.passes.rule import Declined, Rule, apply_rules, rule, rule_pass
from minitvm.passes.simplify_inference import SimplifyInference

__all__ = [
    "AlterOpLayout",
    "ConvertLayout",
    "Declined",
    "FoldConstant",
    "FunctionPass",
    "FuseOps",
    "InferType",
    "ModulePass",
    "Pass",
    "PassContext",
    "PassInfo",
    "PassInstrument",
    "PassLog",
    "PassRecord",
    "PassTiming",
    "PrintIR",
    "Rule",
    "Sequential",
    "SimplifyInference",
    "apply_rules",
    "bind_module",
    "bind_params",
    "default_pipeline",
    "fold_constant_expr",
    "function_pass",
    "get_pass",
    "module_pass",
    "register_config",
    "rule",
    "rule_pass",
]
