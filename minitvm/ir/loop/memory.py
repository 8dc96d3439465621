"""Memory of the loop interpreter: what was written, and by which thread of a block since its last barrier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np

from minitvm.errors import CompilerError
from minitvm.ir.loop.expr import Buffer, Const
from minitvm.ir.loop.stmt import For, Kernel, LoopKind, Stmt, walk_stmts

THREADS = (LoopKind.THREAD_X, LoopKind.THREAD_Y, LoopKind.THREAD_Z)
_APART = 1024  # numbers of threads along an axis
_NOBODY, _SEVERAL = -1, -2


Copied: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Where elements go, and the thread that copies each."""


@dataclass
class Memory:
    """``data[instance * size + offset]``; ``written`` tells what may be read, ``whole`` that all of it may."""

    data: np.ndarray
    written: np.ndarray
    size: int
    whole: bool = False
    touched: Touched | None = None
    """Of a block's shared memory, where races are looked for."""
    copies: list[list[Copied]] = field(default_factory=lambda: [[]])
    """What is on its way, in the groups that were committed, and in the one that is not yet."""

    def commit(self) -> None:
        self.copies.append([])

    def arrive(self, left: int) -> None:
        """All groups that were committed but the last ``left`` may be read, by the threads that copied."""
        done = max(0, len(self.copies) - 1 - left)
        for where, threads in (copied for group in self.copies[:done] for copied in group):
            self.written[where] = True
            if self.touched is not None:
                self.touched.wrote[where] = threads
        del self.copies[:done]

    def is_late(self, where: np.ndarray | slice) -> bool:
        """True if something is on its way there."""
        waiting = np.zeros(self.data.size, bool)
        for at, _ in (copied for group in self.copies for copied in group):
            waiting[at] = True
        return bool(waiting[where].any())

    @cached_property
    def _lanes(self) -> np.ndarray:
        """A number for each element, left by :meth:`is_shared`."""
        return np.empty(self.data.size, np.int32)

    def is_shared(self, where: np.ndarray | int, count: int) -> bool:
        """True if an element is that of two of so many lanes: each leaves its number, and must find it."""
        if isinstance(where, int) or where.size != count:
            return count > 1
        numbers = np.arange(count, dtype=np.int32)
        self._lanes[where] = numbers
        return not np.array_equal(self._lanes[where], numbers)

    @staticmethod
    def empty(buffer: Buffer, instances: int) -> Memory:
        size = buffer.size
        return Memory(np.zeros(instances * size, buffer.dtype), np.zeros(instances * size, bool), size)

    @staticmethod
    def holding(buffer: Buffer, array: np.ndarray) -> Memory:
        given = np.asarray(array)
        if given.shape != buffer.shape or given.dtype != np.dtype(buffer.dtype):
            raise CompilerError(
                f"{buffer.name} is {buffer.dtype}{list(buffer.shape)}, given {given.dtype}{list(given.shape)}"
            )
        memory = Memory.empty(buffer, 1)
        memory.data[:] = given.ravel()
        memory.whole = True  # an index inside of the buffer hits an element of the array
        return memory


def result_of(kernel: Kernel, memory: Memory, buffer: Buffer) -> np.ndarray:
    missing = np.argwhere(~memory.written.reshape(buffer.shape))
    if len(missing):
        raise CompilerError(f"{kernel.name} never stores {buffer.name}{[int(i) for i in missing[0]]}")
    return memory.data.reshape(buffer.shape)


class Team:
    """The threads of a block of a kernel: as many along an axis as any loop has."""

    def __init__(self, body: Stmt) -> None:
        self.extents: dict[LoopKind, int] = {}
        for loop in walk_stmts(body):
            if isinstance(loop, For) and loop.kind in THREADS and isinstance(loop.extent, Const):
                self.extents[loop.kind] = max(self.extents.get(loop.kind, 0), int(loop.extent.value))

    def numbers(self, count: int, positions: Mapping[LoopKind, np.ndarray]) -> np.ndarray:
        """The number of each lane's thread, by its positions along axes; 0 along the others."""
        found = np.zeros(count, np.int64)
        for kind, position in positions.items():
            found += position * _APART ** THREADS.index(kind)
        return found

    def is_whole(self, count: int, positions: Mapping[LoopKind, np.ndarray]) -> bool:
        """True if lanes are all threads of each block that they are of, as far as their positions tell them apart."""
        every = np.zeros(1, np.int64)
        for kind in positions:
            every = (every[:, None] + np.arange(self.extents[kind]) * _APART ** THREADS.index(kind)).ravel()
        numbers = self.numbers(count, positions)
        return count % every.size == 0 and bool((np.sort(numbers.reshape(-1, every.size)) == np.sort(every)).all())


class Touched:
    """The thread of a block that wrote each element since the last barrier, and the one that read it."""

    def __init__(self, size: int) -> None:
        self.wrote = np.full(size, _NOBODY)
        self.read = np.full(size, _NOBODY)

    def barrier(self) -> None:
        self.wrote[:] = self.read[:] = _NOBODY

    def load(self, where: np.ndarray, threads: np.ndarray | None) -> int | None:
        """The first of the lanes that read there (``None``: each for all threads) that meets another one's store."""
        threads = np.full(where.shape, _SEVERAL) if threads is None else threads
        wrote, known = self.wrote[where], self.read[where]
        self.read[where] = np.where((known == _NOBODY) | (known == threads), threads, _SEVERAL)
        self.read[where[self.read[where] != threads]] = _SEVERAL
        return _first((wrote != _NOBODY) & (wrote != threads))

    def store(self, where: np.ndarray, threads: np.ndarray) -> int | None:
        """The first of the lanes that write there that meets what another thread read or wrote."""
        wrote, read = self.wrote[where], self.read[where]
        self.wrote[where] = threads
        mine = ((wrote == _NOBODY) | (wrote == threads)) & ((read == _NOBODY) | (read == threads))
        return _first(~mine | (self.wrote[where] != threads))


def _first(wrong: np.ndarray) -> int | None:
    return int(np.argmax(wrong)) if wrong.any() else None
