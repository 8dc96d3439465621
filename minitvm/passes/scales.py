"""Scales along the channels of a tensor, and layers whose weights take them (FoldScaleAxis)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from minitvm.ir.arrays import let_go
from minitvm.ir.decision import Declined, name_of
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.layout import Layout
from minitvm.ir.op import Op
from minitvm.ir.ops.elemwise import BinaryOp, Multiply
from minitvm.ir.ops.nn_dense import BiasAdd
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import rebuild
from minitvm.passes.bound import HEADROOM

Dims: TypeAlias = tuple[int, ...]
"""The dimensions of a tensor that hold its channels: one, or two where they are in blocks."""

NOT_CHANNELS = Declined("the scale does not lie along the channels")


def layouts_of(expr: Expr) -> tuple[Layout, Layout, Layout] | None:
    """The layouts of a layer whose weights can take a scale, where there are some; ``None`` for anything else."""
    found = expr.op.channel_layouts() if isinstance(expr, Call) and isinstance(expr.op, Op) else None
    return found if found is not None and isinstance(expr, Call) and 0 not in expr.args[1].tensor_type.shape else None


def is_homogeneous(expr: Expr) -> bool:
    """True if a call lets a scale of its first argument through that is greater than zero."""
    return isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.homogeneous


def is_additive(expr: Expr) -> bool:
    """True if a call lets through a scale that all its arguments have."""
    return isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.additive


def bias_axis(call: Call) -> int | None:
    """The axis along which a call adds a vector; ``None`` for other calls."""
    return call.op.axis % call.tensor_type.rank if isinstance(call.op, BiasAdd) else None


def channel_dims(layout: Layout) -> Dims:
    return tuple(layout.index(axis) for axis in ("C", "c") if axis in layout)


def layer_refusal(call: Call, dims: Dims, channels: Dims) -> Declined | None:
    """The reason why a convolution or dense layer cannot take a scale that varies along ``dims``."""
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
    """True if dividing by it is safe: no zero, and nothing so small or large that a quotient leaves the range."""
    limits, size = np.finfo(scale.dtype), np.abs(scale)
    return bool(np.all((size > np.sqrt(limits.tiny)) & (size < np.sqrt(limits.max))))


def is_positive(scale: np.ndarray) -> bool:
    """Every element greater than zero; at zero, ``f(x * s)`` forgets an infinite or undefined x."""
    return bool(np.all(scale > 0))


@dataclass(frozen=True)
class ScaleRange:
    """Factors that weights can take: from ``least`` to ``most``, in magnitude."""

    least: float = 0.0
    most: float = float("inf")

    def refusal(self, factor: np.ndarray) -> Declined | None:
        size = np.abs(factor[factor != 0].astype(np.float64))
        if bool(np.isfinite(size).all() and (size >= self.least).all() and (size <= self.most).all()):
            return None
        return Declined("what is multiplied by the scale would overflow or underflow")


MODERATE = ScaleRange(2.0**-64, 2.0**64)
"""For scales that move behind a sum in float32, or before it."""


def scale_range(weight: np.ndarray, filters: tuple[int, ...]) -> ScaleRange:
    """What a layer's weights can be multiplied by.  A weight that is less than a rounding of its filter's largest may
    lose its digits, the others 4 bits at most, below the normal numbers; ``filters`` are the axes along which filters
    lie."""
    info, size = np.finfo(weight.dtype), np.abs(weight)
    largest = size.max(axis=tuple(d for d in range(weight.ndim) if d not in filters), keepdims=True, initial=0)
    counted = float(size.min(where=size > largest * info.eps, initial=info.max))
    most = float(largest.max(initial=0))
    if not np.isfinite(most):
        return ScaleRange(most=0.0)
    return ScaleRange(
        float(info.tiny) / HEADROOM / max(counted, float(info.tiny)), float(info.max) / HEADROOM / max(most, 1e-300)
    )


def range_of_scales(call: Call) -> ScaleRange:
    """The scales that a layer's constant weights can take."""
    layouts, weight = layouts_of(call), call.args[1]
    assert layouts is not None and isinstance(weight, Constant), "only layers of constant weights take scales"
    return scale_range(weight.value, tuple(layouts[1].index(axis) for axis in ("O", "o") if axis in layouts[1]))


def applied(op: BinaryOp, expr: Expr, factor: np.ndarray) -> Expr:
    """``expr`` times or over ``factor``; of constants, at once: what they have in files leaves memory."""
    if isinstance(expr, Constant):
        found = op.reference(expr.value, factor)
        let_go(expr.value)
        found.setflags(write=False)  # nobody else has it, so the constant need not copy it
        return Constant(found, expr.name, span=expr.span)
    return Call(op, (expr, Constant(factor)), span=expr.span)


def beside(call: Call, scale: np.ndarray) -> np.ndarray:
    """The scale of a sum's result as it applies to what is added: a vector beside a bias, without leading ones."""
    axis = bias_axis(call)
    if axis is not None and scale.size > 1:
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
