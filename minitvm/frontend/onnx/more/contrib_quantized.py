"""Quantized layers of ONNX Runtime's own domain, ``com.microsoft``.

A layer on quantized tensors, each with its scale and zero point, is what it is on the real numbers, between dequantize
and quantize; products, whose sums are exact, stay in integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from minitvm.frontend.onnx.matmul import flat_rows, matmul, transposed, unflattened
from minitvm.frontend.onnx.more.contrib import channels_last, channels_second, contrib_op, only
from minitvm.frontend.onnx.more.quantize import (
    dynamically_quantized,
    integer_matmul,
    requantized,
    scalar_or_vector,
    zero_point,
)
from minitvm.frontend.onnx.node import OnnxNode, cast, dims, emit, evaluate_known, normalize_axis, rank, scalar, wide
from minitvm.frontend.onnx.registry import MICROSOFT, formulas
from minitvm.frontend.onnx.rnn import Layer, activations_of, layer_of, lstm_step, outputs_of, step_of
from minitvm.frontend.onnx.tensor import first, integers, reshaped
from minitvm.ir.dtypes import carrier, is_float
from minitvm.ir.expr import Constant, Expr
from minitvm.ir.ops.more.qnn_recurrent import words_of

# --- on real numbers ------------------------------------------------------------------------------------------


def _real(node: OnnxNode, index: int = 0) -> Expr:
    """Input ``index`` as real numbers: its scale and its zero point follow it."""
    scale = scalar_or_vector(node[index + 1])
    zero = scalar_or_vector(zero_point(node, index + 2, scale, node[index].dtype))
    if rank(scale) or rank(zero):
        raise node.fail(f"the scale of input {index} is {node[index + 1].tensor_type}; expected one number")
    return emit("qnn.dequantize", node[index], scale, zero, axis=0)


def _stored(node: OnnxNode, x: Expr, scale: int, dtype: str) -> Expr:
    """``x`` by the result's scale, input ``scale``, and the zero point behind it."""
    return requantized(x, node[scale], zero_point(node, scale + 1, node[scale], dtype))


_PARTS_AND_RESULT = {"Add": ((0, 3), 6), "Mul": ((0, 3), 6), "Where": ((1, 4), 7)}
"""Where operands and the result's scale stand among the inputs; of layers of one operand at 0 and 3."""
_OF_ONE = ("AveragePool", "GlobalAveragePool", "LeakyRelu", "ReduceMean", "Sigmoid")
_AXES_BY_NAME = 13
"""The last opset in which the axes of a ReduceMean are an attribute."""


@contrib_op(*(f"QLinear{name}" for name in ("Concat", *_OF_ONE, *_PARTS_AND_RESULT)))
def on_real_numbers(node: OnnxNode) -> Expr:
    """ONNX's layer of the same name over what the tensors stand for."""
    name = node.op_type.removeprefix("QLinear")
    parts: Sequence[int]
    parts, result = _PARTS_AND_RESULT.get(name, ((0,), 3))
    if name == "Concat":
        parts, result = _parts_of_concat(node), 0
    is_last = bool(node.attr("channels_last", 0))
    real = [_real(node, i) for i in parts]
    operands = [*node.inputs[: name == "Where"], *(channels_second(x) if is_last else x for x in real)]
    opset = _AXES_BY_NAME if name == "ReduceMean" else onnx.defs.onnx_opset_version()
    found = only(node.as_onnx(name, *operands, opset=opset))
    return _stored(node, channels_last(found) if is_last else found, result, node[parts[0]].dtype)


def _parts_of_concat(node: OnnxNode) -> range:
    """The result's scale and zero point come first, then each part with its own."""
    if len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        raise node.fail(f"takes 2 inputs and 3 for each part, {len(node.inputs)} given")
    return range(2, len(node.inputs), 3)


