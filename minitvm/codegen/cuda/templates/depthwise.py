"""Depthwise convolutions: a thread computes some neighbouring pixels of a row, of as many channels as it loads at once.

What the windows of its pixels share in a row is loaded once.  There is nothing to share between threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.cuda.templates.product import threads
from minitvm.codegen.cuda.templates.tile import power_of_two
from minitvm.codegen.loops import inside, or_zero, unflatten
from minitvm.codegen.problem import TEMPLATES, Choice, Template, Tile
from minitvm.codegen.templates.conv_shapes import ConvShapes, conv_shapes
from minitvm.codegen.templates.tile import store_at
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Buffer, Const, LoopExpr, Stmt, const, intrin
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.ops.nn_conv import Conv1d, Conv2d, Conv3d

_PIXELS = (1, 2, 4, 8)
_LATENCY = 700
_LOAD = 4
"""Instructions that a load costs, with its condition and its address."""


@TEMPLATES.register("cuda", Conv1d, Conv2d, Conv3d)
class GpuDepthwise(Template):
    """One filter a channel, in layouts whose last axis is the channels; with other layouts, a channel a thread."""

    @cached_property
    def shapes(self) -> ConvShapes:
        (found,) = conv_shapes(self.problem)
        return found

    def refusal(self) -> Declined | None:
        shapes = self.shapes
        if shapes.inputs != 1 or shapes.channels != 1 or shapes.groups == 1:
            return Declined(f"{shapes.inputs} channels to a group, and {shapes.channels} filters: not depthwise")
        return super().refusal()

    @cached_property
    def vector(self) -> int:
        """Channels of a thread."""
        layouts = self.shapes.op.layouts
        last = all(layout.axes[-1].name == axis for layout, axis in zip(layouts, "COC", strict=True))
        return power_of_two(self.shapes.groups) if last else 1

    def choices(self) -> Sequence[Choice]:
        across = self.shapes.windows[-1].outputs
        pixels = [p for p in _PIXELS if p == 1 or p < 2 * across]
        return [Choice("windows in registers", Tile(p, self.vector), self._cycles(p)) for p in pixels]

    def _cycles(self, pixels: int) -> float:
        machine, problem = self.machine, self.problem
        assert isinstance(machine, GpuModel)
        rows, row = self._rows(), _Row.of(self.shapes, pixels)
        each = rows * ((row.loaded + row.taps) * _LOAD + row.taps * pixels * self.vector)
        waves = -(-self._threads(pixels) // (machine.sms * machine.lanes_of_sm))
        memory = sum(b.nbytes for b in (*problem.inputs, problem.output)) / machine.bytes_per_cycle
        return max(waves * each + _LATENCY, memory)

    def _rows(self) -> int:
        return math.prod(window.taps for window in self.shapes.windows[:-1])

    def _extents(self, pixels: int) -> tuple[int, ...]:
        """What threads are numbered by: image, rows, groups of pixels, groups of channels."""
        *above, across = (w.outputs for w in self.shapes.windows)
        return (self.shapes.batch, *above, -(-across // pixels), self.shapes.groups // self.vector)

    def _threads(self, pixels: int) -> int:
        return math.prod(self._extents(pixels))

    def loops(self, choice: Choice) -> Stmt:
        pixels, dtype, vector = choice.tile.rows, self.accumulator, self.vector
        row = _Row.of(self.shapes, pixels)
        sums, values, weights = (
            Buffer(name, (count, vector), dtype, "local")
            for name, count in (("sums", pixels), ("pixels", row.loaded), ("weights", row.taps))
        )
        code = LoopBuilder()
        with threads(code, self._threads(pixels)) as number, code.memory(sums, values, weights):
            n, *above, first, block = unflatten(number, self._extents(pixels))
            at = _Thread(self.shapes, row, dtype, n, tuple(above), first * pixels, block * vector)
            with code.unrolled(range(pixels), "n") as p, code.lanes(vector) as lane:
                code.store(sums, (p, lane), const(0, dtype))
            with code.nest([w.taps for w in self.shapes.windows[:-1]], "r") as rows:
                with code.unrolled(range(row.loaded), "n") as x, code.lanes(vector) as lane:
                    code.store(values, (x, lane), at.pixel(rows, x, lane))
                with code.unrolled(range(row.taps), "n") as t, code.lanes(vector) as lane:
                    code.store(weights, (t, lane), at.weight(rows, t, lane))
                taps = code.unrolled(range(row.taps), "tap")
                with taps as t, code.unrolled(range(pixels), "n") as p, code.lanes(vector) as lane:
                    x = p * row.stride + t * row.dilation
                    code.store(sums, (p, lane), intrin("fma", values[x, lane], weights[t, lane], sums[p, lane]))
            with code.unrolled(range(pixels), "p") as p:
                at.store(code, p, pixels, sums)
        return code.stmt


@dataclass(frozen=True)
class _Row:
    """One row of the windows of a thread's pixels: ``loaded`` elements that ``taps`` of each pixel are found in."""

    loaded: int
    taps: int
    stride: int
    dilation: int

    @staticmethod
    def of(shapes: ConvShapes, pixels: int) -> _Row:
        window = shapes.windows[-1]
        reach = (pixels - 1) * window.stride + (window.taps - 1) * window.dilation + 1
        return _Row(reach, window.taps, window.stride, window.dilation)


@dataclass(frozen=True)
class _Thread:
    """The place where a thread's pixels are: image, outer coordinates, the first one of the row; its first channel."""

    shapes: ConvShapes
    row: _Row
    dtype: str
    n: LoopExpr
    above: tuple[LoopExpr, ...]
    first: LoopExpr
    channel: LoopExpr

    def pixel(self, rows: Sequence[LoopExpr], x: LoopExpr, lane: LoopExpr) -> LoopExpr:
        """The ``x``-th element of a row of the windows, zero where it is padding."""
        *above, across = self.shapes.windows
        spots = [w.coordinate(at, tap) for w, at, tap in zip(above, self.above, rows, strict=True)]
        spots.append(across.coordinate(self.first, Const(0)) + x)
        value = self.shapes.pixel(self.n, self.channel + lane, spots).astype(self.dtype)
        return or_zero(inside(spots, [w.extent for w in self.shapes.windows]), value)

    def weight(self, rows: Sequence[LoopExpr], tap: LoopExpr, lane: LoopExpr) -> LoopExpr:
        phases = [Const(0)] * len(self.shapes.axes)
        found = self.shapes.filter(self.channel + lane, Const(0), Const(0), (*rows, tap), phases)
        return found.astype(self.dtype)

    def store(self, code: LoopBuilder, p: LoopExpr, pixels: int, sums: Buffer) -> None:
        outputs, phases = self.shapes.windows[-1].outputs, [Const(0)] * len(self.shapes.axes)
        with code.when(self.first + p < outputs if outputs % pixels else None), code.lanes(sums.shape[1]) as lane:
            where = (*self.above, self.first + p)
            code.emit(store_at(self.shapes.result(self.n, self.channel + lane, where, phases), sums[p, lane]))
