"""ONNX shapes and constants: reshape, transpose, join, split, tile, fill."""

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from minitvm.doors import door, left_out
from minitvm.frontend.files import Files
from minitvm.frontend.onnx.model import dense_array
from minitvm.frontend.onnx.node import (
    OnnxNode,
    cast,
    dims,
    emit,
    emit_many,
    normalize_axis,
    onnx_dtype,
    rank,
    scalar,
    with_shapes,
)
from minitvm.frontend.onnx.registry import formulas, onnx_op
from minitvm.ir.dims import (
    Dim,
    SymbolicDim,
    are_counted_on,
    ceil_divide,
    common_shape,
    differ,
    larger,
    smaller,
    with_ones,
)
from minitvm.ir.expr import Constant, Expr
from minitvm.ir.ops._shape import shapes_differ
from minitvm.ir.types import UnknownSize

LARGEST_RANGE = 1 << 24
"""Elements of a Range, which is a constant of the model."""

MOST_PARTS = 64
"""A kernel joins no more tensors than this, and makes no more of one; more are joined or cut in steps."""


def integers(values: object) -> Constant:
    return Constant(np.asarray(values, np.int64))


def positions(count: Dim) -> Expr:
    """0, 1, 2, ... (count,)."""
    return integers(np.arange(count)) if isinstance(count, int) else emit("iota", size=count)


def number(dim: Dim) -> Expr:
    """A dimension, () int64."""
    return Constant(np.asarray(dim)) if isinstance(dim, int) else emit("extent", size=dim, dtype="int64")


@door
def text(values: np.ndarray) -> Expr:
    """A constant tensor of text."""
    raise left_out("text")


@onnx_op("Constant")
def constant(node: OnnxNode) -> Expr:
    for name in ("value_float", "value_floats", "value_int", "value_ints"):
        if node.has(name):
            return Constant(np.asarray(node.attr(name), "float32" if "float" in name else "int64"))
    for name in ("value_string", "value_strings"):
        if node.has(name):
            return text(np.array(node.attr(name), object))
    sparse = node.attr("sparse_value")
    value = node.require("value") if sparse is None else dense_array(sparse, Files())
    return text(value) if value.dtype == object else Constant(value)


@onnx_op("ConstantOfShape", since=9)
def constant_of_shape(node: OnnxNode) -> Expr:
    value = node.attr("value")
    fill = np.zeros((), np.float32) if value is None else value.reshape(())
    shape = tuple(node.sizes(0, "the shape"))
    if not shape:
        return Constant(fill)
    return emit("full", Constant(fill), shape=shape, dtype=fill.dtype.name)


@onnx_op("Shape", since=1)
def shape_of(node: OnnxNode) -> Expr:
    found = dims(node[0])
    start, end = (_clamped(node.attr(n, d), len(found)) for n, d in (("start", 0), ("end", len(found))))
    if all(isinstance(d, int) for d in found[start:end]):
        return integers(found[start:end])
    whole = emit("shape_of", node[0], dtype="int64")
    return emit("strided_slice", whole, begin=(start,), end=(end,)) if (start, end) != (0, len(found)) else whole


def _clamped(position: int, extent: int) -> int:
    return min(max(position + extent if position < 0 else position, 0), extent)


@onnx_op("Size", since=1)
def size(node: OnnxNode) -> Expr:
    if node[0].tensor_type.is_static:
        return integers(node[0].tensor_type.size)
    return emit("ndarray_size", node[0], dtype="int64")


def reshaped(x: Expr, shape: Sequence[Dim], allowzero: bool = False) -> Expr:
    """Reshape by ONNX's rule; ``x`` itself where nothing changes."""
    if x.tensor_type.is_static and tuple(shape) == dims(x):
        return x
    if [*shape].count(-1) > 1:
        raise UnknownSize(f"{x.tensor_type} as {[*shape]}: several sizes are known only when the model runs")
    return emit("reshape", x, newshape=tuple(shape), allowzero=allowzero)


@onnx_op("Flatten", since=1)
def flatten(node: OnnxNode) -> Expr:
    x = node[0]
    axis = node.attr("axis", 1)
    if not -rank(x) <= axis <= rank(x):
        raise node.fail(f"axis {axis} is outside a tensor of rank {rank(x)}")
    axis += rank(x) if axis < 0 else 0
    if axis == 1 and rank(x) > 1:
        return x if rank(x) == 2 else emit("nn.batch_flatten", x)
    return emit("reshape", x, newshape=(known_product(dims(x)[:axis]), known_product(dims(x)[axis:])), allowzero=True)


