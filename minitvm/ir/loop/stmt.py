"""The loop IR's statements and kernels, how they are built, walked and rewritten (see :mod:`minitvm.ir.loop`).

A rewrite gives the same object back where nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from functools import partial
from operator import attrgetter, is_
from typing import Any, NamedTuple, TypeAlias, TypeVar

from minitvm.errors import IRError
from minitvm.ir.dims import Dim
from minitvm.ir.loop.expr import (
    Binary,
    Buffer,
    Cast,
    Const,
    Index,
    Intrin,
    Load,
    LoopExpr,
    LoopVar,
    Reduce,
    Select,
    Shuffle,
    all_of,
    as_index,
    binary,
)
from minitvm.shown import Shown

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
    __slots__ = ("summary",)


class Summary(NamedTuple):
    """What is at or below a statement, found once."""

    mentions: frozenset[LoopVar | Buffer]
    loops: tuple[LoopVar, ...]
    """The variables of loops, in program order."""
    memory: tuple[Buffer, ...]
    """The buffers that are allocated, in program order."""


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
class CopyAsync(Store):
    """A store to a block's shared memory, of an element of global memory or of 0, that is late.

    ``value`` is a load, or a choice of a load or 0.  Nothing may be read there until the thread that copies has
    committed (:class:`CopyCommit`) and waited (:class:`CopyWait`); other threads need a barrier after that.
    """

    def source(self) -> tuple[Load, tuple[LoopExpr, ...]] | None:
        """What is loaded, and the conditions without which there is a 0; ``None`` of any other value."""
        conditions, value = [], self.value
        while isinstance(value, Select) and isinstance(value.orelse, Const) and not value.orelse.value:
            conditions.append(value.condition)
            value = value.then
        return (value, tuple(conditions)) if isinstance(value, Load) else None


@dataclass(frozen=True, slots=True, eq=False)
class CopyCommit(Stmt):
    """The copies that a thread began since the last one are a group; all threads of a block get here."""


@dataclass(frozen=True, slots=True, eq=False)
class CopyWait(Stmt):
    """Until all groups of a thread's copies have arrived but the last ``left``; all threads of a block get here."""

    left: int


@dataclass(frozen=True, slots=True, eq=False)
class Prefetch(Stmt):
    """The cache line of an element, a load, comes to a cache's ``level`` meanwhile; nothing waits for it."""

    element: LoopExpr
    level: int = 2


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


@dataclass(frozen=True, slots=True, eq=False)
class Mma(Stmt):
    """A warp adds a product of 16 x 8 by 8 x 8 elements, rounded to TF32, to its sums of float32.

    The matrices are spread over its threads as PTX's ``mma.m16n8k8`` has it: with ``g, t = thread // 4, thread % 4`` in
    the warp, ``a`` are elements (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4) of the left-hand one, ``b`` (t, g) and
    (t + 4, g) of the right-hand one, ``sums[(*at, 0 to 3)]`` (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1).

    ``kind`` "float16" or "bfloat16": 16 x 16 by 16 x 8 elements (``mma.m16n8k16``), two neighbours of the depth in a
    word of uint32 wherever there is one above, the first of them in its low bits.
    """

    sums: Buffer
    at: tuple[LoopExpr, ...]
    a: tuple[LoopExpr, ...]
    b: tuple[LoopExpr, ...]
    kind: str = "tf32"

    def over(self, exprs: Sequence[LoopExpr]) -> Mma:
        """The same of other expressions, in the order of :func:`stmt_exprs`."""
        at, given = tuple(exprs[: len(self.at)]), tuple(exprs[len(self.at) :])
        return Mma(self.sums, at, given[: len(self.a)], given[len(self.a) :], self.kind)


@dataclass(frozen=True, slots=True, eq=False)
class Ldmatrix(Stmt):
    """A warp gets matrices of 8 x 8 elements of 2 bytes from shared memory, spread as :class:`Mma` wants its words.

    ``row`` is in thread ``8 m + i`` the first element of row ``i`` of matrix ``m``; its 8 elements lie on 16 bytes.
    ``to[(*at, m)]``, as many as its last dimension is long, 2 or 4, becomes elements (g, 2 t) and (g, 2 t + 1) of
    matrix ``m``, of its transpose where ``transposed``.  Of two matrices there are rows in threads below 16; others
    are read by nobody, but have to be in memory.
    """

    to: Buffer
    at: tuple[LoopExpr, ...]
    row: LoopExpr
    transposed: bool = False

    @property
    def count(self) -> int:
        """The number of matrices."""
        return self.to.shape[-1]

    def over(self, exprs: Sequence[LoopExpr]) -> Ldmatrix:
        *at, row = exprs
        return Ldmatrix(self.to, tuple(at), row, self.transposed)


