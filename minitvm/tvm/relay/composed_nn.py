"""Relay's layers, and operators of images and boxes, that are several of ours or have parameters that mean something
else: made of our operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minitvm.ir.expr import Expr, Tuple
from minitvm.ir.layout import Layout
from minitvm.tvm.error import NotOfferedError
from minitvm.tvm.relay.composed import COMPOSED, composed, like, made, many, rank_of, refuse, shaped, strided_set
from minitvm.tvm.relay.forms import const
from minitvm.tvm.relay.operators import plain, tensor

# --- layers -----------------------------------------------------------------------------------------------------


@composed("nn.dropout")
def dropout(data: Any, rate: Any) -> Expr:
    """``data`` as it is at inference."""
    return made("nn.dropout", data, rate=rate)[0]


@composed("nn.dropout_raw")
def dropout_raw(data: Any, rate: Any) -> Expr:
    """``data`` as it is at inference, and a mask."""
    return made("nn.dropout", data, rate=rate)


@composed("nn.pad")
def pad(data: Any, pad_width: Any, pad_value: Any, pad_mode: Any) -> Expr:
    """``data`` grown at its ends: by a value, or by what is there."""
    expr = tensor(data)
    fill = [] if not isinstance(pad_value, Expr) and plain(pad_value) == 0 else [pad_value]
    values = [one if isinstance(one, Expr) else like(plain(one), expr) for one in fill]
    return made("nn.pad", expr, *values, pad_width=pad_width, pad_mode=pad_mode)


@composed("nn.mirror_pad")
def mirror_pad(data: Any, pad_width: Any, mode: Any) -> Expr:
    """``data`` grown by its mirror image, with the border itself (``SYMMETRIC``) or without (``REFLECT``)."""
    if mode == "REFLECT":
        return made("nn.pad", data, pad_width=pad_width, pad_mode="reflect")
    found = tensor(data)
    for axis, widths in enumerate(plain(pad_width)):
        places = np.pad(np.arange(found.shape[axis]), widths, "symmetric")
        found = made("take", found, const(places.astype("int64")), axis=axis) if any(widths) else found
    return found


@composed("nn.dilate")
def dilate(data: Any, strides: Any, dilation_value: Any) -> Expr:
    """``data`` with a value between its elements."""
    expr = tensor(data)
    steps = many(strides)
    shape = tuple(max((n - 1) * s + 1, 0) for n, s in zip(expr.shape, steps, strict=True))
    filled = made("full", like(plain(dilation_value), expr), shape=shape, dtype=expr.dtype)
    return strided_set(filled, expr, [0] * len(shape), list(shape), steps)


@composed("nn.l2_normalize")
def l2_normalize(data: Any, eps: Any, axis: Any = None) -> Expr:
    """``data`` divided by its length along axes."""
    return made("nn.l2_normalize", data, eps=eps, axis=tuple(range(rank_of(tensor(data)))) if axis is None else axis)


@composed("nn.dense")
def dense(data: Any, weight: Any, units: Any, out_dtype: Any) -> Expr:
    """Products of rows, which may lie in any number of dimensions, with the rows of the weights."""
    rows = tensor(data)
    if rows.checked_type is None or rank_of(rows) <= 2:
        return made("nn.dense", rows, weight, units=units, out_dtype=out_dtype)
    *lead, depth = rows.tensor_type.shape
    found = made("nn.dense", made("reshape", rows, newshape=(-1, depth)), weight, units=units, out_dtype=out_dtype)
    return shaped(found, [*lead, found.tensor_type.shape[1]])


@composed("nn.fast_softmax")
def fast_softmax(data: Any, axis: Any) -> Expr:
    """The softmax, exact."""
    return made("nn.softmax", data, axis=axis)


@composed("nn.conv1d_transpose")
def conv1d_transpose(data: Any, weight: Any, kernel_layout: Any, **how: Any) -> Expr:
    """A transposed convolution, whose weights begin with the channels of ``data`` whatever Relay calls that."""
    return made(
        "nn.conv1d_transpose", data, weight, kernel_layout={"OIW": "IOW"}.get(kernel_layout, kernel_layout), **how
    )


@composed("nn.conv3d_transpose")
def conv3d_transpose(data: Any, weight: Any, kernel_layout: Any, **how: Any) -> Expr:
    """A transposed convolution, whose weights begin with the channels of ``data`` whatever Relay calls that."""
    layout = {"OIDHW": "IODHW"}.get(kernel_layout, kernel_layout)
    return made("nn.conv3d_transpose", data, weight, kernel_layout=layout, **how)


def _spatial(expr: Expr, layout: str) -> list[int]:
    """The dimensions of pixels."""
    return [d for d, axis in enumerate(Layout(layout).axes) if axis.name in "DHW"]


def _global_pool(kind: str) -> Callable[..., Expr]:
    def pool(data: Any, layout: str, out_layout: str) -> Expr:
        """One value of all pixels of a channel."""
        expr = tensor(data)
        name = f"nn.global_{kind}_pool2d"
        if len(_spatial(expr, layout)) == 2:
            return made(name, expr, layout=layout, out_layout=out_layout)
        return made({"avg": "mean", "max": "max"}[kind], expr, axis=tuple(_spatial(expr, layout)), keepdims=True)

    return pool


def _adaptive_pool(kind: str) -> Callable[..., Expr]:
    def pool(data: Any, output_size: Any, layout: str, out_layout: str) -> Expr:
        """As many cells as asked for, of pixels from where each begins to where it ends; they may overlap."""
        found, reduce = tensor(data), {"avg": "mean", "max": "max"}[kind]
        axes = _spatial(found, layout)
        sizes = [found.shape[a] for a in axes] if output_size is None else list(many(output_size))
        sizes = sizes * len(axes) if len(sizes) == 1 else sizes
        for axis, cells in zip(axes, sizes, strict=True):
            extent = found.shape[axis]
            if cells == extent:
                continue
            ends = [(i * extent // cells, -(-(i + 1) * extent // cells)) for i in range(cells)]
            parts = [
                made(reduce, made("strided_slice", found, begin=[a], end=[b], axes=[axis]), axis=(axis,), keepdims=True)
                for a, b in ends
            ]
            found = made("concatenate", Tuple(parts), axis=axis) if len(parts) > 1 else parts[0]
        return found

    return pool


for _kind in ("avg", "max"):
    for _n in (1, 2, 3):
        COMPOSED[f"nn.global_{_kind}_pool{_n}d"] = _global_pool(_kind)
        COMPOSED[f"nn.adaptive_{_kind}_pool{_n}d"] = _adaptive_pool(_kind)


@composed("nn.cross_entropy")
def cross_entropy(predictions: Any, targets: Any) -> Expr:
    """The mean over rows of the cross entropy of probabilities."""
    return cross_entropy_with_logits(made("log", predictions), targets)


@composed("nn.cross_entropy_with_logits")
def cross_entropy_with_logits(predictions: Any, targets: Any) -> Expr:
    """The mean over rows of the cross entropy of logarithms of probabilities."""
    total = made("sum", made("multiply", predictions, targets))
    rows = tensor(predictions).shape[0]
    return made("divide", made("negative", total), like(rows, total))


@composed("nn.nll_loss")
def nll_loss(predictions: Any, targets: Any, weights: Any, reduction: str, ignore_index: Any) -> Expr:
    """The negative of predictions at targets, times the weights of these classes; their mean, sum, or all."""
    scores, wanted, by_class = tensor(predictions), tensor(targets), tensor(weights)
    if rank_of(scores) == rank_of(wanted):
        scores, wanted = made("expand_dims", scores, axis=0), wanted
    counted = made("not_equal", wanted, like(ignore_index, wanted))
    safe = made("where", counted, wanted, made("zeros_like", wanted))
    column = made("expand_dims", safe, axis=1)
    picked = made("squeeze", made("gather", scores, column, axis=1), axis=(1,))
    weight = made("multiply", made("take", by_class, safe, axis=0), made("cast", counted, dtype=scores.dtype))
    losses = made("negative", made("multiply", picked, weight))
    if reduction == "none":
        return losses
    total = made("sum", losses)
    return total if reduction == "sum" else made("divide", total, made("sum", weight))


@composed("nn.space_to_batch_nd")
def space_to_batch_nd(data: Any, block_shape: Any, paddings: Any, pad_value: Any) -> Expr:
    """Pixels of each place of a block as images of their own."""
    expr, blocks = tensor(data), many(block_shape)
    widths = [(0, 0), *plain(paddings), *[(0, 0)] * (rank_of(expr) - 1 - len(blocks))]
    padded = pad(expr, widths, pad_value, "constant")
    batch, *pixels = padded.shape
    rest = pixels[len(blocks) :]
    split = [part for n, b in zip(pixels, blocks, strict=False) for part in (n // b, b)]
    apart = shaped(padded, [batch, *split, *rest])
    m = len(blocks)
    order = [*range(2, 2 * m + 1, 2), 0, *range(1, 2 * m, 2), *range(2 * m + 1, 2 * m + 1 + len(rest))]
    counts = [n // b for n, b in zip(pixels, blocks, strict=False)]
    return shaped(made("transpose", apart, axes=tuple(order)), [batch * math.prod(blocks), *counts, *rest])


@composed("nn.batch_to_space_nd")
def batch_to_space_nd(data: Any, block_shape: Any, crops: Any) -> Expr:
    """Images as the pixels of each place of a block."""
    expr, blocks = tensor(data), many(block_shape)
    m, batch = len(blocks), expr.shape[0] // math.prod(blocks)
    pixels, rest = expr.shape[1 : m + 1], expr.shape[m + 1 :]
    apart = shaped(expr, [*blocks, batch, *pixels, *rest])
    order = [m, *(d for i in range(m) for d in (m + 1 + i, i)), *range(2 * m + 1, 2 * m + 1 + len(rest))]
    whole = [n * b for n, b in zip(pixels, blocks, strict=True)]
    joined = shaped(made("transpose", apart, axes=tuple(order)), [batch, *whole, *rest])
    cut = [(a, n - b) for (a, b), n in zip(plain(crops), whole, strict=True)]
    axes = tuple(range(1, m + 1))
    return made("strided_slice", joined, begin=[a for a, _ in cut], end=[b for _, b in cut], axes=axes)


# --- images and boxes -------------------------------------------------------------------------------------------


@composed("image.resize2d")
def resize2d(
    data: Any, size: Any, roi: Any, cubic_exclude: Any, extrapolation_value: Any, out_dtype: Any, **how: Any
) -> Expr:
    """An image in another size."""
    if roi or cubic_exclude or extrapolation_value:
        raise refuse("image.resize2d", "a region, cubic_exclude or a value beyond the border")
    found = made("image.resize2d", data, size=size, **how)
    return found if out_dtype in (None, "") else made("cast", found, dtype=out_dtype)


@composed("image.resize1d")
def resize1d(data: Any, size: Any, layout: str, **how: Any) -> Expr:
    """A line in another size."""
    at = layout.index("W")
    found = resize2d(made("expand_dims", data, axis=at), [1, *many(size)], layout=layout.replace("W", "HW"), **how)
    return made("squeeze", found, axis=(at,))


@composed("image.affine_grid")
def affine_grid(data: Any, target_shape: Any) -> Expr:
    """Places in an image, (N, 2, height, width), that a matrix for each image gives."""
    height, width = many(target_shape)
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    places = const(np.stack([x, y, np.ones_like(x)]).reshape(3, -1), tensor(data).dtype)
    images = tensor(data).tensor_type.shape[0]
    each = made("broadcast_to", places, shape=(images, *places.shape))
    return shaped(made("nn.batch_matmul", data, each, transpose_b=False), [images, 2, height, width])


@composed("image.grid_sample")
def grid_sample(
    data: Any, grid: Any, method: str, layout: str, padding_mode: str, align_corners: Any, **own: Any
) -> Expr:
    """An image at the places of a grid, (N, 2, height, width)."""
    if layout not in ("NCHW", "NCDHW"):
        raise refuse("image.grid_sample", f"layout={layout!r}")
    places = tensor(grid)
    rank = rank_of(places)
    if places.tensor_type.shape[1] == rank - 2 and places.tensor_type.shape[-1] != rank - 2:
        places = made("transpose", places, axes=(0, *range(2, rank), 1))
    named = {"bilinear": "linear", "nearest": "nearest_neighbor", "bicubic": "cubic"}
    how = {"method": named.get(method, method), "padding_mode": padding_mode, "align_corners": align_corners}
    return made("image.grid_sample", data, places, **how, **own)


@composed("vision.roi_align")
def roi_align(
    data: Any, rois: Any, pooled_size: Any, spatial_scale: Any, sample_ratio: Any, layout: str, mode: Any
) -> Expr:
    """Regions, (R, 5) with the image's number first, as cells of the means (or maxima) of samples in them."""
    if layout != "NCHW":
        raise refuse("vision.roi_align", f"layout={layout!r}")
    boxes = made("strided_slice", rois, begin=[1], end=[5], axes=[1])
    numbers = made("squeeze", made("strided_slice", rois, begin=[0], end=[1], axes=[1]), axis=(1,))
    how = {"size": _pair(pooled_size), "spatial_scale": spatial_scale, "sample_ratio": max(plain(sample_ratio), 0)}
    return made(
        "vision.roi_align", data, boxes, made("cast", numbers, dtype="int32"), mode=mode, half_pixel=False, **how
    )


