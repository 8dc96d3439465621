"""Kernels as readable pseudo-code.

    kernel dense(x: float32[4, 8], w: float32[16, 8]) -> y: float32[4, 16]
      parallel i in 4:
        alloc acc: float32[16] local
        vectorized j in 16:
          acc[j] = 0f
        for k in 8:
          ...

The text is a function of the structure alone, so it serves as a cache key: no object's identity shows, structurally
equal kernels print equally, and different ones differently.  Loop variables are told apart by a number behind their
name (``i``, ``i1``) only where one is inside the loop of the other.  Parts of an expression that recur, or grow long,
stand on lines of their own, ``let t0 = ...``: a notation, evaluated where it is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

from minitvm.ir.attributes import format_number
from minitvm.ir.loop.expr import (
    Binary,
    Buffer,
    Cast,
    Const,
    Intrin,
    Load,
    LoopExpr,
    LoopVar,
    Reduce,
    Select,
    Shuffle,
    Size,
)
from minitvm.ir.loop.stmt import (
    Alloc,
    Barrier,
    CopyAsync,
    CopyCommit,
    CopyWait,
    For,
    If,
    Kernel,
    Ldmatrix,
    LoopKind,
    Mma,
    Prefetch,
    Seq,
    Stmt,
    Store,
    Wgmma,
    WgmmaSync,
    dependency_order,
    stmt_exprs,
)

Piece: TypeAlias = tuple[str, int]
"""A text, and how tightly it binds."""

ATOM = 9
INFIX = {
    "mul": ("*", 7), "div": ("/", 7), "floordiv": ("//", 7), "floormod": ("%", 7), "add": ("+", 6), "sub": ("-", 6),
    "shl": ("<<", 5), "shr": (">>", 5), "and": ("&", 4), "xor": ("^", 3), "or": ("|", 2),
    "eq": ("==", 1), "ne": ("!=", 1), "lt": ("<", 1), "le": ("<=", 1),
}  # fmt: skip
"""Spelling and precedence; the other binary operators are written as functions."""

_LOOP_WORD = {LoopKind.SERIAL: "for"}

_LONG_SIZE = 80
"""Statements of fewer nodes are written whole; in longer ones a part of this many nodes gets a line of its own ..."""
_SHARED_SIZE = 16
"""... and so does a part of this many that stands there twice."""


def print_kernel(kernel: Kernel) -> str:
    """The whole kernel, one statement a line."""
    printer = _Printer()
    return "\n".join([printer.head(kernel), *printer.lines(kernel.body, 1)]) + "\n"


class Line(str):
    """A line with the statement that it is of."""

    stmt: Stmt


def print_lines(kernel: Kernel) -> Iterator[tuple[str, Stmt | None]]:
    """The lines of :func:`print_kernel`, each with its statement; the head and ``else:`` are the kernel's and the
    ``if``'s."""
    printer = _Marking()
    yield printer.head(kernel), None
    for line in printer.lines(kernel.body, 1):
        yield str(line), line.stmt if isinstance(line, Line) else None


def print_stmt(stmt: Stmt) -> str:
    """A statement by itself, for messages."""
    return "\n".join(_Printer(fragment=True).lines(stmt, 0))


def print_loop_expr(expr: LoopExpr) -> str:
    """An expression by itself, for messages."""
    lets, texts = _Printer(fragment=True).expressions([expr])
    return "; ".join([*lets, *texts])


def _of_kind(kind: str) -> str:
    return "" if kind == "tf32" else f" {kind}"


def _type(buffer: Buffer) -> str:
    return f"{buffer.dtype}[{', '.join(map(str, buffer.shape))}]"


