"""TVM's JSON of a graph: nodes in the order they run, and where their values lie."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from minitvm.ir.dims import Dim
from minitvm.ir.types import Leaf, TensorType, as_shape, leaves
from minitvm.runtime.graph import STEPS, Alias, Graph, Launch, LibraryCall, Node, Plan


def _type_json(type_: Leaf) -> tuple[str, list[int | str]]:
    """The dtype and the shape; of what is no tensor the type as text, and no shape."""
    if not isinstance(type_, TensorType):
        return str(type_), []
    return type_.dtype, [dim_json(d) for d in type_.shape]


def dim_json(dim: Dim) -> int | str:
    """A number; -1 where nothing is known; else the dimension as text."""
    return dim if isinstance(dim, int) else -1 if dim.is_anonymous else str(dim)


@cache
def dim_of(form: int | str) -> Dim | None:
    """What :func:`dim_json` made it of."""
    if isinstance(form, int):
        return None if form < 0 else form
    from minitvm.ir.reader import Reader

    return Reader(form, None).extent()


def _type_of(dtype: str, shape: Sequence[int | str]) -> Leaf:
    if not dtype.endswith("]"):
        return TensorType(as_shape(tuple(map(dim_of, shape))), dtype)
    from minitvm.ir.reader import Reader

    return leaves(Reader(dtype, None).type())[0]


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
    if isinstance(node.step, LibraryCall):
        found["attrs"]["library_call"] = "1"
    if node.once:
        found["attrs"]["once"] = "1"
    if isinstance(node.step, Alias) and node.step != Alias():
        found["attrs"]["starts"] = json.dumps(node.step.starts)
    found["inputs"] = [[n, i, 0] for n, i in node.inputs]
    return found


def graph_form(graph: Graph, plan: Plan) -> dict[str, Any]:
    """TVM's graph JSON; ``storage_offset`` and ``arena_bytes`` are minitvm's own (``-1``: outside of the arena)."""
    types = graph.entry_types
    attrs = {
        "dltype": ["list_str", [_type_json(t)[0] for t in types]],
        "device_index": ["list_int", [1] * len(types)],
        "storage_id": ["list_int", list(plan.storage_ids)],
        "shape": ["list_shape", [_type_json(t)[1] for t in types]],
        "storage_offset": ["list_int", list(plan.offsets)],
        "arena_bytes": ["size_t", plan.nbytes],
    }
    return {
        "nodes": [_node_json(node) for node in graph.nodes],
        "arg_nodes": graph.arg_nodes,
        "heads": [[n, i, 0] for n, i in graph.heads],
        "attrs": attrs,
        "node_row_ptr": list(graph.entry_start),
    }


def _node_of(found: dict[str, Any], types: Sequence[Leaf]) -> Node:
    attrs = found.get("attrs", {})
    func = "" if found["op"] == "null" else attrs["func_name"]
    made = LibraryCall(func) if "library_call" in attrs else Launch(func, once="once" in attrs)
    step = Alias(tuple(json.loads(attrs["starts"]))) if "starts" in attrs else STEPS.get(func, made)
    inputs = tuple((n, i) for n, i, *_ in found["inputs"])
    spans = tuple(json.loads(attrs.get("spans", "[]")))
    return Node(found["name"], step, inputs, tuple(types), spans, attrs.get("check", ""))


def graph_of(form: dict[str, Any]) -> tuple[Graph, list[int], int]:
    """The graph, the entries' offsets in the arena, and the arena's bytes, of what :func:`graph_form` made."""
    attrs = {key: value for key, (_, value) in form["attrs"].items()}
    types = list(map(_type_of, attrs["dltype"], attrs["shape"]))
    rows = form["node_row_ptr"]
    nodes = [_node_of(n, types[rows[i] : rows[i + 1]]) for i, n in enumerate(form["nodes"])]
    graph = Graph(tuple(nodes), tuple((n, i) for n, i, *_ in form["heads"]))
    return graph, attrs["storage_offset"], attrs["arena_bytes"]


def json_of(graph: Graph, plan: Plan) -> str:
    """The same as text."""
    return json.dumps(graph_form(graph, plan), indent=1)
