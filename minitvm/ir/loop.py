"""The loop IR: one small immutable tree for kernels of every target.

Expressions are scalar; a loop's *kind* says how it runs.  ``codegen.interp`` is the living definition.

Index arithmetic is ``int64``.  ``Binary`` operators::

    add sub mul          wrap around for integers
    div                  true division for floats, truncating for integers (C)
    mod                  remainder of that division, sign of the dividend (C, fmod)
    floordiv floormod    rounding towards minus infinity (Python); what index arithmetic uses
    min max              of floats: NaN if either operand is (ONNX, numpy)
    pow                  floats and integers
    and or xor           bitwise; on bool, logical
    shl shr              integers; shr is arithmetic for signed dtypes
    eq ne lt le          result bool

``Intrin`` functions: see :data:`INTRINSICS`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

INTRINSICS: dict[str, int] = {
    "neg": 1, "abs": 1, "not": 1, "sign": 1, "floor": 1, "ceil": 1, "round": 1, "trunc": 1,  # round: half to even
    "sqrt": 1, "rsqrt": 1, "exp": 1, "log": 1, "log2": 1, "log1p": 1, "expm1": 1, "tanh": 1, "erf": 1, "sigmoid": 1,
    "sin": 1, "cos": 1, "tan": 1, "asin": 1, "acos": 1, "atan": 1,
    "sinh": 1, "cosh": 1, "asinh": 1, "acosh": 1, "atanh": 1, "isnan": 1, "isinf": 1, "fma": 3,
    "bitcast_int": 1, "bitcast_float": 1,  # float32 <-> int32, float64 <-> int64, float16 <-> int16: for legalization
}  # fmt: skip
"""Scalar functions and their arity.  ``isnan`` and ``isinf`` return bool, all others the dtype of the operand."""

COMPARISONS = frozenset({"eq", "ne", "lt", "le"})
BINARY_OPS = COMPARISONS | frozenset(
    ("add", "sub", "mul", "div", "mod", "floordiv", "floormod", "min", "max", "pow", "and", "or", "xor", "shl", "shr")
)

_ids = itertools.count()

Index: TypeAlias = "LoopExpr | int"


class LoopExpr:
    """A scalar expression; ``dtype`` is known from its operands.  Python's operators build larger ones."""

    __slots__ = ()
    dtype: str

    def __add__(self, other: Any) -> LoopExpr:
        return binary("add", self, other)

    def __radd__(self, other: Any) -> LoopExpr:
        return binary("add", other, self)

    def __sub__(self, other: Any) -> LoopExpr:
        return binary("sub", self, other)

    def __rsub__(self, other: Any) -> LoopExpr:
        return binary("sub", other, self)

    def __mul__(self, other: Any) -> LoopExpr:
        return binary("mul", self, other)

    def __rmul__(self, other: Any) -> LoopExpr:
        return binary("mul", other, self)

    def __truediv__(self, other: Any) -> LoopExpr:
        return binary("div", self, other)

    def __rtruediv__(self, other: Any) -> LoopExpr:
        return binary("div", other, self)

    def __floordiv__(self, other: Any) -> LoopExpr:
        return binary("floordiv", self, other)

    def __mod__(self, other: Any) -> LoopExpr:
        return binary("floormod", self, other)

    def __neg__(self) -> LoopExpr:
        return Intrin("neg", (self,))

    def __and__(self, other: Any) -> LoopExpr:
        return binary("and", self, other)

    def __or__(self, other: Any) -> LoopExpr:
        return binary("or", self, other)

    def __lt__(self, other: Any) -> LoopExpr:
        return binary("lt", self, other)

    def __le__(self, other: Any) -> LoopExpr:
        return binary("le", self, other)

    def __gt__(self, other: Any) -> LoopExpr:
        return binary("lt", other, self)

    def __ge__(self, other: Any) -> LoopExpr:
        return binary("le", other, self)

    def equal(self, other: Any) -> LoopExpr:
        """Elementwise ``==`` (Python's ``==`` compares the trees)."""
        return binary("eq", self, other)

    def not_equal(self, other: Any) -> LoopExpr:
        return binary("ne", self, other)

    def astype(self, dtype: str) -> LoopExpr:
        return self if self.dtype == dtype else Cast(self, dtype)

    def __bool__(self) -> bool:
        raise TypeError("a loop expression has no truth value; use select() or .equal()")


