"""Expressions of the loop IR to registers; ``int64`` arithmetic is kept symbolic (see :mod:`.writer`)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from minitvm.codegen.llvm import arith, memory
from minitvm.codegen.llvm.arith import type_text
from minitvm.codegen.llvm.writer import Apart, Context, Index, Val, Value, Where, Writer, exact
from minitvm.doors import door
from minitvm.errors import CompilerError
from minitvm.ir.loop import (
    DOT_OPERANDS,
    Binary,
    Buffer,
    Cast,
    Const,
    Dot,
    For,
    Intrin,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Select,
    Seq,
    Stmt,
    Store,
    dependency_order,
    walk_exprs,
)
from minitvm.ir.loop.affine import INT64, Affine, Range, stride_along, weighted_sum

_LONG = 16  # operations of a chain, from which on waiting for it shows


def evaluate(c: Context, expr: LoopExpr) -> Value:
    """The value of ``expr`` here.  Shared nodes are written once; depth costs no stack."""
    known, stack = c.frame.values, [expr]
    while expr not in known:
        node = stack[-1]
        operands = () if node in known else _operands(c, node)
        waiting = [operand for operand in operands if operand not in known]
        if waiting:
            stack += waiting
        elif stack.pop() not in known:
            c.frame.remember(node, _node(c, node), _level(c, node, operands))
    return known[expr]


def _level(c: Context, node: LoopExpr, operands: Sequence[LoopExpr]) -> int:
    """The frame that a value belongs to: its operands', or the innermost where it reads what a store may change."""
    if isinstance(node, Select) or (isinstance(node, Load) and (c.mask is not None or node.buffer not in c.read_only)):
        return c.frame.top
    found, levels = 0, c.frame.levels
    for operand in operands:
        if levels[operand] > found:
            found = levels[operand]
    return found


def register(c: Context, expr: LoopExpr) -> Val:
    """Evaluates an expression as :func:`evaluate` does, into a register."""
    return memory.in_register(c, evaluate(c, expr))


def _operands(c: Context, node: LoopExpr) -> tuple[LoopExpr, ...]:
    """What must be known before the node: of a ``Select`` the condition, its sides may be guarded by it."""
    match node:
        case Binary():
            return node.operands
        case Select():
            return (node.condition,)
        case Load():
            return tuple(c.address(node).terms)
        case Intrin("same_memory", elements):
            return tuple(term for e in elements for term in _operands(c, e))
    return node.operands


def place(c: Context, access: Load | Store) -> Where:
    """The element's number from the buffer's base."""
    form = c.address(access)
    factors, values = form.terms.values(), [evaluate(c, term) for term in form.terms]
    found = [value for value in values if isinstance(value, Affine)]
    if len(found) == len(values):
        return weighted_sum(found, factors, form.constant)
    if not any(isinstance(value, list) for value in values):
        return memory.apart(c, list(zip(values, factors, strict=True)), form.constant)
    by_lane = zip(*(memory.lane_values(c, value) for value in values), strict=True)
    return [weighted_sum(lane, factors, form.constant) for lane in by_lane]


def _is_inside(buffer: Buffer, place: Where) -> bool:
    """True if memory of the buffer is known to be there, in every lane: of another row, perhaps."""
    last = buffer.size - 1
    if not isinstance(last, int) or isinstance(place, Apart):
        return False
    return all(exact(part).within(0, last) for part in (place if isinstance(place, list) else [place]))


def _node(c: Context, node: LoopExpr) -> Value:
    match node:
        case Binary(op, lhs, rhs):
            return _binary(c, op, c.frame.values[lhs], c.frame.values[rhs])
        case Const(value, dtype):
            return Affine(int(value)) if dtype == "int64" else arith.literal(value, dtype)
        case Load():
            where = place(c, node)
            mask = None if c.mask is None or _is_inside(node.buffer, where) else c.mask
            return memory.load(c, node.buffer, where, mask)
        case Select():
            return _select(c, node)
        case Cast(Intrin("round", (value,)), "int8" | "uint8" | "int16" | "int32" as dtype) if value.dtype == "float32":
            return c.symbolic(arith.rounded(c.w, memory.in_register(c, c.frame.values[value]), dtype))
        case Cast(value, dtype):
            return _cast(c, c.frame.values[value], dtype)
        case Intrin("same_memory", (Load() as a, Load() as b)):
            return c.symbolic(memory.same(c, *((e.buffer, place(c, e)) for e in (a, b))))
        case Intrin(name, args):
            operands = tuple(memory.in_register(c, c.frame.values[a]) for a in args)
            if name in DOT_OPERANDS:
                first, second, total = operands
                return c.symbolic(dot_of(c.w, name, first, second, total, args[0]))
            return c.symbolic(arith.intrinsic(c.w, name, operands))
    raise CompilerError(f"{type(node).__name__} cannot be emitted", hint="lower reductions to loops first")


@door
def dot_of(w: Writer, name: Dot, a: Val, b: Val, total: Val, word: LoopExpr) -> Val:
    """Products of words part by part, added to ``total``, whatever instructions there are for it."""
    a, b, total = arith.aligned(w, a, b, total)
    return arith.part_by_part(w, name, a, b, total)


def _binary(c: Context, op: str, a: Value, b: Value) -> Value:
    if not isinstance(a, Val) and not isinstance(b, Val):
        return memory.index_binary(c, op, a, b)
    return c.symbolic(arith.binary(c.w, op, memory.in_register(c, a), memory.in_register(c, b)))


