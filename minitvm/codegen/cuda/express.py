"""Expressions as CUDA C: what is shared within a statement gets a name, a select only touches the side it chooses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from minitvm.codegen.cuda import spell
from minitvm.codegen.legalize import machine_form
from minitvm.codegen.simplify import simplify_expr
from minitvm.errors import CompilerError
from minitvm.ir.dtypes import bits_of, is_float
from minitvm.ir.loop import (
    COMPARISONS,
    DOT_OPERANDS,
    Binary,
    Buffer,
    Cast,
    Const,
    Intrin,
    Load,
    LoopExpr,
    LoopVar,
    Select,
    Shuffle,
    dependency_order,
    map_expr,
)
from minitvm.ir.loop.affine import Range, Ranges, address, bounds
from minitvm.ir.loop.text import ATOM, Piece, fresh, infix, operand

_DEEP = 200  # nodes of a statement
PREFIX = 8  # how tightly a cast or a sign binds
_LONG = 100  # characters after which a value gets a line of its own


class Shared:
    """Expressions of one statement (:func:`flat`), and how often each part is used."""

    def __init__(self, roots: Sequence[LoopExpr]) -> None:
        order = dependency_order(roots)
        self.roots = roots
        self.uses = Counter(child for node in order for child in node.operands)
        self.loads: set[LoopExpr] = set()
        self.deep = len(order) > _DEEP
        self.chooses = any(isinstance(node, Select) for node in order)
        for node in order:
            if isinstance(node, Load) or any(c in self.loads for c in node.operands):
                self.loads.add(node)
        self._always: dict[LoopExpr, dict[LoopExpr, None]] = {}

    def always(self, node: LoopExpr) -> dict[LoopExpr, None]:
        """The shared nodes with loads that are evaluated whenever ``node`` is, whatever selects choose, in order."""
        if node not in self._always:
            found = {} if self.uses[node] < 2 or node not in self.loads else {node: None}
            if isinstance(node, Select):
                then, orelse = self.always(node.then), self.always(node.orelse)
                found |= self.always(node.condition) | {k: None for k in then if k in orelse}
            else:
                for child in node.operands:
                    found |= self.always(child)
            self._always[node] = found
        return self._always[node]


def identifier(name: str, prefix: str) -> str:
    """``name`` as C allows it; ``prefix`` sets apart what is a word of the language, or of the printer's own."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    taken = not plain or plain[0].isdigit() or plain.rstrip("f") in _RESERVED or plain in _RESERVED
    return prefix + plain if taken or re.fullmatch(r"tmp\d+", plain) else plain


class Names:
    """Identifiers of buffers and loop variables: readable, and none twice at a time; the type that indices have.

    Registers are of 32 bits, so ``int`` serves as long as all indices are known to fit (``fits``).
    """

    def __init__(self, index: str = "int") -> None:
        self.given: dict[Buffer | LoopVar, str] = {}
        self.index = index
        self.fits = True
        self._count = 0

    def met(self, found: Range) -> None:
        """Names an index when it is first met."""
        self.fits = self.fits and (found.is_empty or found.within(1 - 2**31, 2**31 - 1))

    def of(self, thing: Buffer | LoopVar) -> str:
        if thing not in self.given:
            self.given[thing] = fresh(identifier(thing.name, "v_"), self.given.values(), "_")
        return self.given[thing]

    def temporary(self) -> str:
        self._count += 1
        return f"tmp{self._count}"


_KEYWORDS = """
    auto bool break case char class const continue default delete do double else enum extern float for goto if inline
    int long new operator private public register return short signed sizeof static struct switch template this
    dynamic typedef union unsigned void volatile while true false and or not xor asm main y0 y1 j0 j1 gamma
    blockIdx threadIdx blockDim gridDim warpSize
"""
_RESERVED = frozenset(re.findall(r"\w+", " ".join((_KEYWORDS, *spell.INTRINSIC.values(), *spell.HELPERS))))


