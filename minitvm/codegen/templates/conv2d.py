"""Direct convolution in blocked layouts: NCHW[x]c data, OIHW[x]i[y]o weights, an NCHW[y]c result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from minitvm.codegen.problem import TEMPLATES, Config, Declined, Problem
from minitvm.codegen.rewrite import redirect
from minitvm.codegen.spread import unflatten
from minitvm.codegen.templates.pad import after_padding, padded
from minitvm.codegen.templates.tile import Step, Tile, accumulate, block_groups, choose_tile, divisor_at_most
from minitvm.codegen.templates.window import Axis
from minitvm.ir.loop import (
    Alloc,
    Buffer,
    Const,
    Kernel,
    LoopExpr,
    LoopKind,
    Stmt,
    Store,
    const,
    loop,
    nest,
    seq,
)
from minitvm.target import MachineModel

_MOST_UNROLLED_TAPS = 16  # a wider padded window is copied into a padded image instead of written out at the edges


@TEMPLATES.register("llvm", "nn.contrib_conv2d_NCHWc")
def conv2d_nchwc(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """A tile of output columns x output-channel blocks in registers; inputs broadcast, weights as vectors.

    ``config``: ``tile`` (a :class:`Tile`), ``rows_inside`` (loop over rows inside the one over channel blocks).
    """
    (data, weight), out = problem.inputs, problem.output
    if (refusal := problem.not_floats) is not None:
        return refusal
    if out.shape[3] == 1 < out.shape[2] and weight.shape[3] == 1:
        return _sideways(problem, machine, config)
    source, fill, y, x = _window(problem, data)
    shape = ConvLoops(source, weight, problem, y, x)
    weight_bytes = math.prod(weight.shape) * np.dtype(weight.dtype).itemsize
    block_bytes = weight_bytes // out.shape[1]
    tile = config.get("tile") or choose_tile(shape.columns, shape.blocks_of_group, machine)
    if shape.sums_fit(tile, machine) and block_bytes * tile.blocks > machine.l1_bytes:
        body = shape.nest_by_inputs(tile, machine)
        return Kernel(problem.op.name, (data, weight, out), after_padding(source, fill, body))
    tile = config.get("tile") or choose_tile(shape.columns, shape.blocks_of_group, machine, block_bytes)
    weights_fit = weight_bytes <= machine.l2_bytes // 2
    body = shape.nest(tile, config.get("rows_inside", not weights_fit))
    return Kernel(problem.op.name, (data, weight, out), after_padding(source, fill, body))


def _sideways(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """An image of one column as one of one row: tiles run along the columns."""
    buffers = (*problem.inputs, problem.output)
    turned = {_turned(buffer): buffer for buffer in buffers}
    attributes = problem.op.attributes()
    top, left, bottom, right = attributes["padding"]
    op = problem.op.with_attributes(
        strides=attributes["strides"][::-1],
        dilation=attributes["dilation"][::-1],
        padding=(left, top, right, bottom),
        kernel_size=attributes["kernel_size"][::-1] if attributes["kernel_size"] else attributes["kernel_size"],
    )
    *inputs, out = turned
    kernel = conv2d_nchwc(Problem(op, tuple(inputs), (out,)), machine, config)
    if isinstance(kernel, Declined):
        return kernel
    return Kernel(kernel.name, buffers, redirect(kernel.body, turned, _swap))


def _turned(buffer: Buffer) -> Buffer:
    """Height and width exchanged."""
    return Buffer(buffer.name, _swap(buffer.shape), buffer.dtype)


T = TypeVar("T")


def _swap(index: tuple[T, ...]) -> tuple[T, ...]:
    return (*index[:2], index[3], index[2], *index[4:])


def _window(problem: Problem, data: Buffer) -> tuple[Buffer, Stmt | None, Axis, Axis]:
    """The image to read, what fills it if it is a padded copy, and the window's rows and columns."""
    attributes = problem.op.attributes()
    strides, dilation, pads = attributes["strides"], attributes["dilation"], tuple(attributes["padding"])
    kh, kw = problem.inputs[1].shape[2:4]
    source, fill = padded(data, pads) if kw > _MOST_UNROLLED_TAPS else (data, None)
    top, left = (0, 0) if fill is not None else pads[:2]
    height, width = source.shape[2:4]
    y = Axis(height, problem.output.shape[2], kh, strides[0], dilation[0], top)
    x = Axis(width, problem.output.shape[3], kw, strides[1], dilation[1], left)
    return source, fill, y, x


@dataclass(frozen=True)
class Part:
    """Some blocks of input channels, and the sums that their products are added to: (row, column, block, lane)."""

    first: LoopExpr
    count: int
    sums: Buffer


