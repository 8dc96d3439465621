"""Convolutions and transposed convolutions as windows over an image, with their axes named, whatever the layouts.

A transposed convolution of stride ``s`` is ``s`` convolutions of stride 1 along an axis, one for each phase of its
results: ``result[q * s + phase]`` sums ``data[q + ...]`` over every ``s``-th tap, backwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from minitvm.codegen.problem import Problem
from minitvm.codegen.templates.phases import PhasedAxis
from minitvm.ir.dims import Dim
from minitvm.ir.layout import Layout
from minitvm.ir.loop import Buffer, Load, LoopExpr
from minitvm.ir.ops._window import pads_of
from minitvm.ir.ops.nn_conv import Convolution
from minitvm.ir.ops.nn_conv_transpose import ConvTranspose


@dataclass(frozen=True)
class ConvAxis:
    """One spatial axis: its windows, and which taps and results these are; the same for ``phases`` neighbours."""

    window: PhasedAxis
    first_tap: int = 0
    tap_step: int = 1
    first_result: int = 0
    result_step: int = 1
    phases: int = 1

    def tap(self, t: LoopExpr, phase: LoopExpr) -> LoopExpr:
        """The weight's tap that is the window's ``t``-th."""
        return t * self.tap_step + phase + self.first_tap

    def result(self, position: LoopExpr, phase: LoopExpr) -> LoopExpr:
        return position * self.result_step + phase + self.first_result


@dataclass(frozen=True)
class ConvShapes:
    """A convolution with two spatial axes or more: one axis is two of which the first is 1.

    ``channels``, ``inputs``: of the results and the data of a group.
    """

    op: Convolution | ConvTranspose
    data: Buffer
    weight: Buffer
    out: Buffer
    batch: int
    groups: int
    channels: int
    inputs: int
    axes: tuple[ConvAxis, ...]

    @property
    def windows(self) -> tuple[PhasedAxis, ...]:
        return tuple(a.window for a in self.axes)

    @property
    def layout_of_result(self) -> Layout:
        return self.op.layouts[2]

    def _named(self, where: Sequence[LoopExpr]) -> dict[str, LoopExpr]:
        return dict(zip(self.op.spatial, where[-len(self.op.spatial) :], strict=True))

    @property
    def positions(self) -> int:
        """Results of a channel."""
        return math.prod(w.outputs for w in self.windows)

    def pixel(self, n: LoopExpr, c: LoopExpr, where: Sequence[LoopExpr]) -> Load:
        """An element of the data."""
        return Load(self.data, self.op.layouts[0].place({"N": n, "C": c, **self._named(where)}))

    def filter(
        self, group: LoopExpr, k: LoopExpr, c: LoopExpr, taps: Sequence[LoopExpr], phases: Sequence[LoopExpr]
    ) -> Load:
        """The weight between a channel of a group's data and one of its results."""
        given = [axis.tap(t, phase) for axis, t, phase in zip(self.axes, taps, phases, strict=True)]
        transposed = isinstance(self.op, ConvTranspose)
        o, i = (k, group * self.inputs + c) if transposed else (group * self.channels + k, c)
        return Load(self.weight, self.op.layouts[1].place({"O": o, "I": i, **self._named(given)}))

    def result(self, n: LoopExpr, c: LoopExpr, where: Sequence[LoopExpr], phases: Sequence[LoopExpr]) -> Load:
        """Channel ``c`` of the result, at positions of the windows."""
        spot = [axis.result(position, phase) for axis, position, phase in zip(self.axes, where, phases, strict=True)]
        return Load(self.out, self.layout_of_result.place({"N": n, "C": c, **self._named(spot)}))


def convolution_shapes(op: Convolution, problem: Problem, trimmed: bool = True) -> ConvShapes:
    """Of a convolution; ``trimmed``: without taps that only read padding."""
    (data, weight), out = problem.inputs, problem.output
    pixels, taps, found = (
        _extents(layout.primal_shape(buffer.shape))
        for layout, buffer in zip(op.layouts, (data, weight, out), strict=True)
    )
    axes = []
    for d, (a, pads) in enumerate(zip(op.spatial, pads_of(op.padding), strict=True)):
        whole = PhasedAxis(pixels[a], found[a], taps[a], op.strides[d], op.dilation[d], pads[0])
        window, first = whole.trimmed() if trimmed else (whole, 0)
        axes.append(ConvAxis(window, first))
    channels = found["C"] // op.groups
    return ConvShapes(op, data, weight, out, pixels["N"], op.groups, channels, taps["I"], _two(axes))


def _two(axes: Sequence[ConvAxis]) -> tuple[ConvAxis, ...]:
    line = (ConvAxis(PhasedAxis(1, 1, 1, 1, 1, 0)),) if len(axes) == 1 else ()
    return (*line, *axes)


def _extents(shape: Mapping[str, Dim]) -> dict[str, int]:
    known = {axis: extent for axis, extent in shape.items() if isinstance(extent, int)}
    assert len(known) == len(shape), "kernels are made where shapes are known"
    return known


def transposed_shapes(op: ConvTranspose, problem: Problem) -> list[ConvShapes]:
    """The convolutions that make up a transposed one; all read the same padded image."""
    (data, weight), out = problem.inputs, problem.output
    image, kernel, _ = op.layouts
    pixels, found = _extents(image.primal_shape(data.shape)), _extents(image.primal_shape(out.shape))
    taps = _extents(kernel.primal_shape(weight.shape))
    by_axis = []
    for d, (a, pads) in enumerate(zip(op.spatial, pads_of(op.padding), strict=True)):
        whole = PhasedAxis(pixels[a], found[a], taps[a], op.strides[d], op.dilation[d], pads[0])
        by_axis.append(_phase_runs(whole))
    sizes = (pixels["N"], op.groups, taps["O"], pixels["C"] // op.groups)
    return [ConvShapes(op, data, weight, out, *sizes, _two(axes)) for axes in itertools.product(*by_axis)]


def _phase_runs(axis: PhasedAxis) -> list[ConvAxis]:
    """Neighbouring phases whose windows read alike, their taps being neighbours, as one."""
    runs: list[ConvAxis] = []
    for phase in range(min(axis.stride, axis.outputs)):
        found = _phase(axis, phase)
        last = runs[-1] if runs else None
        if last is not None and (last.window, last.first_tap + last.phases) == (found.window, found.first_tap):
            runs[-1] = replace(last, phases=last.phases + 1)
        else:
            runs.append(found)
    before = max(r.window.before for r in runs)
    shifted = [replace(r.window, before=before, shift=before - r.window.before) for r in runs]
    least = max(w.length for w in shifted)
    return [replace(r, window=replace(w, least=least)) for r, w in zip(runs, shifted, strict=True)]


def _phase(axis: PhasedAxis, phase: int) -> ConvAxis:
    """Results ``q * stride + phase``: tap ``k`` reads the data at ``q + (phase + before - k * dilation) / stride``."""
    at = phase + axis.before
    taps = [k for k in range(axis.taps) if (k * axis.dilation - at) % axis.stride == 0]
    common = math.gcd(axis.dilation, axis.stride)
    last = taps[-1] if taps else phase
    before = (last * axis.dilation - at) // axis.stride if taps else 0
    outputs = -(-(axis.outputs - phase) // axis.stride)
    window = PhasedAxis(axis.extent, outputs, len(taps), 1, axis.dilation // common, before)
    return ConvAxis(window, last, -(axis.stride // common), phase, axis.stride)
