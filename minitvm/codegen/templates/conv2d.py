"""Direct convolution in blocked layouts: NCHW[x]c data, OIHW[x]i[y]o weights, an NCHW[y]c result."""

from __future__ import annotations

import math

from minitvm.codegen.nests import unflatten
from minitvm.codegen.problem import TEMPLATES, Config, Declined, Problem
from minitvm.codegen.templates.pad import after_padding, padded
from minitvm.codegen.templates.tile import Tile, accumulate, choose_tile, over_pieces
from minitvm.ir.loop import Buffer, Const, Kernel, LoopExpr, LoopKind, Stmt, Store, loop, seq
from minitvm.target import MachineModel


@TEMPLATES.register("llvm", "nn.contrib_conv2d_NCHWc")
def conv2d_nchwc(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """A tile of output columns x output-channel blocks in registers; inputs broadcast, weights as vectors.

    ``config``: ``tile`` (a :class:`Tile`), ``rows_inside`` (loop over rows inside the one over channel blocks).
    """
    op, (data, weight), out = problem.op, problem.inputs, problem.output
    if out.dtype != data.dtype or not data.dtype.startswith("float"):
        return Declined(f"registers hold floats of one dtype; data is {data.dtype}, the result {out.dtype}")
    pads, strides, dilation = op.attributes()["padding"], op.attributes()["strides"], op.attributes()["dilation"]
    source, fill = padded(data, pads)
    flat = _is_pointwise(weight, strides) and fill is None
    shape = ConvLoops(source, weight, out, strides, dilation, flat)
    tile = config.get("tile") or choose_tile(shape.columns, out.shape[1], machine)
    weights_fit = math.prod(weight.shape) * 4 <= machine.l2_bytes // 2
    body = shape.nest(tile, config.get("rows_inside", not weights_fit))
    return Kernel(op.name, (data, weight, out), after_padding(source, fill, body))


def _is_pointwise(weight: Buffer, strides: tuple[int, ...]) -> bool:
    return weight.shape[2:4] == (1, 1) and tuple(strides) == (1, 1)


class ConvLoops:
    """The loops of one convolution; a pointwise one sees its image as a single row."""

    def __init__(
        self,
        data: Buffer,
        weight: Buffer,
        out: Buffer,
        strides: tuple[int, ...],
        dilation: tuple[int, ...],
        flat: bool,
    ) -> None:
        self.data, self.weight, self.out, self.strides, self.dilation = data, weight, out, strides, dilation
        self.flat = flat
        self.blocked = len(data.shape) == 5
        self.batch, self.out_blocks, self.height, self.width, self.lanes = out.shape
        self.rows = 1 if flat else self.height
        self.columns = self.height * self.width if flat else self.width

    def nest(self, tile: Tile, rows_inside: bool) -> Stmt:
        groups = self.out_blocks // tile.blocks
        column_chunks = self._column_chunks(tile)
        extents = (self.batch, groups, self.rows, column_chunks)
        order = extents if rows_inside else (self.batch, self.rows, column_chunks, groups)

        def work(flat: LoopExpr) -> Stmt:
            index = unflatten(flat, order)
            n, group, row, chunk = index if rows_inside else (index[0], index[3], index[1], index[2])
            return self._chunk(n, group * tile.blocks, row, chunk, column_chunks, tile)

        return loop(math.prod(order), work, LoopKind.PARALLEL, name="work")

    def _column_chunks(self, tile: Tile) -> int:
        """A single row is cut into equal chunks of whole tiles, to be divided among threads."""
        if not self.flat:
            return 1
        most = self.columns // (4 * tile.columns)
        return next((d for d in range(max(most, 1), 0, -1) if self.columns % d == 0), 1)

    def _chunk(self, n: LoopExpr, block: LoopExpr, row: LoopExpr, chunk: LoopExpr, chunks: int, tile: Tile) -> Stmt:
        width = self.columns // chunks
        return over_pieces(
            width, tile.columns, lambda start, size: self._tile(n, block, row, chunk * width + start, size, tile.blocks)
        )

    def _tile(self, n: LoopExpr, block: LoopExpr, row: LoopExpr, column: LoopExpr, size: int, blocks: int) -> Stmt:
        def reduction(step) -> Stmt:  # type: ignore[no-untyped-def]
            _, outer, kh, kw, inner, _ = self.weight.shape

            def taps(i: LoopExpr, y: LoopExpr, x: LoopExpr) -> Stmt:
                def channel(c: LoopExpr) -> Stmt:
                    return step(
                        lambda t: self._input(n, i, c, row, column + t, y, x),
                        lambda b, lane: self.weight[block + b, i, y, x, c, lane],
                    )

                return loop(inner, channel, LoopKind.UNROLLED if inner <= 16 else LoopKind.SERIAL, name="c")

            return loop(
                outer, lambda i: loop(kh, lambda y: loop(kw, lambda x: taps(i, y, x), name="kw"), name="kh"), name="ci"
            )

        def finish(t: int, b: int, lane: LoopExpr, value: LoopExpr) -> Stmt:
            return Store(self.out, (n, block + b, *self._position(row, column + t), lane), value)

        return accumulate(size, blocks, self.lanes, self.out.dtype, reduction, finish)

    def _position(self, row: LoopExpr, column: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        return (column // self.width, column % self.width) if self.flat else (row, column)

    def _input(
        self, n: LoopExpr, i: LoopExpr, c: LoopExpr, row: LoopExpr, column: LoopExpr, y: LoopExpr, x: LoopExpr
    ) -> LoopExpr:
        h, w = self._position(row, column)
        h = h * self.strides[0] + y * self.dilation[0]
        w = w * self.strides[1] + x * self.dilation[1]
        if self.blocked:
            return self.data[n, i, h, w, c]
        return self.data[n, i * self.weight.shape[4] + c, h, w]


@TEMPLATES.register("llvm", "nn.contrib_depthwise_conv2d_NCHWc")
def depthwise_conv2d_nchwc(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """One channel block at a time: a strip of output columns in registers, all taps unrolled."""
    op, (data, weight), out = problem.op, problem.inputs, problem.output
    if out.dtype != data.dtype or not data.dtype.startswith("float"):
        return Declined(f"registers hold floats of one dtype; data is {data.dtype}, the result {out.dtype}")
    if data.shape[1] != out.shape[1]:
        return Declined("more than one output channel per input channel")
    pads, strides, dilation = op.attributes()["padding"], op.attributes()["strides"], op.attributes()["dilation"]
    source, fill = padded(data, pads)
    batch, blocks, height, width, lanes = out.shape
    _, _, kh, kw, _, _ = weight.shape
    unrolled = LoopKind.UNROLLED if kh * kw <= 49 else LoopKind.SERIAL

    def tile(n: LoopExpr, block: LoopExpr, row: LoopExpr, column: LoopExpr, size: int) -> Stmt:
        def load(t: int, y: LoopExpr, x: LoopExpr, lane: LoopExpr) -> LoopExpr:
            h = row * strides[0] + y * dilation[0]
            w = (column + t) * strides[1] + x * dilation[1]
            return source[n, block, h, w, lane]

        return _strip(
            size,
            lanes,
            out,
            lambda body: loop(kh, lambda y: loop(kw, lambda x: body(y, x), unrolled, name="kw"), unrolled, name="kh"),
            lambda t, y, x, lane: (load(t, y, x, lane), weight[block, 0, y, x, 0, lane]),
            lambda t, lane: (n, block, row, column + t, lane),
        )

    def work(flat: LoopExpr) -> Stmt:
        n, block, row = unflatten(flat, (batch, blocks, height))
        most = max(1, min(width, machine.vector_registers // 2 - 2))
        return over_pieces(width, most, lambda start, size: tile(n, block, row, start, size))

    body = loop(batch * blocks * height, work, LoopKind.PARALLEL, name="work")
    return Kernel(op.name, (data, weight, out), after_padding(source, fill, body))


def _strip(size: int, lanes: int, out: Buffer, taps, product, position) -> Stmt:  # type: ignore[no-untyped-def]
    """``size`` neighbouring outputs of one channel block, one vector each."""
    from minitvm.ir.loop import Alloc, const, intrin

    acc = Buffer("acc", (size, lanes), out.dtype, "local")

    def each(body) -> Stmt:  # type: ignore[no-untyped-def]
        return seq(
            *(loop(lanes, lambda lane, t=t: body(t, lane), LoopKind.VECTORIZED, name="lane") for t in range(size))
        )

    def tap(y: LoopExpr, x: LoopExpr) -> Stmt:
        return each(lambda t, lane: Store(acc, (Const(t), lane), intrin("fma", *product(t, y, x, lane), acc[t, lane])))

    zero = each(lambda t, lane: Store(acc, (Const(t), lane), const(0, out.dtype)))
    done = each(lambda t, lane: Store(out, position(t, lane), acc[t, lane]))
    return Alloc(acc, seq(zero, taps(tap), done))
