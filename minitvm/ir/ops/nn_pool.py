"""Pooling in 1, 2 and 3 dimensions, in plain and in blocked layouts."""

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from minitvm.ir.decision import Declined
from minitvm.ir.dims import always_less, lacks, product
from minitvm.ir.layout import Layout
from minitvm.ir.loop import Buffer, Const, LoopExpr, Stage, all_of, as_index, const, intrin, maximum, minimum, select
from minitvm.ir.op import Fusion, Op, Precision, compute, define, identity_of, max_over, min_over, sum_over
from minitvm.ir.ops._shape import (
    Index,
    Window,
    Windowed,
    beside,
    buffer_type,
    dilated,
    flatten_index,
    inside,
    pool_extent,
    reduced,
    require_kind,
    tap_views,
)
from minitvm.ir.relayout import Placement, Site, whole_planes
from minitvm.ir.types import TensorType, accumulator


def check_layout(op: Op, text: str, spatial: str, data: TensorType | None = None) -> Layout:
    """The parsed layout; rejects one with other axes than N, C and ``spatial`` or another rank than the data."""
    layout = Layout(text)
    if sorted(layout.primal) != sorted("NC" + spatial) or any(a.lower() in layout for a in spatial):
        raise op.reject(f"layout={text!r} must have the axes {', '.join('NC' + spatial)}; only C may be in blocks")
    if data is not None and data.rank != layout.rank:
        raise op.reject(f"the input has {data.rank} dimensions but layout {layout} has {layout.rank}: {data}")
    return layout


