"""Convolution in plain NCHW, for channels that come in no whole blocks: neighbouring pixels in lanes.

The register tile of ``tile.py`` with its sides exchanged: weights are broadcast, pixels are the vectors.
"""

from __future__ import annotations

import math

from minitvm.codegen.nests import unflatten
from minitvm.codegen.problem import TEMPLATES, Config, Declined, Problem
from minitvm.codegen.templates.pad import after_padding, padded
from minitvm.codegen.templates.tile import Step, Tile, accumulate, block_groups, choose_tile, over_pieces
from minitvm.ir.loop import Buffer, Kernel, LoopExpr, LoopKind, Stmt, Store, loop, seq
from minitvm.target import MachineModel


@TEMPLATES.register("llvm", "nn.conv2d")
def conv2d_nchw(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """Stride 1, any groups and dilation; NCHW data, OIHW weights."""
    (data, weight), out = problem.inputs, problem.output
    attributes = problem.op.attributes()
    if (refusal := problem.not_floats) is not None:
        return refusal
    if (attributes["data_layout"], attributes["kernel_layout"]) != ("NCHW", "OIHW") or attributes["out_layout"]:
        return Declined("lanes are neighbouring pixels, which only NCHW has")
    if tuple(attributes["strides"]) != (1, 1):
        return Declined(f"with strides {attributes['strides']} neighbouring outputs read pixels apart")
    source, fill = padded(data, attributes["padding"])
    loops = _PixelLoops(source, weight, problem, tuple(attributes["dilation"]), machine)
    body = loops.nest() if loops.pixels >= loops.lanes else None
    if body is None:
        return Declined(f"rows of {loops.pixels} pixels are shorter than a vector")
    return Kernel(problem.op.name, (data, weight, out), after_padding(source, fill, body))


class _PixelLoops:
    """A pointwise convolution sees its image as a single row."""

    def __init__(
        self,
        data: Buffer,
        weight: Buffer,
        problem: Problem,
        dilation: tuple[int, ...],
        machine: MachineModel,
    ) -> None:
        self.data, self.weight, self.out, self.dilation = data, weight, problem.output, dilation
        self.accumulator, self.machine = problem.accumulator, machine
        self.lanes = machine.lanes(problem.accumulator)
        self.batch, channels, self.height, self.width = self.out.shape
        self.groups: int = problem.op.attributes()["groups"]
        self.channels = channels // self.groups
        self.flat = weight.shape[2:] == (1, 1) and data.shape[2:] == self.out.shape[2:]
        self.rows = 1 if self.flat else self.height
        self.pixels = self.height * self.width if self.flat else self.width

    def nest(self) -> Stmt:
        vectors, rest = divmod(self.pixels, self.lanes)
        tile = choose_tile(self.channels, vectors, self.machine)
        chunks = self._chunks(tile)
        order = (self.batch, self.groups, chunks, self.rows)

        def work(flat: LoopExpr) -> Stmt:
            n, group, chunk, row = unflatten(flat, order)
            count = self.channels // chunks
            first = group * self.channels + chunk * count

            def strip(start: LoopExpr, size: int) -> Stmt:
                return self._row(n, group, first + start, row, size, tile, rest)

            return over_pieces(count, tile.columns, strip)

        return loop(math.prod(order), work, LoopKind.PARALLEL, name="work")

    def _chunks(self, tile: Tile) -> int:
        """Output channels are divided among threads where rows and groups are too few."""
        wanted = -(-4 * self.machine.threads // (self.batch * self.groups * self.rows))
        most = max(1, self.channels // tile.columns)
        return next(d for d in range(min(wanted, most), 0, -1) if self.channels % d == 0)

    def _row(
        self, n: LoopExpr, group: LoopExpr, channel: LoopExpr, row: LoopExpr, size: int, tile: Tile, rest: int
    ) -> Stmt:
        """``size`` output channels of one row: whole vectors in tiles, then what is left in a narrower vector."""
        vectors = self.pixels // self.lanes
        stmts = [
            loop(
                count,
                lambda i, b=begin, w=width: self._tile(  # type: ignore[misc]
                    n, group, channel, row, (i * w + b) * self.lanes, size, w, self.lanes
                ),
                name="tile",
            )
            for begin, count, width in block_groups(vectors, tile.blocks)
        ]
        if rest:
            start = self.pixels - rest
            stmts.append(
                loop(1, lambda z: self._tile(n, group, channel, row, z + start, size, 1, rest), name="rest"),
            )
        return seq(*stmts)

    def _tile(
        self,
        n: LoopExpr,
        group: LoopExpr,
        channel: LoopExpr,
        row: LoopExpr,
        pixel: LoopExpr,
        size: int,
        blocks: int,
        lanes: int,
    ) -> Stmt:
        _, inputs, kh, kw = self.weight.shape

        def reduction(step: Step) -> Stmt:
            def tap(c: LoopExpr, y: LoopExpr, x: LoopExpr) -> Stmt:
                return step(
                    lambda k, _: self.weight[channel + k, c, y, x],
                    lambda b, lane: self._input(n, group * inputs + c, row, pixel + b * lanes + lane, y, x),
                )

            def taps(c: LoopExpr) -> Stmt:
                return loop(kh, lambda y: loop(kw, lambda x: tap(c, y, x), name="kw"), name="kh")

            return loop(inputs, taps, name="c")

        def finish(k: LoopExpr, b: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
            position = self._position(row, pixel + b * lanes + lane)
            return Store(self.out, (n, channel + k, *position), value.astype(self.out.dtype))

        return accumulate(size, blocks, lanes, self.accumulator, reduction, finish)

    def _position(self, row: LoopExpr, pixel: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        return (pixel // self.width, pixel % self.width) if self.flat else (row, pixel)

    def _input(
        self, n: LoopExpr, channel: LoopExpr, row: LoopExpr, pixel: LoopExpr, y: LoopExpr, x: LoopExpr
    ) -> LoopExpr:
        h, w = self._position(row, pixel)
        return self.data[n, channel, h + y * self.dilation[0], w + x * self.dilation[1]]