_RANGES = {"bool": Range(0, 1)} | {
    f"{sign}int{bits}": Range(0, 2**bits - 1) if sign else Range(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for bits in (8, 16, 32)
    for sign in ("", "u")
}


def _cast(c: Context, value: Value, dtype: str) -> Value:
    source = memory.in_register(c, value)
    found = arith.cast(c.w, source, dtype)
    return c.symbolic(found, _RANGES.get(source.dtype, INT64))


def _select(c: Context, node: Select) -> Value:
    condition = memory.in_register(c, c.frame.values[node.condition])
    if condition.text in ("true", "false"):
        return evaluate(c, node.then if condition.text == "true" else node.orelse)
    guarded = _needs_guard(c, node.then) or _needs_guard(c, node.orelse)
    if guarded and condition.lanes:
        return _masked_sides(c, condition, node)
    if guarded:
        return _branch(c, condition, node)
    then, orelse = evaluate(c, node.then), evaluate(c, node.orelse)
    if isinstance(then, Affine) and isinstance(orelse, Affine) and not condition.lanes:
        return _choose(c, condition, then, orelse)
    return c.symbolic(arith.select(c.w, condition, memory.in_register(c, then), memory.in_register(c, orelse)))


def _choose(c: Context, condition: Val, a: Index, b: Index) -> Value:
    """``select`` of two indices under a scalar condition; the lane's stride survives where both have it."""
    gap = a.plus(b, -1)
    if c.step(gap) or not exact(gap).fits:
        return c.symbolic(arith.select(c.w, condition, memory.in_register(c, a), memory.in_register(c, b)))
    if not c.step(a):
        found = arith.select(c.w, condition, Val(memory.scalar(c, a), "int64"), Val(memory.scalar(c, b), "int64"))
        return c.symbolic(found, exact(a).hull(exact(b)))
    moved = arith.select(c.w, condition, Val(memory.scalar(c, gap), "int64"), arith.literal(0, "int64"))
    shift = c.symbolic(moved, exact(gap).hull(Range(0, 0)))
    assert isinstance(shift, Affine)
    return b.plus(shift)


def _needs_guard(c: Context, side: LoopExpr) -> bool:
    """True where a load below may be out of bounds unless the side is chosen."""
    below = dependency_order([side], lambda n: () if n in c.frame.values else n.operands)
    return any(isinstance(n, Load) and n not in c.frame.values and not _is_safe(c, n) for n in below)


def _is_safe(c: Context, node: Load) -> bool:
    """True where the address is in bounds whatever the guard says; indices that read memory are not looked into."""
    return not any(i.reads for i in node.index) and _is_inside(node.buffer, place(c, node))


def _masked_sides(c: Context, condition: Val, node: Select) -> Value:
    with masked(c, condition):
        then = register(c, node.then)
    with masked(c, negate(c, condition)):
        orelse = register(c, node.orelse)
    return arith.select(c.w, condition, then, orelse)


def negate(c: Context, condition: Val) -> Val:
    return arith.intrinsic(c.w, "not", (condition,))


@contextmanager
def masked(c: Context, mask: Val) -> Iterator[None]:
    """Only the lanes of ``mask`` (and of the masks around) do what is written inside."""
    outer = c.mask
    c.mask = mask if outer is None else arith.logic(c.w, "and", outer, mask)
    with c.frame:
        yield
    c.mask = outer


def _branch(c: Context, condition: Val, node: Select) -> Value:
    """Control flow: only the chosen side runs."""
    w = c.w
    labels = w.name("yes"), w.name("no"), w.name("join")
    w.branch(condition.text, labels[0], labels[1])
    arms: list[tuple[Val, str]] = []
    for label, side in zip(labels, (node.then, node.orelse), strict=False):
        w.label(label)
        arms.append(_arm(c, side))
        w.jump(labels[2])
    w.label(labels[2])
    return c.symbolic(_join(c, arms))


def _arm(c: Context, side: LoopExpr) -> tuple[Val, str]:
    """A side's value in as many lanes as the loop has, and the block it is in."""
    with c.w.scope(), c.block():
        value = arith.splat(c.w, register(c, side), c.lanes) if c.lanes else register(c, side)
        return value, c.w.block


def _join(c: Context, arms: list[tuple[Val, str]]) -> Val:
    first = arms[0][0]
    kind = type_text(first.dtype, first.lanes)
    incoming = ", ".join(f"[ {value.text}, %{block} ]" for value, block in arms)
    return Val(c.w.op(f"phi {kind} {incoming}"), first.dtype, first.lanes)


def long_chains(stmt: Stmt, results: Sequence[Buffer]) -> int:
    """The number of results that are stored in an iteration, by much arithmetic of what is no result (:mod:`.turns`)
    or lane by lane; 0 where that is not all that is done."""
    count, lanes = 1, dict[LoopVar, int]()
    while isinstance(stmt, For) and stmt.kind in (LoopKind.UNROLLED, LoopKind.VECTORIZED):
        extent = int(stmt.extent.value) if isinstance(stmt.extent, Const) else 0
        if stmt.kind is LoopKind.UNROLLED:
            count *= extent
        else:
            lanes[stmt.var] = 2 * extent  # each is taken out of the vector, and stored
        stmt = stmt.body
    stores = stmt.stmts if isinstance(stmt, Seq) else (stmt,)
    longest = 0
    for store in stores:
        if not isinstance(store, Store) or store.buffer not in results or not store.value.mentions.isdisjoint(results):
            return 0
        steps = (n for n in walk_exprs(store.value) if isinstance(n, (Binary, Intrin)) and n.dtype.startswith("float"))
        apart = (n for var, n in lanes.items() if stride_along(store.buffer, store.index, var) not in (0, 1))
        longest = max(longest, sum(1 for _ in steps), *apart)
    return count * len(stores) if longest >= _LONG else 0
