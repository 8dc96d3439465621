"""FoldScaleAxis, scale folding: the weights of a convolution or dense layer take a constant scale along its channels.

Forward: ``conv(x * s, w)`` is ``conv(x, w * s)`` over w's input channels, if *every* user of ``x * s`` ends so.
Backward: ``conv(x, w) * s`` is ``conv(x, w * s)`` over w's output channels, if nobody else uses the convolution.
In between may lie what commutes with a scale, as the operators say: additions (``Op.additive``: what is added is
scaled too, or divided), and rectifiers (``Op.homogeneous``), where every element of the scale is greater than zero.

Only constants are moved, and into constants: a scale that the model computes from its data (squeeze-and-excitation)
and weights that are an input would be scaled at every run.  A scale is held with as many dimensions as the tensor
that it belongs to.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from minitvm.ir.decision import Declined, decide, name_of
from minitvm.ir.expr import Call, Constant, Expr, Function, Module
from minitvm.ir.ops.elemwise import Divide, Multiply
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import as_function, children, post_order, rebuild, rebuild_over, rewrite, use_counts
from minitvm.passes.bound import HEADROOM, Bound, Of, out_of_range
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.scales import (
    NOT_CHANNELS,
    Dims,
    aligned,
    applied,
    beside,
    bias_axis,
    channel_dims,
    constant_scale,
    is_additive,
    is_homogeneous,
    is_invertible,
    is_positive,
    layer_refusal,
    layouts_of,
    range_of_scales,
    scale_layer,
    varying,
)

OTHER_AXIS = Declined("the bias lies along another axis than the scale")
TWO_ADDED = Declined("two numbers are added on the way: the first may be there to round")


# --- backward -------------------------------------------------------------------------------------------------


_BOUND = Bound(
    40,
    Of.SUMS,
    f"weights times the scale, and what is added, stay {HEADROOM} times away from the ends of the range; between scale "
    "and layer lies one addition at most",
)


class BackwardFoldScaleAxis(FunctionPass, opt_level=3, bound=_BOUND):
    """Constant scales after convolutions and dense layers go into their weights: ``conv(x, w) * s`` becomes
    ``conv(x, w * s)`` (what is left of a batch norm after a layer), where nobody else sees what lies between."""

    needs = (Multiply,)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        uses = use_counts(function)

        def visit(old: Expr, new: Expr) -> Expr:
            new = self._folded(new, uses)
            if new is not old:
                uses[new] = uses[old]  # what replaces a node has its users
            return new

        return as_function(rewrite(function, visit))

    def _folded(self, node: Expr, uses: Counter[Expr]) -> Expr:
        found = constant_scale(node)
        if found is None:
            return node
        data, scale = found
        answer = _Descent(uses, scale, node.tensor_type).scaled(data)
        decide(self.info.name, node, answer if isinstance(answer, Declined) else "folded into the weights before it")
        return node if isinstance(answer, Declined) else answer


@dataclass
class _Descent:
    """A scale on its way down: every call that it passes has one user and the multiplication's type."""

    uses: Counter[Expr]
    scale: np.ndarray
    type: TensorType
    done: dict[Expr, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dims = varying(self.scale.shape)
        self.adding = set[Expr]()
        """The calls at or below which something is added that no layer made."""

    def scaled(self, data: Expr) -> Expr | Declined:
        """``data * scale`` without a multiplication, or the reason why there is none."""
        for node in post_order(data, operands=self._takers):
            refusal = self._refusal(node)
            if refusal is not None:
                return refusal
            assert isinstance(node, Call)
            if self._adds_twice(node):
                return TWO_ADDED
            self.done[node] = self._over_scaled(node)
        self.uses.update(self.done.values())
        return self.done[data]

    def _takers(self, node: Expr) -> tuple[Expr, ...]:
        """The operands that the scale is handed to."""
        if layouts_of(node) is not None or self._refusal(node) is not None:
            return ()
        return self._below(node)

    def _adds_twice(self, node: Call) -> bool:
        if layouts_of(node) is not None:
            return False
        below = self._below(node)
        above = any(arg in self.adding for arg in below)
        adds = is_additive(node) and len(below) < len(node.args)
        if above or adds:
            self.adding.add(node)
        return above and adds

    def _below(self, node: Expr) -> tuple[Expr, ...]:
        assert isinstance(node, Call)
        if not is_additive(node) or bias_axis(node) is not None:
            return node.args[:1]
        return tuple(a for a in node.args if _passes(a) and a.checked_type == self.type)

    def _refusal(self, node: Expr) -> Declined | None:
        name = name_of(node)
        if not isinstance(node, Call):
            return Declined(f"before it lies {name}, which is no convolution or dense layer")
        if self.uses[node] > 1:
            return Declined(f"{name} has other users")
        layouts = layouts_of(node)
        if layouts is not None:
            refusal = layer_refusal(node, self.dims, channel_dims(layouts[2]))
            return refusal or range_of_scales(node).refusal(self.scale)
        if is_homogeneous(node):
            sign = f"the scale is not positive everywhere, and {name} lies before it"
            return None if is_positive(self.scale) else Declined(sign)
        if is_additive(node):
            return self._sum_refusal(node)
        return Declined(f"before it lies {name}, which does not let a scale through")

    def _sum_refusal(self, node: Call) -> Declined | None:
        axis = bias_axis(node)
        if axis is not None:
            return self._overflow(node, node.args[1:]) if set(self.dims) <= {axis} else OTHER_AXIS
        below = self._below(node)
        if not below:
            return Declined("before it lies a sum without a convolution or dense layer")
        if all(self._is_vector(arg.tensor_type) for arg in node.args if arg not in below):
            return self._overflow(node, [arg for arg in node.args if arg not in below])
        return Declined("the other operand of a sum is neither a layer's result nor a vector along the scale")

    def _overflow(self, node: Call, others: Sequence[Expr]) -> Declined | None:
        """The reason why constants that are added cannot take the scale."""
        factor = beside(node, self.scale)
        with np.errstate(over="ignore"):
            made = [arg.value * factor for arg in others if isinstance(arg, Constant)]
        return next((refusal for product in made if (refusal := out_of_range(product))), None)

    def _is_vector(self, operand: TensorType) -> bool:
        """True if scaling it costs next to nothing: it varies where the scale does, or along one axis."""
        found = varying(aligned(operand.extents, self.type.rank))
        return set(found) <= set(self.dims) if self.dims else len(found) <= 1

    def _over_scaled(self, node: Call) -> Expr:
        if layouts_of(node) is not None:
            return scale_layer(node, node.args[0], self.scale, inputs=False)
        if not is_additive(node):
            return rebuild(node, (self.done[node.args[0]], *node.args[1:]))
        factor = beside(node, self.scale)
        return rebuild(node, [self.done.get(arg) or applied(Multiply(), arg, factor) for arg in node.args])


def _passes(expr: Expr) -> bool:
    return is_homogeneous(expr) or is_additive(expr) or layouts_of(expr) is not None


# --- forward --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Demand:
    """A scale along ``dims`` can be taken by all users of a value, if it is positive or invertible where needed, and
    the weights of ``layers`` and the constants that are ``added`` stay within their range."""

    dims: Dims
    positive: bool = False
    invertible: bool = False
    layers: frozenset[Call] = frozenset()
    added: frozenset[Constant] = frozenset()

    def out_of_range(self, scale: np.ndarray) -> Declined | None:
        refusals = (range_of_scales(layer).refusal(scale) for layer in self.layers)
        refusal = next((found for found in refusals if found), None)
        if refusal is not None or not self.added:
            return refusal
        with np.errstate(all="ignore"):
            quotients = [np.abs(c.value).max(initial=0) / np.abs(scale).min(initial=np.inf) for c in self.added]
        return next((found for quotient in quotients if (found := out_of_range(quotient))), None)


Answer: TypeAlias = Demand | Declined
"""A demand, or why there is none."""


class ForwardFoldScaleAxis(FunctionPass, opt_level=3, bound=_BOUND):
    """Constant scales before convolutions and dense layers go into their weights: ``conv(x * s, w)`` becomes
    ``conv(x, w * s)``, if every user of ``x * s`` can take the scale.

    First the users are asked, from the results up, what scale each value could carry; then, from the inputs down,
    scales that all users can take are taken off and carried to the weights.
    """

    needs = (Multiply,)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        order = post_order(function)
        ascent = _Ascent(_demands(order))
        for node in order:
            ascent.done[node] = ascent.rewritten(node)
        return as_function(ascent.done[function])


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
    return Demand(
        demands[0].dims,
        any(d.positive for d in demands),
        any(d.invertible for d in demands),
        frozenset().union(*(d.layers for d in demands)),
        frozenset().union(*(d.added for d in demands)),
    )


def _ask(user: Expr, position: int, above: Answer) -> Answer:
    """What scale ``user`` lets through to (or takes from) its operand at ``position``."""
    name = name_of(user)
    if isinstance(user, Function):
        return Declined("it is a result of the function")
    if not isinstance(user, Call):
        return Declined("it is used as a tuple's field")
    layouts = layouts_of(user)
    if layouts is not None:
        dims = channel_dims(layouts[0])
        return layer_refusal(user, dims, dims) or Demand(dims, layers=frozenset([user]))
    if not (_passes(user) or isinstance(user.op, Multiply)):
        return Declined(f"{name} does not let a scale through")
    if isinstance(above, Declined):
        return above
    if is_homogeneous(user):
        return replace(above, positive=True) if position == 0 else Declined(f"{name} uses it as a slope")
    if position != _carrier(user, above.dims):
        other = Declined(f"the other operand of {name} is not a vector along the scale")
        return other if bias_axis(user) is None else OTHER_AXIS
    if not is_additive(user):
        return above
    if above.invertible:
        return TWO_ADDED
    added = frozenset(arg for arg in user.args if isinstance(arg, Constant))
    return replace(above, invertible=True, added=added)


def _carrier(call: Call, dims: Dims) -> int | None:
    """The operand of an addition or multiplication that carries a scale: the one beside a vector along ``dims``."""
    axis = bias_axis(call)
    if axis is not None:
        return 0 if dims == (axis,) else None
    rank = call.tensor_type.rank
    for position in (0, 1):
        data, other = call.args[position], call.args[1 - position]
        varies = varying(aligned(other.tensor_type.extents, rank))
        if data.checked_type == call.checked_type and set(varies) <= set(dims):
            return position
    return None


@dataclass
class _Ascent:
    demands: dict[Expr, Answer]
    done: dict[Expr, Expr] = field(default_factory=dict)
    carried: dict[Expr, np.ndarray] = field(default_factory=dict)
    """The scale that was taken off a node, and that its users must take."""

    def rewritten(self, node: Expr) -> Expr:
        carrier = next((c for c in children(node) if c in self.carried), None)
        found = constant_scale(node)
        if found is not None:
            data, scale = found
            if self._takes_off(node, scale if carrier is None else scale * self.carried[carrier]):
                return self.done[data]
        if carrier is None:
            return rebuild_over(node, self.done)
        assert isinstance(node, Call), "only calls let a scale through"
        return self._passed_on(node, carrier)

    def _takes_off(self, node: Expr, scale: np.ndarray) -> bool:
        """Take the constant scale off a multiplication, if its users can take it and what is carried already."""
        refusal = self._refusal(self.demands[node], scale)
        decide("ForwardFoldScaleAxis", node, refusal or "folded into the weights after it")
        if refusal is None:
            self.carried[node] = scale
        return refusal is None

    def _refusal(self, demand: Answer, scale: np.ndarray) -> Declined | None:
        if isinstance(demand, Declined):
            return demand
        if not set(varying(scale.shape)) <= set(demand.dims):
            return NOT_CHANNELS
        if demand.positive and not is_positive(scale):
            return Declined("the scale is not positive everywhere, and a rectifier lies after it")
        if demand.invertible and not is_invertible(scale):
            return Declined("the scale is zero (or nearly) somewhere, and a sum after it would be divided by it")
        return demand.out_of_range(scale)

    def _passed_on(self, call: Call, carrier: Expr) -> Expr:
        """``call`` over an operand without its scale: a layer takes the scale, anything else carries it on."""
        scale, operands = self.carried[carrier], [self.done[arg] for arg in call.args]
        if layouts_of(call) is not None:
            return scale_layer(Call(call.op, (carrier, *operands[1:]), span=call.span), operands[0], scale, inputs=True)
        self.carried[call] = scale
        if not is_additive(call):
            return rebuild(call, operands)
        divisor, pairs = beside(call, scale), zip(call.args, operands, strict=True)
        return rebuild(call, [new if old is carrier else applied(Divide(), new, divisor) for old, new in pairs])
