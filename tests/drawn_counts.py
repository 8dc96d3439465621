"""Random graphs behind counts that data decide, beside ONNX Runtime.

``python -m tests.drawn_counts --graphs 200 --seed 1``

A source finds rows (NonZero, NonMaxSuppression, Compress, Unique) or a number of them (a sum of conditions); some
operators follow, in the forms that exporters write.  Each graph runs over inputs in which nothing, one, some and all is
found.  A session has to agree, and may not compile for counts: it is said how many libraries there were.
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

WIDTH = 4
SHARES = (0.4, 0.0, 1.0, 0.1, 0.7)
"""Of the rows, about which are found in a run."""
Names = tuple[str, ...]


@dataclass
class Graph:
    """A graph while it is drawn.  ``rows``: tensors (k, 4) of counts of their own, ``numbers``: scalars int64."""

    rng: random.Random
    fixed: int | None = None
    """The rows of the input, where the model says how many."""
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def add(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def const(self, value: Any, dtype: str = "int64") -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def model(self) -> onnx.ModelProto:
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [self.fixed or "n", WIDTH])
        outs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(self.results)]
        graph = helper.make_graph(self.nodes, "counts", [given], outs, self.weights)
        inferred = onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        )
        types = {v.name: v.type.tensor_type.elem_type for v in (*inferred.graph.output, *inferred.graph.value_info)}
        outs = [helper.make_tensor_value_info(out.name, types[out.name], None) for out in outs]
        graph = helper.make_graph(self.nodes, "counts", [given], outs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


# --- what data decide -------------------------------------------------------------------------------------------------


def _mask(g: Graph, rows: str = "x") -> str:
    """Which rows have a first element above 1."""
    first = g.add("Gather", rows, g.const(0), axis=1)
    return g.add("Greater", first, g.const(1.0, "float32"))


def by_nonzero(g: Graph) -> None:
    found = g.add("NonZero", _mask(g, g.rng.choice(["x", *g.rows])) if g.rng.random() < 0.3 else _mask(g))
    places = g.add("Squeeze", found, g.const([0]))
    if g.rng.random() < 0.3:
        places = g.add("Gather", g.add("Transpose", found, perm=[1, 0]), g.const(0), axis=1)
    g.places.append(places)
    if not g.rows:
        g.rows.append(g.add("Gather", "x", places, axis=0))


def by_compress(g: Graph) -> None:
    g.rows.append(g.add("Compress", "x", _mask(g), axis=0))


def by_unique(g: Graph) -> None:
    whole = g.add("Cast", g.add("Gather", "x", g.const(0), axis=1), to=TensorProto.INT64)
    values, first, _, _ = g.add("Unique", whole, outputs=4, sorted=1)
    g.rows.append(g.add("Gather", "x", first, axis=0))
    g.results.append(values)


def by_boxes(g: Graph) -> None:
    """Boxes at x[:, 1:3] of size 1; rows whose first element is high count."""
    corner = g.add("Slice", "x", g.const([1]), g.const([3]), g.const([1]))
    boxes = g.add("Concat", corner, g.add("Add", corner, g.const(1.0, "float32")), axis=1)
    score = g.add("Unsqueeze", g.add("Gather", "x", g.const(0), axis=1), g.const([0, 1]))
    limits = [g.const([100]), g.const([0.3], "float32"), g.const([1.0], "float32")]
    found = g.add("NonMaxSuppression", g.add("Unsqueeze", boxes, g.const([0])), score, *limits)
    places = g.add("Gather", found, g.const(2), axis=1)
    g.places.append(places)
    g.rows.append(g.add("Gather", "x", places, axis=0))


def by_sum(g: Graph) -> None:
    count = g.add("ReduceSum", g.add("Cast", _mask(g), to=TensorProto.INT64), keepdims=0)
    g.numbers.append(count)
    form = g.rng.choice(["slice", "topk", "range", "full"])
    one = g.add("Unsqueeze", count, g.const([0]))
    if form == "slice":
        g.rows.append(g.add("Slice", "x", g.const([0]), one, g.const([0])))
    elif form == "topk":
        scores, places = g.add("TopK", g.add("Gather", "x", g.const(3), axis=1), one, outputs=2)
        g.results.append(scores)
        g.rows.append(g.add("Gather", "x", places, axis=0))
    elif form == "range":
        places = g.add("Range", g.const(0), count, g.const(1))
        g.rows.append(g.add("Gather", "x", places, axis=0))
    else:
        shape = g.add("Concat", one, g.const([WIDTH]), axis=0)
        g.rows.append(g.add("ConstantOfShape", shape, value=numpy_helper.from_array(np.array([0.5], "float32"))))


# --- what follows -----------------------------------------------------------------------------------------------------


def _row(g: Graph) -> str:
    return g.rng.choice(g.rows)


def _count(g: Graph, rows: str) -> str:
    """How many rows there are, (1,)."""
    return g.add("Gather", g.add("Shape", rows), g.const([0]))


def layer(g: Graph) -> None:
    weight = g.const(np.random.default_rng(g.rng.randrange(1000)).standard_normal((WIDTH, WIDTH)), "float32")
    found = g.add("MatMul", _row(g), weight)
    g.rows.append(g.add(g.rng.choice(["Relu", "Sigmoid", "Tanh"]), found))


def softmax(g: Graph) -> None:
    g.rows.append(g.add("Softmax", _row(g), axis=1))


def reduce(g: Graph) -> None:
    g.results.append(g.add("ReduceSum", _row(g), g.const([g.rng.choice([0, 1])]), keepdims=g.rng.choice([0, 1])))


def join(g: Graph) -> None:
    g.rows.append(g.add("Concat", _row(g), g.rng.choice(["x", _row(g)]), axis=0))


def first(g: Graph) -> None:
    """The first few of them, as many as there are."""
    rows = _row(g)
    few = g.add("Min", _count(g, rows), g.const([g.rng.randint(1, 6)]))
    g.rows.append(g.add("Slice", rows, g.const([0]), few, g.const([0])))


def best(g: Graph) -> None:
    rows = _row(g)
    few = g.add("Min", _count(g, rows), g.const([g.rng.randint(1, 6)]))
    column = g.add("Gather", rows, g.const(1), axis=1)
    scores, places = g.add("TopK", column, few, outputs=2)
    g.results.append(scores)
    g.rows.append(g.add("Gather", rows, places, axis=0))


def put_back(g: Graph) -> None:
    if not g.places:
        first(g)
        return
    places = g.rng.choice(g.places)
    updates = g.add("Gather", "x", places, axis=0)
    zeros = g.add("Mul", "x", g.const(0.5, "float32"))
    if g.rng.random() < 0.5:
        found = g.add("ScatterND", zeros, g.add("Unsqueeze", places, g.const([1])), updates)
    else:
        shape = g.add("Shape", updates)
        wide = g.add("Expand", g.add("Unsqueeze", places, g.const([1])), shape)
        found = g.add("ScatterElements", zeros, wide, updates, axis=0, **g.rng.choice([{}, {"reduction": "add"}]))
    g.rows.append(found)


def shaped(g: Graph) -> None:
    rows = _row(g)
    flat = g.add("Reshape", rows, g.const([-1]))
    shape = g.add("Concat", _count(g, rows), g.const([2, WIDTH // 2]), axis=0)
    apart = g.add("Transpose", g.add("Reshape", flat, shape), perm=[0, 2, 1])
    g.rows.append(g.add("Reshape", apart, g.add("Concat", _count(g, rows), g.const([WIDTH]), axis=0)))


def positions(g: Graph) -> None:
    rows = _row(g)
    count = g.add("Squeeze", _count(g, rows), g.const([0]))
    steps = g.add("Cast", g.add("Range", g.const(0), count, g.const(1)), to=TensorProto.FLOAT)
    g.rows.append(g.add("Add", rows, g.add("Unsqueeze", steps, g.const([1]))))


def full(g: Graph) -> None:
    rows = _row(g)
    value = numpy_helper.from_array(np.array([1.5], "float32"))
    g.rows.append(g.add("Sub", rows, g.add("ConstantOfShape", g.add("Shape", rows), value=value)))


def pairs(g: Graph) -> None:
    """Each row beside each other, as overlaps of boxes are found."""
    rows = _row(g)
    far = g.add("Sub", g.add("Unsqueeze", rows, g.const([1])), g.add("Unsqueeze", rows, g.const([0])))
    g.results.append(g.add("ReduceSum", g.add("Abs", far), g.const([2]), keepdims=0))


def sums(g: Graph) -> None:
    g.rows.append(g.add("CumSum", _row(g), g.const(0)))


def chosen(g: Graph) -> None:
    rows = _row(g)
    g.rows.append(g.add("Where", g.add("Greater", rows, g.const(0.0, "float32")), rows, g.add("Neg", rows)))


def again(g: Graph) -> None:
    rows = _row(g)
    places = g.add("Squeeze", g.add("NonZero", _mask(g, rows)), g.const([0]))
    g.rows.append(g.add("Gather", rows, places, axis=0))


def repeated(g: Graph) -> None:
    rows = _row(g)
    g.rows.append(g.add("Tile", rows, g.const([g.rng.randint(1, 3), 1])))


def padded(g: Graph) -> None:
    g.rows.append(g.add("Pad", _row(g), g.const([g.rng.randint(0, 2), 0, g.rng.randint(0, 2), 0])))


def pooled(g: Graph) -> None:
    """Regions of an image, one for each row."""
    rows = _row(g)
    image = g.const(np.random.default_rng(3).standard_normal((1, 2, 6, 6)), "float32")
    batch = g.add("ConstantOfShape", _count(g, rows), value=numpy_helper.from_array(np.array([0], "int64")))
    how = {"output_height": 2, "output_width": 2, "sampling_ratio": 2}
    found = g.add("RoiAlign", image, g.add("Abs", rows), batch, **how)
    g.results.append(found)


def resized(g: Graph) -> None:
    rows = _row(g)
    size = g.add("Add", g.add("Min", _count(g, rows), g.const([5])), g.const([1]))
    image = g.const(np.random.default_rng(3).standard_normal((1, 1, 6, 6)), "float32")
    sizes = g.add("Concat", g.const([1, 1]), size, g.const([4]), axis=0)
    g.results.append(g.add("Resize", image, "", "", sizes, mode=g.rng.choice(["nearest", "linear"])))


def last(g: Graph) -> None:
    """The last few: by a negative start, or by one that is computed."""
    rows = _row(g)
    few = g.rng.randint(1, 4)
    start = g.const([-few]) if g.rng.random() < 0.5 else g.add("Sub", _count(g, rows), g.const([few]))
    g.rows.append(g.add("Slice", rows, start, g.const([2**40]), g.const([0])))


def overlaps(g: Graph) -> None:
    rows = _row(g)
    g.results.append(g.add("MatMul", rows, g.add("Transpose", rows, perm=[1, 0])))


def normed(g: Graph) -> None:
    scale = g.const(np.ones(WIDTH), "float32")
    g.rows.append(g.add("LayerNormalization", _row(g), scale, axis=-1))


def spread(g: Graph) -> None:
    """One row as often as there are others."""
    rows = _row(g)
    shape = g.add("Concat", _count(g, rows), g.const([WIDTH]), axis=0)
    one = g.add("ReduceSum", "x", g.const([0]), keepdims=1)
    g.rows.append(g.add("Expand", one, shape))


def which(g: Graph) -> None:
    places = g.add("ArgMax", _row(g), axis=1, keepdims=0)
    g.results.append(g.add("OneHot", places, g.const(WIDTH), g.const([0.0, 1.0], "float32")))


def along(g: Graph) -> None:
    rows = _row(g)
    places = g.add("Mod", g.add("Cast", g.add("Abs", rows), to=TensorProto.INT64), g.const(WIDTH))
    g.rows.append(g.add("GatherElements", rows, places, axis=1))


def repeated_as_counted(g: Graph) -> None:
    rows = _row(g)
    count = g.add("Concat", _count(g, rows), g.const([1]), axis=0)
    g.rows.append(g.add("Tile", g.add("Slice", "x", g.const([0]), g.const([2]), g.const([0])), count))


def padded_as_counted(g: Graph) -> None:
    rows = _row(g)
    missing = g.add("Max", g.add("Sub", g.const([12]), _count(g, rows)), g.const([0]))
    pads = g.add("Concat", g.const([0, 0]), missing, g.const([0]), axis=0)
    g.rows.append(g.add("Pad", rows, pads))


def windows(g: Graph) -> None:
    weight = g.const(np.random.default_rng(5).standard_normal((2, WIDTH, 3)), "float32")
    turned = g.add("Unsqueeze", g.add("Transpose", _row(g), perm=[1, 0]), g.const([0]))
    g.results.append(g.add("Conv", turned, weight, pads=[1, 1]))


def one_by_one(g: Graph) -> None:
    """A loop with a trip for each row."""
    rows = _row(g)
    count = g.add("Squeeze", _count(g, rows), g.const([0]))
    body = [
        helper.make_node("Gather", [rows, "trip"], ["row"]),
        helper.make_node("Add", ["sum_in", "row"], ["sum_out"]),
        helper.make_node("Identity", ["going_in"], ["going"]),
        helper.make_node("Identity", ["sum_out"], ["scanned"]),
    ]
    types = (("trip", 7, []), ("going_in", 9, []), ("sum_in", 1, [WIDTH]))
    outs = (("going", 9, []), ("sum_out", 1, [WIDTH]), ("scanned", 1, [WIDTH]))
    values = [[helper.make_tensor_value_info(*one) for one in part] for part in (types, outs)]
    graph = helper.make_graph(body, "body", *values)
    start, yes = g.const(np.zeros(WIDTH), "float32"), g.const(True, "bool")
    total, scanned = g.add("Loop", count, yes, start, outputs=2, body=graph)
    g.results.append(total)
    g.rows.append(scanned)


def either(g: Graph) -> None:
    """Something else where nothing is found."""
    rows = _row(g)
    some = g.add("Greater", g.add("Squeeze", _count(g, rows), g.const([0])), g.const(0))
    parts = []
    for name, source in (("some", rows), ("none", "x")):
        node = helper.make_node("Neg", [source], [name])
        parts.append(helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, 1, [None, WIDTH])]))
    g.rows.append(g.add("If", some, then_branch=parts[0], else_branch=parts[1]))


SOURCES: Sequence[Callable[[Graph], None]] = (by_nonzero, by_compress, by_unique, by_boxes, by_sum)
STEPS: Sequence[Callable[[Graph], None]] = (
    *(layer, softmax, reduce, join, first, best, put_back, put_back, shaped, positions, full, pairs, sums, chosen),
    *(again, repeated, padded, pooled, resized, last, overlaps, normed, spread, which, along, repeated_as_counted),
    *(padded_as_counted, windows, one_by_one, either),
)


def drawn(seed: int) -> tuple[onnx.ModelProto, list[str]]:
    """A model, and what it is made of."""
    rng = random.Random(seed)
    g = Graph(rng, rng.choice([None, None, 9]))
    made = [rng.choice(SOURCES)]
    if rng.random() < 0.3:
        made.append(rng.choice(SOURCES))
    made += [rng.choice(STEPS) for _ in range(rng.randint(1, 4))]
    for step in made:
        step(g)
    g.results += g.rows[-2:]
    return g.model(), [step.__name__ for step in made]


def inputs(seed: int, fixed: int | None) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    found = []
    for share in SHARES:
        n = fixed or int(rng.integers(3, 12))
        x = rng.uniform(-3, 3, (n, WIDTH)).astype("float32")
        high = rng.random(n) < share if 0 < share < 1 else np.full(n, share == 1)
        x[:, 0] = np.where(high, rng.uniform(1.5, 9, n), rng.uniform(-3, 0.5, n))
        found.append(x)
    return found


def checked(seed: int) -> tuple[str, int, list[str]]:
    """What is wrong, "" if nothing; how many libraries were compiled; what runs in Python."""
    import onnxruntime

    model, made = drawn(seed)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    data = model.SerializeToString()
    try:
        peer = onnxruntime.InferenceSession(data, options)
    except Exception as error:  # the generator's mistake
        return f"drawn: {error}", 0, []
    session = minitvm.InferenceSession(data, num_threads=1, specialise_after=0)
    fixed = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value or None
    for x in inputs(seed, fixed):
        try:
            wanted = peer.run(None, {"x": x})
        except Exception:  # a size that it refuses
            continue
        try:
            found = session.run(None, {"x": x})
        except Exception as error:
            return f"{'+'.join(made)}: refused: {type(error).__name__} {error}", len(session.libraries), []
        if problem := difference(session, found, wanted):
            return f"{'+'.join(made)}: {problem}", 0, []
    return "", len(session.libraries), declined(session)


def difference(session: minitvm.InferenceSession, found: list[Any], wanted: list[Any]) -> str:
    """What is wrong with a session's results, "" if nothing."""
    for output, a, b in zip(session.get_outputs(), found, wanted, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{output.name}: {a.dtype} {a.shape}, not {b.dtype} {b.shape}"
        if not np.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True):
            return f"{output.name}: off by {np.abs(a - b).max()}"
    return ""


def declined(session: minitvm.InferenceSession) -> list[str]:
    """Why there are no kernels for all sizes, and what runs in Python."""
    refused = session.symbolic is None or not session.symbolic.taken
    why = [str(session.symbolic)] if refused else []
    return why + [call.op for call in session.libraries[-1].host_calls]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    wrong, once, python = 0, 0, 0
    for seed in range(given.seed, given.seed + given.graphs):
        problem, libraries, hosts = checked(seed)
        wrong, once, python = wrong + bool(problem), once + (libraries == 1), python + bool(hosts)
        if problem or libraries > 1 or hosts:
            said = problem or f"{libraries} libraries; {'; '.join(hosts)}"
            print(f"{seed}: {said} [{'+'.join(drawn(seed)[1])}]", flush=True)
    print(f"{given.graphs} graphs: {wrong} wrong, {once} compiled once, {python} with operators in Python")


if __name__ == "__main__":
    main()
