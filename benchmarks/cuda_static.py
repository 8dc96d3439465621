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
    Alloc,
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
    expr_children,
    stmt_children,
)
from minitvm.ir.loop.affine import address, stride_along
from minitvm.ir.loop.scalar import floor_divide, floor_remainder

Lanes = np.ndarray
_BANKS, _WORD, _SECTOR, _WIDEST = 32, 4, 32, 16
_THREADS = (LoopKind.THREAD_X, LoopKind.THREAD_Y, LoopKind.THREAD_Z)
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
    in_loop: bool

    @property
    def is_shared(self) -> bool:
        return self.buffer.scope == "shared"

    @property
    def has_conflicts(self) -> bool:
        return self.waves > self.least


@dataclass(frozen=True)
class _Inside:
    kernel: str
    values: Mapping[LoopVar, Lanes]
    taken: Lanes
    """Lanes that get here."""
    in_loop: bool = False
    vector: tuple[LoopVar, int] | None = None


def accesses(kernel: Kernel) -> list[Access]:
    """All whose addresses do not depend on data."""
    return list(_of(kernel.body, _Inside(kernel.name, {}, np.ones(WARP, bool))))


def _of(stmt: Stmt, at: _Inside) -> Iterator[Access]:
    match stmt:
        case For():
            yield from _of(stmt.body, _entered(stmt, at))
        case If(condition, then, orelse):
            holds = value_of(condition, at.values)
            holds = at.taken if holds is None else at.taken & holds.astype(bool)
            yield from _of_expr(condition, at)
            yield from _of(then, replace(at, taken=holds))
            if orelse is not None:
                yield from _of(orelse, replace(at, taken=at.taken & ~holds))
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
        case Alloc(_, body):
            yield from _of(body, at)
        case _:
            for child in stmt_children(stmt):
                yield from _of(child, at)


def _entered(loop: For, at: _Inside) -> _Inside:
    """The first iteration; of threads a warp's."""
    number = np.zeros(WARP, np.int64)
    if loop.kind in _THREADS and isinstance(loop.extent, Const):
        number = np.arange(WARP) % loop.extent.value if loop.kind is LoopKind.THREAD_X else number
        inside = np.arange(WARP) < loop.extent.value if loop.kind is LoopKind.THREAD_X else np.ones(WARP, bool)
        return replace(at, values={**at.values, loop.var: number}, taken=at.taken & inside)
    vector = at.vector
    if loop.kind is LoopKind.VECTORIZED and isinstance(loop.extent, Const):
        vector = (loop.var, int(loop.extent.value))
    is_serial = loop.kind is LoopKind.SERIAL
    return replace(at, values={**at.values, loop.var: number}, vector=vector, in_loop=at.in_loop or is_serial)


def _of_expr(expr: LoopExpr, at: _Inside) -> Iterator[Access]:
    if isinstance(expr, Load):
        yield from _access(expr.buffer, expr.index, "load", at)
    for child in expr_children(expr):
        yield from _of_expr(child, at)


def _access(buffer: Buffer, index: tuple[LoopExpr, ...], what: str, at: _Inside) -> Iterator[Access]:
    found = None if buffer.scope == "local" else value_of(address(buffer, index).to_expr(), at.values)
    if found is None or not at.taken.any():
        return
    size = int(np.dtype(buffer.dtype).itemsize)
    width = _width(buffer, index, size, what, at)
    where = (np.broadcast_to(found, (WARP,)) * size)[at.taken]
    if buffer.scope == "shared":
        waves, least = _shared(where, width, bool(at.taken.all()))
    else:
        sectors = [np.arange(first // _SECTOR, (first + width - 1) // _SECTOR + 1) for first in where]
        bytes_of = len(np.unique(where)) * width
        waves, least = len(np.unique(np.concatenate(sectors))), -(-bytes_of // _SECTOR)
    yield Access(at.kernel, buffer, what, width, waves, least, at.in_loop)


def _width(buffer: Buffer, index: tuple[LoopExpr, ...], size: int, what: str, at: _Inside) -> int:
    if what == "ldmatrix":
        return _WIDEST
    if at.vector is None or stride_along(buffer, index, at.vector[0]) != 1:
        return size
    return min(_WIDEST, size * at.vector[1])


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
