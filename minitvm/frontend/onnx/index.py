"""ONNX gathers, slices and pads."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minitvm.doors import door
from minitvm.frontend.onnx.node import OnnxNode, dims, emit, normalize_axis, rank, scalar
from minitvm.frontend.onnx.registry import formulas, onnx_op
from minitvm.frontend.onnx.shape_values import Known
from minitvm.frontend.onnx.tensor import known_product
from minitvm.ir.dims import (
    Dim,
    SymbolicDim,
    always_less,
    are_counted_on,
    falls_short,
    is_less,
    is_measured,
    larger,
    larger_here,
)
from minitvm.ir.expr import Call, Expr
from minitvm.ir.ops.checks import OutOfRange
from minitvm.ir.ops.transform import Transpose

WORTH_A_ROW = 512
"""Indices whose check is more work than to look at one more result of it after the run."""


@door
def are_within(indices: Expr, extents: Sequence[Dim], known: Known) -> bool:
    """True if indices are known to be in range whatever sizes are; nobody looks."""
    return False


@door
def selected(data: Expr, axis: int, indices: Expr, known: Known) -> Expr | None:
    """The data that indices along an axis select as a part of them; ``None`` where that is not known."""
    return None


@door
def selected_each(data: Expr, positions: Expr, known: Known) -> Expr | None:
    """The same for an index along each of the first axes."""
    return None


def within(node: OnnxNode, data: Expr, indices: Expr, axes: tuple[int, ...], lengths: bool = False) -> Expr:
    """``indices``, checked to lie within those axes of ``data``: now where they are known, else when the model runs."""
    known, shape = node.value(indices), dims(data)
    by_row = len(axes) == 1 and always_less(WORTH_A_ROW - 1, known_product(dims(indices)[1:]))
    by_row = by_row and not is_measured(indices.tensor_type.shape[0])  # as memory is planned for more rows
    check = OutOfRange(axes, lengths, by_row)
    if known is not None and all(isinstance(shape[a], int) for a in axes):
        wrong = check.first_outside(data.tensor_type.shape, known)
        if wrong is not None:
            raise node.misfit(check.message(data.tensor_type).format(wrong))
        return indices
    if (
        not lengths
        and are_counted_on()
        and are_within(indices, [data.tensor_type.shape[a] for a in axes], node.known_values)
    ):
        return indices
    return emit("control.after", indices, emit(check.name, data, indices, **check.attributes()))


@onnx_op("Gather", since=1)
def gather(node: OnnxNode) -> Expr:
    """``take``; its wrapping mode gives negative indices ONNX's meaning, constant ones do not need it."""
    axis, known = normalize_axis(node, node.attr("axis"), rank(node[0])), node.known(1)
    mode = "clip" if known is not None and not np.any(known < 0) else "wrap"
    indices = within(node, node[0], node[1], (axis,))
    if indices is node[1] and known is None:  # they are in range as sizes say
        found = selected(node[0], axis, indices, node.known_values)
        return emit("take", node[0], indices, axis=axis, mode="clip") if found is None else found
    return emit("take", node[0], indices, axis=axis, mode=mode)


def positions_first(node: OnnxNode, batch_dims: int = 0) -> Expr:
    """ONNX keeps the positions of an element in the last dimension, Relay in the first."""
    last = rank(node[1]) - 1
    positions = emit("transpose", node[1], axes=(last, *range(last)))
    depth = dims(positions)[0]
    if not depth or depth + batch_dims > rank(node[0]):
        return positions  # the operator says what does not fit
    return within(node, node[0], positions, tuple(range(batch_dims, batch_dims + depth)))


def along(node: OnnxNode, name: str, *values: Expr, **options: Any) -> Expr:
    """An operator whose second input are indices along one axis of the first."""
    axis = normalize_axis(node, node.attr("axis"), rank(node[0]))
    return emit(name, node[0], within(node, node[0], node[1], (axis,)), *values, axis=axis, **options)


def _gather_nd(node: OnnxNode) -> Expr:
    batch_dims = node.attr("batch_dims", 0)
    positions = positions_first(node, batch_dims)
    if not batch_dims and isinstance(positions, Call) and isinstance(positions.op, Transpose):  # as sizes say in range
        found = selected_each(node[0], positions, node.known_values)
        if found is not None:
            return found
    return emit("gather_nd", node[0], positions, batch_dims=batch_dims)


def _features(node: OnnxNode) -> Expr:
    """Columns of the last dimension; of a vector, and of one row of indices, a matrix."""
    x, at = node[0], emit("reshape", node[1], newshape=(-1,))
    found = emit("take", x, within(node, x, at, (rank(x) - 1,)), axis=rank(x) - 1, mode="wrap")
    return emit("expand_dims", found, axis=0) if rank(x) == 1 else found


formulas({"ArrayFeatureExtractor": _features}, domain="ai.onnx.ml")
formulas({"GatherElements-11": lambda n: along(n, "gather"), "GatherND-11": _gather_nd})