def _set_dtype(expr: LoopExpr, dtype: str) -> None:
    """Once, while ``expr`` is built: found from its operands, and not looked for again through deep trees."""
    object.__setattr__(expr, "dtype", dtype)


@dataclass(frozen=True, slots=True)
class Const(LoopExpr):
    value: Any  # int, float or bool
    dtype: str = "int64"

    def __eq__(self, other: object) -> bool:  # 0.0 and -0.0, nan and nan: by representation
        return isinstance(other, Const) and (repr(self.value), self.dtype) == (repr(other.value), other.dtype)

    def __hash__(self) -> int:
        return hash((repr(self.value), self.dtype))


@dataclass(frozen=True, slots=True)
class LoopVar(LoopExpr):
    """The counter of one loop or reduction axis.  ``id`` tells apart variables of the same name."""

    name: str
    id: int = field(default_factory=lambda: next(_ids))
    dtype: str = "int64"


@dataclass(frozen=True, slots=True)
class Load(LoopExpr):
    buffer: Buffer
    index: tuple[LoopExpr, ...]

    dtype: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _set_dtype(self, self.buffer.dtype)


@dataclass(frozen=True, slots=True)
class Binary(LoopExpr):
    op: str
    lhs: LoopExpr
    rhs: LoopExpr

    dtype: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _set_dtype(self, "bool" if self.op in COMPARISONS else self.lhs.dtype)


@dataclass(frozen=True, slots=True)
class Intrin(LoopExpr):
    """A scalar function from :data:`INTRINSICS`."""

    name: str
    args: tuple[LoopExpr, ...]
    dtype: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        operand = self.args[0].dtype
        if self.name in ("isnan", "isinf"):
            _set_dtype(self, "bool")
        elif self.name == "bitcast_int":
            _set_dtype(self, operand.replace("float", "int"))
        elif self.name == "bitcast_float":
            _set_dtype(self, operand.replace("int", "float"))
        else:
            _set_dtype(self, operand)


@dataclass(frozen=True, slots=True)
class Select(LoopExpr):
    """``then`` where ``condition`` holds, else ``orelse``.  Only the chosen side's loads need be in bounds."""

    condition: LoopExpr
    then: LoopExpr
    orelse: LoopExpr

    dtype: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _set_dtype(self, self.then.dtype)


@dataclass(frozen=True, slots=True)
class Cast(LoopExpr):
    """Conversion as numpy's ``astype``: floats to integers truncate, anything to bool compares with zero."""

    value: LoopExpr
    dtype: str


@dataclass(frozen=True, slots=True)
class Reduce(LoopExpr):
    """A commutative reduction; only in compute rules, lowered to loops before a kernel exists."""

    kind: str  # "sum" | "prod" | "max" | "min"
    axes: tuple[tuple[LoopVar, int], ...]
    value: LoopExpr

    dtype: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _set_dtype(self, self.value.dtype)


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory that a kernel reads or writes.  Compared by identity.

    ``scope`` is ``"global"`` (a parameter, or a workspace that every thread sees), ``"shared"`` (one per block on a
    GPU, one per thread on a CPU) or ``"local"`` (registers, the stack).  ``strides`` are in elements and row-major
    when ``None``; ``offset`` is added to every access (a view inside a padding ring).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str = "global"
    strides: tuple[int, ...] | None = None
    offset: int = 0

    def __getitem__(self, index: Index | tuple[Index, ...]) -> LoopExpr:
        given = index if isinstance(index, tuple) else (index,)
        assert len(given) == len(self.shape), f"{self.name} has rank {len(self.shape)}, indexed with {len(given)}"
        return Load(self, tuple(as_index(i) for i in given))

    @property
    def row_major_strides(self) -> tuple[int, ...]:
        """``strides``, spelled out."""
        if self.strides is not None:
            return self.strides
        strides = [1]
        for extent in reversed(self.shape[1:]):
            strides.append(strides[-1] * extent)
        return tuple(reversed(strides)) if self.shape else ()

    def __repr__(self) -> str:
        return f"<Buffer {self.name}: {self.dtype}{list(self.shape)} {self.scope}>"


