"""FoldScaleAxis: a constant scale along the channels disappears into the weights of a convolution or dense layer.

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
from minitvm.ir.layout import Layout
from minitvm.ir.op import Op
from minitvm.ir.ops.elemwise import BinaryOp, Divide, Multiply
from minitvm.ir.ops.nn_dense import BiasAdd
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import as_function, children, post_order, rebuild, rebuild_over, rewrite, use_counts
from minitvm.passes.manager import FunctionPass, PassContext

Dims: TypeAlias = tuple[int, ...]
"""The dimensions of a tensor that hold its channels: one, or two where they are in blocks."""

OTHER_AXIS = Declined("the bias lies along another axis than the scale")
NOT_CHANNELS = Declined("the scale does not lie along the channels")


def layouts_of(expr: Expr) -> tuple[Layout, Layout, Layout] | None:
    """Those of a layer whose weights can take a scale; ``None`` for anything else."""
    return expr.op.channel_layouts() if isinstance(expr, Call) and isinstance(expr.op, Op) else None


def is_homogeneous(expr: Expr) -> bool:
    """Whether a call lets a scale of its first argument through that is greater than zero."""
    return isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.homogeneous


def is_additive(expr: Expr) -> bool:
    """Whether a call lets through a scale that all its arguments have."""
    return isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.additive


def bias_axis(call: Call) -> int | None:
    """The axis along which a call adds a vector; ``None`` for other calls."""
    return call.op.axis % call.tensor_type.rank if isinstance(call.op, BiasAdd) else None


def channel_dims(layout: Layout) -> Dims:
    return tuple(layout.index(axis) for axis in ("C", "c") if axis in layout)


def layer_refusal(call: Call, dims: Dims, channels: Dims) -> Declined | None:
    """Why a convolution or dense layer cannot take a scale that varies along ``dims``."""
    data, weight = call.args[0].tensor_type, call.args[1].tensor_type
    if not weight.dtype == call.dtype == data.dtype:
        return Declined(f"{name_of(call)} computes {call.dtype} from {data.dtype} and {weight.dtype}")
    if not isinstance(call.args[1], Constant):
        return Declined("the weights are no constant: they would be scaled at every run")
    return None if set(dims) <= set(channels) else NOT_CHANNELS


def constant_scale(expr: Expr) -> tuple[Expr, np.ndarray] | None:
    """The data and the scale of a multiplication by a float constant."""
    if not isinstance(expr, Call) or not isinstance(expr.op, Multiply):
        return None
    for data, scale in (expr.args, expr.args[::-1]):
        if isinstance(scale, Constant) and scale.value.dtype.kind == "f" and data.checked_type == expr.checked_type:
            return data, scale.value.reshape(aligned(scale.value.shape, expr.tensor_type.rank))
    return None


def aligned(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """A shape as it broadcasts to a tensor of that rank."""
    return (1,) * (rank - len(shape)) + tuple(shape)


def varying(shape: Sequence[int]) -> Dims:
    return tuple(d for d, extent in enumerate(shape) if extent != 1)


def per_channel(scale: np.ndarray, type_: TensorType, dims: Dims) -> np.ndarray:
    """The scale of each channel of a tensor, one after another."""
    return np.broadcast_to(scale, [type_.extents[d] if d in dims else 1 for d in range(type_.rank)]).reshape(-1)


def is_invertible(scale: np.ndarray) -> bool:
    """Whether dividing by it is safe: no zero, and nothing so small or large that a quotient leaves the range."""
    limits, size = np.finfo(scale.dtype), np.abs(scale)
    return bool(np.all((size > np.sqrt(limits.tiny)) & (size < np.sqrt(limits.max))))


def is_positive(scale: np.ndarray) -> bool:
    """Every element greater than zero; at zero, ``f(x * s)`` forgets an infinite or undefined x."""
    return bool(np.all(scale > 0))


def applied(op: BinaryOp, expr: Expr, factor: np.ndarray) -> Expr:
    """``expr`` times or over ``factor``; of constants, at once."""
    if isinstance(expr, Constant):
        found = op.reference(expr.value, factor)
        found.setflags(write=False)  # nobody else has it, so the constant need not copy it
        return Constant(found, expr.name, span=expr.span)
    return Call(op, (expr, Constant(factor)), span=expr.span)


def beside(call: Call, scale: np.ndarray) -> np.ndarray:
    """The scale of a sum's result as it applies to what is added: a vector beside a bias, without leading ones."""
    axis = bias_axis(call)
    if axis is not None:
        return per_channel(scale, call.tensor_type, (axis,))
    return scale.reshape(scale.shape[min(varying(scale.shape), default=scale.ndim) :])


def scale_layer(call: Call, data: Expr, scale: np.ndarray, inputs: bool) -> Expr:
    """A convolution or dense layer over ``data``, with weights times the scale of their input channels or, where not
    ``inputs``, of their output channels."""
    layouts = layouts_of(call)
    assert layouts is not None, "only layers take scales"
    image, kernel, out = layouts
    extents = kernel.primal_shape(call.args[1].shape)
    filters, read = extents["O"], extents["I"]  # filters, and input channels that each reads
    assert isinstance(filters, int) and isinstance(read, int), "weights are of known sizes"
    if inputs:
        vector = per_channel(scale, call.args[0].tensor_type, channel_dims(image)).reshape(-1, read)
        factor = np.repeat(vector, filters // len(vector), axis=0)
    else:
        vector = per_channel(scale, call.tensor_type, channel_dims(out))
        factor = np.broadcast_to(vector[:, None], (len(vector), read))
    plain = Layout("OI" + kernel.primal.replace("O", "").replace("I", ""))
    factor = kernel.convert(factor.reshape(*factor.shape, *[1] * (plain.rank - 2)), plain)
    return rebuild(call, (data, applied(Multiply(), call.args[1], factor), *call.args[2:]))


# --- backward -------------------------------------------------------------------------------------------------


class BackwardFoldScaleAxis(FunctionPass, opt_level=3):
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
        if self._refusal(node) is not None or layouts_of(node) is not None:
            return ()
        return self._below(node)

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
    """A scale along ``dims`` can be taken by all users of a value, if it is positive or invertible where needed."""

    dims: Dims
    positive: bool = False
    invertible: bool = False


Answer: TypeAlias = Demand | Declined
"""A demand, or why there is none."""


class ForwardFoldScaleAxis(FunctionPass, opt_level=3):
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
    return Demand(demands[0].dims, any(d.positive for d in demands), any(d.invertible for d in demands))


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
        return layer_refusal(user, dims, dims) or Demand(dims)
    if not (_passes(user) or isinstance(user.op, Multiply)):
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
        return None

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
