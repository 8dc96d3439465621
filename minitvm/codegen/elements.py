"""One element of a result in plain loops: every reduction into an accumulator of its own, then the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minitvm.ir.compute import identity_of
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
    intrin,
    map_expr,
    select,
    seq,
    walk_exprs,
)
from minitvm.ir.loop.affine import depends_on, loads

_COMBINE = {"sum": "add", "dot": "add", "prod": "mul", "max": "max", "min": "min"}
MOST_APART = 8
"""Elements between what neighbouring lanes read, so that whole vectors are read and shuffled; of a short reduction."""


def element(value: LoopExpr, finish: Callable[[LoopExpr], Stmt], lane: LoopVar | None = None) -> Stmt:
    """``finish(value)``, the reductions in ``value`` done before.

    ``lane`` is the variable that will be lanes: what a condition asks of others is asked around the loops inside.
    """
    found = outer_reductions(value)
    if not found:
        return finish(value)
    reduce = found[0]
    acc = Buffer("acc", (), reduce.dtype, "local")
    guard, reduced = (None, reduce.value) if lane is None else _guarded(reduce, lane)
    update = element(reduced, lambda x: Store(acc, (), _combined(reduce.kind, acc[()], x)), lane)
    start = Store(acc, (), identity_of(reduce.kind, reduce.dtype))
    rest = element(map_expr(value, lambda node: acc[()] if node is reduce else node), finish, lane)
    return Alloc(acc, seq(start, _over(reduce.axes, update, guard), rest))


def outer_reductions(value: LoopExpr) -> list[Reduce]:
    """The reductions below ``value`` that are not inside another, each once."""
    found = [node for node in walk_exprs(value) if isinstance(node, Reduce)]
    inner = {n for node in found for n in walk_exprs(node.value)}
    return [node for node in found if node not in inner]


def _combined(kind: str, left: LoopExpr, right: LoopExpr) -> LoopExpr:
    """One more element; products of other operators, inlined into a ``"sum"``, keep their rounding."""
    if kind == "dot" and isinstance(right, Binary) and right.op == "mul":
        return intrin("fma", right.lhs, right.rhs, left)
    return binary(_COMBINE[kind], left, right)


def _over(axes: Sequence[tuple[LoopVar, int]], body: Stmt, guard: LoopExpr | None) -> Stmt:
    """Loops over a reduction; a short innermost one, as of a window, is written out.  ``guard`` is asked as far
    outside as it is known."""
    for depth, (var, extent) in enumerate(reversed(axes)):
        if guard is not None and depends_on(guard, var):
            body, guard = If(guard, body), None
        short = depth == 0 and len(axes) > 1 and extent <= MOST_APART
        body = For(var, Const(extent), body, LoopKind.UNROLLED if short else LoopKind.SERIAL)
    return body if guard is None else If(guard, body)


def _guarded(reduce: Reduce, lane: LoopVar) -> tuple[LoopExpr | None, LoopExpr]:
    """A condition that all lanes share, and what is reduced where it holds; elsewhere nothing is to be done."""
    match reduce.value:
        case Select(condition, then, orelse) | Cast(Select(condition, then, orelse), _):
            if orelse == identity_of(reduce.kind, then.dtype):
                parts = _conjuncts(condition)
                shared = [c for c in parts if not depends_on(c, lane) and not loads(c)]
                own = [c for c in parts if c not in shared]
                value = select(all_of(own), then, orelse) if own else then
                return (all_of(shared) if shared else None), value.astype(reduce.dtype)
    return None, reduce.value


def _conjuncts(condition: LoopExpr) -> list[LoopExpr]:
    match condition:
        case Binary("and", a, b) if condition.dtype == "bool":
            return [*_conjuncts(a), *_conjuncts(b)]
    return [condition]
