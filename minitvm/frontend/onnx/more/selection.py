"""ONNX operators whose results are as long as the data say: what is not 0, what differs, which boxes are kept."""

import numpy as np

from minitvm.frontend.onnx.elsewhere import foreign
from minitvm.frontend.onnx.index import within
from minitvm.frontend.onnx.node import OnnxNode, cast, dims, emit, emit_many, normalize_axis, rank, scalar
from minitvm.frontend.onnx.registry import Outputs, onnx_op
from minitvm.frontend.onnx.tensor import integers
from minitvm.ir.dims import are_counted_on, is_anonymous, measure
from minitvm.ir.expr import Constant, Expr
from minitvm.ir.types import is_named, is_numeric


def prefix(value: Expr, count: Expr, axis: int) -> Expr:
    """The first ``count`` places of a value along an axis: () int64, which the data decide."""
    extent = measure(lambda: count, count) if are_counted_on() and not isinstance(count, Constant) else None
    return emit("prefix", value, count, axis=axis, extent=extent)


@onnx_op("Unique", since=11)
def unique(node: OnnxNode) -> Outputs:
    """The different elements, or slices; where they are first, which one each is, how often it is there."""
    x = node[0]
    if not is_numeric(x.type) or not _is_known(x):
        return foreign(node)
    axis = normalize_axis(node, node.attr("axis"), rank(x)) if node.has("axis") else None
    values, first, group, counts, number = emit_many("unique", x, axis=axis, sorted=bool(node.attr("sorted")))
    short = [prefix(part, number, 0) for part in (first, counts)]
    return [prefix(values, number, axis or 0), short[0], group, short[1]]


def _is_known(x: Expr) -> bool:
    """True if kernels can have it: its sizes are known, or counted on by their names."""
    return is_named(x.type) if are_counted_on() else x.tensor_type.is_static


@onnx_op("TopK")
def top_k(node: OnnxNode) -> list[Expr]:
    """The k largest, from opset 11 on the smallest too."""
    [k] = node.sizes(1, "k") if node.get(1) is not None else node.numbers(1, "k") or [0]
    ascending = not node.attr("largest", 1)
    axis = normalize_axis(node, node.attr("axis", -1), rank(node[0]))
    if k == 0:  # Relay's 0 means all
        nothing = emit("strided_slice", node[0], begin=(0,), end=(0,), axes=(axis,))
        return [nothing, cast(nothing, "int64")]
    values, indices = emit_many("topk", node[0], k=k, axis=axis, ret_type="both", is_ascend=ascending, dtype="int64")
    return [values, indices]


@onnx_op("NonMaxSuppression", since=10)
def non_max_suppression(node: OnnxNode) -> Outputs:
    boxes, scores = node[0], node[1]
    if not (_is_known(boxes) and _is_known(scores)):
        return foreign(node)
    most = node.get(2) or integers(0)
    overlap, least = (node.get(i) or scalar(value, boxes) for i, value in ((3, 0.0), (4, float("-inf"))))
    limits = [emit("reshape", value, newshape=()) for value in (most, overlap, least)]
    known, center = node.value(most), bool(node.attr("center_point_box", 0))
    limit = int(known.item()) if known is not None else None
    rows, count = emit_many("vision.non_max_suppression", boxes, scores, *limits, center=center, limit=limit)
    return prefix(rows, count, 0)


@onnx_op("Compress", since=9)
def compress(node: OnnxNode) -> Expr:
    """The slices whose condition holds; one that goes beyond the axis is cut."""
    x = node[0] if node.has("axis") else emit("reshape", node[0], newshape=(-1,))
    axis = normalize_axis(node, node.attr("axis", 0), rank(x))
    (extent, *_), (asked,) = dims(x)[axis:], dims(node[1])
    if node.known(1) is not None or extent is None or asked is None:
        kept = np.flatnonzero(node.constant(1, "condition")[:extent])
        return emit("take", x, within(node, x, integers(kept), (axis,)), axis=axis, mode="clip")
    if is_anonymous(extent):  # no run could say where to cut
        raise node.unknown(f"the length of axis {axis} is known only when the model runs")
    places, count = emit_many("nonzero", emit("strided_slice", node[1], begin=(0,), end=(extent,), axes=(0,)))
    chosen = emit("reshape", prefix(places, count, 1), newshape=(-1,))
    return emit("take", x, chosen, axis=axis, mode="clip")


@onnx_op("NonZero", since=9)
def non_zero(node: OnnxNode) -> Expr:
    """The indices of elements that are not 0, one column each: known only at run time, unless x is constant."""
    x = node[0]
    if _is_known(x):
        places, count = emit_many("nonzero", x)
        return prefix(places, count, 1)
    found = emit("argwhere", x if x.dtype == "bool" else emit("not_equal", x, scalar(0, x)))
    return cast(emit("transpose", found, axes=(1, 0)), "int64")