@dataclass(frozen=True, eq=False, repr=False)
class Stage(Buffer):
    """A buffer with a definition: element ``axes`` is ``value``.  What a compute rule returns."""

    axes: tuple[LoopVar, ...] = ()
    value: LoopExpr = Const(0)


class LoopKind(Enum):
    SERIAL = "serial"
    PARALLEL = "parallel"  # CPU: iterations are divided among the threads
    VECTORIZED = "vectorized"  # all iterations at once, in lanes
    UNROLLED = "unrolled"
    BLOCK_X = "blockIdx.x"
    BLOCK_Y = "blockIdx.y"
    BLOCK_Z = "blockIdx.z"
    THREAD_X = "threadIdx.x"
    THREAD_Y = "threadIdx.y"
    THREAD_Z = "threadIdx.z"


class Stmt:
    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class For(Stmt):
    """``for var in range(extent)``.  Only serial loops may have an extent that is not a constant."""

    var: LoopVar
    extent: LoopExpr
    body: Stmt
    kind: LoopKind = LoopKind.SERIAL


@dataclass(frozen=True, slots=True, eq=False)
class Store(Stmt):
    buffer: Buffer
    index: tuple[LoopExpr, ...]
    value: LoopExpr


@dataclass(frozen=True, slots=True, eq=False)
class Seq(Stmt):
    stmts: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True, eq=False)
class If(Stmt):
    condition: LoopExpr
    then: Stmt
    orelse: Stmt | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Alloc(Stmt):
    """``buffer`` lives while ``body`` runs.  Its contents are undefined until stored to."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, slots=True, eq=False)
class Barrier(Stmt):
    """Every thread's stores before it are seen by every thread after it.

    CPU: at the top level of a kernel, between nests, all threads of the team.  GPU: inside a block.
    """


@dataclass(frozen=True, eq=False)
class Kernel:
    """One fused group as loops.

    CPU kernels are SPMD: every thread runs the body; iterations of ``PARALLEL`` loops (outermost only) are divided
    among the threads, statements outside of any parallel loop are run by thread 0 alone.
    The last ``results`` of ``params`` are written, the others only read.
    ``spans`` names the model's nodes that ended up here.
    """

    name: str
    params: tuple[Buffer, ...]
    body: Stmt
    results: int = 1
    spans: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        return self.params[: len(self.params) - self.results]

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        return self.params[len(self.params) - self.results :]

    def __str__(self) -> str:
        from minitvm.ir.loop_text import print_kernel

        return print_kernel(self)


# --- building -------------------------------------------------------------------------------------------------


def as_index(value: Index) -> LoopExpr:
    return value if isinstance(value, LoopExpr) else Const(int(value))


def const(value: Any, dtype: str) -> Const:
    kind = bool if dtype == "bool" else float if dtype.startswith("float") else int
    return Const(kind(value), dtype)


def binary(op: str, lhs: Any, rhs: Any) -> LoopExpr:
    """A binary expression; a Python number takes the other side's dtype.  Integer constants are folded."""
    like = lhs if isinstance(lhs, LoopExpr) else rhs
    a, b = (x if isinstance(x, LoopExpr) else const(x, like.dtype) for x in (lhs, rhs))
    assert a.dtype == b.dtype, f"{op} of {a.dtype} and {b.dtype}: cast one side"
    if a.dtype == "int64":
        return _fold_index(op, a, b)
    return Binary(op, a, b)


_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": min,
    "max": max,
}


