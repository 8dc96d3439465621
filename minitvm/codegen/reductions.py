"""Default loop nests for reductions: along the result's last axis in lanes, or along the reduction's.

What is left over of either is a vector too, a shorter one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from minitvm.codegen.partition import Segment, segments
from minitvm.codegen.spread import Columns, in_lanes, in_vectors, lanes_of, spread, unflatten
from minitvm.ir.compute import identity_of
from minitvm.ir.decision import Declined, decide
from minitvm.ir.loop import (
    Alloc,
    Binary,
    Buffer,
    Cast,
    Const,
    For,
    If,
    LoopExpr,
    LoopKind,
    LoopVar,
    Reduce,
    Select,
    Stmt,
    Store,
    all_of,
    binary,
    expr_children,
    intrin,
    loop,
    rebuild_expr,
    select,
    seq,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.loop.affine import depends_on, loads, stride_along, vectorizes
from minitvm.ir.loop.interval import Range
from minitvm.target import MachineModel

_COMBINE = {"sum": "add", "dot": "add", "prod": "mul", "max": "max", "min": "min"}
_IN_FLIGHT = 4
"""Vectors that a reduction keeps in flight, to hide the latency of the addition."""
_FEWEST_LANES = 4
MOST_APART = 8
"""Elements between what neighbouring lanes read, so that whole vectors are read and shuffled."""


def reduction_nest(
    out: Buffer,
    axes: Sequence[LoopVar],
    value: LoopExpr,
    ranges: Mapping[LoopVar, Range],
    machine: MachineModel,
    parallel: bool,
) -> Stmt:
    """Vectorized along the output's last axis where loads are near each other there, else along the reduction's.

    ``ranges`` of ``axes`` and of the reductions' variables.
    """
    lanes = lanes_of(value, out.dtype, machine)
    parts = segments(value, axes[-1], out.shape[-1], ranges) if axes else []
    if parts and out.row_major_strides[-1] == 1 and _reads_near(parts, axes[-1], lanes):
        decide("schedule", out.name, f"each lane reduces for a result of its own, {lanes} lanes")
        return spread(out.shape[:-1], [_blocks(out, axes, part, lanes) for part in parts], machine, parallel)

    def element(index: Sequence[LoopExpr]) -> Stmt:
        at = substitute_vars(value, dict(zip(axes, index, strict=True)))
        return _scalar_reductions(at, lambda done: Store(out, tuple(index), done), machine)

    if not axes:
        return element(())
    decide("schedule", out.name, Declined("results in lanes: they are few, or what neighbours read lies apart"))
    return loop(math.prod(out.shape), lambda flat: element(unflatten(flat, out.shape)), _kind(parallel), name="element")


def _reads_near(parts: Sequence[Segment], last: LoopVar, lanes: int) -> bool:
    """Whether neighbouring results read neighbouring elements, or, of a short reduction, elements a few apart."""
    longest = max(parts, key=lambda part: part.count)
    if longest.count < min(_FEWEST_LANES, lanes) and len(parts) == 1:
        return False
    if vectorizes(longest.value, last):
        return True
    strides = [stride_along(load.buffer, load.index, last) for load in loads(longest.value)]
    short = all(reduce.axes[-1][1] <= MOST_APART for reduce in outer_reductions(longest.value))
    return short and all(stride is not None and 0 <= stride <= MOST_APART for stride in strides)


def _kind(parallel: bool) -> LoopKind:
    return LoopKind.PARALLEL if parallel else LoopKind.SERIAL


# --- each lane an element of the result -----------------------------------------------------------------------


def _blocks(out: Buffer, axes: Sequence[LoopVar], part: Segment, lanes: int) -> Columns:
    """Each lane reduces its own output element, a few vectors at once."""

    def block(row: Sequence[LoopExpr], start: LoopExpr, width: int) -> Stmt:
        at = substitute_vars(part.value, dict(zip(axes[:-1], row, strict=True)))
        return _lane_block(out, row, start + part.start, width, axes[-1], at)

    vectors = -(-part.count // lanes)
    return Columns(part.count, min(part.count, lanes * -(-vectors // max(1, vectors // _IN_FLIGHT))), block)


def _lane_block(
    out: Buffer, prefix: Sequence[LoopExpr], start: LoopExpr, width: int, last: LoopVar, value: LoopExpr
) -> Stmt:
    """Accumulate ``width`` neighbouring outputs at once; all reductions below ``value`` one after the other."""
    found = outer_reductions(value)
    accumulators = [Buffer("acc", (width,), reduce.dtype, "local") for reduce in found]
    stmts: list[Stmt] = []
    for reduce, acc in zip(found, accumulators, strict=True):
        stmts.append(in_lanes(width, lambda k, r=reduce, a=acc: Store(a, (k,), identity_of(r.kind, r.dtype))))  # type: ignore[misc]
        guard, reduced = _guarded(reduce, last)
        update = in_lanes(
            width,
            lambda k, r=reduce, a=acc, x=reduced: Store(  # type: ignore[misc]
                a, (k,), combine(r.kind, a[k], substitute_vars(x, {last: start + k}))
            ),
        )
        stmts.append(_over(reduce.axes, update, guard))

    def result(lane: LoopExpr) -> Stmt:
        done: dict[LoopExpr, LoopExpr] = {r: a[lane] for r, a in zip(found, accumulators, strict=True)}
        return Store(out, (*prefix, start + lane), substitute_vars(replace_nodes(value, done), {last: start + lane}))

    body: Stmt = seq(*stmts, in_lanes(width, result))
    for acc in reversed(accumulators):
        body = Alloc(acc, body)
    return body


def combine(kind: str, left: LoopExpr, right: LoopExpr) -> LoopExpr:
    """One more element; products of other operators, inlined into a ``"sum"``, keep their rounding."""
    if kind == "dot" and isinstance(right, Binary) and right.op == "mul":
        return intrin("fma", right.lhs, right.rhs, left)
    return binary(_COMBINE[kind], left, right)


def outer_reductions(value: LoopExpr) -> list[Reduce]:
    """The reductions below ``value`` that are not inside another, each once."""
    found = [node for node in walk_exprs(value) if isinstance(node, Reduce)]
    inner = {n for node in found for n in walk_exprs(node.value)}
    return [node for node in found if node not in inner]


def replace_nodes(expr: LoopExpr, replacement: Mapping[LoopExpr, LoopExpr]) -> LoopExpr:
    """``expr`` with some parts replaced.  Works top-down: what is replaced is not rebuilt."""
    done = dict(replacement)

    def walk(node: LoopExpr) -> LoopExpr:
        if node not in done:
            done[node] = rebuild_expr(node, [walk(child) for child in expr_children(node)])
        return done[node]

    return walk(expr)


def _over(axes: Sequence[tuple[LoopVar, int]], body: Stmt, guard: LoopExpr | None = None) -> Stmt:
    """Loops over a reduction; a short innermost one, as of a window, is written out.  ``guard`` is asked as far
    outside as it is known."""
    for depth, (var, extent) in enumerate(reversed(axes)):
        if guard is not None and depends_on(guard, var):
            body, guard = If(guard, body), None
        short = depth == 0 and len(axes) > 1 and extent <= MOST_APART
        body = For(var, Const(extent), body, LoopKind.UNROLLED if short else LoopKind.SERIAL)
    return body if guard is None else If(guard, body)


def _guarded(reduce: Reduce, last: LoopVar) -> tuple[LoopExpr | None, LoopExpr]:
    """A condition that all lanes share, and what is reduced where it holds; elsewhere nothing is to be done."""
    match reduce.value:
        case Select(condition, then, orelse) | Cast(Select(condition, then, orelse), _):
            if orelse == identity_of(reduce.kind, then.dtype):
                parts = _conjuncts(condition)
                shared = [c for c in parts if not depends_on(c, last) and not loads(c)]
                own = [c for c in parts if c not in shared]
                value = select(all_of(own), then, orelse) if own else then
                return (all_of(shared) if shared else None), value.astype(reduce.dtype)
    return None, reduce.value


def _conjuncts(condition: LoopExpr) -> list[LoopExpr]:
    match condition:
        case Binary("and", a, b) if condition.dtype == "bool":
            return [*_conjuncts(a), *_conjuncts(b)]
    return [condition]


# --- one element of the result after the other ----------------------------------------------------------------


def _scalar_reductions(value: LoopExpr, finish: Callable[[LoopExpr], Stmt], machine: MachineModel) -> Stmt:
    """One output element: every reduction into its accumulator, then ``finish`` with what they are replaced by."""
    found = outer_reductions(value)
    if not found:
        return finish(value)
    reduce = found[0]

    def rest(total: LoopExpr) -> Stmt:
        return _scalar_reductions(replace_nodes(value, {reduce: total}), finish, machine)

    lanes = lanes_of(reduce.value, reduce.dtype, machine)
    last, extent = reduce.axes[-1]
    if extent * 2 > lanes > 1 and _reduces_in_vectors(reduce, last) and not outer_reductions(reduce.value):
        return _vector_reduction(reduce, lanes, rest)
    acc = Buffer("acc", (), reduce.dtype, "local")
    update = _scalar_reductions(reduce.value, lambda v: Store(acc, (), combine(reduce.kind, acc[()], v)), machine)
    body = seq(Store(acc, (), identity_of(reduce.kind, reduce.dtype)), _over(reduce.axes, update), rest(acc[()]))
    return Alloc(acc, body)


def _reduces_in_vectors(reduce: Reduce, last: LoopVar) -> bool:
    strides = [stride_along(load.buffer, load.index, last) for load in loads(reduce.value)]
    return all(s in (0, 1) for s in strides) and depends_on(reduce.value, last)


def _vector_reduction(reduce: Reduce, lanes: int, rest: Callable[[LoopExpr], Stmt]) -> Stmt:
    """Along the reduction's last axis in vectors, several in flight; then across the lanes."""
    last, extent = reduce.axes[-1]
    width = lanes * min(_IN_FLIGHT, 1 << max(0, (extent // lanes).bit_length() - 1))  # a power of two
    acc = Buffer("acc", (width,), reduce.dtype, "local")

    def update(start: LoopExpr, count: int) -> Stmt:
        return in_lanes(
            count,
            lambda k: Store(acc, (k,), combine(reduce.kind, acc[k], substitute_vars(reduce.value, {last: start + k}))),
        )

    zero = identity_of(reduce.kind, reduce.dtype)
    body = seq(
        in_lanes(width, lambda k: Store(acc, (k,), zero)),
        _over(reduce.axes[:-1], in_vectors(extent, width, update)),
        *_across(acc, width, reduce.kind),
        rest(acc[0]),
    )
    return Alloc(acc, body)


def _across(acc: Buffer, width: int, kind: str) -> list[Stmt]:
    """Reduce the lanes to lane 0, halving their number with every step."""
    steps: list[Stmt] = []
    while width > 1:
        width //= 2
        steps.append(in_lanes(width, lambda k, w=width: Store(acc, (k,), combine(kind, acc[k], acc[k + w]))))  # type: ignore[misc]
    return steps
