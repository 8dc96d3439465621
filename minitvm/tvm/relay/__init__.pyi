# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
import importlib
from minitvm.ir import builder as builder
from minitvm.ir.builder import const as const
from minitvm.ir.builder import function as function
from minitvm.ir.builder import var as var
from minitvm.ir.expr import Call as Call
from minitvm.ir.expr import Constant as Constant
from minitvm.ir.expr import Expr as Expr
from minitvm.ir.expr import GlobalVar as GlobalVar
from minitvm.ir.expr import Module as Module
from minitvm.ir.expr import Tuple as Tuple
from minitvm.ir.expr import TupleGetItem as TupleGetItem
from minitvm.ir.expr import Var as Var
from minitvm.ir.op import Op as Op
from minitvm.ir.types import FuncType as FuncType
from minitvm.ir.types import TensorType as TensorType
from minitvm.ir.types import TupleType as TupleType
from minitvm.ir.types import Type as Type
from minitvm.passes.manager import PassContext as PassContext
from minitvm.runtime.param_dict import load_param_dict as load_param_dict
from minitvm.runtime.param_dict import save_param_dict as save_param_dict
from minitvm.tvm import transform as transform
from minitvm.tvm.parser import fromtext as fromtext
from minitvm.tvm.parser import parse as parse
from minitvm.tvm.parser import parse_expr as parse_expr
from minitvm.tvm.relay import analysis as analysis
from minitvm.tvm.relay import backend as backend
from minitvm.tvm.relay import build_module as build_module
from minitvm.tvm.relay import expr as expr
from minitvm.tvm.relay import expr_functor as expr_functor
from minitvm.tvm.relay import op as op
from minitvm.tvm.relay.analysis import free_vars as free_vars
from minitvm.tvm.relay.build_module import bind_params_by_name as bind_params_by_name
from minitvm.tvm.relay.build_module import build as build
from minitvm.tvm.relay.build_module import create_executor as create_executor
from minitvm.tvm.relay.build_module import optimize as optimize
from minitvm.tvm.relay.expr import Any as Any
from minitvm.tvm.relay.expr import Function as Function
from minitvm.tvm.relay.expr import If as If
from minitvm.tvm.relay.expr import Let as Let
from minitvm.tvm.relay.expr import ScopeBuilder as ScopeBuilder
from minitvm.tvm.relay.expr import TupleWrapper as TupleWrapper
from minitvm.tvm.relay.expr import bind as bind
from minitvm.tvm.relay.expr import scalar_type as scalar_type
from minitvm.tvm.relay.expr_functor import ExprFunctor as ExprFunctor
from minitvm.tvm.relay.expr_functor import ExprMutator as ExprMutator
from minitvm.tvm.relay.expr_functor import ExprVisitor as ExprVisitor
IRModule = Module
RelayExpr = Expr
build_config = PassContext
ir_pass = analysis
from minitvm.ir.operators import *
from minitvm import testing as testing
from minitvm.ir import types as _ty
ty = _ty
from minitvm.runtime import param_dict as param_dict
from minitvm.tvm import parser as parser
from minitvm.tvm.relay import analysis as _ir_pass
ir_pass = _ir_pass
from minitvm.tvm.relay import dataflow_pattern as dataflow_pattern
from minitvm.tvm.relay import frontend as frontend
