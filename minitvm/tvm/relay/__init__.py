"""The names that people know from Relay: ``from minitvm import relay``.  Operators are functions: ``relay.add``."""

import importlib

from minitvm.ir.builder import call_op, function
from minitvm.ir.expr import Expr, Module
from minitvm.ir.op import OPS, Op
from minitvm.ir.types import Type
from minitvm.passes.manager import PassContext
from minitvm.runtime.param_dict import load_param_dict, save_param_dict
from minitvm.tvm import lacking, transform
from minitvm.tvm.parser import fromtext, parse, parse_expr
from minitvm.tvm.paths import HOMES
from minitvm.tvm.relay import analysis, backend, build_module, equality, expr, expr_functor, op, operators
from minitvm.tvm.relay.analysis import free_vars
from minitvm.tvm.relay.build_module import bind_params_by_name, build, create_executor, optimize
from minitvm.tvm.relay.expr import Any, Function, If, Let, ScopeBuilder, TupleWrapper, bind, scalar_type
from minitvm.tvm.relay.expr_functor import ExprFunctor, ExprMutator, ExprVisitor
from minitvm.tvm.relay.forms import (
    Call,
    Constant,
    FuncType,
    GlobalVar,
    SourceName,
    Span,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
    const,
    var,
)

IRModule = Module
RelayExpr = Expr
build_config = PassContext
ir_pass = analysis


def __getattr__(name: str) -> object:
    """Operators: ``relay.add``, ``relay.nn.conv2d``; and rooms that are imported on first use."""
    if name in ("dataflow_pattern", "frontend") or f"relay.{name}" in HOMES:  # the importer loads onnx
        return importlib.import_module(f"minitvm.tvm.relay.{name}")
    if name.startswith("_"):
        return lacking.attribute("relay", name)
    return operators.function(name)


def __dir__() -> list[str]:
    """What is offered: nodes and functions, operators, and rooms that are imported on first use."""
    rooms = [path.removeprefix("relay.") for path in HOMES if path.startswith("relay.")]
    inside = {"HOMES", "OPS", "operators", "importlib", "lacking"}
    here = {name for name in globals() if not name.startswith("_")} - inside
    return sorted({*here, *rooms, *(name.partition(".")[0] for name in OPS), "dataflow_pattern", "frontend"})
