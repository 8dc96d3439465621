"""Transposed convolutions: what a convolution's gradient does, used to enlarge images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from minitvm.ir.compute import accumulator, compute, sum_over
from minitvm.ir.dims import Dim, always_less
from minitvm.ir.layout import Layout
from minitvm.ir.loop import Buffer, LoopExpr, Stage, all_of, select
from minitvm.ir.op import Fusion
from minitvm.ir.ops._matmul import product_dtype, widened
from minitvm.ir.ops._window import Windowed, buffer_type, dilated, inside, known, known_dim, over, pads_of
from minitvm.ir.types import ResultDType, TensorType, Type


@dataclass(frozen=True)
class ConvTranspose(Windowed):
    """Each pixel of the data adds a scaled copy of the filters to the result, ``strides`` apart.

    data: (N, C, spatial...) in ``data_layout``, weight: (C, O / groups, kernel...) in ``kernel_layout``, whose ``I``
    is the data's channels -> (N, O, spatial...) of extent
    (in - 1) * stride + (kernel - 1) * dilation + 1 + output_padding - padding before and after.
    ``channels`` and ``kernel_size`` are needed only where the weight's type is to be inferred.
    """

    fusion = Fusion.OUT_ELEMWISE_FUSABLE
    channels: int | None = None
    kernel_size: tuple[int, ...] | None = None
    strides: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    data_layout: str = ""
    kernel_layout: str = ""
    out_layout: str = ""
    out_dtype: ResultDType = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups < 1:
            raise self.reject(f"groups={self.groups} must be positive")

    @cached_property
    def layouts(self) -> tuple[Layout, Layout]:
        """Of data and result, and of the weight."""
        data, kernel = Layout(self.data_layout), Layout(self.kernel_layout)
        if sorted(data.text) != sorted("NC" + self.spatial) or sorted(kernel.text) != sorted("IO" + self.spatial):
            axes = f"{', '.join('NC' + self.spatial)} and {', '.join('IO' + self.spatial)}"
            raise self.reject(f"layouts {data} and {kernel} must have the axes {axes}, without blocks")
        if self.out_layout not in ("", self.data_layout):
            raise self.reject(f"out_layout={self.out_layout!r} differs from data_layout={self.data_layout!r}")
        return data, kernel

    def solve(self, types: list[Type | None]) -> list[Type | None]:
        data, weight = types
        if weight is not None or not isinstance(data, TensorType) or not self.channels or not self.kernel_size:
            return types
        image, kernel = self.layouts
        taps = dict(zip(self.spatial, self.kernel_size, strict=True))
        extents = {"I": image.primal_shape(data.shape)["C"], "O": self.channels // self.groups, **taps}
        return [data, TensorType(kernel.shape_of(extents), data.dtype)]

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        image, kernel = self.layouts
        for what, type_, layout in (("the input", data, image), ("the weight", weight, kernel)):
            if type_.rank != layout.rank:
                raise self.reject(
                    f"{what} has {type_.rank} dimensions but layout {layout} has {layout.rank}: {type_}",
                    hint="add or remove dimensions with reshape, or name the layout that the tensor has",
                )
        known(self, weight, "the weight")
        pixels, taps = image.primal_shape(data.shape), kernel.primal_shape(weight.shape)
        self._check_channels(known_dim(self, pixels["C"], "the input's channels"), taps, kernel)
        filters = known_dim(self, taps["O"], "O") * self.groups
        result = {axis: self._extent(axis, pixels[axis], known_dim(self, taps[axis], axis)) for axis in self.spatial}
        shape = image.shape_of({"N": pixels["N"], "C": filters, **result})
        return TensorType(shape, product_dtype(self, data, weight, self.out_dtype))

    def _check_channels(self, channels: int, taps: dict[str, Dim], kernel: Layout) -> None:
        if channels != taps["I"]:
            raise self.reject(
                f"the input has {channels} channels but the weight expects {taps['I']}",
                hint=f"weights are {kernel}: the {kernel.ordinal('I')} dimension must be {channels}",
            )
        if channels % self.groups:
            raise self.reject(f"groups={self.groups} does not divide the {channels} input channels")
        filters = known_dim(self, taps["O"], "O") * self.groups
        if self.channels is not None and self.channels != filters:
            raise self.reject(f"channels={self.channels} but the weight has {filters} filters")

    def _extent(self, axis: str, extent: Dim, taps: int) -> Dim:
        d = self.spatial.index(axis)
        full = (extent - 1) * self.strides[d] + dilated(taps, self.dilation[d]) + self.output_padding[d]
        found = full - sum(pads_of(self.padding)[d])
        if always_less(found, 1):
            raise self.reject(f"padding={list(self.padding)} removes all {full} elements along {axis}")
        return found

    def flops(self, args: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        """As the convolution it is the gradient of: every element of the input meets its channel's of the weight."""
        data, weight = args
        return 2.0 * data.size * weight.size / max(1, weight.static_shape[0])

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        image, kernel = self.layouts
        x = Layout("NC" + self.spatial).convert(data, image)
        w = Layout("IO" + self.spatial).convert(weight, kernel)
        dtype = self.out_dtype or data.dtype.name
        wide = widened(data.dtype.name, dtype)
        y = self._scatter(x.astype(wide), w.astype(wide))
        return np.ascontiguousarray(image.convert(y.astype(dtype), "NC" + self.spatial))

    def _scatter(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """x: (N, C, ...), w: (C, O / groups, ...) -> (N, O, ...): one matrix product per tap, then the crop."""
        n, channels, pixels = x.shape[0], x.shape[1], x.shape[2:]
        per_group, kernel = w.shape[1], w.shape[2:]
        full = [
            (p - 1) * s + dilated(k, d) + extra
            for p, s, k, d, extra in zip(pixels, self.strides, kernel, self.dilation, self.output_padding, strict=True)
        ]
        out = np.zeros((n, self.groups * per_group, *full), x.dtype)
        flat = x.reshape(n, self.groups, channels // self.groups, math.prod(pixels))
        split = w.reshape(self.groups, channels // self.groups, per_group, *kernel).swapaxes(1, 2)
        for tap in np.ndindex(*kernel) if flat.size else ():
            place = (..., *tap)
            spread = (split[place] @ flat).reshape(n, self.groups * per_group, *pixels)
            steps = [
                slice(t * d, t * d + (p - 1) * s + 1, s)
                for t, d, p, s in zip(tap, self.dilation, pixels, self.strides, strict=True)
            ]
            window = (slice(None), slice(None), *steps)
            out[window] += spread
        kept = [slice(a, f - b) for (a, b), f in zip(pads_of(self.padding), full, strict=True)]
        crop = (slice(None), slice(None), *kept)
        return np.asarray(out[crop])

    def compute(self, data: Buffer, weight: Buffer) -> Stage:
        result = self.infer(buffer_type(data), buffer_type(weight))
        image, kernel = self.layouts
        inputs = weight.shape[kernel.index("I")] // self.groups
        taps = [weight.shape[kernel.index(axis)] for axis in self.spatial]

        def element(*index: LoopExpr) -> LoopExpr:
            at = image.coordinates(index)
            total = sum_over((inputs, *taps), lambda r, *k: self._product(data, weight, at, r, k, result.dtype))
            return total.astype(result.dtype)

        return compute(result.static_shape, element)

    def _product(
        self, data: Buffer, weight: Buffer, at: dict[str, Any], r: LoopExpr, taps: Sequence[LoopExpr], dtype: str
    ) -> LoopExpr:
        """One term of the sum: 0 unless a pixel of the data lies where the tap reaches back to."""
        image, kernel = self.layouts
        filters, inputs = weight.shape[kernel.index("O")], weight.shape[kernel.index("I")] // self.groups
        channel = at["C"] // filters * inputs + r if self.groups > 1 else r
        where = {"N": at["N"], "C": channel}
        conditions: list[LoopExpr] = []
        for d, axis in enumerate(self.spatial):
            scaled = at[axis] + pads_of(self.padding)[d][0] - taps[d] * self.dilation[d]
            where[axis] = scaled // self.strides[d]
            conditions += inside(where[axis], data.shape[image.index(axis)])
            if self.strides[d] > 1:
                conditions.append((scaled % self.strides[d]).equal(0))
        spot = {"I": channel, "O": at["C"] % filters if self.groups > 1 else at["C"]}
        factor = weight[kernel.place({**spot, **dict(zip(self.spatial, taps, strict=True))})]
        pixel = select(all_of(conditions), data[image.place(where)], 0)
        return pixel.astype(accumulator(dtype)) * factor.astype(accumulator(dtype))


@over("W", "IO")
class Conv1dTranspose(ConvTranspose):
    """Transposed convolution over one axis.  data: NCW, weight: IOW -> NCW; the layouts are attributes."""

    name = "nn.conv1d_transpose"


@over("HW", "IO")
class Conv2dTranspose(ConvTranspose):
    """Transposed convolution of images.  data: NCHW, weight: IOHW -> NCHW; the layouts are attributes."""

    name = "nn.conv2d_transpose"


@over("DHW", "IO")
class Conv3dTranspose(ConvTranspose):
    """Transposed convolution of volumes.  data: NCDHW, weight: IODHW -> NCDHW; the layouts are attributes."""

    name = "nn.conv3d_transpose"