@contrib_op("QLinearSoftmax")
def softmax(node: OnnxNode) -> Expr:
    """Softmax as ONNX Runtime computes it: in integers, by a table of the powers of a step, as many as its sums have
    room for.

    The largest of a row is 255 in the table; a quotient is rounded half up, after the result's scale was made whole.
    """
    x, opset = node[0], node.require("opset")
    axis = normalize_axis(node, node.attr("axis", -1), rank(x))
    count, axes = _softmax_axes(x, axis, opset)
    steps = Constant(np.arange(-255, 1, dtype=np.float64))
    exponentials = emit("exp", steps * cast(scalar_or_vector(node[1]), "float64"))
    table = cast(emit("round", exponentials * min((2**32 - 1) / max(count, 1), 0x7FFFFF)), "int64")
    whole = cast(x, "int64")
    exponentials = emit("take", table, whole - emit("max", whole, axis=axes, keepdims=True) + 255, axis=0, mode="clip")
    total = emit("sum", exponentials, axis=axes, keepdims=True)
    scale = cast(emit("floor", 1 / scalar_or_vector(node[3])), "int64")
    zero = cast(scalar_or_vector(zero_point(node, 4, node[3], x.dtype)), "int64")
    shares = emit("floor_divide", exponentials * scale + emit("floor_divide", total, 2), total) + zero
    info = np.iinfo(x.dtype)
    return cast(emit("clip", shares, a_min=float(info.min), a_max=float(info.max)), x.dtype)


def _softmax_axes(x: Expr, axis: int, opset: int) -> tuple[int, tuple[int, ...]]:
    """The axes that a row goes over, and its length: before opset 13 all from ``axis`` on."""
    axes = (axis,) if opset >= 13 else tuple(range(axis, rank(x)))
    return int(np.prod([x.shape[a] for a in axes])), axes


# --- products in integers -------------------------------------------------------------------------------------


@contrib_op("QLinearConv")
def convolution(node: OnnxNode) -> Expr:
    """ONNX's, also with channels last."""
    is_last = node.attr("channels_last", 0)
    x = channels_second(node[0]) if is_last else node[0]
    found = only(node.as_onnx("QLinearConv", x, *node.inputs[1:]))
    return channels_last(found) if is_last else found


def _product(
    node: OnnxNode, lhs: Sequence[Expr | None], rhs: Sequence[Expr | None], bias: Expr | None, alpha: float = 1.0
) -> Expr:
    """alpha * A B' in integers, scaled to real numbers.  ``lhs``, ``rhs``: values, scale and zero point.

    A bias of integers is in the scale of the products, one of floats in that of the result.
    """
    (a, a_scale, a_zero), (b, b_scale, b_zero) = lhs, rhs
    assert a is not None and b is not None and a_scale is not None and b_scale is not None
    total = integer_matmul(node, a, b, a_zero, b_zero)
    if bias is not None and bias.dtype == "int32":
        total, bias = emit("add", total, bias), None
    scale = emit("multiply", scalar_or_vector(a_scale), scalar_or_vector(b_scale))
    scale = scale if alpha == 1 else emit("multiply", scale, scalar(alpha, scale))
    real = emit("multiply", cast(total, scale.dtype), scale)
    return real if bias is None else emit("add", real, bias)


@contrib_op("QGemm")
def gemm(node: OnnxNode) -> Expr:
    """Inputs: a, b with scale and zero point, the bias (int32), the result's scale and zero point.

    alpha * (A' B' + C) in the scale of the products, one scale per column at most, in steps of the result's scale;
    rounded where there is a zero point.
    """
    a = transposed(node[0]) if node.attr("transA", 0) else node[0]
    b = transposed(node[3]) if node.attr("transB", 0) else node[3]
    lhs, rhs = (a, node[1], node.get(2)), (b, node[4], node.get(5))
    result = _product(node, lhs, rhs, node.get(6), node.attr("alpha", 1.0))
    result = result if node.get(7) is None else result / scalar_or_vector(node[7])
    return result if node.get(8) is None else requantized(result, scalar(1, result), node[8])


def integer_to_float(node: OnnxNode) -> Expr:
    """Inputs: a, b, their scales, their zero points, the bias."""
    return _product(node, (node[0], node[2], node.get(4)), (node[1], node[3], node.get(5)), node.get(6))