class Pool(Windowed, fusion=Fusion.OUT_ELEMWISE_FUSABLE):
    """Slides a window over the spatial axes.  data: (N, C, spatial...) in ``layout`` -> the same with fewer pixels, in
    ``out_layout`` (empty: as the data).

    Windows have ``pool_size`` taps, ``dilation`` apart, and are themselves ``strides`` apart.  ``padding`` is
    (before..., after...).  With ``ceil_mode`` a last window may hang over the end.
    """

    kinds: ClassVar[str] = "iuf"
    pool_size: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    layout: str = ""
    out_layout: str = ""
    ceil_mode: bool = False

    def infer(self, data: TensorType) -> TensorType:
        require_kind(self, data, self.kinds, "the input")
        layout = check_layout(self, self.layout, self.spatial, data)
        if self.out_layout not in ("", self.layout):
            raise self.reject(f"out_layout={self.out_layout!r} differs from layout={self.layout!r}")
        shape = list(data.shape)
        for axis, window in self._each():
            at = layout.index(axis)
            shape[at] = pool_extent(self, axis, shape[at], window, self.ceil_mode)
        return data.with_shape(tuple(shape))

    def _each(self) -> list[tuple[str, Window]]:
        return [(axis, self.window(axis, taps)) for axis, taps in zip(self.spatial, self.pool_size, strict=True)]

    def reference(self, data: np.ndarray) -> np.ndarray:
        plain, layout = Layout("NC" + self.spatial), Layout(self.layout)
        found = self.infer(TensorType(data.shape, data.dtype.name)).static_shape
        counts = TensorType(plain.shape_from(layout, found)).static_shape[2:]
        result = self._pooled(plain.convert(data, layout), counts)
        return np.ascontiguousarray(layout.convert(result.astype(data.dtype), plain))

    def _pooled(self, x: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """x: (N, C, spatial...) -> (N, C, counts...)."""
        raise NotImplementedError(self.name)

    def _taps(self, x: np.ndarray, counts: Sequence[int], fill: Any) -> Iterator[np.ndarray]:
        """Every tap of the window as an array of the result's shape; ``fill`` where it falls outside."""
        windows, width = [w for _, w in self._each()], [(0, 0), (0, 0)]
        for n, extent, w in zip(counts, x.shape[2:], windows, strict=True):
            needed = max(n - 1, 0) * w.stride + dilated(w.taps, w.dilation)
            width.append((w.pads[0], max(w.pads[1], needed - w.pads[0] - extent)))
        return tap_views(np.pad(x, width, constant_values=fill), windows, counts)

    def _tap(self, data: Buffer, index: Sequence[LoopExpr], taps: Sequence[LoopExpr], fill: Const) -> LoopExpr:
        """One element under the window of the result's element ``index``; ``fill`` outside of the data."""
        layout, position, conditions = Layout(self.layout), list(index), list[LoopExpr]()
        result = self.infer(buffer_type(data)).extents
        for (axis, window), tap in zip(self._each(), taps, strict=True):
            at = layout.index(axis)
            position[at] = window.position(index[at], tap)
            last = (result[at] - 1) * window.stride + dilated(window.taps, window.dilation) - window.pads[0]
            if any(window.pads) or not always_less(last, data.shape[at] + 1):
                conditions += inside(position[at], data.shape[at])
        loaded = data[tuple(position)]
        return select(all_of(conditions), loaded, fill) if conditions else loaded

    def relayout(self, site: Site) -> Placement | Declined:
        return whole_planes(site, self.layout, self.spatial)


class MaxPool(Pool, exact=True, precision=Precision.FOLLOW):
    """The largest element under each window; padding never wins."""

    def _pooled(self, x: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        return np.array(reduce(np.maximum, self._taps(x, counts, lowest)))

    def compute(self, data: Buffer) -> Stage:
        shape = self.infer(buffer_type(data)).extents
        fill = identity_of("max", data.dtype)
        return compute(shape, lambda *index: max_over(self.pool_size, lambda *r: self._tap(data, index, r, fill)))


class MaxPosition(Pool, exact=True):
    """The position of the first maximum under each window in its plane, row-major (int64); NaN counts as the
    largest."""

    def infer(self, data: TensorType) -> TensorType:
        found = super().infer(data).with_dtype("int64")
        if lacks(product(data.shape[2:]), product(found.shape)):
            raise self.reject(f"the input has no pixels: {data}")
        return found

    def _pooled(self, x: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        places = np.arange(math.prod(x.shape[2:])).reshape(1, 1, *x.shape[2:])
        there = np.array(list(self._taps(places, counts, -1)))
        values = np.where(there < 0, lowest, np.array(list(self._taps(x, counts, lowest))))
        nothing = np.isnan(values) if x.dtype.kind == "f" else np.zeros(values.shape, bool)
        best = values == values.max(0)
        chosen = np.argmax(np.where(nothing.any(0), nothing, best) & (there >= 0), 0)
        return np.asarray(np.take_along_axis(there, chosen[None], 0)[0])

    def reference(self, data: np.ndarray) -> np.ndarray:
        counts = self.infer(TensorType(data.shape, data.dtype.name)).static_shape[2:]
        return self._pooled(data, counts)

    def compute(self, data: Buffer) -> Stage:
        shape, plane = self.infer(buffer_type(data)).static_shape, data.shape[2:]
        fill, none = identity_of("max", data.dtype), const(math.prod(plane), "int64")
        best = compute(shape, lambda *i: max_over(self.pool_size, lambda *r: self._tap(data, i, r, fill)))

        def element(*i: LoopExpr) -> LoopExpr:
            def place(*taps: LoopExpr) -> LoopExpr:
                each = zip(self._each(), i[2:], taps, strict=True)
                at = [window.position(position, tap) for (_, window), position, tap in each]
                there = all_of([c for x, n in zip(at, plane, strict=True) for c in inside(x, n)])
                value = data[i[:2] + tuple(at)]
                hit = value.equal(best[i])
                hit = hit | intrin("isnan", value) if data.dtype.startswith("float") else hit
                return select(there, select(hit, flatten_index(at, plane), none), none)

            return min_over(self.pool_size, place)

        return compute(shape, element)

    def relayout(self, site: Site) -> Declined:
        return Declined("a position in another layout is another number")


class AvgPool(Pool, kinds="f"):
    """The mean under each window, over the elements in the data or, with ``count_include_pad``, in its padding too."""

    count_include_pad: bool = False

    def _pooled(self, x: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        total = reduce(np.add, self._taps(x.astype(np.promote_types(x.dtype, "float32")), counts, 0))
        for d, (_, window) in enumerate(self._each()):
            low, high = self._bounds(window, x.shape[d + 2])
            taps = window.position(np.arange(counts[d])[:, None], np.arange(window.taps))
            held = np.sum((taps >= low) & (taps < high), axis=1)
            total = total / beside(held, d + 2, x.ndim).astype(total.dtype)
        return total

    def _bounds(self, window: Window, extent: int) -> tuple[int, int]:
        """What counts along a spatial axis: from, and up to."""
        return (-window.pads[0], extent + window.pads[1]) if self.count_include_pad else (0, extent)

    def compute(self, data: Buffer) -> Stage:
        shape = self.infer(buffer_type(data)).extents
        zero, wide = const(0, data.dtype), accumulator(data.dtype)

        def element(*index: LoopExpr) -> LoopExpr:
            total = sum_over(self.pool_size, lambda *r: self._tap(data, index, r, zero).astype(wide))
            return (total / self._count(data, index, shape, wide)).astype(data.dtype)

        return compute(shape, element)

    def _count(self, data: Buffer, index: Sequence[LoopExpr], shape: Sequence[int], dtype: str) -> LoopExpr | int:
        """How many elements the window of one result element averages."""
        layout = Layout(self.layout)
        count: LoopExpr = Const(1)
        for axis, window in self._each():
            at, (low, high) = layout.index(axis), self._bounds(window, data.shape[layout.index(axis)])
            before, step, taps = window.pads[0], window.dilation, window.taps
            end = (shape[at] - 1) * window.stride - before + dilated(taps, step)
            if -before >= low and always_less(end, high + 1):
                count = count * taps
                continue
            start = index[at] * window.stride - before
            first = maximum((low - start + (step - 1)) // step, 0)
            last = minimum((high - 1 - start) // step, taps - 1)
            count = count * maximum(last - first + 1, 0)
        return const(count.value, dtype) if isinstance(count, Const) else count.astype(dtype)


define(MaxPool, "nn.max_pool1d", "Maximum under a window along W.  data: NCW -> NCW.", spatial="W")
_images = "data: NCHW (or NHWC, NCHW[x]c) -> the same."
define(MaxPool, "nn.max_pool2d", f"Maximum under a window over H and W.  {_images}", spatial="HW")
define(MaxPool, "nn.max_pool3d", "Maximum under a window over D, H and W.  data: NCDHW -> NCDHW.", spatial="DHW")
for _rank, _axes in enumerate(("W", "HW", "DHW"), 1):
    define(
        MaxPosition, f"nn.max_pool{_rank}d_positions", f"Where the maxima of nn.max_pool{_rank}d are.", spatial=_axes
    )
define(AvgPool, "nn.avg_pool1d", "Mean under a window along W.  data: NCW -> NCW.", spatial="W")
define(AvgPool, "nn.avg_pool2d", f"Mean under a window over H and W.  {_images}", spatial="HW")
define(AvgPool, "nn.avg_pool3d", "Mean under a window over D, H and W.  data: NCDHW -> NCDHW.", spatial="DHW")


class GlobalPool2d(Op, fusion=Fusion.OUT_ELEMWISE_FUSABLE):
    """One number per channel.  data: ``layout`` NCHW, NHWC, NCHW[x]c -> ``out_layout`` (empty: the same), H = W = 1."""

    kinds: ClassVar[str] = "iuf"
    layout: str = "NCHW"
    out_layout: str = ""

    def infer(self, data: TensorType) -> TensorType:
        require_kind(self, data, self.kinds, "the input")
        layout = check_layout(self, self.layout, "HW", data)
        pixels = self._pixels(layout)
        found = data.with_shape(tuple(1 if d in pixels else n for d, n in enumerate(data.shape)))
        if lacks(product(data.shape[d] for d in pixels), product(found.shape)):
            raise self.reject(f"the input has no pixels: {data}")
        return found

    @staticmethod
    def _pixels(layout: Layout) -> tuple[int, int]:
        return (layout.index("H"), layout.index("W"))

    def relayout(self, site: Site) -> Placement | Declined:
        return whole_planes(site, self.layout, "HW")


class GlobalAvgPool2d(GlobalPool2d, name="nn.global_avg_pool2d", kinds="f"):
    """The mean of every channel's pixels.  data: (N, C, H, W) floats -> (N, C, 1, 1)."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        wide = np.promote_types(data.dtype, "float32")
        mean = data.mean(axis=self._pixels(Layout(self.layout)), keepdims=True, dtype=wide)
        return np.asarray(mean.astype(data.dtype))

    def compute(self, data: Buffer) -> Stage:
        pixels, wide = sorted(self._pixels(Layout(self.layout))), accumulator(data.dtype)
        count = product(data.shape[d] for d in pixels)

        def mean(total: LoopExpr, _: Index) -> LoopExpr:
            if isinstance(count, int):
                return (total * const(1 / max(1, count), wide)).astype(data.dtype)
            return (total / maximum(as_index(count), 1).astype(wide)).astype(data.dtype)

        return reduced(data.shape, pixels, sum_over, lambda i, _: data[i].astype(wide), mean)


class GlobalMaxPool2d(GlobalPool2d, name="nn.global_max_pool2d", exact=True, precision=Precision.FOLLOW):
    """The largest of every channel's pixels.  data: (N, C, H, W) -> (N, C, 1, 1)."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.asarray(data.max(axis=self._pixels(Layout(self.layout)), keepdims=True))

    def compute(self, data: Buffer) -> Stage:
        return reduced(data.shape, sorted(self._pixels(Layout(self.layout))), max_over, lambda i, _: data[i])
