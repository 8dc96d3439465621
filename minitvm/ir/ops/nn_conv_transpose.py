"""Transposed convolutions: what a convolution's gradient does, used to enlarge images."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from minitvm.ir.dims import Dim, falls_short
from minitvm.ir.layout import Layout
from minitvm.ir.loop import Buffer, LoopExpr, Stage, all_of, select
from minitvm.ir.op import compute, define, sum_over
from minitvm.ir.ops._shape import buffer_type, dilated, inside, pads_of, tap_views
from minitvm.ir.ops.nn_conv import FilterBank
from minitvm.ir.types import TensorType, accumulator


class ConvTranspose(FilterBank):
    """Each pixel of the data adds a scaled copy of the filters to the result, ``strides`` apart.

    data: (N, C, spatial...), weight: (C, O / groups, kernel...), whose ``I`` is the data's channels
    -> (N, O, spatial...) in the data's layout, of extent
    ``(in - 1) * stride + (kernel - 1) * dilation + 1 + output_padding`` - padding before and after.
    """

    filters = "IO"
    output_padding: tuple[int, ...] = ()

    @cached_property
    def layouts(self) -> tuple[Layout, Layout, Layout]:
        data, kernel, out = super().layouts
        if data.is_blocked or kernel.is_blocked:
            raise self.reject(f"layouts {data} and {kernel} must be without blocks")
        if out != data:
            raise self.reject(f"out_layout={self.out_layout!r} differs from data_layout={self.data_layout!r}")
        return data, kernel, out

    def _count(self, inputs: int, taps: dict[str, int]) -> int:
        kernel, found = self.layouts[1], taps["O"] * self.groups
        if inputs != taps["I"]:
            raise self.reject(
                f"the input has {inputs} channels but the weight expects {taps['I']}",
                hint=f"weights are {kernel}: the {kernel.ordinal('I')} dimension must be {inputs}",
            )
        if inputs % self.groups:
            raise self.reject(f"groups={self.groups} does not divide the {inputs} input channels")
        if self.channels is not None and self.channels != found:
            raise self.reject(f"channels={self.channels} but the weight has {found} filters")
        return found

    def _extent(self, axis: str, extent: Dim, taps: int) -> Dim:
        d = self.spatial.index(axis)
        full = (extent - 1) * self.strides[d] + dilated(taps, self.dilation[d]) + self.output_padding[d]
        found = full - sum(pads_of(self.padding)[d])
        if falls_short(found, 1):
            raise self.reject(f"padding={list(self.padding)} removes all {full} elements along {axis}")
        return found

    def flops(self, args: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        """The operations of the convolution that it is the gradient of: every element of the input meets its channel's
        of the weight."""
        data, weight = args
        return 2.0 * data.size * weight.size / max(1, weight.static_shape[self.layouts[1].index("I")])

    def _slide(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """One matrix product per tap, then the crop."""
        n, channels, pixels, (per_group, *kernel) = x.shape[0], x.shape[1], x.shape[2:], w.shape[1:]
        windows = [self.window(axis, taps) for axis, taps in zip(self.spatial, kernel, strict=True)]
        spans = [(p - 1) * v.stride + dilated(v.taps, v.dilation) for p, v in zip(pixels, windows, strict=True)]
        full = [span + extra for span, extra in zip(spans, self.output_padding, strict=True)]
        out = np.zeros((n, self.groups * per_group, *full), x.dtype)
        flat = x.reshape(n, self.groups, channels // self.groups, math.prod(pixels))
        split = w.reshape(self.groups, channels // self.groups, per_group, math.prod(kernel)).swapaxes(1, 2)
        for tap, view in enumerate(tap_views(out, windows, pixels) if flat.size else ()):
            view += (split[..., tap] @ flat).reshape(view.shape)
        kept = [slice(v.pads[0], f - v.pads[1]) for v, f in zip(windows, full, strict=True)]
        return np.asarray(out[tuple([slice(None)] * 2 + kept)])

    def compute(self, data: Buffer, weight: Buffer) -> Stage:
        result = self.infer(buffer_type(data), buffer_type(weight))
        image, kernel, _ = self.layouts
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
        image, kernel, _ = self.layouts
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
        position = {"I": channel, "O": at["C"] % filters if self.groups > 1 else at["C"]}
        factor = weight[kernel.place({**position, **dict(zip(self.spatial, taps, strict=True))})]
        pixel = select(all_of(conditions), data[image.place(where)], 0)
        return pixel.astype(accumulator(dtype)) * factor.astype(accumulator(dtype))


class Conv2dTranspose(ConvTranspose, name="nn.conv2d_transpose", spatial="HW"):
    """Transposed convolution of images.  data: NCHW, weight: IOHW -> NCHW; the layouts are attributes."""


_layouts = "the layouts are attributes."
_line, _volume = f"data: NCW, weight: IOW -> NCW; {_layouts}", f"data: NCDHW, weight: IODHW -> NCDHW; {_layouts}"
Conv1dTranspose = define(
    ConvTranspose, "nn.conv1d_transpose", f"Transposed convolution over one axis.  {_line}", spatial="W"
)
Conv3dTranspose = define(
    ConvTranspose, "nn.conv3d_transpose", f"Transposed convolution of volumes.  {_volume}", spatial="DHW"
)
