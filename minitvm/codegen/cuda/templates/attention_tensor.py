"""Attention on tensor cores, factors rounded to TF32: a warp has whole rows, each shared by four of its threads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from minitvm.codegen.cuda.machine import WARP
from minitvm.codegen.cuda.templates.attention_blocks import AttentionTile, Block, Read
from minitvm.codegen.cuda.templates.blocks import Lines
from minitvm.codegen.cuda.templates.tile import MMA
from minitvm.ir.loop import Buffer, Load, LoopExpr, Mma, Stmt, as_index
from minitvm.ir.loop.builder import LoopBuilder

_TENSOR_USE = 0.5  # of what tensor cores can do
_DEEP = 8  # of the depth, what a warp multiplies at once


@dataclass(frozen=True)
class TensorTile(AttentionTile):
    """A tile of tensor cores: ``thread_rows`` are a warp's, with all keys."""

    def __str__(self) -> str:
        return f"{self.rows} queries x {self.blocks} keys, {self.thread_rows} queries a warp, TF32"

    @property
    def across(self) -> int:
        return 4

    @property
    def threads(self) -> int:
        return self.down * WARP

    def columns(self, width: int) -> int:
        return -(-width // MMA[1]) * 2

    def depth(self, size: int) -> int:
        return -(-size // _DEEP) * _DEEP


@dataclass(frozen=True)
class Fragment(Lines):
    """Rows or columns of sums of tensor cores as ``threads`` of a warp have them: two of each fragment, ``apart``."""

    step: int
    """From a fragment to the next."""
    apart: int

    @property
    def vector(self) -> int:
        return 2 if self.apart == 1 else 1

    def at(self, number: LoopExpr, thread: LoopExpr) -> LoopExpr:
        first = thread * self.vector
        return number // 2 * self.step + first + number % 2 * self.apart


class TensorBlock(Block):
    """The same on tensor cores, factors rounded to TF32: a warp has whole rows, which four of its threads share."""

    room = 8

    @property
    def _beside(self) -> int:
        return self.room

    @property
    def registers(self) -> int:
        return self.rows.count * (self.key_lines.count + self.columns.count + 4) + self._carried + 64

    @property
    def reads(self) -> float:
        rows, (size, width) = self.tile.thread_rows, self.shape[4:]
        return (size * (rows + self.tile.blocks) + self.tile.blocks * (rows + width)) / WARP

    @property
    def rate(self) -> float:
        gpu = self.gpu
        return gpu.tensor_flops / 4 / gpu.sms / gpu.clock * _TENSOR_USE

    @cached_property
    def rows(self) -> Lines:
        return Fragment(self.tile.thread_rows // 8, 8, MMA[0], 8)

    @cached_property
    def key_lines(self) -> Lines:
        return Fragment(self.tile.blocks // 4, 4, MMA[1], 1)

    @cached_property
    def columns(self) -> Lines:
        return Fragment(self.tile.columns(self.shape[5]), 4, MMA[1], 1)

    def _sums(self, name: str, columns: Lines) -> Buffer:
        return self._own(name, self.rows.count // 2, columns.count // 2, 4)

    def _sum(self, sums: Buffer, i: LoopExpr | int, j: LoopExpr | int) -> Load:
        return Load(sums, tuple(map(as_index, (i // 2, j // 2, i % 2 * 2 + j % 2))))

    def _place(self, t: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        warp, lane = t // WARP, t % WARP
        return warp * self.tile.thread_rows + lane // 4, lane % 4

    def _multiply(self, sums: Buffer, depth: int, left: Read, right: Read, down: LoopExpr, across: LoopExpr) -> Stmt:
        """Fragments as :class:`minitvm.ir.loop.Mma` says."""
        a, b = self._own("a", sums.shape[0], 4), self._own("b", sums.shape[1], 2)

        code = LoopBuilder()
        with code.loop(depth // _DEEP, "r") as r, code.memory(a, b):
            with code.unrolled(range(a.shape[0]), "i") as i, code.unrolled(range(4), "j") as n:
                line = down + i * MMA[0] + n % 2 * 8
                code.store(a, (i, n), left(r * _DEEP + across + n // 2 * 4, line))
            with code.unrolled(range(b.shape[0]), "i") as j, code.unrolled(range(2), "j") as n:
                code.store(b, (j, n), right(r * _DEEP + across + n * 4, down % 8 + j * MMA[1]))
            with code.unrolled(range(sums.shape[0]), "i") as i, code.unrolled(range(sums.shape[1]), "j") as j:
                code.emit(Mma(sums, (i, j), tuple(a[i, n] for n in range(4)), tuple(b[j, n] for n in range(2))))
        return code.stmt
