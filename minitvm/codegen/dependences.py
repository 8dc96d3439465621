"""Which iterations touch the same memory: what decides whether they may run side by side, or change order."""

from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from minitvm.ir.loop import (
    Binary,
    Buffer,
    Const,
    For,
    Intrin,
    Ldmatrix,
    Load,
    LoopExpr,
    LoopVar,
    Mma,
    Size,
    Stmt,
    Store,
    Wgmma,
    allocated,
    stmt_exprs,
    walk_stmts,
)
from minitvm.ir.loop.affine import ANYTHING, Affine, Facts, Range, Ranges, address, affine, bounds, counter, loads
from minitvm.ir.loop.stmt import About


@dataclass(frozen=True)
class Access:
    """One load or store, as the text of the program has it."""

    buffer: Buffer
    index: tuple[LoopExpr, ...]
    is_store: bool


def accesses(stmt: Stmt, named: bool = True, about: About | None = None) -> list[Access]:
    """Loads and stores below ``stmt`` in program order; of one statement the loads come first.

    ``named``: elements that are not read, but only asked for their address, count as loaded.
    ``about``: of interest are only statements that mention one of these buffers.
    """
    found: list[Access] = []
    for part in walk_stmts(stmt):
        roots = stmt_exprs(part)
        if about is not None:
            roots = tuple([root for root in roots if not about.isdisjoint(root.mentions)])
        read = dict.fromkeys(load for root in roots for load in (loads(root) if named else _read(root)))
        found += [Access(load.buffer, load.index, False) for load in read]
        if isinstance(part, Store):
            found.append(Access(part.buffer, part.index, True))
        if isinstance(part, Mma):
            found += [Access(part.sums, (*part.at, Const(n)), stored) for n in range(4) for stored in (False, True)]
        if isinstance(part, Wgmma):
            places = [(*part.at, *map(Const, n)) for n in product(*map(range, part.sums.shape[-2:]))]
            found += [Access(part.sums, place, stored) for place in places for stored in (False, True)]
        if isinstance(part, Ldmatrix):
            found += [Access(part.to, (*part.at, Const(n)), True) for n in range(part.count)]
    return found


def stored(stmt: Stmt) -> set[Buffer]:
    """The buffers that are written to below a statement."""
    found = set[Buffer]()
    for part in walk_stmts(stmt):
        match part:
            case Store(buffer) | Mma(buffer) | Wgmma(buffer) | Ldmatrix(buffer):
                found.add(buffer)
    return found


def _read(root: LoopExpr) -> list[Load]:
    """What an expression reads: all that it loads but elements that are asked for their address."""
    found, stack = dict[LoopExpr, None](), [root]
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            address = isinstance(node, Intrin) and node.name == "same_memory"
            stack += [i for a in node.operands for i in a.operands] if address else node.operands
    return [node for node in found if isinstance(node, Load)]


def inner_ranges(stmt: Stmt) -> dict[LoopVar, Range]:
    """The values of the variables bound below ``stmt``."""
    found = Facts({})
    for part in walk_stmts(stmt):
        if isinstance(part, For):
            found[part.var] = counter(part.extent, found)
    return dict(found)


def carried(loop: For, only_flow: bool = False) -> Access | None:
    """An access through which two iterations of ``loop`` may meet, at least one of them storing; else ``None``.

    ``only_flow``: of interest is only what one iteration stores and another loads.  Where the indices do not show that
    iterations keep apart, they count as meeting.
    """
    extent, named = bounds(loop.extent, {}).high, only_flow
    ranges, shared = inner_ranges(loop.body), stored(loop.body).difference(allocated(loop.body))
    found = [a for a in accesses(loop.body, named, shared) if a.buffer in shared]
    for store, other in product((a for a in found if a.is_store), found):
        asked = other.buffer is store.buffer and not (only_flow and other.is_store)
        if asked and may_meet(store, other, loop.var, extent, ranges):
            return other
    return None


def may_meet(a: Access, b: Access, var: LoopVar, extent: int | None, ranges: Ranges) -> bool:
    """True if iterations ``v`` and ``w != v`` may reach one element by ``a`` and ``b``; decided by any dimension."""
    pairs = _rejoined([_bare(affine(i), affine(j)) or (i, j) for i, j in zip(a.index, b.index, strict=True)])
    forms = [(affine(i), affine(j)) for i, j in pairs] + [(address(a.buffer, a.index), address(b.buffer, b.index))]
    return all(_may_be_equal(x, y, var, extent, ranges) for x, y in forms)


Pair: TypeAlias = tuple[LoopExpr, LoopExpr]
"""Two numbers of which is asked if they may be equal."""


def _bare(a: Affine[LoopExpr], b: Affine[LoopExpr]) -> Pair | None:
    """The terms of two forms that have but one, where multiples and constants are the same."""
    alike = a.constant == b.constant and [*a.terms.values()] == [*b.terms.values()] and len(a.terms) == 1
    return (next(iter(a.terms)), next(iter(b.terms))) if alike else None


def _rejoined(pairs: list[Pair]) -> list[Pair]:
    """Pairs that are equal where these are: quotient and remainder of a position, as fused loops have them, are equal
    where the position is."""
    for pair in pairs:
        match pair:
            case Binary("floordiv", x, Const() | Size() as c), Binary("floordiv", y, d) if c is d:
                rest = Binary("floormod", x, c), Binary("floormod", y, c)
                if rest in pairs:
                    return _rejoined([(x, y) if p == pair else p for p in pairs if p != rest])
    return pairs


def _may_be_equal(x: Affine[LoopExpr], y: Affine[LoopExpr], var: LoopVar, extent: int | None, ranges: Ranges) -> bool:
    step, apart = abs(x.terms.get(var, 0)), _difference(x, y, var, ranges)
    if x.terms.get(var, 0) != y.terms.get(var, 0):
        return True
    if step == 0:
        return apart.decides("ne") is not True
    if apart.low is None or apart.high is None:
        return True
    first, last = -(-apart.low // step), apart.high // step  # multiples of the step that the rest can make up for
    if extent is not None:
        first, last = max(first, 1 - extent), min(last, extent - 1)
    return any(first <= d <= last for d in (-1, 1)) or (first <= last and (first > 0 or last < 0))


def _difference(x: Affine[LoopExpr], y: Affine[LoopExpr], var: LoopVar, ranges: Ranges) -> Range:
    """Bounds of ``x - y`` without ``var``'s part, inner variables chosen freely on both sides."""

    def cancels(term: LoopExpr) -> bool:
        """A term made of outer variables alone has one value in all iterations."""
        inner = term.reads or var in term.mentions or not ranges.keys().isdisjoint(term.mentions)
        return not inner and x.terms.get(term) == y.terms.get(term)

    def free(form: Affine[LoopExpr]) -> Range:
        terms = {t: c for t, c in form.terms.items() if t != var and not cancels(t)}
        return Affine(form.constant, terms).bounds(lambda t: ANYTHING if var in t.mentions else bounds(t, ranges))

    return free(x).plus(free(y).scaled(-1))
