"""Structural equality of graphs, and a hash that agrees with it.

Two functions are equal when renaming bound variables makes them the same.  Sharing counts, as in Relay:
``let y = f(x) in y + y`` is not ``f(x) + f(x)``; calls and tuples correspond one to one.  Constants (dtype, shape,
bits), projections and functions are compared by content.  Types are compared; spans, the names of bound variables and
of constants are not.

A graph is walked once, operator before operands, as a list of facts; equal graphs have equal lists, and the hash is the
list's.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from minitvm.errors import IRError
from minitvm.ir.attributes import format_number
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var
from minitvm.ir.op import Op
from minitvm.ir.visitor import children

Node: TypeAlias = Expr | Module


def structural_equal(a: Node, b: Node, map_free_vars: bool = False) -> bool:
    """True if ``a`` and ``b`` are the same graph.

    Free variables are equal when they are the same object; with ``map_free_vars`` when they stand in the same places
    with the same type.
    """
    return _difference(_Walk(), _Walk(), a, b, map_free_vars) is None


def assert_structural_equal(a: Node, b: Node, map_free_vars: bool = False) -> None:
    """Raise :class:`IRError` with the path to the first difference:

    ``main.body.args[0].op.strides: [1, 1] != [2, 2]``
    """
    found = _difference(_Walk(), _Walk(), a, b, map_free_vars)
    if found is not None:
        raise IRError(f"the graphs differ at {found}")


def structural_hash(node: Node) -> int:
    """64 bits, the same in every process, equal for nodes that are :func:`structural_equal`."""
    return int.from_bytes(structural_digest(node)[:8], "little")


def structural_digest(node: Node) -> bytes:
    """128 bits of which :func:`structural_hash` is a part."""
    return _Walk().digest(node)


def node_key(node: Expr) -> Hashable:
    """What a node is, its operands and variables' names aside: nodes with equal keys over equal operands are equal.

    Of one process: an operator is its own key.  :func:`structural_digest` is the key of whole graphs, for ever.
    """
    if isinstance(node, Call):
        return (node.op, *_negative_zeros(node.op)) if isinstance(node.op, Op) else node.op
    if isinstance(node, Constant):
        return node.checked_type, node.value.tobytes()
    return type(node), node.index if isinstance(node, TupleGetItem) else node.checked_type


def _negative_zeros(op: Op) -> tuple[str, ...]:
    """The attributes that are -0.0, which Python takes for 0.0."""
    floats = ((name, value) for name, value in op.attributes().items() if isinstance(value, float) and not value)
    return tuple(name for name, value in floats if math.copysign(1, value) < 0)


@dataclass(frozen=True)
class _Path:
    """The place where a fact stands, as a linked list: long paths cost nothing until they are shown."""

    step: str
    outer: _Path | None = None

    def __str__(self) -> str:
        steps: list[str] = []
        path: _Path | None = self
        while path is not None:
            steps.append(path.step)
            path = path.outer
        shown = "".join(reversed(steps)).lstrip(".")
        return shown if len(shown) <= 200 else f"...{shown[-200:]}"


class _Text(str):
    """What is shown as it stands."""

    __repr__ = str.__str__


class _Fact(NamedTuple):
    path: _Path
    key: str
    """Equal for equal facts."""
    shown: Any
    """What an error shows; of a function or a variable the node itself."""


_NOTHING = _Fact(_Path(""), "", "nothing")


def _difference(walk: _Walk, other: _Walk, a: Node, b: Node, map_free: bool, root: _Path | None = None) -> str | None:
    """The first fact in which two graphs differ."""
    for one, two in zip_longest(walk.facts(a, root), other.facts(b, root), fillvalue=_NOTHING):
        x, y = one.shown, two.shown
        bound = map_free or not isinstance(x, Var) or (x in walk.numbers and y in other.numbers)
        if one.key == two.key and (bound or x is y):
            continue
        if isinstance(x, Function) and isinstance(y, Function) and one.key != two.key:
            return _difference(walk, other, x, y, map_free, one.path)
        if {one.key[:1], two.key[:1]} == {"#", "="} or one.key[:1] == two.key[:1] == "#":
            first, second = ("shared", "copied")[:: 1 if one.key[:1] == "#" else -1]
            return f"{one.path}: a {first} {type(x).__name__} != a {second} {type(y).__name__}"
        return f"{one.path}: {_brief(x)} != {_brief(y)}"
    return None


class _Walk:
    """The facts of a graph.  A function is one fact, its digest: the same wherever it stands."""

    def __init__(self) -> None:
        self.numbers: dict[Var, int] = {}
        self.others: dict[Var, int] = {}
        self.digests: dict[Function, str] = {}

    def digest(self, node: Node) -> bytes:
        total = hashlib.blake2b(digest_size=16)
        for fact in self.facts(node):
            total.update(f"{fact.key};".encode())
        return total.digest()

    def facts(self, root: Node, path: _Path | None = None) -> Iterator[_Fact]:
        if isinstance(root, Module):
            names = sorted(root.functions)
            yield _Fact(_Path("functions"), repr(names), _Text(", ".join(names)))
            for name in names:
                yield self.function(root.functions[name], _Path(name))
        elif isinstance(root, Function):
            yield from self.inside(root, path or _Path("function"))
        else:
            yield from self.below(root, path or _Path("expr"))

    def function(self, function: Function, path: _Path) -> _Fact:
        if function not in self.digests:
            outer, self.numbers = self.numbers, {}
            self.digests[function] = self.digest(function).hex()
            self.numbers = outer
        return _Fact(path, f"fn {self.digests[function]}", function)

    def inside(self, function: Function, path: _Path) -> Iterator[_Fact]:
        """Parameters, attributes and body, a scope of its own: functions are closed."""
        yield _Fact(_Path(".params", path), str(len(function.params)), _Text(f"{len(function.params)} parameters"))
        for i, param in enumerate(function.params):
            yield _typed(param, _Path(f".params[{i}]", path))
        self.numbers = {param: i for i, param in enumerate(function.params)}
        self.others |= {param: len(self.others) + i for i, param in enumerate(function.params)}
        yield from self.values(dict(function.attrs), _Path(".attrs", path))
        yield from self.below(function.body, _Path(".body", path))

    def below(self, root: Expr, path: _Path) -> Iterator[_Fact]:
        """Every node below ``root``, from a stack: calls and tuples once."""
        seen: dict[Expr, int] = {}
        stack = [(root, path)]
        while stack:
            node, path = stack.pop()
            if isinstance(node, Function):
                yield self.function(node, path)
                continue
            if node in seen:
                yield _Fact(path, f"#{seen[node]}", node)
                continue
            if isinstance(node, Call) or (children(node) and not isinstance(node, TupleGetItem)):  # () is content
                seen[node] = len(seen)
            yield _Fact(path, f"={type(node).__name__}", node)
            yield from FACTS.get(type(node), _Walk.node)(self, node, path)
            what = {Call: ".args[{}]", Tuple: ".fields[{}]"}.get(type(node), ".tuple")
            operands = [(child, _Path(what.format(i), path)) for i, child in enumerate(children(node))]
            stack += operands[::-1]

    def node(self, node: Expr, path: _Path) -> Iterator[_Fact]:
        """A node without its operands.  The type of a call follows from its operator and operands."""
        if isinstance(node, Call):
            op, where = node.op, _Path(".op", path)
            if isinstance(op, Function):
                yield self.function(op, where)
            else:
                yield _Fact(where, op.name, op)
                yield from self.values(op.attributes(), where)
            yield _Fact(_Path(".args", path), str(len(node.args)), _Text(f"{len(node.args)} arguments"))
            return
        yield _typed(node, path)
        if isinstance(node, Var):
            free = node not in self.numbers
            number = self.others.setdefault(node, len(self.others)) if free else self.numbers[node]
            yield _Fact(path, f"%{number} {'free' if free else 'bound'}", node)
        elif isinstance(node, Constant):
            yield _Fact(path, _bits(node.value), node)
        elif isinstance(node, TupleGetItem):
            yield _Fact(_Path(".index", path), str(node.index), node.index)

    def values(self, values: Mapping[str, Any], path: _Path) -> Iterator[_Fact]:
        """Attributes: their names, then the value of each."""
        yield _Fact(path, repr(sorted(values)), values)
        for name, value in sorted(values.items()):
            yield _Fact(_Path(f".{name}", path), self.key(value), value)

    def key(self, value: Any) -> str:
        if isinstance(value, Function):
            return self.function(value, _Path("")).key
        if isinstance(value, (tuple, list)):
            return f"[{','.join(map(self.key, value))}]"
        if isinstance(value, (np.ndarray, np.generic)):
            return _bits(np.asarray(value))
        return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else repr(value)  # 1.0 equals 1


FACTS: dict[type, Callable[[_Walk, Expr, _Path], Iterator[_Fact]]] = {}
"""By kind of node, the facts of one that another room has."""


def _typed(node: Expr, path: _Path) -> _Fact:
    return _Fact(_Path(".type", path), f"{len(children(node))} {node.checked_type}", _Text(node.checked_type))


def _bits(value: np.ndarray) -> str:
    return f"{value.dtype}{value.shape}{hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest()}"


def _brief(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, Op):
        return value.name
    if isinstance(value, Var):
        return f"%{value.name}"
    if isinstance(value, Call):
        return f"a call of {_brief(value.op)}"
    if isinstance(value, Constant):
        if value.value.ndim == 0:
            return format_number(value.value[()], value.value.dtype.name)
        return f"a constant {value.type} ({hashlib.blake2b(value.value.tobytes(), digest_size=4).hexdigest()})"
    if isinstance(value, (Expr, Module)):
        return f"a {type(value).__name__}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_brief, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(value)}}}"
    return repr(value)
