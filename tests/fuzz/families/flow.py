"""Control flow in control flow: If in Loop in Scan, captures, scan outputs, sequences, zero trips."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.fuzz.case import Value, value_info
from tests.fuzz.draw import Shape
from tests.fuzz.families.net import Net, family

_UNARY = ("Relu", "Neg", "Abs", "Tanh", "Identity", "Sigmoid", "Softsign")
_BINARY = ("Add", "Mul", "Sub", "Max", "Min")
DEPTH = 3


@dataclass
class Scope:
    """A body under construction: its nodes, and the floats of ``shape`` that it sees, those outside among them."""

    net: Net
    shape: Shape
    seen: list[str]
    conditions: list[str]
    depth: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def inner(self, seen: Sequence[str] = (), conditions: Sequence[str] = ()) -> "Scope":
        return Scope(self.net, self.shape, [*self.seen, *seen], [*self.conditions, *conditions], self.depth + 1)

    def add(self, op_type: str, *inputs: str, outputs: int = 1, **given: Any) -> list[str]:
        names = [self.net.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, **given))
        return names

    def one(self, op_type: str, *inputs: str, **given: Any) -> str:
        return self.add(op_type, *inputs, **given)[0]

    def literal(self, array: np.ndarray) -> str:
        return self.one("Constant", value=onnx.numpy_helper.from_array(np.asarray(array)))

    def type_of(self, name: str) -> onnx.ValueInfoProto:
        return value_info(name, self.net.kind, self.shape)

    def fresh(self, name: str) -> str:
        """Under a name of its own: a body's result is of the body."""
        return self.one("Identity", name)

    def condition(self) -> str:
        """One that is seen, a constant, or computed."""
        n = self.net
        how = n.between(0, 3)
        if how == 0 and self.conditions:
            return n.choice(self.conditions)
        if how == 1:
            return self.literal(np.array(n.chance(0.5)))
        total = self.one("ReduceSum", n.choice(self.seen), keepdims=0)
        return self.one(n.choice(("Greater", "Less")), total, self.literal(np.array(0.2, n.kind)))

    def graph(self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]) -> onnx.GraphProto:
        return helper.make_graph(self.nodes, self.net.name(), list(inputs), list(outputs))


def _grow(s: Scope, steps: int) -> str:
    """Some nodes; the last one's result."""
    last = s.net.choice(s.seen)
    for _ in range(steps):
        last = _step(s)
        s.seen.append(last)
    return last


def _step(s: Scope) -> str:
    n = s.net
    if s.depth < DEPTH and n.chance(0.5):
        return n.choice((_if, _if, _loop, _loop, _scan, _sequence))(s)
    if n.chance(0.4):
        return s.one(n.choice(_UNARY), n.choice(s.seen))
    recent = n.choice(s.seen[-3:])
    return s.one(n.choice(_BINARY), recent, n.choice(s.seen))


def _if(s: Scope) -> str:
    n, branches, count = s.net, [], s.net.choice((1, 1, 2))
    for _ in range(2):
        inner = s.inner()
        _grow(inner, n.between(0, 3))
        names = [inner.fresh(n.choice(inner.seen[-3:])) for _ in range(count)]
        branches.append(inner.graph([], [inner.type_of(name) for name in names]))
    found = s.add("If", s.condition(), outputs=count, then_branch=branches[0], else_branch=branches[1])
    return s.one("Add", *found) if count == 2 else found[0]


def _trips(s: Scope) -> int:
    return s.net.choice((0, 1, 1, 2, 3))


def _loop(s: Scope) -> str:
    """One or two states; rows that are put together; now and then an end that is computed."""
    n, states, rows = s.net, s.net.choice((1, 1, 2)), s.net.choice((0, 1))
    step, going = n.name(), n.name()
    carried = [n.name() for _ in range(states)]
    inner = s.inner(carried, [going])
    _grow(inner, n.between(1, 3))
    index = inner.one("Cast", step, to=int(helper.np_dtype_to_tensor_dtype(np.dtype(n.kind))))
    inner.seen.append(inner.one("Add", n.choice(inner.seen[-2:]), index))
    results = [inner.fresh(n.choice(inner.seen[-3:])) for _ in range(states + rows)]
    still = inner.fresh(going) if n.chance(0.7) else inner.one("And", going, inner.condition())
    given = [value_info(step, "int64", ()), value_info(going, "bool", ()), *map(inner.type_of, carried)]
    body = inner.graph(given, [value_info(still, "bool", ()), *map(inner.type_of, results)])
    count = s.literal(np.array(_trips(s), np.int64))
    first = [n.choice(s.seen) for _ in range(states)]
    found = s.add("Loop", count, s.condition() if n.chance(0.3) else "", *first, outputs=states + rows, body=body)
    return _joined(s, found, states)