def first(x: Expr, count: Dim, axis: int) -> Expr:
    """The first ``count`` places along an axis."""
    return x if x.shape[axis] == count else emit("strided_slice", x, begin=(0,), end=(count,), axes=(axis,))


def known_product(extents: tuple[int | None, ...]) -> int:
    """The number of elements, or -1 where a dimension is unknown."""
    return math.prod(d for d in extents if d is not None) if None not in extents else -1


@onnx_op("Squeeze", since=1)
def squeeze(node: OnnxNode) -> Expr:
    axes = node.numbers(1, "axes")
    if axes is None:
        return emit("squeeze", node[0])
    found = tuple(normalize_axis(node, a, rank(node[0])) for a in axes)
    return emit("squeeze", node[0], axis=found) if found else node[0]


@onnx_op("Unsqueeze", since=1)
def unsqueeze(node: OnnxNode) -> Expr:
    axes = node.numbers(1, "axes") or ()
    result = rank(node[0]) + len(axes)
    x, places = node[0], sorted(normalize_axis(node, a, result) for a in axes)
    if len(set(places)) < len(places):
        raise node.fail(f"an axis is repeated in {list(axes)}")
    for axis in places:
        x = emit("expand_dims", x, axis=axis)
    return x


@onnx_op("Concat", since=4)
def concat(node: OnnxNode) -> Expr:
    parts = [node[i] for i in range(len(node.inputs))]
    return concatenated(parts, normalize_axis(node, node.require("axis"), rank(parts[0])))


def concatenated(parts: list[Expr], axis: int) -> Expr:
    while len(parts) > MOST_PARTS:
        groups = [parts[i : i + MOST_PARTS] for i in range(0, len(parts), MOST_PARTS)]
        parts = [emit("annotation.stop_fusion", _joined(group, axis)) for group in groups]
    return _joined(parts, axis)


def _joined(parts: list[Expr], axis: int) -> Expr:
    return parts[0] if len(parts) == 1 else emit("concatenate", parts, axis=axis)


@onnx_op("Split", since=2)
def split(node: OnnxNode) -> list[Expr]:
    """Splits into sizes (attribute or input), or into as many equal parts as there are outputs, the last one
    smaller."""
    x = node[0]
    axis = normalize_axis(node, node.attr("axis", 0), rank(x))
    extent, sizes, outputs = x.tensor_type.extents[axis], node.numbers(1, "split"), len(node.proto.output)
    if sizes is None:
        count = node.attr("num_outputs") or outputs
        if not 0 < count <= outputs:
            raise node.fail(f"dimension {axis} of {x.tensor_type} cannot be split into {count} parts")
        part = ceil_divide(extent, count)
        sizes = [smaller(part, larger(extent - part * n, 0)) for n in range(count)]
    if differ(extent, sum(sizes)):
        raise node.fail(f"the sizes {sizes} do not add up to dimension {axis} of {x.tensor_type}")
    return parted(x, sizes, axis)


def parted(x: Expr, sizes: Sequence[Dim], axis: int) -> list[Expr]:
    """Parts of a tensor along an axis, one behind the other, that are all of it."""
    if len(sizes) == 1:
        return [x]
    if not all(isinstance(size, int) for size in sizes):
        return [
            emit("strided_slice", x, begin=(end - n,), end=(end,), axes=(axis,))
            for end, n in zip(accumulate(sizes), sizes, strict=True)
        ]
    if len(sizes) > MOST_PARTS:
        groups = [sizes[i : i + MOST_PARTS] for i in range(0, len(sizes), MOST_PARTS)]
        whole = [emit("annotation.stop_fusion", part) for part in parted(x, list(map(sum, groups)), axis)]
        return [one for part, group in zip(whole, groups, strict=True) for one in parted(part, group, axis)]
    return emit_many("split", x, indices_or_sections=tuple(accumulate(sizes))[:-1], axis=axis)


@onnx_op("Expand", since=8)
def expand(node: OnnxNode) -> Expr:
    """Expands to the shape that both broadcast to; where that shape is known only at run time, to a filled tensor's."""
    x = node[0]
    wanted = tuple(node.sizes(1, "the shape"))
    own, wanted = with_ones(x.tensor_type.shape, wanted)
    (x,) = with_shapes([x], [own])
    try:
        shape = common_shape(own if are_counted_on() else x.shape, wanted)
    except ValueError as error:
        raise node.fail(f"{x.type} cannot be broadcast to shape {list(wanted)}: {error}") from error
    return x if shape == dims(x) else emit("broadcast_to", x, shape=shape)


@door
def open_range(start: Dim | float, limit: Dim | float, delta: Dim | float, dtype: str) -> Expr:
    """A range of which a run says how long it is."""
    raise left_out("a range of open length")


