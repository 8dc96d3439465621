"""Expressions as CUDA C: what is shared within a statement gets a name, a select only touches the side it chooses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from minitvm.codegen.cuda import spell
from minitvm.codegen.legalize import machine_form
from minitvm.codegen.simplify import simplify_expr
from minitvm.errors import CompilerError
from minitvm.ir.loop import (
    COMPARISONS,
    Binary,
    Buffer,
    Cast,
    Const,
    Intrin,
    Load,
    LoopExpr,
    LoopVar,
    Select,
    expr_children,
    map_expr,
    post_order_exprs,
)
from minitvm.ir.loop.affine import Ranges, address

_DEEP = 200  # nodes of a statement
_LONG = 100  # characters after which a value gets a line of its own


class Shared:
    """Expressions of one statement (:func:`flat`), and how often each part is used."""

    def __init__(self, roots: Sequence[LoopExpr]) -> None:
        order = post_order_exprs(roots)
        self.roots = roots
        self.uses = Counter(child for node in order for child in expr_children(node))
        self.loads: set[LoopExpr] = set()
        self.deep = len(order) > _DEEP
        for node in order:
            if isinstance(node, Load) or any(c in self.loads for c in expr_children(node)):
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
                for child in expr_children(node):
                    found |= self.always(child)
            self._always[node] = found
        return self._always[node]


def identifier(name: str, prefix: str) -> str:
    """``name`` as C allows it; ``prefix`` sets apart what is a word of the language, or of the printer's own."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    taken = not plain or plain[0].isdigit() or plain.rstrip("f") in _RESERVED or plain in _RESERVED
    return prefix + plain if taken or re.fullmatch(r"tmp\d+", plain) else plain


class Names:
    """Identifiers of buffers and loop variables: readable, and none twice at a time."""

    def __init__(self) -> None:
        self.given: dict[Buffer | LoopVar, str] = {}
        self._count = 0

    def of(self, thing: Buffer | LoopVar) -> str:
        if thing not in self.given:
            base = identifier(thing.name, "v_")
            used = set(self.given.values())
            number, name = 0, base
            while name in used:
                number += 1
                name = f"{base}_{number}"
            self.given[thing] = name
        return self.given[thing]

    def temporary(self) -> str:
        self._count += 1
        return f"tmp{self._count}"


