"""ONNX operators that sample images: GridSample, DeformConv, RoiAlign, Col2Im."""

import math

import numpy as np

from minitvm.frontend.onnx.more.foreign import foreign
from minitvm.frontend.onnx.node import OnnxNode, cast, dims, emit, rank
from minitvm.frontend.onnx.registry import Outputs, onnx_op
from minitvm.frontend.onnx.tensor import reshaped
from minitvm.ir.expr import Constant, Expr

_METHODS = {"bilinear": "linear", "bicubic": "cubic"}


@onnx_op("GridSample", since=16)
def grid_sample(node: OnnxNode) -> Outputs:
    if not node[0].tensor_type.is_float:
        return foreign(node)
    method = node.attr("mode")
    return emit(
        "image.grid_sample",
        _with_pixels(node[0]),
        node[1],
        method=_METHODS.get(method, method),
        padding_mode=node.attr("padding_mode"),
        align_corners=bool(node.attr("align_corners")),
    )


@onnx_op("Col2Im", since=18)
def col2im(node: OnnxNode) -> Expr:
    size, kernel = tuple(node.sizes(1, "image_shape")), tuple(node.constant(2, "block_shape").tolist())
    ones, zeros = [1] * len(size), [0] * 2 * len(size)
    return emit(
        "nn.col2im",
        node[0],
        size=size,
        kernel_size=kernel,
        strides=tuple(node.attr("strides", ones)),
        dilation=tuple(node.attr("dilations", ones)),
        padding=tuple(node.attr("pads", zeros)),
    )


@onnx_op("RoiAlign", since=10)
def roi_align(node: OnnxNode) -> Expr:
    half_pixel = node.attr("coordinate_transformation_mode", "output_half_pixel") == "half_pixel"
    return emit(
        "vision.roi_align",
        *node.operands(),
        size=(node.attr("output_height", 1), node.attr("output_width", 1)),
        spatial_scale=node.attr("spatial_scale", 1.0),
        sample_ratio=node.attr("sampling_ratio", 0),
        mode=node.attr("mode", "avg"),
        half_pixel=half_pixel,
    )


@onnx_op("MaxRoiPool", since=1)
def max_roi_pool(node: OnnxNode) -> Expr:
    options = {"size": tuple(node.require("pooled_shape")), "spatial_scale": node.attr("spatial_scale")}
    return emit("vision.roi_pool", node[0], node[1], **options)


@onnx_op("DeformConv", since=19)
def deform_conv(node: OnnxNode) -> Outputs:
    """Every tap of every window is sampled where its offset puts it; the rest is a product with the weight."""
    x, weight, offset = (node[i] for i in range(3))
    if rank(x) != 4:
        return foreign(node)
    x = _with_pixels(x)
    (n, channels, *_), (filters, _, kh, kw), (out_h, out_w) = x.shape, weight.shape, offset.shape[2:]
    groups, parts, taps = node.attr("group"), node.attr("offset_group"), kh * kw
    moved = reshaped(offset, [n * parts, taps, 2, out_h, out_w], True)
    moved = emit("transpose", moved, axes=(0, 1, 3, 4, 2))  # y before x
    places = emit("reverse", emit("add", moved, _windows(node, (kh, kw), (out_h, out_w), x.dtype)), axis=4)
    images = reshaped(x, [n * parts, channels // parts, *x.shape[2:]], True)
    grid = reshaped(places, [n * parts, taps * out_h, out_w, 2], True)
    sampled = emit("image.grid_sample", images, grid, pixels=True)
    columns = reshaped(sampled, [n * parts, channels // parts, taps, out_h, out_w], True)
    if node.get(4) is not None:
        columns = emit("multiply", columns, reshaped(node[4], [n * parts, 1, taps, out_h, out_w]))
    inner = channels // groups * taps
    columns = reshaped(columns, [n, groups, inner, out_h * out_w], True)
    filters_of = reshaped(weight, [1, groups, filters // groups, inner], True)
    lhs = emit("broadcast_to", filters_of, shape=(n, groups, filters // groups, inner))
    rows = reshaped(lhs, [n * groups, filters // groups, inner], True)
    columns = reshaped(columns, [n * groups, inner, out_h * out_w], True)
    product = emit("nn.batch_matmul", rows, columns, transpose_b=False)
    found = reshaped(product, [n, filters, out_h, out_w], True)
    return found if node.get(3) is None else emit("nn.bias_add", found, cast(node[3], x.dtype), axis=1)


def _with_pixels(x: Expr) -> Expr:
    """An image that has none becomes one of zeros, which is what lies outside of it."""
    more = [(0, int(d > 1 and extent == 0)) for d, extent in enumerate(dims(x))]
    return emit("nn.pad", x, 0, pad_width=more) if any(after for _, after in more) else x


def _windows(node: OnnxNode, kernel: tuple[int, int], out: tuple[int, int], dtype: str) -> Expr:
    """The place where the taps of each window lie without offsets: (1, taps, *out, 2)."""
    (strides, dilations), pads = (node.attr(a, [1, 1]) for a in ("strides", "dilations")), node.attr("pads", [0] * 4)
    lines = [np.arange(out[d]) * strides[d] + (np.arange(kernel[d]) * dilations[d])[:, None] - pads[d] for d in (0, 1)]
    rows, columns = lines[0][:, None, :, None], lines[1][None, :, None, :]
    both = np.stack(np.broadcast_arrays(rows, columns), -1)
    return Constant(both.reshape(1, math.prod(kernel), *out, 2).astype(dtype))
