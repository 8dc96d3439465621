"""Images cut into tiles of one size, and put together again: how windows slide over sizes that only a run knows.

A tile holds all that the windows of some neighbouring results read, its neighbours' pixels too (their halo), so that
each is an image of its own, of known size, of a batch that only a run knows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minitvm.ir.decision import Declined
from minitvm.ir.dims import Dim, differ, falls_short, product
from minitvm.ir.loop import Buffer, LoopExpr, Stage, all_of, as_index, const, select
from minitvm.ir.op import Fusion, Op, compute
from minitvm.ir.ops._shape import inside
from minitvm.ir.ops.nn_pool import check_layout
from minitvm.ir.relayout import Placement, Site, data_moved
from minitvm.ir.types import TensorType


class _Tiled(Op, fusion=Fusion.INJECTIVE):
    """Between an image in ``layout`` and tiles of it, ``counts`` of them along height and width."""

    def _axes(self: Any, data: TensorType | None = None) -> tuple[int, ...]:
        return tuple(map(check_layout(self, self.layout, "HW", data).index, "NHW"))

    def _with_axes(self, data: TensorType, batch: Dim, spatial: Sequence[Dim]) -> TensorType:
        found = list(data.shape)
        for axis, extent in zip(self._axes(data), (batch, *spatial), strict=True):
            found[axis] = extent
        return data.with_shape(tuple(found))

    def relayout(self: Any, site: Site) -> Placement | Declined:
        """Channels may lie anywhere, in blocks too."""
        if str(site.data.old) != self.layout or {*"NHW"} & {*site.data.blocks}:
            return Declined("its pixels are split")
        return data_moved(site, self.with_attributes(layout=str(site.data.new)))


class ExtractTiles(_Tiled, name="nn.extract_tiles"):
    """data: (n, c, h, w) in ``layout`` -> (n * counts, c, *tile): tile (i, j) of an image begins at pixel
    (i * steps[0] - before[0], j * steps[1] - before[1]); what lies outside of the image is ``fill``.

    ``gaps``: along an axis, so many pixels are left out after each ``runs`` of a tile; taps that are further apart than
    it is long do not read them.
    ``after``: only so many pixels behind the image are ``fill``.  No result of the image reads those beyond; they
    repeat its last pixel, as results of zeros beside it would be out of scale, which Winograd's convolutions compute
    slowly."""

    tile: tuple[int, ...]
    steps: tuple[int, ...]
    before: tuple[int, ...]
    counts: tuple[Dim, ...]
    fill: float = 0.0
    runs: tuple[int, ...] = (1, 1)
    gaps: tuple[int, ...] = (0, 0)
    after: tuple[int, ...] = ()
    layout: str = "NCHW"

    def infer(self, data: TensorType) -> TensorType:
        return self._with_axes(data, data.shape[self._axes(data)[0]] * product(self.counts), self.tile)

    def reference(self, data: np.ndarray) -> np.ndarray:
        n, h, w = self._axes()
        moved = np.moveaxis(data, (n, h, w), (0, 1, 2))
        rows, columns = (TensorType((count,)).static_shape[0] for count in self.counts)
        made = np.full((len(moved), rows, columns, *self.tile, *moved.shape[3:]), self.fill, data.dtype)
        within = zip(self.tile, self.runs, self.gaps, strict=True)
        offsets = [np.arange(extent) + np.arange(extent) // run * gap for extent, run, gap in within]
        for i, j in np.ndindex(rows, columns):
            begins = i * self.steps[0] - self.before[0], j * self.steps[1] - self.before[1]
            y, x = (begin + offset for begin, offset in zip(begins, offsets, strict=True))
            if self.after:
                ends = zip((y, x), moved.shape[1:3], self.after, strict=True)
                y, x = (np.where(at >= extent + after, extent - 1, at) for at, extent, after in ends)
            inner = [np.flatnonzero((at >= 0) & (at < e)) for at, e in zip((y, x), moved.shape[1:3], strict=True)]
            made[:, i, j, inner[0][:, None], inner[1]] = moved[:, y[inner[0]][:, None], x[inner[1]]]
        return np.moveaxis(made.reshape(len(moved) * rows * columns, *made.shape[3:]), (0, 1, 2), (n, h, w))

    def compute(self, data: Buffer) -> Stage:
        shape = self.infer(TensorType(data.shape, data.dtype)).extents
        axes, (rows, columns) = self._axes(), self.counts

        def element(*index: LoopExpr) -> LoopExpr:
            n, *within = (index[a] for a in axes)
            place = as_index(columns), as_index(rows) * columns
            tiles = n // place[0] % as_index(rows), n % place[0]
            spread = [i + i // r * g if g else i for i, r, g in zip(within, self.runs, self.gaps, strict=True)]
            at = [t * s - b + i for t, s, b, i in zip(tiles, self.steps, self.before, spread, strict=True)]
            if self.after:
                ends = [as_index(data.shape[a]) for a in axes[1:]]
                at = [select(i >= e + after, e - 1, i) for i, e, after in zip(at, ends, self.after, strict=True)]
            source = replaced(index, axes, (n // place[1], *at))
            conditions = [c for a, i in zip(axes[1:], at, strict=True) for c in inside(i, data.shape[a])]
            return select(all_of(conditions), data[source], const(self.fill, data.dtype))

        return compute(shape, element)


class MergeTiles(_Tiled, name="nn.merge_tiles"):
    """Tiles of results side by side, without what hangs over: data: (batch * counts, c, *tile) in ``layout`` ->
    (``batch``, c, *size)."""

    size: tuple[Dim, ...]
    batch: Dim
    counts: tuple[Dim, ...]
    layout: str = "NCHW"

    def infer(self, data: TensorType) -> TensorType:
        n, h, w = self._axes(data)
        if 0 in (data.shape[h], data.shape[w]):
            raise self.reject(f"{data} are tiles of no pixels")
        if differ(data.shape[n], self.batch * product(self.counts)):
            raise self.reject(f"{data} are not {self.counts[0]} x {self.counts[1]} tiles of {self.batch} images")
        for count, axis, extent in zip(self.counts, (h, w), self.size, strict=True):
            if falls_short(count * data.shape[axis], extent):
                raise self.reject(f"{count} tiles of {data.shape[axis]} are not {extent}")
        return self._with_axes(data, self.batch, self.size)

    def reference(self, data: np.ndarray) -> np.ndarray:
        n, h, w = self._axes()
        moved = np.moveaxis(data, (n, h, w), (0, 1, 2))
        batch, rows, columns, height, width = TensorType((self.batch, *self.counts, *self.size)).static_shape
        (bottom, right), rest = moved.shape[1:3], moved.shape[3:]
        apart = np.swapaxes(moved.reshape(batch, rows, columns, bottom, right, *rest), 2, 3)
        whole = apart.reshape(batch, rows * bottom, columns * right, *rest)
        return np.ascontiguousarray(np.moveaxis(whole[:, :height, :width], (0, 1, 2), (n, h, w)))

    def compute(self, data: Buffer) -> Stage:
        shape = self.infer(TensorType(data.shape, data.dtype)).extents
        axes, (rows, columns) = self._axes(), self.counts
        tile = [data.shape[a] for a in axes[1:]]

        def element(*index: LoopExpr) -> LoopExpr:
            n, y, x = (index[a] for a in axes)
            number = (n * as_index(rows) + y // tile[0]) * as_index(columns) + x // tile[1]
            return data[replaced(index, axes, (number, y % tile[0], x % tile[1]))]

        return compute(shape, element)


def replaced(index: tuple[LoopExpr, ...], axes: Sequence[int], by: Sequence[Any]) -> tuple[LoopExpr, ...]:
    """An index with other places along some axes."""
    found = list(index)
    for axis, place in zip(axes, by, strict=True):
        found[axis] = place
    return tuple(found)
