"""Tensor types.  ``None`` as a dimension is Relay's ``Any``: known only when the model runs."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypeVar

import numpy as np

from minitvm.errors import TypeInferenceError

DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)

DType: TypeAlias = Annotated[str, DTYPES]
ResultDType: TypeAlias = Annotated[str, ("", *DTYPES)]
"""A result's dtype as an attribute; empty: as the operands."""

MOST_BYTES = 1 << 47
"""What a process can address: no tensor is larger.  Index arithmetic, numpy's too, is far from overflowing below it."""

Dim: TypeAlias = int | None
Shape: TypeAlias = tuple[Dim, ...]

T = TypeVar("T")

_DIMENSION_TYPES = frozenset((int, type(None)))


def all_known(values: Iterable[T | None]) -> tuple[T, ...] | None:
    """The values; ``None`` where one of them is."""
    given = tuple(values)
    known = tuple(v for v in given if v is not None)
    return known if len(known) == len(given) else None


def _as_shape(given: Any) -> Shape:
    try:
        return tuple(None if d is None else operator.index(d) for d in given)
    except TypeError as error:
        raise TypeInferenceError(f"{given!r} is no shape", hint="a shape is a tuple of whole numbers") from error


@dataclass(frozen=True, slots=True)
class TensorType:
    """The shape and dtype of a dense, row-major tensor; prints as ``Tensor[(1, 3), float32]``."""

    shape: Shape
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if type(self.shape) is not tuple or not _DIMENSION_TYPES.issuperset(map(type, self.shape)):
            object.__setattr__(self, "shape", _as_shape(self.shape))
        if type(self.dtype) is not str:
            object.__setattr__(self, "dtype", str(self.dtype))
        if self.dtype not in DTYPES:
            raise TypeInferenceError(f"{self.dtype!r} is not a dtype", hint=f"known dtypes: {', '.join(DTYPES)}")
        if any(d is not None and d < 0 for d in self.shape):
            raise TypeInferenceError(f"shape {self.shape} has a negative dimension")

    def __str__(self) -> str:
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"Tensor[({dims}{',' if len(self.shape) == 1 else ''}), {self.dtype}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        return None not in self.shape

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape, all dimensions known; raises :class:`TypeInferenceError` where one is not."""
        known = all_known(self.shape)
        if known is None:
            raise TypeInferenceError(f"{self} has a dimension that is known only when the model runs")
        return known

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.static_shape)

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith("float")

    def with_shape(self, shape: Shape) -> TensorType:
        return TensorType(shape, self.dtype)

    def with_dtype(self, dtype: str) -> TensorType:
        return TensorType(self.shape, dtype)


@dataclass(frozen=True, slots=True)
class TupleType:
    fields: tuple[Type, ...]

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

    def __str__(self) -> str:
        return f"fn ({', '.join(map(str, self.params))}) -> {self.result}"

    @property
    def is_static(self) -> bool:
        return self.result.is_static and all(p.is_static for p in self.params)


Type: TypeAlias = TensorType | TupleType | FuncType

Span: TypeAlias = tuple[str, ...]
"""Where a node came from: names of ONNX nodes, in order.  Several after a rewrite that merges."""


_dtype_name = functools.cache(lambda dtype: dtype.name)  # numpy makes the name up at every call


def type_of(value: np.ndarray) -> TensorType:
    return TensorType(value.shape, _dtype_name(value.dtype))


def tensor_fields(type_: Type) -> tuple[TensorType, ...]:
    """The tensors of a type in order: itself, or a tuple's fields, flattened."""
    if isinstance(type_, TensorType):
        return (type_,)
    if isinstance(type_, TupleType):
        return tuple(t for field in type_.fields for t in tensor_fields(field))
    raise TypeInferenceError(f"{type_} is not a tensor or a tuple of tensors")
