"""Boxes in images: those that overlap none of higher scores (``selection.py``: results as long as the values say), and
the maxima inside of boxes."""

import math
from typing import Any

import numpy as np

from minitvm.ir.dims import differ, smaller
from minitvm.ir.loop import (
    Barrier,
    Buffer,
    Const,
    LoopExpr,
    LoopKind,
    Stmt,
    const,
    intrin,
    maximum,
    minimum,
    select,
    store,
)
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import require_kind, require_same_dtype, require_scalars, unflatten_index
from minitvm.ir.ops.more.selection import zeros_behind
from minitvm.ir.ops.more.sorting import by_value, counter, sort_positions
from minitvm.ir.types import TensorType, TupleType


class NonMaxSuppression(Op, name="vision.non_max_suppression", fusion=Fusion.OPAQUE):
    """The boxes of the highest scores, per batch and class, that overlap none of those before by more than ``overlap``.

    boxes: (B, N, 4) floats, y and x of two opposite corners (``center``: x, y, width, height); scores: (B, C, N);
    most: () int64, overlap: (), least: () floats: a score counts that is higher.  ``limit`` bounds ``most``.
    -> (B * C * the fewer of N and limit, 3) int64: batch, class, box, zeros behind the last; () int64: how many.
    """

    center: bool = False
    limit: int | None = None

    def infer(
        self, boxes: TensorType, scores: TensorType, most: TensorType, overlap: TensorType, least: TensorType
    ) -> TupleType:
        require_kind(self, boxes, "f", "boxes")
        require_same_dtype(self, boxes, scores, overlap, least)
        require_scalars(self, most=most, overlap=overlap, least=least)
        fits = boxes.rank == scores.rank == 3 and not differ(boxes.shape[2], 4)
        if not fits or differ(scores.shape[0], boxes.shape[0]) or differ(scores.shape[2], boxes.shape[1]):
            raise self.reject(f"expected boxes (B, N, 4) and scores (B, C, N), not {boxes} and {scores}")
        b, c, n = scores.shape
        return TupleType((TensorType((b * c * self._each(n), 3), "int64"), TensorType((), "int64")))

    def _each(self, boxes: Any) -> Any:
        """Boxes of a class at most."""
        return boxes if self.limit is None else smaller(boxes, max(self.limit, 0))

    # --- in numpy ---

    def reference(
        self, boxes: np.ndarray, scores: np.ndarray, most: np.ndarray, overlap: np.ndarray, least: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        found: list[tuple[int, int, int]] = []
        for b, c in np.ndindex(*scores.shape[:2]):
            order = np.argsort(-scores[b, c], kind="stable")
            taken: list[int] = []
            for p in order[scores[b, c, order] > least]:
                if len(taken) < min(int(most), self._each(len(order))) and not any(
                    self._overlap(boxes[b, p], boxes[b, q]) > overlap for q in taken
                ):
                    taken.append(int(p))
            found += [(b, c, p) for p in taken]
        rows = np.zeros((math.prod(scores.shape[:2]) * self._each(boxes.shape[1]), 3), "int64")
        rows[: len(found)] = np.array(found, "int64").reshape(-1, 3)
        return rows, np.asarray(len(found), "int64")

    def _overlap(self, one: np.ndarray, other: np.ndarray) -> float:
        """Intersection over union; -1 where there is none."""
        ends = []
        for box in (one, other):
            a, b = (box[:2] - box[2:] / 2, box[:2] + box[2:] / 2) if self.center else (box[:2], box[2:])
            ends.append((np.minimum(a, b), np.maximum(a, b)) if not self.center else (a, b))
        sides = np.minimum(ends[0][1], ends[1][1]) - np.maximum(ends[0][0], ends[1][0])
        areas = [np.prod(high - low) for low, high in ends]
        common = np.prod(sides)
        union = areas[0] + areas[1] - common
        fits = min(sides) > 0 and common > 0 and min(areas) > 0 and union > 0
        return float(common / union) if fits else -1.0

    # --- in loops ---

    def statements(
        self, boxes: Buffer, scores: Buffer, most: Buffer, overlap: Buffer, least: Buffer, rows: Buffer, count: Buffer
    ) -> Stmt:
        batch, classes, extent = scores.shape
        each = self._each(extent)
        if batch * classes * each == 0:
            return store(count, [], Const(0))
        taken = Buffer("taken", (batch * classes, each), "int64")
        numbers = Buffer("numbers", (batch * classes,), "int64")
        code, found = LoopBuilder(), counter("found")
        with code.memory(taken, numbers):
            with code.loop(batch * classes, "row", LoopKind.PARALLEL) as row:
                b, c = unflatten_index(row, (batch, classes))
                self._select(code, boxes, scores, (b, c, row), (most, overlap, least), taken, numbers)
            code.emit(Barrier())
            with code.memory(found):
                code.store(found, [0], Const(0))
                with code.loop(batch * classes, "row") as row:
                    b, c = unflatten_index(row, (batch, classes))
                    with code.loop(numbers[row], "k") as k:
                        for d, value in enumerate((b, c, taken[row, k])):
                            code.store(rows, [found[0], d], value)
                        code.store(found, [0], found[0] + 1)
                zeros_behind(code, rows, 0, found[0])
                code.store(count, [], found[0])
        return code.stmt

    def _select(
        self,
        code: LoopBuilder,
        boxes: Buffer,
        scores: Buffer,
        at: tuple[LoopExpr, LoopExpr, LoopExpr],
        limits: tuple[Buffer, Buffer, Buffer],
        taken: Buffer,
        numbers: Buffer,
    ) -> None:
        """Those of one batch and class."""
        (b, c, row), (most, overlap, least), extent = at, limits, scores.shape[2]
        high, order = (Buffer(name, (extent,), "int64", "shared") for name in ("high", "order"))
        candidates, chosen = counter("candidates"), counter("chosen")
        free, flag = (Buffer(name, (1,), "bool", "local") for name in ("free", "flag"))
        with code.memory(high, order, candidates, chosen, free, flag):
            code.store(candidates, [0], Const(0))
            code.store(chosen, [0], Const(0))
            with code.loop(taken.shape[1], "k") as k:
                code.store(taken, [row, k], Const(0))
            with code.loop(extent, "p") as p:
                code.store(high, [p], Const(0))
            with code.loop(extent, "p") as p, code.when(least[()] < scores[b, c, p]):
                code.store(high, [candidates[0]], p)
                code.store(candidates, [0], candidates[0] + 1)
            sort_positions(code, order, by_value(lambda p: scores[b, c, high[p]], False), candidates[0])
            if taken.shape[1] != 0:
                room = chosen[0] < minimum(most[()].astype("int64"), taken.shape[1])
                with code.loop(candidates[0], "k") as k, code.when(room):
                    p = high[order[k]]
                    self._look(code, boxes, (b, p, row), overlap, taken, chosen, free)
                    with code.when(free[0]):
                        code.store(taken, [row, chosen[0]], p)
                        code.store(chosen, [0], chosen[0] + 1)
            code.store(numbers, [row], chosen[0])

    def _look(
        self,
        code: LoopBuilder,
        boxes: Buffer,
        at: tuple[LoopExpr, LoopExpr, LoopExpr],
        overlap: Buffer,
        taken: Buffer,
        chosen: Buffer,
        free: Buffer,
    ) -> None:
        """``free``: no box that was chosen overlaps box ``p`` by too much."""
        b, p, row = at
        code.store(free, [0], const(True, "bool"))
        with code.loop(chosen[0], "s") as s, code.when(free[0]):
            hit = overlap[()] < self._share(boxes, b, p, taken[row, s])
            with code.when(hit):
                code.store(free, [0], const(False, "bool"))

    def _share(self, boxes: Buffer, b: LoopExpr, p: LoopExpr, q: LoopExpr) -> LoopExpr:
        """Intersection over union; -1 where there is none."""

        def ends(box: LoopExpr, d: int) -> tuple[LoopExpr, LoopExpr]:
            first, last = boxes[b, box, Const(d)], boxes[b, box, Const(d + 2)]
            if self.center:
                return first - last * 0.5, first + last * 0.5
            return minimum(first, last), maximum(first, last)

        def side(d: int) -> LoopExpr:
            (a0, a1), (b0, b1) = ends(p, d), ends(q, d)
            return minimum(a1, b1) - maximum(a0, b0)

        def area(box: LoopExpr) -> LoopExpr:
            (y0, y1), (x0, x1) = ends(box, 0), ends(box, 1)
            return (y1 - y0) * (x1 - x0)

        zero = const(0, boxes.dtype)
        height, width, one, other = side(0), side(1), area(p), area(q)
        common = height * width
        union = one + other - common
        fits = (zero < height) & (zero < width) & (zero < common) & (zero < one) & (zero < other) & (zero < union)
        return select(fits, common / union, const(-1, boxes.dtype))


class RoiPool(Op, name="vision.roi_pool", fusion=Fusion.OPAQUE):
    """Maxima of the pixels in ``size`` (height, width) cells of regions (Girshick 2015); 0 where there are none.

    data: (N, C, H, W), rois: (R, 5): the batch's index, x1, y1, x2, y2, the last pixels included -> (R, C, *size).
    Corners are multiplied by ``spatial_scale`` and rounded to pixels, halves away from 0; cells reach from the pixel
    they begin in to the one they end in.
    """

    size: tuple[int, int]
    spatial_scale: float = 1.0

    def infer(self, data: TensorType, rois: TensorType) -> TensorType:
        require_kind(self, data, "f", "data")
        require_same_dtype(self, data, rois)
        if data.rank != 4 or rois.rank != 2 or differ(rois.shape[1], 5):
            raise self.reject(f"expected (N, C, H, W) and (R, 5), not {data} and {rois}")
        return data.with_shape((rois.shape[0], data.shape[1], *self.size))

    def reference(self, data: np.ndarray, rois: np.ndarray) -> np.ndarray:
        found = np.zeros((len(rois), data.shape[1], *self.size), data.dtype)
        for r, (batch, *corners) in enumerate(rois.astype(np.promote_types(rois.dtype, "float32"))):
            scaled = np.array(corners) * found.dtype.type(self.spatial_scale)
            x1, y1, x2, y2 = np.trunc(scaled + np.copysign(0.5, scaled)).clip(-(2**30), 2**30)
            image = data[int(np.clip(batch, 0, len(data) - 1))] if len(data) else data.sum(0)
            for i, j in np.ndindex(*self.size):
                rows = slice(*self._cell(y1, y2, i, self.size[0], image.shape[1]))
                columns = slice(*self._cell(x1, x2, j, self.size[1], image.shape[2]))
                inside = image[:, rows, columns]
                found[r, :, i, j] = inside.max((1, 2)) if inside[:1].size else 0
        return found

    def _cell(self, first: float, last: float, number: int, cells: int, extent: int) -> tuple[int, int]:
        """From which pixel to which."""
        each = np.float32(max(last - first + 1, 1)) / np.float32(cells)
        ends = np.floor(np.float32(number) * each), np.ceil(np.float32(number + 1) * each)
        low, high = (int(np.clip(first + end, 0, extent)) for end in ends)
        return low, max(low, high)

    def statements(self, data: Buffer, rois: Buffer, result: Buffer) -> Stmt:
        best = Buffer("best", (1,), data.dtype, "local")
        (batches, *_), code = data.shape, LoopBuilder()
        with code.loop(math.prod(result.shape), "cell", LoopKind.PARALLEL) as flat, code.memory(best):
            r, c, i, j = unflatten_index(flat, result.shape)
            batch = minimum(maximum(rois[r, Const(0)].astype("int64"), 0), batches - 1)
            (top, bottom), (left, right) = self._ends(data, rois, r, i, 0), self._ends(data, rois, r, j, 1)
            code.store(best, [0], const(-math.inf, data.dtype))
            if batches:
                with code.loop(bottom - top, "y") as y, code.loop(right - left, "x") as x:
                    code.store(best, [0], maximum(best[0], data[batch, c, top + y, left + x]))
            some = (top < bottom) & (left < right)
            found = select(some, best[0], const(0, data.dtype)) if batches else const(0, data.dtype)
            code.store(result, [r, c, i, j], found)
        return code.stmt

    def _ends(self, data: Buffer, rois: Buffer, r: LoopExpr, number: LoopExpr, axis: int) -> tuple[LoopExpr, LoopExpr]:
        """From which pixel to which a cell reaches along an axis."""
        first, last = (self._corner(rois[r, Const(2 - axis + far)]) for far in (0, 2))
        each = maximum(last - first + 1, 1) / const(self.size[axis], "float32")
        low, high = intrin("floor", number.astype("float32") * each), (number + 1).astype("float32") * each
        low, high = (minimum(maximum(first + e, 0), data.shape[2 + axis]) for e in (low, intrin("ceil", high)))
        return low.astype("int64"), high.astype("int64")

    def _corner(self, value: LoopExpr) -> LoopExpr:
        """Rounded to a pixel, halves away from 0; where no image reaches, at 2**30."""
        scaled = value.astype("float32") * const(self.spatial_scale, "float32")
        whole = intrin("trunc", scaled + select(scaled < 0, const(-0.5, "float32"), const(0.5, "float32")))
        return minimum(maximum(whole, -(2.0**30)), 2.0**30)
