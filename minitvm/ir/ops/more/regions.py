"""Operators that read regions of an image, which data name, between its pixels."""

import itertools
import math
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np

from minitvm.ir.dims import Dim, differ, lacks
from minitvm.ir.loop import (
    Buffer,
    Const,
    Load,
    LoopExpr,
    LoopKind,
    Stmt,
    as_index,
    const,
    intrin,
    maximum,
    minimum,
    select,
)
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.loop.scalar import convert
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import require_kind, require_same_dtype, unflatten_index
from minitvm.ir.types import TensorType, accumulator

_Pixels: TypeAlias = tuple[LoopExpr, LoopExpr, LoopExpr, LoopExpr]
"""Two neighbours along an axis, the weight of the second, whether the sample between them counts."""


@dataclass(frozen=True)
class _Samples:
    """``count`` samples in each cell of ``size`` along an axis, the first one of which begins at ``first``."""

    first: LoopExpr
    size: LoopExpr
    count: LoopExpr

    def pixels(self, cell: LoopExpr, sample: LoopExpr, extent: Dim) -> _Pixels:
        wide = self.size.dtype
        steps = (sample.astype(wide) + 0.5) * self.size / maximum(self.count, 1).astype(wide)
        at = self.first + cell.astype(wide) * self.size + steps
        there = intrin("not", (at < -1.0) | (_number(extent, wide) < at))
        held = minimum(maximum(at, 0.0), _number(extent - 1, wide))
        low = intrin("floor", held)
        position = minimum(maximum(low.astype("int64"), 0), extent - 1)
        return position, minimum(position + 1, extent - 1), held - low, there