class _Printer:
    """``fragment``: loops around what is printed are not known, so variables without a loop are ordinary."""

    def __init__(self, fragment: bool = False) -> None:
        self.unbound = "" if fragment else "?"
        self.buffers: dict[Buffer, str] = {}
        self.buffer_names: set[str] = set()
        self.vars: dict[LoopVar, str] = {}

    def head(self, kernel: Kernel) -> str:
        inputs = ", ".join(self.declare(b) for b in kernel.inputs)
        outputs = ", ".join(self.declare(b) for b in kernel.outputs)
        return f"kernel {kernel.name}({inputs}) -> {outputs}"

    def buffer(self, buffer: Buffer) -> str:
        if buffer not in self.buffers:
            self.buffers[buffer] = fresh(buffer.name, self.buffer_names)
            self.buffer_names.add(self.buffers[buffer])
        return self.buffers[buffer]

    def declare(self, buffer: Buffer) -> str:
        scope = "" if buffer.scope == "global" else f" {buffer.scope}"
        return f"{self.buffer(buffer)}: {_type(buffer)}{scope}"

    def bind(self, var: LoopVar) -> str:
        self.vars[var] = fresh(var.name, set(self.vars.values()))
        return self.vars[var] if var.dtype == "int64" else f"{self.vars[var]}: {var.dtype}"

    def unbind(self, var: LoopVar) -> None:
        del self.vars[var]

    # --- statements -------------------------------------------------------------------------------------------

    def lines(self, stmt: Stmt, depth: int) -> Iterator[str]:
        pad = "  " * depth
        lets, texts = self.expressions(stmt_exprs(stmt))
        yield from (pad + let for let in lets)
        match stmt:
            case For(var, _, body, kind):
                label = self.bind(var)
                yield f"{pad}{_LOOP_WORD.get(kind, kind.value)} {label} in {texts[0]}:"
                yield from self.lines(body, depth + 1)
                self.unbind(var)
            case Store(buffer, _, _):
                late = "copy " if isinstance(stmt, CopyAsync) else ""
                yield f"{pad}{late}{self.buffer(buffer)}[{', '.join(texts[:-1])}] = {texts[-1]}"
            case If(_, then, orelse):
                yield f"{pad}if {texts[0]}:"
                yield from self.lines(then, depth + 1)
                if orelse is not None:
                    yield f"{pad}else:"
                    yield from self.lines(orelse, depth + 1)
            case Alloc(buffer, body):
                yield f"{pad}alloc {self.buffer(buffer)}: {_type(buffer)} {buffer.scope}:"
                yield from self.lines(body, depth + 1)
            case Barrier() | CopyCommit():
                yield f"{pad}{'barrier' if isinstance(stmt, Barrier) else 'commit copies'}"
            case Prefetch(_, level):
                yield f"{pad}prefetch {texts[0]}{' to the first level' if level == 1 else ''}"
            case CopyWait(groups):
                yield f"{pad}wait for copies but {groups} groups"
            case Mma() | Wgmma() | WgmmaSync() | Ldmatrix():
                yield pad + self.of_warps(stmt, texts)
            case Seq(stmts):
                if not stmts:
                    yield f"{pad}pass"
                for part in stmts:
                    yield from self.lines(part, depth)

    def of_warps(self, stmt: Mma | Wgmma | WgmmaSync | Ldmatrix, texts: Sequence[str]) -> str:
        """What all threads of a warp, or of several, do together."""
        match stmt:
            case Mma(sums, at, a, _, kind):
                where, left, right = texts[: len(at)], texts[len(at) : len(at) + len(a)], texts[len(at) + len(a) :]
                factors = f"({', '.join(left)}) x ({', '.join(right)})"
                return f"mma{_of_kind(kind)} {self.buffer(sums)}[{', '.join(where)}] += {factors}"
            case Wgmma(sums, _, _, _, kind, transposed):
                *where, a_text, b_text = texts
                factors = f"{a_text} x {b_text}{' transposed' * transposed}"
                return f"wgmma{_of_kind(kind)} {self.buffer(sums)}[{', '.join(where)}] += {factors}"
            case WgmmaSync(what, left_over):
                return f"wgmma {what}{f' but {left_over} groups' if what == 'wait' else ''}"
            case Ldmatrix(to, _, _, transposed):
                suffix = " transposed" if transposed else ""
                return f"matrices{suffix} {self.buffer(to)}[{', '.join(texts[:-1])}] = {texts[-1]}"

    # --- expressions ------------------------------------------------------------------------------------------

    def expressions(self, roots: Sequence[LoopExpr]) -> tuple[list[str], list[str]]:
        """``let`` lines, and the text of each root."""
        if _is_long(roots):
            return self.in_parts(roots)
        return [], [self.plain(root)[0] for root in roots]

    def in_parts(self, roots: Sequence[LoopExpr]) -> tuple[list[str], list[str]]:
        """The same for long expressions: parts that recur or grow long get lines of their own."""
        order = dependency_order(roots)
        uses = Counter([*roots, *(operand for node in order for operand in node.operands)])
        lets: list[str] = []
        pieces: dict[LoopExpr, Piece] = {}
        sizes: dict[LoopExpr, int] = {}
        for node in order:
            text, level = self.node(node, [pieces[child] for child in node.operands])
            size = 1 + sum(sizes[child] for child in node.operands)
            if size >= _LONG_SIZE or (size >= _SHARED_SIZE and uses[node] > 1):
                name = f"t{len(lets)}"
                lets.append(f"let {name} = {text}")
                text, level, size = name, ATOM, 1
            pieces[node], sizes[node] = (text, level), size
        return lets, [pieces[root][0] for root in roots]

    def plain(self, expr: LoopExpr) -> Piece:
        """A short expression, written whole."""
        return self.node(expr, [self.plain(child) for child in expr.operands])

    def node(self, expr: LoopExpr, args: Sequence[Piece]) -> Piece:
        """An expression over its operands' texts and precedences."""
        texts = [text for text, _ in args]
        match expr:
            case Const():
                return format_number(expr.value, expr.dtype), ATOM
            case Size(name):
                return name, ATOM
            case LoopVar(name):
                return self.vars.get(expr, name + self.unbound), ATOM
            case Load(buffer, _):
                return f"{self.buffer(buffer)}[{', '.join(texts)}]", ATOM
            case Binary(op, _, _) if op in INFIX:
                return infix(*INFIX[op], *args)
            case Binary(op, _, _):
                return f"{op}({', '.join(texts)})", ATOM
            case Intrin(name, _):
                return f"{name}({', '.join(texts)})", ATOM
            case Select():
                return f"select({', '.join(texts)})", ATOM
            case Cast(_, dtype):
                return f"{dtype}({texts[0]})", ATOM
            case Shuffle(_, mask):
                return f"shuffle_xor({texts[0]}, {mask})", ATOM
            case Reduce(kind, axes, _):
                ranges = ", ".join(f"{self.vars.get(v, v.name)} < {extent}" for v, extent in axes)
                return f"{kind}({ranges}: {texts[0]})", ATOM
        raise AssertionError(expr)


class _Marking(_Printer):
    def lines(self, stmt: Stmt, depth: int) -> Iterator[str]:
        for line in super().lines(stmt, depth):
            if not isinstance(line, Line):
                line = Line(line)
                line.stmt = stmt
            yield line


def infix(symbol: str, level: int, left: Piece, right: Piece) -> Piece:
    """The tree must show: only the left operand may be of the same level, and no comparison is."""
    return f"{operand(left, max(level, 2))} {symbol} {operand(right, level + 1)}", level


def operand(piece: Piece, least: int = ATOM) -> str:
    """The operand's text, in brackets where it binds less tightly."""
    text, level = piece
    return text if level >= least else f"({text})"


def _is_long(roots: Sequence[LoopExpr]) -> bool:
    """True if the expressions, written whole, have :data:`_LONG_SIZE` nodes or more."""
    stack, size = list(roots), 0
    while stack and size < _LONG_SIZE:
        size += 1
        stack.extend(stack.pop().operands)
    return size >= _LONG_SIZE


def fresh(wanted: str, used: Collection[str], between: str = "") -> str:
    """``wanted``, or with the first free number behind it."""
    name, count = wanted, 0
    while name in used:
        count += 1
        name = f"{wanted}{between}{count}"
    return name
