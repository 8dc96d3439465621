"""Modules as tables of nodes, for the viewer's drawings and differences.

A node is ``[row, inputs, group]``.  Its row says all of it but who its operands are, and equal rows have one number in
the whole document: what a pass left alone is found by comparing numbers.  An input is a node's number, ``"n.field"``
of a tuple, or ``"c" + number`` of a constant.  A fused group's calls stand in the list as any others, with its number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Any

from minitvm.ir.attributes import print_attributes
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem
from minitvm.ir.node import merge_spans
from minitvm.ir.op import Op
from minitvm.ir.text import is_inline
from minitvm.ir.types import Span
from minitvm.ir.visitor import held_functions, post_order
from minitvm.viewer.weights import facts_of

_LONGEST = 400
"""Characters of an attribute or a constant's value."""


class Interned:
    """Things by number, each once."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, item: Any = None) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.items)
            self.items.append(key if item is None else item)
        return self._numbers[key]


def shortened(text: str, most: int = _LONGEST) -> str:
    return text if len(text) <= most else f"{text[: most - 4]} ..."


class Modules:
    """The tables of several modules of one build; they share rows, constants and spans.

    ``symbols``: the kernels of groups, by the identity of the group.
    """

    def __init__(self, symbols: dict[int, str]) -> None:
        self.symbols = symbols
        self.rows, self.constants, self.spans = Interned(), Interned(), Interned()
        self.tables: list[list[dict[str, Any]]] = []
        self._numbers: dict[int, int] = {}
        self._digests: dict[int, bytes] = {}
        self.weights: dict[int, dict[str, Any]] = {}
        self.contents, self._alike = Interned(), dict[tuple[str, str], Interned]()
        self._kept: list[Any] = []  # what is known by its identity stays alive

    @property
    def form(self) -> dict[str, Any]:
        """``rows``: kind, operator, attributes, type, number of the spans, fusion; ``constants``: name, type, value,
        number of the content;
        ``weights``: by content, what is in it."""
        spans = [list(names) for names in self.spans.items]
        tables = {"rows": self.rows.items, "constants": self.constants.items, "spans": spans}
        return {"modules": self.tables, **tables, "weights": self.weights}

    def add(self, module: Module) -> int:
        """The module's number."""
        if id(module) not in self._numbers:
            self._kept.append(module)
            self._numbers[id(module)] = len(self.tables)
            self.tables.append(self._functions(module))
        return self._numbers[id(module)]

    def _functions(self, module: Module) -> list[dict[str, Any]]:
        """``of``: the function and the node in it that hold one, as a branch; nothing of those of the module."""
        pending: list[tuple[str, Function, list[int] | None]] = [(*item, None) for item in module.functions.items()]
        found, seen = list[dict[str, Any]](), set[int]()
        while pending:
            name, function, holder = pending.pop(0)
            if id(function) in seen:
                continue
            seen.add(id(function))
            table = _Table(self, function)
            pending += [(name, held, [len(found), node]) for name, held, node in table.held]
            parts = {"nodes": table.nodes, "groups": table.groups, "result": table.result}
            found.append({"name": name, **parts, "of": holder})
        return found

    def row(
        self, kind: str, name: str, attributes: str, node: Expr, origin: Span, constants: tuple[int, ...] = ()
    ) -> int:
        type_ = "" if node.checked_type is None else str(node.checked_type)
        span = self.spans.number(origin)
        fusion = node.op.fusion.name if isinstance(node, Call) and isinstance(node.op, Op) else "OPAQUE"
        item = [kind, name, attributes, type_, span, fusion]
        return self.rows.number((kind, name, attributes, type_, span, constants), item)

    def constant(self, node: Constant) -> int:
        """Constants are told apart by name and content; of two contents with one name and type, the second is
        ``name (2)``."""
        type_, value = str(node.type), shortened(str(node)) if is_inline(node) else ""
        content = self.contents.number((type_, value or self._digest(node.value)))
        if not value and content not in self.weights:
            self.weights[content] = facts_of(node.value)
        name = "" if value else node.name or "const"
        alike = self._alike.setdefault((name, type_), Interned())
        number = alike.number(content) + 1
        label = name if number == 1 else f"{name} ({number})"
        return self.constants.number((name, content), [label, type_, value, content])

    def _digest(self, array: Any) -> bytes:
        """Of the contents of an array; each array is read once."""
        if id(array) not in self._digests:
            self._kept.append(array)
            self._digests[id(array)] = hashlib.sha256(array.tobytes()).digest()
        return self._digests[id(array)]


