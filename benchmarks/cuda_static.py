"""What addresses alone say of a GPU's kernels: cycles of shared memory, bank conflicts, accesses that do not coalesce.

Every access of a launch's loops is looked at for the first warp, all counters but the threads' at 0.  Shared memory has
32 banks of 4 bytes.  A warp's words go at once, vectors of 8 bytes in two halves and of 16 bytes in four quarters; two
of these go together where lanes that are next to each other, or all lanes and the next but one, ask for the same
address.  Global memory moves sectors of 32 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from minitvm.codegen.cuda.machine import WARP
from minitvm.ir.loop import (
    Binary,
    Buffer,
    Cast,
    Const,
    CopyAsync,
    For,
    If,
    Intrin,
    Kernel,
    Ldmatrix,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Select,
    Stmt,
    Store,
    stmt_children,
)
from minitvm.ir.loop.affine import address, stride_along
from minitvm.ir.loop.scalar import floor_divide, floor_remainder

Lanes = np.ndarray
_BANKS, _WORD, SECTOR, _WIDEST = 32, 4, 32, 16
_THREADS = (LoopKind.THREAD_X, LoopKind.THREAD_Y, LoopKind.THREAD_Z)
_GRID = (LoopKind.BLOCK_X, LoopKind.BLOCK_Y, LoopKind.BLOCK_Z)
_OPERATORS: Mapping[str, Callable[[Lanes, Lanes], Lanes]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "floordiv": floor_divide,
    "floormod": floor_remainder,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
}


@dataclass(frozen=True)
class Access:
    """Of a warp to memory: ``waves`` are cycles of shared memory, or sectors of global memory; ``least`` what as many
    bytes need, a warp's addresses being what they are."""

    kernel: str
    buffer: Buffer
    what: str
    """``load``, ``store``, ``copy`` or ``ldmatrix``."""
    width: int
    """Bytes of a lane."""
    waves: int
    least: int
    times: int
    """A thread does it so often."""
    rounds: int
    """Of the loops around that are not unrolled."""
    in_loop: bool

    @property
    def is_shared(self) -> bool:
        return self.buffer.scope == "shared"

    @property
    def has_conflicts(self) -> bool:
        return self.waves > self.least


@dataclass(frozen=True)
class Inside:
    """Where a warp is: the loops around, at their first iteration."""

    kernel: str
    values: Mapping[LoopVar, Lanes]
    taken: Lanes
    """Lanes that get here."""
    times: int = 1
    """A thread gets here so often."""
    rounds: int = 1
    """The same of loops that are not unrolled."""
    in_loop: bool = False
    vector: tuple[LoopVar, int] | None = None


def accesses(kernel: Kernel) -> list[Access]:
    """All whose addresses do not depend on data."""
    return [access for stmt, at in visits(kernel) for access in _of(stmt, at)]


def visits(kernel: Kernel) -> Iterator[tuple[Stmt, Inside]]:
    """Every statement that the first warp of the first block may get to, with where it is."""
    return _visits(kernel.body, Inside(kernel.name, {}, np.ones(WARP, bool)))


def _visits(stmt: Stmt, at: Inside) -> Iterator[tuple[Stmt, Inside]]:
    yield stmt, at
    match stmt:
        case For():
            yield from _visits(stmt.body, _entered(stmt, at))
        case If(condition, then, orelse):
            holds = value_of(condition, at.values)
            holds = at.taken if holds is None else at.taken & holds.astype(bool)
            yield from _visits(then, replace(at, taken=holds))
            if orelse is not None:
                yield from _visits(orelse, replace(at, taken=at.taken & ~holds))
        case _:
            for child in stmt_children(stmt):
                yield from _visits(child, at)


def _of(stmt: Stmt, at: Inside) -> Iterator[Access]:
    match stmt:
        case If(condition):
            yield from _of_expr(condition, at)
        case CopyAsync(buffer, index):
            yield from _access(buffer, index, "copy", at)
            found = stmt.source()
            if found is not None:
                yield from _access(found[0].buffer, found[0].index, "copy", at)
        case Store(buffer, index, value):
            yield from _access(buffer, index, "store", at)
            yield from _of_expr(value, at)
        case Ldmatrix(row=Load(buffer, index)):
            yield from _access(buffer, index, "ldmatrix", at)


