"""Schedule steps that copy to another layout, and fetch ahead: stage, prefetch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from minitvm.codegen.dependences import inner_ranges
from minitvm.codegen.loops import after, inside, or_zero, redirect
from minitvm.codegen.schedule_loops import LoopName, find_loop, require, with_body
from minitvm.codegen.schedule_memory import (
    BufferName,
    Index,
    Region,
    check_place,
    find_buffer,
    is_filled,
    touched_box,
    uses_of,
)
from minitvm.cpu_costs import CPU
from minitvm.errors import ScheduleError, TypeInferenceError
from minitvm.ir.layout import Layout
from minitvm.ir.loop import (
    Alloc,
    Binary,
    Buffer,
    Const,
    Kernel,
    Load,
    LoopExpr,
    LoopVar,
    Prefetch,
    Select,
    Stmt,
    Store,
    all_of,
    const,
    map_nodes,
    maximum,
    minimum,
    nest,
    seq,
    substitute_vars,
    walk_stmts,
)
from minitvm.ir.loop.affine import Affine, Range, affine, bounds, prove


def stage(
    kernel: Kernel, buffer: BufferName, loop: LoopName | None = None, layout: str = "", scope: str = ""
) -> Kernel:
    """``cache_read`` in another layout: each iteration of ``loop`` first copies what it reads of ``buffer``, in place
    of elements beyond the buffer zeros.  Without a loop all of an input is copied once, and a barrier follows.

    ``layout`` names the dimensions ``A``, ``B``, ... in their new order, with blocks as everywhere: ``"BA8b"`` makes
    panels of 8 columns of a matrix, the last one filled up with zeros.  A choice between an element and zero that only
    asks whether the element is there becomes a load of the copy, so that padding leaves the inner loop.
    """
    source = find_buffer(kernel, buffer)
    if loop is None:
        why = f"{source.name} is no input, so a copy may be out of date"
        require(kernel, source in kernel.inputs, why, "give the loop whose iterations copy their part")
        copied = _staged(
            kernel, source, Region((Const(0),) * len(source.shape), source.shape), layout, scope or "global"
        )
        return replace(kernel, body=after(copied.buffer, copied.fill(kernel), copied.read(kernel, kernel.body)))
    found = find_loop(kernel, loop)
    check_place(kernel, source, found)
    name, touched = found.var.name, uses_of(found.body, source, stores=False)
    require(kernel, bool(touched), f"loop {name} does not read {source.name}")
    stored = uses_of(found.body, source, stores=True)
    require(kernel, not stored, f"loop {name} stores to {source.name}, so a copy would be out of date")
    copied = _staged(kernel, source, touched_box(kernel, source, touched, found), layout, scope or "local")
    body = seq(copied.fill(kernel), copied.read(kernel, found.body))
    return with_body(kernel, found, Alloc(copied.buffer, body))


@dataclass(frozen=True)
class _Staged:
    """A copy of the part ``box`` of ``source`` in ``buffer``, whose dimensions are the axes of ``layout``."""

    source: Buffer
    box: Region
    layout: Layout
    buffer: Buffer

    def at(self, index: Index) -> Index:
        """Where the copy has an element of the source."""
        here = self.box.relative(index)

        def coordinate(name: str) -> LoopExpr:
            position, factor = here[ord(name.upper()) - ord("A")], self.layout.factor(name)
            return position if factor == 1 else position % factor if name.islower() else position // factor

        return tuple(coordinate(axis.name) for axis in self.layout.axes)

    def fill(self, kernel: Kernel) -> Stmt:
        """Every element of the copy, in its order."""
        around, layout = inner_ranges(kernel.body), self.layout

        def element(*here: LoopVar) -> Stmt:
            def position(name: str) -> LoopExpr:
                outer = here[layout.index(name)]
                return (
                    outer
                    if layout.factor(name) == 1
                    else outer * layout.factor(name) + here[layout.index(name.lower())]
                )

            inner = [position(chr(ord("A") + d)) for d in range(len(self.box.shape))]
            there = tuple(s + i for s, i in zip(self.box.start, inner, strict=True))
            ranges = around | {v: Range(0, n - 1) for v, n in zip(here, self.buffer.shape, strict=True)}
            asked = [i < n for i, n in zip(inner, self.box.shape, strict=True)]
            asked += [c for i, n in zip(there, self.source.shape, strict=True) for c in (i >= 0, i < n)]
            left = [c for c in dict.fromkeys(asked) if prove(c, ranges) is not True]
            value = self.source[there]
            return Store(self.buffer, here, or_zero(all_of(left), value) if left else value)

        return nest(self.buffer.shape, element, names="uvwrstpq")

    def read(self, kernel: Kernel, stmt: Stmt) -> Stmt:
        """A statement with the copy in place of the source."""
        ranges, padded = inner_ranges(kernel.body), replace(self.source)

        def unasked(node: LoopExpr) -> LoopExpr:
            match node:
                case Select(condition, Load(buffer, index) as load, orelse) if buffer is self.source:
                    checks = _conjuncts(condition)
                    alike = orelse == const(0, load.dtype) and all(_is_check(c, buffer, index) for c in checks)
                    return Load(padded, index) if alike and self._has(index, ranges) else node
            return node

        bare = map_nodes(stmt, unasked)
        return redirect(bare, {self.source: self.buffer, padded: self.buffer}, self.at)

    def _has(self, index: Index, ranges: Mapping[LoopVar, Range]) -> bool:
        """True if an index is always one of the copy, be it beyond the source."""
        return prove(all_of([inside(self.box.relative(index), self.box.shape)]), ranges) is True


def _staged(kernel: Kernel, source: Buffer, box: Region, layout: str, scope: str) -> _Staged:
    dims = "".join(chr(ord("A") + d) for d in range(len(source.shape)))
    try:
        found = Layout(layout or dims)
    except TypeInferenceError as error:
        raise ScheduleError(f"{kernel.name}: {error.message}", hint=error.hint) from None
    fits = sorted(found.primal) == list(dims)
    require(kernel, fits, f"layout {found} is none of {source.name}, whose dimensions are {dims}")

    def extent(name: str) -> int:
        size = box.shape[ord(name.upper()) - ord("A")]
        return found.factor(name) if name.islower() else -(-size // found.factor(name))

    shape = tuple(extent(axis.name) for axis in found.axes)
    return _Staged(source, box, found, Buffer(f"{source.name}_{scope}", shape, source.dtype, scope))


def _conjuncts(condition: LoopExpr) -> list[LoopExpr]:
    match condition:
        case Binary("and", a, b) if condition.dtype == "bool":
            return [*_conjuncts(a), *_conjuncts(b)]
    return [condition]


def _is_check(condition: LoopExpr, buffer: Buffer, index: Index) -> bool:
    """True if a condition holds wherever ``index`` is one of the buffer's."""
    match condition:
        case Binary("lt" | "le" as op, a, b) if a.dtype == "int64":
            least = affine(a).plus(affine(b), -1).plus(Affine(int(op == "lt")))  # a condition that this is at most 0
            for i, n in zip(index, buffer.shape, strict=True):
                for known in (affine(i).scaled(-1), affine(i).plus(Affine(1 - n))):
                    gap = least.plus(known, -1)
                    if not gap.terms and gap.constant <= 0:
                        return True
    return False


