"""Relay's passes that no pipeline runs: DefuseOps, FastMath, FoldExplicitPadding, DynamicToStatic,
RemoveUnusedFunctions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minitvm.errors import PassError, did_you_mean
from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Constant, Expr, Function, Module
from minitvm.ir.layout import Layout
from minitvm.ir.op import Op
from minitvm.ir.ops.nn_conv import Convolution
from minitvm.ir.ops.nn_norm import Softmax
from minitvm.ir.ops.nn_pad import Pad
from minitvm.ir.ops.nn_pool import AvgPool, MaxPool
from minitvm.ir.ops.tensor import (
    BroadcastTo,
    BroadcastToLike,
    Full,
    FullLike,
    NdArraySize,
    Ones,
    OnesLike,
    ShapeOf,
    Zeros,
    ZerosLike,
)
from minitvm.ir.ops.transform import Reshape, ReshapeLike
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import as_function, held_functions, post_order, rewrite, simplify_projection, substitute
from minitvm.passes.manager import FunctionPass, ModulePass, PassContext
from minitvm.passes.redundancy import FoldConstant


class DefuseOps(FunctionPass):
    """The calls of fused groups become the operators that they are made of: FuseOps taken back."""

    needs = (Function,)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return as_function(rewrite(function, lambda _, new: _defused(new)))


def _defused(node: Expr) -> Expr:
    if isinstance(node, Call) and isinstance(node.op, Function) and node.op.attrs.get("primitive"):
        return substitute(node.op.body, dict(zip(node.op.params, node.args, strict=True)))
    return simplify_projection(node)


class RemoveUnusedFunctions(ModulePass):
    """Leaves the functions of a module that ``entry_functions`` call, directly or not."""

    def __init__(self, entry_functions: Sequence[str] = ("main",)) -> None:
        self.entries = tuple(entry_functions)

    def transform_module(self, module: Module, context: PassContext) -> Module:
        for name in self.entries:
            if name not in module:
                raise PassError(f"the module has no function {name!r}", hint=did_you_mean(name, module.functions, str))
        used = {module[name] for name in self.entries}
        waiting = list(used)
        while waiting:
            calls = (node for node in post_order(waiting.pop()) if isinstance(node, Call))
            fresh = {f for call in calls for f in held_functions(call).values()} - used
            used |= fresh
            waiting.extend(fresh)
        kept = {name: function for name, function in module.functions.items() if function in used}
        return module if len(kept) == len(module.functions) else Module(kept)


# --- FastMath ---------------------------------------------------------------------------------------------------


class FastMath(FunctionPass, rounds=True):
    """exp, tanh, erf and softmax of float32 by short formulas of few operations.

    exp is right to 4e-7 of its value, between -87 and 88, where it stays beyond; tanh, erf and softmax to 1e-6.
    """

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return as_function(rewrite(function, lambda _, new: _fast(new)))


def _fast(node: Expr) -> Expr:
    if not isinstance(node, Call) or not isinstance(node.op, Op):
        return node
    if node.op.name not in _FORMULAS and not isinstance(node.op, Softmax):
        return node
    if node.dtype != "float32":
        decide("FastMath", node, Declined(f"its formula is for float32, not {node.dtype}"))
        return node
    decide("FastMath", node, "becomes a formula of few operations")
    (x,) = node.args
    return _softmax(node.op, x) if isinstance(node.op, Softmax) else _FORMULAS[node.op.name](x)


_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts; the first has few bits, so that whole multiples of it are exact."""


def exp(x: Expr) -> Expr:
    """``2 ** n * e ** r`` with a whole n: the sum of r's powers to the sixth, and n as the exponent's bits."""
    inside = ir.clip(x, a_min=-87.0, a_max=88.0)
    n = ir.floor(inside * math.log2(math.e) + 0.5)
    r = inside - n * _LN2_HIGH - n * _LN2_LOW
    total: Expr = ir.const(1 / math.factorial(6), "float32")
    for power in range(5, -1, -1):
        total = total * r + 1 / math.factorial(power)
    bits = ir.left_shift(ir.cast(n, dtype="int32") + 127, ir.const(23, "int32"))
    return total * ir.reinterpret(bits, dtype="float32")


def tanh(x: Expr) -> Expr:
    """``1 - 2 / (e ** 2x + 1)``."""
    return 1 - 2 / (exp(x * 2) + 1)


_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def erf(x: Expr) -> Expr:
    """Abramowitz and Stegun, 7.1.26: a polynomial in ``1 / (1 + p |x|)`` times ``e ** -x*x``."""
    size = ir.abs(x)
    t = 1 / (size * 0.3275911 + 1)
    total: Expr = t * _ERF[-1]
    for factor in reversed(_ERF[:-1]):
        total = (total + factor) * t
    return ir.sign(x) * (1 - total * exp(-(size * size)))


