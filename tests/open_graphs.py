"""Random graphs all of whose inputs' dimensions are open, and that are right whatever these are: 0, 1, or many.

``case(seed, index)`` is a case of the fuzzer's (``tests/fuzz/case.py``) with several feeds, one for each tuple of
sizes.  Every other one is a graph of the fuzzer's own generator, whose shapes may go together for few sizes only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from onnx import helper

from tests.fuzz import generate
from tests.fuzz.case import Arrays, Case, Config, Value, value_info
from tests.fuzz.draw import array

SIZES = (0, 0, 0, 1, 1, 1, 2, 3, 7, 33)
SYMBOLS = ("N", "T", "S", "H", "W")
WIDTH, HEADS, CHANNELS = 24, 3, 4
MOST = 1 << 14
"""Elements of an input."""

Dim: TypeAlias = "int | str"
Dims: TypeAlias = tuple[Dim, ...]
Typed: TypeAlias = tuple[str, Dims]
"""A dtype and a shape; what follows from a symbol is text that is equal where the sizes are."""


class Skip(Exception):
    """A step does not fit here."""


class Walk:
    """A graph under construction."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.nodes: list[Any] = []
        self.constants: Arrays = {}
        self.inputs: dict[str, Typed] = {}
        self.values: dict[str, Typed] = {}

    def input(self, dims: Dims, dtype: str = "float32") -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.values[name] = (dtype, dims)
        return name

    def constant(self, value: Any, dtype: str = "int64") -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(array(self.rng, shape, "float32") * 0.3, "float32")

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        produced = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, produced, **attributes))
        return produced

    def made(self, dims: Dims, op: str, *inputs: str, dtype: str = "float32", **attributes: Any) -> str:
        """A node's only result, which later steps may read."""
        (name,) = self.node(op, *inputs, **attributes)
        self.values[name] = (dtype, dims)
        return name

    def pick(self, rank: int | None = None, last: Dim | None = None, dtype: str = "float32") -> str:
        """Mostly one of the latest values."""
        found = [
            name
            for name, (kind, dims) in self.values.items()
            if kind == dtype and rank in (None, len(dims)) and (last is None or (dims and dims[-1] == last))
        ]
        if not found:
            raise Skip
        return self.rng.choice(found[-4:] if self.rng.random() < 0.7 else found)

    def dims(self, name: str) -> Dims:
        return self.values[name][1]

    def axis(self, name: str) -> int:
        if not self.dims(name):
            raise Skip
        return self.rng.randrange(len(self.dims(name)))

    def size(self, name: str, axis: int) -> str:
        """A dimension as a vector of one."""
        (shape,) = self.node("Shape", name)
        return self.node("Gather", shape, self.constant([axis]), axis=0)[0]


STEPS: list[Callable[[Walk], object]] = []


def step(function: Callable[[Walk], object]) -> Callable[[Walk], object]:
    STEPS.append(function)
    return function


def without(dims: Dims, axis: int) -> Dims:
    return (*dims[:axis], *dims[axis + 1 :])


def put(dims: Dims, axis: int, dim: Dim) -> Dims:
    return (*dims[:axis], dim, *dims[axis + 1 :])


# --- element by element ------------------------------------------------------------------------------------------


@step
def unary(g: Walk) -> None:
    x = g.pick()
    g.made(g.dims(x), g.rng.choice(("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Gelu", "Erf", "Softplus")), x)


@step
def binary(g: Walk) -> None:
    x = g.pick()
    same = [n for n, (kind, dims) in g.values.items() if kind == "float32" and dims == g.dims(x)]
    g.made(g.dims(x), g.rng.choice(("Add", "Mul", "Sub", "Max")), x, g.rng.choice(same))


@step
def scaled(g: Walk) -> None:
    x = g.pick(last=WIDTH)
    g.made(g.dims(x), g.rng.choice(("Add", "Mul")), x, g.weight(WIDTH))


