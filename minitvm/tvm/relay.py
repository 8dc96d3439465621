"""The names that people know from Relay: ``from minitvm import relay``.  Re-exports only."""

import importlib
from types import SimpleNamespace
from typing import Any

import minitvm.ir.builder as builder
import minitvm.tvm.transform as transform
from minitvm.driver import build, create_executor
from minitvm.ir.builder import const, function, var
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var
from minitvm.ir.parser import parse_expr, parse_module
from minitvm.ir.types import FuncType, TensorType, TupleType
from minitvm.ir.visitor import free_vars, post_order
from minitvm.passes.manager import PassContext
from minitvm.runtime.param_dict import load_param_dict, save_param_dict

IRModule = Module
fromtext = parse = parse_module
build_config = PassContext
analysis = SimpleNamespace(free_vars=free_vars, post_order_visit=post_order)
ir_pass = analysis
build_module = SimpleNamespace(build=build, create_executor=create_executor)


def __getattr__(name: str) -> Any:
    """Operators: ``relay.add``, ``relay.nn.conv2d``; and rooms that are imported on first use."""
    if name in ("frontend", "testing"):  # the importer loads onnx
        return importlib.import_module(f"minitvm.{name}")
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(builder, name)
