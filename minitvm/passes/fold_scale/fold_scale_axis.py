"""FoldScaleAxis: a constant scale along the channels disappears into the weights of a convolution or dense layer.

Forward: ``conv(x * s, w)`` is ``conv(x, w * s)`` over w's input channels, if *every* user of ``x * s`` ends so.
Backward: ``conv(x, w) * s`` is ``conv(x, w * s)`` over w's output channels, if nobody else uses the convolution.
In between may lie what commutes with a scale: adding a vector along the channels (which is scaled too, or divided),
and ``relu`` and its like, where every element of the scale is greater than zero.

Only constants are moved, and into constants: a scale that the model computes from its data (squeeze-and-excitation)
and weights that are an input would be scaled at every run.  Here is what both directions share;
``fold_scale_forward`` and ``fold_scale_backward`` hold the two walks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.layout import Layout
from minitvm.ir.op import Op
from minitvm.ir.ops.broadcast import Add, Multiply, Subtract
from minitvm.ir.ops.nn_dense import BiasAdd
from minitvm.ir.types import TensorType

Dims = tuple[int, ...]
"""The dimensions of a tensor that hold its channels: one, or two where they are in blocks."""


def op_name(expr: Expr) -> str:
    """The operator of a call; empty for anything else."""
    return expr.op.name if isinstance(expr, Call) and isinstance(expr.op, Op) else ""


def channel_dims(layout: Layout) -> Dims:
    return tuple(layout.index(axis) for axis in ("C", "c") if axis in layout)


def input_dims(call: Call) -> Dims | None:
    """The dimensions of the first argument that a convolution or dense layer sums over; ``None`` for other calls."""
    layouts = _layouts(call)
    return None if layouts is None else channel_dims(layouts[0])


def output_dims(call: Call) -> Dims | None:
    """The dimensions of the result that follow the weight's filters; ``None`` for other calls."""
    layouts = _layouts(call)
    return None if layouts is None else channel_dims(layouts[2])


def _layouts(call: Call) -> tuple[Layout, Layout, Layout] | None:
    return call.op.channel_layouts() if isinstance(call.op, Op) else None


def _kernel_layout(call: Call) -> Layout:
    layouts = _layouts(call)
    assert layouts is not None, "only layers take scales"
    return layouts[1]


def is_homogeneous(expr: Expr) -> bool:
    """Whether a call lets a scale of its first argument through that is greater than zero."""
    return isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.homogeneous


def is_sum(expr: Expr) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, (Add, Subtract))


def bias_axis(expr: Expr) -> int | None:
    """The axis along which a call adds a bias; ``None`` for other calls."""
    if not isinstance(expr, Call) or not isinstance(expr.op, BiasAdd):
        return None
    return expr.op.axis % expr.tensor_type.rank


def along(type_: TensorType, operand: TensorType, dims: Dims) -> bool:
    """Whether ``operand`` broadcasts to ``type_`` and varies along ``dims`` only."""
    if operand.rank > type_.rank or not operand.is_static:
        return False
    aligned = (1,) * (type_.rank - operand.rank) + operand.static_shape
    return all(extent == 1 or (d in dims and extent == type_.shape[d]) for d, extent in enumerate(aligned))


def channel_vector(scale: np.ndarray, type_: TensorType, dims: Dims) -> np.ndarray:
    """The scale of each channel of a tensor, one after another; ``scale`` is :func:`along` ``dims``."""
    aligned = scale.reshape((1,) * (type_.rank - scale.ndim) + scale.shape)
    target = [type_.static_shape[d] if d in dims else 1 for d in range(type_.rank)]
    return np.broadcast_to(aligned, target).reshape(-1)


def as_operand(vector: np.ndarray, type_: TensorType, dims: Dims) -> np.ndarray:
    """The inverse: a scale per channel, shaped to broadcast against a tensor of ``type_``."""
    first = min(dims)
    return vector.reshape([type_.static_shape[d] if d in dims else 1 for d in range(first, type_.rank)])


def times(expr: Expr, factor: np.ndarray) -> Expr:
    """``expr * factor``; of constants, at once."""
    if isinstance(expr, Constant):
        return Constant(expr.value * factor, expr.name, span=expr.span)
    return Call(Multiply(), (expr, Constant(factor)), span=expr.span)


def scale_filters(call: Call, vector: np.ndarray) -> Call:
    """A convolution or dense layer whose result is scaled per output channel."""
    factor = np.repeat(vector[:, None], _filter_counts(call)[1], axis=1)
    return _with(call, call.args[0], times(call.args[1], _weight_factor(call, factor)))


def scale_inputs(call: Call, data: Expr, vector: np.ndarray) -> Call:
    """A convolution or dense layer that takes ``data`` for ``data * vector`` per input channel."""
    filters, per_group = _filter_counts(call)
    groups = len(vector) // per_group
    factor = np.repeat(vector.reshape(groups, per_group), filters // groups, axis=0)
    return _with(call, data, times(call.args[1], _weight_factor(call, factor)))


def _with(call: Call, data: Expr, weight: Expr) -> Call:
    return Call(call.op, (data, weight, *call.args[2:]), span=call.span)


def _filter_counts(call: Call) -> tuple[int, int]:
    """Filters, and input channels that each reads."""
    extents = _kernel_layout(call).primal_shape(call.args[1].shape)
    return extents["O"] or 0, extents["I"] or 0


def _weight_factor(call: Call, factor: np.ndarray) -> np.ndarray:
    """``factor`` per (filter, input channel) in the layout of the weight."""
    kernel = _kernel_layout(call)
    plain = Layout("OI" + kernel.primal.replace("O", "").replace("I", ""))
    return kernel.convert(factor.reshape(*factor.shape, *[1] * (plain.rank - 2)), plain)


def constant_scale(args: Sequence[Expr], position: int) -> np.ndarray | None:
    """The scale of ``multiply(*args)`` where ``args[position]`` is a float constant."""
    found = args[position]
    return found.value if isinstance(found, Constant) and found.value.dtype.kind == "f" else None


def varying_dims(scale: np.ndarray, type_: TensorType) -> Dims:
    """The dimensions of a tensor of ``type_`` along which ``scale`` varies when it is broadcast to it."""
    return tuple(type_.rank - scale.ndim + d for d, extent in enumerate(scale.shape) if extent != 1)


def layer_refusal(call: Call, dims: Dims, channels: Dims) -> Declined | None:
    """Why a convolution or dense layer cannot take a scale that varies along ``dims``."""
    if not (call.args[0].tensor_type.is_float and call.args[1].dtype == call.dtype == call.args[0].dtype):
        return Declined(f"{op_name(call)} computes {call.dtype} from {call.args[0].dtype} and {call.args[1].dtype}")
    if not isinstance(call.args[1], Constant):
        return Declined("the weights are no constant: they would be scaled at every run")
    return None if set(dims) <= set(channels) else Declined("the scale does not lie along the channels")


def is_invertible(vector: np.ndarray) -> bool:
    """Whether dividing by it is safe: no zero, and nothing so small or large that a quotient leaves the range."""
    limits = np.finfo(vector.dtype)
    size = np.abs(vector)
    return bool(np.all((size > np.sqrt(limits.tiny)) & (size < np.sqrt(limits.max))))


def is_positive(vector: np.ndarray) -> bool:
    """Every element greater than zero; at zero, ``f(x * s)`` forgets an infinite or undefined x."""
    return bool(np.all(vector > 0))
