"""The loop IR's scalar expressions, the memory that they read, and how they are built (see :mod:`minitvm.ir.loop`)."""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Any, Literal, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from minitvm.errors import CompilerError
from minitvm.ir.dims import Atom, Dim, SymbolicDim, larger, smaller, symbol
from minitvm.ir.dtypes import SHORT, is_float

Dot: TypeAlias = Literal["dot4", "sdot4", "udot4", "dot2"]
DOT_OPERANDS: dict[Dot, tuple[str, str]] = {
    "dot4": ("uint8", "int8"),
    "sdot4": ("int8", "int8"),
    "udot4": ("uint8", "uint8"),
    "dot2": ("int16", "int16"),
}
"""What the two words hold whose parts a function multiplies and adds up.  A word is an int32; its first part is the
lowest."""

INTRINSICS: dict[str, int] = {
    "neg": 1, "abs": 1, "not": 1, "sign": 1, "floor": 1, "ceil": 1, "round": 1, "trunc": 1,  # round: half to even
    "sqrt": 1, "rsqrt": 1, "exp": 1, "log": 1, "log2": 1, "log1p": 1, "expm1": 1, "tanh": 1, "erf": 1, "sigmoid": 1,
    "sin": 1, "cos": 1, "tan": 1, "asin": 1, "acos": 1, "atan": 1,
    "sinh": 1, "cosh": 1, "asinh": 1, "acosh": 1, "atanh": 1, "isnan": 1, "isinf": 1, "fma": 3,
    "unlikely": 1,  # of bool: the condition itself, which hardly ever holds
    "same_memory": 2,  # of two elements, which are not read: whether they lie at one address
    "ldexp": 2,  # of float32 and int32, of which the second is a power of two: for legalization
    **dict.fromkeys(DOT_OPERANDS, 3),  # of int32: parts of the first word by those of the second, plus the third
    "bitcast_int": 1, "bitcast_float": 1,  # float32 <-> int32, float64 <-> int64, float16 <-> int16: for legalization
}  # fmt: skip
"""Scalar functions and their arity.  ``isnan``, ``isinf`` and ``same_memory`` return bool, all others the dtype of the
operand."""

CHEAP = frozenset(
    ("neg", "abs", "not", "sign", "floor", "ceil", "round", "trunc", "sqrt", "rsqrt", "isnan", "isinf", "fma")
    + ("bitcast_int", "bitcast_float", "unlikely", *DOT_OPERANDS)
)
"""Those that cost about as much as reading their result from memory; the others are computed once if they can be."""

COMPARISONS = frozenset({"eq", "ne", "lt", "le"})
BINARY_OPS = COMPARISONS | frozenset(
    ("add", "sub", "mul", "div", "mod", "floordiv", "floormod", "min", "max", "larger")
    + ("pow", "and", "or", "xor", "shl", "shr")
)

INT: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": lambda a, b: a // b if b else a,
    "floormod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
}
"""``int64`` operators on Python numbers, not yet :func:`wrapped`."""


def wrapped(value: int) -> int:
    """An integer as ``int64`` holds it."""
    return (value + 2**63) % 2**64 - 2**63


Index: TypeAlias = "LoopExpr | int"


_Operator: TypeAlias = "Callable[[LoopExpr, Any], LoopExpr]"


def _operators(op: str) -> tuple[_Operator, _Operator]:
    """``self op other`` and ``other op self``; the other side may be a Python number."""
    return (lambda self, other: binary(op, self, other)), (lambda self, other: binary(op, other, self))


