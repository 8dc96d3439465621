"""ForwardFoldScaleAxis: ``conv(x * s, w)`` becomes ``conv(x, w * s)``, if every user of ``x * s`` can take the scale.

First the users are asked, from the results up, what scale each value could carry; then, from the inputs down, scales
that all users can take are taken off and carried to the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from minitvm.ir.decision import Declined, decide, name_of
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.ops.broadcast import Multiply
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import as_function, children, post_order, rebuild, rebuild_over
from minitvm.passes.fold_scale.fold_scale_axis import (
    NOT_CHANNELS,
    OTHER_AXIS,
    Dims,
    along,
    beside,
    bias_axis,
    channel_dims,
    constant_scale,
    is_additive,
    is_homogeneous,
    is_invertible,
    is_positive,
    layer_layouts,
    layer_refusal,
    over,
    scale_inputs,
)
from minitvm.passes.manager import FunctionPass, PassContext


@dataclass(frozen=True)
class Demand:
    """A scale along ``dims`` can be taken by all users of a value, if it is positive or invertible where needed."""

    dims: Dims
    positive: bool = False
    invertible: bool = False


Answer: TypeAlias = "Demand | Declined"
"""A demand, or why there is none."""


def fold_scale_forward(function: Function) -> Function:
    """``function`` with every constant scale that all users can take folded into the layers after it; itself where
    there is none."""
    order = post_order(function)
    return _Forward(_demands(order)).run(order)


def _demands(order: Sequence[Expr]) -> dict[Expr, Answer]:
    asked: dict[Expr, list[Answer]] = {order[-1]: []}
    found: dict[Expr, Answer] = {}
    for node in reversed(order):
        found[node] = _common(asked.pop(node))
        for position, operand in enumerate(children(node)):
            asked.setdefault(operand, []).append(_ask(node, position, found[node]))
    return found


def _common(answers: list[Answer]) -> Answer:
    """What all users of a value ask for."""
    demands = [a for a in answers if isinstance(a, Demand)]
    refused = next((a for a in answers if isinstance(a, Declined)), None)
    if refused is not None or not demands:
        return refused or Declined("nobody uses it")
    if len({d.dims for d in demands}) > 1:
        return Declined("its users want the scale along different axes")
    return Demand(demands[0].dims, any(d.positive for d in demands), any(d.invertible for d in demands))


def _ask(user: Expr, position: int, above: Answer) -> Answer:
    """What scale ``user`` lets through to (or takes from) its operand at ``position``."""
    name = name_of(user)
    if isinstance(user, Function):
        return Declined("it is a result of the function")
    if not isinstance(user, Call) or not user.type.is_static:
        return Declined("it is used as a tuple's field")
    layouts = layer_layouts(user)
    if layouts is not None:
        dims = channel_dims(layouts[0])
        weight = None if position == 0 else Declined(f"{name} uses it as a weight")
        return layer_refusal(user, dims, dims) or weight or Demand(dims)
    if not (is_homogeneous(user) or is_additive(user) or isinstance(user.op, Multiply)):
        return Declined(f"{name} does not let a scale through")
    if isinstance(above, Declined):
        return above
    if is_homogeneous(user):
        return replace(above, positive=True) if position == 0 else Declined(f"{name} uses it as a slope")
    if position != _carrier(user, above.dims):
        other = Declined(f"the other operand of {name} is not a vector along the scale")
        return other if bias_axis(user) is None else OTHER_AXIS
    return replace(above, invertible=True) if is_additive(user) else above


def _carrier(call: Call, dims: Dims) -> int | None:
    """The operand of an addition or multiplication that carries a scale: the one beside a vector along ``dims``."""
    axis = bias_axis(call)
    if axis is not None:
        return 0 if dims == (axis,) else None
    for position in (0, 1):
        data, other = call.args[position], call.args[1 - position]
        if data.checked_type == call.checked_type and along(call.tensor_type, other.tensor_type, dims):
            return position
    return None


@dataclass
class _Forward:
    demands: dict[Expr, Answer]
    done: dict[Expr, Expr] = field(default_factory=dict)
    carried: dict[Expr, np.ndarray] = field(default_factory=dict)
    """The scale that was taken off a node, and that its users must take."""

    def run(self, order: Sequence[Expr]) -> Function:
        for node in order:
            self.done[node] = self._rewritten(node)
        return as_function(self.done[order[-1]])

    def _rewritten(self, node: Expr) -> Expr:
        carrier = next((c for c in children(node) if c in self.carried), None)
        scale = np.float32(1) if carrier is None else self.carried[carrier]
        found = constant_scale(node) if isinstance(node, Call) and isinstance(node.op, Multiply) else None
        if found is not None and isinstance(node, Call) and self._takes_off(node, found[1], scale):
            return self.done[node.args[1 - found[0]]]
        if carrier is None:
            return rebuild_over(node, self.done)
        assert isinstance(node, Call)
        return self._passed_on(node, carrier, np.asarray(scale))

    def _takes_off(self, call: Call, own: np.ndarray, carried: np.ndarray | np.float32) -> bool:
        """Take the constant scale off a multiplication, if its users can take it and what is carried already."""
        refusal = self._refusal(call, own, carried)
        decide("ForwardFoldScaleAxis", call, refusal or "folded into the weights after it")
        if refusal is None:
            self.carried[call] = own * carried
        return refusal is None

    def _refusal(self, call: Call, own: np.ndarray, carried: np.ndarray | np.float32) -> Declined | None:
        demand = self.demands[call]
        if isinstance(demand, Declined):
            return demand
        if not along(call.tensor_type, TensorType(own.shape, own.dtype.name), demand.dims):
            return NOT_CHANNELS
        if demand.positive and not is_positive(own * carried):
            return Declined("the scale is not positive everywhere, and a rectifier lies after it")
        if demand.invertible and not is_invertible(own * carried):
            return Declined("the scale is zero (or nearly) somewhere, and a sum after it would be divided by it")
        return None

    def _passed_on(self, call: Call, carrier: Expr, scale: np.ndarray) -> Expr:
        """``call`` over an operand without its scale: a layer takes the scale, anything else carries it on."""
        operands = [self.done[arg] for arg in call.args]
        if layer_layouts(call) is not None:
            return scale_inputs(Call(call.op, (call.args[0], *operands[1:]), span=call.span), operands[0], scale)
        self.carried[call] = scale
        if not is_additive(call):
            return rebuild(call, operands)
        divisor = beside(call, scale)
        return rebuild(
            call, [o if a is carrier else over(o, divisor) for a, o in zip(call.args, operands, strict=True)]
        )


class ForwardFoldScaleAxis(FunctionPass, opt_level=3):
    """Constant scales before convolutions and dense layers go into their weights."""

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return fold_scale_forward(function)