@onnx_op("Range", since=11)
def range_(node: OnnxNode) -> Expr:
    start, limit, delta = (node.sizes(i, n)[0] for i, n in enumerate(("start", "limit", "delta")))
    dtype = node[0].dtype
    if any(isinstance(bound, SymbolicDim) for bound in (start, limit, delta)):
        return open_range(start, limit, delta, dtype)
    count = (limit - start) / delta if delta else math.nan
    if math.isnan(count):
        raise node.misfit(f"from {start} to {limit} in steps of {delta} is no range")
    if count > LARGEST_RANGE:
        raise node.misfit(f"from {start} to {limit} in steps of {delta} are more than {LARGEST_RANGE:,} numbers")
    node.afford(8 * count, f"a range of {count:,.0f} numbers")
    if isinstance(start, int):
        return Constant(np.array(range(start, limit, delta), dtype))
    return Constant(np.arange(start, limit, delta, dtype=dtype).astype(dtype))


def _eye_like(node: OnnxNode) -> Expr:
    dtype = onnx_dtype(node, node.attr("dtype")) if node.has("dtype") else node[0].dtype
    return emit("eye", shape=dims(node[0]), k=int(node.attr("k")), dtype=dtype)


def _trilu(node: OnnxNode) -> Expr:
    k = emit("reshape", node.get(1) or scalar(0, "int64"), newshape=())
    return emit("trilu", node[0], k, upper=bool(node.attr("upper")))


formulas(
    {
        "DepthToSpace": lambda n: emit(
            "nn.depth_to_space", n[0], block_size=n.require("blocksize"), mode=n.attr("mode", "DCR")
        ),
        "EyeLike-9": _eye_like,
        "Transpose": lambda n: emit("transpose", n[0], axes=tuple(n.attr("perm")) if n.has("perm") else None),
        "Trilu-14": _trilu,
    }
)


@onnx_op("Reshape", since=1)
def reshape(node: OnnxNode) -> Expr:
    shape = node.sizes(1, "the shape")
    if any(isinstance(extent, int) and extent < -1 for extent in shape):
        raise node.fail(f"the shape {shape} has extents below -1, which stands for what is left")
    return reshaped(node[0], shape, bool(node.attr("allowzero", 0)))


@onnx_op("Tile", since=1)
def tile(node: OnnxNode) -> Expr:
    repeats = tuple(node.sizes(1, "repeats"))
    if len(repeats) != rank(node[0]):
        raise node.fail(f"{len(repeats)} repeats for {rank(node[0])} axes")
    if all(isinstance(count, int) for count in repeats):
        return emit("tile", node[0], reps=repeats)
    return _tiled(node[0], repeats)


def _tiled(x: Expr, repeats: tuple[Dim, ...]) -> Expr:
    """By counts that a run knows: each axis is broadcast along one of its own before it."""
    shape = x.tensor_type.shape
    apart = reshaped(x, [d for extent in shape for d in (1, extent)])
    whole = tuple(d for pair in zip(repeats, shape, strict=True) for d in pair)
    spread = emit("broadcast_to", apart, shape=whole)
    return reshaped(spread, [count * extent for count, extent in zip(repeats, shape, strict=True)])


@onnx_op("SpaceToDepth", since=1)
def space_to_depth(node: OnnxNode) -> Expr:
    """Moves blocks to channels; in mode CRD, which opset 28 adds, the channel comes before the place within a block."""
    x, b = node[0], node.require("blocksize")
    if node.attr("mode", "DCR") == "DCR":
        return emit("nn.space_to_depth", x, block_size=b)
    n, c, h, w = x.shape
    apart = reshaped(x, [n, c, h // b, b, w // b, b])
    return reshaped(emit("transpose", apart, axes=(0, 1, 3, 5, 2, 4)), [n, c * b * b, h // b, w // b])


@onnx_op("OneHot", since=9)
def one_hot(node: OnnxNode) -> Expr:
    """``values`` = [off, on]; indices outside of [-depth, depth) give a row of off."""
    depth = int(node.constant(1, "depth").item())
    axis = normalize_axis(node, node.attr("axis"), rank(node[0]) + 1)
    if shapes_differ(node[2].tensor_type.shape, (2,)):
        raise node.misfit(f"values are {node[2].tensor_type}, not two numbers: off and on")
    indices = cast(node[0], "int64")
    wrapped = emit("where", emit("less", indices, integers(0)), emit("add", indices, integers(depth)), indices)
    off, on = (emit("take", node[2], integers(i), axis=0) for i in (0, 1))
    return emit("one_hot", wrapped, on, off, depth=depth, axis=axis, dtype=node[2].dtype)
