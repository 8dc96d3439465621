"""TfIdfVectorizer over numbers: how often n-grams are there."""

import numpy as np

from minitvm.frontend.onnx.more.foreign import foreign
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, rank, scalar
from minitvm.frontend.onnx.registry import Outputs, onnx_op
from minitvm.frontend.onnx.tensor import reshaped
from minitvm.ir.expr import Constant, Expr


@onnx_op("TfIdfVectorizer", since=9)
def tf_idf(node: OnnxNode) -> Outputs:
    """Counts how often each of some n-grams is there, its elements next to each other or as far apart as may be
    skipped."""
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
        distances = _distances(node, rows.shape[1], grams.shape[1])
        node.afford(8 * len(distances) * rows.shape[1] * grams.shape[1], f"rows of {rows.shape[1]:,} elements")
        if distances:
            total, own = _matches(rows, grams, distances), slice(first, first + len(grams))
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


def _matches(rows: Expr, grams: np.ndarray, distances: range) -> Expr:
    """How often each n-gram is in each row, over all distances: (rows, count) floats."""
    extent, length = rows.shape[1], grams.shape[1]
    steps = np.arange(length)
    places = np.concatenate([np.arange(extent - d * (length - 1))[:, None] + steps * d for d in distances])
    there = emit("expand_dims", emit("take", rows, Constant(places), axis=1), axis=2)
    equal = emit("equal", there, Constant(grams.astype(rows.dtype)))
    return emit("sum", cast(emit("all", equal, axis=(3,)), "float32"), axis=(1,))
