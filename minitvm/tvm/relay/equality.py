"""TVM's ``ir.structural_equal`` and what goes with it, of all that scripts compare: nodes, operators, names, types,
sequences and dictionaries of them; and TVM's makers of attributes and places, ``ir.make_node`` and ``ir.Span``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from minitvm import ir, runtime
from minitvm.errors import IRError, ParseError
from minitvm.ir import structural
from minitvm.ir.expr import Expr, Module, Var
from minitvm.ir.types import Type
from minitvm.runtime import container
from minitvm.scopes.nodes import free_vars
from minitvm.tvm.error import NotOfferedError
from minitvm.tvm.parser import parse, parse_expr, parse_type
from minitvm.tvm.relay.forms import SourceName, Span
from minitvm.tvm.relay.op import Operators
from minitvm.tvm.relay.text import astext, type_text

_numbers = count()
_known: WeakKeyDictionary[Var, int] = WeakKeyDictionary()
"""A number for each free variable that was hashed."""


def _difference(a: Any, b: Any, map_free_vars: bool, path: str) -> str | None:
    """The first difference of two values."""
    if isinstance(a, (Expr, Module)) and isinstance(b, (Expr, Module)):
        try:
            structural.assert_structural_equal(a, b, map_free_vars)
        except IRError as error:
            return f"{path}{error}"
        return None
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        pairs: Iterator[tuple[Any, Any, Any]] = ((i, x, y) for i, (x, y) in enumerate(zip(a, b, strict=False)))
        sizes = len(a), len(b)
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        pairs = ((name, value, b[name]) for name, value in a.items() if name in b)
        sizes = len(a), len({*a, *b})
    else:
        return None if type(a) is type(b) and a == b else f"{path}the graphs differ: {a!r} != {b!r}"
    if sizes[0] != sizes[1]:
        return f"{path}the graphs differ: {sizes[0]} values != {sizes[1]} values"
    found = (_difference(x, y, map_free_vars, f"{path}[{key}]: ") for key, x, y in pairs)
    return next(filter(None, found), None)


class UnequalError(IRError, ValueError):
    """Two graphs are not the same."""


def structural_equal(lhs: Any, rhs: Any, map_free_vars: bool = False) -> bool:
    """True if two values are the same graph, or sequences, dictionaries, types or names that are the same."""
    return _difference(lhs, rhs, map_free_vars, "") is None


def assert_structural_equal(lhs: Any, rhs: Any, map_free_vars: bool = False) -> None:
    """:class:`UnequalError` with the path to the first difference."""
    found = _difference(lhs, rhs, map_free_vars, "")
    if found is not None:
        raise UnequalError(found)


def structural_hash(node: Any, map_free_vars: bool | None = None) -> int:
    """64 bits, equal for values that are :func:`structural_equal`; with ``map_free_vars=False`` different ones for
    different free variables, in this process."""
    if isinstance(node, (list, tuple)):
        return hash(tuple(structural_hash(one, map_free_vars) for one in node))
    if isinstance(node, Mapping):
        return hash(tuple((name, structural_hash(value, map_free_vars)) for name, value in node.items()))
    if not isinstance(node, (Expr, Module)):
        return hash((type(node).__name__, node))
    found = structural.structural_hash(node)
    free = free_vars(node) if map_free_vars is False and isinstance(node, Expr) else []
    return hash((found, *(_known.setdefault(one, next(_numbers)) for one in free))) if free else found


def make_node(type_key: str, **fields: Any) -> dict[str, Any]:
    """The attributes of a function, ``make_node("DictAttrs", Primitive=1)``."""
    if type_key != "DictAttrs":
        hint = 'make_node("DictAttrs", name=value)'
        raise NotOfferedError(f"minitvm has no tvm.ir.make_node({type_key!r})", hint=hint)
    return fields


def save_json(node: Any) -> str:
    """A module, an expression or a type as JSON, which :func:`load_json` reads: its text."""
    kind = "type" if isinstance(node, Type) else "module" if isinstance(node, Module) else "expr"
    return json.dumps({"kind": kind, "text": type_text(node) if kind == "type" else astext(node)})


def load_json(json_str: str) -> Any:
    """What :func:`save_json` wrote; :class:`ParseError` for anything else."""
    readers: dict[str, Callable[[str], Any]] = {"type": parse_type, "module": parse, "expr": parse_expr}
    try:
        found = json.loads(json_str)
        read, text = readers[found["kind"]], found["text"]
    except (ValueError, KeyError, TypeError) as error:
        raise ParseError(f"this is no graph in JSON: {error}", hint="tvm.ir.save_json writes one") from error
    return read(text)


def convert(value: Any) -> Any:
    """TVM's containers are Python's: a sequence as a list, all else as it is."""
    return list(value) if isinstance(value, (list, tuple)) else value


vars(runtime).update(convert=convert)
vars(container).update(ADT=list)
vars(ir).update(
    structural_equal=structural_equal,
    assert_structural_equal=assert_structural_equal,
    structural_hash=structural_hash,
    make_node=make_node,
    save_json=save_json,
    load_json=load_json,
    Op=Operators,
    SourceName=SourceName,
    Span=Span,
)