_KEYWORDS = """
    auto bool break case char class const continue default delete do double else enum extern float for goto if inline
    int long new operator private public register return short signed sizeof static struct switch template this
    typedef union unsigned void volatile while true false and or not xor asm main y0 y1 j0 j1 gamma
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
        if self.shared.deep:
            for part in post_order_exprs([node], self._always):
                self.text(part)
        return self.text(node)

    def _always(self, node: LoopExpr) -> tuple[LoopExpr, ...]:
        """Operands that are evaluated whatever a select chooses."""
        return (node.condition,) if isinstance(node, Select) else expr_children(node)

    def text(self, node: LoopExpr) -> str:
        """The value as an expression of C; what is shared or long is declared before."""
        for scope in self.scopes:
            if node in scope:
                return scope[node]
        if isinstance(node, Select) and self._guards(node):
            return self._branches(node)
        text = self._spell(node)
        shared = self.shared.uses[node] > 1 and not _is_simple(node)
        if shared or (len(text) > _LONG and all(node is not root for root in self.shared.roots)):
            text = self._declare(node, text)
        return text

    def _guards(self, node: Select) -> bool:
        """Whether a side loads what its condition does not, and might be out of bounds."""
        known = set(post_order_exprs([node.condition], self._always))
        sides = post_order_exprs([node.then, node.orelse])
        return any(isinstance(n, Load) and n not in known for n in sides)

    def _declare(self, node: LoopExpr, text: str) -> str:
        name = self.names.temporary()
        self.lines.append(f"{self.pad}const {spell.VALUE[node.dtype]} {name} = {bare(text)};")
        self.scopes[-1][node] = name
        return name

    def _branches(self, node: Select) -> str:
        """``if`` and ``else``: loads of the side that is not chosen may be out of bounds."""
        for common in self.shared.always(node):
            if common is not node:
                self.text(common)
        condition = self.text(node.condition)
        name = self.names.temporary()
        self.lines.append(f"{self.pad}{spell.VALUE[node.dtype]} {name};")
        for head, side in ((f"if ({bare(condition)}) {{", node.then), ("} else {", node.orelse)):
            self.lines.append(self.pad + head)
            self.pad += "    "
            self.scopes.append({})
            value = self.text(side)
            self.lines.append(f"{self.pad}{name} = {bare(value)};")
            self.scopes.pop()
            self.pad = self.pad[4:]
        self.lines.append(self.pad + "}")
        self.scopes[-1][node] = name
        return name

    def element(self, buffer: Buffer, offset: LoopExpr) -> str:
        """``x[i * 8 + j]`` in memory."""
        return f"{self.names.of(buffer)}[{bare(self.text(offset))}]"

    def helper(self, name: str) -> str:
        self.helpers.add(name)
        return name

    # --- nodes ------------------------------------------------------------------------------------------------

    def _spell(self, node: LoopExpr) -> str:
        match node:
            case Const(value, dtype):
                text = spell.constant(value, dtype)
                return f"({text})" if text.startswith("-") else text
            case LoopVar():
                return self.names.of(node)
            case Load(buffer, (offset,)):
                return self._load(buffer, offset)
            case Binary():
                return self._binary(node)
            case Intrin(name, args):
                return self._intrinsic(node, name, [self.text(a) for a in args])
            case Cast(value, dtype):
                return self._cast(self.text(value), dtype)
            case Select(condition, then, orelse):
                return f"({self.text(condition)} ? {self.text(then)} : {self.text(orelse)})"
        raise CompilerError(f"{type(node).__name__} is not part of the loop IR")

    def _load(self, buffer: Buffer, offset: LoopExpr) -> str:
        element = self.element(buffer, offset)
        if buffer.dtype == "bool":
            return f"({element} != 0)"
        return f"{self.helper('half_to_float')}({element})" if buffer.dtype == "float16" else element

    def stored(self, text: str, dtype: str) -> str:
        """A value as it goes to memory."""
        if dtype == "float16":
            return f"{self.helper('float_to_half')}({bare(text)})"
        return f"(unsigned char){text}" if dtype == "bool" else bare(text)

    def _cast(self, text: str, to: str) -> str:
        if to == "float16":
            return f"{self.helper('half_to_float')}({self.helper('float_to_half')}({bare(text)}))"
        return f"({spell.VALUE[to]}){text}"

    def _binary(self, node: Binary) -> str:
        op, dtype = node.op, node.lhs.dtype
        a, b = self.text(node.lhs), self.text(node.rhs)
        if op in COMPARISONS:
            return f"({bare(a) if _is_sum(node.lhs) else a} {spell.INFIX[op]} {bare(b) if _is_sum(node.rhs) else b})"
        if dtype == "bool":
            return f"({a} {spell.BOOL[op]} {b})"
        if op in ("min", "max"):
            return f"{self.helper('minimum' if op == 'min' else 'maximum')}<{spell.VALUE[dtype]}>({bare(a)}, {bare(b)})"
        return self._float_binary(node, a, b) if spell.is_float(dtype) else self._int_binary(node, op, dtype, a, b)

    def _float_binary(self, node: Binary, a: str, b: str) -> str:
        op, dtype = node.op, node.dtype
        if op not in spell.FLOAT_BINARY:
            return _infix(node, a, b)
        return spell.FLOAT_BINARY[op].format(bare(a), bare(b), f=spell.suffix(dtype))

    def _int_binary(self, node: Binary, op: str, dtype: str, a: str, b: str) -> str:
        kind = spell.VALUE[dtype]
        if op == "pow":
            return f"{self.helper('int_pow')}<{kind}>({bare(a)}, {bare(b)})"
        if _is_index(node) and op in spell.INFIX:
            return _infix(node, a, b)
        if op in spell.NARROW:
            return f"({kind})({a} {spell.NARROW[op]} {b})"
        wide = spell.VALUE[f"uint{max(32, spell.bits_of(dtype))}"]  # wraps around, which a signed sum may not
        return f"({kind})(({wide}){a} {spell.WRAPPING[op]} ({wide}){b})"

    def _intrinsic(self, node: Intrin, name: str, args: list[str]) -> str:
        dtype = node.args[0].dtype
        if dtype == "bool":
            return f"(!{args[0]})"
        if name in ("bitcast_int", "bitcast_float"):
            return self._bitcast(name, dtype, args[0])
        if not spell.is_float(dtype):
            return f"(({spell.VALUE[dtype]})(~{args[0]}))"
        template = spell.INTRINSIC[name]
        if re.match(r"\w+({f})?\(", template):
            args = [bare(a) for a in args]
        text = template.format(*args, f=spell.suffix(dtype))
        return f"({text})" if text.startswith("-") else text

    def _bitcast(self, name: str, dtype: str, text: str) -> str:
        match name, dtype:
            case "bitcast_int", "float16":
                return f"((short){self.helper('float_to_half')}({text}))"
            case "bitcast_float", "int16":
                return f"{self.helper('half_to_float')}((unsigned short){text})"
            case "bitcast_int", "float32":
                return f"__float_as_int({text})"
            case "bitcast_float", "int32":
                return f"__int_as_float({text})"
            case "bitcast_int", _:
                return f"__double_as_longlong({text})"
        return f"__longlong_as_double({text})"


def _is_simple(node: LoopExpr) -> bool:
    """Not worth a name: a leaf, or one product of a loop variable."""
    operands = expr_children(node)
    return not operands or (_is_index(node) and all(isinstance(o, (LoopVar, Const)) for o in operands))


def flat(expr: LoopExpr, ranges: Ranges) -> LoopExpr:
    """In machine operations, loads with the element's offset in memory as their only index."""

    def visit(node: LoopExpr) -> LoopExpr:
        if not isinstance(node, Load):
            return node
        return Load(node.buffer, (simplify_expr(address(node.buffer, node.index).to_expr(), ranges),))

    return map_expr(map_expr(expr, visit), lambda node: machine_form(node, ranges))


