"""Equality of graphs by structure, and a hash that agrees with it.

Two functions are equal when renaming bound variables makes them the same.  Sharing counts, as in Relay:
``let y = f(x) in y + y`` is not ``f(x) + f(x)``; calls and tuples correspond one to one.  Constants (dtype, shape,
bits), projections and functions are compared by content.  Types are compared; spans, the names of bound variables and
of constants are not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from minitvm.errors import IRError
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var
from minitvm.ir.literals import format_number
from minitvm.ir.op import Op
from minitvm.ir.text import operands
from minitvm.ir.types import alike
from minitvm.ir.visitor import post_order

Node: TypeAlias = Expr | Module


def structural_equal(a: Node, b: Node, map_free_vars: bool = False) -> bool:
    """Whether ``a`` and ``b`` are the same graph.

    Free variables are equal when they are the same object; with ``map_free_vars`` when they stand in the same places
    with the same type.
    """
    return _Comparison(map_free_vars).difference(a, b) is None


def assert_structural_equal(a: Node, b: Node, map_free_vars: bool = False) -> None:
    """Raise :class:`IRError` with the path to the first difference:

    ``main.body.args[0].op.strides: [1, 1] != [2, 2]``
    """
    found = _Comparison(map_free_vars).difference(a, b)
    if found is not None:
        raise IRError(f"the graphs differ at {found}")


def structural_hash(node: Node) -> int:
    """64 bits, the same in every process, equal for nodes that are :func:`structural_equal`."""
    return int.from_bytes(structural_digest(node)[:8], "little")


# --- equality -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Path:
    """Where a pair of nodes stands, as a linked list: long paths cost nothing until they are shown."""

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


class Difference(NamedTuple):
    path: _Path
    left: str
    right: str

    def __str__(self) -> str:
        return f"{self.path}: {self.left} != {self.right}"


class _Pair(NamedTuple):
    a: Any
    b: Any
    path: _Path


class _Comparison:
    """Compares pairs of nodes from a stack; each pair once, so the time is linear in the graph."""

    def __init__(self, map_free_vars: bool) -> None:
        self.map_free_vars = map_free_vars
        self.vars: dict[Var, Var] = {}
        self.vars_back: dict[Var, Var] = {}
        self.equal_functions: set[tuple[Function, Function]] = set()

    def difference(self, a: Node, b: Node) -> Difference | None:
        if not isinstance(a, Module) or not isinstance(b, Module):
            return self.expressions(_Pair(a, b, _Path(_root_name(a))))
        if set(a.functions) != set(b.functions):
            return Difference(_Path("functions"), ", ".join(sorted(a.functions)), ", ".join(sorted(b.functions)))
        pairs = (_Pair(f, b[name], _Path(name)) for name, f in a.functions.items())
        return next((d for d in map(self.expressions, pairs) if d is not None), None)

    def expressions(self, root: _Pair) -> Difference | None:
        """Everything below a pair in one scope of shared nodes."""
        shared: dict[Expr, Expr] = {}
        shared_back: dict[Expr, Expr] = {}
        stack = [root]
        while stack:
            a, b, path = stack.pop()
            if isinstance(a, (Call, Tuple)) and isinstance(b, (Call, Tuple)):
                if a in shared or b in shared_back:
                    if shared.get(a) is b:
                        continue
                    first, second = ("shared", "copied") if a in shared else ("copied", "shared")
                    return Difference(path, f"a {first} {type(a).__name__}", f"a {second} {type(b).__name__}")
                shared[a], shared_back[b] = b, a
            found = self.node(a, b, path, stack)
            if found is not None:
                return found
        return None

    def node(self, a: Any, b: Any, path: _Path, stack: list[_Pair]) -> Difference | None:
        """The nodes themselves; their operands go on the stack, the first on top."""
        if type(a) is not type(b):
            return Difference(path, _brief(a), _brief(b))
        if isinstance(a, Function):
            return self.functions(a, b, path)
        if isinstance(a, Var):
            return self.variables(a, b, path)
        if not alike(a.checked_type, b.checked_type) and not isinstance(a, Call):
            return Difference(_Path(".type", path), str(a.checked_type), str(b.checked_type))
        if isinstance(a, Constant):
            same = a.value.tobytes() == b.value.tobytes()
            return None if same else Difference(path, _brief(a), _brief(b))
        if isinstance(a, TupleGetItem):
            stack.append(_Pair(a.tuple, b.tuple, _Path(".tuple", path)))
            return None if a.index == b.index else Difference(_Path(".index", path), str(a.index), str(b.index))
        if isinstance(a, Tuple):
            stack.extend(_zipped(a.fields, b.fields, path, ".fields"))
            return None
        return self.calls(a, b, path, stack)

    def calls(self, a: Call, b: Call, path: _Path, stack: list[_Pair]) -> Difference | None:
        # The type of a call follows from its operator and operands: differences are shown there.
        found = self.value(a.op, b.op, _Path(".op", path))
        if found is None and len(a.args) != len(b.args):
            found = Difference(_Path(".args", path), f"{len(a.args)} arguments", f"{len(b.args)} arguments")
        stack.extend(_zipped(a.args, b.args, path, ".args"))
        return found

    def functions(self, a: Function, b: Function, path: _Path) -> Difference | None:
        """Parameters, attributes and body, which has a scope of its own: functions are closed."""
        if (a, b) in self.equal_functions:
            return None
        if len(a.params) != len(b.params):
            return Difference(_Path(".params", path), f"{len(a.params)} parameters", f"{len(b.params)} parameters")
        for i, (p, q) in enumerate(zip(a.params, b.params, strict=True)):
            if not alike(p.checked_type, q.checked_type):
                where = _Path(f".params[{i}].type", path)
                return Difference(where, str(p.checked_type), str(q.checked_type))
            self.vars[p], self.vars_back[q] = q, p
        found = self.value(dict(a.attrs), dict(b.attrs), _Path(".attrs", path))
        found = found or self.expressions(_Pair(a.body, b.body, _Path(".body", path)))
        if found is None:
            self.equal_functions.add((a, b))
        return found

    def variables(self, a: Var, b: Var, path: _Path) -> Difference | None:
        if not alike(a.checked_type, b.checked_type):
            return Difference(_Path(".type", path), str(a.checked_type), str(b.checked_type))
        if a not in self.vars and b not in self.vars_back and (a is b or self.map_free_vars):
            self.vars[a], self.vars_back[b] = b, a
        same = self.vars.get(a) is b and self.vars_back.get(b) is a
        return None if same else Difference(path, f"%{a.name}", f"%{b.name}")

    def value(self, a: Any, b: Any, path: _Path) -> Difference | None:
        """Operators, functions, and the values of attributes."""
        if isinstance(a, Function) and isinstance(b, Function):
            return self.functions(a, b, path)
        if isinstance(a, Op) and isinstance(b, Op) and type(a) is type(b):
            return self.value(a.attributes(), b.attributes(), path)
        if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
            found = (self.value(a[key], b[key], _Path(f".{key}", path)) for key in a)
            return next((d for d in found if d is not None), None)
        if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)) and len(a) == len(b):
            found = (self.value(x, y, path) for x, y in zip(a, b, strict=True))
            changed = next((d for d in found if d is not None), None)
            return None if changed is None else Difference(path, _brief(a), _brief(b))
        return None if _same_value(a, b) else Difference(path, _brief(a), _brief(b))


def _zipped(a: tuple[Expr, ...], b: tuple[Expr, ...], path: _Path, what: str) -> list[_Pair]:
    if len(a) != len(b):
        return []
    pairs = [_Pair(x, y, _Path(f"{what}[{i}]", path)) for i, (x, y) in enumerate(zip(a, b, strict=True))]
    return pairs[::-1]


def _same_value(a: Any, b: Any) -> bool:
    if isinstance(a, (np.ndarray, np.generic)) or isinstance(b, (np.ndarray, np.generic)):
        a, b = np.asarray(a), np.asarray(b)
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    if isinstance(a, float) and isinstance(b, float) and a != a:
        return b != b
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _root_name(node: Node) -> str:
    return {Function: "function", Module: "module"}.get(type(node), "expr")


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
    if isinstance(value, Expr):
        return f"a {type(value).__name__}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_brief, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(value)}}}"
    return repr(value)


# --- keys -----------------------------------------------------------------------------------------------------


def node_key(node: Expr) -> Hashable:
    """What a node is, its operands and variables' names aside: nodes with equal keys over equal operands are equal.

    Of one process: an operator is its own key.  :func:`structural_digest` is the key of whole graphs, for ever.
    """
    if isinstance(node, Call):
        return node.op
    if isinstance(node, Constant):
        return node.checked_type, node.value.tobytes()
    return type(node), node.index if isinstance(node, TupleGetItem) else node.checked_type


# --- the hash -------------------------------------------------------------------------------------------------


def structural_digest(node: Node) -> bytes:
    """128 bits of which :func:`structural_hash` is a part."""
    if isinstance(node, Module):
        parts = [name.encode() + structural_digest(f) for name, f in sorted(node.functions.items())]
        return hashlib.blake2b(b"".join(parts), digest_size=16).digest()
    return _Hasher().expression(node)


class _Hasher:
    """Hashes the nodes in post-order, each by its own content and the numbers of its operands."""

    def __init__(self) -> None:
        self.vars: dict[Var, int] = {}
        self.functions: dict[Function, bytes] = {}

    def expression(self, root: Expr) -> bytes:
        total = hashlib.blake2b(digest_size=16)
        keys: dict[Expr, bytes] = {}
        count = 0
        for node in post_order(root, operands=operands):
            if isinstance(node, Function):
                keys[node] = self.function(node)
            elif isinstance(node, (Var, Constant, TupleGetItem)):
                keys[node] = self.content(node, keys)
            else:
                total.update(self.content(node, keys))
                keys[node] = b"#%d" % count
                count += 1
        total.update(keys[root])
        return total.digest()

    def function(self, function: Function) -> bytes:
        """The same wherever it stands: its variables are numbered from 0."""
        if function not in self.functions:
            outer, self.vars = self.vars, {p: i for i, p in enumerate(function.params)}
            params = "".join(f"{p.checked_type};" for p in function.params).encode()
            content = params + self.value(dict(function.attrs)) + self.expression(function.body)
            self.functions[function] = _short(content)
            self.vars = outer
        return self.functions[function]

    def content(self, node: Expr, keys: dict[Expr, bytes]) -> bytes:
        kind = f"{type(node).__name__}:{node.checked_type}:".encode()
        if isinstance(node, Var):
            return kind + b"%d" % self.vars.setdefault(node, len(self.vars))
        if isinstance(node, Constant):
            return kind + _short(node.value.tobytes())
        if isinstance(node, TupleGetItem):
            return _short(kind + b"%d." % node.index + keys[node.tuple])
        if isinstance(node, Call):
            return kind + self.value(node.op) + b",".join(keys[a] for a in node.args)
        assert isinstance(node, Tuple), node
        return kind + b",".join(keys[f] for f in node.fields)

    def value(self, value: Any) -> bytes:
        if isinstance(value, Function):
            return self.function(value)
        if isinstance(value, Op):
            return value.name.encode() + self.value(value.attributes())
        if isinstance(value, Mapping):
            return b"{" + b",".join(str(k).encode() + b"=" + self.value(value[k]) for k in sorted(value)) + b"}"
        if isinstance(value, (tuple, list)):
            return b"[" + b",".join(map(self.value, value)) + b"]"
        if isinstance(value, (np.ndarray, np.generic)):
            return f"{value.dtype}{value.shape}".encode() + _short(value.tobytes())
        if isinstance(value, float) and value == value and value.is_integer():
            return str(int(value)).encode()  # 1.0 equals 1
        return str(value).encode()


def _short(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