@onnx_op("Slice")
def slice_(node: OnnxNode) -> Expr:
    node.inputs[1:] = map(_of_one, node.inputs[1:])
    named = enumerate(("starts", "ends", "axes", "steps"), 1)
    starts, ends, axes, steps = (node.numbers(i, name, signed=True) for i, name in named)
    if starts is None or ends is None:
        raise node.fail(f"its {'starts' if starts is None else 'ends'} are missing")
    x = node[0]
    places = [normalize_axis(node, a, rank(x)) for a in axes or range(len(starts))]
    bounds = zip(places, starts, ends, steps or [1] * len(starts), strict=True)
    cuts = [_cut(node, axis, *bound) for axis, *bound in bounds]
    begin, end, strides = zip(*cuts, strict=True) if cuts else ((), (), ())
    return emit("strided_slice", x, begin=begin, end=end, strides=strides, axes=tuple(places))


def _of_one(value: Expr | None) -> Expr | None:
    """A vector as one of one element, where a run says of how many: else another library is asked."""
    is_open = are_counted_on() and value is not None and not value.tensor_type.is_static
    return emit("reshape", value, newshape=(1,)) if is_open else value


def _cut(node: OnnxNode, axis: int, start: Dim, stop: Dim, step: int) -> tuple[Dim, Dim, int]:
    """ONNX's start, end and step as those of a Python slice that takes the same elements."""
    extent = dims(node[0])[axis]
    if step == 0:
        raise node.fail("a step is 0")
    if not isinstance(extent, int) or not isinstance(start, int) or not isinstance(stop, int):
        if step < 0 and not (isinstance(start, int) and start >= -1):
            raise node.fail(f"start {start} with step {step} needs to know dimension {axis}", "give shape_dict")
        return _from_front(node[0], axis, start), _from_front(node[0], axis, stop), step
    taken = taken_elements(start, stop, step, extent)
    if not taken:
        return 0, 0, 1
    step = taken.step if len(taken) > 1 else 1
    end = taken[-1] + (1 if step > 0 else -1)
    return taken[0], end if end >= 0 else -extent - 1, step


def _from_front(x: Expr, axis: int, bound: Dim) -> Dim:
    """A bound that only a run knows, counted from the first element, the first where it lies before that; numbers as
    they are."""
    is_behind = isinstance(bound, SymbolicDim) and is_less(bound, 0)
    return larger(bound + x.tensor_type.extents[axis], 0) if is_behind else bound


def taken_elements(start: int, stop: int, step: int, extent: int) -> range:
    """The elements that Slice takes.  Unlike Python, ONNX moves a start outside of the tensor onto its first or last
    element before it goes backwards: ``[-8:-9:-1]`` of 7 elements is the first one."""
    start, stop = (p + extent if p < 0 else p for p in (start, stop))
    lowest, highest = (0, extent) if step > 0 else (-1, extent - 1)
    return range(min(max(start, 0), highest), min(max(stop, lowest), extent), step)


@onnx_op("Pad")
def pad(node: OnnxNode) -> Expr:
    x, pads = node[0], node.numbers(1, "pads")
    if pads is None:
        raise node.fail("its pads are missing")
    return padded(node, x, pads, node.numbers(3, "axes"), node.get(2) or scalar(node.attr("value", 0), x))


def padded(node: OnnxNode, x: Expr, pads: list[Dim], axes: list[int] | None, value: Expr) -> Expr:
    """``nn.pad``; negative pads cut off, as ``strided_slice``."""
    places = [normalize_axis(node, a, rank(x)) for a in (range(rank(x)) if axes is None else axes)]
    if len(pads) != 2 * len(places):
        raise node.fail(f"{len(pads)} pads for {len(places)} axes")
    width: list[tuple[Dim, Dim]] = [(0, 0)] * rank(x)
    for i, axis in enumerate(places):
        width[axis] = (pads[i], pads[i + len(places)])
    x = _cropped(node, x, width)
    grown = tuple((larger_here(a, 0), larger_here(b, 0)) for a, b in width)
    mode = node.attr("mode", "constant")
    if {*grown} <= {(0, 0)}:
        return x
    if mode == "wrap":
        return _wrapped(x, grown)
    fill = value if rank(value) == 0 else emit("reshape", value, newshape=())
    return emit("nn.pad", x, fill, pad_width=grown, pad_mode=mode)


def _cropped(node: OnnxNode, x: Expr, width: list[tuple[Dim, Dim]]) -> Expr:
    for axis, (before, after) in enumerate(width):
        begin, less, extent = larger_here(0, -before), larger_here(0, -after), x.tensor_type.extents[axis]
        if {begin, less} != {0}:
            if falls_short(extent, begin + less):
                raise node.misfit(f"pads {before} and {after} cut off more than dimension {axis} of {x.tensor_type}")
            x = emit("strided_slice", x, begin=(begin,), end=(extent - less,), axes=(axis,))
    return x


def _wrapped(x: Expr, width: tuple[tuple[Dim, Dim], ...]) -> Expr:
    for axis, (before, after) in enumerate(width):
        if {before, after} != {0}:
            places = emit("iota", size=x.tensor_type.extents[axis] + before + after)
            x = emit("take", x, emit("subtract", places, emit("extent", size=before)), axis=axis, mode="wrap")
    return x


@onnx_op("ReverseSequence", since=10)
def reverse_sequence(node: OnnxNode) -> Expr:
    time, batch = node.attr("time_axis"), node.attr("batch_axis")
    lengths = within(node, node[0], node[1], (normalize_axis(node, time, rank(node[0])),), lengths=True)
    return emit("reverse_sequence", node[0], lengths, seq_axis=time, batch_axis=batch)