@step
def chosen(g: Walk) -> None:
    x = g.pick()
    (asked,) = g.node("Greater", x, g.weight())
    g.made(g.dims(x), "Where", asked, x, g.weight())


@step
def with_reduced(g: Walk) -> None:
    """Joined with its own reduction, as a norm is."""
    x = g.pick()
    (total,) = g.node("ReduceMean", x, g.constant([g.axis(x)]), keepdims=1)
    g.made(g.dims(x), "Sub", x, total)


@step
def quantized(g: Walk) -> None:
    x, scale, zero = g.pick(), g.constant(0.05, "float32"), g.constant(3, "int8")
    (stored,) = g.node("QuantizeLinear", x, scale, zero)
    g.made(g.dims(x), "DequantizeLinear", stored, scale, zero)


@step
def cast_and_back(g: Walk) -> None:
    x = g.pick()
    (half,) = g.node("Cast", x, to=g.rng.choice((10, 11, 6)))
    g.made(g.dims(x), "Cast", half, to=1)


# --- products -----------------------------------------------------------------------------------------------------


@step
def dense(g: Walk) -> None:
    x = g.pick(last=WIDTH)
    y = g.made(g.dims(x), "MatMul", x, g.weight(WIDTH, WIDTH))
    g.made(g.dims(x), "Add", y, g.weight(WIDTH))


