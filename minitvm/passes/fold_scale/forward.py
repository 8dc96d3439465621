"""ForwardFoldScaleAxis: ``conv(x * s, w)`` becomes ``conv(x, w * s)``, if every user of ``x * s`` can take the scale.

First the users are asked, from the results up, what scale each value could carry; then, from the inputs down, scales
that all users can take are taken off and carried to the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Constant, Expr, Function, Module
from minitvm.ir.ops.broadcast import Divide, Multiply
from minitvm.ir.visitor import children, post_order, rebuild, rebuild_over
from minitvm.passes.fold_scale.fold_scale_axis import (
    Dims,
    along,
    as_operand,
    bias_axis,
    channel_vector,
    constant_scale,
    input_dims,
    is_homogeneous,
    is_invertible,
    is_positive,
    is_sum,
    layer_refusal,
    op_name,
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
    order = post_order(function.body)
    return _Forward(_demands(order)).run(function, order)


def _demands(order: Sequence[Expr]) -> dict[Expr, Answer]:
    asked: dict[Expr, list[Answer]] = {order[-1]: [Declined("it is a result of the function")]}
    found: dict[Expr, Answer] = {}
    for node in reversed(order):
        found[node] = _common(asked.pop(node))
        for position, operand in enumerate(children(node)):
            asked.setdefault(operand, []).append(_ask(node, position, found[node]))
    return found


def _common(answers: list[Answer]) -> Answer:
    demands = [a for a in answers if isinstance(a, Demand)]
    if len(demands) < len(answers):
        return next(a for a in answers if isinstance(a, Declined))
    if len({d.dims for d in demands}) > 1:
        return Declined("its users want the scale along different axes")
    positive, invertible = any(d.positive for d in demands), any(d.invertible for d in demands)
    return Demand(demands[0].dims, positive, invertible)


def _ask(user: Expr, position: int, above: Answer) -> Answer:
    """What scale ``user`` lets through to (or takes from) its operand at ``position``."""
    name = op_name(user)
    if not isinstance(user, Call) or not user.type.is_static:
        return Declined("it is used as a tuple's field")
    dims = input_dims(user)
    if dims is not None:
        weight = None if position == 0 else Declined(f"{name} uses it as a weight")
        return layer_refusal(user, dims, dims) or weight or Demand(dims)
    rectifier, axis = is_homogeneous(user), bias_axis(user)
    if not (rectifier or axis is not None or is_sum(user) or isinstance(user.op, Multiply)):
        return Declined(f"{name or 'a call'} does not let a scale through")
    if isinstance(above, Declined):
        return above
    if rectifier:
        return replace(above, positive=True) if position == 0 else Declined(f"{name} uses it as a slope")
    if axis is not None:
        fits = position == 0 and above.dims == (axis,)
        return replace(above, invertible=True) if fits else Declined("the bias lies along another axis than the scale")
    if position != _carrier(user, above.dims):
        return Declined(f"the other operand of {name} is not a vector along the scale")
    return replace(above, invertible=True) if is_sum(user) else above


def _carrier(call: Call, dims: Dims) -> int | None:
    """The operand of an add, subtract or multiply that carries a scale: the one beside a vector along ``dims``."""
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
    """The scale per channel that was taken off a node, and that its users must take."""

    def run(self, function: Function, order: Sequence[Expr]) -> Function:
        for node in order:
            self.done[node] = self._rewrite(node)
        body = self.done[function.body]
        return function if body is function.body else Function(function.params, body, function.attrs, function.span)

    def _rewrite(self, node: Expr) -> Expr:
        carrier = next((c for c in children(node) if c in self.carried), None)
        if isinstance(node, Call) and isinstance(node.op, Multiply) and self._take_off(node, carrier):
            return self.done[node.args[self._data_position(node)]]
        if carrier is None:
            return rebuild_over(node, self.done)
        assert isinstance(node, Call)
        return self._pass_on(node, carrier, self.carried[carrier])

    def _data_position(self, call: Call) -> int:
        return 1 if constant_scale(call.args, 1) is None else 0

    def _take_off(self, call: Call, carrier: Expr | None) -> bool:
        """Take the constant scale off a multiplication, if its users can take it and what is carried already."""
        position = self._data_position(call)
        scale, data = constant_scale(call.args, 1 - position), call.args[position]
        if scale is None or data.checked_type != call.checked_type:
            return False
        demand = self.demands[call]
        answer = demand if isinstance(demand, Declined) else self._fit(call, call.args[1 - position], demand, carrier)
        if isinstance(answer, Declined):
            decide("ForwardFoldScaleAxis", call, answer)
            return False
        decide("ForwardFoldScaleAxis", call, "folded into the weights after it")
        self.carried[call] = channel_vector(scale, call.tensor_type, answer.dims) * self._carried_by(carrier)
        return True

    def _carried_by(self, carrier: Expr | None) -> np.ndarray | np.float32:
        return np.float32(1) if carrier is None else self.carried[carrier]

    def _fit(self, call: Call, scale: Expr, demand: Demand, carrier: Expr | None) -> Answer:
        """The demand, where the scale is as it asks."""
        assert isinstance(scale, Constant)
        if not along(call.tensor_type, scale.tensor_type, demand.dims):
            return Declined("the scale does not lie along the channels")
        vector = channel_vector(scale.value, call.tensor_type, demand.dims) * self._carried_by(carrier)
        if demand.positive and not is_positive(vector):
            return Declined("the scale is not positive everywhere, and a rectifier lies after it")
        if demand.invertible and not is_invertible(vector):
            return Declined("the scale is zero (or nearly) somewhere, and a sum after it would be divided by it")
        return demand

    def _pass_on(self, call: Call, carrier: Expr, vector: np.ndarray) -> Expr:
        """``call`` over an operand without its scale: a layer takes the scale, anything else carries it on."""
        if input_dims(call) is not None:
            rest = [self.done[arg] for arg in call.args[1:]]
            return scale_inputs(Call(call.op, (call.args[0], *rest), span=call.span), self.done[carrier], vector)
        self.carried[call] = vector
        if bias_axis(call) is not None:
            return rebuild(call, (self.done[carrier], _divided(self.done[call.args[1]], vector)))
        if not is_sum(call):
            return rebuild(call, [self.done[arg] for arg in call.args])
        demand = self.demands[call]
        assert isinstance(demand, Demand), "a scale is carried only where it is in demand"
        divisor = as_operand(vector, call.tensor_type, demand.dims)
        return rebuild(call, [self.done[a] if a is carrier else _divided(self.done[a], divisor) for a in call.args])


def _divided(expr: Expr, divisor: np.ndarray) -> Expr:
    if isinstance(expr, Constant):
        return Constant(expr.value / divisor, expr.name, span=expr.span)
    return Call(Divide(), (expr, Constant(divisor)), span=expr.span)


class ForwardFoldScaleAxis(FunctionPass, opt_level=3):
    """Constant scales before convolutions and dense layers go into their weights."""

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return fold_scale_forward(function)