class LoopExpr:
    """A scalar expression; ``dtype`` is known from its operands.  Python's operators build larger ones.

    Equal means identical: a node over the same operands as one that is alive is that one (:class:`_Shared`), so ``==``
    tells that, and elementwise it is ``equal``, ``not_equal``.
    """

    __slots__ = ("__weakref__",)
    dtype: str
    operands: tuple[LoopExpr, ...] = ()
    reads: bool = False
    """Whether there is a load at or below it."""
    mentions: frozenset[LoopVar | Buffer] = frozenset()
    """The variables and buffers at or below it."""

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("sub")
    __mul__, __rmul__ = _operators("mul")
    __truediv__, __rtruediv__ = _operators("div")
    __floordiv__, __mod__ = _operators("floordiv")[0], _operators("floormod")[0]
    __and__, __or__ = _operators("and")[0], _operators("or")[0]
    __lt__, __gt__ = _operators("lt")
    __le__, __ge__ = _operators("le")
    equal, not_equal = _operators("eq")[0], _operators("ne")[0]

    def __neg__(self) -> LoopExpr:
        return Intrin("neg", (self,))

    def astype(self, dtype: str) -> LoopExpr:
        """The value in a dtype; there and back, where nothing is lost on the way, is nothing."""
        if isinstance(self, Cast) and self.value.dtype == dtype and self.keeps_all:
            return self.value
        return self if self.dtype == dtype else Cast(self, dtype)

    def __bool__(self) -> bool:
        raise TypeError("a loop expression has no truth value; use select() or .equal()")


_alive: WeakValueDictionary[tuple[Any, ...], LoopExpr] = WeakValueDictionary()
_lock = threading.Lock()


class _Shared(type):
    """Classes whose instances are told apart by what they are made of: ``key`` of the (positional) arguments."""

    def __call__(cls, *args: Any) -> Any:
        key = (cls, *cls.key(*args))  # type: ignore[attr-defined]
        reference = _alive.data.get(key)  # type: ignore[attr-defined]  # no call in Python
        found = reference and reference()
        if found is None:
            made = super().__call__(*args)
            made.settle()
            with _lock:
                found = _alive.setdefault(key, made)
        return found


class _Node(LoopExpr, metaclass=_Shared):
    __slots__ = ("dtype", "form", "mentions", "operands", "reads")

    @staticmethod
    def key(*args: Any) -> tuple[Any, ...]:
        return args

    def settle(self) -> None:
        """Keep what is asked on every walk, once: it is not looked for again through deep trees."""
        keep, operands, reads = object.__setattr__, self.below(), isinstance(self, Load)
        mentions = frozenset([self.buffer]) if isinstance(self, Load) else LoopExpr.mentions
        for operand in operands:
            reads, more = reads or operand.reads, operand.mentions
            mentions = mentions if more <= mentions else more if mentions <= more else mentions | more
        keep(self, "operands", operands)
        keep(self, "reads", reads)
        keep(self, "mentions", mentions)
        keep(self, "dtype", self.result())

    def below(self) -> tuple[LoopExpr, ...]:
        """The direct operands."""
        return ()

    def result(self) -> str:
        """The dtype, as the operands have it."""
        return self.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Const(_Node):
    value: Any  # int, float or bool
    dtype: str = "int64"

    @staticmethod
    def key(value: Any, dtype: str = "int64") -> tuple[Any, ...]:  # 0.0 and -0.0, nan and nan: by representation
        return type(value), repr(value), dtype


@dataclass(frozen=True, slots=True, eq=False)
class LoopVar(LoopExpr):
    """The counter of one loop or reduction axis; names may be those of others."""

    name: str
    dtype: str = "int64"

    @property
    def mentions(self) -> frozenset[LoopVar | Buffer]:  # type: ignore[override]
        return frozenset((self,))


@dataclass(frozen=True, slots=True, eq=False)
class Size(LoopVar, metaclass=_Shared):
    """A symbol of dimensions (``minitvm.ir.dims``): 0 or more, the same everywhere, given when a kernel is launched."""

    @staticmethod
    def key(name: str) -> tuple[Any, ...]:
        return (name,)

    def settle(self) -> None:
        """Its fields are all there is."""


