"""Products of words part by part, added up: in one instruction where the machine has it for so many lanes."""

from minitvm.codegen.llvm.arith import aligned, is_unsigned, literal, part_by_part, plain, type_text, typed
from minitvm.codegen.llvm.writer import Val, Writer
from minitvm.ir.dtypes import bits_of
from minitvm.ir.loop import DOT_OPERANDS, Binary, Const, Dot, LoopExpr

_DOTS: dict[tuple[str, Dot], dict[int, str]] = {
    ("x86", "dot4"): {4: "avx512.vpdpbusd.128", 8: "avx512.vpdpbusd.256", 16: "avx512.vpdpbusd.512"},
    ("x86", "dot2"): {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"},
    ("aarch64", "dot4"): {4: "neon.usdot.v4i32.v16i8"},
    ("aarch64", "sdot4"): {4: "neon.sdot.v4i32.v16i8"},
    ("aarch64", "udot4"): {4: "neon.udot.v4i32.v16i8"},
}
"""Instructions that multiply the parts of two words and add them up, by the lanes of their sums; all but those of pairs
add a third word, too."""

_OF_SMALL = {4: "ssse3.pmadd.ub.sw.128", 8: "avx2.pmadd.ub.sw", 16: "avx512.pmaddubs.w.512"}
"""x86's sums of two neighbours' products, unsigned by signed bytes, in 16 bits: which hold those of bytes below 128."""
_AVX2 = 8
"""Lanes of a machine that has them: one of SSE2 may not."""


def dot_of(w: Writer, name: Dot, a: Val, b: Val, total: Val, word: LoopExpr) -> Val:
    """Products of words part by part, added to ``total``; ``word``: what the first one is computed by."""
    return dot(w, name, a, b, total, most_of(word))


def dot(w: Writer, name: Dot, a: Val, b: Val, total: Val, most: int = 255) -> Val:
    """``most``: the largest byte, as an unsigned number, that the first word may have."""
    a, b, total = aligned(w, a, b, total)
    if a.lanes <= w.dot_lanes.get(name, 0):
        for (arch, function), symbols in _DOTS.items():
            if arch in w.dot_lanes and function == name and a.lanes in symbols:
                return _instruction(w, f"@llvm.{arch}.{symbols[a.lanes]}", name, a, b, total)
    if "neon" in w.dot_lanes and a.lanes == 4 and name in _LONG:
        return _long_dot(w, *_LONG[name], a, b, total)
    if "x86" in w.dot_lanes and a.lanes in _OF_SMALL and a.lanes <= (pairs := w.dot_lanes.get("dot2", 0)):
        if most < 128 and name == "dot4" and pairs >= _AVX2:
            return _by_small(w, a, b, total, most)
        return _by_pairs(w, name, a, b, total)
    return part_by_part(w, name, a, b, total)


def most_of(word: LoopExpr) -> int:
    """The largest byte, as an unsigned number, that a mask leaves in a word."""
    if not isinstance(word, Binary) or word.op != "and" or not isinstance(word.rhs, Const):
        return 255
    return max((int(word.rhs.value) & 0xFFFFFFFF).to_bytes(4, "little"))


def _by_pairs(w: Writer, name: Dot, a: Val, b: Val, total: Val) -> Val:
    """Bytes as pairs of 16 bits: those of even number, then the others."""
    half, pairs = literal(8, "int16", 2 * a.lanes), f"<{2 * a.lanes} x i16>"
    halves = [Val(w.pure(f"bitcast {typed(x)} to {pairs}"), "int16", 2 * a.lanes) for x in (a, b)]
    down = ["lshr" if is_unsigned(part) else "ashr" for part in DOT_OPERANDS[name]]
    even = [plain(w, shift, plain(w, "shl", x, half), half) for x, shift in zip(halves, down, strict=True)]
    odd = [plain(w, shift, x, half) for x, shift in zip(halves, down, strict=True)]
    kind = type_text("int32", a.lanes)
    for both in (even, odd):
        first, second = (Val(w.pure(f"bitcast {typed(x)} to {kind}"), "int32", a.lanes) for x in both)
        total = dot(w, "dot2", first, second, total)
    return total


def _by_small(w: Writer, a: Val, b: Val, total: Val, most: int) -> Val:
    """Sums of two products, which 16 bits hold, as pairs by pairs of ones; those of a sum that is one of these already
    are added to them first, as long as 16 bits hold all."""
    symbol, lanes = f"@llvm.x86.{_OF_SMALL[a.lanes]}", a.lanes
    parts, halves = f"<{4 * lanes} x i8>", f"<{2 * lanes} x i16>"
    w.declare(symbol, f"declare {halves} {symbol}({parts}, {parts})")
    operands = ", ".join(f"{parts} {w.pure(f'bitcast {typed(x)} to {parts}')}" for x in (a, b))
    found, largest = w.pure(f"call {halves} {symbol}({operands})"), 2 * 128 * most
    before = w.small_sums.get(total.text)
    if before is not None and before[1] + largest < 1 << 15:
        found, largest, total = w.pure(f"add {halves} {before[0]}, {found}"), before[1] + largest, before[2]
    word = Val(w.pure(f"bitcast {halves} {found} to {type_text('int32', lanes)}"), "int32", lanes)
    result = dot(w, "dot2", word, literal(0x00010001, "int32", lanes), total)
    w.small_sums[result.text] = found, largest, total
    return result


_LONG: dict[str, tuple[str, str]] = {"sdot4": ("smull", "saddlp"), "udot4": ("umull", "uaddlp")}
"""NEON's products of bytes, as wide as they are, and sums of two neighbours."""


def _long_dot(w: Writer, multiply: str, add: str, a: Val, b: Val, total: Val) -> Val:
    """Without an instruction for it: each half's products, added up in pairs, then both halves' pairs."""
    bytes_ = [f"<16 x i8> {w.pure(f'bitcast {typed(x)} to <16 x i8>')}" for x in (a, b)]
    multiply, add, join = (f"@llvm.aarch64.neon.{n}" for n in (f"{multiply}.v8i16", f"{add}.v4i32.v8i16", "addp.v4i32"))
    w.declare(multiply, f"declare <8 x i16> {multiply}(<8 x i8>, <8 x i8>)")
    w.declare(add, f"declare <4 x i32> {add}(<8 x i16>)")
    w.declare(join, f"declare <4 x i32> {join}(<4 x i32>, <4 x i32>)")

    def half(first: int) -> str:
        places = ", ".join(f"i32 {place}" for place in range(first, first + 8))
        parts = [w.pure(f"shufflevector {x}, <16 x i8> poison, <8 x i32> <{places}>") for x in bytes_]
        products = w.pure(f"call <8 x i16> {multiply}({', '.join(f'<8 x i8> {x}' for x in parts)})")
        return f"<4 x i32> {w.pure(f'call <4 x i32> {add}(<8 x i16> {products})')}"

    found = Val(w.pure(f"call <4 x i32> {join}({half(0)}, {half(8)})"), "int32", 4)
    return plain(w, "add", total, found)


def _instruction(w: Writer, symbol: str, name: Dot, a: Val, b: Val, total: Val) -> Val:
    bits = bits_of(DOT_OPERANDS[name][0])
    words, parts = type_text("int32", a.lanes), f"<{32 // bits * a.lanes} x i{bits}>"
    sums = [] if name == "dot2" else [total]
    w.declare(symbol, f"declare {words} {symbol}({', '.join([words] * len(sums) + [parts] * 2)})")
    operands = [*map(typed, sums), *(f"{parts} {w.pure(f'bitcast {typed(x)} to {parts}')}" for x in (a, b))]
    found = Val(w.pure(f"call {words} {symbol}({', '.join(operands)})"), "int32", a.lanes)
    return found if sums else plain(w, "add", total, found)
