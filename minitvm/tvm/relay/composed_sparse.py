"""Relay's sparse matrices, lists of coordinates, and candidates for boxes: made of our operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from minitvm.ir.expr import Expr, Tuple
from minitvm.tvm.relay.composed import composed, like, made, many, rank_of, refuse, shaped
from minitvm.tvm.relay.forms import const
from minitvm.tvm.relay.operators import plain, tensor

# --- matrices by rows -------------------------------------------------------------------------------------------


def _parts(matrix: Any) -> list[Expr]:
    """The values, columns and starts of rows of a sparse matrix: of scipy's, or three tensors."""
    if hasattr(matrix, "indptr"):
        return [tensor(one) for one in (matrix.data, matrix.indices, matrix.indptr)]
    return [tensor(one) for one in matrix]


def _rows_of(starts: Expr, count: int) -> Expr:
    """The row of each of ``count`` stored elements."""
    ends = made("strided_slice", starts, begin=[1], end=[starts.shape[0]], axes=[0])
    after = made("less_equal", made("expand_dims", ends, axis=1), const(np.arange(count), starts.dtype))
    return made("sum", made("cast", after, dtype=starts.dtype), axis=(0,))


def _dense(matrix: Any, columns: int) -> Expr:
    """The matrix with its zeros; elements are single numbers, or blocks."""
    values, at, starts = _parts(matrix)
    block = values.shape[1:] or (1, 1)
    rows = _rows_of(starts, values.shape[0])
    shape = (starts.shape[0] - 1, columns // block[1])
    zeros = made("zeros", shape=(*shape, *values.shape[1:]), dtype=values.dtype)
    places = made("stack", Tuple([made("cast", one, dtype="int64") for one in (rows, at)]), axis=0)
    found = made("scatter_nd", zeros, places, values, mode="add")
    if len(values.shape) == 1:
        return found
    return shaped(made("transpose", found, axes=(0, 2, 1, 3)), [shape[0] * block[0], columns])


@composed("nn.sparse_dense")
def sparse_dense(dense_mat: Any, sparse_mat: Any, sparse_lhs: Any) -> Expr:
    """Products of rows of a matrix with rows of a sparse one; the other way round with ``sparse_lhs``."""
    rows = tensor(dense_mat)
    weight = _dense(sparse_mat, rows.shape[1])
    return made("nn.dense", weight, rows) if plain(sparse_lhs) else made("nn.dense", rows, weight)


@composed("nn.sparse_add")
def sparse_add(dense_mat: Any, sparse_mat: Any) -> Expr:
    """The sum of a matrix and a sparse one."""
    return made("add", dense_mat, _dense(sparse_mat, tensor(dense_mat).shape[1]))


@composed("nn.sparse_transpose")
def sparse_transpose(x: Any) -> Expr:
    """The transpose of a square sparse matrix: values, columns, starts of rows."""
    values, at, starts = _parts(x)
    if len(values.shape) > 1:
        raise refuse("nn.sparse_transpose", "blocks")
    count, rows = values.shape[0], _rows_of(starts, values.shape[0])
    keys = made("add", made("multiply", at, like(count, at)), const(np.arange(count), at.dtype))
    order = made("argsort", keys, axis=0, dtype="int32")
    lines = const(np.arange(starts.shape[0]), at.dtype)
    before = made("less", made("expand_dims", at, axis=0), made("expand_dims", lines, axis=1))
    ends = made("sum", made("cast", before, dtype=starts.dtype), axis=(1,))
    return Tuple([made("take", values, order, axis=0), made("take", rows, order, axis=0), ends])


# --- lists of coordinates ---------------------------------------------------------------------------------------


def _strides(shape: Expr) -> Expr:
    """How far apart neighbours along each axis lie."""
    return made("reverse", made("cumprod", made("reverse", shape, axis=0), axis=0, exclusive=True), axis=0)


@composed("sparse_reshape")
def sparse_reshape(sparse_indices: Any, prev_shape: Any, new_shape: Any) -> Expr:
    """Coordinates of a sparse tensor in another shape, which may say -1 once; and that shape."""
    places, old, new = tensor(sparse_indices), tensor(prev_shape), tensor(new_shape)
    new = made("cast", new, dtype=old.dtype)
    rest = made("floor_divide", made("prod", old), made("abs", made("prod", new)))
    shape = made("where", made("less", new, like(0, new)), rest, new)
    flat = made("sum", made("multiply", places, _strides(old)), axis=(1,), keepdims=True)
    return Tuple([made("floor_mod", made("floor_divide", flat, _strides(shape)), shape), shape])


# --- boxes ------------------------------------------------------------------------------------------------------


def _valid_first(valid: Expr, rows: Expr) -> tuple[Expr, Expr, Expr]:
    """How many of each image are valid; these, in order, before rows of -1; and their numbers."""
    count = valid.shape[1]
    places = const(np.arange(count, dtype="int32"))
    keys = made("where", valid, places, made("add", places, like(count, places)))
    order = made("argsort", keys, axis=1, dtype="int32")
    total = made("sum", made("cast", valid, dtype="int32"), axis=(1,))
    kept = made("less", places, made("expand_dims", total, axis=1))
    wide = made("broadcast_to", made("expand_dims", order, axis=2), shape=rows.shape)
    sorted_ = made("gather", rows, made("cast", wide, dtype="int64"), axis=1)
    found = made("where", made("expand_dims", kept, axis=2), sorted_, like(-1, rows))
    return total, found, made("where", kept, order, like(-1, order))


def _column(data: Expr, index: int) -> Expr:
    part = made("strided_slice", data, begin=[index], end=[index + 1], axes=[2])
    return made("squeeze", part, axis=(2,))


@composed("vision.get_valid_counts")
def get_valid_counts(data: Any, score_threshold: Any, id_index: Any, score_index: Any) -> Expr:
    """Boxes (images, boxes, columns) whose score is above a threshold, before rows of -1: how many, these, and where
    they were."""
    boxes = tensor(data)
    least = score_threshold if isinstance(score_threshold, Expr) else like(float(plain(score_threshold)), boxes)
    valid = made("greater", _column(boxes, plain(score_index)), least)
    if plain(id_index) >= 0:
        valid = made("logical_and", valid, made("greater_equal", _column(boxes, plain(id_index)), like(0, boxes)))
    total, found, places = _valid_first(valid, boxes)
    return Tuple([total, found, places])


@composed("vision.multibox_prior")
def multibox_prior(data: Any, sizes: Any, ratios: Any, steps: Any, offsets: Any, clip: Any) -> Expr:
    """Anchors around each pixel, (1, pixels * (sizes + ratios - 1), 4): of every size, then of every other ratio."""
    expr = tensor(data)
    height, width = expr.shape[2:]
    sizes, ratios, steps, offsets = map(many, (sizes, ratios, steps, offsets))
    step = [s if s > 0 else 1 / n for s, n in zip(steps, (height, width), strict=True)]
    y, x = ((np.arange(n) + o) * s for n, o, s in zip((height, width), offsets, step, strict=True))
    widths = [size * height / width / 2 for size in sizes]
    heights = [size / 2 for size in sizes]
    widths += [sizes[0] * height / width * r**0.5 / 2 for r in ratios[1:]]
    heights += [sizes[0] / r**0.5 / 2 for r in ratios[1:]]
    centre = np.stack(np.broadcast_arrays(x[None, :, None], y[:, None, None]), -1)
    half = np.stack([widths, heights], -1)
    anchors = np.concatenate([centre - half, centre + half], -1).reshape(1, -1, 4)
    return const(np.clip(anchors, 0, 1) if plain(clip) else anchors, expr.dtype)


@composed("vision.multibox_transform_loc")
def multibox_transform_loc(
    cls_prob: Any, loc_pred: Any, anchor: Any, clip: Any, threshold: Any, variances: Any, keep_background: Any
) -> Expr:
    """Boxes of the likeliest class that is not the background: (images, anchors, 6) of class, score and corners, those
    above a threshold first, then rows of -1; and how many there are."""
    scores, places = tensor(cls_prob), tensor(anchor)
    images, classes, count = scores.shape
    if plain(keep_background):
        raise refuse("vision.multibox_transform_loc", "keep_background")
    real = made("strided_slice", scores, begin=[1], end=[classes], axes=[1])
    best = made("max", real, axis=(1,))
    number = made("cast", made("argmax", real, axis=(1,)), dtype=scores.dtype)
    moves = shaped(tensor(loc_pred), [images, count, 4])
    start, end = (made("strided_slice", places, begin=[a], end=[a + 2], axes=[2]) for a in (0, 2))
    size, middle = made("subtract", end, start), made("multiply", made("add", start, end), like(0.5, places))
    scaled = made("multiply", moves, const(plain(variances), scores.dtype))
    shift, grow = (made("strided_slice", scaled, begin=[a], end=[a + 2], axes=[2]) for a in (0, 2))
    centre = made("add", made("multiply", shift, size), middle)
    half = made("multiply", made("multiply", made("exp", grow), size), like(0.5, places))
    corners: Expr = made("concatenate", Tuple([made("subtract", centre, half), made("add", centre, half)]), axis=2)
    corners = made("clip", corners, a_min=0.0, a_max=1.0) if plain(clip) else corners
    rows = made("concatenate", Tuple([*(made("expand_dims", one, axis=2) for one in (number, best)), corners]), axis=2)
    valid = made("greater_equal", best, like(float(plain(threshold)), best))
    total, found, _ = _valid_first(valid, rows)
    return Tuple([found, total])
