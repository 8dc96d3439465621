"""Default loop nests for one stage: elementwise and reductions, parallel outside and vectorized inside."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from minitvm.codegen.affine import depends_on, loads, stride_along, vectorizes
from minitvm.ir.compute import identity_of
from minitvm.ir.loop import (
    Alloc,
    Buffer,
    Const,
    For,
    LoopExpr,
    LoopKind,
    LoopVar,
    Reduce,
    Stmt,
    Store,
    binary,
    expr_children,
    loop,
    rebuild_expr,
    seq,
    substitute_vars,
    walk_exprs,
)
from minitvm.target import MachineModel

_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
_UNROLLED_LANES = 4  # vectors that a long reduction keeps in flight, to hide the latency of the addition

Element = Callable[[Sequence[LoopExpr]], Stmt]


def stage_nest(
    out: Buffer, axes: Sequence[LoopVar], value: LoopExpr, machine: MachineModel, parallel: bool = True
) -> Stmt:
    """Loops that store ``value`` to every element of ``out``; ``axes`` are the variables that ``value`` is over."""
    if any(isinstance(node, Reduce) for node in walk_exprs(value)):
        return _reduction_nest(out, axes, value, machine, parallel)

    def element(index: Sequence[LoopExpr]) -> Stmt:
        return Store(out, tuple(index), substitute_vars(value, dict(zip(axes, index, strict=True))))

    vector = bool(axes) and vectorizes(value, axes[-1]) and _innermost_stride(out) == 1
    return spread(out.shape, element, machine.lanes(out.dtype) if vector else 1, machine, parallel)


def _innermost_stride(buffer: Buffer) -> int:
    return buffer.row_major_strides[-1]


def spread(extents: Sequence[int], element: Element, lanes: int, machine: MachineModel, parallel: bool = True) -> Stmt:
    """Loops over ``extents``: enough of the outer ones fused into one parallel loop, the innermost in vectors."""
    if not extents:
        return element(())
    *outer, inner = extents
    if not parallel:
        return _serial(outer, (), inner, element, lanes)
    if math.prod(outer) < 4 * machine.threads and inner // lanes > math.prod(outer):
        columns = [_columns(prefix, inner, element, lanes, LoopKind.PARALLEL) for prefix in _constant_indices(outer)]
        return seq(*columns)
    split = _parallel_prefix(outer, 16 * machine.threads)
    return loop(
        math.prod(outer[:split]),
        lambda row: _serial(outer[split:], unflatten(row, outer[:split]), inner, element, lanes),
        LoopKind.PARALLEL,
        name="row",
    )


def _parallel_prefix(extents: Sequence[int], wanted: int) -> int:
    """How many leading loops to fuse for ``wanted`` parallel iterations."""
    total = 1
    for count, extent in enumerate(extents):
        if total >= wanted:
            return count
        total *= extent
    return len(extents)


def _serial(extents: Sequence[int], prefix: Sequence[LoopExpr], inner: int, element: Element, lanes: int) -> Stmt:
    if not extents:
        return _columns(prefix, inner, element, lanes, LoopKind.SERIAL)
    return loop(extents[0], lambda i: _serial(extents[1:], (*prefix, i), inner, element, lanes))


def _constant_indices(extents: Sequence[int]) -> list[list[LoopExpr]]:
    found: list[list[LoopExpr]] = [[]]
    for extent in extents:
        found = [[*prefix, Const(i)] for prefix in found for i in range(extent)]
    return found


def unflatten(position: LoopExpr, extents: Sequence[int]) -> tuple[LoopExpr, ...]:
    """The row-major index of a flat position; the leading one needs no remainder."""
    index: list[LoopExpr] = []
    for extent in reversed(extents[1:]):
        index.append(position % extent)
        position = position // extent
    if extents:
        index.append(position if extents[0] != 1 else Const(0))
    return tuple(reversed(index))


def _columns(prefix: Sequence[LoopExpr], extent: int, element: Element, lanes: int, kind: LoopKind) -> Stmt:
    """One row: whole vectors, then what is left over one by one."""
    if lanes == 1 or extent < lanes:
        return loop(extent, lambda j: element((*prefix, j)), kind, name="j")
    whole = extent // lanes
    vectors = loop(
        whole,
        lambda v: loop(lanes, lambda lane: element((*prefix, v * lanes + lane)), LoopKind.VECTORIZED, name="lane"),
        kind,
        name="v",
    )
    if whole * lanes == extent:
        return vectors
    tail = loop(extent - whole * lanes, lambda j: element((*prefix, j + whole * lanes)), name="tail")
    return seq(vectors, tail)


# --- reductions -----------------------------------------------------------------------------------------------


def _reduction_nest(
    out: Buffer, axes: Sequence[LoopVar], value: LoopExpr, machine: MachineModel, parallel: bool
) -> Stmt:
    """Vectorized along the output's last axis where loads are contiguous there, else along the reduction's."""
    lanes = machine.lanes(out.dtype)
    if axes and out.shape[-1] >= lanes and vectorizes(value, axes[-1]) and _innermost_stride(out) == 1:
        return _reduce_in_lanes(out, axes, value, lanes, machine, parallel)

    def element(index: Sequence[LoopExpr]) -> Stmt:
        at = substitute_vars(value, dict(zip(axes, index, strict=True)))
        return _scalar_reductions(at, lambda done: Store(out, tuple(index), done), machine)

    if not axes:
        return element(())
    return loop(
        math.prod(out.shape),
        lambda flat: element(unflatten(flat, out.shape)),
        LoopKind.PARALLEL if parallel else LoopKind.SERIAL,
        name="element",
    )


def _reduce_in_lanes(
    out: Buffer, axes: Sequence[LoopVar], value: LoopExpr, lanes: int, machine: MachineModel, parallel: bool
) -> Stmt:
    """Each lane reduces its own output element; a tail narrower than a vector goes one by one."""

    def row(prefix: Sequence[LoopExpr]) -> Stmt:
        whole = out.shape[-1] // lanes

        def block(start: LoopExpr, width: int) -> Stmt:
            at = dict(zip(axes[:-1], prefix, strict=True))
            return _lane_block(out, prefix, start, width, axes[-1], substitute_vars(value, at))

        vectors = loop(whole, lambda v: block(v * lanes, lanes), name="v")
        rest = out.shape[-1] - whole * lanes
        tail = loop(rest, lambda j: block(j + whole * lanes, 1), name="tail") if rest else None
        return seq(vectors, tail)

    kind = LoopKind.PARALLEL if parallel else LoopKind.SERIAL
    return loop(math.prod(out.shape[:-1]), lambda r: row(unflatten(r, out.shape[:-1])), kind, name="row")


def _lane_block(
    out: Buffer, prefix: Sequence[LoopExpr], start: LoopExpr, width: int, last: LoopVar, value: LoopExpr
) -> Stmt:
    """Accumulate ``width`` neighbouring outputs at once; all reductions below ``value`` one after the other."""
    found = outer_reductions(value)
    accumulators = [Buffer("acc", (width,), reduce.dtype, "local") for reduce in found]

    def lanes_of(body: Callable[[LoopVar], Stmt]) -> Stmt:
        return loop(width, body, LoopKind.VECTORIZED if width > 1 else LoopKind.UNROLLED, name="lane")

    stmts: list[Stmt] = []
    for reduce, acc in zip(found, accumulators, strict=True):
        stmts.append(lanes_of(lambda lane, r=reduce, a=acc: Store(a, (lane,), identity_of(r.kind, r.dtype))))  # type: ignore[misc]
        update = lanes_of(
            lambda lane, r=reduce, a=acc: Store(  # type: ignore[misc]
                a, (lane,), combine(r.kind, a[lane], substitute_vars(r.value, {last: start + lane}))
            )
        )
        stmts.append(_over(reduce.axes, update))

    def result(lane: LoopVar) -> Stmt:
        done = {id(r): a[lane] for r, a in zip(found, accumulators, strict=True)}
        return Store(out, (*prefix, start + lane), substitute_vars(replace_nodes(value, done), {last: start + lane}))

    body: Stmt = seq(*stmts, lanes_of(result))
    for acc in reversed(accumulators):
        body = Alloc(acc, body)
    return body


def combine(kind: str, left: LoopExpr, right: LoopExpr) -> LoopExpr:
    return binary(_COMBINE[kind], left, right)


def outer_reductions(value: LoopExpr) -> list[Reduce]:
    """The reductions below ``value`` that are not inside another, each object once."""
    found: dict[int, Reduce] = {}
    inner: set[int] = set()
    for node in walk_exprs(value):
        if isinstance(node, Reduce):
            found[id(node)] = node
            inner.update(id(n) for n in walk_exprs(node.value) if isinstance(n, Reduce))
    return [node for key, node in found.items() if key not in inner]


def replace_nodes(expr: LoopExpr, replacement: dict[int, LoopExpr]) -> LoopExpr:
    """``expr`` with the objects named by id replaced.  Works top-down: what is replaced is not rebuilt."""
    done: dict[int, LoopExpr] = dict(replacement)

    def walk(node: LoopExpr) -> LoopExpr:
        if id(node) not in done:
            done[id(node)] = rebuild_expr(node, [walk(child) for child in expr_children(node)])
        return done[id(node)]

    return walk(expr)


def _over(axes: Sequence[tuple[LoopVar, int]], body: Stmt) -> Stmt:
    for var, extent in reversed(axes):
        body = For(var, Const(extent), body)
    return body


def _scalar_reductions(value: LoopExpr, finish: Callable[[LoopExpr], Stmt], machine: MachineModel) -> Stmt:
    """One output element: every reduction into its accumulator, then ``finish`` with what they are replaced by."""
    found = outer_reductions(value)
    if not found:
        return finish(value)
    reduce = found[0]

    def rest(total: LoopExpr) -> Stmt:
        return _scalar_reductions(replace_nodes(value, {id(reduce): total}), finish, machine)

    lanes = machine.lanes(reduce.dtype)
    last, extent = reduce.axes[-1]
    contiguous = extent >= 2 * lanes and _reduces_in_vectors(reduce, last)
    if contiguous and not outer_reductions(reduce.value):
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
    width = lanes * (_UNROLLED_LANES if extent >= 2 * lanes * _UNROLLED_LANES else 1)
    acc = Buffer("acc", (width,), reduce.dtype, "local")
    total = Buffer("total", (), reduce.dtype, "local")
    zero = identity_of(reduce.kind, reduce.dtype)

    def at(position: LoopExpr) -> LoopExpr:
        return substitute_vars(reduce.value, {last: position})

    def vectors(body: Callable[[LoopVar], Stmt]) -> Stmt:
        return loop(width, body, LoopKind.VECTORIZED, name="lane")

    update = loop(
        extent // width,
        lambda v: vectors(lambda k: Store(acc, (k,), combine(reduce.kind, acc[k], at(v * width + k)))),
        name="v",
    )
    remaining = extent % width
    tail = loop(
        remaining,
        lambda j: Store(total, (), combine(reduce.kind, total[()], at(j + extent - remaining))),
        name="tail",
    )
    body = seq(
        vectors(lambda k: Store(acc, (k,), zero)),
        Store(total, (), zero),
        _over(reduce.axes[:-1], seq(update, tail if remaining else None)),
        *_across(acc, width, reduce.kind),
        Store(total, (), combine(reduce.kind, total[()], acc[0])),
        rest(total[()]),
    )
    return Alloc(acc, Alloc(total, body))


def _across(acc: Buffer, width: int, kind: str) -> list[Stmt]:
    """Reduce the lanes to lane 0, halving their number with every step."""
    stmts = []
    while width > 1:
        width //= 2
        stmts.append(
            loop(
                width,
                lambda k, w=width: Store(acc, (k,), combine(kind, acc[k], acc[k + w])),  # type: ignore[misc]
                LoopKind.VECTORIZED,
                name="lane",
            )
        )
    return stmts
