"""Operators of ``ai.onnx.ml`` as tensor programs; and TfIdfVectorizer over numbers."""

from __future__ import annotations

from functools import partial, reduce

import numpy as np

from minitvm.frontend.onnx.foreign import foreign
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, rank, scalar
from minitvm.frontend.onnx.registry import Outputs, formulas, onnx_op
from minitvm.frontend.onnx.tensor import reshaped
from minitvm.ir.expr import Constant, Expr

ML = "ai.onnx.ml"


def _vector(node: OnnxNode, name: str) -> Expr:
    return Constant(np.asarray(node.require(name), np.float32))


def _scaler(node: OnnxNode) -> Expr:
    return (cast(node[0], "float32") - _vector(node, "offset")) * _vector(node, "scale")


def _linear_regressor(node: OnnxNode) -> Outputs:
    if node.attr("post_transform", "NONE") != "NONE" or rank(node[0]) != 2:
        return foreign(node)
    targets = node.attr("targets", 1)
    weight = np.asarray(node.require("coefficients"), np.float32).reshape(targets, -1)
    found = emit("nn.dense", cast(node[0], "float32"), Constant(weight))
    return found if not node.attr("intercepts") else found + _vector(node, "intercepts")


_NORMS = {"MAX": "max", "L1": "sum", "L2": "sum"}


def _normalizer(node: OnnxNode) -> Expr:
    """Over the norm of each row: MAX, L1 or L2."""
    x, norm = cast(node[0], "float32"), node.attr("norm", "MAX")
    if norm not in _NORMS:
        raise node.refuse("norm", "one of MAX, L1, L2")
    size = x * x if norm == "L2" else emit("abs", x)
    total = emit(_NORMS[norm], size, axis=(rank(x) - 1,), keepdims=True)
    total = emit("sqrt", total) if norm == "L2" else total
    return x / emit("maximum", total, scalar(1e-30, total))


formulas(
    {
        "Binarizer": lambda n: cast(emit("greater", n[0], scalar(n.attr("threshold", 0.0), n[0])), n[0].dtype),
        "LinearRegressor": _linear_regressor,
        "Normalizer": _normalizer,
        "Scaler": _scaler,
    },
    domain=ML,
)


# --- how often sequences of numbers are there -------------------------------------------------------------------


@onnx_op("TfIdfVectorizer", since=9)
def tf_idf(node: OnnxNode) -> Outputs:
    """How often each of some n-grams is there, its elements next to each other or as far apart as may be skipped."""
    x = node[0]
    if not node.attr("pool_int64s") or not x.tensor_type.is_static or rank(x) not in (1, 2):
        return foreign(node)
    rows = emit("expand_dims", x, axis=0) if rank(x) == 1 else x
    columns, mode = np.asarray(node.require("ngram_indexes")), node.require("mode")
    if columns.min(initial=0) < 0:
        raise node.refuse("ngram_indexes", "numbers of columns, from 0")
    weights = np.asarray(1.0 if mode == "TF" else node.attr("weights") or 1.0, np.float32)
    found = emit("full", scalar(0, "float32"), shape=(rows.shape[0], int(columns.max()) + 1), dtype="float32")
    for grams, first in _grams(node):
        counts = [_matches(rows, grams, skip) for skip in _distances(node, rows.shape[1], grams.shape[1])]
        if counts:
            total, own = reduce(partial(emit, "add"), counts), slice(first, first + len(grams))
            total = cast(emit("greater", total, 0), "float32") if mode == "IDF" else total
            weighted = total * Constant(weights[own] if weights.ndim else weights)
            places = np.broadcast_to(columns[own], (rows.shape[0], len(grams)))
            found = emit("scatter_elements", found, Constant(places), weighted, axis=1, reduction="add")
    return reshaped(found, [found.shape[1]]) if rank(x) == 1 else found


def _grams(node: OnnxNode) -> list[tuple[np.ndarray, int]]:
    """(count, length) n-grams of each length that counts, and the number of the first among all."""
    pool, starts = np.asarray(node.require("pool_int64s")), [*node.require("ngram_counts")]
    found, first = [], 0
    for length, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        count = (end - start) // length
        if count and node.require("min_gram_length") <= length <= node.require("max_gram_length"):
            grams = pool[start : start + count * length].reshape(count, length)
            found.append((grams, first))
        first += count
    return found


def _distances(node: OnnxNode, row: int, length: int) -> range:
    """From one element to the next, as far as a row reaches; single ones are counted once."""
    if length == 1 or row < length:
        return range(1, 1 + (row >= length))
    return range(1, min(node.require("max_skip_count") + 1, (row - 1) // (length - 1)) + 1)


def _matches(rows: Expr, grams: np.ndarray, distance: int) -> Expr:
    """How often each n-gram is in each row: (rows, count) floats."""
    length = grams.shape[1]
    windows = rows.shape[1] - distance * (length - 1)
    places = np.arange(windows)[:, None] + np.arange(length) * distance
    there = emit("expand_dims", emit("take", rows, Constant(places), axis=1), axis=2)
    equal = emit("equal", there, Constant(grams.astype(rows.dtype)))
    return emit("sum", cast(emit("all", equal, axis=(3,)), "float32"), axis=(1,))
