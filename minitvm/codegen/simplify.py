"""Simplifying kernels: index arithmetic over known loop ranges, conditions that are always true or false, loops of
one iteration.  Exact for every dtype: what ``interp`` computes before and after is the same, bit for bit.

``int64`` is the dtype of indices and of data.  Sums of loop variables stay far from its ends; data may wrap around
(:func:`wraps`), and then only what holds modulo 2**64 may be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from minitvm.ir.compute import identity_of
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
    LoopExpr,
    LoopKind,
    LoopVar,
    Reduce,
    Select,
    Seq,
    Stmt,
    Store,
    const,
    map_expr,
    map_stmt,
    seq,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.loop.affine import Affine, affine
from minitvm.ir.loop.scalar import convert
from minitvm.ir.loop.scalar_numpy import BINARY


@dataclass(frozen=True)
class Range:
    """``low <= value <= high``; ``None`` where there is no bound."""

    low: int | None
    high: int | None


ANYTHING = Range(None, None)
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
Ranges = Mapping[LoopVar, Range]


# --- bounds ---------------------------------------------------------------------------------------------------


def bounds(expr: LoopExpr, ranges: Ranges) -> Range:
    """An interval that holds an integer expression."""
    match expr:
        case Const(value, "int64"):
            return Range(value, value)
        case LoopVar():
            return ranges.get(expr, ANYTHING)
        case Binary("add" | "sub", _, _):
            return _affine_bounds(expr, ranges)
        case Binary("mul", _, Const()):
            return _affine_bounds(expr, ranges)
        case Binary("floordiv", a, Const(c, _)) if c > 0:
            r = bounds(a, ranges)
            return Range(None if r.low is None else r.low // c, None if r.high is None else r.high // c)
        case Binary("floormod", a, Const(c, _)) if c > 0:
            r = bounds(a, ranges)
            inside = r.low is not None and r.high is not None and r.low // c == r.high // c
            return Range(r.low % c, r.high % c) if inside else Range(0, c - 1)
        case Binary("min", a, b):
            return _min_bounds(bounds(a, ranges), bounds(b, ranges))
        case Binary("max", a, b):
            low, high = bounds(a, ranges), bounds(b, ranges)
            return _negated(_min_bounds(_negated(low), _negated(high)))
    return ANYTHING


def _scaled(r: Range, factor: int) -> Range:
    low = None if r.low is None else r.low * factor
    high = None if r.high is None else r.high * factor
    return Range(low, high) if factor >= 0 else Range(high, low)


def _negated(r: Range) -> Range:
    return _scaled(r, -1)


def _min_bounds(a: Range, b: Range) -> Range:
    highs = [h for h in (a.high, b.high) if h is not None]
    low = None if a.low is None or b.low is None else min(a.low, b.low)
    return Range(low, min(highs) if highs else None)


def _affine_bounds(expr: LoopExpr, ranges: Ranges) -> Range:
    """Term by term, after like terms have been added up: ``i - i`` is 0.  Nothing is known of a sum that may wrap."""
    form = affine(expr).joined()
    r = _exact_bounds(expr, form, ranges)
    return ANYTHING if _may_wrap(form, r, ranges) else r


def _exact_bounds(expr: LoopExpr, form: Affine, ranges: Ranges) -> Range:
    """Of the sum as a mathematical integer."""
    low: int | None = form.constant
    high: int | None = form.constant
    for term, coefficient in form.terms.items():
        r = _scaled(ANYTHING if term == expr else bounds(term, ranges), coefficient)
        low = None if low is None or r.low is None else low + r.low
        high = None if high is None or r.high is None else high + r.high
    return Range(low, high)


def _may_wrap(form: Affine, exact: Range, ranges: Ranges) -> bool:
    """Whether a sum whose exact value lies in ``exact`` may differ from its value in 64 bits."""
    if any(edge is not None and not _LOWEST <= edge <= _HIGHEST for edge in (exact.low, exact.high)):
        return True
    if None not in (exact.low, exact.high) or (not form.constant and list(form.terms.values()) == [1]):
        return False
    return any(_holds_data(term) and None in _ends(bounds(term, ranges)) for term in form.terms)


def _ends(r: Range) -> tuple[int | None, int | None]:
    return r.low, r.high


def _holds_data(term: LoopExpr) -> bool:
    """Whether a value is made of anything but loop variables and constants."""
    return not all(isinstance(node, (LoopVar, Const, Binary)) for node in walk_exprs(term))


def wraps(expr: LoopExpr, ranges: Ranges) -> bool:
    """Whether an ``int64`` sum may wrap around: its exact value then differs from what is computed."""
    form = affine(expr)
    return _may_wrap(form, _exact_bounds(expr, form, ranges), ranges)


def prove(condition: LoopExpr, ranges: Ranges) -> bool | None:
    """Whether a condition on indices always (or never) holds; ``None`` where that is not known."""
    match condition:
        case Const(value, "bool"):
            return bool(value)
        case Binary("lt" | "le" | "eq" | "ne" as op, a, b) if a.dtype == "int64":
            known = _compare(op, bounds(Binary("sub", a, b), ranges))
            return None if known is not None and (wraps(a, ranges) or wraps(b, ranges)) else known
        case Binary("and", a, b) if condition.dtype == "bool":
            x, y = prove(a, ranges), prove(b, ranges)
            return False if x is False or y is False else True if x and y else None
        case Binary("or", a, b) if condition.dtype == "bool":
            x, y = prove(a, ranges), prove(b, ranges)
            return True if x or y else False if x is False and y is False else None
        case Intrin("not", (a,)) if condition.dtype == "bool":
            x = prove(a, ranges)
            return None if x is None else not x
    return None


def _compare(op: str, difference: Range) -> bool | None:
    low, high = difference.low, difference.high
    if op in ("lt", "le"):
        limit = 0 if op == "le" else -1
        return True if high is not None and high <= limit else False if low is not None and low > limit else None
    apart = (low is not None and low > 0) or (high is not None and high < 0)
    equal = low == high == 0
    known = equal or apart
    return (equal if op == "eq" else apart) if known else None


# --- expressions ----------------------------------------------------------------------------------------------


def simplify_expr(expr: LoopExpr, ranges: Ranges) -> LoopExpr:
    """The same value, shorter.  Shared subexpressions stay shared."""
    return map_expr(expr, lambda node: _simplify_node(node, ranges))


def _simplify_node(node: LoopExpr, ranges: Ranges) -> LoopExpr:
    match node:
        case Select(condition, then, orelse):
            known = prove(condition, ranges)
            return node if known is None else then if known else orelse
        case Binary("and" | "or" as op, a, b) if node.dtype == "bool":
            return _simplify_logic(node, op, a, b, ranges)
        case Binary(op, Const(), Const()):
            return _fold(op, node)
        case Binary(op, _, _) if op in COMPARISONS:
            known = prove(node, ranges)
            return node if known is None else Const(known, "bool")
        case Binary("min" | "max" as op, a, b) if node.dtype == "int64":
            if prove(Binary("le", a, b), ranges):
                return a if op == "min" else b
            return (b if op == "min" else a) if prove(Binary("le", b, a), ranges) else node
        case Binary("floordiv" | "floormod" as op, a, Const(c, "int64")) if c > 0:
            return _simplify_division(node, op, a, c, ranges)
        case Binary("add" | "sub", _, _) if node.dtype == "int64":
            form = affine(node)
            joined = form.joined()
            return node if joined is form else joined.to_expr()
        case Reduce(kind, _, value) if value == (nothing := identity_of(kind, node.dtype)):
            return nothing
        case Cast(Const(value, dtype), to):
            return const(convert(np.asarray(value, dtype), to).item(), to)
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
    whole = {t: k // c for t, k in form.terms.items() if k % c == 0}
    rest = {t: k for t, k in form.terms.items() if k % c}
    quotient = type(form)(form.constant // c, whole)
    remainder = type(form)(form.constant % c, rest).to_expr()
    r = bounds(remainder, ranges)
    if r.low is None or r.high is None or r.low < 0 or r.high >= c:
        coarse = _coarser(op, form, c, ranges)
        if coarse is not None:
            return coarse
        shorter = op == "floormod" and (whole or not 0 <= form.constant < c)
        return remainder % c if shorter else node
    return quotient.to_expr() if op == "floordiv" else remainder


def _coarser(op: str, form: Affine, c: int, ranges: Ranges) -> LoopExpr | None:
    """``(g * q + r) // (g * n)`` is ``q // n``, and ``(g * q + r) % (g * n)`` is ``g * (q % n) + r``, where
    ``0 <= r < g``: a position in an image, divided by the size of a group of channels."""
    for g in sorted({k for k in form.terms.values() if 1 < k < c and c % k == 0}, reverse=True):
        fine = type(form)(form.constant % g, {t: k for t, k in form.terms.items() if k % g}).to_expr()
        r = bounds(fine, ranges)
        if r.low is not None and r.high is not None and r.low >= 0 and r.high < g:
            q = type(form)(form.constant // g, {t: k // g for t, k in form.terms.items() if k % g == 0}).to_expr()
            found = Binary(op, q, Const(c // g))
            return found if op == "floordiv" else found * g + fine
    return None


def _fold(op: str, node: Binary) -> LoopExpr:
    """Two constants, computed as the interpreter does."""
    assert isinstance(node.lhs, Const) and isinstance(node.rhs, Const)
    a, b = (np.asarray([c.value], c.dtype) for c in (node.lhs, node.rhs))
    with np.errstate(all="ignore"):
        return const(BINARY[op](a, b)[0].item(), node.dtype)


# --- statements -----------------------------------------------------------------------------------------------


def simplify_stmt(stmt: Stmt, ranges: Ranges) -> Stmt | None:
    """The same effect, shorter; ``None`` where there is none left."""
    match stmt:
        case For():
            return _simplify_loop(stmt, ranges)
        case Store(buffer, index, value):
            return Store(buffer, tuple(simplify_expr(i, ranges) for i in index), simplify_expr(value, ranges))
        case Seq(stmts):
            parts = [part for s in stmts if (part := simplify_stmt(s, ranges)) is not None]
            return seq(*parts) if parts else None
        case If(condition, then, orelse):
            return _simplify_if(condition, then, orelse, ranges)
        case Alloc(buffer, body):
            inner = simplify_stmt(body, ranges)
            return None if inner is None else Alloc(buffer, inner)
    return stmt


def _simplify_loop(stmt: For, ranges: Ranges) -> Stmt | None:
    extent = simplify_expr(stmt.extent, ranges)
    reach = bounds(extent, ranges)
    if reach.high is not None and reach.high <= 0:
        return None
    if isinstance(extent, Const) and extent.value == 1 and stmt.kind in (LoopKind.SERIAL, LoopKind.UNROLLED):
        return simplify_stmt(_with_value(stmt.body, stmt.var, Const(0)), ranges)
    inner = Range(0, None if reach.high is None else reach.high - 1)
    body = simplify_stmt(stmt.body, {**ranges, stmt.var: inner})
    return None if body is None else For(stmt.var, extent, body, stmt.kind)


def _with_value(body: Stmt, var: LoopVar, value: LoopExpr) -> Stmt:
    return map_stmt(body, on_expr=lambda e: substitute_vars(e, {var: value}))


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
    body = simplify_stmt(kernel.body, {})
    return Kernel(kernel.name, kernel.params, body if body is not None else Seq(()), kernel.results, kernel.spans)
