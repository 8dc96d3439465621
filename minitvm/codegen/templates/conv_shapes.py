"""Convolutions and transposed convolutions as windows over an image, with their axes named, whatever the layouts.

A transposed convolution of stride ``s`` is ``s`` convolutions of stride 1 along an axis, one for each phase of its
results, a polyphase decomposition: ``result[q * s + phase]`` sums ``data[q + ...]`` over every ``s``-th tap, backwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from minitvm.codegen.loops import inside, or_zero, parallel, unflatten
from minitvm.codegen.problem import Choice, Problem
from minitvm.codegen.templates.matmul import along_lanes, product_choices, product_loops
from minitvm.codegen.templates.product import Matrix, Product
from minitvm.codegen.templates.tile import dot_operations
from minitvm.codegen.templates.window import PhasedAxis
from minitvm.cpu_costs import CPU
from minitvm.ir.layout import Layout
from minitvm.ir.loop import Barrier, Buffer, Const, Load, LoopExpr, Stmt
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.ops._shape import pads_of
from minitvm.ir.ops.nn_conv import Convolution
from minitvm.ir.ops.nn_conv_transpose import ConvTranspose
from minitvm.target import MachineModel


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


def conv_shapes(problem: Problem, trimmed: bool = True) -> list[ConvShapes]:
    """The convolution's shapes: one for a convolution, for a transposed one those that make it up, over one padded
    image.

    ``trimmed``: a convolution without taps that only read padding.
    """
    op, (data, weight), out = problem.op, problem.inputs, problem.output
    assert isinstance(op, (Convolution, ConvTranspose))
    pixels, taps, found = map(_extents, op.layouts, (data, weight, out))
    by_axis = []
    for d, (a, pads) in enumerate(zip(op.spatial, pads_of(op.padding), strict=True)):
        whole = PhasedAxis(pixels[a], found[a], taps[a], op.strides[d], op.dilation[d], pads[0])
        one = ConvAxis(*whole.trimmed()) if trimmed else ConvAxis(whole)
        by_axis.append([one] if isinstance(op, Convolution) else _phase_runs(whole))
    if len(by_axis) == 1:
        by_axis.insert(0, [ConvAxis(PhasedAxis(1, 1, 1, 1, 1, 0))])
    sizes = pixels["N"], op.groups, found["C"] // op.groups, pixels["C"] // op.groups
    return [ConvShapes(op, data, weight, out, *sizes, axes) for axes in itertools.product(*by_axis)]


def _extents(layout: Layout, buffer: Buffer) -> dict[str, int]:
    found = layout.primal_shape(buffer.shape)
    known = {axis: extent for axis, extent in found.items() if isinstance(extent, int)}
    assert len(known) == len(found), "kernels are made where shapes are known"
    return known


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
    least, widest = max(w.length for w in shifted), max(w.outputs for w in shifted)
    return [replace(r, window=replace(w, least=least, widest=widest)) for r, w in zip(runs, shifted, strict=True)]


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


# --- those that are matrix products: of pixels, and of images so small that their windows are copied ---------------
# result[b, k, position] = sum over r of weight[b, k, r] * image[b, r, position]


def conv_product(problem: Problem, dtype: str, machine: MachineModel) -> ConvProduct | None:
    """The convolution as a product; ``None`` where it is none."""
    ((trimmed,), (whole,)) = (conv_shapes(problem, trimmed) for trimmed in (True, False))
    one = trimmed.positions == 1
    pixels = ConvProduct(trimmed, dtype, machine, one) if one or 1 in (trimmed.batch, trimmed.groups) else None
    if all(w.is_pixels for w in trimmed.windows) and pixels is not None:
        return pixels
    found = ConvProduct(whole, dtype, machine, True, copied=True)
    groups, positions, depth = found.columns.shape
    operations = dot_operations(groups, whole.channels, positions, depth, dtype, machine)
    in_place = groups * whole.channels * whole.batch * -(-whole.positions // machine.lanes(dtype)) * depth
    if operations + CPU.window_element * groups * positions * depth > in_place:
        return None
    return pixels if all(w.is_sampled for w in trimmed.windows) and pixels is not None else found


@dataclass(frozen=True)
class ConvProduct:
    """``together``: positions are those of all images, and a batch is the groups; else there is one image or one group.

    ``copied``: windows are copied side by side first; else each is one pixel, and read where it is, or packed.
    """

    shapes: ConvShapes
    dtype: str
    machine: MachineModel
    together: bool
    copied: bool = False

    def choices(self) -> list[Choice]:
        return product_choices(along_lanes(self.product), self.machine)

    def loops(self, choice: Choice) -> Stmt:
        code = LoopBuilder()
        with code.memory(*[self.columns] * self.copied):
            if self.copied:
                self._fill(code)
                code.emit(Barrier())
            product_loops(code, along_lanes(self.product), choice, self.machine)
        return code.stmt

    @property
    def depth(self) -> int:
        return self.shapes.inputs * math.prod(self._taps)

    @cached_property
    def columns(self) -> Buffer:
        """Windows side by side: (group, position, element of the window)."""
        return Buffer("image", (self.shapes.groups, self._positions, self.depth), self.dtype)

    @cached_property
    def product(self) -> Product:
        shapes, positions, kernel = self.shapes, self._positions, self.shapes.op.layouts[1]
        batch = shapes.groups if self.together else shapes.batch * shapes.groups
        phases = [Const(0)] * len(shapes.axes)

        def weight(group: LoopExpr, k: LoopExpr, r: LoopExpr) -> Load:
            c, *taps = unflatten(r, (shapes.inputs, *self._taps))
            return shapes.filter(group, k, c, taps, phases)

        def result(b: LoopExpr, k: LoopExpr, position: LoopExpr) -> Load:
            n, group, where = self._located(b, position)
            return shapes.result(n, group * shapes.channels + k, where, phases)

        return Product(
            Matrix.stored(shapes.groups, shapes.channels, self.depth, weight, kernel.index("I") < kernel.index("O")),
            Matrix.of(self.columns, True) if self.copied else self._pixels(batch),
            Matrix.stored(batch, shapes.channels, positions, result, self._channels_last(shapes.layout_of_result)),
            self.dtype,
        )

    def _pixels(self, batch: int) -> Matrix:
        """Each result reads one pixel."""
        shapes = self.shapes

        def pixel(b: LoopExpr, c: LoopExpr, position: LoopExpr) -> Load:
            n, group, where = self._located(b, position)
            spots = [at * w.stride for at, w in zip(where, shapes.windows, strict=True)]
            return shapes.pixel(n, group * shapes.inputs + c, spots)

        last = self._channels_last(shapes.op.layouts[0])
        found = Matrix.stored(batch, shapes.inputs, self._positions, pixel, last)
        return found if last or all(w.is_pixels for w in shapes.windows) else replace(found, along_rows=False)

    def _fill(self, code: LoopBuilder) -> None:
        """Every element of every window, zero where it is padding."""
        shapes = self.shapes
        extents = (shapes.groups, shapes.inputs, self._positions, *self._taps)
        with parallel(code, extents, math.prod(extents[:2])) as (b, c, position, *taps):
            n, _, where = self._located(b, position)
            spots = [w.coordinate(p, t) for w, p, t in zip(shapes.windows, where, taps, strict=True)]
            holds = inside(spots, [w.extent for w in shapes.windows])
            pixel = shapes.pixel(n, b * shapes.inputs + c, spots).astype(self.dtype)
            r = c
            for extent, tap in zip(self._taps, taps, strict=True):
                r = r * extent + tap
            code.store(self.columns, (b, position, r), or_zero(holds, pixel))

    def _channels_last(self, layout: Layout) -> bool:
        return layout.axes[-1].name == "C" or self._positions == self.shapes.batch

    @property
    def _taps(self) -> list[int]:
        return [w.taps for w in self.shapes.windows]

    @property
    def _extents(self) -> tuple[int, ...]:
        """What a flat position counts through."""
        return ((self.shapes.batch,) if self.together else ()) + tuple(w.outputs for w in self.shapes.windows)

    @property
    def _positions(self) -> int:
        return math.prod(self._extents)

    def _located(self, b: LoopExpr, position: LoopExpr) -> tuple[LoopExpr, LoopExpr, tuple[LoopExpr, ...]]:
        """Image, group, spatial coordinates."""
        where = unflatten(position, self._extents)
        if self.together:
            return where[0], b, where[1:]
        return (b, Const(0), where) if self.shapes.groups == 1 else (Const(0), b, where)
