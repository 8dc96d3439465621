"""Tensor types.  A dimension is a number or a symbol (``minitvm.ir.dims``), which is known only when the model runs.

``TensorType(("n", 3))`` has the symbol ``n``, ``TensorType((None, 3))`` an anonymous dimension, Relay's ``Any``.
What kernels cannot hold (strings, sequences, optionals, tensors of any rank) has types, too: host calls and control
flow carry it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from minitvm.errors import TypeInferenceError
from minitvm.ir.dims import Dim, SymbolicDim, Undecided, anonymous, at_extent, is_anonymous, larger, replace, symbols_of
from minitvm.ir.dtypes import COMPUTED, is_float
from minitvm.ir.dtypes import DTYPES as DTYPES
from minitvm.ir.dtypes import DType as DType
from minitvm.ir.dtypes import ResultDType as ResultDType
from minitvm.ir.written import as_dim as as_dim
from minitvm.ir.written import as_dtype, no_shape
from minitvm.ir.written import as_shape as as_shape

STRING = "string"
"""The dtype of text, which no kernel computes with; in numpy an array of objects."""

MOST_BYTES = 1 << 47
"""What a process can address: no tensor is larger.  Index arithmetic, numpy's too, is far from overflowing below it."""

Shape: TypeAlias = tuple[Dim, ...]

_NUMBERS = frozenset((int,))
_DIMENSIONS = frozenset((int, SymbolicDim))

MOST_DIMENSIONS = 64
"""As in numpy."""


class UnknownSize(TypeInferenceError, Undecided):
    """A number is needed where a dimension is known only when the model runs."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """The shape and dtype of a dense, row-major tensor; prints as ``Tensor[(1, 3), float32]``."""

    shape: Shape
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if type(self.shape) is not tuple or not _DIMENSIONS.issuperset(map(type, self.shape)):
            object.__setattr__(self, "shape", as_shape(self.shape))
        if type(self.dtype) is not str or self.dtype not in COMPUTED:
            object.__setattr__(self, "dtype", as_dtype(self.dtype, STRING))
        if len(self.shape) > MOST_DIMENSIONS or min((d for d in self.shape if type(d) is int), default=0) < 0:
            raise no_shape(self.shape, MOST_DIMENSIONS)

    def __str__(self) -> str:
        return f"Tensor[{shape_text(self.shape)}, {self.dtype}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """True if its bytes are counted while compiling: all dimensions are numbers, and so are the elements."""
        return _NUMBERS.issuperset(map(type, self.shape)) and self.dtype != STRING

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """The shape with ``None`` for what is known only when the model runs."""
        return tuple(d if isinstance(d, int) else None for d in self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape, all dimensions known; raises :class:`UnknownSize` where one is not."""
        if not self.is_static:
            raise UnknownSize(f"{self} has a size that is known only when the model runs")
        return self.shape  # type: ignore[return-value]  # as is_static says

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape as loops have it: numbers, and whatever calculates as numbers do."""
        return self.shape  # type: ignore[return-value]  # symbols too, which answer no question that needs a number

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.static_shape)

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def is_float(self) -> bool:
        return is_float(self.dtype)

    def with_shape(self, shape: Shape) -> TensorType:
        return TensorType(shape, self.dtype)

    def with_dtype(self, dtype: str) -> TensorType:
        return TensorType(self.shape, dtype)


class _Held:
    """What Python holds is asked like a tensor whose sizes are not known."""

    __slots__ = ()
    is_static: ClassVar[bool] = False
    shape: ClassVar[Shape] = ()
    sizes: ClassVar[tuple[int | None, ...]] = ()

    @property
    def static_shape(self) -> tuple[int, ...]:
        raise TypeInferenceError(f"{self} has a size that is known only when the model runs")

    @property
    def size(self) -> int:
        return math.prod(self.static_shape)

    @property
    def nbytes(self) -> int:
        return self.size


@dataclass(frozen=True, slots=True)
class SequenceType(_Held):
    """The type of as many values as there are when the model runs (a list); an optional one is one or none (``None``).

    Prints as ``Sequence[Tensor[(3,), float32]]``, ``Optional[Sequence[string]]``.
    """

    element: HostType | TensorType
    optional: bool = False

    def __str__(self) -> str:
        return f"{'Optional' if self.optional else 'Sequence'}[{self.element}]"

    @property
    def dtype(self) -> str:
        return self.element.dtype


@dataclass(frozen=True, slots=True)
class AnyTensor(_Held):
    """A tensor whose rank is known only when the model runs: ``AnyTensor[float32]``.  With ``none`` there is none of
    it, as in a sequence that is empty: ``NoTensor[float32]``."""

    dtype: str
    none: bool = False

    def __str__(self) -> str:
        return f"{'No' if self.none else 'Any'}Tensor[{self.dtype}]"


@dataclass(frozen=True, slots=True)
class MapType(_Held):
    """The type of as many values as a run finds, each under a key (a dict): ``Map[string, float32]``."""

    key: str
    dtype: str

    def __str__(self) -> str:
        return f"Map[{self.key}, {self.dtype}]"


@dataclass(frozen=True, slots=True)
class TupleType:
    fields: tuple[Type, ...]

    def __post_init__(self) -> None:
        require_types("a tuple's fields", *self.fields)

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.fields))
        return f"({inner}{',' if len(self.fields) == 1 else ''})"

    @property
    def is_static(self) -> bool:
        return all(f.is_static for f in self.fields)


@dataclass(frozen=True, slots=True)
class FuncType:
    params: tuple[Type, ...]
    result: Type

    def __post_init__(self) -> None:
        require_types("a function's parameters and its result", *self.params, self.result)

    def __str__(self) -> str:
        return f"fn ({', '.join(map(str, self.params))}) -> {self.result}"

    @property
    def is_static(self) -> bool:
        return self.result.is_static and all(p.is_static for p in self.params)


HostType: TypeAlias = SequenceType | MapType | AnyTensor
"""What Python alone holds, as it does tensors of text."""
Leaf: TypeAlias = TensorType | HostType
Type: TypeAlias = TensorType | TupleType | FuncType | HostType


def require_types(what: str, *given: Any) -> None:
    """:class:`TypeInferenceError` where something else stands for a type."""
    for one in given:
        if not isinstance(one, Type):
            hint = f"a tensor's type is TensorType({one if isinstance(one, tuple) else '(1, 3)'}, 'float32')"
            raise TypeInferenceError(f"{what}: {one!r} is no type", hint=hint)


Span: TypeAlias = tuple[str, ...]
"""Where a node came from: names of ONNX nodes, in order.  Several after a rewrite that merges."""


@functools.cache
def _dtype_name(dtype: np.dtype[Any]) -> str:  # numpy makes the name up at every call
    return STRING if dtype.kind in "OUT" else dtype.name


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype that stores elements of a dtype."""
    return np.dtype(object if name == STRING else name)


