"""Cases of operators that read or write at positions held in a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minitvm.ir.types import DTYPES
from operator_cases.accuracy import BITS, EXACT, Accuracy
from operator_cases.case import Case, case, generator
from operator_cases.draw import Draw

_INDEX_DTYPES = ("int64", "int32", "uint8", "int8", "int16", "uint32", "uint64")


def _positions(draw: Draw, shape: Sequence[int], extent: int, negative: bool = True) -> np.ndarray:
    """Positions within an extent, from the front or from the end."""
    dtype = draw.choice(_INDEX_DTYPES)
    signed = negative and dtype.startswith("int")
    most = min(extent - 1, 127)
    return draw.array(shape, dtype, -most - 1 if signed else 0, most, "none")


def _few(draw: Draw, least: int, most: int) -> tuple[int, ...]:
    return draw.shape(least, most, 256, least=0)


@generator("take")
def take(name: str, draw: Draw, dtype: str) -> Case:
    """``wrap`` and ``clip`` give positions out of range a meaning."""
    shape = draw.shape(1, 4, 512, least=1)
    axis = draw.axis(len(shape)) if not draw.flag(4) else None
    extent = math.prod(shape) if axis is None else shape[axis]
    indices = _positions(draw, _few(draw, 0, 2), extent)
    if draw.flag(4):
        indices = draw.array(indices.shape, "int64", -99, 99, "all")
    mode = draw.choice(("clip", "wrap"))
    return case(name, draw.array(shape, dtype, special="all"), indices, axis=axis, mode=mode, accuracy=BITS)


@generator("gather")
def gather(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4, least=1)
    axis = draw.axis(len(shape))
    indices = _positions(draw, _within(draw, shape, axis), shape[axis])
    return case(name, draw.array(shape, dtype, special="all"), indices, axis=axis, accuracy=BITS)


def _within(draw: Draw, shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """A shape no larger than another, but along ``axis``."""
    found = [n if draw.flag() else draw.integer(1, n) for n in shape]
    found[axis] = draw.size(33, least=0)
    return tuple(found)


def _rows(draw: Draw, extents: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """One row of positions for each extent: (len(extents), *shape)."""
    dtype = draw.signed_dtype()
    rows = [draw.array(shape, dtype, -min(n, 99), min(n, 99) - 1, "none") for n in extents]
    return np.stack(rows) if rows else np.zeros((0, *shape), dtype)


@generator("gather_nd")
def gather_nd(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4, 512, least=1)
    batch = draw.integer(0, len(shape) - 1)
    depth = draw.integer(1, len(shape) - batch)
    indices = _rows(draw, shape[batch : batch + depth], (*shape[:batch], *_few(draw, 0 if batch else 1, 1)))
    return case(name, draw.array(shape, dtype, special="all"), indices, batch_dims=batch, accuracy=BITS)


_REDUCTIONS = ("update", "add", "mul", "min", "max")


@generator("scatter_elements")
def scatter_elements(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4, 512, least=1)
    axis = draw.axis(len(shape))
    indices = _positions(draw, _within(draw, shape, axis), shape[axis])
    values = [draw.array(s, dtype) for s in (shape, indices.shape)]
    return case(name, values[0], indices, values[1], axis=axis, reduction=draw.choice(_REDUCTIONS), accuracy=EXACT)


@generator("scatter_nd")
def scatter_nd(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4, 512, least=1)
    depth = draw.integer(1, len(shape))
    indices = _rows(draw, shape[:depth], _few(draw, 1, 1))
    updates = draw.array((*indices.shape[1:], *shape[depth:]), dtype)
    return case(name, draw.array(shape, dtype), indices, updates, mode=draw.choice(_REDUCTIONS), accuracy=EXACT)


@generator("tensor_scatter")
def tensor_scatter(name: str, draw: Draw, dtype: str) -> Case:
    shape, circular = draw.shape(2, 4, 512), draw.choice((False, True))
    axis = draw.integer(1, len(shape) - 1)
    length = draw.integer(0, min(shape[axis], 4) if circular else 4)
    updates = draw.array((*shape[:axis], length, *shape[axis + 1 :]), dtype, special="all")
    start = draw.array(shape[:1], "int64", -2, shape[axis] + 2)
    options = {
        "axis": draw.choice((axis, axis - len(shape))),
        "circular": circular,
        "clears": not circular and draw.choice((False, True)),
    }
    return case(name, draw.array(shape, dtype, special="all"), updates, start, accuracy=BITS, **options)


@generator("one_hot")
def one_hot(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(0, 3, 256)
    depth = draw.size(33)
    indices = draw.array(shape, dtype, -2, depth + 1, "all")
    on, off = (draw.array((), draw.choice(DTYPES), 0, 99, "all") for _ in range(2))
    to = draw.choice(DTYPES)
    return case(name, indices, on, off, depth=depth, axis=draw.axis(len(shape) + 1), dtype=to)


@generator("control.out_of_range")
def out_of_range(name: str, draw: Draw, dtype: str) -> Case:
    """None is: the reference raises where one is."""
    shape = draw.shape(1, 4, 512, least=1)
    x = draw.array(shape, dtype)
    kind = draw.choice(("one", "rows", "several", "lengths"))
    if kind == "several":
        axes = draw.axes(len(shape)) or (0,)
        return case(
            name, x, _rows(draw, [shape[a] for a in axes], _few(draw, 1, 1))[0 if len(axes) == 1 else ...], axes=axes
        )
    axis = draw.axis(len(shape))
    extent, lengths = min(shape[axis], 99), kind == "lengths"
    given = _few(draw, 1 if kind == "rows" else 0, 2)
    indices = draw.array(given, draw.signed_dtype(), 0 if lengths else -extent, extent - (not lengths), "none")
    return case(name, x, indices, axes=[axis], lengths=lengths, by_row=kind == "rows")


@generator("control.after")
def after(name: str, draw: Draw, dtype: str) -> Case:
    return case(name, draw.array(draw.shape(), dtype, special="all"), np.zeros((), "uint64"), accuracy=BITS)


@generator("prefix")
def prefix(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4)
    axis = draw.axis(len(shape))
    count = np.asarray(draw.integer(0, shape[axis]), "int64")
    return case(name, draw.array(shape, dtype, special="all"), count, axis=axis, accuracy=BITS)


@generator("segment_reduce")
def segment_reduce(name: str, draw: Draw, dtype: str) -> Case:
    rows, segments = draw.size(40), draw.size(9)
    data = draw.array((rows, *draw.shape(0, 2, 64)), draw.choice(("float32", "float64")), special="none")
    starts, ends = (draw.array((segments,), "int64", -2, rows + 2, "none") for _ in range(2))
    return case(name, data, starts, ends, mode=draw.choice(("sum", "mean")), accuracy=BITS)


@generator("nonzero")
def nonzero(name: str, draw: Draw, dtype: str) -> Case:
    return case(name, draw.array(draw.shape(1, 4), dtype, 0, 1, "all"))


@generator("unique")
def unique(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 3, 256)
    axis = draw.axis(len(shape)) if draw.flag() and 0 not in shape else None
    return case(name, draw.array(shape, dtype, 0, 3, "all"), axis=axis, sorted=draw.flag())


@generator("vision.non_max_suppression")
def suppression(name: str, draw: Draw, dtype: str) -> Case:
    """Corners at whole numbers, so that overlaps are far from the thresholds."""
    b, c, n = draw.size(3), draw.size(3), draw.size(33)
    boxes = draw.array((b, n, 4), dtype, 0, 4, "none").round()
    scores = draw.array((b, c, n), dtype, -2, 4, "none")
    limits = (np.asarray(draw.integer(-1, 9)), np.asarray(draw.choice((0.27, 0.61)), dtype), np.asarray(0.1, dtype))
    options = {"center": draw.flag(), "limit": draw.choice((None, 4))}
    return case(name, boxes, scores, *limits, **options)


@generator("ml.tree_leaves")
def tree_leaves(name: str, draw: Draw, dtype: str) -> Case:
    """Nodes whose children come later, splits among the values that features have."""
    rng = np.random.default_rng(draw.integer(0, 1 << 16))
    n, f, m, leaves = (draw.size(limit) for limit in (17, 5, 9, 4))
    m, f = max(m, 1), max(f, 1)
    x = draw.array((n, f), dtype, -2, 2, "all").round()
    children = np.array([[rng.integers(i + 1, m + leaves + 1) for _ in range(2)] for i in range(m)], "int32")
    splits, features = rng.integers(-2, 3, m).astype(dtype), rng.integers(0, f, m).astype("int32")
    roots = rng.integers(0, m + leaves, draw.size(5)).astype("int32")
    return case(name, x, features, splits, rng.random(m) < 0.5, children, roots, depth=draw.integer(0, m))


@generator("ml.pairwise_coupling")
def coupling(name: str, draw: Draw, dtype: str) -> Case:
    """The number of rounds hangs on a comparison: probabilities that differ little from round to round."""
    k = draw.integer(1, 5)
    r = draw.array((draw.size(9), k, k), dtype, 0.3, 0.7, "none").astype("float64")
    r = np.where(np.tril(np.ones((k, k), bool)), 1 - r.transpose(0, 2, 1), r) * (1 - np.eye(k))
    q = -r * r.transpose(0, 2, 1) + np.eye(k) * np.sum(r * r, axis=1, keepdims=True)
    made = case(name, (q + np.eye(k) * (k == 1)).astype(dtype))

    def magnitude() -> np.ndarray:
        return np.ones(made.reference()[0].shape)

    return Case(made.op, made.args, Accuracy(ulps=1, terms=100 if dtype == "float16" else 4000, magnitude=magnitude))


@generator("linalg.det")
def determinant(name: str, draw: Draw, dtype: str) -> Case:
    """Within roundings of the product of the rows' lengths, which bounds it."""
    n = draw.integer(0, 6)
    made = case(name, draw.array((*draw.shape(0, 2, 16), n, n), dtype, special="none"))

    def magnitude() -> np.ndarray:
        return np.asarray(np.prod(np.linalg.norm(made.args[0].astype("float64"), axis=-1), -1))

    return Case(made.op, made.args, Accuracy(ulps=1, terms=8 * n**2 + 4, magnitude=magnitude))