class Writer:
    """Writes one statement's values as lines of declarations and texts of roots."""

    def __init__(self, names: Names, ranges: Ranges, helpers: set[str], shared: Shared) -> None:
        self.names, self.ranges, self.helpers, self.shared = names, ranges, helpers, shared
        self.lines: list[str] = []
        self.pad = ""
        self.scopes: list[dict[LoopExpr, str]] = [{}]

    def root(self, node: LoopExpr) -> str:
        """:meth:`text`, from the leaves upwards where Python's stack would not suffice: long parts get names."""
        self._name_parts(node)
        if self.shared.chooses and not self.shared.deep:
            for common in self.shared.always(node):  # before a choice, in which it would be computed for itself
                if common is not node:
                    self.piece(common)
        return self.text(node)

    def _name_parts(self, *nodes: LoopExpr) -> None:
        if self.shared.deep:
            for part in dependency_order(nodes, self._always):
                self.piece(part)

    def _always(self, node: LoopExpr) -> tuple[LoopExpr, ...]:
        """Operands that are evaluated whatever a select chooses."""
        return (node.condition,) if isinstance(node, Select) else node.operands

    def text(self, node: LoopExpr) -> str:
        return self.piece(node)[0]

    def operand(self, node: LoopExpr) -> str:
        """Its text, in brackets where it is an operation."""
        return operand(self.piece(node), PREFIX)

    def piece(self, node: LoopExpr) -> Piece:
        """The value as an expression of C; what is shared or long is declared before."""
        for scope in self.scopes:
            if node in scope:
                return scope[node], ATOM
        if isinstance(node, Select) and self._guards(node):
            return self._branches(node), ATOM
        found = self._spell(node)
        shared = self.shared.uses[node] > 1 and not _is_simple(node)
        shared = shared or isinstance(node, Shuffle)  # which all lanes must reach: `||` may leave its right side out
        if shared or (len(found[0]) > _LONG and all(node is not root for root in self.shared.roots)):
            return self._declare(node, found[0]), ATOM
        return found

    def _kind(self, node: LoopExpr) -> str:
        """The type of a value."""
        return self.names.index if _is_index(node) else spell.VALUE[node.dtype]

    def _guards(self, node: Select) -> bool:
        """True if a side loads what its condition does not, and might be out of bounds."""
        known = set(dependency_order([node.condition], self._always))
        sides = dependency_order([node.then, node.orelse])
        return any(isinstance(n, Load) and n not in known for n in sides)

    def _declare(self, node: LoopExpr, text: str) -> str:
        name = self.names.temporary()
        self.lines.append(f"{self.pad}const {self._kind(node)} {name} = {text};")
        self.scopes[-1][node] = name
        return name

    def _branches(self, node: Select) -> str:
        """``if`` and ``else``: loads of the side that is not chosen may be out of bounds."""
        for common in self.shared.always(node):
            if common is not node:
                self.piece(common)
        condition = self.text(node.condition)
        name = self.names.temporary()
        self.lines.append(f"{self.pad}{spell.VALUE[node.dtype]} {name};")
        for head, side in ((f"if ({condition}) {{", node.then), ("} else {", node.orelse)):
            self.lines.append(self.pad + head)
            self.pad += "    "
            self.scopes.append({})
            value = self.text(side)
            self.lines.append(f"{self.pad}{name} = {value};")
            self.scopes.pop()
            self.pad = self.pad[4:]
        self.lines.append(self.pad + "}")
        self.scopes[-1][node] = name
        return name

    def element(self, buffer: Buffer, offset: LoopExpr, swizzled: bool = True) -> str:
        """``x[i * 8 + j]`` in memory."""
        if buffer.swizzled and swizzled:
            return f"{self.names.of(buffer)}[{self.helper('swizzled')}<{buffer.shape[-1]}>({self.text(offset)})]"
        return f"{self.names.of(buffer)}[{self.text(offset)}]"

    def helper(self, name: str) -> str:
        self.helpers.add(name)
        return name

    def call(self, name: str, *args: str, kind: str = "") -> Piece:
        """Returns the call of a helper function."""
        return f"{self.helper(name)}{kind}({', '.join(args)})", ATOM

    # --- nodes ------------------------------------------------------------------------------------------------

    def _spell(self, node: LoopExpr) -> Piece:
        """float16 is rounded wherever it is computed: one meaning, whether a value goes through memory or not."""
        found = self._in_float(node)
        return self.call("half_to_float", self.call("float_to_half", found[0])[0]) if _is_rounded(node) else found

    def _in_float(self, node: LoopExpr) -> Piece:
        """The same, of float16 not rounded yet."""
        match node:
            case Const(value, dtype):
                text = spell.constant(value, dtype)
                return text, 0 if text.startswith("-") else ATOM
            case LoopVar():
                return self.names.of(node), ATOM
            case Load(buffer, (offset,)):
                return self._load(buffer, offset)
            case Binary():
                return self._binary(node)
            case Intrin(name, args):
                return self._intrinsic(name, args)
            case Cast(value, dtype) if dtype == "float16":
                return self.piece(value)
            case Cast(value, _):
                return f"({self._kind(node)}){self.operand(value)}", PREFIX
            case Shuffle(value, mask):
                return self._shuffle(self.text(value), value.dtype, mask)
            case Select(condition, then, orelse):
                return f"{self.operand(condition)} ? {self.operand(then)} : {self.operand(orelse)}", 0
        raise CompilerError(f"{type(node).__name__} is not part of the loop IR")

    def _shuffle(self, text: str, dtype: str, mask: int) -> Piece:
        found = f"__shfl_xor_sync(0xffffffffu, {text}, {mask})"
        return _converted(found, dtype) if bits_of(dtype) < 32 and dtype != "float16" else (found, ATOM)

    def _load(self, buffer: Buffer, offset: LoopExpr) -> Piece:
        element = self.element(buffer, offset)
        if buffer.dtype == "bool":
            return f"{element} != 0", 1
        return self.call("half_to_float", element) if buffer.dtype == "float16" else (element, ATOM)

    def stored(self, node: LoopExpr, dtype: str) -> str:
        """A value as it goes to memory."""
        known = any(node in scope for scope in self.scopes)
        if dtype == "float16" and isinstance(node, Load) and not known:
            return self.element(node.buffer, node.index[0])  # its bits
        if dtype == "float16" and _is_rounded(node) and not known:
            self._name_parts(*node.operands)
            return self.call("float_to_half", self._in_float(node)[0])[0]
        value = self.root(node)
        if dtype == "float16":
            return self.call("float_to_half", value)[0]
        return f"(unsigned char){self.operand(node)}" if dtype == "bool" else value

    def _binary(self, node: Binary) -> Piece:
        op, dtype, kind = node.op, node.lhs.dtype, spell.VALUE[node.lhs.dtype]
        is_index = _is_index(node)
        if is_index:
            self.names.met(bounds(node, self.ranges))
            kind = self.names.index
        if dtype == "bool" and op in spell.BOOL:
            return infix(spell.BOOL[op], 1, self.piece(node.lhs), self.piece(node.rhs))
        if op in ("min", "max"):
            return self.call(f"{op}imum", self.text(node.lhs), self.text(node.rhs), kind=f"<{kind}>")
        if is_float(dtype) and op in spell.FLOAT_BINARY:
            return _called(spell.FLOAT_BINARY[op], dtype, self.text(node.lhs), self.text(node.rhs))
        if op == "pow":
            return self.call("int_pow", self.text(node.lhs), self.text(node.rhs), kind=f"<{kind}>")
        if is_float(dtype) or op in COMPARISONS or (is_index and op in spell.INDEX):
            return self._by_bits(node) or _infix(node, self.piece(node.lhs), self.piece(node.rhs))
        wide = spell.VALUE[f"uint{max(32, bits_of(dtype))}"]  # wraps around, which a signed sum may not
        if op == "sub" and isinstance(node.lhs, Const) and not node.lhs.value and bits_of(dtype) <= 32:
            return _converted(self.call("negated", self.text(node.rhs))[0], dtype)
        cast = f"({wide})" if op in spell.WRAPPING else ""
        sides = (cast + self.operand(side) for side in (node.lhs, node.rhs))
        return _converted(f"({f' {spell.INFIX[op][0]} '.join(sides)})", dtype)

    def _by_bits(self, node: Binary) -> Piece | None:
        """An index divided by a power of two: a shift or a mask where it is not negative, which NVRTC does not see."""
        divisor = node.rhs.value if isinstance(node.rhs, Const) and _is_index(node) else 0
        if node.op not in ("div", "mod") or divisor < 2 or divisor & (divisor - 1):
            return None
        low = bounds(node.lhs, self.ranges).low
        if low is None or low < 0:
            return None
        symbol, by = ("&", divisor - 1) if node.op == "mod" else (">>", divisor.bit_length() - 1)
        return f"({self.operand(node.lhs)} {symbol} {by})", ATOM  # which comparisons bind more tightly than

    def _intrinsic(self, name: str, args: Sequence[LoopExpr]) -> Piece:
        dtype, first = args[0].dtype, args[0]
        if name == "same_memory":
            pointers = (f"(const void*)&{self.element(a.buffer, a.index[0])}" for a in args if isinstance(a, Load))
            return " == ".join(pointers), 0
        if name == "unlikely":
            return self.piece(first)
        if name == "not" and dtype == "bool":
            return f"!{self.operand(first)}", PREFIX
        if name == "not":
            return _converted(f"(~{self.operand(first)})", dtype)
        if name == "neg":
            return f"-{self.operand(first)}", 0
        if name in ("bitcast_int", "bitcast_float"):
            return self._bitcast(name, dtype, self.text(first))
        if name in DOT_OPERANDS:
            return self.call(name, *map(self.text, args))
        return _called(spell.INTRINSIC[name], dtype, *map(self.text, args))

    def _bitcast(self, name: str, dtype: str, text: str) -> Piece:
        match name, dtype:
            case "bitcast_int", "float16":
                return _converted(self.call("float_to_half", text)[0], "int16")
            case "bitcast_float", "int16":
                return self.call("half_to_float", f"(unsigned short)({text})")
        return f"{spell.BITS[name, dtype]}({text})", ATOM


