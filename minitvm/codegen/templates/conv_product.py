"""Convolutions that are matrix products: of pixels, and of images so small that their windows are copied.

``result[b, k, position] = sum over r of weight[b, k, r] * image[b, r, position]``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from minitvm.codegen.loops import unflatten
from minitvm.codegen.problem import Choice
from minitvm.codegen.templates.conv_shapes import ConvShapes
from minitvm.codegen.templates.dots import dot_operations
from minitvm.codegen.templates.matmul import along_lanes, product_choices, product_loops
from minitvm.codegen.templates.product import Matrix, Product
from minitvm.codegen.templates.window import after
from minitvm.ir.layout import Layout
from minitvm.ir.loop import Buffer, Const, Load, LoopExpr, LoopKind, Stmt, Store, all_of, const, loop, nest, select
from minitvm.target import MachineModel

_COPY = 2  # cycles that put an element of a window into its column


def conv_product(trimmed: ConvShapes, whole: ConvShapes, dtype: str, machine: MachineModel) -> ConvProduct | None:
    """``None`` where this is no product; ``trimmed``, ``whole``: without and with taps that only read padding."""
    one = trimmed.positions == 1
    if all(w.is_pixels for w in trimmed.windows) and (one or 1 in (trimmed.batch, trimmed.groups)):
        return ConvProduct(trimmed, dtype, machine, one)
    found = ConvProduct(whole, dtype, machine, True, copied=True)
    vectors = whole.batch * -(-whole.positions // machine.lanes(dtype))
    pixels = whole.groups * whole.channels * vectors * found.depth
    return found if dot_operations(found.product, machine) + found.copying <= pixels else None


@dataclass(frozen=True)
class ConvProduct:
    """``together``: positions are those of all images, and a batch is the groups; else there is one image or one group.

    ``copied``: windows are copied side by side first; else each is one pixel, and read where it is.
    """

    shapes: ConvShapes
    dtype: str
    machine: MachineModel
    together: bool
    copied: bool = False

    def choices(self) -> list[Choice]:
        return product_choices(along_lanes(self.product), self.machine)

    def loops(self, choice: Choice) -> Stmt:
        loops = product_loops(along_lanes(self.product), choice, self.machine)
        return after(self.columns, self._fill(), loops) if self.copied else loops

    @property
    def depth(self) -> int:
        return self.shapes.inputs * math.prod(self._taps)

    @property
    def copying(self) -> float:
        """Cycles of it."""
        return _COPY * math.prod(self.columns.shape)

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
            return shapes.pixel(n, group * shapes.inputs + c, where)

        return Matrix.stored(batch, shapes.inputs, self._positions, pixel, self._channels_last(shapes.op.layouts[0]))

    def _fill(self) -> Stmt:
        """Every element of every window, zero where it is padding."""
        shapes = self.shapes

        def channel(flat: LoopExpr) -> Stmt:
            b, c = unflatten(flat, (shapes.groups, shapes.inputs))

            def element(position: LoopExpr, *taps: LoopExpr) -> Stmt:
                n, _, where = self._located(b, position)
                spots = [w.coordinate(p, t) for w, p, t in zip(shapes.windows, where, taps, strict=True)]
                inside = all_of([f for w, s in zip(shapes.windows, spots, strict=True) for f in (s >= 0, s < w.extent)])
                pixel = shapes.pixel(n, flat, spots).astype(self.dtype)
                r = c
                for extent, tap in zip(self._taps, taps, strict=True):
                    r = r * extent + tap
                return Store(self.columns, (b, position, r), select(inside, pixel, const(0, self.dtype)))

            return nest((self._positions, *self._taps), element)

        return loop(shapes.groups * shapes.inputs, channel, LoopKind.PARALLEL, name="work")

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
