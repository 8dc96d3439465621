"""``int64`` arithmetic, kept symbolic, and loads and stores: addresses, strides along the lanes, masks."""

from collections.abc import Sequence
from functools import partial, reduce
from math import gcd

from minitvm.codegen.llvm import arith
from minitvm.codegen.llvm.arith import BYTES, mangled, memory_text, typed
from minitvm.codegen.llvm.writer import (
    Apart,
    Context,
    Index,
    Lanes,
    NotVectorizable,
    Val,
    Value,
    Where,
    exact,
    power_of_two,
    reach,
)
from minitvm.ir.loop import COMPARISONS, Buffer
from minitvm.ir.loop.affine import INT64, Affine, Range, weighted_sum

_MOST_APART = 8
"""Elements between lanes, up to which whole vectors are read."""
_MASKED, _LOADS_MASKED = 64, 32
"""Bytes of vectors from which on masks are cheap: in AVX-512; in AVX in loads only, of 4 bytes and more."""
_LOADS_WORTH_A_MASK = 3
"""Two loads are cheaper than one that reaches into the next cache line more often."""


def scalar(c: Context, value: Index) -> str:
    """The register or literal of a value that is the same in all lanes."""
    if not value.terms:
        return arith.constant(value.constant, "int64")
    exactly = " nsw" if len(value.terms) == 1 and exact(value).within(1 - 2**62, 2**62 - 1) else ""
    text = ""
    for atom, factor in c.in_order(value):
        times = arith.constant(factor, "int64")
        part = atom.text if factor == 1 else c.w.pure(f"mul{exactly} i64 {atom.text}, {times}")
        text = c.w.pure(f"add i64 {text}, {part}") if text else part
    if value.constant:
        text = c.w.pure(f"add{exactly} i64 {text}, {arith.constant(value.constant, 'int64')}")
    return text


def ramp(step: int, lanes: int, dtype: str) -> Val:
    """``0, step, 2 * step, ...`` as a literal."""
    kind = "i32" if dtype == "int32" else "i64"
    return Val("<" + ", ".join(f"{kind} {step * i}" for i in range(lanes)) + ">", dtype, lanes)


def in_register(c: Context, value: Value) -> Val:
    """Any value as a register."""
    if isinstance(value, Val):
        return value
    if isinstance(value, list):
        return arith.gather_lanes(c.w, [Val(scalar(c, v), "int64") for v in value])
    first, step = Val(scalar(c, c.in_lane(value, 0)), "int64"), c.step(value)
    return arith.binary(c.w, "add", arith.splat(c.w, first, c.lanes), ramp(step, c.lanes, "int64")) if step else first


def lane_values(c: Context, value: Value) -> Lanes:
    """One symbolic scalar per lane."""
    if isinstance(value, list):
        return value
    if isinstance(value, Affine):
        return [c.in_lane(value, i) for i in range(c.lanes)]
    found = [c.symbolic(arith.lane(c.w, value, i)) for i in range(c.lanes)]
    return [v for v in found if isinstance(v, Affine)]


def index_binary(c: Context, op: str, a: Index | Lanes, b: Index | Lanes) -> Value:
    """``Binary`` over ``int64`` operands of which neither is a vector register."""
    if isinstance(a, Affine) and isinstance(b, Affine):
        if op in COMPARISONS:
            return _compare(c, op, a, b)
        found = _linear(c, op, a, b)
        if found is not None:
            return found
        if not c.step(a) and not c.step(b):
            return _scalar_op(c, op, a, b)
        if op not in _PER_LANE:
            return arith.binary(c.w, op, in_register(c, a), in_register(c, b))
    results = [index_binary(c, op, x, y) for x, y in zip(lane_values(c, a), lane_values(c, b), strict=True)]
    if op in COMPARISONS:
        return arith.gather_lanes(c.w, [in_register(c, r) for r in results])
    return [r for r in results if isinstance(r, Affine)]


_PER_LANE = frozenset({"mul", "floordiv", "floormod", "min", "max"})
"""What indices are made of; other operators on lane-dependent integers are data, in vector registers."""