def quantized_projection(node: OnnxNode) -> Expr:
    """QAttention's: inputs a, b, the bias, the scales; then, behind the mask, the zero points."""
    return _product(node, (node[0], node[3], node.get(6)), (node[1], node[4], node.get(7)), node[2])


def dynamic_product(node: OnnxNode, x: Expr, *weights: Expr | None, bias: Expr | None = None) -> Expr:
    """``x`` quantized as it comes, times ``weights``: values, scale, zero point."""
    return _product(node, dynamically_quantized(x), weights, bias)


formulas(
    {
        "DynamicQuantizeMatMul": lambda n: dynamic_product(n, n[0], n[1], n[2], n.get(3), bias=n.get(4)),
        "MatMulInteger16": lambda n: matmul(n, n[0], n[1], out_dtype="int32"),
        "MatMulIntegerToFloat": integer_to_float,
    },
    domain=MICROSOFT,
)


@contrib_op("DynamicQuantizeLSTM")
def dynamic_lstm(node: OnnxNode) -> list[Expr | None]:
    """An LSTM whose input and whose state at each step are quantized as they come.

    W (directions, input, 4 * hidden), R (directions, hidden, 4 * hidden), behind ONNX's inputs their scales and zero
    points, one for each direction or for each of its columns.  Gates: input, output, forget, cell.
    """
    layer = layer_of(node)

    def run(direction: int) -> list[Expr]:
        w, r = (
            [layer.part(node[i], direction) if i < 8 else _own(layer, node[i], direction) for i in (p, q, q + 1)]
            for p, q in ((1, 8), (2, 10))
        )
        functions = activations_of(node, layer.directions)[3 * direction : 3 * direction + 3]
        one, other = layer.biases(direction)
        bias = None if one is None or other is None else emit("add", one, other)
        steps, batch, features = layer.x.shape
        rows = reshaped(_read(layer), [steps * batch, features], allowzero=True)
        gates = reshaped(dynamic_product(node, rows, *w, bias=bias), [steps, batch, 4 * layer.hidden], allowzero=True)
        peepholes = [] if node.get(7) is None else [layer.part(node[7], direction)]
        given = [layer.initial(index, direction) for index in (5, 6)]
        packed = None if step_of(layer, direction) is not None else _packed(node, r)
        if packed is not None:
            return layer.recurred(direction, gates, packed[0], *packed[1:], *given, *peepholes)

        def step(states: list[Expr], projected: Expr, taken: list[Expr]) -> tuple[list[Expr], Expr]:
            weights, weight = taken[:3], [*taken[3:]]
            total = projected + dynamic_product(node, states[0], *weights)
            return lstm_step(functions, total, states[1], weight, bool(node.attr("input_forget", 0)))

        return layer.looped(step, given, gates, [*r, *peepholes], layer.is_reverse(direction))

    return outputs_of(layer, run)


def _packed(node: OnnxNode, weight: Sequence[Expr]) -> list[Expr] | None:
    """What ``qnn.lstm`` takes of a weight, its scale and zero point; ``None`` where these are not constants."""
    found = [evaluate_known(part, node.known_values) for part in weight]
    values, scale, zero = found
    if values is None or scale is None or zero is None:
        return None
    shift = 128 if values.dtype == "uint8" else 0
    signed, columns = (values.astype("int32") - shift).astype("int8"), values.shape[1]
    zeros = np.broadcast_to(zero.astype("int32") - shift, (columns,))
    sums = (signed.astype("int32") - zeros).sum(0, dtype="int32")
    corrections = [sums, zeros] if np.any(zeros) else [sums]
    ones = np.ones((len(signed), len(corrections) - 1), "int8")
    words = words_of(np.concatenate([signed, ones], axis=1))
    return [Constant(a) for a in (words, np.stack(corrections), np.array(np.broadcast_to(scale, (columns,))))]


def _read(layer: Layer) -> Expr:
    """The input, with zeros behind the longest sequence: its range is that of what is read."""
    if layer.lengths is None:
        return layer.x
    step = integers(np.arange(layer.x.shape[0]).reshape(-1, 1, 1))
    return emit("where", emit("less", step, emit("max", cast(layer.lengths.values, "int64"), axis=(0,))), layer.x, 0)


