"""BackwardFoldScaleAxis: ``conv(x, w) * s`` becomes ``conv(x, w * s)`` (what is left of a batch norm after a layer)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.ops.broadcast import Multiply
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import post_order, rebuild, rebuild_over, use_counts
from minitvm.passes.fold_scale.fold_scale_axis import (
    Dims,
    bias_axis,
    channel_vector,
    constant_scale,
    is_homogeneous,
    is_positive,
    is_sum,
    layer_refusal,
    op_name,
    output_dims,
    scale_filters,
    times,
    varying_dims,
)
from minitvm.passes.manager import FunctionPass, PassContext


def fold_scale_backward(function: Function) -> Function:
    """``function`` with every constant scale after a layer folded into the layer, where nobody else sees what lies
    between; itself where there is none."""
    return _Backward(use_counts(function)).run(function)


@dataclass
class _Backward:
    uses: Counter[Expr]
    done: dict[Expr, Expr] = field(default_factory=dict)

    def run(self, function: Function) -> Function:
        for node in post_order(function.body):
            new = rebuild_over(node, self.done)
            if isinstance(new, Call) and isinstance(new.op, Multiply):
                new = self._fold(new)
            if new is not node:
                self.uses[new] = self.uses[node]  # what replaces a node has its users
            self.done[node] = new
        body = self.done[function.body]
        return function if body is function.body else Function(function.params, body, function.attrs, function.span)

    def _fold(self, call: Call) -> Expr:
        for position in (1, 0):
            scale, data = constant_scale(call.args, position), call.args[1 - position]
            if scale is not None and data.checked_type == call.checked_type and call.type.is_static:
                plan = _Plan(self.uses, scale, call.tensor_type)
                refusal = plan.explore(data)
                decide("BackwardFoldScaleAxis", call, refusal or "folded into the weights before it")
                return call if refusal else plan.build(data)
        return call


@dataclass
class _Plan:
    """Where a scale goes: the calls between a multiplication and the layers that take it, users before operands.
    Every call has one user, so they form a tree, and all have the multiplication's type."""

    uses: Counter[Expr]
    scale: np.ndarray
    type: TensorType
    order: list[Call] = field(default_factory=list)

    def explore(self, data: Expr) -> Declined | None:
        """Why the scale cannot go all the way down."""
        stack, dims = [data], varying_dims(self.scale, self.type)
        while stack:
            node = stack.pop()
            refusal = self._refusal(node, dims)
            if refusal:
                return refusal
            assert isinstance(node, Call)
            self.order.append(node)
            stack.extend(self._below(node))
        return None

    def _refusal(self, node: Expr, dims: Dims) -> Declined | None:
        name = op_name(node) or "a value"
        if not isinstance(node, Call) or node.checked_type != self.type:
            return Declined(f"before it lies {name}, which is no convolution or dense layer")
        if self.uses[node] > 1:
            return Declined(f"{name} has other users")
        below = output_dims(node)
        if below is not None:
            return layer_refusal(node, dims, below)
        if is_homogeneous(node):
            sign = f"the scale is not positive everywhere, and {name} lies before it"
            return None if is_positive(self.scale) else Declined(sign)
        axis = bias_axis(node)
        if axis is not None:
            return None if set(dims) <= {axis} else Declined("the bias lies along another axis than the scale")
        if is_sum(node):
            return self._sum_refusal(node, dims)
        return Declined(f"before it lies {name}, which does not let a scale through")

    def _sum_refusal(self, node: Call, dims: Dims) -> Declined | None:
        below = self._below(node)
        if not below:
            return Declined("before it lies a sum without a convolution or dense layer")
        beside = [arg.tensor_type for arg in node.args if arg not in below]
        if all(_is_vector(t, self.type, dims) for t in beside):
            return None
        return Declined("the other operand of a sum is neither a layer's result nor a vector along the scale")

    def _below(self, node: Call) -> Sequence[Expr]:
        """The operands that the scale is handed to."""
        if output_dims(node) is not None:
            return ()
        if is_sum(node):
            return [arg for arg in node.args if self._may_take(arg)]
        return node.args[:1]

    def _may_take(self, operand: Expr) -> bool:
        if not isinstance(operand, Call) or operand.checked_type != self.type:
            return False
        passes = is_homogeneous(operand) or is_sum(operand) or bias_axis(operand) is not None
        return passes or output_dims(operand) is not None

    def build(self, data: Expr) -> Expr:
        """The calls with the scale folded in; :meth:`explore` found no reason against it."""
        new: dict[Expr, Expr] = {}
        for node in reversed(self.order):
            new[node] = self._scaled(node, new)
            self.uses[new[node]] = 1
        return new[data]

    def _scaled(self, node: Call, new: dict[Expr, Expr]) -> Expr:
        dims = output_dims(node)
        if dims is not None:
            return scale_filters(node, channel_vector(self.scale, self.type, dims))
        axis = bias_axis(node)
        if axis is not None:
            return rebuild(node, (new[node.args[0]], times(node.args[1], self._vector((axis,)))))
        if is_sum(node):
            below = self._below(node)
            return rebuild(node, [new[a] if a in below else times(a, self._stripped()) for a in node.args])
        return rebuild(node, (new[node.args[0]], *node.args[1:]))

    def _vector(self, dims: Dims) -> np.ndarray:
        return channel_vector(self.scale, self.type, dims)

    def _stripped(self) -> np.ndarray:
        """The scale without leading extents of 1."""
        shape = self.scale.shape
        first = next((d for d, extent in enumerate(shape) if extent != 1), len(shape))
        return self.scale.reshape(shape[first:])


def _is_vector(operand: TensorType, type_: TensorType, dims: Dims) -> bool:
    """Whether scaling ``operand`` costs next to nothing: it varies where the scale does, or along one axis."""
    if not operand.is_static or operand.rank > type_.rank:
        return False
    aligned = (1,) * (type_.rank - operand.rank) + operand.static_shape
    varying = {d for d, extent in enumerate(aligned) if extent != 1}
    return varying <= set(dims) if dims else len(varying) <= 1


class BackwardFoldScaleAxis(FunctionPass, opt_level=3):
    """Constant scales after convolutions and dense layers go into their weights."""

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return fold_scale_backward(function)