class RoiAlign(Op, name="vision.roi_align", fusion=Fusion.OPAQUE):
    """Each region of an image as ``size`` (height, width) cells, the mean (or the maximum) of samples in each,
    as ``mode`` says.

    data: (N, C, H, W), rois: (R, 4) as x1, y1, x2, y2, batch_indices: (R,) integers -> (R, C, *size).  A cell has
    ``sample_ratio`` samples along each axis, or with 0 as many as it has pixels, rounded up; samples are bilinear.  The
    maximum is that of the weighted pixels, as ONNX has it.  ``half_pixel``: pixels have their centres at 0.5.  Regions
    are given in pixels times ``spatial_scale``, the image's size over that which they were found in.
    """

    size: tuple[int, int]
    spatial_scale: float = 1.0
    sample_ratio: int = 0
    mode: Annotated[str, ("avg", "max")] = "avg"
    half_pixel: bool = True

    def infer(self, data: TensorType, rois: TensorType, batch_indices: TensorType) -> TensorType:
        require_kind(self, data, "f", "data")
        require_same_dtype(self, data, rois)
        require_kind(self, batch_indices, "iu", "batch_indices")
        fits = data.rank == 4 and rois.rank == 2 and batch_indices.rank == 1
        if not fits or differ(rois.shape[1], 4) or differ(rois.shape[0], batch_indices.shape[0]):
            raise self.reject(f"expected (N, C, H, W), (R, 4) and (R,), not {data}, {rois} and {batch_indices}")
        if any(lacks(extent, 1) for extent in (data.shape[0], *data.shape[2:])):
            raise self.reject(f"there is no pixel in {data}")
        return data.with_shape((rois.shape[0], data.shape[1], *self.size))

    # --- in numpy ---

    def reference(self, data: np.ndarray, rois: np.ndarray, batch_indices: np.ndarray) -> np.ndarray:
        wide = np.promote_types(data.dtype, "float32")
        batches = np.clip(batch_indices.astype("int64"), 0, len(data) - 1)
        found = [self._region(data[b].astype(wide), roi.astype(wide)) for b, roi in zip(batches, rois, strict=True)]
        return np.array(found, data.dtype).reshape(len(rois), data.shape[1], *self.size)

    def _region(self, image: np.ndarray, roi: np.ndarray) -> np.ndarray:
        """(C, H, W) -> (C, *size)."""
        scale, offset = roi.dtype.type(self.spatial_scale), roi.dtype.type(0.5 if self.half_pixel else 0)
        x1, y1, x2, y2 = roi * scale - offset
        lines = [
            self._samples(y1, y2, self.size[0], image.shape[1]),
            self._samples(x1, x2, self.size[1], image.shape[2]),
        ]
        (rows, row_weights, row_there), (columns, column_weights, column_there) = lines
        terms = []
        for i, j in itertools.product(range(2), repeat=2):
            weight = row_weights[..., i][:, :, None, None] * column_weights[..., j][None, None]
            pixels = image[:, rows[..., i][:, :, None, None], columns[..., j][None, None]]
            terms.append(np.where(row_there[:, :, None, None] & column_there[None, None], pixels * weight, 0))
        if self.mode == "avg":
            return np.asarray(np.add.reduce(terms).sum((2, 4)) / max(rows.shape[1] * columns.shape[1], 1))
        best = np.maximum.reduce(terms)
        return np.asarray(best.max((2, 4)) if best.size else np.zeros((len(image), *self.size)))

    def _samples(self, first: Any, last: Any, cells: int, extent: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Along one axis: (cells, samples, 2) pixels, their weights, and (cells, samples) whether a sample counts."""
        length = last - first if self.half_pixel else max(last - first, type(first)(1))
        cell = length / type(first)(cells)
        count = self.sample_ratio or max(math.ceil(cell), 0)
        at = first + np.arange(cells)[:, None] * cell + (np.arange(count) + 0.5) * cell / max(count, 1)
        at = at.astype(type(first))
        there = ~((at < -1) | (at > extent))
        at = np.clip(at, 0, extent - 1)
        low = np.floor(at)
        rest = at - low
        pixels = np.minimum(convert(low, "int64")[..., None] + [0, 1], extent - 1)
        return pixels, np.stack([1 - rest, rest], -1), there

    # --- in loops ---

    def statements(self, data: Buffer, rois: Buffer, batch_indices: Buffer, result: Buffer) -> Stmt:
        wide, (cells_y, cells_x) = accumulator(data.dtype), self.size
        total, code = Buffer("total", (1,), wide, "local"), LoopBuilder()
        with code.loop(math.prod(result.shape), "cell", LoopKind.PARALLEL) as flat, code.memory(total):
            r, c, i, j = unflatten_index(flat, result.shape)
            batch = minimum(maximum(batch_indices[r].astype("int64"), 0), data.shape[0] - 1)
            y, x = (self._axis(rois, r, d, n, wide) for d, n in ((1, cells_y), (0, cells_x)))
            count, mean = y.count * x.count, self.mode == "avg"
            code.store(total, [0], const(0 if mean else float("-inf"), wide))
            with code.loop(y.count, "sy") as sy, code.loop(x.count, "sx") as sx:
                rows, columns = y.pixels(i, sy, data.shape[2]), x.pixels(j, sx, data.shape[3])
                value = self._sample(data, (batch, c), rows, columns)
                code.store(total, [0], total[0] + value if mean else maximum(total[0], value))
            if mean:
                found = total[0] / maximum(count, 1).astype(wide)
            else:
                found = select(Const(0) < count, total[0], const(0, wide))
            code.store(result, [r, c, i, j], found.astype(data.dtype))
        return code.stmt

    def _sample(self, data: Buffer, at: tuple[LoopExpr, LoopExpr], rows: _Pixels, columns: _Pixels) -> LoopExpr:
        """Of the four pixels around a place their weighted mean, or the largest; 0 where it does not count."""
        (y0, y1, fy, inside_y), (x0, x1, fx, inside_x) = rows, columns
        parts = [
            Load(data, (*at, row, column)).astype(fy.dtype) * (a * b)
            for row, a in ((y0, 1.0 - fy), (y1, fy))
            for column, b in ((x0, 1.0 - fx), (x1, fx))
        ]
        if self.mode == "avg":
            value = parts[0] + parts[1] + (parts[2] + parts[3])
        else:
            value = maximum(maximum(parts[0], parts[1]), maximum(parts[2], parts[3]))
        return select(inside_y & inside_x, value, const(0, fy.dtype))

    def _axis(self, rois: Buffer, r: LoopExpr, d: int, cells: int, wide: str) -> _Samples:
        """Along an axis (0: x, 1: y)."""
        first, last = (
            rois[r, Const(d + end)].astype(wide) * self.spatial_scale - (0.5 if self.half_pixel else 0.0)
            for end in (0, 2)
        )
        length = last - first if self.half_pixel else maximum(last - first, 1.0)
        size = length / float(cells)
        count = Const(self.sample_ratio) if self.sample_ratio else maximum(intrin("ceil", size).astype("int64"), 0)
        return _Samples(first, size, count)


def _number(extent: Dim, dtype: str) -> LoopExpr:
    return const(extent, dtype) if isinstance(extent, int) else as_index(extent).astype(dtype)
