"""The loop IR's statements and kernels, and how they are built (see :mod:`minitvm.ir.loop`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from minitvm.ir.loop.expr import Buffer, Const, Index, LoopExpr, LoopVar, as_index

printer: Callable[[Any], str] = repr
"""How ``str(kernel)`` looks; the package sets it, since what prints kernels must know them."""


class LoopKind(Enum):
    SERIAL = "serial"
    PARALLEL = "parallel"  # CPU: iterations are divided among the threads
    VECTORIZED = "vectorized"  # all iterations at once, in lanes
    UNROLLED = "unrolled"
    BLOCK_X = "blockIdx.x"
    BLOCK_Y = "blockIdx.y"
    BLOCK_Z = "blockIdx.z"
    THREAD_X = "threadIdx.x"
    THREAD_Y = "threadIdx.y"
    THREAD_Z = "threadIdx.z"


class Stmt:
    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class For(Stmt):
    """``for var in range(extent)``.  Only serial loops may have an extent that is not a constant."""

    var: LoopVar
    extent: LoopExpr
    body: Stmt
    kind: LoopKind = LoopKind.SERIAL


@dataclass(frozen=True, slots=True, eq=False)
class Store(Stmt):
    buffer: Buffer
    index: tuple[LoopExpr, ...]
    value: LoopExpr


@dataclass(frozen=True, slots=True, eq=False)
class Seq(Stmt):
    stmts: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True, eq=False)
class If(Stmt):
    condition: LoopExpr
    then: Stmt
    orelse: Stmt | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Alloc(Stmt):
    """``buffer`` lives while ``body`` runs.  Its contents are undefined until stored to."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, slots=True, eq=False)
class Barrier(Stmt):
    """Every thread's stores before it are seen by every thread after it.

    CPU: at the top level of a kernel, between nests, all threads of the team.  GPU: inside a block.
    """


@dataclass(frozen=True, eq=False)
class Kernel:
    """One fused group as loops.

    CPU kernels are SPMD: every thread runs the body; iterations of ``PARALLEL`` loops (outermost only) are divided
    among the threads, statements outside of any parallel loop are run by thread 0 alone.
    The last ``results`` of ``params`` are written, the others only read.
    ``spans`` names the model's nodes that ended up here.
    """

    name: str
    params: tuple[Buffer, ...]
    body: Stmt
    results: int = 1
    spans: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        return self.params[: len(self.params) - self.results]

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        return self.params[len(self.params) - self.results :]

    def __str__(self) -> str:
        return printer(self)


def seq(*stmts: Stmt | None) -> Stmt:
    """Statements in order, nested sequences flattened, ``None`` left out."""
    flat: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, Seq):
            flat.extend(stmt.stmts)
        elif stmt is not None:
            flat.append(stmt)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


Body: TypeAlias = Callable[..., "Stmt"]


def loop(extent: Index, body: Callable[[LoopVar], Stmt], kind: LoopKind = LoopKind.SERIAL, name: str = "i") -> Stmt:
    """``for name in range(extent): body(name)``."""
    var = LoopVar(name)
    return For(var, as_index(extent), body(var), kind)


def nest(extents: Sequence[int], body: Body, kind: LoopKind = LoopKind.SERIAL, names: str | None = None) -> Stmt:
    """Nested loops over ``extents``; ``body`` gets one variable per loop."""
    labels = names or "ijklmnopq"
    variables = [LoopVar(labels[d % len(labels)]) for d in range(len(extents))]
    stmt = body(*variables)
    for var, extent in zip(reversed(variables), reversed(list(extents)), strict=True):
        stmt = For(var, Const(extent), stmt, kind)
    return stmt


def store(buffer: Buffer, index: Sequence[Index], value: LoopExpr) -> Store:
    assert value.dtype == buffer.dtype, f"{buffer.name} is {buffer.dtype}, the value {value.dtype}"
    return Store(buffer, tuple(as_index(i) for i in index), value)
