"""Convolutions by implicit GEMM, in block tiles: windows are not copied, each element is found as it is loaded.

``result[position, channel] = sum over r of pixel[position, r] * weight[channel, r]``, ``r`` being a tap and a channel
of the data.  Where channels lie next to each other in memory they are the columns, else positions are.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from minitvm.codegen.cuda.templates.dense import GpuTemplate
from minitvm.codegen.cuda.templates.launches import launches
from minitvm.codegen.cuda.templates.product import GpuProduct, Operand
from minitvm.codegen.cuda.templates.tile import VECTOR, WIDEST, BlockTile, power_of_two
from minitvm.codegen.loops import inside, or_zero, unflatten
from minitvm.codegen.problem import TEMPLATES, Choice
from minitvm.codegen.templates.conv_shapes import ConvShapes, conv_shapes
from minitvm.codegen.templates.tile import store_at
from minitvm.ir.layout import Layout
from minitvm.ir.loop import LoopExpr, Stmt
from minitvm.ir.ops.nn_conv import Conv1d, Conv2d, Conv3d
from minitvm.ir.ops.nn_conv_transpose import Conv1dTranspose, Conv2dTranspose, Conv3dTranspose


@dataclass(frozen=True)
class ImplicitProduct:
    """One convolution as a product; a batch of it is the groups, and phases of the results of a transposed one."""

    shapes: ConvShapes
    dtype: str

    @property
    def _taps(self) -> list[int]:
        return [w.taps for w in self.shapes.windows]

    @property
    def _phases(self) -> list[int]:
        return [axis.phases for axis in self.shapes.axes]

    @property
    def positions(self) -> int:
        """The number of positions in the results of all images, for one set of phases."""
        return self.shapes.batch * self.shapes.positions

    @cached_property
    def channels_last(self) -> bool:
        """True if channels are innermost in the data; else positions lie next to each other."""
        return _last(self.shapes.op.layouts[0]) == "C"

    def _reduced(self, r: LoopExpr) -> tuple[LoopExpr, tuple[LoopExpr, ...]]:
        """The channel of a group's data and the taps that a position in the depth means."""
        if self.channels_last:
            *taps, c = unflatten(r, (*self._taps, self.shapes.inputs))
            return c, tuple(taps)
        c, *taps = unflatten(r, (self.shapes.inputs, *self._taps))
        return c, tuple(taps)

    def _batch(self, p: LoopExpr) -> tuple[LoopExpr, tuple[LoopExpr, ...]]:
        """Group, phases."""
        group, *phases = unflatten(p, (self.shapes.groups, *self._phases))
        return group, tuple(phases)

    def _place(self, position: LoopExpr) -> tuple[LoopExpr, tuple[LoopExpr, ...]]:
        """Image, spatial coordinates."""
        n, *where = unflatten(position, (self.shapes.batch, *(w.outputs for w in self.shapes.windows)))
        return n, tuple(where)

    def pixel(self, p: LoopExpr, position: LoopExpr, r: LoopExpr) -> LoopExpr:
        """What is multiplied: an element of the data, or a zero around it."""
        shapes, (group, _), (c, taps), (n, where) = self.shapes, self._batch(p), self._reduced(r), self._place(position)
        axes = zip(shapes.windows, where, taps, strict=True)
        spots = [w.coordinate(at, tap) + w.shift for w, at, tap in axes]
        value = shapes.pixel(n, group * shapes.inputs + c, spots)
        return or_zero(inside(spots, [w.extent for w in shapes.windows]), value)

    def weight(self, p: LoopExpr, channel: LoopExpr, r: LoopExpr) -> LoopExpr:
        (group, phases), (c, taps) = self._batch(p), self._reduced(r)
        return self.shapes.filter(group, channel, c, taps, phases)

    def store(self, p: LoopExpr, position: LoopExpr, channel: LoopExpr, value: LoopExpr) -> Stmt:
        (group, phases), (n, where) = self._batch(p), self._place(position)
        return store_at(self.shapes.result(n, group * self.shapes.channels + channel, where, phases), value)

    # --- as factors -----------------------------------------------------------------------------------------------

    @property
    def pixels(self) -> Operand:
        shapes, data = self.shapes, self.shapes.data
        plain = all(w.is_pixels for w in shapes.windows)
        if self.channels_last:
            vector = _vector(shapes.op.layouts[0], "C", shapes.inputs, WIDEST)
            return Operand(self.positions, self.pixel, True, vector, data.nbytes, not plain)
        vector = _vector(shapes.op.layouts[0], shapes.op.spatial[-1], shapes.positions, WIDEST) if plain else 1
        return Operand(self.positions, self.pixel, False, vector, data.nbytes, not plain)

    @property
    def weights(self) -> Operand:
        shapes, layout, weight = self.shapes, self.shapes.op.layouts[1], self.shapes.weight
        if _last(layout) == "O":
            vector = _vector(layout, "O", shapes.channels, WIDEST)
            return Operand(shapes.channels, self.weight, False, vector, weight.nbytes)
        inner = ["I", *shapes.op.spatial] if not self.channels_last else [*shapes.op.spatial, "I"]
        together = [axis.name for axis in layout.axes[-len(inner) :]] == inner
        depth = math.prod(self._taps) * shapes.inputs
        whole = together and self._whole and not layout.is_blocked
        vector = power_of_two(depth, WIDEST) if whole else 1
        return Operand(shapes.channels, self.weight, True, vector, weight.nbytes)

    @property
    def _whole(self) -> bool:
        """True if all taps of the weight are read, in their order."""
        shapes, held = self.shapes, self.shapes.op.layouts[1].primal_shape(self.shapes.weight.shape)
        taps = [held[axis] for axis in shapes.op.spatial]
        return all(a.tap_step == 1 and a.phases == 1 for a in shapes.axes) and self._taps[-len(taps) :] == taps

    @cached_property
    def product(self) -> GpuProduct:
        shapes, depth = self.shapes, math.prod(self._taps) * self.shapes.inputs
        batch, out = shapes.groups * math.prod(self._phases), shapes.layout_of_result
        if _last(out) == "C":
            vector = _vector(out, "C", shapes.channels)
            return GpuProduct(batch, depth, self.pixels, self.weights, self.dtype, self.store, vector)
        plain = math.prod(self._phases) == 1 and all(a.result_step == 1 for a in shapes.axes)
        vector = _vector(out, shapes.op.spatial[-1], shapes.positions) if plain else 1

        def store(p: LoopExpr, channel: LoopExpr, position: LoopExpr, value: LoopExpr) -> Stmt:
            return self.store(p, position, channel, value)

        return GpuProduct(batch, depth, self.weights, self.pixels, self.dtype, store, vector)