@dataclass(frozen=True, slots=True, eq=False)
class Wgmma(Stmt):
    """A warpgroup, 128 threads of four warps in a row, begins to add a product of 64 x 16 by 16 x N elements of two
    bytes to its sums of float32 (PTX's ``wgmma.mma_async.m64nNk16``).

    ``a`` and ``b`` are the first elements of both factors in shared memory that is ``swizzled``, the depth last: (64,
    16) and (N, 16); ``transposed``: ``b`` lies as (N / 64, 16, 64).  With ``w, g, t = warp, lane // 4, lane % 4``,
    ``sums[(*at, j, 0 to 3)]`` are elements (16 w + g, 8 j + 2 t), the next one, and the same of row 16 w + g + 8.

    Until it has been committed and waited for (:class:`WgmmaSync`), nobody else may touch sums or factors.
    """

    sums: Buffer
    at: tuple[LoopExpr, ...]
    a: LoopExpr
    b: LoopExpr
    kind: str = "float16"
    transposed: bool = False

    def over(self, exprs: Sequence[LoopExpr]) -> Wgmma:
        *at, a, b = exprs
        return Wgmma(self.sums, tuple(at), a, b, self.kind, self.transposed)


@dataclass(frozen=True, slots=True, eq=False)
class WgmmaSync(Stmt):
    """What keeps products of warpgroups (:class:`Wgmma`) in order; all threads of a block get here.

    ``what``: "shared", products see what this thread stored to shared memory before, once others have met it at a
    barrier; "sums", they see this thread's registers; "commit", those begun since the last one are a group; "wait",
    until all groups have ended but the last ``left``.
    """

    what: str
    left: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class Kernel(Shown):
    """One fused group as loops.

    CPU kernels are SPMD: every thread runs the body; iterations of ``PARALLEL`` loops (outermost, or in serial
    loops with a barrier, which every thread goes through) are divided among the threads, statements outside of any
    parallel loop are run by thread 0 alone.
    The last ``results`` of ``params`` are written, the others only read.
    ``spans`` names the model's nodes that ended up here.
    ``sizes`` are the symbols of its dimensions; a launch gives each a number.
    """

    name: str
    params: tuple[Buffer, ...]
    body: Stmt
    results: int = 1
    spans: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        return self.params[: len(self.params) - self.results]

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        return self.params[len(self.params) - self.results :]

    def __str__(self) -> str:
        return printer(self)

    def __repr__(self) -> str:
        return f"<Kernel {self.name}: {len(self.inputs)} inputs, {self.results} results>"


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


def loop(extent: Index | Dim, body: Body, kind: LoopKind = LoopKind.SERIAL, name: str = "i") -> Stmt:
    """``for name in range(extent): body(name)``."""
    var = LoopVar(name)
    return For(var, as_index(extent), body(var), kind)


def nest(extents: Sequence[Dim], body: Body, kind: LoopKind = LoopKind.SERIAL, names: str | None = None) -> Stmt:
    """Nested loops over ``extents``; ``body`` gets one variable per loop."""
    labels = names or "ijklmnopq"
    variables = [LoopVar(labels[d % len(labels)]) for d in range(len(extents))]
    stmt = body(*variables)
    for var, extent in zip(reversed(variables), reversed(list(extents)), strict=True):
        stmt = For(var, as_index(extent), stmt, kind)
    return stmt


def guarded(conditions: Sequence[LoopExpr], body: Stmt) -> Stmt:
    """``body`` where all conditions hold."""
    return If(all_of(conditions), body) if conditions else body


def store(buffer: Buffer, index: Sequence[Index], value: LoopExpr) -> Store:
    assert value.dtype == buffer.dtype, f"{buffer.name} is {buffer.dtype}, the value {value.dtype}"
    return Store(buffer, tuple(as_index(i) for i in index), value)


# --- walks and rewrites ------------------------------------------------------------------------------------------

T = TypeVar("T", bound=Hashable)