def _linear(c: Context, op: str, a: Index, b: Index) -> Index | None:
    """The result where it is a linear combination, else ``None``."""
    if op in ("add", "sub"):
        return a.plus(b, 1 if op == "add" else -1)
    if op == "mul" and not (a.terms and b.terms):
        return a.scaled(b.constant) if a.terms else b.scaled(a.constant)
    if op in ("min", "max") and exact(a).fits and exact(b).fits:
        for least, most in ((a, b), (b, a)):
            if exact(least.plus(most, -1)).decides("le"):
                return least if op == "min" else most
    return _divided(c, op, a, b) if _divides(op, b) and exact(a).fits else None


def _divides(op: str, divisor: Index) -> bool:
    return op in ("floordiv", "floormod") and not divisor.terms and divisor.constant > 0


def _divided(c: Context, op: str, a: Index, divisor: Index) -> Index | None:
    quotient, rest = a.split(divisor.constant)
    if not (exact(quotient).fits and exact(rest).fits):
        return None
    if exact(rest).within(0, divisor.constant - 1):
        return quotient if op == "floordiv" else rest
    if not quotient.terms or c.step(rest):
        return None
    found = index_binary(c, op, rest, divisor)
    assert isinstance(found, Affine)
    return found if op == "floormod" else quotient.plus(found)


def _scalar_op(c: Context, op: str, a: Index, b: Index) -> Value:
    x, y, where = Val(scalar(c, a), "int64"), Val(scalar(c, b), "int64"), exact(a)
    if _divides(op, b) and where.fits and where.decides("lt") is False:
        text = c.w.pure(f"{'udiv' if op == 'floordiv' else 'urem'} i64 {x.text}, {b.constant}")
        return c.symbolic(Val(text, "int64"), where.divided(op, b.constant))
    return c.symbolic(arith.binary(c.w, op, x, y), _reach(op, a, b))


def _reach(op: str, a: Index, b: Index) -> Range:
    x, y = reach(a), reach(b)
    if _divides(op, b):
        return x.divided(op, b.constant)
    return x.least(y) if op == "min" else x.greatest(y) if op == "max" else x.times(y) if op == "mul" else INT64


def _compare(c: Context, op: str, a: Index, b: Index) -> Val:
    gap, fit = a.plus(b, -1), exact(a).fits and exact(b).fits
    decided = exact(gap).decides(op) if fit else None
    if decided is not None:
        return arith.literal(decided, "bool")
    if not c.step(a) and not c.step(b):
        return arith.compare(c.w, op, Val(scalar(c, a), "int64"), Val(scalar(c, b), "int64"))
    room = 2**31 - 1 - abs(c.step(gap)) * c.lanes
    if fit and c.step(gap) and exact(gap).within(-room, room):
        return _compare_ramp(c, op, gap)
    return arith.compare(c.w, op, in_register(c, a), in_register(c, b))


def _compare_ramp(c: Context, op: str, gap: Index) -> Val:
    """``gap < 0`` lane by lane, in 32 bits: the literal ramp against minus the value of lane 0."""
    base = Val(scalar(c, c.in_lane(gap, 0).scaled(-1)), "int64")
    if base.text.startswith("%"):
        base = Val(c.w.pure(f"trunc i64 {base.text} to i32"), "int32")
    return arith.compare(c.w, op, ramp(c.step(gap), c.lanes, "int32"), Val(base.text, "int32"))


# --- loads and stores -----------------------------------------------------------------------------------------


def pointer(c: Context, buffer: Buffer, flat: Index) -> str:
    """The address, outer loops' terms first (they move out of inner loops), the constant last (it folds into
    the instruction)."""
    base, element = c.places[buffer].base, memory_text(buffer.dtype)

    def moved() -> str:
        text = base
        for atom, factor in c.in_order(flat):
            offset = atom.text if factor == 1 else c.w.pure(f"mul i64 {atom.text}, {factor}")
            text = c.w.pure(f"getelementptr {element}, ptr {text}, i64 {offset}")
        return text

    text = c.w.once((base, element, *flat.terms.items()), moved)
    return c.w.pure(f"getelementptr {element}, ptr {text}, i64 {flat.constant}") if flat.constant else text


