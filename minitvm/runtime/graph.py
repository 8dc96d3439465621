"""The executable graph: nodes in the order they run, and its JSON with the fields of TVM's graph JSON.

A node is an input or parameter (``null``), a kernel, a reshape that moves nothing (``__nop``), or a host call
(``__host``).  Values are *entries* ``(node, output)``, numbered in node order (``entry_id``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from minitvm.errors import LibraryError
from minitvm.ir.expr import Call, Constant, Expr, Function, Span, TupleGetItem, Var
from minitvm.ir.expr import Tuple as TupleExpr
from minitvm.ir.op import Op
from minitvm.ir.ops.check import OutOfRange
from minitvm.ir.types import TensorType, TupleType, Type, tensor_fields
from minitvm.ir.visitor import post_order

Entry: TypeAlias = tuple[int, int]
"""(node, output)."""

NOP, HOST = "__nop", "__host"


@dataclass(frozen=True)
class Node:
    """``func`` is a kernel's symbol, ``__nop``, ``__host``, or empty for inputs and parameters.  ``name`` is unique."""

    name: str
    func: str
    inputs: tuple[Entry, ...]
    types: tuple[TensorType, ...]
    spans: Span = ()
    check: str = ""
    """Of a node whose result is an index out of range (``control.out_of_range``): what to raise, ``{}`` the index."""

    @property
    def is_null(self) -> bool:
        return not self.func

    @property
    def is_kernel(self) -> bool:
        return self.func not in ("", NOP, HOST)


@dataclass(frozen=True)
class Graph:
    nodes: tuple[Node, ...]
    heads: tuple[Entry, ...]
    entry_start: tuple[int, ...] = field(init=False, compare=False)
    """Number of the first entry of each node; one more at the end (TVM's ``node_row_ptr``)."""

    def __post_init__(self) -> None:
        starts = [0]
        for node in self.nodes:
            starts.append(starts[-1] + len(node.types))
        object.__setattr__(self, "entry_start", tuple(starts))

    @property
    def entries(self) -> int:
        return self.entry_start[-1]

    def entry_id(self, entry: Entry) -> int:
        return self.entry_start[entry[0]] + entry[1]

    def type_of(self, entry: Entry) -> TensorType:
        return self.nodes[entry[0]].types[entry[1]]

    @property
    def entry_types(self) -> list[TensorType]:
        return [type_ for node in self.nodes for type_ in node.types]

    @property
    def arg_nodes(self) -> list[int]:
        return [i for i, node in enumerate(self.nodes) if node.is_null]


@dataclass
class Program:
    """A graph with what its nodes mean: kernels' groups, host calls' functions, parameters' arrays."""

    graph: Graph
    groups: dict[str, Function]
    hosts: dict[str, Function]
    """By node name; the body is the call that the host makes."""
    params: dict[str, np.ndarray]


_Value: TypeAlias = "Entry | tuple[Any, ...]"
"""What an expression stands for: an entry, or a tuple of values."""


def _flatten(value: _Value, type_: Type) -> list[Entry]:
    if isinstance(type_, TupleType):
        return [e for v, t in zip(value, type_.fields, strict=True) for e in _flatten(v, t)]
    return [value]


def _unflatten(type_: Type, node: int, start: int = 0) -> tuple[_Value, int]:
    """The value of a call of that type whose outputs are entries of ``node``; and the next free output."""
    if not isinstance(type_, TupleType):
        return (node, start), start + 1
    fields = []
    for field_type in type_.fields:
        value, start = _unflatten(field_type, node, start)
        fields.append(value)
    return tuple(fields), start


class _Reader:
    """Turns ``main`` after FuseOps into a :class:`Program`, one node per call."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.groups: dict[str, Function] = {}
        self.hosts: dict[str, Function] = {}
        self.params: dict[str, np.ndarray] = {}
        self.names: set[str] = set()
        self.symbols: dict[Function, str] = {}
        self.values: dict[Expr, _Value] = {}

    def read(self, main: Function) -> Program:
        for param in main.params:
            self.values[param] = self._null(param.name, param.type, param.span)
        for expr in post_order(main.body):
            if expr not in self.values:
                self.values[expr] = self._value(expr)
        heads = _flatten(self.values[main.body], main.body.type)
        return Program(Graph(tuple(self.nodes), tuple(heads)), self.groups, self.hosts, self.params)

    def _value(self, expr: Expr) -> _Value:
        match expr:
            case Constant():
                return self._constant(expr)
            case TupleExpr():
                return tuple(self.values[f] for f in expr.fields)
            case TupleGetItem():
                return self.values[expr.tuple][expr.index]  # type: ignore[return-value]
            case Call():
                return self._call(expr)
        assert isinstance(expr, Var), expr
        raise LibraryError(f"variable %{expr.name} of main is not one of its parameters")

    def _null(self, name: str, type_: Type, span: Span) -> _Value:
        """An input node; a tuple becomes one per field."""
        if isinstance(type_, TupleType):
            return tuple(self._null(f"{name}_{i}", t, span) for i, t in enumerate(type_.fields))
        self._add(self._unique(name), "", (), type_, span)
        return (len(self.nodes) - 1, 0)

    def _constant(self, expr: Constant) -> _Value:
        value = self._null(f"p{len(self.params)}", expr.type, expr.span)
        self.params[self.nodes[-1].name] = expr.value
        return value

    def _call(self, call: Call) -> _Value:
        inputs = [e for a in call.args for e in _flatten(self.values[a], a.type)]
        value, _ = _unflatten(call.type, len(self.nodes))
        if isinstance(call.op, Function) and call.op.attrs.get("reshape_only"):
            self._add(self._unique(_group_name(call.op)), NOP, inputs, call.type, call.span)
        elif isinstance(call.op, Function):
            symbol = self._symbol(call.op)
            self._add(self._unique(symbol), symbol, inputs, call.type, call.span, _check_of(call.op))
        else:
            name = self._unique(call.op.name.replace(".", "_"))
            self.hosts[name] = _host_function(call)
            self._add(name, HOST, inputs, call.type, call.span)
        return value

    def _add(self, name: str, func: str, inputs: Sequence[Entry], type_: Type, span: Span, check: str = "") -> None:
        self.nodes.append(Node(name, func, tuple(inputs), tensor_fields(type_), span, check))

    def _unique(self, name: str) -> str:
        found, count = name, 0
        while found in self.names:
            count += 1
            found = f"{name}_{count}"
        self.names.add(found)
        return found

    def _symbol(self, group: Function) -> str:
        """The kernel's name; FuseOps gives equal groups one ``Function``, so they share a kernel."""
        symbol = self.symbols.get(group)
        count = 0
        while symbol is None:
            name = _group_name(group) + (f"_{count}" if count else "")
            symbol = name if name not in self.groups else None
            count += 1
        self.groups[symbol] = group
        self.symbols[group] = symbol
        return symbol


