"""What an operator's attributes may be: its dataclass annotations, read once.

Builder, text, importer, library file and passes all construct the operator, and so give and keep the same values:
numpy's numbers become Python's, lists and arrays tuples, an integer alone a tuple of one; anything else is refused.
"""

import dataclasses
import functools
import json
import operator
import threading
import types
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from minitvm.ir.dtypes import STORED, is_float

_BOOLS = (bool, np.bool_)
_NUMBERS = (int, float, np.integer, np.floating)


@dataclasses.dataclass(frozen=True)
class Kind:
    """Values that an annotation allows: in words, and as a function to the value kept, which raises for others."""

    expected: str
    read: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Attribute:
    """One attribute of an operator class."""

    name: str
    annotation: Any
    required: bool

    @functools.cached_property
    def kind(self) -> Kind:
        return kind_of(self.annotation)


waiting: set[type[Any]] = set()
"""Operator classes that are no dataclasses yet: making them so is a quarter of all imports, and most are never used."""
_lock = threading.RLock()


def complete(op: type[Any]) -> None:
    """Makes dataclasses of an operator class and those above it, where they are none yet."""
    if waiting.isdisjoint(op.__mro__):
        return
    with _lock:
        for cls in reversed(op.__mro__):
            if cls in waiting:
                dataclasses.dataclass(frozen=True)(cls)
                del cls.__setattr__, cls.__delattr__  # Op's freeze as well, and who decorates a class again finds none
                waiting.discard(cls)


_known: dict[type[Any], dict[str, Attribute]] = {}


def attributes_of(op: type[Any]) -> dict[str, Attribute]:
    """The attributes of an operator class by name, in order of declaration."""
    if op not in _known:
        complete(op)
        hints, fields = get_type_hints(op, include_extras=True), dataclasses.fields(op)
        required = {f.name: f.default is f.default_factory is dataclasses.MISSING for f in fields}
        _known[op] = {name: Attribute(name, hints[name], needed) for name, needed in required.items()}
    return _known[op]


def kind_of(annotation: Any) -> Kind:
    """What an annotation allows; one that says nothing (``Any``, a protocol) allows everything."""
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _one_of(parts)
    if origin is Annotated:
        return _one_of(parts[1])
    if origin in (Union, types.UnionType):
        return _either([kind_of(part) for part in parts], type(None) in parts)
    if origin is tuple:
        return _tuple_of(parts)
    if isinstance(annotation, type):
        return _checked(f"a {annotation.__name__}", lambda value: isinstance(value, annotation))
    return Kind("anything", lambda value: value)


def _checked(expected: str, fits: Callable[[Any], bool], keep: Callable[[Any], Any] = lambda value: value) -> Kind:
    def read(value: Any) -> Any:
        if not fits(value):
            raise TypeError
        return keep(value)

    return Kind(expected, read)


def _is_truth(value: Any) -> bool:
    return isinstance(value, _BOOLS) or (isinstance(value, (int, np.integer)) and value in (0, 1))


_SCALARS: dict[Any, Kind] = {
    int: _checked("a whole number", lambda value: not isinstance(value, _BOOLS), operator.index),
    float: _checked("a number", lambda v: isinstance(v, _NUMBERS) and not isinstance(v, _BOOLS), float),
    bool: _checked("True or False", _is_truth, bool),
    str: _checked("text", lambda value: isinstance(value, str), str),
    type(None): _checked("None", lambda value: value is None),
}


def _one_of(allowed: tuple[Any, ...]) -> Kind:
    return _checked(
        f"one of {', '.join(map(repr, allowed))}",
        lambda value: isinstance(value, type(allowed[0])) and value in allowed,
        lambda value: allowed[allowed.index(value)],
    )


def _either(kinds: list[Kind], optional: bool) -> Kind:
    def read(value: Any) -> Any:
        if value is None and optional:
            return None
        for kind in kinds:
            try:
                return kind.read(value)
            except (TypeError, ValueError):
                continue
        raise TypeError

    return Kind(" or ".join(kind.expected for kind in kinds), read)


def _tuple_of(parts: tuple[Any, ...]) -> Kind:
    """``tuple[int, ...]`` (a value alone stands for a tuple of it), ``tuple[int, int]``."""
    any_number = parts[-1] is Ellipsis
    kinds = [kind_of(part) for part in parts if part is not Ellipsis]
    plain = parts[0] if any_number and parts[0] in (int, str) else None

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is tuple and plain is not None and all(type(v) is plain for v in value):
            return value
        if isinstance(value, str) or (not any_number and not isinstance(value, Iterable)):
            raise TypeError
        given = list(value) if isinstance(value, Iterable) else [value]
        return tuple(k.read(v) for k, v in zip(kinds * (len(given) if any_number else 1), given, strict=True))

    each = ", ".join(kind.expected for kind in kinds)
    return Kind(f"[{each}, ...]" if any_number else f"[{each}]", read)


# --- as text --------------------------------------------------------------------------------------------------


def print_attributes(op: Any, name_of: Callable[[Any], str] = str) -> list[str]:
    """``name=value`` for every attribute that is not at its default, in order of declaration."""
    return [
        f"{f.name}={format_attribute(getattr(op, f.name), name_of)}"
        for f in dataclasses.fields(op)
        if not _is_default(f, getattr(op, f.name))
    ]


def _is_default(field: dataclasses.Field[Any], value: object) -> bool:
    default: object = field.default_factory() if callable(field.default_factory) else field.default
    return bool(default is value or (type(default) is type(value) and default == value))


def format_attribute(value: Any, name_of: Callable[[Any], str] = str) -> str:
    """An attribute's value: ``[1, 1]`` for tuples, ``"SAME"``, ``True``, ``1e-05``; ``name_of`` is asked for others."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, np.generic):
        return format_attribute(value.item(), name_of)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(format_attribute(v, name_of) for v in value)}]"
    if value is None or isinstance(value, (bool, int, float)):
        return str(value)
    return name_of(value)


def quote(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


# --- numbers of graphs and of loops carry their dtype: ``3`` int64, ``3i32``, ``2f`` float32, ``2f16``, ``-inff`` ---

SUFFIXES = {
    "float16": "f16", "float32": "f", "float64": "f64", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "",
}  # fmt: skip
_DTYPES = {suffix: dtype for dtype, suffix in SUFFIXES.items() if suffix} | {"f32": "float32", "i64": "int64"}


def format_number(value: Any, dtype: str, suffix: bool = True) -> str:
    """What the dtype can hold of a value, exact, in the fewest digits; without a suffix inside a larger constant."""
    if dtype == "bool":
        return str(bool(value))
    with np.errstate(over="ignore"):
        kept = np.dtype(dtype).type(value) if is_float(dtype) else int(value)
        text = str(float(kept) if dtype in STORED else kept)
    return text.removesuffix(".0") + (SUFFIXES.get(dtype, f":{dtype}") if suffix else "")


def dtype_of(suffix: str, is_decimal: bool) -> str:
    """The dtype of a number that is read; a decimal without a suffix is float32."""
    return _DTYPES[suffix] if suffix else "float32" if is_decimal else "int64"