def _fold_index(op: str, a: LoopExpr, b: LoopExpr) -> LoopExpr:
    x = a.value if isinstance(a, Const) else None
    y = b.value if isinstance(b, Const) else None
    if x is not None and y is not None:
        if op in _FOLD:
            return Const(_FOLD[op](x, y))
        if op in ("floordiv", "floormod") and y > 0:
            return Const(x // y if op == "floordiv" else x % y)
    if (op, y) in (("add", 0), ("sub", 0), ("mul", 1), ("floordiv", 1)):
        return a
    if (op, x) in (("add", 0), ("mul", 1)):
        return b
    if (op, y) in (("mul", 0), ("floormod", 1)) or (op, x) == ("mul", 0):
        return Const(0)
    return Binary(op, a, b)


def select(condition: LoopExpr, then: Any, orelse: Any) -> LoopExpr:
    like = then if isinstance(then, LoopExpr) else orelse
    a, b = (x if isinstance(x, LoopExpr) else const(x, like.dtype) for x in (then, orelse))
    return Select(condition, a, b)


def intrin(name: str, *args: LoopExpr) -> LoopExpr:
    assert INTRINSICS[name] == len(args), name
    return Intrin(name, args)


def minimum(lhs: Any, rhs: Any) -> LoopExpr:
    return binary("min", lhs, rhs)


def maximum(lhs: Any, rhs: Any) -> LoopExpr:
    return binary("max", lhs, rhs)


def all_of(conditions: Sequence[LoopExpr]) -> LoopExpr:
    """The conjunction; true for none."""
    result: LoopExpr | None = None
    for condition in conditions:
        result = condition if result is None else Binary("and", result, condition)
    return Const(True, "bool") if result is None else result


def seq(*stmts: Stmt | None) -> Stmt:
    """Statements in order, nested sequences flattened, ``None`` left out."""
    flat: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, Seq):
            flat.extend(stmt.stmts)
        elif stmt is not None:
            flat.append(stmt)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


Body: TypeAlias = Callable[..., "Stmt"]


def loop(extent: Index, body: Callable[[LoopVar], Stmt], kind: LoopKind = LoopKind.SERIAL, name: str = "i") -> Stmt:
    """``for name in range(extent): body(name)``."""
    var = LoopVar(name)
    return For(var, as_index(extent), body(var), kind)


def nest(extents: Sequence[int], body: Body, kind: LoopKind = LoopKind.SERIAL, names: str | None = None) -> Stmt:
    """Nested loops over ``extents``; ``body`` gets one variable per loop."""
    labels = names or "ijklmnopq"
    variables = [LoopVar(labels[d % len(labels)]) for d in range(len(extents))]
    stmt = body(*variables)
    for var, extent in zip(reversed(variables), reversed(list(extents)), strict=True):
        stmt = For(var, Const(extent), stmt, kind)
    return stmt


def store(buffer: Buffer, index: Sequence[Index], value: LoopExpr) -> Store:
    assert value.dtype == buffer.dtype, f"{buffer.name} is {buffer.dtype}, the value {value.dtype}"
    return Store(buffer, tuple(as_index(i) for i in index), value)


# --- walking --------------------------------------------------------------------------------------------------


_CHILDREN: dict[type, Callable[[Any], tuple[LoopExpr, ...]]] = {
    Load: lambda e: e.index,
    Binary: lambda e: (e.lhs, e.rhs),
    Intrin: lambda e: e.args,
    Select: lambda e: (e.condition, e.then, e.orelse),
    Cast: lambda e: (e.value,),
    Reduce: lambda e: (e.value,),
}


def expr_children(expr: LoopExpr) -> tuple[LoopExpr, ...]:
    """Direct operands (a table: every walk passes here)."""
    found = _CHILDREN.get(type(expr))
    return () if found is None else found(expr)


def rebuild_expr(expr: LoopExpr, operands: Sequence[LoopExpr]) -> LoopExpr:
    """``expr`` over other operands; itself where they are the same.  Integer arithmetic is folded again."""
    if all(a is b for a, b in zip(operands, expr_children(expr), strict=True)):
        return expr
    match expr:
        case Load(buffer, _):
            return Load(buffer, tuple(operands))
        case Binary(op, _, _):
            return binary(op, *operands)
        case Intrin(name, _):
            return Intrin(name, tuple(operands))
        case Select():
            return Select(*operands)
        case Cast(_, dtype):
            return operands[0].astype(dtype)
        case Reduce(kind, axes, _):
            return Reduce(kind, axes, operands[0])
    return expr


