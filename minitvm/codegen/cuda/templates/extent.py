"""What tiles of a product are predicted to cost, and in how many parts their depth may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.cuda.templates.tile import SUM_BYTES, TILES, BlockTile
from minitvm.codegen.problem import Choice

_LATENCY = 500
"""Cycles from asking global memory for a piece to having it in shared memory, the barrier included."""
_SEEN = 1 / 2
"""Of what hides behind something longer, what is seen all the same."""
_ON_THEIR_WAY = 128
"""Bytes of parts of sums that a thread waits for at once."""


@dataclass(frozen=True)
class Extent:
    """A batch of products ``rows x depth`` by ``depth x columns`` of elements of ``size`` bytes.

    ``factor_bytes``: of both factors, each read once.
    """

    batch: int
    rows: int
    columns: int
    depth: int
    size: int
    factor_bytes: int

    def blocks(self, tile: BlockTile) -> int:
        return self.batch * -(-self.rows // tile.rows) * -(-self.columns // tile.columns) * tile.split

    def pieces(self, tile: BlockTile) -> int:
        """The pieces of the depth in one part of it."""
        return -(-self.whole_pieces(tile) // tile.split)

    def whole_pieces(self, tile: BlockTile) -> int:
        return max(1, -(-self.depth // tile.depth))

    def is_wasteful(self, tile: BlockTile) -> bool:
        """True if a tile of half the size covers it as well."""
        return tile.rows >= 2 * max(self.rows, 16) or tile.columns >= 2 * max(self.columns, 16)

    def cycles(self, tile: BlockTile, machine: GpuModel, registers: int = 0) -> float:
        """The predicted cycles of the machine's clock: waves of blocks, bound by arithmetic or latency; or memory's
        work.

        ``registers``: of a thread, where they are known.
        """
        held = machine.occupancy(tile.threads, registers or tile.registers, tile.shared_bytes(self.size))
        if not held:
            return math.inf
        each = -(-self.blocks(tile) // machine.sms)
        waits, ends = _LATENCY / (tile.stages - 1), 2 * _LATENCY + tile.ending
        pieces = self.pieces(tile)

        def wave(blocks: int) -> float:
            step = tile.depth * tile.step_cycles(blocks, self.size, machine)
            return pieces * (max(waits, step) + _SEEN * min(waits, step)) + ends

        busy = each // held * wave(min(each, held)) + (wave(each % held) if each % held else 0)
        return max(busy, self._memory(tile) / machine.bytes_per_cycle) + self._arrival(tile, machine)

    def _arrival(self, tile: BlockTile, machine: GpuModel) -> float:
        """Cycles in which blocks learn that all have arrived, and each adds the parts of some rows, or one of all."""
        if tile.split == 1:
            return 0
        rows = min(tile.rows, self.rows)
        is_cluster = tile.is_cluster(machine, self.blocks(tile) // tile.split)
        parts = (rows if is_cluster else tile.split * rows) * tile.columns * SUM_BYTES
        return 2 * _LATENCY + parts / min(2 * machine.seen.from_second_level, tile.threads * _ON_THEIR_WAY / _LATENCY)

    def _memory(self, tile: BlockTile) -> float:
        """Bytes that go through memory."""
        results = self.batch * self.rows * self.columns
        return self.factor_bytes + results * (self.size + (2 * SUM_BYTES * tile.split if tile.split > 1 else 0))


def choices(extent: Extent, machine: GpuModel, tiles: Sequence[BlockTile] = TILES, scheme: str = "") -> list[Choice]:
    """Every tile that fits the machine, its depth whole and in parts; what is wasteful says so."""
    found = []
    for tile in tiles:
        if tile.shared_bytes(extent.size) > machine.block_shared:
            continue
        why_not = "a smaller tile covers it as well" if extent.is_wasteful(tile) else ""
        for split in _splits(extent, tile, machine):
            part = replace(tile, split=split)
            name = scheme + ("depth in parts" if split > 1 else "whole depth")
            found.append(Choice(name, part, extent.cycles(part, machine), why_not))
    return found


_MOST_PARTS = 32
_LEAST_PIECES = 4


def _splits(extent: Extent, tile: BlockTile, machine: GpuModel) -> list[int]:
    """One part, or as many as give every SM one block or two; every part has some pieces."""
    pieces, blocks = extent.whole_pieces(tile), extent.blocks(tile)
    wanted = {-(-k * machine.sms // blocks) for k in (1, 2, 4)} | {k * machine.sms // blocks for k in (1, 2, 4)}
    able = (min(n, _MOST_PARTS, pieces // _LEAST_PIECES) for n in wanted)
    return sorted({1, *(even_parts(pieces, n) for n in able if n > 1)})


def even_parts(pieces: int, parts: int) -> int:
    """The number of parts of equal length, at most so many, none of them empty; the last one may be shorter."""
    return -(-pieces // -(-pieces // parts))
