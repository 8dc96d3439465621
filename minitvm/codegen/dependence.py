"""Which iterations of a loop touch the same memory: what decides whether they may run side by side or change order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from minitvm.ir.loop import Alloc, Buffer, For, LoopExpr, LoopVar, Stmt, Store, stmt_exprs, walk_exprs, walk_stmts
from minitvm.ir.loop.affine import ANYTHING, Affine, Range, address, affine, depends_on, loads
from minitvm.ir.loop.bounds import Ranges, bounds, counter


@dataclass(frozen=True)
class Access:
    """One load or store, as the text of the program has it."""

    buffer: Buffer
    index: tuple[LoopExpr, ...]
    is_store: bool


def accesses(stmt: Stmt) -> list[Access]:
    """Loads and stores below ``stmt`` in program order; of one statement the loads come first."""
    found: list[Access] = []
    for part in walk_stmts(stmt):
        read = dict.fromkeys(load for root in stmt_exprs(part) for load in loads(root))
        found += [Access(load.buffer, load.index, False) for load in read]
        if isinstance(part, Store):
            found.append(Access(part.buffer, part.index, True))
    return found


def allocated(stmt: Stmt) -> set[Buffer]:
    """Buffers that live below ``stmt`` only: every iteration around it has its own."""
    return {part.buffer for part in walk_stmts(stmt) if isinstance(part, Alloc)}


def inner_ranges(stmt: Stmt) -> dict[LoopVar, Range]:
    """The values of the variables bound below ``stmt``."""
    found: dict[LoopVar, Range] = {}
    for part in walk_stmts(stmt):
        if isinstance(part, For):
            found[part.var] = counter(part.extent, found)
    return found


def carried(loop: For, only_flow: bool = False) -> Access | None:
    """An access through which two iterations of ``loop`` may meet, at least one of them storing; else ``None``.

    ``only_flow``: of interest is only what one iteration stores and another loads.  Where the indices do not show that
    iterations keep apart, they count as meeting.
    """
    extent = bounds(loop.extent, {}).high
    private, ranges = allocated(loop.body), inner_ranges(loop.body)
    for store, other in _pairs([a for a in accesses(loop.body) if a.buffer not in private]):
        if not (only_flow and other.is_store) and _may_meet(store, other, loop.var, extent, ranges):
            return other
    return None


def _pairs(found: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
    for store in found:
        if store.is_store:
            yield from ((store, other) for other in found if other.buffer is store.buffer)


def _may_meet(a: Access, b: Access, var: LoopVar, extent: int | None, ranges: Ranges) -> bool:
    """Whether iterations ``v`` and ``w != v`` may reach one element by ``a`` and ``b``; decided by any dimension."""
    forms = [(affine(i), affine(j)) for i, j in zip(a.index, b.index, strict=True)]
    forms.append((address(a.buffer, a.index), address(b.buffer, b.index)))
    return all(_may_be_equal(x, y, var, extent, ranges) for x, y in forms)


def _may_be_equal(x: Affine[LoopExpr], y: Affine[LoopExpr], var: LoopVar, extent: int | None, ranges: Ranges) -> bool:
    step = x.terms.get(var, 0)
    if step == 0 or y.terms.get(var, 0) != step:
        return not _apart(x, y, var, ranges)
    apart = _difference(x, y, var, ranges)
    if apart.low is None or apart.high is None:
        return True
    step = abs(step)
    first, last = -(-apart.low // step), apart.high // step  # multiples of the step that the rest can make up for
    if extent is not None:
        first, last = max(first, 1 - extent), min(last, extent - 1)
    return any(first <= d <= last for d in (-1, 1)) or (first <= last and (first > 0 or last < 0))


def _apart(x: Affine[LoopExpr], y: Affine[LoopExpr], var: LoopVar, ranges: Ranges) -> bool:
    """True where the two differ in every pair of iterations although they do not move alike with ``var``."""
    if var in x.terms or var in y.terms:
        return False
    found = _difference(x, y, var, ranges)
    return (found.low is not None and found.low > 0) or (found.high is not None and found.high < 0)


def _difference(x: Affine[LoopExpr], y: Affine[LoopExpr], var: LoopVar, ranges: Ranges) -> Range:
    """Bounds of ``x - y`` without ``var``'s part, inner variables chosen freely on both sides."""

    def free(form: Affine[LoopExpr]) -> Range:
        terms = {t: c for t, c in form.terms.items() if t != var and not _cancels(t, x, y, ranges, var)}
        return Affine(form.constant, terms).bounds(lambda t: ANYTHING if depends_on(t, var) else bounds(t, ranges))

    return free(x).plus(free(y).scaled(-1))


def _cancels(term: LoopExpr, x: Affine[LoopExpr], y: Affine[LoopExpr], ranges: Ranges, var: LoopVar) -> bool:
    """A term made of outer variables alone has one value in all iterations."""
    inner = loads(term) or any(isinstance(n, LoopVar) and (n in ranges or n == var) for n in walk_exprs(term))
    return not inner and x.terms.get(term) == y.terms.get(term)


def mixed_radix(form: Affine[LoopExpr], extents: Mapping[LoopVar, int]) -> int | None:
    """How many values a sum of loop variables takes, each once and in a row from its constant on: each stride is the
    product of the extents below it.  ``None`` where it is no such number."""
    reach = 1
    for term, stride in sorted(form.terms.items(), key=lambda item: abs(item[1])):
        extent = extents.get(term) if isinstance(term, LoopVar) else None
        if extent is None or (stride != reach and extent > 1):
            return None
        reach *= extent
    return reach
