"""Attention of a GPU: which tiles there are, what each is predicted to cost, and where its parts would be faster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from minitvm.codegen.cuda.machine import WARP
from minitvm.codegen.cuda.templates.attention_blocks import AttentionTile, Block, shape_of
from minitvm.codegen.cuda.templates.attention_tensor import TensorBlock, TensorTile
from minitvm.codegen.cuda.templates.dense import GpuMatmul, GpuTemplate, tensor_products, worth_rounding
from minitvm.codegen.problem import TEMPLATES, Choice, Problem
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Buffer, Stmt
from minitvm.ir.ops.nn_attention import Attention
from minitvm.ir.ops.nn_dense import BatchMatmul
from minitvm.passes.manager import PassContext

_LATENCY = 700  # cycles until a piece is in shared memory
_ROUND = 400  # cycles of a piece beside arithmetic: barriers, shuffles, powers that wait for each other
_POWERS = 16  # that an SM makes in a cycle
_REGISTERS = 240  # of a thread
_SIDE, _PIECE = (64, 32, 16), (64, 32, 16)
_OF_A_THREAD = (8, 4, 2)

TILES = [
    AttentionTile(rows, keys, down, across)
    for rows in _SIDE
    for keys in _PIECE
    for down in _OF_A_THREAD
    for across in _OF_A_THREAD
    if WARP <= rows // down * (keys // across) <= 256 and keys // across <= WARP
]
TENSOR_TILES = [
    TensorTile(rows, keys, each) for rows in (128, *_SIDE) for keys in _PIECE for each in (32, 16) if rows % each == 0
]


@TEMPLATES.register("cuda", Attention)
class GpuAttention(GpuTemplate):
    """query: (batch, length, heads, d), key, value: (batch, key_length, heads, d or e), a mask or none."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Batch, length, heads, key_length, d, e."""
        return shape_of(self.problem)

    def refusal(self) -> Declined | None:
        if not self.problem.is_static:
            return Declined("its loops are made for numbers")
        return None if self.choices() else Declined(f"heads of {self.shape[4:]} do not fit into shared memory")

    def choices(self) -> Sequence[Choice]:
        factors = replace(self.problem, narrow=self.problem.narrow[:3])
        exact, on_tensor_cores = self._tiled(TILES), tensor_products(factors, self.gpu)[1] == 1
        return worth_rounding(exact, self._tiled(TENSOR_TILES), self.gpu) if on_tensor_cores else exact

    def _tiled(self, tiles: Sequence[AttentionTile]) -> list[Choice]:
        able = [tile for tile in tiles if self._shared(tile) <= self.gpu.block_shared]
        found = [Choice("pieces of keys", tile, 0.0, self._wasteful(tile)) for tile in able]
        return [replace(choice, cycles=self.cycles(choice)) for choice in found]

    def _wasteful(self, tile: AttentionTile) -> str:
        if tile.rows >= 2 * max(self.shape[1], 16) or tile.blocks >= 2 * max(self.shape[3], 16):
            return "a smaller tile covers it as well"
        return "" if self._block(tile).registers <= _REGISTERS else "a thread has not so many registers"

    def _shared(self, tile: AttentionTile) -> int:
        return sum(buffer.nbytes for buffer in self._block(tile).shared)

    def _block(self, tile: AttentionTile) -> Block:
        return (TensorBlock if isinstance(tile, TensorTile) else Block)(self.problem, tile, self.gpu)

    def cycles(self, choice: Choice, registers: int = 0) -> float:
        """Waves of blocks, bound by arithmetic or by latency.  ``registers``: of a thread, where they are known."""
        tile = choice.tile
        assert isinstance(tile, AttentionTile)
        batch, length, heads, key_length, size, width = self.shape
        block = self._block(tile)
        held = self.gpu.occupancy(tile.threads, registers or block.registers, self._shared(tile))
        if not held:
            return math.inf
        shared = tile.threads / WARP * block.reads
        wide = size + tile.columns(width) * tile.across
        products = tile.rows * tile.blocks * wide / block.rate
        exponentials = tile.rows * tile.blocks / _POWERS
        each = -(-batch * heads * -(-length // tile.rows) // self.gpu.sms)
        waves = [held] * (each // held) + ([each % held] if each % held else [])
        pieces = -(-key_length // tile.blocks)
        alone = [max(1.0, 8 / (n * tile.threads / WARP)) for n in waves]
        busy = (n * (max(products * a, shared) + exponentials) for n, a in zip(waves, alone, strict=True))
        return sum(pieces * (max(_LATENCY, work) + _ROUND) + 2 * _LATENCY for work in busy)

    def slower(self) -> Declined | None:
        """Against two products, a softmax and a copy of each operand and the result, launched by themselves."""
        batch, length, heads, key_length, size, width = self.shape
        many, mixed = batch * heads, PassContext.current().option("minitvm.mixed_precision")
        dtype = mixed or self.problem.output.dtype
        moved = many * ((length + key_length) * (size + width) * 2 + length * key_length * 4)
        parts = moved * np.dtype(dtype).itemsize / self.gpu.bytes_per_cycle + 6 * self.gpu.seen.launch
        for columns, depth, turned in ((key_length, size, True), (width, key_length, False)):
            shapes = (many, length, depth), (many, columns, depth) if turned else (many, depth, columns)
            left, right = (Buffer("part", shape, dtype) for shape in shapes)
            out = Buffer("out", (many, length, columns), dtype)
            product = Problem(BatchMatmul(transpose_b=turned), (left, right), (out,), narrow=(dtype, dtype))
            parts += GpuMatmul(product, self.machine).choice.cycles
        given = replace(self.problem, narrow=(mixed,) * 3) if mixed else self.problem
        mine = GpuAttention(given, self.machine).choice.cycles
        return Declined(f"{mine:,.0f} cycles predicted, {parts:,.0f} of its parts") if mine > parts else None

    def loops(self, choice: Choice) -> Stmt:
        assert isinstance(choice.tile, AttentionTile)
        return self._block(choice.tile).nest()