def _check_of(group: Function) -> str:
    """What the executor raises where the group's result, a check, is not 0."""
    body = group.body
    return (
        body.op.message(body.args[0].tensor_type) if isinstance(body, Call) and isinstance(body.op, OutOfRange) else ""
    )


def _group_name(group: Function) -> str:
    return str(group.attrs.get("name", "fused"))


def _host_function(call: Call) -> Function:
    """The call over fresh variables, one per argument, so that it stands alone."""
    assert isinstance(call.op, Op)
    args = [Var(f"a{i}", arg.type) for i, arg in enumerate(call.args)]
    return Function(args, Call(call.op, args, span=call.span), span=call.span)


def read_program(main: Function) -> Program:
    """The executable graph of ``main`` as FuseOps leaves it (groups are called functions, host calls plain calls)."""
    return _Reader().read(main)


def without_kernels(program: Program, symbols: Collection[str]) -> Program:
    """The program with the nodes of those kernels as host calls."""
    if not symbols:
        return program
    nodes = [replace(n, func=HOST) if n.func in symbols else n for n in program.graph.nodes]
    hosts = {
        n.name: Function(g.params, g.body, {"symbol": n.func}, span=n.spans)
        for n in program.graph.nodes
        if n.func in symbols
        for g in [program.groups[n.func]]
    }
    groups = {symbol: group for symbol, group in program.groups.items() if symbol not in symbols}
    return Program(Graph(tuple(nodes), program.graph.heads), groups, {**program.hosts, **hosts}, program.params)


# --- JSON -----------------------------------------------------------------------------------------------------


def _shape_json(type_: TensorType) -> list[int]:
    return [-1 if d is None else d for d in type_.shape]


def _node_json(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = {"op": "null" if node.is_null else "tvm_op", "name": node.name}
    if not node.is_null:
        found["attrs"] = {
            "func_name": node.func,
            "num_inputs": str(len(node.inputs)),
            "num_outputs": str(len(node.types)),
            "flatten_data": "0",
        }
    if node.spans:
        found.setdefault("attrs", {})["spans"] = json.dumps(node.spans)
    if node.check:
        found["attrs"]["check"] = node.check
    found["inputs"] = [[n, i, 0] for n, i in node.inputs]
    return found


def graph_form(graph: Graph, storage_ids: Sequence[int], offsets: Sequence[int], arena_bytes: int) -> dict[str, Any]:
    """TVM's graph JSON; ``storage_offset`` and ``arena_bytes`` are minitvm's own (``-1``: outside of the arena)."""
    types = graph.entry_types
    attrs = {
        "dltype": ["list_str", [t.dtype for t in types]],
        "device_index": ["list_int", [1] * len(types)],
        "storage_id": ["list_int", list(storage_ids)],
        "shape": ["list_shape", [_shape_json(t) for t in types]],
        "storage_offset": ["list_int", list(offsets)],
        "arena_bytes": ["size_t", arena_bytes],
    }
    return {
        "nodes": [_node_json(node) for node in graph.nodes],
        "arg_nodes": graph.arg_nodes,
        "heads": [[n, i, 0] for n, i in graph.heads],
        "attrs": attrs,
        "node_row_ptr": list(graph.entry_start),
    }


def _node_of(found: dict[str, Any], types: Sequence[TensorType]) -> Node:
    attrs = found.get("attrs", {})
    func = "" if found["op"] == "null" else attrs["func_name"]
    inputs = tuple((n, i) for n, i, *_ in found["inputs"])
    spans = tuple(json.loads(attrs.get("spans", "[]")))
    return Node(found["name"], func, inputs, tuple(types), spans, attrs.get("check", ""))


def graph_of(form: dict[str, Any]) -> tuple[Graph, list[int], int]:
    """The graph, the entries' offsets in the arena, and the arena's bytes, of what :func:`graph_form` made."""
    attrs = {key: value for key, (_, value) in form["attrs"].items()}
    shapes = [tuple(None if d < 0 else d for d in shape) for shape in attrs["shape"]]
    types = [TensorType(s, d) for s, d in zip(shapes, attrs["dltype"], strict=True)]
    rows = form["node_row_ptr"]
    nodes = [_node_of(n, types[rows[i] : rows[i + 1]]) for i, n in enumerate(form["nodes"])]
    graph = Graph(tuple(nodes), tuple((n, i) for n, i, *_ in form["heads"]))
    return graph, attrs["storage_offset"], attrs["arena_bytes"]