def _alignment(c: Context, buffer: Buffer, flat: Index) -> int:
    """What a buffer's 64-byte base and the visible factors guarantee.  An input may lie where its owner put it."""
    size = BYTES[buffer.dtype]
    if buffer in c.read_only:
        return size
    found = gcd(64, flat.constant * size)
    for factor in flat.terms.values():
        found = gcd(found, factor * size)
    return found


def _from_memory(c: Context, text: str, dtype: str, lanes: int = 0) -> Val:
    if dtype != "bool":
        return Val(text, dtype, lanes)
    return arith.compare(c.w, "ne", Val(text, "uint8", lanes), arith.literal(0, "uint8", lanes))


def _to_memory(c: Context, value: Val) -> Val:
    if value.dtype != "bool":
        return value
    text = c.w.pure(f"zext {typed(value)} to {memory_text('bool', value.lanes)}")
    return Val(text, "uint8", value.lanes)


def apart(c: Context, terms: Sequence[tuple[Value, int]], constant: int) -> Apart:
    """A sum of products of which registers with a number for each lane are a part; none is a list."""
    known = [(value, factor) for value, factor in terms if isinstance(value, Affine)]
    start = weighted_sum([value for value, _ in known], [factor for _, factor in known], constant)
    step = c.step(start)
    more = [ramp(step, c.lanes, "int64")] if step else []
    for value, factor in terms:
        if isinstance(value, Val):
            times = arith.literal(factor, "int64", c.lanes)
            more.append(value if factor == 1 else arith.binary(c.w, "mul", value, times))
    return Apart(c.in_lane(start, 0), reduce(partial(arith.binary, c.w, "add"), more))


def _each(c: Context, flat: Lanes | Apart) -> Lanes:
    if isinstance(flat, list):
        return flat
    return [flat.start.plus(element) for element in lane_values(c, flat.more)]


def load(c: Context, buffer: Buffer, place: Where, mask: Val | None) -> Value:
    """The element of that number from the buffer's base; lanes that a mask leaves out touch no memory."""
    flat = _in_place(c, buffer, place)
    if isinstance(flat, (list, Apart)):
        return _load_lanes(c, buffer, flat, mask)
    step = c.step(flat)
    if not step:
        return c.symbolic(_load_scalar(c, buffer, flat, mask))
    if step == 1:
        return _load_vector(c, buffer, c.in_lane(flat, 0), c.lanes, mask)
    if mask is None and (step == -1 or 2 <= step <= _MOST_APART):
        return _load_shuffled(c, buffer, flat)
    return _load_lanes(c, buffer, lane_values(c, flat), mask)


def same(c: Context, a: tuple[Buffer, Where], b: tuple[Buffer, Where]) -> Val:
    """Tells whether two elements lie at one address."""
    first, second = (pointer(c, buffer, place) for buffer, place in (a, b) if isinstance(place, Affine))
    return Val(c.w.pure(f"icmp eq ptr {first}, {second}"), "bool")


