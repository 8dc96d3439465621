"""Axes as long as only a run says, split where an index divides by what their extents are multiples of.

A reshape reads ``x[k // (h * w), k // w % h, k % w]``, and as a row of several ``(row * n + k) // w``.  Such a division
for each element takes longer than the element; as two loops, ``k`` is ``k_outer * w + k_inner``.  ``(row * n + k) //
(2 * n)`` is ``row // 2`` as it stands.  What divides is found by polynomials (:mod:`minitvm.ir.dims`) in which loop
variables are symbols.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from minitvm.codegen.simplify import simplify_expr
from minitvm.codegen.walks import Walk
from minitvm.ir.dims import Dim, SymbolicDim, always_less, symbol, usual
from minitvm.ir.loop import Binary, Const, LoopExpr, LoopVar, Size, as_index, dim_of, map_expr, size_expr, walk_exprs

LEAST = 8
"""Elements of the inner loop, usually: shorter ones are not worth a loop of their own."""


@dataclass
class Names:
    """Loop variables as symbols of dimensions."""

    symbols: dict[LoopVar, SymbolicDim] = field(default_factory=dict)

    def of(self, var: LoopVar) -> SymbolicDim:
        return self.symbols.setdefault(var, symbol(f"loop {len(self.symbols)}"))

    def dim(self, expr: LoopExpr) -> Dim | None:
        """An index as a polynomial; ``None`` of one that reads memory or chooses."""

        def named(node: LoopExpr) -> LoopExpr:
            return size_expr(self.of(node)) if isinstance(node, LoopVar) and not isinstance(node, Size) else node

        return dim_of(map_expr(expr, named))

    def expr(self, dim: Dim) -> LoopExpr:
        variables = {size_expr(name): var for var, name in self.symbols.items()}
        return map_expr(size_expr(dim), lambda node: variables.get(node, node) if isinstance(node, Size) else node)


def _is_multiple(dim: Dim, of: Dim) -> bool:
    return bool(dim // of * of == dim)


def _quotients(value: LoopExpr) -> Iterator[tuple[LoopExpr, LoopExpr]]:
    for node in walk_exprs(value):
        match node:
            case Binary("floordiv" | "floormod", x, divisor) if node.dtype == "int64":
                yield x, divisor


def split_open(walk: Walk) -> list[Walk]:
    """Walks over parts of an axis as long as only a run says, or one with two axes in its place; none where no
    condition changes along it, nor an index divides by what it has."""
    opened = {var: extent for var, extent in walk.loops if not isinstance(extent, int)}
    return _cut(walk, opened) or _divided(walk, opened)


def _divided(walk: Walk, opened: Mapping[LoopVar, Dim]) -> list[Walk]:
    found = dividing(walk.value, opened)
    if found is None:
        return []
    var, factor = found
    extent, inner = opened[var], var
    if factor != extent:
        outer, inner = LoopVar(f"{var.name}o"), LoopVar(f"{var.name}i")
        new = (outer, extent // factor), (inner, factor)
        walk = walk.moved(var, outer * as_index(factor) + inner, new)
    index = tuple(without_quotients(i, inner, factor) for i in walk.index)
    value = simplify_expr(without_quotients(walk.value, inner, factor), walk.ranges)
    return [replace(walk, index=index, value=value)]


# --- parts of an axis -----------------------------------------------------------------------------------------


def _cut(walk: Walk, opened: Mapping[LoopVar, Dim]) -> list[Walk]:
    """The walk before and behind where a condition changes, along an open axis that is the last one, or that an index
    divides: what is put together there, along pixels say, is read with no condition, and each part's sizes divide."""
    divided = {node for x, _ in _quotients(walk.value) for node in walk_exprs(x)}
    for var, extent in opened.items():
        if var in divided or var == walk.loops[-1][0]:
            edges = (edge.at for node in walk_exprs(walk.value) if (edge := _Edge.of(node, var)))
            at = next((at for at in edges if _is_inside(at, extent)), None)
            if at is not None:
                return [_part(walk, var, 0, at), _part(walk, var, at, extent)]
    return []