def _entered(loop: For, at: Inside) -> Inside:
    """The first iteration; of threads a warp's."""
    number = np.zeros(WARP, np.int64)
    if loop.kind in _THREADS and isinstance(loop.extent, Const):
        number = np.arange(WARP) % loop.extent.value if loop.kind is LoopKind.THREAD_X else number
        inside = np.arange(WARP) < loop.extent.value if loop.kind is LoopKind.THREAD_X else np.ones(WARP, bool)
        return replace(at, values={**at.values, loop.var: number}, taken=at.taken & inside)
    if loop.kind in _GRID:
        return replace(at, values={**at.values, loop.var: number})
    vector = at.vector
    if loop.kind is LoopKind.VECTORIZED and isinstance(loop.extent, Const):
        vector = (loop.var, int(loop.extent.value))
    extent, is_serial = value_of(loop.extent, at.values), loop.kind is LoopKind.SERIAL
    trips = 1 if extent is None else int(extent.max())
    return replace(
        at,
        values={**at.values, loop.var: number},
        vector=vector,
        in_loop=at.in_loop or is_serial,
        times=at.times * trips,
        rounds=at.rounds * (trips if is_serial else 1),
    )


def _of_expr(expr: LoopExpr, at: Inside) -> Iterator[Access]:
    if isinstance(expr, Load):
        yield from _access(expr.buffer, expr.index, "load", at)
    for child in expr.operands:
        yield from _of_expr(child, at)


def _access(buffer: Buffer, index: tuple[LoopExpr, ...], what: str, at: Inside) -> Iterator[Access]:
    found = None if buffer.scope == "local" else value_of(address(buffer, index).to_expr(), at.values)
    if found is None or not at.taken.any():
        return
    size = int(np.dtype(buffer.dtype).itemsize)
    lanes = at.vector[1] if at.vector else 1
    stride = stride_along(buffer, index, at.vector[0]) if at.vector else None
    width = _WIDEST if what == "ldmatrix" else min(_WIDEST, size * lanes) if stride == 1 else size
    together = width // size if stride == 1 else lanes if stride == 0 else 1
    where = (np.broadcast_to(found, (WARP,)) * size)[at.taken]
    if buffer.scope == "shared":
        waves, least = _shared(where, width, bool(at.taken.all()))
    else:
        sectors = [np.arange(first // SECTOR, (first + width - 1) // SECTOR + 1) for first in where]
        bytes_of = len(np.unique(where)) * width
        waves, least = len(np.unique(np.concatenate(sectors))), -(-bytes_of // SECTOR)
    yield Access(at.kernel, buffer, what, width, waves, least, -(-at.times // together), at.rounds, at.in_loop)


def _shared(where: Lanes, width: int, whole: bool) -> tuple[int, int]:
    """Cycles, and as many as there are groups of lanes."""
    lanes = max(1, WARP * _WORD // max(width, _WORD))
    if lanes < WARP and whole and any(_agree(where, step) for step in (1, 2)):
        lanes *= 2
    groups = [where[first : first + lanes] for first in range(0, len(where), lanes)]
    return sum(_conflicts(group, width) for group in groups), len(groups)


def _agree(where: Lanes, step: int) -> bool:
    return bool((where == where[np.arange(WARP) ^ step]).all())


def _conflicts(group: Lanes, width: int) -> int:
    """The most words that one bank has to give."""
    words = np.unique((group[:, None] + np.arange(0, max(width, 1), _WORD)).ravel() // _WORD)
    return int(np.bincount(words % _BANKS).max())


def value_of(expr: LoopExpr, values: Mapping[LoopVar, Lanes]) -> Lanes | None:
    """An integer expression lane by lane; ``None`` where it depends on data."""
    match expr:
        case Const(value):
            return np.asarray(value)
        case LoopVar():
            return values.get(expr)
        case Cast(value):
            return value_of(value, values)
        case Binary(op, lhs, rhs) if op in _OPERATORS:
            a, b = value_of(lhs, values), value_of(rhs, values)
            return None if a is None or b is None else _OPERATORS[op](a, b)
        case Intrin("not", (value,)):
            found = value_of(value, values)
            return None if found is None else ~found.astype(bool)
        case Select(condition, then, orelse):
            parts = [value_of(part, values) for part in (condition, then, orelse)]
            return None if any(part is None for part in parts) else np.where(*parts)  # type: ignore[arg-type]
    return None
