"""Values that Python alone holds: text, sequences of tensors, maps, optionals.  They have references, and no kernels.

A sequence is a list, a map a dict, an optional its value or ``None``.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from minitvm.errors import InputError
from minitvm.ir.dims import anonymous, differ
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import normalize_axis
from minitvm.ir.reader import Reader
from minitvm.ir.types import (
    STRING,
    AnyTensor,
    FuncType,
    Leaf,
    MapType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    as_shape,
    bound,
    common,
    numpy_dtype,
)


class Text(Op, name="string.text", fusion=Fusion.OPAQUE, takes_stored=True):
    """A tensor of text: ``texts`` in row-major order, of ``shape``."""

    texts: tuple[str, ...]
    shape: tuple[int, ...]

    def infer(self) -> TensorType:
        return TensorType(as_shape(self.shape), STRING)

    def reference(self) -> np.ndarray:
        return np.array(self.texts, object).reshape(self.shape)


def _leaf(op: Op, type_: Type) -> Leaf:
    if isinstance(type_, (TupleType, FuncType)):
        raise op.reject(f"a sequence does not hold {type_}")
    return type_


def _element(op: Op, type_: Type, optional: bool = False) -> Leaf:
    """What a sequence, or an optional, is of: its anonymous dimensions are new with each."""
    if not isinstance(type_, SequenceType) or type_.optional != optional:
        raise op.reject(f"takes {'an optional' if optional else 'a sequence'}, not {type_}")
    found: Any = bound(type_.element, {})
    return AnyTensor(found.dtype) if isinstance(found, AnyTensor) else found


class SequenceOf(Op, name="sequence.of", fusion=Fusion.OPAQUE, takes_stored=True):
    """A sequence of the given values.  Of none it is one of no tensors of ``dtype``."""

    dtype: str = "float32"

    def infer(self, *values: Type) -> SequenceType:
        found = [_leaf(self, v) for v in values] or [AnyTensor(self.dtype, none=True)]
        element = reduce(lambda a, b: a and common(a, b), found[1:], found[0])  # type: ignore[arg-type, return-value]
        if element is None:
            raise self.reject(f"values of one sequence are {' and '.join(map(str, found))}")
        return SequenceType(element)

    def reference(self, *values: Any) -> list[Any]:
        return list(values)


def _position(op: Op, index: Any, length: int, end: int) -> int:
    """An index in [-length, end); :class:`InputError` where it is outside."""
    found = int(np.asarray(index).item())
    if not -length <= found < end:
        raise InputError(f"{op.name}: index {found} is outside of a sequence of {length}")
    return found + length if found < 0 else found


class SequenceAt(Op, name="sequence.at", fusion=Fusion.OPAQUE, takes_stored=True):
    """A value of a sequence.  sequence: n values, index: one integer in [-n, n) -> a value."""

    def infer(self, sequence: Type, index: TensorType) -> Leaf:
        return _element(self, sequence)

    def reference(self, sequence: list[Any], index: np.ndarray) -> Any:
        return sequence[_position(self, index, len(sequence), len(sequence))]


class SequenceInsert(Op, name="sequence.insert", fusion=Fusion.OPAQUE, takes_stored=True):
    """A sequence with one value more, at the end.  sequence: n values, index: in [-n, n], before which it goes."""

    def infer(self, sequence: Type, value: Type, index: TensorType | None = None) -> SequenceType:
        _element(self, sequence)
        found = common(sequence, SequenceType(_leaf(self, value)))
        if not isinstance(found, SequenceType):
            raise self.reject(f"{value} does not go into a {sequence}")
        return found

    def reference(self, sequence: list[Any], value: Any, index: Any = None) -> list[Any]:
        length = len(sequence)
        at = length if index is None else _position(self, index, length, length + 1)
        return [*sequence[:at], value, *sequence[at:]]


class SequenceErase(Op, name="sequence.erase", fusion=Fusion.OPAQUE, takes_stored=True):
    """A sequence with one value less, the last.  sequence: n values, index: in [-n, n)."""

    def infer(self, sequence: Type, index: TensorType | None = None) -> Type:
        _element(self, sequence)
        return sequence

    def reference(self, sequence: list[Any], index: Any = -1) -> list[Any]:
        at = _position(self, index, len(sequence), len(sequence))
        return [*sequence[:at], *sequence[at + 1 :]]


class SequenceLength(Op, name="sequence.length", fusion=Fusion.OPAQUE, takes_stored=True):
    """The number of values of a sequence, an int64."""

    def infer(self, sequence: Type) -> TensorType:
        _element(self, sequence)
        return TensorType((), "int64")

    def reference(self, sequence: list[Any]) -> np.ndarray:
        return np.asarray(len(sequence))


class SequenceConcat(Op, name="sequence.concatenate", fusion=Fusion.OPAQUE, takes_stored=True):
    """All tensors one after the other along ``axis``; with ``stack`` along a new one."""

    axis: int
    stack: bool = False

    def infer(self, sequence: Type) -> TensorType | AnyTensor:
        element = _element(self, sequence)
        if not isinstance(element, TensorType):
            if not isinstance(element, AnyTensor):
                raise self.reject(f"takes tensors, not {sequence}")
            return element
        axis = normalize_axis(self, self.axis, element.rank + self.stack)
        behind = element.shape[axis + (not self.stack) :]
        return element.with_shape((*element.shape[:axis], anonymous(), *behind))

    def reference(self, sequence: list[np.ndarray]) -> np.ndarray:
        if not sequence:
            raise InputError(f"{self.name}: the sequence is empty")
        return (np.stack if self.stack else np.concatenate)(sequence, axis=self.axis)


class SequenceSplit(Op, name="sequence.split", fusion=Fusion.OPAQUE, takes_stored=True):
    """Pieces of a tensor.  data: (..., n, ...), lengths: those of the pieces along ``axis``, or one of all but the
    last; without ``keep`` each is one element long, and its axis is dropped."""

    axis: int
    keep: bool = True

    def infer(self, data: Type, lengths: TensorType) -> SequenceType:
        if not isinstance(data, TensorType):
            return SequenceType(_leaf(self, data))
        axis = normalize_axis(self, self.axis, data.rank)
        inside = (anonymous(),) if self.keep else ()
        return SequenceType(data.with_shape((*data.shape[:axis], *inside, *data.shape[axis + 1 :])))

    def reference(self, data: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
        pieces = self.pieces(data.shape[self.axis], lengths)
        found = [np.take(data, range(start, end), self.axis) for start, end in pieces]
        return found if self.keep else [piece.squeeze(self.axis) for piece in found]

    def pieces(self, extent: int, lengths: np.ndarray) -> Sequence[tuple[int, int]]:
        """The place where each begins and ends; :class:`InputError` where they are not all of ``extent`` in all."""
        given = lengths.reshape(-1).tolist()
        if not lengths.ndim and given[0] > 0:
            ends = [*range(given[0], extent, given[0]), *([extent] if extent else [])]
        else:
            ends = np.cumsum(given).tolist()
        if min(given, default=0) < 0 or (not lengths.ndim and not given[0]) or (ends or [0])[-1] != extent:
            raise InputError(f"{self.name}: lengths {given} do not divide {extent} elements")
        return list(pairwise([0, *ends]))


class OptionalOf(Op, name="optional.of", fusion=Fusion.OPAQUE, takes_stored=True):
    """An optional that has the value."""

    def infer(self, value: Type) -> SequenceType:
        return SequenceType(_leaf(self, value), optional=True)

    def reference(self, value: Any) -> Any:
        return value


class OptionalNone(Op, name="optional.none", fusion=Fusion.OPAQUE, takes_stored=True):
    """An optional that has no value; ``element`` is the type as text: ``Tensor[(?, 3), float32]``."""

    element: str

    def infer(self) -> Type:
        return SequenceType(_leaf(self, Reader(self.element, None).type()), optional=True)

    def reference(self) -> None:
        return None


class OptionalGet(Op, name="optional.get", fusion=Fusion.OPAQUE, takes_stored=True):
    """The value of an optional; :class:`InputError` where it has none."""

    def infer(self, optional: Type) -> Leaf:
        return _element(self, optional, optional=True)

    def reference(self, optional: Any) -> Any:
        if optional is None:
            raise InputError(f"{self.name}: the optional has no value")
        return optional


class OptionalHas(Op, name="optional.has", fusion=Fusion.OPAQUE, takes_stored=True):
    """Tells whether an optional has a value, a bool."""

    def infer(self, optional: Type) -> TensorType:
        _element(self, optional, optional=True)
        return TensorType((), "bool")

    def reference(self, optional: Any) -> np.ndarray:
        return np.asarray(optional is not None)


class MapZip(Op, name="map.zip", fusion=Fusion.OPAQUE):
    """A map of each row, its elements under ``keys``.  data: (n, number of keys)."""

    keys: tuple[int, ...] | tuple[str, ...]

    def infer(self, data: TensorType) -> SequenceType:
        if data.rank != 2 or differ(data.shape[1], len(self.keys)):
            raise self.reject(f"takes rows of {len(self.keys)} elements, not {data}")
        return SequenceType(MapType(_dtype_of_keys(self.keys), data.dtype))

    def reference(self, data: np.ndarray) -> list[dict[Any, Any]]:
        return [dict(zip(self.keys, row.tolist(), strict=True)) for row in data]


class MapVector(Op, name="map.vector", fusion=Fusion.OPAQUE, takes_stored=True):
    """One row of a map's values, cast to ``dtype``: those under ``keys``, 0 (or no text) where there is none, or all
    in the order of their keys.  :class:`InputError` where a map has other keys -> (1, number of keys)."""

    keys: tuple[int, ...] | tuple[str, ...] | None
    dtype: str

    def infer(self, map: Type) -> TensorType:
        if not isinstance(map, MapType):
            raise self.reject(f"takes a map, not {map}")
        if self.keys is not None and map.key != _dtype_of_keys(self.keys):
            raise self.reject(f"the keys are {_dtype_of_keys(self.keys)}, those of the map {map.key}")
        return TensorType((1, anonymous() if self.keys is None else len(self.keys)), self.dtype)

    def reference(self, map: dict[Any, Any]) -> np.ndarray:
        keys = sorted(map) if self.keys is None else self.keys
        if unknown := map.keys() - set(keys):
            raise InputError(f"{self.name}: the map has {unknown.pop()!r}, which is not among {len(keys)} keys")
        if self.dtype == STRING:
            return np.array([[str(map.get(key, "")) for key in keys]], object)
        return np.array([[map.get(key, 0) for key in keys]]).astype(self.dtype)


class MapLookup(Op, name="map.lookup", fusion=Fusion.OPAQUE):
    """What stands at an element's place in ``values``, by its place in ``keys``, the last of equal ones; else
    ``default``.  data: of any shape, text or numbers -> of that shape, ``dtype``."""

    keys: tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
    values: tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
    default: int | float | str
    dtype: str

    def infer(self, data: TensorType | AnyTensor) -> TensorType | AnyTensor:
        if len(self.keys) != len(self.values):
            raise self.reject(f"{len(self.keys)} keys have {len(self.values)} values")
        return AnyTensor(self.dtype) if isinstance(data, AnyTensor) else data.with_dtype(self.dtype)

    def reference(self, data: np.ndarray) -> np.ndarray:
        table = {_key(k): v for k, v in zip(self.keys, self.values, strict=True)}
        found = [table.get(_key(one), self.default) for one in data.reshape(-1).tolist()]
        return np.array(found, numpy_dtype(self.dtype)).reshape(data.shape)


def _key(value: Any) -> Any:
    """All NaN are one."""
    return value if value == value else "nan"


def _dtype_of_keys(keys: Sequence[int | str]) -> str:
    return STRING if any(isinstance(key, str) for key in keys) else "int64"
