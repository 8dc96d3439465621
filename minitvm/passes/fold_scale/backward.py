"""BackwardFoldScaleAxis: ``conv(x, w) * s`` becomes ``conv(x, w * s)`` (what is left of a batch norm after a layer)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from minitvm.ir.decision import Declined, decide, name_of
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.ops.broadcast import Multiply
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import as_function, post_order, rebuild, rewrite, use_counts
from minitvm.passes.fold_scale.fold_scale_axis import (
    OTHER_AXIS,
    Dims,
    aligned,
    beside,
    bias_axis,
    channel_dims,
    constant_scale,
    is_additive,
    is_homogeneous,
    is_positive,
    layer_layouts,
    layer_refusal,
    scale_filters,
    times,
    varying,
)
from minitvm.passes.manager import FunctionPass, PassContext


def fold_scale_backward(function: Function) -> Function:
    """``function`` with every constant scale after a layer folded into the layer, where nobody else sees what lies
    between; itself where there is none."""
    uses = use_counts(function)

    def visit(old: Expr, new: Expr) -> Expr:
        if isinstance(new, Call) and isinstance(new.op, Multiply):
            new = _folded(new, uses)
        if new is not old:
            uses[new] = uses[old]  # what replaces a node has its users
        return new

    return as_function(rewrite(function, visit))


def _folded(call: Call, uses: Counter[Expr]) -> Expr:
    found = constant_scale(call)
    if found is None or not call.type.is_static:
        return call
    position, scale = found
    answer = _Descent(uses, scale, call.tensor_type).scaled(call.args[1 - position])
    decide(
        "BackwardFoldScaleAxis", call, answer if isinstance(answer, Declined) else "folded into the weights before it"
    )
    return call if isinstance(answer, Declined) else answer


@dataclass
class _Descent:
    """A scale on its way down: every call that it passes has one user and the multiplication's type."""

    uses: Counter[Expr]
    scale: np.ndarray
    type: TensorType
    done: dict[Expr, Expr] = field(default_factory=dict)

    @property
    def dims(self) -> Dims:
        return varying(self.scale.shape)

    def scaled(self, data: Expr) -> Expr | Declined:
        """``data * scale`` without a multiplication, or the reason why there is none."""
        for node in post_order(data, operands=self._takers):
            refusal = self._refusal(node)
            if refusal is not None:
                return refusal
            assert isinstance(node, Call)
            self.done[node] = self._over_scaled(node)
        self.uses.update(self.done.values())
        return self.done[data]

    def _takers(self, node: Expr) -> tuple[Expr, ...]:
        """The operands that the scale is handed to."""
        if self._refusal(node) is not None or layer_layouts(node) is not None:
            return ()
        return self._below(node)

    def _below(self, node: Expr) -> tuple[Expr, ...]:
        assert isinstance(node, Call)
        if not is_additive(node) or bias_axis(node) is not None:
            return node.args[:1]
        return tuple(arg for arg in node.args if self._may_take(arg))

    def _may_take(self, operand: Expr) -> bool:
        passes = is_homogeneous(operand) or is_additive(operand) or layer_layouts(operand) is not None
        return passes and operand.checked_type == self.type

    def _refusal(self, node: Expr) -> Declined | None:
        name = name_of(node)
        if not isinstance(node, Call) or node.checked_type != self.type:
            return Declined(f"before it lies {name}, which is no convolution or dense layer")
        if self.uses[node] > 1:
            return Declined(f"{name} has other users")
        layouts = layer_layouts(node)
        if layouts is not None:
            return layer_refusal(node, self.dims, channel_dims(layouts[2]))
        if is_homogeneous(node):
            sign = f"the scale is not positive everywhere, and {name} lies before it"
            return None if is_positive(self.scale) else Declined(sign)
        if is_additive(node):
            return self._sum_refusal(node)
        return Declined(f"before it lies {name}, which does not let a scale through")

    def _sum_refusal(self, node: Call) -> Declined | None:
        axis = bias_axis(node)
        if axis is not None:
            return None if set(self.dims) <= {axis} else OTHER_AXIS
        below = self._below(node)
        if not below:
            return Declined("before it lies a sum without a convolution or dense layer")
        if all(self._is_vector(arg.tensor_type) for arg in node.args if arg not in below):
            return None
        return Declined("the other operand of a sum is neither a layer's result nor a vector along the scale")

    def _is_vector(self, operand: TensorType) -> bool:
        """Whether scaling it costs next to nothing: it varies where the scale does, or along one axis."""
        if not operand.is_static or operand.rank > self.type.rank:
            return False
        found = varying(aligned(operand.static_shape, self.type.rank))
        return set(found) <= set(self.dims) if self.dims else len(found) <= 1

    def _over_scaled(self, node: Call) -> Expr:
        if layer_layouts(node) is not None:
            return scale_filters(node, self.scale)
        if not is_additive(node):
            return rebuild(node, (self.done[node.args[0]], *node.args[1:]))
        factor = beside(node, self.scale)
        return rebuild(node, [self.done.get(arg) or times(arg, factor) for arg in node.args])


class BackwardFoldScaleAxis(FunctionPass, opt_level=3):
    """Constant scales after convolutions and dense layers go into their weights."""

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return fold_scale_backward(function)
