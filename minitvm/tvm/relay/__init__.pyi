# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
import importlib
from minitvm.ir.builder import call_op as call_op
from minitvm.ir.builder import function as function
from minitvm.ir.expr import Expr as Expr
from minitvm.ir.expr import Module as Module
from minitvm.ir.op import Op as Op
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
from minitvm.tvm.relay import equality as equality
from minitvm.tvm.relay import expr as expr
from minitvm.tvm.relay import expr_functor as expr_functor
from minitvm.tvm.relay import op as op
from minitvm.tvm.relay import operators as operators
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
from minitvm.tvm.relay.forms import Call as Call
from minitvm.tvm.relay.forms import Constant as Constant
from minitvm.tvm.relay.forms import FuncType as FuncType
from minitvm.tvm.relay.forms import GlobalVar as GlobalVar
from minitvm.tvm.relay.forms import SourceName as SourceName
from minitvm.tvm.relay.forms import Span as Span
from minitvm.tvm.relay.forms import TensorType as TensorType
from minitvm.tvm.relay.forms import Tuple as Tuple
from minitvm.tvm.relay.forms import TupleGetItem as TupleGetItem
from minitvm.tvm.relay.forms import TupleType as TupleType
from minitvm.tvm.relay.forms import Var as Var
from minitvm.tvm.relay.forms import const as const
from minitvm.tvm.relay.forms import var as var
IRModule = Module
RelayExpr = Expr
build_config = PassContext
ir_pass = analysis
from minitvm.ir.operators import *
from minitvm import quantize as quantize
from minitvm import testing as testing
from minitvm.runtime import param_dict as param_dict
from minitvm.tvm import parser as parser
from minitvm.tvm.relay import analysis as _ir_pass
ir_pass = _ir_pass
from minitvm.tvm.relay import atrous as atrous
from minitvm.tvm.relay import composed as composed
from minitvm.tvm.relay import composed_bits as composed_bits
from minitvm.tvm.relay import composed_more as composed_more
from minitvm.tvm.relay import composed_nn as composed_nn
from minitvm.tvm.relay import composed_qnn as composed_qnn
from minitvm.tvm.relay import composed_random as composed_random
from minitvm.tvm.relay import composed_sparse as composed_sparse
from minitvm.tvm.relay import dataflow_pattern as dataflow_pattern
from minitvm.tvm.relay import fake_quantization as fake_quantization
from minitvm.tvm.relay import fake_quantization_pass as fake_quantization_pass
from minitvm.tvm.relay import fake_quantization_rules as fake_quantization_rules
from minitvm.tvm.relay import forms as _ty
ty = _ty
from minitvm.tvm.relay import forms as forms
from minitvm.tvm.relay import frontend as frontend
from minitvm.tvm.relay import mixed_precision as mixed_precision
from minitvm.tvm.relay import pattern_facts as pattern_facts
from minitvm.tvm.relay import pattern_groups as pattern_groups
from minitvm.tvm.relay import patterns as patterns
from minitvm.tvm.relay import reach as reach
from minitvm.tvm.relay import registered as registered
from minitvm.tvm.relay import scale_axis as scale_axis
from minitvm.tvm.relay import scoped as scoped
from minitvm.tvm.relay import spelled as spelled
from minitvm.tvm.relay import text as text
from minitvm.tvm.relay import typed_first as typed_first
