"""Which channel blocks a work item of a blocked convolution computes, and from which inputs."""

from __future__ import annotations

from dataclasses import dataclass

from minitvm.ir.loop import Buffer, LoopExpr


@dataclass(frozen=True)
class Part:
    """Some blocks of input channels, and the sums that their products are added to: (row, column, block, lane)."""

    first: LoopExpr
    count: int
    sums: Buffer


@dataclass(frozen=True)
class BlockSets:
    """``sets`` sets of ``blocks`` neighbouring channel blocks of a group, the last one of a set ``width`` wide."""

    begin: int
    sets: int
    blocks: int
    width: int

    def chosen(self, number: LoopExpr) -> Chosen:
        """The set with this number, counted through all groups."""
        return Chosen(number // self.sets, number % self.sets * self.blocks + self.begin, self.blocks, self.width)


@dataclass(frozen=True)
class Chosen:
    """One set: its group, its first block in the group, how many, and the width of the last one."""

    group: LoopExpr
    first: LoopExpr
    blocks: int
    width: int
