"""FakeQuantizationToInteger: in QDQ models, products of quantized tensors multiply their bytes where that is faster.

    conv(dequantize(x, s, z), dequantize(w, t, 0))  ->  (conv(x, w) - z * sum(w)) * (s * t)
    conv(cast(x) - z, w)                            ->  conv(x, w) - z * sum(w)

Bytes of data are signed or not, as the machine multiplies them: x + 128 and z + 128 stand for what x and z do.

Where a machine multiplies and adds pairs of int16 instead, these hold what bytes stand for, less their zero points:

    conv(dequantize(x, s, z), dequantize(w, t, v))  ->  conv(cast(x) - z, cast(w) - v) * (s * t)

Where there are no dot products for it (a depthwise convolution adds nothing up along the channels) a convolution is
made of whole numbers in float32, as long as that holds every sum:

    conv(dequantize(x, s, z), dequantize(w, t, v))  ->  round(conv(cast(x) - z, cast(w) - v)) * (s * t)

Sums of integers are exact, so what is left of float arithmetic is one rounding of the sum and one of its product with
the scale.  What is added, and how the result is quantized again, stays as it was.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Constant, Expr, Function, Module
from minitvm.ir.loop import DOT_OPERANDS, Dot
from minitvm.ir.ops.elemwise import CastTo, Subtract
from minitvm.ir.ops.nn_conv import Conv2d
from minitvm.ir.ops.nn_dense import Dense
from minitvm.ir.ops.qnn import BYTES
from minitvm.ir.ops.quantize import Dequantize
from minitvm.ir.ops.transform import Reshape, Transpose
from minitvm.ir.types import only_batch_open
from minitvm.ir.visitor import as_function, rewrite
from minitvm.passes.alter_op_layout import block, dots_of
from minitvm.passes.bound import Bound, Of, out_of_range
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.places import in_pipeline
from minitvm.target import MachineModel

Product: TypeAlias = "Conv2d | Dense"


_LOOKED_THROUGH = (Dequantize, CastTo, Subtract, Transpose, Reshape)
"""What lies between a product and its bytes."""


@dataclass(frozen=True)
class _Stored:
    """Bytes that stand for numbers: ``(values - zero) * scale``.

    zero: one int32; scale: one number or one along ``axis``, ``None`` where they stand for integers.
    """

    values: Expr
    zero: Expr
    scale: np.ndarray | None = None
    axis: int = 0

    @property
    def is_scaled_along(self) -> bool:
        return self.scale is not None and self.scale.ndim > 0


def _number(value: int) -> Constant:
    return Constant(np.asarray(value, "int32"))


def _is_zero(point: Expr) -> bool:
    return isinstance(point, Constant) and not point.value.any()


def _stored(node: Expr) -> _Stored | None:
    """What a tensor of float32 or int32 is made of, itself or turned; ``None`` where that is not known."""
    if node.dtype in ("int8", "uint8"):
        return _Stored(node, _number(0))
    if not isinstance(node, Call):
        return None
    if isinstance(node.op, Dequantize):
        return _dequantized(node, node.op)
    if isinstance(node.op, CastTo) and node.dtype == "int32":
        return _stored(node.args[0])
    if isinstance(node.op, Subtract):
        return _less_zero(*node.args)
    return _moved(node) if isinstance(node.op, (Transpose, Reshape)) else None


def _dequantized(call: Call, op: Dequantize) -> _Stored | None:
    values, scale, zero = call.args
    if not isinstance(scale, Constant) or not isinstance(zero, Constant) or scale.dtype != "float32":
        return None
    points = np.unique(zero.value)
    if values.dtype not in ("int8", "uint8") or points.size != 1:
        return None
    scales = scale.value if scale.value.size > 1 else scale.value.reshape(())
    return _Stored(values, _number(int(points[0])), scales, op.axis % call.tensor_type.rank if scales.ndim else 0)


def _less_zero(values: Expr, point: Expr) -> _Stored | None:
    below = _stored(values)
    one = point.tensor_type.is_static and point.tensor_type.size == 1
    if below is None or not one or not _is_zero(below.zero) or point.tensor_type.rank > values.tensor_type.rank:
        return None
    return replace(below, zero=point if point.tensor_type.rank == 0 else ir.reshape(point, newshape=()))


def _moved(call: Call) -> _Stored | None:
    below, axis = _stored(call.args[0]), 0
    if below is None or (isinstance(call.op, Reshape) and below.is_scaled_along):
        return None
    if isinstance(call.op, Transpose):
        rank = call.tensor_type.rank
        axis = (call.op.axes or tuple(reversed(range(rank)))).index(below.axis % rank)
    return replace(below, values=Call(call.op, (below.values,)), axis=axis)


_BOUND = Bound(8, Of.SUMS, "sums of whole numbers are exact; their scales are multiplied behind them")


@in_pipeline(after="InferType", given="machine")
@dataclass(eq=False, repr=False)
class FakeQuantizationToInteger(FunctionPass, opt_level=3, bound=_BOUND):
    """Convolutions and dense layers of quantized tensors, made of bytes on a machine with dot products of bytes."""

    machine: MachineModel
    needs = _LOOKED_THROUGH

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return as_function(rewrite(function, lambda _, new: self._visit(new)))

    def _visit(self, node: Expr) -> Expr:
        if not isinstance(node, Call) or not isinstance(node.op, (Conv2d, Dense)):
            return node
        if node.dtype not in ("float32", "int32"):
            return node
        x, w = map(_stored, node.args)
        if x is None or w is None or x.values is node.args[0] or (x.scale is None) != (w.scale is None):
            return node
        scaled = _scale_refusal(x, w)
        if scaled is not None:
            decide(self.info.name, node, scaled)
            return node
        w = _around_zero(w)
        dot = self._dot(x.values.dtype, w)
        refusal = self._refusal(node, node.op, x, w) if dot else Declined("its weights are not int8 around zero")
        if refusal and isinstance(node.op, Conv2d) and _is_exact(node.op, x, w):
            decide(self.info.name, node, "is made of whole numbers in float32")
            return _in_floats(node.op, x, w)
        decide(self.info.name, node, refusal or f"is made of {'pairs of int16' if dot == 'dot2' else 'bytes'}")
        if refusal or not dot:
            return node
        return _in_pairs(node.op, x, w) if dot == "dot2" else _in_bytes(node.op, _held_as(DOT_OPERANDS[dot][0], x), w)

    def _dot(self, dtype: str, w: _Stored) -> Dot | None:
        """What multiplies data by weights on the machine, rather as they are."""
        has = dots_of(self.machine)
        if "dot2" in has:
            return "dot2"
        weight = w.values.dtype if _is_zero(w.zero) else None
        able = [dot for dot, parts in DOT_OPERANDS.items() if dot in has and parts[1] == weight]
        return next((dot for dot in able if DOT_OPERANDS[dot][0] == dtype), able[0] if able else None)

    def _refusal(self, call: Call, op: Product, x: _Stored, w: _Stored) -> Declined | None:
        if x.scale is not None and self.machine.features.isdisjoint(DOT_OPERANDS):
            return Declined("the machine has no dot products of bytes, nor of pairs: floats are as fast")
        if not only_batch_open(call.type):
            return Declined("its shape is known only when it runs")
        if isinstance(op, Dense):
            return None
        if (op.data_layout, op.kernel_layout, op.groups) != ("NCHW", "OIHW", 1):
            return Declined("it has groups, or layouts of its own")
        units, lanes = w.values.tensor_type.static_shape[0], self.machine.lanes("int32")
        return None if block(units, lanes) else Declined(f"no blocks of {lanes} divide its {units} output channels")


def _padding(op: Product) -> Sequence[int]:
    return op.padding if isinstance(op, Conv2d) else ()


def _in_bytes(op: Product, x: _Stored, w: _Stored) -> Expr:
    values, zero = x.values, x.zero
    made: Product = op.with_attributes(out_dtype="int32")
    if any(_padding(op)) and not _is_zero(zero):
        values, made = _with_border(values, zero, _padding(op)), made.with_attributes(padding=(0,) * 4)
    spread = (-1, 1, 1) if isinstance(op, Conv2d) else (-1,)
    total: Expr = Call(made, (_in_whole_words(values), _in_whole_words(w.values)))
    if not _is_zero(zero):
        axes = tuple(range(1, w.values.tensor_type.rank))
        of_units = ir.reshape(ir.sum(ir.cast(w.values, dtype="int32"), axis=axes), newshape=spread)
        total = ir.subtract(total, ir.multiply(of_units, zero))
    return _scaled(total, x, w, spread)


def _in_pairs(op: Product, x: _Stored, w: _Stored) -> Expr:
    made: Product = op.with_attributes(out_dtype="int32")
    total = Call(made, (_in_whole_words(_whole(x, "int16")), _in_whole_words(_whole(w, "int16"))))
    return _scaled(total, x, w, (-1, 1, 1) if isinstance(op, Conv2d) else (-1,))


def _scale_refusal(x: _Stored, w: _Stored) -> Declined | None:
    """The reason why the scales cannot be multiplied behind the sums."""
    if x.is_scaled_along or (w.is_scaled_along and w.axis != 0):
        return Declined("its data has several scales, or its weights are not scaled by filter")
    if x.scale is None or w.scale is None:
        return None
    with np.errstate(all="ignore"):
        return out_of_range(np.asarray(x.scale * w.scale, "float32"), x.scale, w.scale)


def _scaled(total: Expr, x: _Stored, w: _Stored, spread: Sequence[int]) -> Expr:
    """Sums of whole numbers as what they stand for."""
    if x.scale is None or w.scale is None:
        return total
    scale = np.asarray(x.scale * w.scale, "float32").reshape(spread if w.is_scaled_along else ())
    return ir.multiply(total if total.dtype == "float32" else ir.cast(total, dtype="float32"), Constant(scale))


def _is_exact(op: Conv2d, x: _Stored, w: _Stored) -> bool:
    """True if float32 holds every sum: a difference of two bytes has 8 bits and a sign, a signed byte 7."""
    addends = w.values.tensor_type.extents[1:]
    if None in addends:
        return False
    largest = 255 * (128 if w.values.dtype == "int8" and _is_zero(w.zero) else 255)
    plain = (op.data_layout, op.kernel_layout) == ("NCHW", "OIHW")
    return plain and math.prod(addends) * largest <= 2**24


def _in_floats(op: Conv2d, x: _Stored, w: _Stored) -> Expr:
    """Rounding changes nothing, but no pass moves the scale past it into the weights."""
    total = Call(op.with_attributes(out_dtype="float32"), (_whole(x, "float32"), _whole(w, "float32")))
    return ir.cast(total, dtype="int32") if x.scale is None else _scaled(ir.round(total), x, w, (-1, 1, 1))


def _whole(stored: _Stored, dtype: str) -> Expr:
    """What is stored, less its zero point, in a dtype that holds the difference."""
    values = ir.cast(stored.values, dtype=dtype)
    return values if _is_zero(stored.zero) else ir.subtract(values, ir.cast(stored.zero, dtype=dtype))


def _held_as(dtype: str, x: _Stored) -> _Stored:
    """In signed bytes or unsigned ones: 128 less or more, and so the zero point."""
    if x.values.dtype == dtype:
        return x
    flipped = ir.cast(ir.bitwise_xor(x.values, Constant(np.asarray(128).astype(x.values.dtype))), dtype=dtype)
    more = 128 if dtype == "uint8" else -128
    if isinstance(x.zero, Constant):
        return replace(x, values=flipped, zero=_number(int(x.zero.value) + more))
    return replace(x, values=flipped, zero=ir.add(x.zero, _number(more)))


def _around_zero(w: _Stored) -> _Stored:
    """Unsigned bytes around 128 as signed ones."""
    signed = _held_as("int8", w)
    return signed if _is_zero(signed.zero) else w


def _in_whole_words(x: Expr) -> Expr:
    """Filled up along the axis of the inputs; what lies there is multiplied by zeros."""
    missing = -x.tensor_type.extents[1] % BYTES
    widths = tuple((0, missing if axis == 1 else 0) for axis in range(x.tensor_type.rank))
    return ir.nn.pad(x, pad_width=widths) if missing else x


def _with_border(values: Expr, zero: Expr, padding: Sequence[int]) -> Expr:
    """An image with zeros around it, as they are stored."""
    top, left, bottom, right = padding
    widths = ((0, 0), (0, 0), (top, bottom), (left, right))
    return ir.nn.pad(values, ir.cast(zero, dtype=values.dtype), pad_width=widths)
