"""Loops that add up one stretch of rows a trip, as PyTorch's exporter writes bags of embeddings: one operator.

start, end = starts[trip], ends[trip]
scanned = ReduceSum(Gather(weight, indices[start:end]))        # or ReduceSum(rows[start:end])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from minitvm.frontend.onnx.node import OnnxNode, attribute_value, cast, emit, evaluate_known
from minitvm.frontend.onnx.shape_values import shape_value
from minitvm.ir.dims import always_less
from minitvm.ir.expr import Constant, Expr

_REDUCTIONS = {"ReduceSum": "sum", "ReduceMean": "mean"}


class _Other(Exception):
    """The body is something else."""


def bags(node: OnnxNode) -> Expr | None:
    """What a Loop of that kind stacks: (trips, ...) floats; ``None`` where it is of another kind."""
    graph = node.require("body")
    if len(node.inputs) != 2 or len(graph.input) != 2 or len(graph.output) != 2:
        return None
    try:
        return _Body(node, graph, {name: one for one in graph.node for name in one.output}).found()
    except _Other:
        return None


@dataclass
class _Body:
    node: OnnxNode
    graph: Any
    makers: dict[str, Any]

    def found(self) -> Expr:
        self._require_all_trips()
        total = self._of(self.graph.output[1].name, *_REDUCTIONS)
        self._require(self._axes(total) == [0] and not self._attribute(total, "keepdims", 1))
        rows = self.makers.get(total.input[0])
        if rows is not None and rows.op_type == "Gather":
            self._require(self._attribute(rows, "axis", 0) == 0)
            cut = self._of(rows.input[1], "Slice")
            data = self._gathered(rows.input[0], cut.input[0])
        else:
            cut = self._of(total.input[0], "Slice")
            data = self._outside(cut.input[0])
        self._require(len(cut.input) < 4 or self._number(cut.input[3]) == 0)
        self._require(len(cut.input) < 5 or self._number(cut.input[4]) == 1)
        extent = emit("take", emit("shape_of", data, dtype="int64"), Constant(np.array(0)), axis=0, mode="clip")
        starts, ends = (self._first(self._bounds(name, extent), self._trips()) for name in cut.input[1:3])
        self._require(data.tensor_type.is_float and data.dtype in ("float32", "float64"))
        return emit("segment_reduce", data, starts, ends, mode=_REDUCTIONS[total.op_type])

    def _require(self, holds: bool) -> None:
        if not holds:
            raise _Other

    def _of(self, name: str, *kinds: str) -> Any:
        """The node inside that makes a value, of one of these kinds."""
        found = self.makers.get(name)
        if found is None or found.op_type not in kinds or found.domain:
            raise _Other
        return found

    def _outside(self, name: str) -> Expr:
        importer, scope = self.node.control
        found: Expr | None = None if name in self.makers else scope.lookup(name, importer.known)
        if found is None:
            raise _Other
        return found

    def _gathered(self, weight: str, indices: str) -> Expr:
        """All rows that are added up, one after the other."""
        table, places = self._outside(weight), self._outside(indices)
        self._require(places.tensor_type.rank == 1)
        found: list[Expr | None] = self.node.as_onnx("Gather", table, places, outputs=["rows"], axis=0)
        assert found[0] is not None
        return found[0]

    def _bounds(self, name: str, extent: Expr) -> Expr:
        """Of all trips what ``[number[trip]]`` is, as Slice counts: from the end where it is below 0."""
        wide = self._of(name, "Unsqueeze", "Reshape")
        one = self._of(wide.input[0], "Gather")
        self._require(one.input[1] == self.graph.input[0].name and self._attribute(one, "axis", 0) == 0)
        numbers = cast(self._outside(one.input[0]), "int64")
        self._require(numbers.tensor_type.rank == 1)
        return emit("where", emit("less", numbers, 0), emit("add", numbers, extent), numbers)

    def _first(self, numbers: Expr, trips: Any) -> Expr:
        """Those that there are trips for."""
        there = numbers.tensor_type.shape[0]
        self._require(trips is not None and always_less(trips, there + 1))
        if trips == there:
            return numbers
        return emit("strided_slice", numbers, begin=(0,), end=(trips,), strides=(1,), axes=(0,))

    def _trips(self) -> Any:
        count = self.node[0]
        value = shape_value(count, self.node.known_values)
        value = evaluate_known(count, self.node.known_values) if value is None else value
        return None if value is None else value.reshape(-1)[0]

    def _require_all_trips(self) -> None:
        """No condition ends it."""
        name = self.graph.output[0].name
        while name in self.makers and self.makers[name].op_type in ("Cast", "Identity"):
            name = self.makers[name].input[0]
        going = self.node.known(1)
        self._require(going is not None and bool(going))
        if name != self.graph.input[1].name:
            self._require(bool(self._number(name)))

    def _number(self, name: str) -> Any:
        """A constant of one element."""
        maker = self.makers.get(name)
        if maker is not None and maker.op_type == "Constant":
            value = np.asarray(attribute_value(maker.attribute[0]))
        else:
            value = np.asarray(self.node.value(self._outside(name)))
        self._require(value.size == 1 and value.dtype != object)
        return value.item()

    def _axes(self, total: Any) -> list[int]:
        listed = self._attribute(total, "axes", None)
        if listed is not None or len(total.input) < 2:
            return list(listed or [])
        return [int(self._number(total.input[1]))]

    @staticmethod
    def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
        return next((attribute_value(one) for one in node.attribute if one.name == name), default)