def post_order_exprs(
    roots: Sequence[LoopExpr], operands: Callable[[LoopExpr], tuple[LoopExpr, ...]] = expr_children
) -> list[LoopExpr]:
    """Every node object below ``roots`` once, operands before users, left to right.

    ``operands`` says what lies below a node.
    """
    order: list[LoopExpr] = []
    done: set[int] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, expanded = stack.pop()
        if id(node) in done:
            continue
        if expanded:
            done.add(id(node))
            order.append(node)
        else:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(operands(node)))
    return order


def map_expr(expr: LoopExpr, visit: Callable[[LoopExpr], LoopExpr]) -> LoopExpr:
    """Rebuild bottom-up; ``visit`` gets each node over its rewritten operands.  Shared nodes are visited once."""
    done: dict[int, LoopExpr] = {}
    for node in post_order_exprs([expr]):
        done[id(node)] = visit(rebuild_expr(node, [done[id(child)] for child in expr_children(node)]))
    return done[id(expr)]


def substitute_vars(expr: LoopExpr, values: dict[LoopVar, LoopExpr]) -> LoopExpr:
    return map_expr(expr, lambda e: values.get(e, e) if isinstance(e, LoopVar) else e)


def map_stmt(
    stmt: Stmt,
    on_expr: Callable[[LoopExpr], LoopExpr] = lambda e: e,
    on_stmt: Callable[[Stmt], Stmt] = lambda s: s,
) -> Stmt:
    """Rebuild a statement bottom-up.  ``on_expr`` gets each whole expression (use :func:`map_expr` inside),
    ``on_stmt`` each statement over its rewritten parts.  The same object comes back where nothing changed."""

    def walk(node: Stmt) -> Stmt:
        new: Stmt = node
        match node:
            case For(var, extent, body, kind):
                e, b = on_expr(extent), walk(body)
                new = node if e is extent and b is body else For(var, e, b, kind)
            case Store(buffer, index, value):
                i, v = tuple(on_expr(x) for x in index), on_expr(value)
                same = v is value and all(x is y for x, y in zip(i, index, strict=True))
                new = node if same else Store(buffer, i, v)
            case Seq(stmts):
                parts = tuple(walk(s) for s in stmts)
                new = node if all(x is y for x, y in zip(parts, stmts, strict=True)) else seq(*parts)
            case If(condition, then, orelse):
                c, t, o = on_expr(condition), walk(then), walk(orelse) if orelse is not None else None
                same = c is condition and t is then and o is orelse
                new = node if same else If(c, t, o)
            case Alloc(buffer, body):
                b = walk(body)
                new = node if b is body else Alloc(buffer, b)
        return on_stmt(new)

    return walk(stmt)


def walk_stmts(stmt: Stmt) -> Iterator[Stmt]:
    """Every statement, outer before inner, in program order."""
    yield stmt
    match stmt:
        case For(_, _, body) | Alloc(_, body):
            yield from walk_stmts(body)
        case Seq(stmts):
            for part in stmts:
                yield from walk_stmts(part)
        case If(_, then, orelse):
            yield from walk_stmts(then)
            if orelse is not None:
                yield from walk_stmts(orelse)


def stmt_exprs(stmt: Stmt) -> tuple[LoopExpr, ...]:
    """The expressions that stand directly in one statement."""
    match stmt:
        case For(_, extent, _):
            return (extent,)
        case Store(_, index, value):
            return (*index, value)
        case If(condition, _, _):
            return (condition,)
    return ()


def walk_exprs(stmt: Stmt | LoopExpr) -> Iterator[LoopExpr]:
    """Every expression node below a statement or an expression, users before operands; shared nodes once."""
    stack = [stmt] if isinstance(stmt, LoopExpr) else [e for s in walk_stmts(stmt) for e in stmt_exprs(s)]
    stack.reverse()
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            stack.extend(reversed(expr_children(node)))