def _is_inside(at: Dim, extent: Dim) -> bool:
    return at not in (0, extent) and always_less(-1, at) and always_less(at, extent + 1)


def _part(walk: Walk, var: LoopVar, start: Dim, stop: Dim) -> Walk:
    """The values of an axis from ``start`` to before ``stop``, in which comparisons that all answer alike are gone."""
    new, extent = LoopVar(var.name), stop - start
    part = walk.moved(var, new + as_index(start), ((new, extent),))

    def decided(node: LoopExpr) -> LoopExpr:
        edge = _Edge.of(node, new)
        known = None if edge is None else edge.decided(extent)
        return node if known is None else Const(known, "bool")

    return replace(part, value=simplify_expr(map_expr(part.value, decided), part.ranges))


@dataclass(frozen=True)
class _Edge:
    """A comparison that is true of a variable ``below`` a size, or from it on."""

    below: bool
    at: Dim

    @staticmethod
    def of(node: LoopExpr, var: LoopVar) -> _Edge | None:
        """``None`` of all but comparisons of the variable with sizes alone."""
        match node:
            case Binary("lt" | "le" as op, a, b) if a.dtype == "int64":
                names = Names()
                left, right = names.dim(a), names.dim(b)
                if left is None or right is None or names.symbols.keys() != {var}:
                    return None
                this, gap = names.of(var), left - right - (op == "le")
                below, above = this - gap, gap + this + 1
                if isinstance(below, int) or this.atom not in below.symbols():
                    return _Edge(True, below)
                if isinstance(above, int) or this.atom not in above.symbols():
                    return _Edge(False, above)
        return None

    def decided(self, extent: Dim) -> bool | None:
        """What it is for every value from 0 to before ``extent``."""
        if always_less(extent, self.at + 1):
            return self.below
        return not self.below if always_less(self.at, 1) else None


# --- axes that indices divide ---------------------------------------------------------------------------------


def dividing(value: LoopExpr, opened: Mapping[LoopVar, Dim]) -> tuple[LoopVar, Dim] | None:
    """A variable of open extent, and by what it should be split: the shortest of what indices divide by."""
    names, found = Names(), list[tuple[int, LoopVar, Dim]]()
    for x, divisor in _quotients(value):
        form, factor = names.dim(x), names.dim(divisor)
        if form is None or factor is None or isinstance(form, int) or factor == 0:
            continue
        for var, extent in opened.items():
            name = names.of(var)
            rest = form - name
            apart = isinstance(factor, int) or not factor.symbols() & {s.atom for s in names.symbols.values()}
            alone = isinstance(rest, int) or name.atom not in rest.symbols()
            part = extent if _is_multiple(factor, extent) else factor
            worth = part == extent or usual(part) >= LEAST
            if worth and apart and alone and _is_multiple(extent, part) and _is_multiple(rest, part):
                found.append((usual(part), var, part))
    return min(found, key=lambda one: one[0])[1:] if found else None


def without_quotients(value: LoopExpr, inner: LoopVar, factor: Dim) -> LoopExpr:
    """What divides sums of ``inner``, which is below ``factor``, and a multiple of that, by multiples of it."""
    names = Names()

    def known(node: LoopExpr) -> LoopExpr:
        match node:
            case Binary("floordiv" | "floormod" as op, x, divisor) if node.dtype == "int64":
                form, by = names.dim(x), names.dim(divisor)
                if form is None or by is None or not _is_multiple(by, factor):
                    return node
                rest, more = form - names.of(inner), by // factor
                if not _is_multiple(rest, factor):
                    return node
                whole = names.expr(rest // factor)
                if op == "floordiv":
                    return whole if more == 1 else whole // names.expr(more)
                return inner if more == 1 else whole % names.expr(more) * names.expr(factor) + inner
        return node

    return map_expr(value, known)