def _joined(s: Scope, found: Sequence[str], states: int) -> str:
    """The states, and the sum over all rows."""
    last = found[0]
    for name in found[1:states]:
        last = s.one("Add", last, name)
    for name in found[states:]:
        total = s.one("ReduceSum", name, s.literal(np.array([0], np.int64)), keepdims=0)
        last = s.one(s.net.choice(("Add", "Sub")), last, total)
    return last


def _scan(s: Scope) -> str:
    """Over copies of a value, stacked."""
    n = s.net
    length = n.choice((1, 2, 3))
    axis = s.literal(np.array([0], np.int64))
    parts = [s.one("Unsqueeze", n.choice(s.seen), axis) for _ in range(length)]
    stacked = s.one("Concat", *parts, axis=0)
    state, row = n.name(), n.name()
    inner = s.inner([state, row])
    _grow(inner, n.between(1, 3))
    results = [inner.fresh(n.choice(inner.seen[-3:])) for _ in range(2)]
    body = inner.graph([inner.type_of(state), inner.type_of(row)], [inner.type_of(r) for r in results])
    given = {"scan_input_directions": [n.choice((0, 1))], "scan_output_directions": [n.choice((0, 1))]}
    found = s.add("Scan", n.choice(s.seen), stacked, outputs=2, body=body, num_scan_inputs=1, **given)
    return _joined(s, found, 1)


def _sequence(s: Scope) -> str:
    """Values put into a sequence, and one taken out, or all stacked."""
    n = s.net
    items = [n.choice(s.seen) for _ in range(n.between(1, 3))]
    sequence = s.one("SequenceConstruct", *items)
    if n.chance(0.4):
        sequence = s.one("SequenceInsert", sequence, n.choice(s.seen), s.literal(np.array(0, np.int64)))
    if n.chance(0.5):
        return s.one("SequenceAt", sequence, s.literal(np.array(n.choice((0, -1)), np.int64)))
    stacked = s.one("ConcatFromSequence", sequence, axis=0, new_axis=1)
    return s.one("ReduceMean" if n.opset < 18 else "ReduceSum", *_axes(s, stacked), keepdims=0, **_axes_given(s))


def _axes(s: Scope, x: str) -> list[str]:
    return [x, s.literal(np.array([0], np.int64))] if s.net.opset >= 18 else [x]


def _axes_given(s: Scope) -> dict[str, Any]:
    return {} if s.net.opset >= 18 else {"axes": [0]}


def _rows_loop(n: Net, x: Value) -> Value:
    """A loop over the rows of an input, as an exporter writes a recurrence; the input may have no rows."""
    shape = n.known(x)[1:]
    step, going, state = n.name(), n.name(), n.name()
    s = Scope(n, shape, [], [going], 1)
    s.seen += [state, s.one("Gather", x.name, step, axis=0)]
    _grow(s, n.between(1, 3))
    made = [s.fresh(n.choice(s.seen[-3:])) for _ in range(2)]
    still = s.fresh(going)
    given = [value_info(step, "int64", ()), value_info(going, "bool", ()), s.type_of(state)]
    body = s.graph(given, [value_info(still, "bool", ()), *map(s.type_of, made)])
    rows = n.at("Gather", n.at("Shape", x), n.scalar(0, "int64"))
    types = [(x.dtype, shape), (x.dtype, None)]
    final, stacked = n.ops("Loop", rows, None, n.array(np.zeros(shape)), outputs=2, types=types, body=body)
    n.result(stacked)
    return final


@family("flow", "float32", "float64")
def flow(n: Net) -> None:
    n.sizes["R"] = n.choice((0, 1, 3))
    shape = n.choice(((), (3,), (2, 5), (1, 4)))
    x = n.input(shape)
    seen = [x.name, n.bias(*shape).name]
    condition = n.input((), "bool", lambda draw, shape: np.asarray(draw.random(shape) < 0.5))
    if n.is_open or n.chance(0.4):
        seen.append(_rows_loop(n, n.input(["R", *shape])).name)
    outer = Scope(n, shape, seen, [condition.name], 0)
    starts: tuple[Callable[[Scope], str], ...] = (_loop, _if, _scan, _loop)
    for _ in range(n.choice((1, 2))):
        outer.seen.append(n.choice(starts)(outer))
        _grow(outer, n.between(0, 2))
    n.nodes.extend(outer.nodes)
    n.result(Value(outer.seen[-1], n.kind, shape))