@dataclass(frozen=True, slots=True, eq=False)
class Load(_Node):
    buffer: Buffer
    index: tuple[LoopExpr, ...]

    def below(self) -> tuple[LoopExpr, ...]:
        return self.index

    def result(self) -> str:
        return self.buffer.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Binary(_Node):
    op: str
    lhs: LoopExpr
    rhs: LoopExpr

    def below(self) -> tuple[LoopExpr, ...]:
        return self.lhs, self.rhs

    def result(self) -> str:
        return "bool" if self.op in COMPARISONS else self.lhs.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Intrin(_Node):
    """A scalar function from :data:`INTRINSICS`."""

    name: str
    args: tuple[LoopExpr, ...]

    def below(self) -> tuple[LoopExpr, ...]:
        return self.args

    def result(self) -> str:
        operand = self.args[0].dtype
        if self.name in ("isnan", "isinf", "same_memory"):
            return "bool"
        to, of = {"bitcast_int": ("int", "float"), "bitcast_float": ("float", "int")}.get(self.name, ("", ""))
        return operand.replace(of, to) if to else operand


@dataclass(frozen=True, slots=True, eq=False)
class Select(_Node):
    """``then`` where ``condition`` holds, else ``orelse``.  Only the chosen side's loads need be in bounds."""

    condition: LoopExpr
    then: LoopExpr
    orelse: LoopExpr

    def below(self) -> tuple[LoopExpr, ...]:
        return self.condition, self.then, self.orelse

    def result(self) -> str:
        return self.then.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Cast(_Node):
    """Conversion: floats to integers truncate and saturate, NaN becomes 0; to bool, anything but zero is true.

    To and from stored dtypes: docs/loop-ir.md.
    """

    value: LoopExpr
    dtype: str

    def below(self) -> tuple[LoopExpr, ...]:
        return (self.value,)

    @property
    def keeps_all(self) -> bool:
        """True if it is one of floats of two bytes to longer ones, which hold all of their values."""
        return self.value.dtype in SHORT and self.dtype in ("float32", "float64")