About: TypeAlias = AbstractSet[LoopVar | Buffer]

_OPERANDS: Callable[[Any], Sequence[Any]] = attrgetter("operands")


def rebuild_expr(expr: LoopExpr, operands: Sequence[LoopExpr]) -> LoopExpr:
    """``expr`` over other operands; itself where they are the same.  Integer arithmetic is folded again."""
    if tuple(operands) == expr.operands:
        return expr
    match expr:
        case Load(buffer, _):
            return Load(buffer, tuple(operands))
        case Binary(op, _, _):
            return binary(op, *operands)
        case Intrin(name, _):
            return Intrin(name, tuple(operands))
        case Select():
            return Select(*operands)
        case Cast(_, dtype):
            return operands[0].astype(dtype)
        case Shuffle(_, mask):
            return Shuffle(operands[0], mask)
        case Reduce(kind, axes, _):
            return Reduce(kind, axes, operands[0])
    return expr


def dependency_order(roots: Sequence[T], operands: Callable[[T], Sequence[T]] = _OPERANDS) -> list[T]:
    """Everything below ``roots`` once, operands before users, left to right; ``operands``: what lies below.

    Raises :class:`IRError` where something lies below itself.
    """
    order: list[T] = []
    done: set[T] = set()
    entered: set[T] = set()
    stack = [*reversed(roots)]
    while stack:
        node = stack[-1]
        if node not in entered:
            entered.add(node)
            below = [child for child in operands(node) if child not in done]
            if not entered.isdisjoint(below):  # entered and not done: this node is on the way to it
                raise IRError(f"the graph has a cycle: a {type(node).__name__} is its own operand")
            if below:
                stack += reversed(below)
                continue
        if node not in done:
            done.add(node)
            order.append(node)
        stack.pop()
    return order


def map_expr(
    expr: LoopExpr,
    visit: Callable[[LoopExpr], LoopExpr],
    done: dict[LoopExpr, LoopExpr] | None = None,
    about: About | None = None,
) -> LoopExpr:
    """Rebuild bottom-up; ``visit`` gets each node over its rewritten operands.  Shared nodes are visited once.

    ``done``: what the same ``visit`` made before, of expressions that share nodes with this one.
    ``about``: the variables and buffers without which a node stays what it is.
    """
    done = {} if done is None else done
    stack = [expr]
    while stack:
        node = stack.pop()
        if node in done:
            continue
        if about is not None and about.isdisjoint(node.mentions):
            done[node] = node
            continue
        made: tuple[Any, ...] = tuple(map(done.get, node.operands))
        if None in made:
            stack.append(node)
            stack += reversed(node.operands)
        else:
            done[node] = visit(node if made == node.operands else rebuild_expr(node, made))
    return done[expr]


def substitute_vars(expr: LoopExpr, values: Mapping[LoopVar, LoopExpr]) -> LoopExpr:
    return map_expr(expr, lambda e: values.get(e, e) if isinstance(e, LoopVar) else e, about=values.keys())


def map_stmt(
    stmt: Stmt,
    on_expr: Callable[[LoopExpr], LoopExpr] = lambda e: e,
    on_stmt: Callable[[Stmt], Stmt] = lambda s: s,
    about: About | None = None,
) -> Stmt:
    """Rebuild a statement bottom-up.  ``on_expr`` gets each whole expression (use :func:`map_expr` inside),
    ``on_stmt`` each statement over its rewritten parts.  The same object comes back where nothing changed.

    ``about``: the variables and buffers without which a statement stays what it is."""

    def walk(node: Stmt) -> Stmt:
        if about is not None and about.isdisjoint(summary(node).mentions):
            return node
        exprs, parts = stmt_exprs(node), stmt_children(node)
        new_exprs, new_parts = [on_expr(e) for e in exprs], [walk(part) for part in parts]
        same = all(map(is_, new_exprs, exprs)) and all(map(is_, new_parts, parts))
        return on_stmt(node if same else _over(node, new_exprs, new_parts))

    return walk(stmt)


def map_nodes(
    stmt: Stmt,
    visit: Callable[[LoopExpr], LoopExpr],
    on_stmt: Callable[[Stmt], Stmt] = lambda s: s,
    about: About | None = None,
) -> Stmt:
    """:func:`map_stmt` by :func:`map_expr`: what statements have in common is visited once."""
    return map_stmt(stmt, partial(map_expr, visit=visit, done={}, about=about), on_stmt, about)