def _is_rounded(node: LoopExpr) -> bool:
    """True if it gives a float16 that float has more digits of."""
    match node:
        case Binary(op) | Intrin(op):
            return node.dtype == "float16" and op not in spell.EXACT
        case Cast():
            return node.dtype == "float16"
    return False


def _called(template: str, dtype: str, *args: str) -> Piece:
    return template.format(*args, f=spell.suffix(dtype)), ATOM


def _converted(text: str, dtype: str) -> Piece:
    return f"({spell.VALUE[dtype]}){text}", PREFIX


def _infix(node: Binary, left: Piece, right: Piece) -> Piece:
    minus = node.op == "add" and isinstance(node.rhs, Const) and right[1] == 0 and not is_float(node.dtype)
    if minus and right[0].startswith("-"):
        return infix("-", spell.INFIX["sub"][1], left, (right[0][1:], ATOM))
    return infix(*spell.INFIX[node.op], left, right)


def _is_simple(node: LoopExpr) -> bool:
    """Not worth a name: a leaf, or one product of a loop variable."""
    operands = node.operands
    return not operands or (_is_index(node) and all(isinstance(o, (LoopVar, Const)) for o in operands))


def flat(expr: LoopExpr, ranges: Ranges) -> LoopExpr:
    """Spells an expression in machine operations; a load's only index is the element's offset in memory."""

    def visit(node: LoopExpr) -> LoopExpr:
        if not isinstance(node, Load):
            return node
        return Load(node.buffer, (simplify_expr(address(node.buffer, node.index).to_expr(), ranges),))

    return map_expr(map_expr(expr, visit), lambda node: machine_form(node, ranges))


def _is_index(node: LoopExpr) -> bool:
    """Arithmetic on loop variables alone cannot overflow."""
    if node.dtype != "int64":
        return False
    return all(isinstance(n, (LoopVar, Const, Binary, Cast)) for n in dependency_order([node]))