def _own(layer: Layer, parameter: Expr, direction: int) -> Expr:
    """A direction's scale or zero points: one number, or one for each column."""
    return layer.part(parameter, direction) if rank(parameter) == 2 or layer.directions > 1 else parameter


# --- weights of few bits --------------------------------------------------------------------------------------


def unpacked(x: Expr, bits: int, count: int) -> Expr:
    """The numbers of ``bits`` each that bytes hold along the last axis, lowest first; the first ``count``, or all."""
    per_byte = 8 // bits
    if per_byte > 1:
        shifts = Constant(np.arange(0, 8, bits).astype("uint8"))
        parts = emit("right_shift", emit("expand_dims", x, axis=rank(x)), shifts)
        x = emit("bitwise_and", parts, scalar(2**bits - 1, x))
        x = reshaped(x, [*x.shape[:-2], x.shape[-2] * per_byte])
    return x if count == -1 else first(x, count, rank(x) - 1)


def packed(x: Expr, bits: int) -> Expr:
    """Unsigned numbers of ``bits`` each, several to a byte along the last axis, lowest first."""
    pairs = reshaped(cast(x, "uint8"), [*x.shape[:-1], x.shape[-1] * bits // 8, 8 // bits])
    shifted = emit("left_shift", pairs, Constant(np.arange(0, 8, bits).astype("uint8")))
    return cast(emit("sum", shifted, axis=(rank(x),)), "uint8")


def _middle(bits: int) -> Expr:
    """The zero point of unsigned numbers that have none of their own; 0 of signed ones."""
    return Constant(np.asarray(2 ** (bits - 1) if bits else 0, "uint8"))


@contrib_op("MatMulNBits")
def few_bits(node: OnnxNode) -> Expr:
    """A B', B (columns, blocks, bytes of a block) of 2, 4 or 8 bits; scales and zero points for each block of a column.

    Zero points are packed as B is, or floats; without any the middle of the range.  ``g_idx`` says of each row of B'
    whose scale it has: rows are put in the order of the blocks, and the columns of A with them.
    """
    depth, columns, bits, block = (node.attr(name, default) for name, default in _FEW_BITS)
    blocks = -(-depth // block)
    scales, zeros = reshaped(node[2], [columns, blocks]), node.get(3) or _middle(bits)
    if rank(zeros) and zeros.dtype == "uint8":
        zeros = unpacked(reshaped(zeros, [columns, zeros.tensor_type.size // columns]), bits, blocks)
    elif rank(zeros):
        zeros = reshaped(zeros, [columns, blocks])
    codes = reshaped(node[1], [columns, node[1].tensor_type.size // columns])
    form = {"axis": 1, "block": block, "bits": bits, "extent": depth}
    if node.attr("accuracy_level", 0) == _INT8:
        result = _by_int8(node, codes, scales, zeros, bits)
        if result is not None:
            return result if node.get(5) is None else emit("add", result, node[5])
    groups, a = None if node.get(4) is None else node.constant(4, "g_idx")[:depth], node[0]
    if groups is not None and np.array_equal(np.sort(groups), np.arange(depth) // block):
        order = np.argsort(groups, kind="stable")
        a = emit("take", a, integers(order), axis=rank(a) - 1, mode="clip")
        codes = _in_order(codes, bits, order)
    elif groups is not None:  # of other sizes than blocks: each row with a block of its own
        at = integers(groups)
        scales, zeros = (emit("take", p, at, axis=1, mode="clip") if rank(p) else p for p in (scales, zeros))
        codes, form = unpacked(codes, bits, depth), {"axis": 1, "block": 1}
    weight = emit("qnn.dequantize_blocks", codes, scales, zeros, **form)
    result = matmul(node, a, transposed(weight))
    return result if node.get(5) is None else emit("add", result, node[5])


def _by_int8(node: OnnxNode, codes: Expr, scales: Expr, zeros: Expr, bits: int) -> Expr | None:
    """The same with A in int8, quantized by the blocks of B; ``None`` where B is made by the model, or not in whole
    blocks, and where ONNX Runtime multiplies floats."""
    block, columns, (least, most) = node.attr("block_size", 32), node.attr("N", 0), _INT8_BLOCKS.get(bits, (1, 0))
    plain = zeros.dtype == "uint8" and scales.dtype in ("float32", "float16") and node.get(4) is None
    whole = codes.tensor_type.shape[1] * 8 == scales.tensor_type.shape[1] * block * bits
    if not least <= block <= most or not plain or not whole or node.known(1) is None:
        return None
    zeros = emit("qnn.block_panels", zeros) if rank(zeros) else zeros
    weight = (emit("qnn.block_panels", codes, bits=bits), emit("qnn.block_panels", scales), zeros)

    numbers, *others = [*emit("qnn.quantize_blocks", node[0], block=block)]
    rows = (flat_rows(part, dims(part)[-1]) for part in (emit("qnn.words", numbers), *others))
    product = emit("qnn.dense_blocks", *rows, *weight, units=columns, block=block, bits=bits)
    return product if rank(node[0]) == 2 else unflattened(product, (*dims(node[0])[:-1], columns))


_INT8 = 4
"""The ``accuracy_level`` that lets A become int8."""
_INT8_BLOCKS = {2: (32, 128), 4: (16, 256), 8: (16, 256)}
"""By bits, the least and the most numbers of a block for which ONNX Runtime does so."""

_FEW_BITS = (("K", 0), ("N", 0), ("bits", 4), ("block_size", 32))


def _in_order(codes: Expr, bits: int, order: np.ndarray) -> Expr:
    """Packed rows with their numbers in another order; what fills the last block up stays."""
    rest = np.arange(len(order), codes.shape[1] * 8 // bits)
    reordered = emit("take", unpacked(codes, bits, -1), integers(np.concatenate([order, rest])), axis=1, mode="clip")
    return packed(reordered, bits)


@contrib_op("GatherBlockQuantized")
def gather_block_quantized(node: OnnxNode) -> Expr:
    """Inputs: data, indices, scales, zero points.  Rows are looked up, then dequantized by blocks; along the axis of
    the blocks, or of what shares a byte, the other way round."""
    data, bits = node[0], node.attr("bits", 4) if node[0].dtype == "uint8" else 8
    axis = normalize_axis(node, node.attr("gather_axis", 0), rank(data))
    along = normalize_axis(node, node.attr("quantize_axis", 1), rank(data))
    is_late = along != axis and (bits == 8 or axis != rank(data) - 1) and not is_float(data.dtype)

    def found(table: Expr) -> Expr:
        return only(node.as_onnx("Gather", table, node[1], axis=axis))

    tables = [data, node[2], *([] if node.get(3) is None else [node[3]])]
    if not is_late:
        return found(_real_blocks(node, tables, along, bits))
    return _real_blocks(node, [found(t) for t in tables], along + rank(node[1]) - 1 if along > axis else along, bits)


def _real_blocks(node: OnnxNode, tables: Sequence[Expr], axis: int, bits: int) -> Expr:
    """Numbers, scales and perhaps zero points of blocks along ``axis``; a byte holds 8 / ``bits`` numbers."""
    (values, scales, *given), block = tables, node.attr("block_size", 128)
    if is_float(values.dtype):
        if block:
            end = (values.shape[axis],)
            scales = emit("repeat", scales, repeats=block, axis=axis)
            scales = emit("strided_slice", scales, begin=(0,), end=end, axes=(axis,))
        return cast(cast(values, wide(scales.dtype)) * cast(scales, wide(scales.dtype)), scales.dtype)
    is_byte = values.dtype == "uint8"
    zeros = given[0] if given else _middle(bits if is_byte else 0)
    if rank(zeros) and is_byte:
        zeros = unpacked(zeros, bits, scales.shape[-1])
    form = {"axis": axis, "block": block}
    few = {"bits": bits} if is_byte and axis == rank(values) - 1 else {}
    if not few:  # a byte each, or bytes of several along another axis
        values = unpacked(values, bits, -1) if is_byte else cast(values, carrier(values.dtype))
    return emit("qnn.dequantize_blocks", values, scales, cast(zeros, carrier(zeros.dtype)), **form, **few)