def prefetch(kernel: Kernel, buffer: BufferName, loop: LoopName, by: LoopName | None = None, ahead: int = 1) -> Kernel:
    """Each iteration of ``loop`` ends with a prefetch of the cache lines that it would read of ``buffer`` if ``by`` (by
    default ``loop`` itself, else a loop around it) were ``ahead`` iterations further on; never beyond the buffer."""
    found, source = find_loop(kernel, loop), find_buffer(kernel, buffer)
    check_place(kernel, source, found)
    moved = found if by is None else find_loop(kernel, by)
    name, touched = found.var.name, uses_of(found.body, source, stores=False)
    require(kernel, bool(touched), f"loop {name} does not read {source.name}")
    why = f"loop {moved.var.name} is not around loop {name}"
    require(kernel, moved is found or any(s is found for s in walk_stmts(moved.body)), why)
    require(kernel, is_filled(kernel, source), f"{source.name} may hold nothing yet where it is fetched")
    box = touched_box(kernel, source, touched, found)
    step, ranges = max(1, CPU.line_bytes // np.dtype(source.dtype).itemsize), inner_ranges(kernel.body)
    start = [substitute_vars(i, {moved.var: moved.var + ahead}) for i in box.start]
    counts = [*box.shape[:-1], -(-box.shape[-1] // step)] if box.shape else []

    def line(*at: LoopVar) -> Stmt:
        number = iter(at)
        inner: list[LoopExpr] = [next(number) if n > 1 else Const(0) for n in counts]
        inner[-1:] = [i * step for i in inner[-1:]]
        wanted = (s + i for s, i in zip(start, inner, strict=True))
        known = ranges | {v: Range(0, n - 1) for v, n in zip(at, [n for n in counts if n > 1], strict=True)}
        return Prefetch(Load(source, tuple(_clamped(i, n, known) for i, n in zip(wanted, source.shape, strict=True))))

    lines = nest([n for n in counts if n > 1], line, names="uvwrstpq")
    return with_body(kernel, found, seq(found.body, lines))


def _clamped(index: LoopExpr, extent: int, ranges: Mapping[LoopVar, Range]) -> LoopExpr:
    """The element of ``extent`` that is nearest."""
    reach = bounds(index, ranges)
    index = index if reach.high is not None and reach.high < extent else minimum(index, extent - 1)
    return index if reach.low is not None and reach.low >= 0 else maximum(index, 0)