@step
def product_of_two(g: Walk) -> None:
    """x x' and x' x: the open dimension is a row's, a column's, or summed over."""
    x = g.pick()
    if len(g.dims(x)) < 2:
        raise Skip
    *batch, m, k = g.dims(x)
    rank = len(batch) + 2
    (turned,) = g.node("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])
    if g.rng.random() < 0.5:
        g.made((*batch, m, m), "MatMul", x, turned)
    else:
        g.made((*batch, k, k), "MatMul", turned, x)


@step
def gemm(g: Walk) -> None:
    x = g.pick(2, WIDTH)
    g.made(g.dims(x), "Gemm", x, g.weight(WIDTH, WIDTH), g.weight(WIDTH), transB=1)


@step
def attention(g: Walk) -> None:
    """One head or three, self or across, masked or not."""
    x = g.pick(3, WIDTH)
    others = [n for n, (_, d) in g.values.items() if len(d) == 3 and d[2] == WIDTH and d[0] == g.dims(x)[0]]
    other = g.rng.choice(others)
    query, key, value = (g.node("MatMul", v, g.weight(WIDTH, WIDTH))[0] for v in (x, other, other))
    heads = g.rng.random() < 0.6
    if heads:
        query, key, value = (_heads(g, v) for v in (query, key, value))
    (turned,) = g.node("Transpose", key, perm=[0, 1, 3, 2] if heads else [0, 2, 1])
    (scores,) = g.node("MatMul", query, turned)
    (scores,) = g.node(g.rng.choice(("Mul", "Div")), scores, g.constant(1.7, "float32"))
    if g.rng.random() < 0.4:
        (low,) = g.node("Less", scores, g.constant(0.3, "float32"))
        (scores,) = g.node("Where", low, scores, g.constant(-1e9, "float32"))
    (weights,) = g.node("Softmax", scores, axis=-1)
    (mixed,) = g.node("MatMul", weights, value)
    if heads:
        (turned,) = g.node("Transpose", mixed, perm=[0, 2, 1, 3])
        (mixed,) = g.node("Reshape", turned, g.constant([0, 0, WIDTH]))
    g.made(g.dims(x), "Identity", mixed)


def _heads(g: Walk, x: str) -> str:
    (apart,) = g.node("Reshape", x, g.constant([0, 0, HEADS, WIDTH // HEADS]))
    return g.node("Transpose", apart, perm=[0, 2, 1, 3])[0]


# --- reductions ---------------------------------------------------------------------------------------------------


@step
def reduced(g: Walk) -> None:
    x = g.pick()
    axis, keeps = g.axis(x), g.rng.randrange(2)
    op = g.rng.choice(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp"))
    dims = put(g.dims(x), axis, 1) if keeps else without(g.dims(x), axis)
    g.made(dims, op, x, g.constant([axis]), keepdims=keeps)


@step
def softmax(g: Walk) -> None:
    x = g.pick()
    g.made(g.dims(x), g.rng.choice(("Softmax", "LogSoftmax")), x, axis=g.axis(x))


@step
def layer_norm(g: Walk) -> None:
    x = g.pick(last=WIDTH)
    g.made(g.dims(x), "LayerNormalization", x, g.weight(WIDTH), g.weight(WIDTH))


@step
def best(g: Walk) -> None:
    x = g.pick()
    axis = g.axis(x)
    (at,) = g.node(g.rng.choice(("ArgMax", "ArgMin")), x, axis=axis, keepdims=1)
    g.made(put(g.dims(x), axis, 1), "GatherElements", x, at, axis=axis)


@step
def running(g: Walk) -> None:
    x = g.pick()
    g.made(g.dims(x), "CumSum", x, g.constant(g.axis(x)), exclusive=g.rng.randrange(2), reverse=g.rng.randrange(2))


@step
def sorted_all(g: Walk) -> None:
    x = g.pick()
    axis = g.axis(x)
    values, _ = g.node("TopK", x, g.size(x, axis), outputs=2, axis=axis)
    g.made(g.dims(x), "Identity", values)


# --- movement -----------------------------------------------------------------------------------------------------


@step
def transposed(g: Walk) -> None:
    x = g.pick()
    if not g.dims(x):
        raise Skip
    order = g.rng.sample(range(len(g.dims(x))), len(g.dims(x)))
    g.made(tuple(g.dims(x)[a] for a in order), "Transpose", x, perm=order)


@step
def joined(g: Walk) -> None:
    x = g.pick()
    axis = g.axis(x)
    fits = [n for n, (k, d) in g.values.items() if k == "float32" and without(d, axis) == without(g.dims(x), axis)]
    other = g.rng.choice([n for n in fits if len(g.dims(n)) == len(g.dims(x))])
    g.made(put(g.dims(x), axis, _plus(g.dims(x)[axis], g.dims(other)[axis])), "Concat", x, other, axis=axis)


def _plus(a: Dim, b: Dim) -> Dim:
    return a + b if isinstance(a, int) and isinstance(b, int) else f"({a}+{b})"


@step
def cut(g: Walk) -> None:
    x = g.pick()
    axis, first, last = g.axis(x), g.rng.choice((0, 1, -3)), g.rng.choice((2, -1, 2**31))
    by = g.rng.choice((1, 1, 2, -1))
    first, last = (first, last) if by > 0 else (last, first)
    ends = [g.constant([v]) for v in (first, last, axis, by)]
    dim = f"[{g.dims(x)[axis]}:{first}:{last}:{by}]"
    g.made(put(g.dims(x), axis, dim), "Slice", x, *ends)


@step
def halves(g: Walk) -> None:
    x = g.pick()
    axis, count = g.axis(x), g.rng.choice((2, 3))
    found = g.node("Split", x, outputs=count, axis=axis, num_outputs=count)
    for i, name in enumerate(found):
        g.values[name] = ("float32", put(g.dims(x), axis, f"{g.dims(x)[axis]}/{count}#{i < count - 1}"))


@step
def flattened(g: Walk) -> None:
    x = g.pick()
    dims = g.dims(x)
    if not dims or not isinstance(dims[-1], int) or dims[-1] == 0:
        raise Skip
    g.made((f"*{dims[:-1]}", dims[-1]), "Reshape", x, g.constant([-1, dims[-1]]))


@step
def reshaped_like(g: Walk) -> None:
    """By a shape that the model computes: all rows in one, and back."""
    x = g.pick()
    (shape,) = g.node("Shape", x)
    (rows,) = g.node("Reshape", x, g.constant([-1]))
    (rows,) = g.node("Relu", rows)
    g.made(g.dims(x), "Reshape", rows, shape, allowzero=1)


@step
def expanded(g: Walk) -> None:
    x = g.pick()
    (shape,) = g.node("Shape", x)
    ones = g.made(g.dims(x), "Expand", g.weight(1), shape)
    g.made(g.dims(x), "Add", x, ones)


@step
def filled(g: Walk) -> None:
    x = g.pick()
    (shape,) = g.node("Shape", x)
    g.made(g.dims(x), "ConstantOfShape", shape, value=helper.make_tensor("", 1, [1], [0.5]))


@step
def counted(g: Walk) -> None:
    """Positions along the last axis."""
    x = g.pick()
    if not g.dims(x):
        raise Skip
    (limit,) = g.node("Squeeze", g.size(x, len(g.dims(x)) - 1), g.constant([0]))
    (places,) = g.node("Range", g.constant(0), limit, g.constant(1))
    (places,) = g.node("Cast", places, to=1)
    g.made(g.dims(x), "Add", x, places)


@step
def padded(g: Walk) -> None:
    x = g.pick()
    rank, axis = len(g.dims(x)), g.axis(x)
    pads = [int(a == axis) for a in range(rank)]
    mode = g.rng.choice(("constant", "constant", "edge"))
    g.made(put(g.dims(x), axis, f"<{g.dims(x)[axis]}>"), "Pad", x, g.constant([*pads, *pads]), mode=mode)


@step
def tiled(g: Walk) -> None:
    x = g.pick()
    axis = g.axis(x)
    counts = [2 if a == axis else 1 for a in range(len(g.dims(x)))]
    g.made(put(g.dims(x), axis, f"2*{g.dims(x)[axis]}"), "Tile", x, g.constant(counts))


@step
def gathered(g: Walk) -> None:
    """Rows that are there; of nothing, one that is not."""
    x = g.pick()
    axis = g.axis(x)
    (places,) = g.node("Range", g.constant(0), g.node("Squeeze", g.size(x, axis), g.constant([0]))[0], g.constant(1))
    g.made(g.dims(x), "Gather", x, places, axis=axis)


@step
def one_row(g: Walk) -> None:
    x = g.pick()
    axis = g.axis(x)
    g.made(without(g.dims(x), axis), "Gather", x, g.constant(g.rng.choice((0, -1))), axis=axis)


@step
def triangle(g: Walk) -> None:
    x = g.pick()
    if len(g.dims(x)) < 2:
        raise Skip
    g.made(g.dims(x), "Trilu", x, upper=g.rng.randrange(2))


# --- shapes that data decides -------------------------------------------------------------------------------------


@step
def compressed(g: Walk) -> None:
    x = g.pick()
    axis = g.axis(x)
    (rows,) = g.node("ReduceSum", x, g.constant([a for a in range(len(g.dims(x))) if a != axis]), keepdims=0)
    if len(g.dims(x)) == 1:
        (rows,) = g.node("Identity", x)
    (kept,) = g.node("Greater", rows, g.constant(0.1, "float32"))
    g.made(put(g.dims(x), axis, f"kept{len(g.nodes)}"), "Compress", x, kept, axis=axis)


@step
def not_zero(g: Walk) -> None:
    x = g.pick()
    (where,) = g.node("NonZero", g.node("Relu", x)[0])
    (rows,) = g.node("Transpose", where, perm=[1, 0])
    (found,) = g.node("GatherND", x, rows)
    g.made((f"found{len(g.nodes)}",), "Identity", found)


@step
def unique(g: Walk) -> None:
    x = g.pick()
    found, *_ = g.node("Unique", g.node("Round", x)[0], outputs=1, sorted=1)
    g.made((f"unique{len(g.nodes)}",), "Identity", found)


# --- images -------------------------------------------------------------------------------------------------------


@step
def convolution(g: Walk) -> None:
    x = g.pick(4)
    if g.dims(x)[1] != CHANNELS:
        raise Skip
    (y,) = g.node("Conv", x, g.weight(CHANNELS, CHANNELS, 3, 3), g.weight(CHANNELS), pads=[1] * 4)
    g.made(g.dims(x), g.rng.choice(("Relu", "Identity")), y)


@step
def pool(g: Walk) -> None:
    x = g.pick(4)
    g.made(g.dims(x), g.rng.choice(("MaxPool", "AveragePool")), x, kernel_shape=[3, 3], pads=[1] * 4)


@step
def whole_pool(g: Walk) -> None:
    x = g.pick(4)
    g.made((*g.dims(x)[:2], 1, 1), "GlobalAveragePool", x)


@step
def normalized(g: Walk) -> None:
    x = g.pick(4)
    if g.dims(x)[1] != CHANNELS:
        raise Skip
    vectors = [g.weight(CHANNELS) for _ in range(3)]
    variance = g.constant(np.abs(array(g.rng, (CHANNELS,), "float32")) + 0.5, "float32")
    g.made(g.dims(x), "BatchNormalization", x, *vectors, variance)


@step
def resized(g: Walk) -> None:
    x = g.pick(4)
    n, c, h, w = g.dims(x)
    g.made((n, c, f"2*{h}", f"2*{w}"), "Resize", x, "", g.constant([1, 1, 2, 2], "float32"), mode="nearest")


@step
def resized_to_another(g: Walk) -> None:
    """To the height and width of another image, by every kernel, smoothed or not."""
    x, other = g.pick(4), g.pick(4)
    n, c, *_ = g.dims(x)
    sizes = g.node("Concat", *(g.size(v, axis) for v, axis in ((x, 0), (x, 1), (other, 2), (other, 3))), axis=0)[0]
    mode = g.rng.choice(("nearest", "linear", "cubic"))
    smooth = {"antialias": g.rng.randrange(2)} if mode != "nearest" else {}
    g.made((n, c, *g.dims(other)[2:]), "Resize", x, "", "", sizes, mode=mode, **smooth)


@step
def spectrum(g: Walk) -> None:
    """Of real numbers, along the last axis."""
    x = g.pick()
    if not g.dims(x):
        raise Skip
    (numbers,) = g.node("Unsqueeze", x, g.constant([-1]))
    (found,) = g.node("DFT", numbers, axis=len(g.dims(x)) - 1)
    g.made(g.dims(x), "Gather", found, g.constant(0), axis=len(g.dims(x)))


# --- steps --------------------------------------------------------------------------------------------------------


_ACTIVATIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}


@step
def recurrent(g: Walk) -> None:
    """Both ways or one, of activations that keep a state small or let it grow."""
    x, op, width = g.pick(3, WIDTH), g.rng.choice(("GRU", "GRU", "LSTM", "RNN")), g.rng.choice((4, 5, 8))
    direction, usual = g.rng.choice(("forward", "reverse", "bidirectional")), _ACTIVATIONS[op]
    count, rows = 1 + (direction == "bidirectional"), {"RNN": 1, "GRU": 3, "LSTM": 4}[op] * width
    weights = [g.weight(count, rows, WIDTH), g.weight(count, rows, width), g.weight(count, 2 * rows)]
    given: dict[str, Any] = {"linear_before_reset": g.rng.randrange(2)} if op == "GRU" else {}
    if g.rng.random() < 0.3:
        given["activations"] = [g.rng.choice(("LeakyRelu", "Relu", "Softsign", *usual)) for _ in usual * count]
    y, last = g.node(op, x, *weights, outputs=2, direction=direction, hidden_size=width, **given)
    steps, batch, _ = g.dims(x)
    g.values |= {y: ("float32", (steps, count, batch, width)), last: ("float32", (count, batch, width))}


def _body(op: str, dims: Sequence[Dim]) -> Any:
    """A step's body: the state and the row give both results."""
    rows = [value_info(n, "float32", list(dims)) for n in ("state", "row", "next", "out")]
    nodes = [helper.make_node(op, ["state", "row"], ["next"]), helper.make_node("Tanh", ["next"], ["out"])]
    return helper.make_graph(nodes, "body", rows[:2], rows[2:])


@step
def scanned(g: Walk) -> None:
    x = g.pick()
    if not g.dims(x):
        raise Skip
    steps, *rest = g.dims(x)
    (x,) = g.node("Pad", x, g.constant([0] * (len(rest) + 1) + [1] + [0] * len(rest)))  # of none, peers crash
    steps = f"<{steps}"
    (start,) = g.node("ReduceSum", x, g.constant([0]), keepdims=0)
    last, all_ = g.node("Scan", start, x, outputs=2, body=_body("Add", rest), num_scan_inputs=1)
    g.values[last], g.values[all_] = ("float32", tuple(rest)), ("float32", (steps, *rest))


@step
def looped(g: Walk) -> None:
    """Over the rows of a value from outside."""
    x = g.pick()
    if not g.dims(x):
        raise Skip
    steps, *rest = g.dims(x)
    rows = g.node("Squeeze", g.size(x, 0), g.constant([0]))[0]
    nodes = [helper.make_node("Gather", [x, "i"], ["row"], axis=0), helper.make_node("Identity", ["go"], ["on"])]
    head = [value_info("i", "int64", []), value_info("go", "bool", [])]
    body = helper.make_graph(nodes, "body", head, [value_info("on", "bool", []), value_info("row", "float32", rest)])
    g.made((steps, *rest), "Loop", rows, "", body=body)


@step
def either(g: Walk) -> None:
    """Rows only where there are some."""
    x = g.pick()
    (some,) = g.node("Greater", g.size(x, g.axis(x)), g.constant([1]))
    (asked,) = g.node("Squeeze", some, g.constant([0]))
    out = value_info("out", "float32", None)
    branches = [helper.make_graph([helper.make_node(op, [x], ["out"])], op, [], [out]) for op in ("Relu", "Neg")]
    g.made(g.dims(x), "If", asked, then_branch=branches[0], else_branch=branches[1])


@step
def either_by_data(g: Walk) -> None:
    """A choice that only a run makes; one branch is a loop of some trips."""
    x = g.pick()
    (rows,) = g.node("ReduceSum", x, keepdims=0)
    (asked,) = g.node("Greater", rows, g.constant(0.1, "float32"))
    out, kind = value_info("out", "float32", None), list(g.dims(x))
    trip = [helper.make_node("Tanh", ["state"], ["next"]), helper.make_node("Identity", ["go"], ["on"])]
    head = [value_info("i", "int64", []), value_info("go", "bool", []), value_info("state", "float32", kind)]
    body = helper.make_graph(trip, "body", head, [value_info("on", "bool", []), value_info("next", "float32", kind)])
    loop = helper.make_node("Loop", [g.constant(g.rng.randrange(3)), "", x], ["out"], body=body)
    nodes = {"relu": helper.make_node("Relu", [x], ["out"]), "loop": loop}
    branches = [helper.make_graph([node], name, [], [out]) for name, node in nodes.items()]
    g.made(g.dims(x), "If", asked, then_branch=branches[0], else_branch=branches[1])


@step
def sequence(g: Walk) -> None:
    """Apart row by row, and together again."""
    x = g.pick()
    axis = g.axis(x)
    (rows,) = g.node("SplitToSequence", x, axis=axis)
    (kept,) = g.node("SequenceInsert", rows, x)
    g.made(put(g.dims(x), axis, f"2*{g.dims(x)[axis]}"), "ConcatFromSequence", kept, axis=axis)


# --- cases --------------------------------------------------------------------------------------------------------

KINDS: tuple[Dims, ...] = (("N", "T", WIDTH), ("N", "T", WIDTH), ("N", WIDTH), ("N", CHANNELS, "H", "W"), ("N", "T"))
OTHERS: tuple[Dims, ...] = (("N", "S", WIDTH), ("N", "T", WIDTH), ("T", "S"), ("N", CHANNELS, "H", "W"), ("S",))


def case(seed: int, index: int) -> Case:
    """Case ``index`` of a seed; the same one each time."""
    rng = random.Random(f"open {seed}:{index}")
    config = Config(level=rng.choice((0, 1, 2, 3, 3, 3, 3)), threads=rng.choice((1, 1, 2, 3)))
    drawn = _opened(rng, generate.case(seed, index)) if index % 2 else _walked(rng)
    return drawn.replace(config=config)


def sizes_of(rng: random.Random, names: Sequence[str], count: int = 5) -> list[dict[str, int]]:
    """Several tuples of sizes, one of which has a 0 and one of which has a 1."""
    found = [{name: rng.choice(SIZES) for name in names} for _ in range(count)]
    found[1][rng.choice(names)], found[2][rng.choice(names)] = 0, 1
    rng.shuffle(found)
    return found


def _walked(rng: random.Random) -> Case:
    """Of the steps above."""
    g = Walk(rng)
    g.input(rng.choice(KINDS))
    if rng.random() < 0.5:
        g.input(rng.choice(OTHERS))
    few = rng.sample(STEPS, 6)
    for _ in range(rng.choice((2, 3, 4, 6, 8))):
        _tried(g, rng.choice(few if rng.random() < 0.5 else STEPS))
    read = {name for node in g.nodes for name in node.input}
    outputs = [n for n in g.values if n not in read and n not in g.inputs] or list(g.values)[-1:]
    names = sorted({d for _, dims in g.inputs.values() for d in dims if isinstance(d, str)})
    feeds = [_feeds(rng, g.inputs, sizes) for sizes in sizes_of(rng, names)]
    symbols = {n: tuple(d if isinstance(d, str) else None for d in dims) for n, (_, dims) in g.inputs.items()}
    values = [Value(n, g.values[n][0], None) for n in outputs]
    return Case(g.nodes, feeds, g.constants, values, 18, symbols=symbols)


def _tried(g: Walk, one: Callable[[Walk], object]) -> None:
    """A step that does not fit leaves nothing behind."""
    before = len(g.nodes), dict(g.constants), dict(g.values)
    try:
        one(g)
    except Skip:
        del g.nodes[before[0] :]
        g.constants, g.values = before[1:]


def _feeds(rng: random.Random, inputs: dict[str, Typed], sizes: dict[str, int]) -> Arrays:
    """Where they would be too large, the largest sizes are less."""
    shapes = {n: [sizes[d] if isinstance(d, str) else d for d in dims] for n, (_, dims) in inputs.items()}
    if any(math.prod(shape) > MOST for shape in shapes.values()):
        return _feeds(rng, inputs, {name: min(size, 3) for name, size in sizes.items()})
    return {n: array(rng, shapes[n], dtype) for n, (dtype, _) in inputs.items()}


def _opened(rng: random.Random, drawn: Case) -> Case:
    """A case of the fuzzer's with every dimension open, one name a size; the feeds that it has, and resized ones."""
    first = drawn.feeds[0]
    sizes = sorted({size for given in first.values() for size in given.shape})
    if not sizes:
        return drawn
    names = {size: f"d{size}" for size in sizes}
    symbols = {n: tuple(names[s] for s in a.shape) for n, a in first.items() if a.ndim}
    tuples = sizes_of(rng, list(names.values()), 3)
    feeds = [{n: _again(a, [to[names[s]] for s in a.shape]) for n, a in first.items()} for to in tuples]
    return drawn.replace(feeds=[first, *feeds], symbols=symbols)


def _again(given: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    if math.prod(shape) > MOST:
        return given
    return np.resize(given, shape) if given.size else np.zeros(shape, given.dtype)