@dataclass(frozen=True, slots=True, eq=False)
class Shuffle(_Node):
    """What ``value`` is in the thread of the same warp whose number is this one's ``xor mask``.

    A warp is 32 threads of a block whose numbers follow each other, those of ``threadIdx.x`` first.  All of them
    have to get there.
    """

    value: LoopExpr
    mask: int  # 1 to 31

    def below(self) -> tuple[LoopExpr, ...]:
        return (self.value,)

    def result(self) -> str:
        return self.value.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Reduce(_Node):
    """A commutative reduction; only in compute rules, lowered to loops before a kernel exists."""

    kind: str  # "sum" | "dot" (of products, multiplied and added with one rounding) | "prod" | "max" | "min" | "larger"
    axes: tuple[tuple[LoopVar, int], ...]
    value: LoopExpr

    def below(self) -> tuple[LoopExpr, ...]:
        return (self.value,)

    def result(self) -> str:
        return self.value.dtype


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory that a kernel reads or writes.  Compared by identity.

    ``scope`` is ``"global"`` (a parameter, or a workspace that every thread sees), ``"shared"`` (one per block on a
    GPU, one per thread on a CPU) or ``"local"`` (registers, the stack).

    Of a symbolic kernel, dimensions may be symbolic (``minitvm.ir.dims``); what asks for numbers then declines.

    ``swizzled``: a GPU keeps rows of 128 bytes in 1,024 that begin at a multiple, and vector ``v`` of 16 bytes of row
    ``i`` at place ``v ^ i % 8``: what a column has is in different banks.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str = "global"
    swizzled: bool = False

    def __getitem__(self, index: Index | tuple[Index, ...]) -> LoopExpr:
        given = index if isinstance(index, tuple) else (index,)
        assert len(given) == len(self.shape), f"{self.name} has rank {len(self.shape)}, indexed with {len(given)}"
        return Load(self, tuple(as_index(i) for i in given))

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index of a dimension to the next: row-major."""
        return tuple(math.prod(self.shape[d + 1 :]) for d in range(len(self.shape)))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize

    def fits(self, nbytes: int) -> bool:
        """True if it is known to have no more bytes."""
        return isinstance(self.nbytes, int) and self.nbytes <= nbytes

    def __repr__(self) -> str:
        return f"<Buffer {self.name}: {self.dtype}{list(self.shape)} {self.scope}>"


@dataclass(frozen=True, eq=False, repr=False)
class Stage(Buffer):
    """A buffer with a definition: element ``axes`` is ``value``.  What a compute rule returns.

    ``kept``: its elements are read so often that they are worth memory.
    """

    axes: tuple[LoopVar, ...] = ()
    value: LoopExpr = Const(0)
    kept: bool = False


def as_index(value: Index | Dim) -> LoopExpr:
    if isinstance(value, LoopExpr):
        return value
    return size_expr(value) if isinstance(value, SymbolicDim) else Const(int(value))


@lru_cache(1 << 12)
def size_expr(dim: Dim) -> LoopExpr:
    """A dimension in terms of :class:`Size`; :class:`CompilerError` for one that is anonymous, or that broadcasting
    decides."""
    if isinstance(dim, int):
        return Const(dim)
    total: LoopExpr = Const(0)
    for monomial, factor in dim.terms:
        term: LoopExpr = Const(1)
        for atom in monomial:
            term = binary("mul", term, _atom_expr(atom))
        total = binary("add", total, binary("mul", term, factor))
    return total


def _atom_expr(atom: Atom) -> LoopExpr:
    if atom.kind == "symbol":
        return Size(atom.of[0])
    op = {"//": "floordiv", "truncdiv": "floordiv", "min": "min", "max": "max"}.get(atom.kind)
    if op is None:
        raise CompilerError(f"the dimension {atom} is known only when the model runs")
    return binary(op, *map(size_expr, atom.of))


def dim_of(expr: LoopExpr) -> Dim | None:
    """The dimension that :func:`size_expr` makes an expression of; ``None`` of one that is more than that."""
    match expr:
        case Const(value, "int64"):
            return int(value)
        case Size(name):
            return symbol(name)
        case Binary("add" | "mul" | "sub" | "floordiv" | "min" | "max" as op, a, b):
            x, y = dim_of(a), dim_of(b)
            return None if x is None or y is None or (op == "floordiv" and y == 0) else _DIM_OPS[op](x, y)
    return None


_DIM_OPS: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "min": smaller,
    "max": larger,
}


def _operand(value: Any, dtype: str) -> LoopExpr:
    if isinstance(value, LoopExpr):
        return value
    return size_expr(value).astype(dtype) if isinstance(value, SymbolicDim) else const(value, dtype)


def const(value: Any, dtype: str) -> Const:
    kind = bool if dtype == "bool" else float if is_float(dtype) else int
    return Const(kind(value), dtype)


def binary(op: str, lhs: Any, rhs: Any) -> LoopExpr:
    """A binary expression; a Python number takes the other side's dtype.  Integer constants are folded."""
    like = lhs if isinstance(lhs, LoopExpr) else rhs
    a = lhs if isinstance(lhs, LoopExpr) else _operand(lhs, like.dtype)
    b = rhs if isinstance(rhs, LoopExpr) else _operand(rhs, like.dtype)
    assert a.dtype == b.dtype, f"{op} of {a.dtype} and {b.dtype}: cast one side"
    if a.dtype == "int64":
        return _fold_index(op, a, b)
    return Binary(op, a, b)


def _fold_index(op: str, a: LoopExpr, b: LoopExpr) -> LoopExpr:
    x = a.value if isinstance(a, Const) else None
    y = b.value if isinstance(b, Const) else None
    if x is None and y is None:
        return Binary(op, a, b)
    if x is not None and y is not None and op in INT:
        return Const(wrapped(INT[op](x, y)))
    if (op, y) in (("add", 0), ("sub", 0), ("mul", 1), ("floordiv", 1)):
        return a
    if (op, x) in (("add", 0), ("mul", 1)):
        return b
    if (op, y) in (("mul", 0), ("floormod", 1)) or (op, x) == ("mul", 0):
        return Const(0)
    return Binary(op, a, b)


def select(condition: LoopExpr, then: Any, orelse: Any) -> LoopExpr:
    like = then if isinstance(then, LoopExpr) else orelse
    a, b = (_operand(x, like.dtype) for x in (then, orelse))
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
    return reduce(lambda one, other: Binary("and", one, other), conditions) if conditions else Const(True, "bool")