def prefetch(c: Context, buffer: Buffer, place: Where, level: int) -> None:
    """The line of an element to a level's cache."""
    assert isinstance(place, Affine)
    c.w.declare("@llvm.prefetch.p0", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    c.w.do(f"call void @llvm.prefetch.p0(ptr {pointer(c, buffer, place)}, i32 0, i32 {4 - level}, i32 1)")


def _in_place(c: Context, buffer: Buffer, place: Where) -> Where:
    """Copies of a buffer for every lane are interleaved."""
    copies = c.places[buffer].lanes
    if not copies:
        return place
    if isinstance(place, (list, Apart)):
        return [element.scaled(copies).plus(Affine(i)) for i, element in enumerate(_each(c, place))]
    assert c.lane is not None
    return place.scaled(copies).plus(Affine.of(c.lane))


def _load_scalar(c: Context, buffer: Buffer, flat: Index, mask: Val | None = None) -> Val:
    address = pointer(c, buffer, flat)
    if mask is not None:
        address = c.w.pure(f"select i1 {any_lane(c, mask).text}, ptr {address}, ptr {c.scratch()}")
    return _read(c, buffer, memory_text(buffer.dtype), address, BYTES[buffer.dtype])


def _read(c: Context, buffer: Buffer, kind: str, address: str, align: int, lanes: int = 0) -> Val:
    return _from_memory(c, _once(c, buffer, f"load {kind}, ptr {address}, align {align}"), buffer.dtype, lanes)


def _once(c: Context, buffer: Buffer, text: str) -> str:
    """A load; what nobody writes is read once."""
    return c.w.pure(text, reads=True) if buffer in c.read_only else c.w.op(text)


def any_lane(c: Context, mask: Val) -> Val:
    symbol = f"@llvm.vector.reduce.or.v{mask.lanes}i1"
    c.w.declare(symbol, f"declare i1 {symbol}(<{mask.lanes} x i1>)")
    return Val(c.w.pure(f"call i1 {symbol}({typed(mask)})"), "bool")


def _load_vector(c: Context, buffer: Buffer, first: Index, lanes: int, mask: Val | None) -> Val:
    address, align = pointer(c, buffer, first), _alignment(c, buffer, first)
    if mask is None:
        width = _width(c, buffer, first, lanes)
        few = width.bit_count() < _LOADS_WORTH_A_MASK
        mask = None if few else _odd(c, buffer, width, _MASKED if BYTES[buffer.dtype] < 4 else _LOADS_MASKED)
        if mask is None:
            return _resized(c, _read(c, buffer, memory_text(buffer.dtype, width), address, align, width), lanes)
    text = _masked(c, "load", buffer, address, align, mask)
    return _resized(c, _from_memory(c, text, buffer.dtype, mask.lanes), lanes)


def _width(c: Context, buffer: Buffer, first: Index, lanes: int) -> int:
    """Lanes of memory that an access may have: those behind the end of an accumulator are padding.

    LLVM keeps a vector of 13 lanes in 13 registers from one block to the next.
    """
    place, width = c.places[buffer], power_of_two(lanes)
    ends = not first.terms and first.constant + lanes == buffer.size * max(1, place.lanes)
    return width if place.padded and ends and first.constant % width == 0 else lanes


def _odd(c: Context, buffer: Buffer, lanes: int, least: int) -> Val | None:
    """The mask for the first ``lanes`` of a power of two, where vectors have ``least`` bytes; LLVM makes an access for
    each bit of ``lanes``.  Not in a thread's own memory: what is stored under a mask is not forwarded to loads."""
    wide = power_of_two(lanes)
    if lanes == wide or c.machine.vector_bytes < least or c.places[buffer].padded:
        return None
    return Val("<" + ", ".join(f"i1 {int(i < lanes)}" for i in range(wide)) + ">", "bool", wide)


def _load_shuffled(c: Context, buffer: Buffer, flat: Index) -> Val:
    """Every second (third, ...) element, or backwards, one register of the machine after the other."""
    width = c.machine.lanes(buffer.dtype)
    found: Val | None = None
    for first in range(0, c.lanes, width):
        part = _one_register(c, buffer, flat, first, min(width, c.lanes - first))
        found = part if found is None else _joined(c, found, part)
    assert found is not None
    return found


def _one_register(c: Context, buffer: Buffer, flat: Index, first: int, lanes: int) -> Val:
    """Lanes from ``first`` on: whole vectors, then shuffles of two at a time.

    Reads nothing beyond the last element: the last vector ends with it.
    """
    if c.step(flat) == -1:
        whole = _load_vector(c, buffer, c.in_lane(flat, first + lanes - 1), lanes, None)
        return _shuffle(c, whole, whole, range(lanes - 1, -1, -1))
    begin = c.in_lane(flat, first)
    if c.step(flat) == 2 and _in_pairs(buffer, begin):
        odd = begin.constant % 2
        low, high = (_load_vector(c, buffer, begin.plus(Affine(at - odd)), lanes, None) for at in (0, lanes))
        return _shuffle(c, low, high, [2 * i + odd for i in range(lanes)])
    last = (lanes - 1) * c.step(flat) + 1 - lanes  # where the last vector begins
    found: Val | None = None
    known = 0
    for start in [min(piece * lanes, last) for piece in range(-(-last // lanes) + 1)]:
        part = _load_vector(c, buffer, begin.plus(Affine(start)), lanes, None)
        reached = min(lanes, (start + lanes - 1) // c.step(flat) + 1)
        picked = [i if i < known else lanes + i * c.step(flat) - start for i in range(reached)]
        found = _shuffle(c, part if found is None else found, part, [*picked, *[0] * (lanes - reached)])
        known = reached
    assert found is not None
    return found


def _in_pairs(buffer: Buffer, first: Index) -> bool:
    """True where ``first`` is known to be even or odd and elements of both kinds come in pairs up to the end."""
    return all(factor % 2 == 0 for factor in first.terms.values()) and buffer.size % 2 == 0


def _joined(c: Context, a: Val, b: Val) -> Val:
    """The lanes of ``a``, then those of ``b``, which has no more."""
    return _shuffle(c, a, _resized(c, b, a.lanes), [*range(a.lanes), *range(a.lanes, a.lanes + b.lanes)])


def _resized(c: Context, value: Val, lanes: int) -> Val:
    """Its first lanes, and any where it has fewer."""
    return value if value.lanes == lanes else _shuffle(c, value, value, [i * (i < value.lanes) for i in range(lanes)])


def _shuffle(c: Context, a: Val, b: Val, picked: Sequence[int]) -> Val:
    """Lanes of two vectors of one width; those of ``b`` are numbered after those of ``a``."""
    order = ", ".join(f"i32 {p}" for p in picked)
    text = c.w.pure(f"shufflevector {typed(a)}, {typed(b)}, <{len(picked)} x i32> <{order}>")
    return Val(text, a.dtype, len(picked))


def _load_lanes(c: Context, buffer: Buffer, flat: Lanes | Apart, mask: Val | None) -> Val:
    if mask is None:
        near = (_load_near(c, buffer, flat) or _load_pair(c, buffer, flat)) if isinstance(flat, list) else None
        return near or arith.gather_lanes(c.w, [_load_scalar(c, buffer, f) for f in _each(c, flat)])
    text = _masked(c, "gather", buffer, _pointers(c, buffer, flat), BYTES[buffer.dtype], mask)
    return _from_memory(c, text, buffer.dtype, c.lanes)


def _masked(c: Context, what: str, buffer: Buffer, where: str, align: int, mask: Val, value: Val | None = None) -> str:
    """A masked ``load``, ``store``, ``gather`` or ``scatter`` (of all lanes' addresses): a register where it loads."""
    lanes = mask.lanes
    kind, masks = memory_text(buffer.dtype, lanes), f"<{lanes} x i1>"
    pointers, suffix = (f"<{lanes} x ptr>", f"v{lanes}p0") if what in ("gather", "scatter") else ("ptr", "p0")
    symbol = f"@llvm.masked.{what}.{mangled('uint8' if buffer.dtype == 'bool' else buffer.dtype, lanes)}.{suffix}"
    place = f"{pointers} align {align} {where}, {typed(mask)}"
    if value is not None:
        c.w.declare(symbol, f"declare void {symbol}({kind}, {pointers}, {masks})")
        c.w.do(f"call void {symbol}({typed(value)}, {place})")
        return ""
    c.w.declare(symbol, f"declare {kind} {symbol}({pointers}, {masks}, {kind})")
    return _once(c, buffer, f"call {kind} {symbol}({place}, {kind} zeroinitializer)")


def _load_near(c: Context, buffer: Buffer, flat: Lanes) -> Val | None:
    """One vector and a shuffle, where lanes read elements that lie together: ``x[lane // 2]``."""
    at = [element.constant for element in flat]
    low, span = min(at), max(at) - min(at) + 1
    if not 1 < span <= c.lanes or any(element.terms != flat[0].terms for element in flat):
        return None
    whole = _load_vector(c, buffer, flat[at.index(low)], span, None)
    return _shuffle(c, whole, whole, [position - low for position in at])


def _load_pair(c: Context, buffer: Buffer, flat: Lanes) -> Val | None:
    """Two vectors of a thread's own memory and a shuffle, where lanes read elements of these."""
    at = [element.constant for element in flat]
    vectors = sorted({position // c.lanes for position in at})
    if len(vectors) != 2 or not c.places[buffer].padded or any(element.terms for element in flat):
        return None
    low, high = (_load_vector(c, buffer, Affine(number * c.lanes), c.lanes, None) for number in vectors)
    return _shuffle(c, low, high, [p % c.lanes + c.lanes * (p // c.lanes == vectors[1]) for p in at])


def _pointers(c: Context, buffer: Buffer, flat: Lanes | Apart) -> str:
    if isinstance(flat, Apart):
        base = pointer(c, buffer, flat.start)
        return c.w.pure(f"getelementptr {memory_text(buffer.dtype)}, ptr {base}, {typed(flat.more)}")
    text = "poison"
    for i, element in enumerate(flat):
        text = c.w.pure(f"insertelement <{c.lanes} x ptr> {text}, ptr {pointer(c, buffer, element)}, i64 {i}")
    return text


def store(c: Context, buffer: Buffer, place: Where, value: Val) -> None:
    """Stores the element of that number from the buffer's base."""
    flat, value = _in_place(c, buffer, place), _to_memory(c, value)
    if isinstance(flat, Apart):
        _store_lanes(c, buffer, flat, value)
    elif isinstance(flat, list) or c.step(flat) not in (0, 1):
        _store_lanes(c, buffer, lane_values(c, flat), value)
    elif c.step(flat):
        _store_vector(c, buffer, c.in_lane(flat, 0), arith.splat(c.w, value, c.lanes))
    elif c.lanes:
        _store_uniform(c, buffer, flat, value)
    else:
        _store_one(c, buffer, flat, value)


def _store_one(c: Context, buffer: Buffer, flat: Index, value: Val) -> None:
    c.w.do(f"store {typed(value)}, ptr {pointer(c, buffer, flat)}, align {BYTES[buffer.dtype]}")


def _store_uniform(c: Context, buffer: Buffer, flat: Index, value: Val) -> None:
    """All lanes store to one element: the last one's value stays.  One that differs by lane is a serial loop's job."""
    if value.lanes:
        raise NotVectorizable
    if c.mask is None:
        _store_one(c, buffer, flat, value)
        return
    with c.when(any_lane(c, c.mask).text):
        _store_one(c, buffer, flat, value)


def _store_vector(c: Context, buffer: Buffer, first: Index, value: Val) -> None:
    address, align = pointer(c, buffer, first), _alignment(c, buffer, first)
    mask = c.mask
    if mask is None:
        width = _width(c, buffer, first, c.lanes)
        mask = _odd(c, buffer, width, _MASKED)
        if mask is None:
            c.w.do(f"store {typed(_resized(c, value, width))}, ptr {address}, align {align}")
            return
    _masked(c, "store", buffer, address, align, mask, _resized(c, value, mask.lanes))


def _store_lanes(c: Context, buffer: Buffer, flat: Lanes | Apart, value: Val) -> None:
    if c.mask is None:
        for i, element in enumerate(_each(c, flat)):
            _store_one(c, buffer, element, arith.lane(c.w, value, i))
        return
    whole = arith.splat(c.w, value, c.lanes)
    _masked(c, "scatter", buffer, _pointers(c, buffer, flat), BYTES[buffer.dtype], c.mask, whole)
