"""Generators of control flow: branches and loops of a few nodes, which may read values from outside."""

import random
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from tests.fuzz.case import Value, value_info
from tests.fuzz.draw import Draw, Reject, generates

_UNARY = ("Relu", "Neg", "Abs", "Tanh", "Identity", "Sigmoid")
_BINARY = ("Add", "Mul", "Sub", "Max")
_DTYPES = ("float32", "float32", "float64")


class _Body:
    """The nodes of a sub-graph; names are the outer graph's, so that none is used twice."""

    def __init__(self, d: Draw) -> None:
        self.d = d
        self.nodes: list[onnx.NodeProto] = []

    def add(self, op_type: str, *inputs: str) -> str:
        name = self.d.name()
        self.nodes.append(helper.make_node(op_type, list(inputs), [name]))
        return name

    def mix(self, names: Sequence[str], steps: int) -> str:
        """A value of a few elementwise nodes over ``names``, all of one type."""
        pool = list(names)
        for _ in range(steps):
            pool.append(self._step(self.d.rng, pool))
        return self.add("Identity", pool[-1]) if pool[-1] in names else pool[-1]

    def _step(self, rng: random.Random, pool: Sequence[str]) -> str:
        if rng.random() < 0.4:
            return self.add(rng.choice(_UNARY), rng.choice(pool))
        return self.add(rng.choice(_BINARY), rng.choice(pool), rng.choice(pool))

    def graph(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> onnx.GraphProto:
        known = [value_info(v.name, v.dtype, v.shape) for v in inputs]
        made = [value_info(v.name, v.dtype, v.shape) for v in outputs]
        return helper.make_graph(self.nodes, self.d.name(), known, made)


def _computed(d: Draw, value: Value) -> Value:
    """A condition as it is, or its opposite."""
    if d.chance(0.5):
        return value
    op, d.op = d.op, "Not"
    (value,), d.op = d.node([value]), op
    return value


@generates("If")
def if_(d: Draw) -> list[Value]:
    x = d.operand(_DTYPES)
    shape = d.known(x)
    others = [v.name for v in d.values.values() if (v.shape, v.dtype) == (shape, x.dtype)]
    branches = []
    for _ in range(2):
        body = _Body(d)
        results = [Value(body.mix([x.name, *d.some(others)], d.between(0, 3)), x.dtype, shape)]
        branches.append(body.graph([], results))
    there = [v for v in d.values.values() if v.dtype == "bool" and v.shape in ((), (1,))]
    condition = d.constant(np.array(d.chance(0.5)).reshape(d.choice([(), (1,), ()])), 0.5)
    condition = d.choice(there) if there and d.chance(0.5) else _computed(d, condition)
    return d.node([condition], types=[(x.dtype, shape)], then_branch=branches[0], else_branch=branches[1])


@generates("Loop")
def loop(d: Draw) -> list[Value]:
    x = d.operand(_DTYPES, most=3, budget=500)
    shape, trips = d.known(x), d.choice((0, 1, 2, 3, 7))
    step, going, state = (d.name() for _ in range(3))
    body = _Body(d)
    carried = Value(body.mix([state, x.name], d.between(1, 3)), x.dtype, shape)
    scanned = Value(body.mix([carried.name], d.between(0, 2)), x.dtype, shape)
    still = Value(body.add("Identity", going), "bool", ())
    given = [Value(step, "int64", ()), Value(going, "bool", ()), Value(state, x.dtype, shape)]
    count = d.constant(np.array(trips, "int64"), 0.4)
    condition = d.maybe(d.constant(np.array(d.chance(0.9)), 0.3))
    graph = body.graph(given, [still, carried, scanned])
    return d.node([count, condition, x], 2, [(x.dtype, shape), (x.dtype, None)], body=graph)


@generates("Scan")
def scan(d: Draw) -> list[Value]:
    if d.opset < 9:
        raise Reject("the form of opset 8")
    x = d.operand(_DTYPES, 2, 3, 1000)
    shape = d.known(x)
    state, row = d.name(), d.name()
    start = d.like(shape[1:], x.dtype)
    body = _Body(d)
    carried = Value(body.mix([state, row], d.between(1, 3)), x.dtype, shape[1:])
    made = Value(body.mix([carried.name, row], d.between(0, 2)), x.dtype, shape[1:])
    graph = body.graph([Value(state, x.dtype, shape[1:]), Value(row, x.dtype, shape[1:])], [carried, made])
    backward = d.maybe([1], 0.3)
    types = [(x.dtype, shape[1:]), (x.dtype, shape)]
    return d.node([start, x], 2, types, body=graph, num_scan_inputs=1, scan_input_directions=backward)