def _infix(node: Binary, a: str, b: str) -> str:
    """``(a + b)``, without brackets around operands that bind as tightly anyway; the order of evaluation stays."""
    left, right = node.lhs, node.rhs
    sums = node.op in ("add", "sub")
    if isinstance(left, Binary) and _is_sum(left) and (sums or left.op in ("mul", "div")):
        a = bare(a)
    if sums and isinstance(right, Binary) and _is_sum(right) and right.op in ("mul", "div"):
        b = bare(b)
    if node.op == "add" and isinstance(right, Const) and b.startswith("(-") and not spell.is_float(node.dtype):
        return f"({a} - {b[2:-1]})"
    return f"({a} {spell.INFIX[node.op]} {b})"


def _is_sum(node: LoopExpr) -> bool:
    """Written as ``(a + b)``, or the like."""
    return isinstance(node, Binary) and node.op in ("add", "sub", "mul", "div") and node.dtype != "bool"


def _is_index(node: LoopExpr) -> bool:
    """Arithmetic on loop variables alone cannot overflow."""
    if node.dtype != "int64":
        return False
    return all(isinstance(n, (LoopVar, Const, Binary, Cast)) for n in post_order_exprs([node]))


def bare(text: str) -> str:
    """Without brackets around the whole."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return text[1:-1] if position == len(text) - 1 else text
    return text
