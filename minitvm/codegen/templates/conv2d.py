"""Direct convolution in blocked layouts: NCHW[x]c data, OIHW[x]i[y]o weights, an NCHW[z]c result.

The weights come in blocks of a whole vector, the last one of a group filled up with zeros; the result's blocks divide
its channels, so they may be smaller: a vector of sums is stored in pieces, and those behind the last channel are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from minitvm.codegen.problem import TEMPLATES, Config, Problem
from minitvm.codegen.rewrite import redirect
from minitvm.codegen.spread import unflatten
from minitvm.codegen.templates.conv2d_sets import BlockSets, Chosen, Part
from minitvm.codegen.templates.pad import after_padding, padded
from minitvm.codegen.templates.tile import Run, Step, Tile, accumulate, block_groups, choose_tile, divisor_at_most, runs
from minitvm.codegen.templates.window import Axis, Tiles
from minitvm.ir.decision import Declined
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
_ITEMS_PER_THREAD = 4


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
    block_bytes = weight_bytes // weight.shape[0]
    tile = config.get("tile") or choose_tile(shape.columns, shape.blocks_of_group, machine)
    if shape.sums_fit(tile, machine) and block_bytes * tile.blocks > machine.l1_bytes:
        body = shape.nest_by_inputs(tile, machine)
        return Kernel(problem.op.name, (data, weight, out), after_padding(source, fill, body))
    tile = config.get("tile") or choose_tile(shape.columns, shape.blocks_of_group, machine, block_bytes)
    weights_fit = weight_bytes <= machine.l2_bytes // 2
    body = shape.nest(tile, config.get("rows_inside", not weights_fit), machine)
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


class ConvLoops:
    """The loops of one convolution; a pointwise one sees its image as a single row."""

    def __init__(self, data: Buffer, weight: Buffer, problem: Problem, y: Axis, x: Axis) -> None:
        out = problem.output
        self.groups: int = problem.op.attributes()["groups"]
        self.data, self.weight, self.out, self.y, self.x = data, weight, out, y, x
        self.accumulator = problem.accumulator
        self.flat = y.taps == x.taps == y.stride == x.stride == 1 and not (y.padded or x.padded)
        self.batch, out_blocks, self.height, self.width, self.block = out.shape
        self.lanes = weight.shape[5]
        self.blocks_of_group = weight.shape[0] // self.groups
        self.out_blocks_of_group = out_blocks // self.groups
        self.rows = 1 if self.flat else self.height
        self.columns = self.height * self.width if self.flat else self.width

    def _block_sets(self, most: int) -> list[BlockSets]:
        """All blocks of a group, in sets of ``most`` and one of what is left over; a ragged last set is by itself."""
        width = self.out_blocks_of_group * self.block - (self.blocks_of_group - 1) * self.lanes
        *found, (begin, sets, blocks) = block_groups(self.blocks_of_group, most)
        whole = [BlockSets(*each, self.lanes) for each in found]
        if width == self.lanes:
            return [*whole, BlockSets(begin, sets, blocks, width)]
        before = [BlockSets(begin, sets - 1, blocks, self.lanes)] if sets > 1 else []
        return [*whole, *before, BlockSets(begin + (sets - 1) * blocks, 1, blocks, width)]

    def nest(self, tile: Tile, rows_inside: bool, machine: MachineModel) -> Stmt:
        """A nest for every kind of set of ``tile.blocks`` channel blocks, and of piece of a row."""
        rows = self.batch * self.groups * -(-self.blocks_of_group // tile.blocks) * self.rows
        if not self.flat and rows < machine.threads:
            return seq(*(self._single_tiles(sets, tile.columns) for sets in self._block_sets(tile.blocks)))
        return seq(
            *(
                self._sets(sets, piece, tile.columns, rows_inside)
                for sets in self._block_sets(tile.blocks)
                for piece in self._pieces(tile, self.batch * self.groups * sets.sets, machine)
            )
        )

    def _sets(self, sets: BlockSets, piece: Run, columns: int, rows_inside: bool) -> Stmt:
        blocks, rows = self.groups * sets.sets, self.rows * piece.count
        order = (self.batch, blocks, rows) if rows_inside else (self.batch, rows, blocks)

        def work(flat: LoopExpr) -> Stmt:
            n, first, second = unflatten(flat, order)
            chosen, at = (first, second) if rows_inside else (second, first)
            row, column = (Const(0), piece.start(at)) if self.flat else (at, Const(0))
            return self._row(n, sets.chosen(chosen), row, column, piece.size, columns)

        return loop(math.prod(order), work, LoopKind.PARALLEL, name="work")

    def _single_tiles(self, sets: BlockSets, columns: int) -> Stmt:
        """A few long rows: a work item is a tile of one."""
        return seq(*(self._run_of_tiles(sets, run) for run in self.x.tiles(columns)))

    def _run_of_tiles(self, sets: BlockSets, run: Tiles) -> Stmt:
        order = (self.batch, self.groups * sets.sets, self.rows, run.count)

        def work(flat: LoopExpr) -> Stmt:
            n, number, row, at = unflatten(flat, order)
            edge = None if run.interior else run.start
            return self._tile(n, sets.chosen(number), row, at * run.size + run.start, run.size, edge, None)

        return loop(math.prod(order), work, LoopKind.PARALLEL, name="work")

    def _pieces(self, tile: Tile, items: int, machine: MachineModel) -> list[Run]:
        """A single row in pieces of a few tiles, to be divided among threads: of one size where that is enough."""
        if not self.flat:
            return [Run(0, 1, self.columns)]
        most = max(1, self.columns // (2 * tile.columns))
        count = divisor_at_most(self.columns, most)
        wanted = min(most, -(-_ITEMS_PER_THREAD * machine.threads // items))
        return runs(self.columns, -(-self.columns // max(count, wanted)))

    def sums_fit(self, tile: Tile, machine: MachineModel) -> bool:
        """True where a small image's sums stay in the first-level cache, and there is work for every thread."""
        sums = self.rows * self.columns * tile.blocks * self.lanes * np.dtype(self.accumulator).itemsize
        return (
            sums <= machine.l1_bytes // 4
            and self.batch * self.weight.shape[0] // tile.blocks >= _ITEMS_PER_THREAD * machine.threads
        )

    def nest_by_inputs(self, tile: Tile, machine: MachineModel) -> Stmt:
        """Over a few input channels at a time, whose weights stay in the first-level cache for the whole image."""
        return seq(*(self._sets_by_inputs(s, tile.columns, machine) for s in self._block_sets(tile.blocks)))

    def _sets_by_inputs(self, sets: BlockSets, columns: int, machine: MachineModel) -> Stmt:
        _, inputs, kh, kw, inner, _ = self.weight.shape
        step_bytes = kh * kw * inner * sets.blocks * self.lanes * np.dtype(self.out.dtype).itemsize
        count = divisor_at_most(inputs, max(1, machine.l1_bytes // 2 // step_bytes))
        sums = Buffer("sums", (self.rows, self.columns, sets.blocks, self.lanes), self.accumulator, "local")

        def work(flat: LoopExpr) -> Stmt:
            n, number = unflatten(flat, (self.batch, self.groups * sets.sets))
            chosen = sets.chosen(number)

            def some(q: LoopExpr) -> Stmt:
                part = Part(q * count, count, sums)
                row = partial(self._row, n, chosen, column=Const(0), width=self.columns, most=columns, part=part)
                return loop(self.rows, lambda y: row(row=y), name="row")

            zero = self._everywhere(sums, lambda *i: Store(sums, i, const(0, sums.dtype)))
            parts = loop(inputs // count, some, name="part")
            return Alloc(sums, seq(zero, parts, self._results(n, chosen, sums)))

        return loop(self.batch * self.groups * sets.sets, work, LoopKind.PARALLEL, name="work")

    def _everywhere(self, sums: Buffer, body: Callable[..., Stmt]) -> Stmt:
        """Every element of the sums, channels in lanes."""
        *outer, lanes = sums.shape

        def lane_loop(*index: LoopExpr) -> Stmt:
            return loop(lanes, lambda lane: body(*index, lane), LoopKind.VECTORIZED, name="lane")

        return nest(outer, lane_loop)

    def _results(self, n: LoopExpr, chosen: Chosen, sums: Buffer) -> Stmt:
        """The sums to the result, a block of it at a time."""
        per = self.lanes // self.block
        valid = (chosen.blocks - 1) * per + chosen.width // self.block

        def block(row: LoopExpr, t: LoopExpr, p: LoopExpr) -> Stmt:
            def element(lane: LoopExpr) -> Stmt:
                value = sums[row, t, p // per, p % per * self.block + lane]
                return self._store(n, chosen, p // per, p % per * self.block + lane, (row, t), value)

            return loop(self.block, element, LoopKind.VECTORIZED, name="lane")

        return nest((self.rows, self.columns, valid), block)

    def _store(
        self,
        n: LoopExpr,
        chosen: Chosen,
        b: LoopExpr,
        lane: LoopExpr,
        at: tuple[LoopExpr, LoopExpr],
        value: LoopExpr,
    ) -> Stmt:
        """A sum to the result: a block of weights is one of the result, or several."""
        per = self.lanes // self.block
        block = chosen.group * self.out_blocks_of_group + (chosen.first + b) * per + lane // self.block
        return Store(self.out, (n, block, *self._position(*at), lane % self.block), value.astype(self.out.dtype))

    def _row(
        self,
        n: LoopExpr,
        chosen: Chosen,
        row: LoopExpr,
        column: LoopExpr,
        width: int,
        most: int,
        part: Part | None = None,
    ) -> Stmt:
        """``width`` columns from ``column`` on, in tiles of at most ``most``."""
        if self.flat:
            line = Axis(width, width, 1, 1, 1, 0)
            return line.over_tiles(
                most, lambda start, size: self._tile(n, chosen, row, column + start, size, None, part), _no_edge
            )
        return self.x.over_tiles(
            most,
            lambda start, size: self._tile(n, chosen, row, start, size, None, part),
            lambda start, size: self._tile(n, chosen, row, Const(start), size, start, part),
        )

    def _tile(
        self,
        n: LoopExpr,
        chosen: Chosen,
        row: LoopExpr,
        column: LoopExpr,
        size: int,
        edge: int | None,
        part: Part | None,
    ) -> Stmt:
        """One register tile.  ``edge`` is its constant first column where some taps are outside the image;
        ``part`` the input channels to add to sums kept in memory, all of them into the result by default."""
        first, count = (Const(0), self.weight.shape[1]) if part is None else (part.first, part.count)
        block = chosen.group * self.blocks_of_group + chosen.first

        def reduction(step: Step) -> Stmt:
            def tap(i: LoopExpr, y: LoopExpr, x: LoopExpr | int, columns: range) -> Stmt:
                def channel(c: LoopExpr) -> Stmt:
                    return step(
                        lambda t, _: self._input(n, chosen, i, c, row, column + t, y, x),
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
            return self._store(n, chosen, b, lane, (row, column + t), value)

        start = None if part is None else lambda t, b, lane: part.sums[row, column + t, b, lane]
        stored = {} if part is not None else {"last_width": chosen.width, "piece": self.block}
        return accumulate(size, chosen.blocks, self.lanes, self.accumulator, reduction, finish, start=start, **stored)

    def _position(self, row: LoopExpr, column: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        return (column // self.width, column % self.width) if self.flat else (row, column)

    def _input(
        self,
        n: LoopExpr,
        chosen: Chosen,
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
        return self.data[n, chosen.group * self.weight.shape[1] + i, h, w, c]


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