def accumulator(dtype: str) -> str:
    """What sums and products that end as ``dtype`` are kept in: half precision in single, all others in their own."""
    return "float32" if dtype == "float16" else dtype


def type_of(value: np.ndarray) -> TensorType:
    return TensorType(value.shape, _dtype_name(value.dtype))


def fits(value: np.ndarray, type_: Leaf) -> bool:
    """True if it is an array of such a type; what is known only when the model runs may be any number."""
    is_it = value.dtype is numpy_dtype(type_.dtype) or _dtype_name(value.dtype) == type_.dtype
    if not is_it or len(value.shape) != len(type_.shape) or value.shape == type_.shape:
        return is_it and value.shape == type_.shape
    return not [dim for n, dim in zip(value.shape, type_.shape, strict=True) if type(dim) is int and n != dim]


def shape_text(shape: Iterable[Dim | None]) -> str:
    """``(1, n, ?)``, ``(3,)``."""
    dims = ["?" if d is None else str(d) for d in shape]
    return f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"


def flatten(type_: Type, value: Any) -> list[Any]:
    """What stands for the tensors in ``value``, nested tuples as in the type, in order."""
    if not isinstance(type_, TupleType):
        return [value]
    return [leaf for field, v in zip(type_.fields, value, strict=True) for leaf in flatten(field, v)]


def nest(type_: Type, leaves: Iterator[Any]) -> Any:
    """The other way round: the next of ``leaves`` in the structure of a type."""
    return tuple(nest(field, leaves) for field in type_.fields) if isinstance(type_, TupleType) else next(leaves)


def leaves(type_: Type) -> tuple[Leaf, ...]:
    """The values of a type in order: itself, or a tuple's fields, flattened."""
    if isinstance(type_, TupleType):
        return tuple(t for field in type_.fields for t in leaves(field))
    if isinstance(type_, FuncType):
        raise TypeInferenceError(f"{type_} is not a tensor or a tuple of tensors")
    return (type_,)


def tensor_fields(type_: Type) -> tuple[TensorType, ...]:
    """The tensors of a type of tensors alone: itself, or a tuple's fields, flattened."""
    return tuple(map(as_tensor, leaves(type_)))


def as_tensor(type_: Type) -> TensorType:
    """The type itself; :class:`TypeInferenceError` where it is no tensor's."""
    if not isinstance(type_, TensorType):
        raise TypeInferenceError(f"{type_} is not a tensor or a tuple of tensors")
    return type_


def is_numeric(type_: Type) -> bool:
    """True if kernels could hold its values once their sizes are known."""
    return all(isinstance(t, TensorType) and t.dtype != STRING for t in leaves(type_))


