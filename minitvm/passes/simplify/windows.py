"""Rules of SimplifyExpr about windows: what only ever reads padding."""

from __future__ import annotations

from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Expr
from minitvm.ir.ops.nn_conv import Conv1d, Conv2d, Conv3d, Convolution
from minitvm.ir.pattern import call, const, value
from minitvm.passes.rule import Replacement, rule


@rule(call((Conv1d, Conv2d, Conv3d), value("data"), const("weight"), name="conv"), exactness="reassociating")
def drop_taps_in_padding(conv: Call, data: Expr, weight: Expr) -> Replacement:
    """A 3x3 window on a single pixel reads one tap: constant weights are cut to the taps that see the image."""
    op = conv.op
    assert isinstance(op, Convolution)
    image, kernel, out = op.layouts
    if not (data.type.is_static and conv.type.is_static):
        return Declined("the image's size is known only when the model runs")
    pads, rank = list(op.padding), len(op.spatial)
    begin, end = [0] * kernel.rank, list(weight.shape)
    for d, axis in enumerate(op.spatial):
        at = kernel.index(axis)
        taps = [t * op.dilation[d] - pads[d] for t in range(weight.shape[at])]
        extents = data.shape[image.index(axis)], conv.shape[out.index(axis)]
        seen = [t for t, first in enumerate(taps) if _sees(first, op.strides[d], *extents)] or [*range(len(taps))]
        begin[at], end[at] = seen[0], seen[-1] + 1
        pads[d] -= seen[0] * op.dilation[d]
        pads[d + rank] -= (len(taps) - end[at]) * op.dilation[d]
    if pads == list(op.padding):
        return Declined("every tap sees the image in some window")
    if min(pads) < 0:
        return Declined("windows would begin or end inside the image")
    size = tuple(end[kernel.index(axis)] - begin[kernel.index(axis)] for axis in op.spatial)
    cut = ir.call_op("strided_slice", weight, begin=tuple(begin), end=tuple(end), strides=(1,) * kernel.rank)
    return ir.call_op(op.name, data, cut, **{**op.attributes(), "padding": tuple(pads), "kernel_size": size})


def _sees(first: int, stride: int, extent: int, outputs: int) -> bool:
    """Whether a tap that is at ``first`` in window 0 is inside the image in some window."""
    window = max(0, -(first // stride))
    return window < outputs and window * stride + first < extent


RULES = (drop_taps_in_padding,)
