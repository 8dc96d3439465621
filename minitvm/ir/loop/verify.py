"""Checks a kernel: scopes, dtypes, ranks, loop kinds, indices within their buffers; where its statements stand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from minitvm.errors import CompilerError
from minitvm.ir.dtypes import STORED
from minitvm.ir.loop import (
    BINARY_OPS,
    DOT_OPERANDS,
    INTRINSICS,
    Alloc,
    Barrier,
    Binary,
    Buffer,
    Cast,
    Const,
    CopyAsync,
    CopyCommit,
    CopyWait,
    For,
    If,
    Intrin,
    Kernel,
    Ldmatrix,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Mma,
    Prefetch,
    Reduce,
    Select,
    Shuffle,
    Stmt,
    Store,
    Wgmma,
    WgmmaSync,
    dependency_order,
    stmt_children,
    stmt_exprs,
)
from minitvm.ir.loop.affine import Ranges, bounds, counter, depends_on
from minitvm.ir.loop.scalar import compute
from minitvm.ir.loop.stmt import of_all_threads
from minitvm.ir.loop.text import print_loop_expr, print_stmt

_GPU = frozenset(LoopKind) - {LoopKind.SERIAL, LoopKind.PARALLEL, LoopKind.VECTORIZED, LoopKind.UNROLLED}
_THREADS = (LoopKind.THREAD_Z, LoopKind.THREAD_Y, LoopKind.THREAD_X)
_BITWISE = frozenset({"and", "or", "xor"})
_SHIFTS = frozenset({"shl", "shr"})
_SHOWN_LINES = 6
_MOST_PATHS = 64

MAX_POINTS = 1 << 14
"""Loop nests with more iterations are looked at in their corners and in as many points drawn at random."""

Guard: TypeAlias = tuple[LoopExpr, bool]
Guards: TypeAlias = tuple[Guard, ...]


def verify_kernel(kernel: Kernel) -> None:
    """Raise :class:`CompilerError`, with the statement, where ``kernel`` is not well formed.

    * buffers are parameters or used inside their ``Alloc``; inputs are never stored to; results and local memory are
      not read before anything is stored to them;
    * both sides of an operator, of a ``select`` and of a store have one dtype; conditions are ``bool``, indices
      ``int64``, as many as the buffer has dimensions;
    * loop variables are bound, once; only serial loops have an extent that varies;
    * ``PARALLEL`` loops are outermost (several may be perfectly nested), but for serial loops of all threads, in which
      a barrier stands; ``VECTORIZED`` ones are innermost;
    * no index can leave its buffer, as far as extents are known and conditions can be evaluated.
    """
    for buffer in kernel.params:
        if buffer.scope != "global":
            raise CompilerError(f"{kernel.name}: parameter {buffer.name} has scope {buffer.scope!r}, not 'global'")
    verifier = _Verifier(kernel)
    for stmt, around in places(kernel.body):
        verifier.statement(stmt, around)


class _Verifier:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.stored = set(kernel.inputs)
        self.around = Around()

    def reject(self, message: str, stmt: Stmt, hint: str | None = None) -> CompilerError:
        lines = print_stmt(stmt).splitlines()
        shown = lines[:_SHOWN_LINES] + ["..."] * (len(lines) > _SHOWN_LINES)
        return CompilerError(f"{self.kernel.name}: {message}", where=shown, hint=hint)

    def is_live(self, buffer: Buffer) -> bool:
        return buffer in self.around.buffers or buffer in self.kernel.params

    # --- statements -------------------------------------------------------------------------------------------

    def statement(self, stmt: Stmt, around: Around) -> None:
        """The statement itself, not what is inside of it."""
        self.around = around
        self.expressions(stmt)
        match stmt:
            case For():
                self.loop(stmt, around.loops)
            case Store():
                self.store(stmt)
            case If(condition) if condition.dtype != "bool":
                raise self.reject(f"the condition is {condition.dtype}, not bool", stmt)
            case Prefetch(element) if not isinstance(element, Load):
                raise self.reject("a prefetch is of an element of memory", stmt)
            case Alloc(buffer):
                self.alloc(stmt, buffer, around.loops)
            case Mma():
                self.mma(stmt)
            case Ldmatrix():
                self.matrices(stmt)
            case Wgmma():
                self.group_product(stmt)
            case WgmmaSync(what):
                self.together(f"a warpgroup's {what}", stmt)
            case CopyCommit() | CopyWait():
                self.together("copies are committed and waited for", stmt)
            case Barrier():
                if any(f.kind is LoopKind.PARALLEL for f in around.loops):
                    raise self.reject("a barrier inside a parallel loop: not all threads reach it equally often", stmt)

    def loop(self, stmt: For, loops: tuple[For, ...]) -> None:
        if stmt.var in self.around.variables:
            raise self.reject(f"the loop variable {stmt.var.name} is bound by a loop around it already", stmt)
        if stmt.extent.dtype != "int64":
            raise self.reject(f"the extent is {stmt.extent.dtype}, not int64", stmt)
        if stmt.kind is not LoopKind.SERIAL and not isinstance(stmt.extent, Const):
            raise self.reject(f"only serial loops have an extent that varies, this one is {stmt.kind.value}", stmt)
        self.kinds(stmt, loops)

    def kinds(self, stmt: For, loops: tuple[For, ...]) -> None:
        outer = loops[-1] if loops else None
        if outer is not None and outer.kind is LoopKind.VECTORIZED:
            raise self.reject(f"a {stmt.kind.value} loop inside a vectorized one", outer, "vectorize innermost loops")
        if stmt.kind is LoopKind.PARALLEL and outer is not None:
            perfect = all(f.kind is LoopKind.PARALLEL for f in loops) and outer.body is stmt
            if not perfect and not all(map(of_all_threads, loops)):
                raise self.reject("a parallel loop inside another loop", outer, "only outermost loops can be parallel")
        if stmt.kind in _GPU and any(f.kind is stmt.kind for f in loops):
            raise self.reject(f"{stmt.kind.value} is bound to two loops around each other", stmt)

    def store(self, stmt: Store) -> None:
        self.access(stmt.buffer, stmt.index, stmt, self.around)
        if stmt.buffer in self.kernel.inputs:
            raise self.reject(f"stores to {stmt.buffer.name}, an input", stmt)
        if stmt.value.dtype != stmt.buffer.dtype:
            raise self.reject(f"{stmt.buffer.name} is {stmt.buffer.dtype}, the value {stmt.value.dtype}", stmt)
        if isinstance(stmt, CopyAsync):
            self.copy(stmt)
        self.stored.add(stmt.buffer)

    def copy(self, stmt: CopyAsync) -> None:
        """From global to shared memory, as it is."""
        source = stmt.source()
        if source is None or source[0].buffer.scope != "global" or stmt.buffer.scope != "shared":
            raise self.reject("a copy is of an element of global memory, or 0, to shared memory", stmt)
        if np.dtype(stmt.buffer.dtype).itemsize < 2:
            raise self.reject(f"a copy of {stmt.buffer.dtype}, which has less than 2 bytes", stmt)

    def mma(self, stmt: Mma) -> None:
        """Sums are registers that hold something; all is float32, or pairs of shorter floats in words."""
        self.whole_warps("a product", stmt)
        wanted = "float32" if stmt.kind == "tf32" else "uint32"
        fits = {e.dtype for e in (*stmt.a, *stmt.b)} == {wanted} and (len(stmt.a), len(stmt.b)) == (4, 2)
        if not fits or (stmt.sums.dtype, stmt.sums.scope) != ("float32", "local"):
            raise self.reject(f"a product takes 4 and 2 elements of {wanted} and adds to local memory of float32", stmt)
        for number in (0, 3):
            index = (*stmt.at, Const(number))
            self.read(Load(stmt.sums, index), stmt)
            self.access(stmt.sums, index, stmt, self.around)

    def matrices(self, stmt: Ldmatrix) -> None:
        """Rows are in shared memory, of elements of two bytes; they become words in registers."""
        self.whole_warps("a load of matrices", stmt)
        row, to = stmt.row, stmt.to
        if not isinstance(row, Load) or row.buffer.scope != "shared" or np.dtype(row.dtype).itemsize != 2:
            raise self.reject("a row is an element of 2 bytes in shared memory", stmt)
        if (to.dtype, to.scope) != ("uint32", "local") or stmt.count not in (2, 4):
            raise self.reject("2 or 4 matrices become local memory of uint32, as long in its last dimension", stmt)
        self.access(row.buffer, (*row.index[:-1], row.index[-1] + 7), stmt, self.around)
        self.access(to, (*stmt.at, Const(0)), stmt, self.around)
        self.stored.add(to)

    def group_product(self, stmt: Wgmma) -> None:
        """Factors are rows of 128 bytes in swizzled memory, sums registers that hold something."""
        self.whole_warps("a product of a warpgroup", stmt, 128)
        for factor in (stmt.a, stmt.b):
            buffer = factor.buffer if isinstance(factor, Load) else None
            if buffer is None or not buffer.swizzled or buffer.dtype != stmt.kind:
                raise self.reject(f"a warpgroup's factor is {stmt.kind} in swizzled shared memory", stmt)
        *_, pieces, four = stmt.sums.shape
        if (stmt.sums.dtype, stmt.sums.scope, four) != ("float32", "local", 4) or not 1 <= pieces <= 32:
            raise self.reject("a warpgroup adds to local memory of float32, at most 32 pieces of 4", stmt)
        for number in ((0, 0), (pieces - 1, 3)):
            index = (*stmt.at, *map(Const, number))
            self.read(Load(stmt.sums, index), stmt)
            self.access(stmt.sums, index, stmt, self.around)

    def alloc(self, stmt: Stmt, buffer: Buffer, loops: tuple[For, ...]) -> None:
        if self.is_live(buffer):
            raise self.reject(f"{buffer.name} is allocated twice", stmt)
        if loops and loops[-1].kind is LoopKind.VECTORIZED:
            raise self.reject(f"{buffer.name} is allocated inside a vectorized loop", loops[-1])
        rows = buffer.shape[-1] * np.dtype(buffer.dtype).itemsize == 128 if buffer.swizzled else True
        if not rows or (buffer.swizzled and buffer.scope != "shared"):
            raise self.reject(f"{buffer.name} is swizzled, but not shared memory of rows of 128 bytes", stmt)
        self.stored.discard(buffer)

    # --- expressions ------------------------------------------------------------------------------------------

    def expressions(self, stmt: Stmt) -> None:
        """The expressions that stand in ``stmt`` itself."""
        roots = stmt_exprs(stmt)
        nodes = dependency_order(roots)
        named = {a for e in nodes if isinstance(e, Intrin) and e.name == "same_memory" for a in e.args}
        for expr in nodes:
            problem = self.problem(expr)
            if problem is not None:
                raise self.reject(f"{problem} in {print_loop_expr(expr)}", stmt)
            if isinstance(expr, Load) and expr not in named:
                self.read(expr, stmt)
        self.shuffles(roots, stmt)
        for load, paths in _suspects(roots, lambda e: e not in named and self.leaves(e, stmt)):
            for guards in paths:
                self.access(load.buffer, load.index, stmt, self.around.where(*guards))

    def shuffles(self, roots: Sequence[LoopExpr], stmt: Stmt) -> None:
        """Warps are whole, and get there: no choice, condition or number of rounds tells their lanes apart."""
        nodes = dependency_order(roots)
        if not any(isinstance(node, Shuffle) for node in nodes):
            return
        sides = [side for node in nodes if isinstance(node, Select) for side in (node.then, node.orelse)]
        if any(isinstance(node, Shuffle) for node in dependency_order(sides)):
            raise self.reject("a shuffle on one side of a select: not all threads of a warp get there", stmt)
        self.whole_warps("a shuffle", stmt)

    def whole_warps(self, what: str, stmt: Stmt, of: int = 32) -> None:
        threads = {f.kind: f for f in self.around.loops if f.kind in _THREADS}
        count = math.prod(bounds(f.extent, {}).high or 0 for f in threads.values())
        if not threads or count % of or [*threads] != [kind for kind in _THREADS if kind in threads]:
            raise self.reject(f"{what} outside of whole warps: in loops over threads z, y and x, {of} or more", stmt)
        self.together(what, stmt)

    def together(self, what: str, stmt: Stmt) -> None:
        """All threads get there."""
        lanes = [f.var for f in self.around.loops if f.kind in _THREADS]
        if any(depends_on(asked, lane) for asked, _ in self.around.conditions for lane in lanes):
            raise self.reject(f"{what} under a condition that tells threads apart", stmt)

    def leaves(self, load: Load, stmt: Stmt) -> bool:
        """True if a load would leave its buffer if no select around it kept it from running."""
        self.shape(load.buffer, load.index, stmt)
        return out_of_bounds(self.around, load.buffer, load.index) is not None

    def problem(self, expr: LoopExpr) -> str | None:
        """What is wrong with one node, its operands aside."""
        match expr:
            case LoopVar(name):
                return None if expr in self.around.variables else f"the loop variable {name} is bound by no loop"
            case Binary(op, lhs, rhs):
                return _binary_problem(op, lhs.dtype, rhs.dtype)
            case Select(condition, then, orelse):
                if condition.dtype != "bool":
                    return f"the condition is {condition.dtype}, not bool,"
                return None if then.dtype == orelse.dtype else f"{then.dtype} and {orelse.dtype}"
            case Intrin(name, args):
                if INTRINSICS.get(name) != len(args):
                    return f"{name} does not take {len(args)} operands" if name in INTRINSICS else f"unknown {name}"
                if name == "same_memory":
                    return None if all(isinstance(a, Load) for a in args) else "same_memory is of two elements"
                if args[0].dtype in STORED:
                    return f"{name} of {args[0].dtype}, which is only stored,"
                if name in DOT_OPERANDS and args[0].dtype != "int32":
                    return f"words are int32, not {args[0].dtype},"
                if name == "ldexp":
                    return None if [a.dtype for a in args] == ["float32", "int32"] else "operands of other dtypes"
                return None if len({a.dtype for a in args}) == 1 else "operands of different dtypes"
            case Reduce():
                return "a reduction that is not lowered to loops"
            case Shuffle(value, mask):
                known = 0 < mask < 32 and value.dtype not in STORED
                return None if known else f"a shuffle of {value.dtype} by {mask}"
            case Load() | Const() | Cast():
                return None
        return f"{type(expr).__name__} is not part of the loop IR"

    def read(self, load: Load, stmt: Stmt) -> None:
        buffer = load.buffer
        if self.is_live(buffer) and buffer not in self.stored:
            what = "a result" if buffer in self.kernel.outputs else f"{buffer.scope} memory"
            raise self.reject(f"reads {buffer.name}, {what}, before anything is stored there", stmt)

    def access(self, buffer: Buffer, index: tuple[LoopExpr, ...], stmt: Stmt, around: Around) -> None:
        self.shape(buffer, index, stmt)
        found = out_of_bounds(around, buffer, index)
        if found is not None:
            raise self.reject(found, stmt)

    def shape(self, buffer: Buffer, index: tuple[LoopExpr, ...], stmt: Stmt) -> None:
        if not self.is_live(buffer):
            raise self.reject(f"{buffer.name} is neither a parameter nor allocated around here", stmt)
        if len(index) != len(buffer.shape):
            raise self.reject(f"{buffer.name} has {len(buffer.shape)} dimensions, {len(index)} indices given", stmt)
        for i in index:
            if i.dtype != "int64":
                raise self.reject(f"the index {print_loop_expr(i)} is {i.dtype}, not int64", stmt)


def _suspects(roots: Sequence[LoopExpr], suspicious: Callable[[Load], bool]) -> list[tuple[Load, list[Guards]]]:
    """The suspicious loads, each with the conditions of the selects around it, once per way to reach it.

    A load that can be reached in more than :data:`_MOST_PATHS` ways is left out.
    """
    order = dependency_order(roots)
    loads = [e for e in order if isinstance(e, Load) and suspicious(e)]
    above: set[LoopExpr] = set(loads)
    for node in order:
        if any(child in above for child in node.operands):
            above.add(node)
    paths: dict[LoopExpr, list[Guards]] = {root: [()] for root in roots}
    for node in reversed(order):
        for number, child in enumerate(node.operands if node in above else ()):
            guard = ((node.condition, number == 1),) if isinstance(node, Select) and number else ()
            reached = paths.setdefault(child, [])
            reached.extend((*guards, *guard) for guards in paths[node][: _MOST_PATHS + 1 - len(reached)])
    return [(load, paths[load]) for load in loads if len(paths[load]) <= _MOST_PATHS]


def _binary_problem(op: str, lhs: str, rhs: str) -> str | None:
    if op not in BINARY_OPS:
        return f"unknown operator {op!r}"
    if lhs != rhs:
        return f"{lhs} and {rhs}"
    if lhs in STORED:
        return f"{op} of {lhs}, which is only stored,"
    if (op in _BITWISE or op in _SHIFTS) and lhs.startswith("float"):
        return f"{op} of {lhs}"
    return f"{op} of bool" if op in _SHIFTS and lhs == "bool" else None


# --- the places of a kernel ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Around:
    """The loops, conditions and allocations around a place, the outermost first."""

    loops: tuple[For, ...] = ()
    variables: Ranges = field(default_factory=dict)
    conditions: tuple[Guard, ...] = ()
    buffers: tuple[Buffer, ...] = ()

    def inside(self, loop: For) -> Around:
        varies = () if isinstance(loop.extent, Const) else ((Binary("lt", loop.var, loop.extent), True),)
        variables = {**self.variables, loop.var: counter(loop.extent, self.variables)}
        return replace(self, loops=(*self.loops, loop), variables=variables, conditions=(*self.conditions, *varies))

    def where(self, *guards: Guard) -> Around:
        return replace(self, conditions=(*self.conditions, *guards))


def places(stmt: Stmt, around: Around | None = None) -> Iterator[tuple[Stmt, Around]]:
    """Every statement with what is around it, outer before inner, in program order."""
    around = around or Around()
    yield stmt, around
    for number, part in enumerate(stmt_children(stmt)):
        match stmt:
            case For():
                inner = around.inside(stmt)
            case Alloc(buffer):
                inner = replace(around, buffers=(*around.buffers, buffer))
            case If(condition):
                inner = around.where((condition, number == 0))
            case _:
                inner = around
        yield from places(part, inner)


def out_of_bounds(around: Around, buffer: Buffer, index: Sequence[LoopExpr]) -> str | None:
    """A sentence naming an index that leaves ``buffer`` and one iteration where it does, or ``None``."""
    if any(reach.is_empty for reach in around.variables.values()):  # inside a loop that never runs
        return None
    for axis, (expr, extent) in enumerate(zip(index, buffer.shape, strict=True)):
        if bounds(expr, around.variables).within(0, extent - 1):
            continue
        found = _violation(around, expr, extent)
        if found is not None:
            return f"index {print_loop_expr(expr)} leaves dimension {axis} of {buffer.name}, {extent} long: {found}"
    return None


def _violation(around: Around, expr: LoopExpr, extent: int) -> str | None:
    """An iteration that all conditions allow, as far as they can be evaluated, where ``expr`` is out of bounds."""
    conditions = [c for c, _ in around.conditions]
    needed = {n for n in dependency_order([expr, *conditions]) if isinstance(n, LoopVar)}
    highs = {v: r.high for v, r in around.variables.items() if v in needed}
    if None in highs.values():
        return None
    points = _points({v: high + 1 for v, high in highs.items() if high is not None})
    value, *truths = (evaluate(asked, points) for asked in (expr, *conditions))
    if value is None:
        return None
    wrong = (value < 0) | (value >= extent)
    for truth, (_, holds) in zip(truths, around.conditions, strict=True):
        if truth is None:
            return None  # depends on data: trusted
        wrong = wrong & (truth == holds)
    if not np.any(wrong):
        return None
    first = int(np.argmax(wrong))
    at = ", ".join(f"{v.name}={int(points[v][first])}" for v in points)
    return f"{int(np.broadcast_to(value, np.shape(wrong)).flat[first])}{' at ' + at if at else ''}"


def _points(extents: dict[LoopVar, int]) -> dict[LoopVar, np.ndarray]:
    """Every iteration of a small nest; corners and random ones of a large one."""
    if math.prod(extents.values()) <= MAX_POINTS:
        grids = np.meshgrid(*[np.arange(n) for n in extents.values()], indexing="ij")
        return {v: g.ravel() for v, g in zip(extents, grids, strict=True)}
    corners = list(itertools.islice(itertools.product(*[(0, n - 1) for n in extents.values()]), MAX_POINTS))
    rng = np.random.default_rng(0)
    return {
        v: np.concatenate([np.array([c[i] for c in corners]), rng.integers(0, n, MAX_POINTS)])
        for i, (v, n) in enumerate(extents.items())
    }


def evaluate(expr: LoopExpr, points: Mapping[LoopVar, np.ndarray]) -> np.ndarray | None:
    """An index or a condition at every point; ``None`` where it depends on data."""
    found: dict[LoopExpr, np.ndarray] = dict(points.items())
    for node in dependency_order([expr]):
        if isinstance(node, Load):
            return None
        if node not in found:
            with np.errstate(all="ignore"):
                found[node] = compute(node, [found[c] for c in node.operands])
    return found[expr]