class _Table:
    """One function: its nodes in order, and the groups among its calls."""

    def __init__(self, modules: Modules, function: Function) -> None:
        self.modules = modules
        self.nodes: list[list[Any]] = []
        self.groups: list[dict[str, Any]] = []
        self.held: list[tuple[str, Function, int]] = []
        self._origins: dict[str, Span] = {}
        values: dict[Expr, str | int] = {p: self._node("var", p.name, "", p) for p in function.params}
        self.result = self._body(function.body, values, -1)

    def _body(self, body: Expr, values: dict[Expr, str | int], group: int) -> str | int:
        for node in post_order(body):
            if node not in values and not isinstance(node, Function):
                values[node] = self._value(node, values, group)
        return values[body]

    def _value(self, node: Expr, values: dict[Expr, str | int], group: int) -> str | int:
        match node:
            case Constant():
                return f"c{self.modules.constant(node)}"
            case TupleGetItem():
                return f"{values[node.tuple]}.{node.index}"
            case Tuple():
                return self._node("tuple", "tuple", "", node, [values[f] for f in node.fields], group)
            case Call(op=Function() as called) if called.is_primitive:
                return self._group(node, called, [values[a] for a in node.args])
            case Call():
                return self._call(node, [values[a] for a in node.args], group)
        return self._node("var", getattr(node, "name", "?"), "", node, [], group)

    def _group(self, call: Call, called: Function, inputs: list[str | int]) -> str | int:
        """The calls inside; a value of the group is that of the call that makes it.

        Equal groups are one function, whose calls come from the nodes of the first: here they get their own.
        """
        number, symbol = len(self.groups), self.modules.symbols.get(id(called), "")
        name = str(called.attrs.get("name", "fused"))
        self.groups.append({"name": name, "kernel": symbol, "span": self.modules.spans.number(tuple(call.span))})
        self._origins = _renamed(called.span, call.span)
        result = self._body(called.body, dict(zip(called.params, inputs, strict=True)), number)
        self._origins = {}
        return result

    def _call(self, call: Call, inputs: list[str | int], group: int) -> int:
        held = held_functions(call)
        if isinstance(call.op, Function):
            name, attributes = str(call.op.attrs.get("name", "function")), ""
        else:
            name, attributes = call.op.name, ", ".join(print_attributes(call.op, _name))
        number = self._node("call", name, shortened(attributes), call, inputs, group)
        self.held += [(f"{name} {key}".strip(), function, number) for key, function in held.items()]
        return number

    def _node(
        self, kind: str, name: str, attributes: str, node: Expr, inputs: list[str | int] | None = None, group: int = -1
    ) -> int:
        given = inputs or []
        constants = tuple(
            self.modules.constants.items[int(i[1:])][3] for i in given if isinstance(i, str) and i.startswith("c")
        )
        origin = merge_spans(*(self._origins.get(one, (one,)) for one in node.span))
        self.nodes.append([self.modules.row(kind, name, attributes, node, origin, constants), given, group])
        return len(self.nodes) - 1


def _renamed(first: Span, own: Span) -> dict[str, Span]:
    """The nodes of a group for those of another one that is equal to it: in order; all of them where they are not as
    many."""
    if first == own:
        return {}
    return {name: own[i : i + 1] if len(first) == len(own) else own for i, name in enumerate(first)}


def _name(value: Any) -> str:
    return "fn" if isinstance(value, Function) else str(value)
