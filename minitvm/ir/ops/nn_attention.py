"""Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762): what a graph writes as two products, a softmax
and what lies between them."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from minitvm.ir.dims import Dim, differ
from minitvm.ir.loop import Buffer, LoopExpr, Stage, as_index, const, intrin, select
from minitvm.ir.op import Fusion, Op, broadcast_index, compute, max_over, sum_over
from minitvm.ir.ops._shape import require_kind, require_same_dtype, shapes_differ, widened
from minitvm.ir.types import TensorType, accumulator


class Attention(Op, name="nn.attention", fusion=Fusion.OUT_ELEMWISE_FUSABLE, reads_in_place=True, read_again=(1, 2)):
    """softmax(scores) @ value for every head, ``scores = query @ key.T * scale``, masked.

    query: (batch, length, heads, d), key: (batch, key_length, heads, d), value: (batch, key_length, heads, e), mask:
    anything that broadcasts to (batch, heads, length, key_length) -> (batch, length, heads, e).  A mask of floats is
    added to the scores; where one of ``bool`` is false the score is ``fill``.

    What softmax says holds: a row whose scores are all -inf, or one of them NaN, is NaN, and where there are no keys it
    is 0.  With ``empty_rows="zero"`` probabilities that are no numbers are 0, and so is a row of them.
    """

    scale: float = 1.0
    fill: float = float("-inf")
    empty_rows: Literal["nan", "zero"] = "nan"

    def infer(
        self, query: TensorType, key: TensorType, value: TensorType, mask: TensorType | None = None
    ) -> TensorType:
        for name, type_ in (("query", query), ("key", key), ("value", value)):
            require_kind(self, type_, "f", f"the {name}")
            if type_.rank != 4:
                raise self.reject(f"{name} must have 4 dimensions, (batch, length, heads, size), not {type_}")
        require_same_dtype(self, query, key, value)
        (batch, length, heads, size), (_, key_length, _, wide) = query.shape, value.shape
        for name, found, wanted in (
            ("key", key, (batch, key_length, heads, size)),
            ("value", value, (batch, key_length, heads)),
        ):
            if shapes_differ(found.shape[: len(wanted)], wanted):
                raise self.reject(f"{name} {found} does not fit query {query} and value {value}")
        self._check_mask(mask, query, (batch, heads, length, key_length))
        return TensorType((batch, length, heads, wide), query.dtype)

    def _check_mask(self, mask: TensorType | None, query: TensorType, scores: Sequence[Dim]) -> None:
        if mask is None:
            return
        if mask.dtype != "bool":
            require_kind(self, mask, "f", "the mask")
        own = (1,) * (4 - mask.rank) + tuple(mask.shape)
        if mask.rank > 4 or any(a != 1 and differ(a, b) for a, b in zip(own, scores, strict=True)):
            raise self.reject(f"mask {mask} does not broadcast to {TensorType(tuple(scores), mask.dtype)}")

    def flops(self, args: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        """Two per multiplication of both products."""
        (batch, length, heads, size), (_, key_length, _, wide) = args[0].static_shape, args[2].static_shape
        return 2.0 * batch * length * heads * key_length * (size + wide)

    def reference(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray | None = None
    ) -> np.ndarray:
        wide = widened(query.dtype.name, query.dtype.name)
        q, k, v = (x.astype(wide).transpose(0, 2, 1, 3) for x in (query, key, value))
        scores = q @ k.swapaxes(-1, -2) * np.asarray(self.scale, wide)
        if mask is not None:
            fill = np.asarray(self.fill, wide)
            scores = np.where(mask, scores, fill) if mask.dtype == bool else scores + mask.astype(wide)
        with np.errstate(invalid="ignore"):
            exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
            row_sum = exponentials.sum(axis=-1, keepdims=True)
            probabilities = exponentials / row_sum
            if self.empty_rows == "zero":
                probabilities = np.nan_to_num(probabilities, nan=0.0)
            weighted = probabilities @ v
        return np.ascontiguousarray(weighted.transpose(0, 2, 1, 3)).astype(query.dtype)

    def compute(self, query: Buffer, key: Buffer, value: Buffer, mask: Buffer | None = None) -> Stage:
        (batch, length, heads, size), (_, key_length, _, width) = query.shape, value.shape
        wide, rows = accumulator(query.dtype), (batch, length, heads)

        def score(p: LoopExpr, i: LoopExpr, h: LoopExpr, j: LoopExpr) -> LoopExpr:
            found = sum_over(size, lambda r: query[p, i, h, r].astype(wide) * key[p, j, h, r].astype(wide))
            return self.masked(found * self.scale, mask, (p, h, i, j))

        scores = compute((*rows, key_length), score, name="scores")
        row_max = compute(rows, lambda p, i, h: max_over(key_length, lambda j: scores[p, i, h, j]), name="row_max")
        exponentials = compute(
            (*rows, key_length), lambda *at: intrin("exp", scores[at] - row_max[at[:3]]), name="exponentials"
        )
        row_sum = compute(
            rows, lambda p, i, h: sum_over(key_length, lambda j: exponentials[p, i, h, j]), name="row_sum"
        )

        def weighted(p: LoopExpr, i: LoopExpr, h: LoopExpr, e: LoopExpr) -> LoopExpr:
            def power(j: LoopExpr) -> LoopExpr:
                found = exponentials[p, i, h, j]
                return select(row_sum[p, i, h] > 0, found, 0) if self.empty_rows == "zero" else found

            found = sum_over(key_length, lambda j: power(j) * value[p, j, h, e].astype(wide))
            return self.averaged(found, row_sum[p, i, h], key_length).astype(query.dtype)

        return compute((*rows, width), weighted)

    def masked(self, score: LoopExpr, mask: Buffer | None, index: tuple[LoopExpr, ...]) -> LoopExpr:
        """A score as the mask leaves it; ``index``: (batch, head, query, key)."""
        if mask is None:
            return score
        found = mask[broadcast_index(mask, index)]
        return select(found, score, self.fill) if mask.dtype == "bool" else score + found.astype(score.dtype)

    def averaged(self, found: LoopExpr, row_sum: LoopExpr, key_length: Dim) -> LoopExpr:
        """A row's sum over the sum of its exponentials; 0 where it is the sum of nothing.  Where exponentials that are
        no numbers count nothing, so does the row if values are finite."""
        if self.empty_rows == "zero":
            return select(row_sum > 0, found / row_sum, found * 0)
        if isinstance(key_length, int):
            return found / row_sum if key_length else const(0, found.dtype)
        return select(as_index(key_length) > 0, found / row_sum, 0)
