"""Convolutions that are matrix products: of pixels, and of images so small that their windows are copied.

The product is made over matrices of its own, whose accesses are then led to the tensors, whatever their layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from minitvm.codegen.rewrite import redirect
from minitvm.codegen.spread import unflatten
from minitvm.codegen.templates.conv_shapes import ConvShapes
from minitvm.codegen.templates.dots import dot_operations
from minitvm.codegen.templates.matmul import product_loops
from minitvm.codegen.templates.pad import after_padding
from minitvm.codegen.templates.product import Matrix, Product
from minitvm.ir.layout import Layout
from minitvm.ir.loop import Buffer, Const, LoopExpr, LoopKind, Stmt, Store, all_of, const, loop, nest, select
from minitvm.target import MachineModel

_COPY = 2  # cycles that put an element of a window into its column

Index = tuple[LoopExpr, ...]


def conv_product(trimmed: ConvShapes, whole: ConvShapes, dtype: str, machine: MachineModel) -> Stmt | None:
    """The loops, or ``None`` where this is no product; ``trimmed``, ``whole``: without and with taps that only read
    padding."""
    one = trimmed.positions == 1
    if all(w.is_pixels for w in trimmed.windows) and (one or 1 in (trimmed.batch, trimmed.groups)):
        return ConvProduct(trimmed, dtype, one).of_pixels(machine)
    return ConvProduct(whole, dtype, True).of_columns(machine)


@dataclass(frozen=True)
class ConvProduct:
    """``result[b, k, position] = sum over r of weight[b, k, r] * image[b, r, position]``.

    ``together``: positions are those of all images, and a batch is the groups; else there is one image or one group.
    """

    shapes: ConvShapes
    dtype: str
    together: bool

    def of_pixels(self, machine: MachineModel) -> Stmt:
        """Each result reads one pixel."""
        shapes = self.shapes
        product = self._product(shapes.inputs, shapes.data.dtype, self._channels_last(shapes.op.layouts[0]))

        def pixel(b: LoopExpr, c: LoopExpr, position: LoopExpr) -> Index:
            n, group, where = self._located(b, position)
            return shapes.pixel(n, group * shapes.inputs + c, where).index

        return _led(self._loops(product, machine), product.right, shapes.data, pixel)

    def of_columns(self, machine: MachineModel) -> Stmt | None:
        """Windows side by side, where dot products with them cost less than vectors of positions."""
        shapes = self.shapes
        depth = shapes.inputs * math.prod(self._taps)
        product = self._product(depth, self.dtype, True)
        columns = product.right.buffer
        vectors = shapes.batch * -(-shapes.positions // machine.lanes(self.dtype))
        cost = dot_operations(product, machine) + _COPY * math.prod(columns.shape)
        if cost > shapes.groups * shapes.channels * vectors * depth:
            return None
        return after_padding(columns, self._fill(columns), self._loops(product, machine))

    def _fill(self, columns: Buffer) -> Stmt:
        """Every element of every window, zero where it is padding."""
        shapes = self.shapes

        def channel(flat: LoopExpr) -> Stmt:
            b, c = unflatten(flat, (shapes.groups, shapes.inputs))

            def element(position: LoopExpr, *taps: LoopExpr) -> Stmt:
                n, _, where = self._located(b, position)
                spots = [w.spot(p, t) for w, p, t in zip(shapes.windows, where, taps, strict=True)]
                inside = all_of([f for w, s in zip(shapes.windows, spots, strict=True) for f in (s >= 0, s < w.extent)])
                pixel = shapes.pixel(n, flat, spots).astype(self.dtype)
                r = c
                for extent, tap in zip(self._taps, taps, strict=True):
                    r = r * extent + tap
                return Store(columns, (b, position, r), select(inside, pixel, const(0, self.dtype)))

            return nest((self._positions, *self._taps), element)

        return loop(shapes.groups * shapes.inputs, channel, LoopKind.PARALLEL, name="work")

    def _loops(self, product: Product, machine: MachineModel) -> Stmt:
        """The product, its weights and results led to the tensors."""
        shapes = self.shapes
        phases = [Const(0)] * len(shapes.axes)

        def weight(group: LoopExpr, k: LoopExpr, r: LoopExpr) -> Index:
            c, *taps = unflatten(r, (shapes.inputs, *self._taps))
            return shapes.filter(group, k, c, taps, phases).index

        def result(b: LoopExpr, k: LoopExpr, position: LoopExpr) -> Index:
            n, group, where = self._located(b, position)
            return shapes.result(n, group * shapes.channels + k, where, phases)

        loops = _led(product_loops(product, machine), product.left, shapes.weight, weight)
        return _led(loops, product.out, shapes.out, result)

    def _product(self, depth: int, dtype: str, channels_last: bool) -> Product:
        """Over an image of ``dtype``, elements of a position neighbours or not, that is ``depth`` deep."""
        shapes, positions = self.shapes, self._positions
        kernel, out = shapes.op.layouts[1], shapes.layout_of_result
        batch = shapes.groups if self.together else shapes.batch * shapes.groups
        inputs_first = kernel.index("I") < kernel.index("O")
        return Product(
            _matrix("weight", shapes.weight.dtype, (shapes.groups, shapes.channels, depth), inputs_first),
            _matrix("image", dtype, (batch, depth, positions), channels_last),
            _matrix("result", shapes.out.dtype, (batch, shapes.channels, positions), self._channels_last(out)),
            self.dtype,
        )

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

    def _located(self, b: LoopExpr, position: LoopExpr) -> tuple[LoopExpr, LoopExpr, Index]:
        """Image, group, spatial coordinates."""
        where = unflatten(position, self._extents)
        if self.together:
            return where[0], b, where[1:]
        return (b, Const(0), where) if self.shapes.groups == 1 else (Const(0), b, where)


def _matrix(name: str, dtype: str, extents: tuple[int, int, int], transposed: bool) -> Matrix:
    """A batch of matrices in memory of its own."""
    batch, rows, columns = extents
    return Matrix(Buffer(name, (batch, columns, rows) if transposed else extents, dtype), transposed)


def _led(stmt: Stmt, matrix: Matrix, target: Buffer, at: Callable[[LoopExpr, LoopExpr, LoopExpr], Index]) -> Stmt:
    """Accesses to elements (batch, row, column) of a matrix go to ``target``."""

    def index(given: Index) -> Index:
        b, i, j = given
        return at(b, j, i) if matrix.transposed else at(b, i, j)

    return redirect(stmt, {matrix.buffer: target}, index)