class ConvLoops:
    """The loops of one convolution; a pointwise one sees its image as a single row."""

    def __init__(self, data: Buffer, weight: Buffer, problem: Problem, y: Axis, x: Axis) -> None:
        out = problem.output
        groups: int = problem.op.attributes()["groups"]
        self.blocks_of_group = out.shape[1] // groups
        self.data, self.weight, self.out, self.y, self.x = data, weight, out, y, x
        self.accumulator = problem.accumulator
        self.flat = y.taps == x.taps == y.stride == x.stride == 1 and not (y.padded or x.padded)
        self.batch, self.out_blocks, self.height, self.width, self.lanes = out.shape
        self.rows = 1 if self.flat else self.height
        self.columns = self.height * self.width if self.flat else self.width

    def nest(self, tile: Tile, rows_inside: bool) -> Stmt:
        """One nest for the sets of ``tile.blocks`` channel blocks (of every group), one for those left over."""
        found = block_groups(self.blocks_of_group, tile.blocks)
        return seq(*(self._sets(begin, sets, Tile(tile.columns, b), rows_inside) for begin, sets, b in found))

    def _sets(self, begin: int, sets: int, tile: Tile, rows_inside: bool) -> Stmt:
        chunks, groups = self._chunks(tile), self.out_blocks // self.blocks_of_group
        blocks, rows = groups * sets, self.rows * chunks
        order = (self.batch, blocks, rows) if rows_inside else (self.batch, rows, blocks)

        def work(flat: LoopExpr) -> Stmt:
            n, first, second = unflatten(flat, order)
            chosen, row = (first, second) if rows_inside else (second, first)
            block = chosen // sets * self.blocks_of_group + chosen % sets * tile.blocks + begin
            return self._row(n, block, row, self.columns // chunks, tile)

        return loop(math.prod(order), work, LoopKind.PARALLEL, name="work")

    def sums_fit(self, tile: Tile, machine: MachineModel) -> bool:
        """True where a small image's sums stay in the first-level cache, and there is work for every thread."""
        sums = self.rows * self.columns * tile.blocks * self.lanes * np.dtype(self.accumulator).itemsize
        return sums <= machine.l1_bytes // 4 and self.batch * self.out_blocks // tile.blocks >= 4 * machine.threads

    def nest_by_inputs(self, tile: Tile, machine: MachineModel) -> Stmt:
        """Over a few input channels at a time, whose weights stay in the first-level cache for the whole image."""
        found = block_groups(self.blocks_of_group, tile.blocks)
        return seq(*(self._sets_by_inputs(begin, sets, Tile(tile.columns, b), machine) for begin, sets, b in found))

    def _sets_by_inputs(self, begin: int, sets: int, tile: Tile, machine: MachineModel) -> Stmt:
        groups = self.out_blocks // self.blocks_of_group
        _, inputs, kh, kw, inner, _ = self.weight.shape
        step_bytes = kh * kw * inner * tile.blocks * self.lanes * np.dtype(self.out.dtype).itemsize
        count = divisor_at_most(inputs, max(1, machine.l1_bytes // 2 // step_bytes))
        sums = Buffer("sums", (self.rows, self.columns, tile.blocks, self.lanes), self.accumulator, "local")

        def work(flat: LoopExpr) -> Stmt:
            n, chosen = unflatten(flat, (self.batch, groups * sets))
            block = chosen // sets * self.blocks_of_group + chosen % sets * tile.blocks + begin

            def some(q: LoopExpr) -> Stmt:
                part = Part(q * count, count, sums)
                return loop(self.rows, lambda row: self._row(n, block, row, self.columns, tile, part), name="row")

            def result(row: LoopExpr, t: LoopExpr, b: LoopExpr, lane: LoopExpr) -> Stmt:
                value = sums[row, t, b, lane].astype(self.out.dtype)
                return Store(self.out, (n, block + b, *self._position(row, t), lane), value)

            zero = self._everywhere(sums, lambda *i: Store(sums, i, const(0, sums.dtype)))
            return Alloc(sums, seq(zero, loop(inputs // count, some, name="part"), self._everywhere(sums, result)))

        return loop(self.batch * groups * sets, work, LoopKind.PARALLEL, name="work")

    def _everywhere(self, sums: Buffer, body: Callable[..., Stmt]) -> Stmt:
        """Every element of the sums, channels in lanes."""
        rows, columns, blocks, lanes = sums.shape

        def lane_loop(row: LoopExpr, t: LoopExpr, b: LoopExpr) -> Stmt:
            return loop(lanes, lambda lane: body(row, t, b, lane), LoopKind.VECTORIZED, name="lane")

        return nest((rows, columns, blocks), lane_loop)

    def _chunks(self, tile: Tile) -> int:
        """A single row is cut into equal chunks of a few tiles, to be divided among threads."""
        most = max(1, self.columns // (2 * tile.columns)) if self.flat else 1
        return next(d for d in range(most, 0, -1) if self.columns % d == 0)

    def _row(
        self, n: LoopExpr, block: LoopExpr, row: LoopExpr, width: int, tile: Tile, part: Part | None = None
    ) -> Stmt:
        blocks = tile.blocks
        if self.flat:
            line = Axis(width, width, 1, 1, 1, 0)
            return line.over_tiles(
                tile.columns,
                lambda start, size: self._tile(n, block, Const(0), row * width + start, size, blocks, None, part),
                _no_edge,
            )
        return self.x.over_tiles(
            tile.columns,
            lambda start, size: self._tile(n, block, row, start, size, blocks, None, part),
            lambda start, size: self._tile(n, block, row, Const(start), size, blocks, start, part),
        )

    def _tile(
        self,
        n: LoopExpr,
        block: LoopExpr,
        row: LoopExpr,
        column: LoopExpr,
        size: int,
        blocks: int,
        edge: int | None,
        part: Part | None,
    ) -> Stmt:
        """One register tile.  ``edge`` is its constant first column where some taps are outside the image;
        ``part`` the input channels to add to sums kept in memory, all of them into the result by default."""
        first, count = (Const(0), self.weight.shape[1]) if part is None else (part.first, part.count)

        def reduction(step: Step) -> Stmt:
            def tap(i: LoopExpr, y: LoopExpr, x: LoopExpr | int, columns: range) -> Stmt:
                def channel(c: LoopExpr) -> Stmt:
                    return step(
                        lambda t, _: self._input(n, block, i, c, row, column + t, y, x),
                        lambda b, lane: self.weight[block + b, i, y, x, c, lane],
                        columns,
                    )

                inner = self.weight.shape[4]
                # At an edge the taps are written out; unrolled channels too would need more registers than there are.
                unrolled = edge is None and inner <= 16
                return loop(inner, channel, LoopKind.UNROLLED if unrolled else LoopKind.SERIAL, name="c")

            def taps(i: LoopExpr, y: LoopExpr) -> Stmt:
                if edge is None:
                    return loop(self.x.taps, lambda x: tap(i, y, x, range(size)), name="kw")
                return seq(*(tap(i, y, x, self.x.columns_inside(edge, size, x)) for x in range(self.x.taps)))

            return loop(count, lambda i: self.y.valid_taps(row, lambda y: taps(first + i, y)), name="ci")

        def finish(t: LoopExpr, b: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
            if part is not None:
                return Store(part.sums, (row, column + t, b, lane), value)
            index = (n, block + b, *self._position(row, column + t), lane)
            return Store(self.out, index, value.astype(self.out.dtype))

        start = None if part is None else lambda t, b, lane: part.sums[row, column + t, b, lane]
        return accumulate(size, blocks, self.lanes, self.accumulator, reduction, finish, start=start)

    def _position(self, row: LoopExpr, column: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        return (column // self.width, column % self.width) if self.flat else (row, column)

    def _input(
        self,
        n: LoopExpr,
        block: LoopExpr,
        i: LoopExpr,
        c: LoopExpr,
        row: LoopExpr,
        column: LoopExpr,
        y: LoopExpr,
        x: LoopExpr | int,
    ) -> LoopExpr:
        h, w = self._position(row, column)
        if not self.flat:
            h, w = self.y.coordinate(h, y), self.x.coordinate(w, x)
        if len(self.data.shape) == 4:
            return self.data[n, i * self.weight.shape[4] + c, h, w]
        return self.data[n, self._first_input(block) + i, h, w, c]

    def _first_input(self, block: LoopExpr) -> LoopExpr:
        """The first channel block of the data that an output block's group reads."""
        if self.blocks_of_group == self.out_blocks:
            return Const(0)
        return block // self.blocks_of_group * self.weight.shape[1]


def _no_edge(start: int, size: int) -> Stmt:
    raise AssertionError("a line without padding has no edge tiles")


@TEMPLATES.register("llvm", "nn.contrib_depthwise_conv2d_NCHWc")
def depthwise_conv2d_nchwc(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """One channel block at a time: a strip of output columns in registers, the window's columns unrolled."""
    (data, weight), out = problem.inputs, problem.output
    if (refusal := problem.not_floats) is not None:
        return refusal
    if data.shape[1] != out.shape[1]:
        return Declined("more than one output channel per input channel")
    source, fill, y, x = _window(problem, data)
    batch, blocks, height, _, lanes = out.shape

    def strip(n: LoopExpr, block: LoopExpr, row: LoopExpr, column: LoopExpr, size: int, edge: int | None) -> Stmt:
        def reduction(step: Step) -> Stmt:
            def tap(ky: LoopExpr, kx: int) -> Stmt:
                inside = range(size) if edge is None else x.columns_inside(edge, size, kx)
                return step(
                    lambda t, lane: source[n, block, y.coordinate(row, ky), x.coordinate(column + t, kx), lane],
                    lambda _, lane: weight[block, 0, ky, kx, 0, lane],
                    inside,
                )

            return y.valid_taps(row, lambda ky: seq(*(tap(ky, kx) for kx in range(x.taps))))

        def finish(t: LoopExpr, _: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
            return Store(out, (n, block, row, column + t, lane), value.astype(out.dtype))

        return accumulate(size, 1, lanes, problem.accumulator, reduction, finish)

    def work(flat: LoopExpr) -> Stmt:
        n, block, row = unflatten(flat, (batch, blocks, height))
        return x.over_tiles(
            max(1, machine.vector_registers // 2 - 1),
            lambda start, size: strip(n, block, row, start, size, None),
            lambda start, size: strip(n, block, row, Const(start), size, start),
        )

    body = loop(batch * blocks * height, work, LoopKind.PARALLEL, name="work")
    return Kernel(problem.op.name, (data, weight, out), after_padding(source, fill, body))