def common(a: Type, b: Type) -> Type | None:
    """The type of a value that is of either type: dimensions that differ are anonymous, ranks that differ any.

    ``None`` where there is none.
    """
    if isinstance(a, TupleType) and isinstance(b, TupleType) and len(a.fields) == len(b.fields):
        fields = tuple(map(common, a.fields, b.fields))
        return None if None in fields else TupleType(fields)  # type: ignore[arg-type]
    if isinstance(a, SequenceType) or isinstance(b, SequenceType):
        optional = any(isinstance(t, SequenceType) and t.optional for t in (a, b))
        if not optional and not (isinstance(a, SequenceType) and isinstance(b, SequenceType)):
            return None
        element = common(_inside(a, optional), _inside(b, optional))
        return None if element is None else SequenceType(element, optional)  # type: ignore[arg-type]
    if isinstance(a, (TensorType, AnyTensor)) and isinstance(b, (TensorType, AnyTensor)) and a.dtype == b.dtype:
        return _common_tensor(a, b)
    return None


def _inside(type_: Type, optional: bool) -> Type:
    """What a sequence, or an optional, is of; anything else is an optional of itself."""
    return type_.element if isinstance(type_, SequenceType) and type_.optional == optional else type_


def _common_tensor(a: TensorType | AnyTensor, b: TensorType | AnyTensor) -> TensorType | AnyTensor:
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.rank == b.rank:
        return a.with_shape(tuple(x if x == y else anonymous() for x, y in zip(a.shape, b.shape, strict=True)))
    if isinstance(a, AnyTensor) and a.none:
        return b
    return a if isinstance(b, AnyTensor) and b.none else AnyTensor(a.dtype)


def alike(a: Type | None, b: Type | None) -> bool:
    """True if two types are equal, where one anonymous dimension is as good as another."""
    return a == b or (a is not None and b is not None and str(a) == str(b))


def accepts(expected: Type, given: Type) -> bool:
    """True if a value may stand where ``expected`` is asked for: an anonymous dimension takes any."""
    if isinstance(expected, TupleType) and isinstance(given, TupleType) and len(expected.fields) == len(given.fields):
        return all(map(accepts, expected.fields, given.fields))
    if not isinstance(expected, TensorType) or not isinstance(given, TensorType):
        return alike(expected, given) or _accepts_host(expected, given)
    same = expected.dtype == given.dtype and expected.rank == given.rank
    return same and all(e == g or is_anonymous(e) for e, g in zip(expected.shape, given.shape, strict=True))


def _accepts_host(expected: Type, given: Type) -> bool:
    """An optional takes what it is an option of, a tensor of any rank all, and none is of every type."""
    if isinstance(given, AnyTensor) and given.none:
        return getattr(expected, "dtype", None) == given.dtype
    if isinstance(expected, SequenceType):
        if isinstance(given, SequenceType) and given.optional == expected.optional:
            return accepts(expected.element, given.element)
        return expected.optional and accepts(expected.element, given)
    return isinstance(expected, AnyTensor) and not expected.none and getattr(given, "dtype", None) == expected.dtype


def bindings(expected: Iterable[Type], given: Iterable[Type]) -> dict[SymbolicDim, Dim]:
    """What the anonymous dimensions of parameters stand for where they are given arguments of these types."""
    found: dict[SymbolicDim, Dim] = {}
    for own, other in zip(expected, given, strict=True):
        if isinstance(own, TupleType) and isinstance(other, TupleType):
            found |= bindings(own.fields, other.fields)
        elif isinstance(own, TensorType) and isinstance(other, TensorType):
            found |= {p: g for p, g in zip(own.shape, other.shape, strict=True) if isinstance(p, SymbolicDim)}
    return found


def symbols(*types: Type) -> frozenset[str]:
    """The names of the symbols in types."""
    return symbols_of(d for t in types for field in leaves(t) for d in field.shape if isinstance(d, SymbolicDim))


def is_named(type_: Type) -> bool:
    """True if all that a type leaves open are sizes that have a name."""
    return is_numeric(type_) and not any(is_anonymous(d) for field in tensor_fields(type_) for d in field.shape)


def only_batch_open(type_: Type) -> bool:
    """True if all dimensions but the leading ones are numbers, and these are or have a name."""
    return is_named(type_) and all(isinstance(d, int) for field in tensor_fields(type_) for d in field.shape[1:])


def closed(type_: Type, extent: int) -> Type:
    """``type_`` where every symbol stands for ``extent``; an extent that would be below 0 is 0."""
    if isinstance(type_, TupleType):
        return TupleType(tuple(closed(field, extent) for field in type_.fields))
    if not isinstance(type_, TensorType):
        return type_
    return type_.with_shape(tuple(d if isinstance(d, int) else larger(0, at_extent(d, extent)) for d in type_.shape))


def bound(type_: Type, values: Mapping[SymbolicDim, Dim]) -> Type:
    """``type_`` with symbols replaced; anonymous ones without a value become new ones."""
    if isinstance(type_, TupleType):
        return TupleType(tuple(bound(field, values) for field in type_.fields))
    if not isinstance(type_, TensorType) or type_.is_static:
        return type_
    free = {a for d in type_.shape if isinstance(d, SymbolicDim) for a in d.symbols() if a.kind == "?"}
    known = {**{atom: anonymous() for atom in free}, **{d.atom: value for d, value in values.items() if d.is_atom}}
    return type_.with_shape(tuple(replace(d, known) for d in type_.shape))