def _pair(size: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = many(size)
    return found * 2 if len(found) == 1 else found


@composed("vision.roi_pool")
def roi_pool(data: Any, rois: Any, pooled_size: Any, spatial_scale: Any, layout: str) -> Expr:
    """Regions, (R, 5) with the image's number first, as cells of maxima."""
    if layout != "NCHW":
        raise refuse("vision.roi_pool", f"layout={layout!r}")
    return made("vision.roi_pool", data, rois, size=_pair(pooled_size), spatial_scale=spatial_scale)


@composed("vision.all_class_non_max_suppression")
def all_class_non_max_suppression(
    boxes: Any,
    scores: Any,
    max_output_boxes_per_class: Any,
    iou_threshold: Any,
    score_threshold: Any,
    output_format: str,
) -> Expr:
    """A tuple: (batch, class, box) of what is kept, and how many there are, (1,)."""
    if output_format != "onnx":
        raise refuse("vision.all_class_non_max_suppression", f"output_format={output_format!r}")
    of = tensor(scores).dtype
    most = max_output_boxes_per_class
    limit = made("cast", most, dtype="int64") if isinstance(most, Expr) else const(2**31 if most < 0 else most, "int64")
    bounds = [one if isinstance(one, Expr) else const(one, of) for one in (iou_threshold, score_threshold)]
    found, count = made("vision.non_max_suppression", boxes, scores, limit, *bounds)
    return Tuple([found, made("reshape", count, newshape=(1,))])


@composed("vision.non_max_suppression")
def non_max_suppression(**given: Any) -> Expr:
    """Refused: Relay's keeps boxes and scores in one tensor."""
    hint = "relay.vision.all_class_non_max_suppression(boxes, scores, ...) is ONNX's, and is here"
    raise NotOfferedError("minitvm has no relay.vision.non_max_suppression", hint=hint)


@composed("vision.yolo_reorg")
def yolo_reorg(data: Any, stride: Any) -> Expr:
    """Pixels of blocks as channels, in Darknet's order."""
    expr, s = tensor(data), plain(stride)
    n, c, h, w = expr.shape
    apart = shaped(expr, [n, c // (s * s), h, s, w, s])
    return shaped(made("transpose", apart, axes=(0, 3, 5, 1, 2, 4)), [n, c * s * s, h // s, w // s])


@composed("annotation.stop_fusion")
def stop_fusion(data: Any, x: Any = None) -> Expr:
    """Keeps what is before and after it in kernels of their own."""
    return made("annotation.stop_fusion", data if x is None else x)


@composed("device_copy", "annotation.on_device", "annotation.checkpoint")
def same(data: Any = None, body: Any = None, **where: Any) -> Expr:
    """The value itself: a library runs on one device."""
    return tensor(body if data is None else data)
