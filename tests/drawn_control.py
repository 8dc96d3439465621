"""Random choices and loops over open sizes, inside each other, beside ONNX Runtime.

``python -m tests.drawn_control --graphs 200 --seed 1``

All values are rows (n, k, 4): k is the inputs' t, or, of those that grow, what a run makes it.  Each graph runs at
several sizes.  A session has to agree, may not compile for sizes, and may leave nothing to Python.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import minitvm
from tests.drawn_counts import declined, difference

WIDTH = 4
SIZES = ((3, 5), (1, 2), (4, 1), (2, 7), (5, 3))
"""Of runs: n and t."""


@dataclass
class Graph:
    """A graph, or a body, while it is drawn.  ``same``: values of (n, t, 4), ``grown``: of (n, any, 4)."""

    rng: random.Random
    depth: int
    counter: list[int]
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)

    def name(self, kind: str) -> str:
        self.counter[0] += 1
        return f"{kind}{self.counter[0]}"

    def add(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [self.name("v") for _ in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def const(self, value: Any, dtype: str = "int64") -> str:
        tensor = numpy_helper.from_array(np.asarray(value, dtype))
        found: str = self.add("Constant", value=tensor)
        return found

    def inner(self) -> Graph:
        """A body, which sees what there is."""
        return Graph(self.rng, self.depth + 1, self.counter, same=[*self.same], grown=[*self.grown], made=self.made)

    def size(self, value: str, axis: int) -> str:
        found: str = self.add("Gather", self.add("Shape", value), self.const(axis))
        return found

    def as_body(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        return helper.make_graph(self.nodes, self.name("body"), inputs, outputs)


def value(name: str, dtype: int = TensorProto.FLOAT, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


ROWS = [None, None, WIDTH]


def _one(g: Graph) -> str:
    """Any value."""
    return g.rng.choice([*g.same[-3:], *g.grown[-2:]])


def _like(g: Graph, source: str, found: str) -> None:
    (g.same if source in g.same else g.grown).append(found)


# --- one operator after the other -------------------------------------------------------------------------------------


def pointwise(g: Graph) -> None:
    x = _one(g)
    _like(g, x, g.add(g.rng.choice(("Relu", "Tanh", "Neg", "Sigmoid")), x))


def layer(g: Graph) -> None:
    x, weight = _one(g), g.const(np.random.default_rng(g.rng.randrange(99)).uniform(-0.5, 0.5, (4, 4)), "float32")
    _like(g, x, g.add("MatMul", x, weight))


def attention(g: Graph) -> None:
    x = _one(g)
    scores = g.add("Softmax", g.add("MatMul", x, g.add("Transpose", x, perm=[0, 2, 1])), axis=-1)
    _like(g, x, g.add("MatMul", scores, x))


def centred(g: Graph) -> None:
    x = _one(g)
    _like(g, x, g.add("Sub", x, g.add("ReduceMean", x, g.const([1]), keepdims=1)))


def added(g: Graph) -> None:
    g.same.append(g.add(g.rng.choice(("Add", "Sub", "Max")), g.rng.choice(g.same), g.rng.choice(g.same)))


def positions(g: Graph) -> None:
    x = _one(g)
    steps = g.add("Cast", g.add("Range", g.const(0), g.size(x, 1), g.const(1)), to=TensorProto.FLOAT)
    _like(g, x, g.add("Add", x, g.add("Unsqueeze", steps, g.const([1]))))


def joined(g: Graph) -> None:
    g.grown.append(g.add("Concat", _one(g), _one(g), axis=1))


def halved(g: Graph) -> None:
    x = _one(g)
    end = g.add("Unsqueeze", g.add("Div", g.add("Add", g.size(x, 1), g.const(1)), g.const(2)), g.const([0]))
    g.grown.append(g.add("Slice", x, g.const([0]), end, g.const([1])))


def last_row(g: Graph) -> None:
    """The row that a decoder goes on with, put behind the others."""
    x = _one(g)
    row = g.add("Unsqueeze", g.add("Gather", x, g.const(-1), axis=1), g.const([1]))
    g.grown.append(g.add("Concat", x, g.add("Tanh", row), axis=1))


def without_first(g: Graph) -> None:
    g.grown.append(g.add("Slice", _one(g), g.const([1]), g.const([2**40]), g.const([1])))


def padded(g: Graph) -> None:
    pads = g.add(
        "Concat", g.const([0, 0, 0, 0]), g.add("Unsqueeze", g.size(_one(g), 0), g.const([0])), g.const([0]), axis=0
    )
    g.grown.append(g.add("Pad", _one(g), pads))


def kept(g: Graph) -> None:
    """The rows of those moments in which something is above 0."""
    x = _one(g)
    high = g.add("ReduceMax", x, g.const([0, 2]), keepdims=0)
    found = g.add("Squeeze", g.add("NonZero", g.add("Greater", high, g.const(0.0, "float32"))), g.const([0]))
    g.grown.append(g.add("Gather", x, found, axis=1))


def best(g: Graph) -> None:
    x = _one(g)
    count = g.add("Unsqueeze", g.add("Min", g.size(x, 1), g.const(3)), g.const([0]))
    g.grown.append(g.add("TopK", x, count, outputs=2, axis=1)[0])


def in_one_row(g: Graph) -> None:
    """To a batch of one and back."""
    x = _one(g)
    flat = g.add("Reshape", x, g.const([1, -1, WIDTH]))
    sizes = g.add("Concat", g.add("Shape", x, start=0, end=2), g.const([WIDTH]), axis=0)
    _like(g, x, g.add("Reshape", g.add("Softmax", flat, axis=1), sizes))


def causal(g: Graph) -> None:
    x = _one(g)
    side = g.add("Unsqueeze", g.size(x, 1), g.const([0]))
    ones = g.add("ConstantOfShape", g.add("Concat", side, side, axis=0), value=numpy_helper.from_array(np.ones(1, "f")))
    _like(g, x, g.add("MatMul", g.add("Trilu", ones, upper=0), x))


# --- choices and loops ------------------------------------------------------------------------------------------------


def _asked(g: Graph) -> str:
    """By data, or by sizes."""
    if g.rng.random() < 0.2:
        return str(g.add("Greater", g.size(_one(g), g.rng.randrange(2)), g.const(3)))
    return str(g.add("Greater", g.add("ReduceSum", _one(g), keepdims=0), g.const(0.1, "float32")))


def _filled(g: Graph, least: int = 1) -> None:
    for _ in range(g.rng.randint(least, 2)):
        g.rng.choice(STEPS if g.depth < 2 else PLAIN)(g)


def choice(g: Graph, grows: bool = False) -> None:
    """Of which a branch may give what comes from outside as it is."""
    asked, branches = _asked(g), []
    for _ in range(2):
        inner = g.inner()
        _filled(inner)
        result = inner.rng.choice([*inner.same[-2:], *inner.grown[-1:]]) if grows else inner.same[-1]
        result = inner.add("Identity", result)
        branches.append(inner.as_body([], [value(result, shape=ROWS)]))
    (g.grown if grows else g.same).append(g.add("If", asked, then_branch=branches[0], else_branch=branches[1]))


def choice_of_lengths(g: Graph) -> None:
    choice(g, True)


def loop(g: Graph, grows: bool = False, ends: bool = False) -> None:
    """A state that goes from trip to trip; its rows are stacked."""
    start, inner = g.rng.choice(g.same), g.inner()
    state, trip, going = g.name("state"), g.name("trip"), g.name("going")
    (inner.grown if grows else inner.same).append(state)
    _filled(inner)
    after = inner.rng.choice([*inner.same[-1:], *inner.grown[-1:]]) if grows else inner.same[-1]
    if grows and inner.rng.random() < 0.6:
        after = inner.add("Concat", after, inner.rng.choice(g.same), axis=1)
    after = inner.add("Identity", after)
    on = inner.add("Identity", going)
    if ends:
        below = inner.add("Less", inner.add("ReduceMax", after, keepdims=0), inner.const(2.0, "float32"))
        on = inner.add("And", below, inner.add("Less", trip, inner.const(4)))
    mean = inner.add("ReduceMean", after, inner.const([1]), keepdims=0)
    head = [value(trip, TensorProto.INT64, []), value(going, TensorProto.BOOL, []), value(state, shape=ROWS)]
    tail = [value(on, TensorProto.BOOL, []), value(after, shape=ROWS), value(mean, shape=[None, WIDTH])]
    body = inner.as_body(head, tail)
    trips = g.const(g.rng.randint(1, 3)) if g.rng.random() < 0.6 else g.size(_one(g), g.rng.randrange(2))
    last, means = g.add("Loop", trips, g.const(True, "bool"), start, outputs=2, body=body)
    (g.grown if grows else g.same).append(last)
    g.grown.append(g.add("Transpose", means, perm=[1, 0, 2]))


def growing_loop(g: Graph) -> None:
    loop(g, True)


def ending_loop(g: Graph) -> None:
    loop(g, g.rng.random() < 0.3, True)


def scan(g: Graph) -> None:
    """Over time."""
    x = g.rng.choice(g.same)
    turned, inner = g.add("Transpose", x, perm=[1, 0, 2]), g.inner()
    start = g.add("ReduceSum", x, g.const([1]), keepdims=0)
    state, row = g.name("state"), g.name("row")
    after = inner.add("Tanh", inner.add(inner.rng.choice(("Add", "Sub")), state, row))
    if inner.rng.random() < 0.5:
        layer_ = inner.const(np.full((4, 4), 0.1), "float32")
        after = inner.add("MatMul", after, layer_)
    out = inner.add("Relu", after)
    shape = [None, WIDTH]
    body = inner.as_body([value(v, shape=shape) for v in (state, row)], [value(v, shape=shape) for v in (after, out)])
    _, rows = g.add("Scan", start, turned, outputs=2, body=body, num_scan_inputs=1)
    g.same.append(g.add("Transpose", rows, perm=[1, 0, 2]))


PLAIN: Sequence[Callable[[Graph], None]] = (
    *(pointwise, layer, attention, centred, added, positions, joined, halved),
    *(last_row, without_first, padded, kept, best, in_one_row, causal),
)
CONTROL: Sequence[Callable[[Graph], None]] = (
    *(choice, choice, choice_of_lengths, loop, loop, growing_loop, ending_loop, scan),
)
STEPS = (*PLAIN, *CONTROL)


def drawn(seed: int) -> tuple[onnx.ModelProto, list[str]]:
    """A model, and what it is made of."""
    rng = random.Random(seed)
    g = Graph(rng, 0, [0], same=["x", "y"])
    made = [rng.choice(STEPS) for _ in range(rng.randint(0, 2))]
    made += [rng.choice(CONTROL), *(rng.choice(STEPS) for _ in range(rng.randint(0, 3)))]
    for step in made:
        step(g)
    outs = _results(g)
    given = [value(name, shape=["n", "t", WIDTH]) for name in ("x", "y")]
    graph = helper.make_graph(g.nodes, "control", given, [value(out, shape=ROWS) for out in outs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return model, [step.__name__ for step in made]


def _results(g: Graph) -> list[str]:
    found = [v for v in (*g.same[-2:], *g.grown[-2:]) if v not in ("x", "y")]
    return found or [g.add("Identity", "x")]


def checked(seed: int) -> tuple[str, int, list[str]]:
    """What is wrong, "" if nothing; how many libraries were compiled; what runs in Python."""
    import onnxruntime

    model, made = drawn(seed)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    data = model.SerializeToString()
    peer = onnxruntime.InferenceSession(data, options)
    session = minitvm.InferenceSession(data, num_threads=1, specialise_after=0)
    rng = np.random.default_rng(seed)
    for n, t in SIZES:
        feeds = {name: rng.uniform(-1, 1, (n, t, WIDTH)).astype("float32") for name in ("x", "y")}
        wanted: Any = peer.run(None, feeds)
        try:
            found = session.run(None, feeds)
        except Exception as error:
            return f"{'+'.join(made)}: refused: {type(error).__name__} {error}", len(session.libraries), []
        if problem := difference(session, found, wanted):
            return f"{'+'.join(made)}: {problem}", 0, []
    return "", len(session.libraries), declined(session)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    wrong = several = python = 0
    for seed in range(given.seed, given.seed + given.graphs):
        problem, libraries, calls = checked(seed)
        wrong, several, python = wrong + bool(problem), several + (libraries > 1), python + bool(calls)
        if problem or libraries > 1 or calls:
            print(f"{seed}: {problem or 'right'}; {libraries} libraries; {'; '.join(calls)[:300]}", flush=True)
    print(f"{given.graphs} graphs: {wrong} wrong, {several} of several libraries, {python} in Python")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