def _last(layout: Layout) -> str:
    """The axis whose neighbours lie next to each other."""
    return layout.axes[-1].name


def _vector(layout: Layout, axis: str, extent: int, most: int = VECTOR) -> int:
    """So many neighbours along an axis lie one after the other, from multiples of that on."""
    return power_of_two(extent, most) if _last(layout) == axis and not layout.is_blocked else 1


@TEMPLATES.register("cuda", Conv1d, Conv2d, Conv3d)
@TEMPLATES.register("cuda", Conv1dTranspose, Conv2dTranspose, Conv3dTranspose)
class GpuConv(GpuTemplate):
    """Any layout, strides, padding, dilation and groups; a transposed one by the phases of its results."""

    @cached_property
    def parts(self) -> list[GpuProduct]:
        """The largest first."""
        found = [ImplicitProduct(shapes, self.accumulator).product for shapes in conv_shapes(self.problem)]
        return sorted(found, key=lambda part: -part.depth * part.left.lines * part.right.lines)

    @cached_property
    def product(self) -> GpuProduct:
        """The largest part, which the tile is made for."""
        return self.parts[0]

    def loops(self, choice: Choice) -> Stmt:
        assert isinstance(choice.tile, BlockTile)
        return launches(choice.tile, self.gpu, *self.parts)
