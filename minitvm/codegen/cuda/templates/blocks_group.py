"""Blocks of threads that multiply by warpgroups (``wgmma``): factors go from shared memory to the tensor cores, with no
registers between."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from minitvm.codegen.cuda.machine import WARP
from minitvm.codegen.cuda.templates.blocks_tensor import TensorBlocks
from minitvm.codegen.cuda.templates.product import Operand, Staging, unrolled
from minitvm.codegen.cuda.templates.tile import GROUP, WIDEST, MmaTile
from minitvm.codegen.loops import unflatten
from minitvm.ir.loop import (
    Barrier,
    Buffer,
    CopyWait,
    Load,
    LoopExpr,
    LoopKind,
    Stmt,
    Wgmma,
    WgmmaSync,
    const,
    loop,
    nest,
    seq,
)

_HIGH, _WIDE, _DEEP = 64, 8, 16
"""Rows of what a warpgroup multiplies at once, columns of a piece of it, and its depth."""
_ROW = 64
"""Elements of a swizzled row."""


@dataclass(frozen=True)
class SwizzledStaging(Staging):
    """A factor in swizzled rows of shared memory: of the depth, or of lines where these are neighbours in memory."""

    @cached_property
    def vector(self) -> int:
        return math.gcd(self.operand.vector, WIDEST)

    @cached_property
    def shared(self) -> Buffer:
        """(stage, line, depth), or (stage, lines / 64, depth, 64)."""
        name = "left" if self.operand.along_depth else "right"
        shape = (self.lines, self.depth) if self.depth_inside else (self.lines // _ROW, self.depth, _ROW)
        return Buffer(name, (self.stages, *shape), self.dtype, "shared", swizzled=True)

    def _spread(self, number: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        """Neighbours read a whole row: where its vectors go is in different banks."""
        line, at = unflatten(number, (self.lines, self.depth // self.vector))
        return line, at

    def at(self, stage: LoopExpr, r: LoopExpr, line: LoopExpr) -> Load:
        inside = (line, r) if self.depth_inside else (line // _ROW, r, line % _ROW)
        return Load(self.shared, (stage, *inside))


class GroupBlocks(TensorBlocks):
    """Warpgroups side by side, each with ``thread_rows x thread_columns`` sums in pieces of 64 rows."""

    high = _HIGH

    def _staged(self, operand: Operand, lines: int) -> Staging:
        tile, product = self.tile, self.product
        assert isinstance(tile, MmaTile)
        carried = (operand, lines, tile.depth, tile.threads, product.depth, tile.kind, 0)
        return SwizzledStaging(*carried, tile.stages, True, operand.along_depth)

    @cached_property
    def sums(self) -> Buffer:
        """(pieces of 64 rows, pieces of 8 columns, 4)."""
        tile = self.tile
        return Buffer("sums", (tile.thread_rows // _HIGH, tile.thread_columns // _WIDE, 4), "float32", "local")

    def _place(self, t: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        """The thread's first row, and its place in a piece's columns behind its warpgroup's first one."""
        tile, group = self.tile, t // GROUP
        row = group // tile.across * tile.thread_rows + t % GROUP // WARP * 16 + t % WARP // 4
        return row, group % tile.across * tile.thread_columns + t % 4

    def _pipeline(self, count: LoopExpr, copy: Callable[[LoopExpr], Stmt], down: LoopExpr, across: LoopExpr) -> Stmt:
        """While a piece is multiplied, the copies of the next ones are on their way.  The stage that a copy fills is of
        the piece before the last one, which all warpgroups have waited for before they met."""
        ahead = self.tile.stages - 2

        def step(piece: LoopExpr) -> Stmt:
            multiply = self._multiply(piece % self.tile.stages, down, across)
            here = seq(CopyWait(ahead - 1), WgmmaSync("shared"), Barrier())
            return seq(
                here, copy(piece + ahead), WgmmaSync("sums"), multiply, WgmmaSync("commit"), WgmmaSync("wait", 1)
            )

        begin = (copy(const(piece, "int64")) for piece in range(ahead))
        return seq(*begin, loop(count, step, name="piece"), WgmmaSync("wait"))

    def _multiply(self, stage: LoopExpr, down: LoopExpr, across: LoopExpr) -> Stmt:
        """All products of a piece that is in shared memory."""
        tile, row, column = self.tile, down - down % _HIGH, across - across % 4
        assert isinstance(tile, MmaTile)

        def one(r: LoopExpr, i: LoopExpr) -> Stmt:
            left = self.left.at(stage, r * _DEEP, row + i * _HIGH)
            right = self.right.at(stage, r * _DEEP, column)
            return Wgmma(self.sums, (i,), left, right, tile.kind, not self.right.depth_inside)

        def step(r: LoopExpr) -> Stmt:
            return nest(self.sums.shape[:1], partial(one, r), LoopKind.UNROLLED)

        return unrolled(tile.depth // _DEEP, step, "r")