def replace_stmt(stmt: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """A statement with ``new`` where ``old`` stands in it."""
    if stmt is old:
        return new
    if not summary(old).mentions <= summary(stmt).mentions:
        return stmt
    parts = stmt_children(stmt)
    made = [replace_stmt(part, old, new) for part in parts]
    return stmt if all(map(is_, made, parts)) else _over(stmt, stmt_exprs(stmt), made)


def _over(stmt: Stmt, exprs: Sequence[LoopExpr], parts: Sequence[Stmt]) -> Stmt:
    """A statement over others, in the order of :func:`stmt_exprs` and :func:`stmt_children`."""
    match stmt:
        case For(var, _, _, kind):
            return For(var, exprs[0], parts[0], kind)
        case Store(buffer):
            return type(stmt)(buffer, tuple(exprs[:-1]), exprs[-1])
        case Prefetch(_, level):
            return Prefetch(exprs[0], level)
        case Seq():
            return seq(*parts)
        case If():
            return If(exprs[0], *parts)
        case Alloc(buffer):
            return Alloc(buffer, parts[0])
        case Mma() | Ldmatrix() | Wgmma():
            return stmt.over(exprs)
    return stmt


def stmt_children(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside one, in program order."""
    if isinstance(stmt, (For, Alloc)):
        return (stmt.body,)
    if isinstance(stmt, Seq):
        return stmt.stmts
    if isinstance(stmt, If):
        return (stmt.then,) if stmt.orelse is None else (stmt.then, stmt.orelse)
    return ()


def walk_stmts(stmt: Stmt) -> Iterator[Stmt]:
    """Every statement, outer before inner, in program order."""
    stack = [stmt]
    while stack:
        part = stack.pop()
        yield part
        stack += reversed(stmt_children(part))


def summary(stmt: Stmt) -> Summary:
    """What is at or below a statement."""
    found: Summary | None = getattr(stmt, "summary", None)
    if found is None:
        found = _summed_up(stmt)
        object.__setattr__(stmt, "summary", found)
    return found


def _summed_up(stmt: Stmt) -> Summary:
    below = [summary(part) for part in stmt_children(stmt)]
    loops, memory = tuple([v for part in below for v in part.loops]), tuple([b for part in below for b in part.memory])
    own: tuple[LoopVar | Buffer, ...] = ()
    match stmt:
        case For(var):
            own, loops = (var,), (var, *loops)
        case Alloc(buffer):
            own, memory = (buffer,), (buffer, *memory)
        case Store(buffer) | Mma(buffer) | Ldmatrix(buffer) | Wgmma(buffer):
            own = (buffer,)
    mentioned = [*[e.mentions for e in stmt_exprs(stmt)], *[part.mentions for part in below]]
    return Summary(frozenset(own).union(*mentioned), loops, memory)


def allocated(stmt: Stmt) -> tuple[Buffer, ...]:
    """The buffers that live below a statement only: every iteration around it has its own."""
    return summary(stmt).memory


def stmt_exprs(stmt: Stmt) -> tuple[LoopExpr, ...]:
    """The expressions that stand directly in one statement."""
    if isinstance(stmt, For):
        return (stmt.extent,)
    if isinstance(stmt, Store):
        return (*stmt.index, stmt.value)
    match stmt:
        case If(condition, _, _) | Prefetch(condition, _):
            return (condition,)
        case Mma(_, at, a, b):
            return (*at, *a, *b)
        case Ldmatrix(_, at, row):
            return (*at, row)
        case Wgmma(_, at, a, b):
            return (*at, a, b)
    return ()


def walk_exprs(stmt: Stmt | LoopExpr) -> Iterator[LoopExpr]:
    """Every expression node below a statement or an expression, users before operands; shared nodes once."""
    stack = [stmt] if isinstance(stmt, LoopExpr) else [e for s in walk_stmts(stmt) for e in stmt_exprs(s)]
    stack.reverse()
    seen: set[LoopExpr] = set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack += reversed(node.operands)


def of_all_threads(loop: For) -> bool:
    """True if every thread goes through a serial loop, and waits for the others in it."""
    return loop.kind is LoopKind.SERIAL and any(isinstance(s, Barrier) for s in walk_stmts(loop.body))
