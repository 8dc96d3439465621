"""Simplifying kernels: index arithmetic over known loop ranges, conditions that are always true or false, loops of
one iteration.  Exact for every dtype: what ``interp`` computes before and after is the same, bit for bit.

What may wrap around (:func:`wraps`) is simplified only by what holds modulo 2**64.
"""

from dataclasses import replace

import numpy as np

from minitvm.ir.loop import (
    COMPARISONS,
    Alloc,
    Binary,
    Cast,
    Const,
    For,
    If,
    Intrin,
    Kernel,
    Ldmatrix,
    LoopExpr,
    LoopKind,
    LoopVar,
    Mma,
    Prefetch,
    Reduce,
    Select,
    Seq,
    Stmt,
    Store,
    Wgmma,
    const,
    map_expr,
    seq,
    stmt_exprs,
)
from minitvm.ir.loop.affine import Affine, Facts, Range, Ranges, affine, bounds, counter, prove, wraps
from minitvm.ir.loop.scalar import compute
from minitvm.ir.op import identity_of

_ONLY = Range(0, 0)
"""This object itself: of the variable of a loop that goes."""

# --- expressions ----------------------------------------------------------------------------------------------


def simplify_expr(expr: LoopExpr, ranges: Ranges) -> LoopExpr:
    """The same value, shorter.  Shared subexpressions stay shared."""
    facts = Facts.of(ranges)
    return map_expr(expr, lambda node: _simplify_node(node, facts), facts.simpler)


def _simplify_node(node: LoopExpr, ranges: Ranges) -> LoopExpr:
    match node:
        case Const():
            return node
        case LoopVar() if ranges.get(node) is _ONLY:
            return Const(0)
        case Select(condition, then, orelse):
            known = prove(condition, ranges)
            return node if known is None else then if known else orelse
        case Binary("and" | "or" as op, a, b) if node.dtype == "bool":
            return _simplify_logic(node, op, a, b, ranges)
        case Binary(_, Const(), Const()) | Cast(Const(), _):
            return _fold(node)
        case Binary(op, _, _) if op in COMPARISONS:
            known = prove(node, ranges)
            return node if known is None else Const(known, "bool")
        case Binary("min" | "max" as op, a, b) if node.dtype == "int64":
            if prove(Binary("le", a, b), ranges):
                return a if op == "min" else b
            return (b if op == "min" else a) if prove(Binary("le", b, a), ranges) else node
        case Binary("floordiv" | "floormod" as op, a, Const(c, "int64")) if c > 0:
            return _simplify_division(node, op, a, c, ranges)
        case Binary("add" | "sub", a, b) if node.dtype == "int64":
            whole = affine(node).joined()
            count, *sides = (len(side.terms) + bool(side.constant) for side in (whole, affine(a), affine(b)))
            return node if count == sum(sides) else whole.to_expr()
        case Reduce(kind, _, value) if value == (nothing := identity_of(kind, node.dtype)):
            return nothing
    return node


def _simplify_logic(node: LoopExpr, op: str, a: LoopExpr, b: LoopExpr, ranges: Ranges) -> LoopExpr:
    for known, other in ((prove(a, ranges), b), (prove(b, ranges), a)):
        if known is not None:
            return other if known == (op == "and") else Const(known, "bool")
    return node


def _simplify_division(node: LoopExpr, op: str, a: LoopExpr, c: int, ranges: Ranges) -> LoopExpr:
    """``(c * q + r) // c`` is ``q`` and ``(c * q + r) % c`` is ``r`` where ``0 <= r < c``; else that is ``r % c``."""
    if wraps(a, ranges):
        return node
    form = affine(a)
    quotient, rest = form.split(c)
    remainder = rest.to_expr()
    if not bounds(remainder, ranges).within(0, c - 1):
        coarse = _coarser(op, form, c, ranges)
        if coarse is not None:
            return coarse
        shorter = op == "floormod" and (quotient.terms or quotient.constant)
        return remainder % c if shorter else node
    return quotient.to_expr() if op == "floordiv" else remainder


def _coarser(op: str, form: Affine[LoopExpr], c: int, ranges: Ranges) -> LoopExpr | None:
    """``(g * q + r) // (g * n)`` is ``q // n``, and ``(g * q + r) % (g * n)`` is ``g * (q % n) + r``, where
    ``0 <= r < g``: a position in an image, divided by the size of a group of channels."""
    for g in sorted({k for k in form.terms.values() if 1 < k < c and c % k == 0}, reverse=True):
        coarse, fine = (part.to_expr() for part in form.split(g))
        if bounds(fine, ranges).within(0, g - 1):
            found = Binary(op, coarse, Const(c // g))
            return found if op == "floordiv" else found * g + fine
    return None


def _fold(node: LoopExpr) -> LoopExpr:
    """An operation on constants, computed as the interpreter does."""
    with np.errstate(all="ignore"):
        return const(compute(node, [compute(c, ()) for c in node.operands]).item(), node.dtype)


# --- statements -----------------------------------------------------------------------------------------------


def simplify_stmt(stmt: Stmt, ranges: Ranges) -> Stmt | None:
    """The same effect, shorter; ``None`` where there is none left."""
    match stmt:
        case For():
            return _simplify_loop(stmt, ranges)
        case Store(buffer, index, value):
            index = tuple(simplify_expr(i, ranges) for i in index)
            return type(stmt)(buffer, index, simplify_expr(value, ranges))
        case Seq(stmts):
            parts = [part for s in stmts if (part := simplify_stmt(s, ranges)) is not None]
            return seq(*parts) if parts else None
        case If(condition, then, orelse):
            return _simplify_if(condition, then, orelse, ranges)
        case Prefetch(element, level):
            return Prefetch(simplify_expr(element, ranges), level)
        case Mma() | Ldmatrix() | Wgmma():
            return stmt.over([simplify_expr(e, ranges) for e in stmt_exprs(stmt)])
        case Alloc(buffer, body):
            inner = simplify_stmt(body, ranges)
            return None if inner is None else Alloc(buffer, inner)
    return stmt


def _simplify_loop(stmt: For, ranges: Ranges) -> Stmt | None:
    extent = simplify_expr(stmt.extent, ranges)
    inner = counter(extent, ranges)
    if inner.is_empty:
        return None
    once = isinstance(extent, Const) and extent.value == 1 and stmt.kind in (LoopKind.SERIAL, LoopKind.UNROLLED)
    body = simplify_stmt(stmt.body, Facts({**ranges, stmt.var: _ONLY if once else inner}))
    return body if once or body is None else For(stmt.var, extent, body, stmt.kind)


def _simplify_if(condition: LoopExpr, then: Stmt, orelse: Stmt | None, ranges: Ranges) -> Stmt | None:
    simpler = simplify_expr(condition, ranges)
    known = prove(simpler, ranges)
    if known is not None:
        chosen = then if known else orelse
        return None if chosen is None else simplify_stmt(chosen, ranges)
    new_then = simplify_stmt(then, ranges)
    new_else = None if orelse is None else simplify_stmt(orelse, ranges)
    if new_then is None:
        return None if new_else is None else If(Intrin("not", (simpler,)), new_else)
    return If(simpler, new_then, new_else)


def simplify(kernel: Kernel) -> Kernel:
    """The same kernel, simplified."""
    body = simplify_stmt(kernel.body, Facts({}))
    return replace(kernel, body=body if body is not None else Seq(()))
