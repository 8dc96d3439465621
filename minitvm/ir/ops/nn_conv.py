"""Convolutions in 1, 2 and 3 dimensions, in plain and in blocked layouts."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from minitvm.ir.dims import Dim, differ
from minitvm.ir.layout import Layout, Split
from minitvm.ir.loop import Buffer, LoopExpr, Stage, all_of, select
from minitvm.ir.op import Fusion, Precision, compute, define, sum_over
from minitvm.ir.ops._shape import (
    Windowed,
    buffer_type,
    dilated,
    inside,
    known,
    known_dim,
    product_dtype,
    tap_views,
    widened,
    window_extent,
)
from minitvm.ir.types import ResultDType, TensorType, Type, accumulator


class FilterBank(Windowed, fusion=Fusion.OUT_ELEMWISE_FUSABLE, precision=Precision.SHORT):
    """What slides filters over an image.  data: in ``data_layout``, weight: in ``kernel_layout`` -> in ``out_layout``
    (empty: as the data) and ``out_dtype`` (empty: as the data).

    ``strides`` lie between neighbouring positions of the filters, ``dilation`` between their taps.  ``padding`` is
    (before..., after...); one number, or one per axis, pads both ends.  Filters of one of the ``groups`` see its part
    of the channels.  ``channels`` and ``kernel_size`` are needed only where the weight's type is to be inferred.
    """

    strides: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    channels: int | None = None
    kernel_size: tuple[int, ...] | None = None
    data_layout: str = ""
    kernel_layout: str = ""
    out_layout: str = ""
    out_dtype: ResultDType = ""

    def batch_axes(self) -> tuple[Sequence[int | None], Sequence[int | None]]:
        image, result = ([axis.name for axis in layout.axes].index("N") for layout in self.layouts[::2])
        return (image, None), (result,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups < 1:
            raise self.reject(f"groups={self.groups} must be positive")

    @cached_property
    def layouts(self) -> tuple[Layout, Layout, Layout]:
        """The layouts of the data, the weight and the result; rejects layouts with the wrong axes."""
        data, kernel = Layout(self.data_layout), Layout(self.kernel_layout)
        out = Layout(self.out_layout or self.data_layout)
        for attribute, layout, axes in (
            ("data_layout", data, "NC" + self.spatial),
            ("kernel_layout", kernel, self.filters + self.spatial),
            ("out_layout", out, "NC" + self.spatial),
        ):
            if sorted(layout.primal) != sorted(axes):
                raise self.reject(f"{attribute}={str(layout)!r} must have the axes {', '.join(axes)}")
        return data, kernel, out

    def solve(self, types: list[Type | None]) -> list[Type | None]:
        data, weight = types
        if weight is not None or not isinstance(data, TensorType) or not self.channels or not self.kernel_size:
            return types
        image, kernel, _ = self.layouts
        inputs = known_dim(self, image.primal_shape(data.shape)["C"], "the input's channels")
        extents = {"O": self.channels, "I": inputs, **dict(zip(self.spatial, self.kernel_size, strict=True))}
        extents[self.filters[1]] //= self.groups
        return [data, TensorType(kernel.shape_of(extents), data.dtype)]

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        image, kernel, out = self.layouts
        self._check_rank("the input", data, image)
        self._check_rank("the weight", weight, kernel)
        known(self, weight, "the weight")
        pixels = image.primal_shape(data.shape)
        taps = self._held(weight.shape)
        filters = self._count(known_dim(self, pixels["C"], "the input's channels"), taps)
        result = {axis: self._extent(axis, pixels[axis], taps[axis]) for axis in self.spatial}
        shape = out.shape_of({"N": pixels["N"], "C": filters, **result})
        return TensorType(shape, product_dtype(self, data, weight, self.out_dtype))

    def _held(self, shape: Sequence[Dim]) -> dict[str, int]:
        """The extents of a weight's axes."""
        return {axis: known_dim(self, n, axis) for axis, n in self.layouts[1].primal_shape(shape).items()}

    def _check_rank(self, what: str, type_: TensorType, layout: Layout) -> None:
        if type_.rank != layout.rank:
            raise self.reject(
                f"{what} has {type_.rank} dimensions but layout {layout} has {layout.rank}: {type_}",
                hint="add or remove dimensions with reshape, or name the layout that the tensor has",
            )

    def _count(self, inputs: int, taps: dict[str, int]) -> int:
        """The number of filters; rejects channels, groups and attributes that do not fit the weight's extents."""
        raise NotImplementedError(self.name)

    def _extent(self, axis: str, extent: Dim, taps: int) -> Dim:
        """The result's extent along a spatial axis."""
        raise NotImplementedError(self.name)

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        (image, kernel, out), dtype = self.layouts, self.out_dtype or data.dtype.name
        wide = widened(data.dtype.name, dtype)
        x = Layout("NC" + self.spatial).convert(data, image).astype(wide)
        w = Layout(self.filters + self.spatial).convert(weight, kernel).astype(wide)
        return np.ascontiguousarray(out.convert(self._slide(x, w).astype(dtype), "NC" + self.spatial))

    def _slide(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """x: (N, C, ...), w: in the order of ``filters`` -> (N, O, ...)."""
        raise NotImplementedError(self.name)


class Convolution(FilterBank):
    """Cross-correlation of an image with filters, what frameworks call convolution.

    data: (N, C, spatial...), weight: (O, C / groups, kernel...) -> (N, O, spatial...), each in its layout.
    """

    filters = "OI"

    def channel_layouts(self) -> tuple[Layout, Layout, Layout]:
        return self.layouts

    def flops(self, args: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        """Two per multiplication: every element of the result needs the weight's elements of its output channel."""
        held = self._held(args[1].shape)["O"]
        return 2.0 * results[0].size * args[1].size / max(1, held)

    def _count(self, inputs: int, taps: dict[str, int]) -> int:
        per_group, held, kernel = taps["I"], taps["O"], self.layouts[1]
        if inputs % self.groups or held % self.groups:
            what = f"{inputs} input channels" if inputs % self.groups else f"{held} filters"
            raise self.reject(f"groups={self.groups} does not divide the {what}")
        if per_group * self.groups != inputs:
            raise self.reject(
                f"the input has {inputs} channels but the weight expects {per_group * self.groups}",
                hint=f"weights are {kernel}; with groups={self.groups} the weight's {kernel.ordinal('I')} dimension "
                f"must be {inputs // self.groups // kernel.factor('I')}",
            )
        if self.channels is not None and self.channels != self._filters(held):
            raise self.reject(f"channels={self.channels} but the weight has {held} filters")
        found = tuple(taps[axis] for axis in self.spatial)
        if self.kernel_size is not None and self.kernel_size != found:
            raise self.reject(f"kernel_size={list(self.kernel_size)} but the weight's is {list(found)}")
        return self._filters(held)

    def _filters(self, held: int) -> int:
        """How many of the weight's filters are the layer's: all of them."""
        return held

    def _extent(self, axis: str, extent: Dim, taps: int) -> Dim:
        return window_extent(self, axis, extent, self.window(axis, taps))

    def _slide(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """One matrix product per tap of the kernel."""
        own, groups = self._own(w), self.groups
        n, (filters, per_group), kernel = x.shape[0], own.shape[:2], own.shape[2:]
        windows = [self.window(axis, taps) for axis, taps in zip(self.spatial, kernel, strict=True)]
        padded = np.pad(x, [(0, 0), (0, 0), *(w.pads for w in windows)])
        spans = [dilated(w.taps, w.dilation) for w in windows]
        extents = [(p - s) // w.stride + 1 for p, s, w in zip(padded.shape[2:], spans, windows, strict=True)]
        out = np.zeros((n, groups, filters // groups, math.prod(extents)), x.dtype)
        split = own.reshape(groups, filters // groups, per_group, math.prod(kernel))
        for tap, view in enumerate(tap_views(padded, windows, extents)):
            patch, factor = view.reshape(n, groups, per_group, math.prod(extents)), split[..., tap]
            out += factor * patch if per_group == 1 else factor @ patch
        return out.reshape(n, filters, *extents)

    def _own(self, weight: np.ndarray) -> np.ndarray:
        """The layer's filters of those that the weight holds, both (O, I / groups, kernel...)."""
        held = weight.shape[0]
        filters = self._filters(held)
        groups = weight.reshape(self.groups, held // self.groups, *weight.shape[1:])
        return groups[:, : filters // self.groups].reshape(filters, *weight.shape[1:])

    def compute(self, data: Buffer, weight: Buffer) -> Stage:
        result = self.infer(buffer_type(data), buffer_type(weight))
        out, kernel = self.layouts[2], self.layouts[1]
        taps = {axis: weight.shape[kernel.index(axis)] for axis in self.spatial}
        inner = (kernel.factor("I"),) if "i" in kernel else ()
        reduced = (weight.shape[kernel.index("I")], *inner, *taps.values())

        def element(*index: LoopExpr) -> LoopExpr:
            at = out.coordinates(index)

            def product(*r: LoopExpr) -> LoopExpr:
                channel = Split(r[0], r[1], inner[0]) if inner else r[0]
                return self._product(data, weight, at, channel, r[1 + len(inner) :]).astype(accumulator(result.dtype))

            return sum_over(reduced, product).astype(result.dtype)

        return compute(result.static_shape, element)

    def _product(self, data: Buffer, weight: Buffer, at: dict[str, Any], r: Any, taps: Sequence[LoopExpr]) -> LoopExpr:
        """One term of the sum: 0 where the tap falls on padding."""
        image, kernel, _ = self.layouts
        where = {"N": at["N"], "C": self._input_channel(weight, at["C"], r)}
        conditions: list[LoopExpr] = []
        for axis, tap in zip(self.spatial, taps, strict=True):
            window = self.window(axis, 1)
            where[axis] = window.position(at[axis], tap)
            conditions += inside(where[axis], data.shape[image.index(axis)]) if any(window.pads) else []
        filters = {"O": self._held_filter(weight, at["C"]), "I": r, **dict(zip(self.spatial, taps, strict=True))}
        sum_dtype = accumulator(self.out_dtype or data.dtype)
        pixel = data[image.place(where)]
        if conditions:
            pixel = select(all_of(conditions), pixel, 0)
        return self._times(pixel.astype(sum_dtype), weight[kernel.place(filters)].astype(sum_dtype))

    def _times(self, pixel: LoopExpr, factor: LoopExpr) -> LoopExpr:
        return pixel * factor

    def _input_channel(self, weight: Buffer, out_channel: Any, r: Any) -> Any:
        """The input channel that filter ``out_channel`` reads as its ``r``-th."""
        if self.groups == 1:
            return r
        filters, per_group = self._of_group(weight)[0], self._held(weight.shape)["I"]
        if filters == per_group == 1:
            return out_channel
        o, i = (v.value if isinstance(v, Split) else v for v in (out_channel, r))
        return o // filters * per_group + i

    def _of_group(self, weight: Buffer) -> tuple[int, int]:
        """A group's filters: the layer's, and those that the weight holds."""
        held = self._held(weight.shape)["O"]
        return self._filters(held) // self.groups, held // self.groups

    def _held_filter(self, weight: Buffer, channel: Any) -> Any:
        """The place where the weight holds the filter of a channel of the result."""
        own, held = self._of_group(weight)
        if own == held or self.groups == 1:
            return channel
        value = channel.value if isinstance(channel, Split) else channel
        return value // own * held + value % own


class Conv2d(Convolution, name="nn.conv2d", spatial="HW"):
    """Convolution of images.  data: NCHW, weight: OIHW -> NCHW; NHWC with HWIO, OHWI, ... by attribute."""


_line = "Convolution over one axis.  data: NCW, weight: OIW -> NCW; the layouts are attributes."
_volume = "Convolution of volumes.  data: NCDHW, weight: OIDHW -> NCDHW; the layouts are attributes."
Conv1d = define(Convolution, "nn.conv1d", _line, spatial="W")
Conv3d = define(Convolution, "nn.conv3d", _volume, spatial="DHW")


class BlockedConvolution(Convolution, spatial="HW"):
    """A 2-d convolution whose result is in blocks of channels: what AlterOpLayout replaces ``nn.conv2d`` by.

    The filters of each group come in whole blocks of the weight's layout, the last one filled up with zeros where
    ``channels`` says that there are fewer.
    """

    filter_order = "OIHW"  # no field: not annotated
    data_layout: str = "NCHW8c"
    kernel_layout: str = "OIHW8i8o"
    out_layout: str = "NCHW8c"

    @cached_property
    def layouts(self) -> tuple[Layout, Layout, Layout]:
        data, kernel, out = super().layouts
        if (data.primal, kernel.primal, out.primal) != ("NCHW", self.filter_order, "NCHW"):
            forms = f"NCHW, {self.filter_order}, NCHW"
            raise self.reject(f"layouts {data}, {kernel}, {out} are not blocked forms of {forms}")
        if kernel.factor("O") % out.factor("C"):
            raise self.reject(f"the blocks of the result's layout {out} do not divide those of the filters of {kernel}")
        return data, kernel, out

    def _filters(self, held: int) -> int:
        if self.channels is None:
            return held
        block = self.layouts[1].factor("O")
        whole = self.groups * (-(-self.channels // self.groups // block) * block)
        return self.channels if whole == held else held


class Conv2dNCHWc(BlockedConvolution, name="nn.contrib_conv2d_NCHWc"):
    """``nn.conv2d`` in blocks.  data: NCHW[x]c (or NCHW, where C is the weight's I block), weight: OIHW[x]i[y]o
    -> NCHW[z]c, where z divides y.  With ``groups`` the data is blocked; blocks of channels do not straddle groups."""

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        image, kernel, _ = self.layouts
        if self.groups != 1 and (not image.is_blocked or known(self, weight, "the weight")[0] % self.groups):
            raise self.reject(
                f"{self.groups} groups of data {data} in {image}, {weight} in {kernel}: blocks straddle groups",
                hint="keep nn.conv2d",
            )
        if image.is_blocked and image.factor("C") != kernel.factor("I"):
            raise self.reject(f"the data's layout {image} has other blocks than the inputs of {kernel}")
        return super().infer(data, weight)


class DepthwiseConv2dNCHWc(BlockedConvolution, name="nn.contrib_depthwise_conv2d_NCHWc"):
    """A depthwise ``nn.conv2d`` in blocks.  data: NCHW[y]c, weight: OIHW1i[y]o -> NCHW[y]c; groups = C."""

    kernel_layout: str = "OIHW1i8o"

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        image, kernel, _ = self.layouts
        channels = image.primal_shape(data.shape)["C"] if data.rank == image.rank else self.groups
        if kernel.factor("I") != 1 or differ(channels, self.groups):
            raise self.reject(
                f"groups={self.groups}, {channels} input channels, weight layout {kernel}: not a depthwise convolution",
                hint="groups must equal the input channels and the weight's layout be OIHW1i[y]o",
            )
        return super().infer(data, weight)
