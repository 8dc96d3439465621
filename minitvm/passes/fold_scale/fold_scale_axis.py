"""FoldScaleAxis: a constant scale along the channels disappears into the weights of a convolution or dense layer.

Forward: ``conv(x * s, w)`` is ``conv(x, w * s)`` over w's input channels, if *every* user of ``x * s`` ends so.
Backward: ``conv(x, w) * s`` is ``conv(x, w * s)`` over w's output channels, if nobody else uses the convolution.
In between may lie what commutes with a scale, as the operators say: additions (``Op.additive``: what is added is
scaled too, or divided), and rectifiers (``Op.homogeneous``), where every element of the scale is greater than zero.

Only constants are moved, and into constants: a scale that the model computes from its data (squeeze-and-excitation)
and weights that are an input would be scaled at every run.  A scale is held with as many dimensions as the tensor
that it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.layout import Layout
from minitvm.ir.op import Op
from minitvm.ir.ops.broadcast import Divide, Multiply
from minitvm.ir.ops.nn_dense import BiasAdd
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import rebuild

Dims = tuple[int, ...]
"""The dimensions of a tensor that hold its channels: one, or two where they are in blocks."""

OTHER_AXIS = Declined("the bias lies along another axis than the scale")
NOT_CHANNELS = Declined("the scale does not lie along the channels")


def layer_layouts(expr: Expr) -> tuple[Layout, Layout, Layout] | None:
    """Those of a layer whose weights can take a scale; ``None`` for anything else."""
    return expr.op.channel_layouts() if isinstance(expr, Call) and isinstance(expr.op, Op) else None


def channel_dims(layout: Layout) -> Dims:
    return tuple(layout.index(axis) for axis in ("C", "c") if axis in layout)


def is_homogeneous(expr: Expr) -> bool:
    """Whether a call lets a scale of its first argument through that is greater than zero."""
    return isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.homogeneous


def is_additive(expr: Expr) -> bool:
    """Whether a call lets through a scale that all its arguments have."""
    return isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.additive


def bias_axis(expr: Expr) -> int | None:
    """The axis along which a call adds a vector; ``None`` for other calls."""
    if not isinstance(expr, Call) or not isinstance(expr.op, BiasAdd):
        return None
    return expr.op.axis % expr.tensor_type.rank


def aligned(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """A shape as it broadcasts to a tensor of that rank."""
    return (1,) * (rank - len(shape)) + tuple(shape)


def varying(shape: Sequence[int]) -> Dims:
    return tuple(d for d, extent in enumerate(shape) if extent != 1)


def along(type_: TensorType, operand: TensorType, dims: Dims) -> bool:
    """Whether ``operand`` broadcasts to ``type_`` and varies along ``dims`` only."""
    if operand.rank > type_.rank or not operand.is_static:
        return False
    shape = aligned(operand.static_shape, type_.rank)
    return all(d in dims and shape[d] == type_.shape[d] for d in varying(shape))


def constant_scale(call: Call) -> tuple[int, np.ndarray] | None:
    """Which operand of a multiplication is a scale, a float constant, and what it is; the other is the data."""
    for position in (1, 0):
        found, data = call.args[position], call.args[1 - position]
        if isinstance(found, Constant) and found.value.dtype.kind == "f" and data.checked_type == call.checked_type:
            return position, found.value.reshape(aligned(found.value.shape, call.tensor_type.rank))
    return None


def per_channel(scale: np.ndarray, type_: TensorType, dims: Dims) -> np.ndarray:
    """The scale of each channel of a tensor, one after another."""
    return np.broadcast_to(scale, [type_.static_shape[d] if d in dims else 1 for d in range(type_.rank)]).reshape(-1)


def times(expr: Expr, factor: np.ndarray) -> Expr:
    """``expr * factor``; of constants, at once."""
    if isinstance(expr, Constant):
        return Constant(expr.value * factor, expr.name, span=expr.span)
    return Call(Multiply(), (expr, Constant(factor)), span=expr.span)


def over(expr: Expr, divisor: np.ndarray) -> Expr:
    """``expr / divisor``; of constants, at once."""
    if isinstance(expr, Constant):
        return Constant(expr.value / divisor, expr.name, span=expr.span)
    return Call(Divide(), (expr, Constant(divisor)), span=expr.span)


def beside(call: Call, scale: np.ndarray) -> np.ndarray:
    """The scale of a sum's result as it applies to what is added: a vector beside a bias, without leading ones."""
    axis = bias_axis(call)
    if axis is not None:
        return per_channel(scale, call.tensor_type, (axis,))
    first = next(iter(varying(scale.shape)), scale.ndim)
    return scale.reshape(scale.shape[first:])


def scale_filters(call: Call, scale: np.ndarray) -> Expr:
    """A convolution or dense layer whose result is scaled per output channel."""
    _, kernel, out = _layouts(call)
    vector = per_channel(scale, call.tensor_type, channel_dims(out))
    factor = np.repeat(vector[:, None], _filter_counts(call, kernel)[1], axis=1)
    return _scaled(call, call.args[0], kernel, factor)


def scale_inputs(call: Call, data: Expr, scale: np.ndarray) -> Expr:
    """A convolution or dense layer that takes ``data`` for ``data * scale`` per input channel."""
    image, kernel, _ = _layouts(call)
    filters, per_group = _filter_counts(call, kernel)
    vector = per_channel(scale, call.args[0].tensor_type, channel_dims(image))
    groups = len(vector) // per_group
    factor = np.repeat(vector.reshape(groups, per_group), filters // groups, axis=0)
    return _scaled(call, data, kernel, factor)


def _layouts(call: Call) -> tuple[Layout, Layout, Layout]:
    found = layer_layouts(call)
    assert found is not None, "only layers take scales"
    return found


def _filter_counts(call: Call, kernel: Layout) -> tuple[int, int]:
    """Filters, and input channels that each reads."""
    extents = kernel.primal_shape(call.args[1].shape)
    return extents["O"] or 0, extents["I"] or 0


def _scaled(call: Call, data: Expr, kernel: Layout, factor: np.ndarray) -> Expr:
    """The layer over ``data`` with weights times ``factor`` per (filter, input channel)."""
    plain = Layout("OI" + kernel.primal.replace("O", "").replace("I", ""))
    factor = kernel.convert(factor.reshape(*factor.shape, *[1] * (plain.rank - 2)), plain)
    return rebuild(call, (data, times(call.args[1], factor), *call.args[2:]))


def layer_refusal(call: Call, dims: Dims, channels: Dims) -> Declined | None:
    """Why a convolution or dense layer cannot take a scale that varies along ``dims``."""
    data, weight = call.args[0].tensor_type, call.args[1].tensor_type
    if not (data.is_float and weight.dtype == call.dtype == data.dtype):
        name = call.op.name if isinstance(call.op, Op) else "a function"
        return Declined(f"{name} computes {call.dtype} from {data.dtype} and {weight.dtype}")
    if not isinstance(call.args[1], Constant):
        return Declined("the weights are no constant: they would be scaled at every run")
    return None if set(dims) <= set(channels) else NOT_CHANNELS


def is_invertible(scale: np.ndarray) -> bool:
    """Whether dividing by it is safe: no zero, and nothing so small or large that a quotient leaves the range."""
    limits, size = np.finfo(scale.dtype), np.abs(scale)
    return bool(np.all((size > np.sqrt(limits.tiny)) & (size < np.sqrt(limits.max))))


def is_positive(scale: np.ndarray) -> bool:
    """Every element greater than zero; at zero, ``f(x * s)`` forgets an infinite or undefined x."""
    return bool(np.all(scale > 0))