def _softmax(op: Softmax, x: Expr) -> Expr:
    raised = exp(x - ir.max(x, axis=(op.axis,), keepdims=True))
    return raised / ir.sum(raised, axis=(op.axis,), keepdims=True)


_FORMULAS = {formula.__name__: formula for formula in (exp, tanh, erf)}
"""By the name of the operator."""


# --- FoldExplicitPadding ----------------------------------------------------------------------------------------


class FoldExplicitPadding(FunctionPass):
    """``nn.pad`` in front of a convolution or a pool becomes its ``padding``, where it pads pixels with what that does.

    Zeros, in front of a convolution or of an average that counts them; the lowest number in front of a maximum.
    """

    needs = (Pad,)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return as_function(rewrite(function, lambda _, new: _with_padding(new)))


def _with_padding(node: Expr) -> Expr:
    if not isinstance(node, Call) or not isinstance(node.op, (Convolution, AvgPool, MaxPool)):
        return node
    pad = node.args[0]
    if not isinstance(pad, Call) or not isinstance(pad.op, Pad):
        return node
    changes = _folded(node.op, pad.op, pad)
    if isinstance(changes, Declined):
        decide("FoldExplicitPadding", node, changes)
        return node
    decide("FoldExplicitPadding", node, "takes the padding in front of it")
    return Call(node.op.with_attributes(**changes), (pad.args[0], *node.args[1:]), span=node.span)


def _folded(op: Any, pad: Pad, call: Call) -> dict[str, Any] | Declined:
    """The attributes that take the padding in, or why none do."""
    layout = Layout(op.data_layout if isinstance(op, Convolution) else op.layout)
    places = [layout.index(axis) for axis in op.spatial]
    if pad.pad_mode != "constant":
        return Declined(f"it pads by {pad.pad_mode}")
    if any(pair != (0, 0) for d, pair in enumerate(pad.pad_width) if d not in places):
        return Declined("it pads other axes than those of pixels")
    wanted = _own_padding(op, call.dtype)
    value = call.args[1] if len(call.args) > 1 else Constant(np.zeros((), call.dtype))
    if not isinstance(value, Constant) or value.value.item() != wanted:
        return Declined(f"it pads with something other than {wanted}")
    before, after = ([pad.pad_width[d][side] for d in places] for side in (0, 1))
    changes: dict[str, Any] = {"padding": tuple(a + b for a, b in zip(op.padding, [*before, *after], strict=True))}
    if not isinstance(op, AvgPool):
        return changes
    if (any(op.padding) and not op.count_include_pad) or op.ceil_mode:
        return Declined("the mean counts some of the padding alone")
    return {**changes, "count_include_pad": True}


def _own_padding(op: Op, dtype: str) -> float:
    """What an operator has outside of its image."""
    if not isinstance(op, MaxPool):
        return 0
    return -math.inf if dtype.startswith("float") else int(np.iinfo(dtype).min)


# --- DynamicToStatic --------------------------------------------------------------------------------------------


class DynamicToStatic(FunctionPass):
    """What is asked of shapes that are known becomes constants and attributes: ``shape_of`` and ``ndarray_size``, and
    ``reshape_like``, ``broadcast_to_like``, ``full_like``, ``zeros_like`` and ``ones_like``; constants are folded."""

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        static = as_function(rewrite(function, lambda _, new: _static(new)))
        return static if static is function else FoldConstant()(Module(static)).main


def _static(node: Expr) -> Expr:
    if not isinstance(node, Call) or not isinstance(node.op, Op) or type(node.op) not in _STATIC:
        return node
    asked = node.args[-1] if isinstance(node.op, (ReshapeLike, BroadcastToLike)) else node.args[0]
    if not isinstance(asked.type, TensorType) or not asked.type.is_static:
        decide("DynamicToStatic", node, Declined(f"the shape of {asked.type} is known only when the model runs"))
        return node
    return _STATIC[type(node.op)](node, asked.type)


_STATIC: dict[type[Op], Callable[[Call, TensorType], Expr]] = {
    ShapeOf: lambda call, type_: ir.const(np.array(type_.static_shape, call.dtype)),
    NdArraySize: lambda call, type_: ir.const(np.array(type_.size, call.dtype)),
    ReshapeLike: lambda call, type_: Call(Reshape.to(type_.shape), (call.args[0],)),
    BroadcastToLike: lambda call, type_: Call(BroadcastTo(type_.shape), (call.args[0],)),
    FullLike: lambda call, type_: Call(Full(type_.shape, call.dtype), (call.args[1],)),
    ZerosLike: lambda call, type_: Call(Zeros(type_.shape, call.dtype), ()),
    OnesLike: lambda call, type_: Call(Ones(type_.shape, call.dtype), ()),
}
