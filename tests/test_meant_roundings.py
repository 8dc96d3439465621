"""What models mean by an order of operations: numbers that are added to round, sums that cancel, zeros with a sign.

At every level a chain of operators that IEEE 754 defines has the bits that ONNX Runtime gives it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import minitvm

ort = pytest.importorskip("onnxruntime")

LEVELS = (0, 1, 2, 3)
Node = tuple[str, Sequence[str]]


def model(nodes: Sequence[Node], constants: dict[str, Any], shape: Sequence[int], dtype: str = "float32") -> bytes:
    """Of ``x``; node ``i`` makes ``vi``, the last one the result."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    made = [helper.make_node(op, list(inputs), [f"v{i}"]) for i, (op, inputs) in enumerate(nodes)]
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info("x", kind, list(shape))],
        [helper.make_tensor_value_info(f"v{len(made) - 1}", kind, None)],
        [numpy_helper.from_array(np.asarray(value, dtype), name) for name, value in constants.items()],
    )
    found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(found.SerializeToString())


def reference(file: bytes, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return np.asarray(ort.InferenceSession(file, options).run(None, {"x": x})[0])


def at_level(file: bytes, level: int, x: np.ndarray) -> np.ndarray:
    return np.asarray(minitvm.InferenceSession(file, opt_level=level).run(None, {"x": x})[0])


def same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b)))


MAGIC = 12582912.0
X = np.array([0.3, 1.7, -2.4, 2.5, 1000.49, -0.0, 0.5, 1.5], np.float32)
ADD_TWICE: list[Node] = [("Add", ("x", "c")), ("Add", ("v0", "d"))]
IDIOMS: dict[str, tuple[list[Node], dict[str, float], np.ndarray]] = {
    "round": (ADD_TWICE, {"c": MAGIC, "d": -MAGIC}, X),
    "round and add": (ADD_TWICE, {"c": MAGIC, "d": -MAGIC + 128}, X),
    "round by subtracting": ([("Add", ("x", "c")), ("Sub", ("v0", "c"))], {"c": MAGIC}, X),
    "quantize": (
        [("Mul", ("x", "s")), ("Add", ("v0", "c")), ("Add", ("v1", "d")), ("Mul", ("v2", "t"))],
        {"s": 12.5, "c": MAGIC, "d": -MAGIC, "t": 0.08},
        X,
    ),
    "difference of large numbers": (
        [("Add", ("x", "c")), ("Mul", ("v0", "s"))],
        {"c": -1.6e6, "s": 123.456},
        (1.6e6 + np.array([0, 0.5, 1, 2, 3.25])).astype(np.float32),
    ),
    "bucket": (
        [("Add", ("x", "c")), ("Mul", ("v0", "s")), ("Floor", ("v1",))],
        {"c": 1.0, "s": 100.0},
        np.linspace(-1, 1, 2001).astype(np.float32),
    ),
    "bucket by two factors": (
        [("Mul", ("x", "c")), ("Mul", ("v0", "s")), ("Floor", ("v1",))],
        {"c": 0.1, "s": 10.0},
        np.arange(200, dtype=np.float32),
    ),
    "clamp by overflow": ([("Mul", ("x", "c")), ("Mul", ("v0", "s"))], {"c": 1e30, "s": 1e-30}, X * np.float32(1e10)),
    "flush by underflow": ([("Mul", ("x", "c")), ("Mul", ("v0", "s"))], {"c": 1e-30, "s": 1e30}, X * np.float32(1e-12)),
    "over a root": ([("Sqrt", ("x",)), ("Div", ("c", "v0")), ("Floor", ("v1",))], {"c": 9.0}, np.arange(99.0) ** 2),
}


@pytest.mark.parametrize("name", IDIOMS)
def test_an_order_of_operations_is_kept(name: str) -> None:
    nodes, constants, x = IDIOMS[name]
    x = x.astype(np.float32)
    file = model(nodes, constants, x.shape)
    want = reference(file, x)
    for level in LEVELS:
        np.testing.assert_array_equal(at_level(file, level, x), want, f"level {level}")


# --- around layers --------------------------------------------------------------------------------------------

ROUNDED_BEHIND: list[Node] = [
    ("Conv", ("x", "w")), ("Add", ("v0", "c")), ("Add", ("v1", "d")), ("Mul", ("v2", "s")),
]  # fmt: skip
ROUNDED_BEFORE: list[Node] = [
    ("Mul", ("x", "s")), ("Add", ("v0", "c")), ("Add", ("v1", "d")), ("Conv", ("v2", "w")),
]  # fmt: skip


@pytest.mark.parametrize("nodes", [ROUNDED_BEHIND, ROUNDED_BEFORE], ids=["behind", "before"])
@pytest.mark.parametrize("end", [-MAGIC, -MAGIC + 128])
def test_rounding_beside_a_layer_is_kept(nodes: list[Node], end: float) -> None:
    """Of whole and half weights, whose products are exact in any order."""
    rng = np.random.default_rng(0)
    x = rng.integers(-40, 40, (1, 4, 5, 5)).astype(np.float32) + np.float32(0.25)
    constants = {"w": rng.integers(-3, 4, (4, 4, 1, 1)) / 2, "c": MAGIC, "d": end, "s": 0.3}
    file = model(nodes, constants, x.shape)
    want = reference(file, x)
    for level in LEVELS:
        np.testing.assert_allclose(at_level(file, level, x), want, rtol=1e-6, atol=1e-5)


ONES = np.ones((1, 1, 3, 3))
RANGES = [
    ("float16", 300 * ONES, 1e-3 * ONES, 255),
    ("float16", 2e-3 * ONES, 1000 * ONES, 1e-5),
    ("float16", np.array([1, 2e-3]).reshape(1, 2, 1, 1), np.array([0, 1000]).reshape(1, 2, 1, 1), 1e-3),
    ("float32", 1e10 * ONES, 1e-30 * ONES, 1e30),
    ("float32", 1e-30 * ONES, 1e25 * ONES, 1e-15),
    ("float32", np.array([1, 1e-5]).reshape(1, 2, 1, 1), np.array([0, 1e35]).reshape(1, 2, 1, 1), 1e-35),
    ("float32", 1e-20 * ONES, 1e20 * ONES, np.inf),
]


@pytest.mark.parametrize("after", [True, False], ids=["after", "before"])
@pytest.mark.parametrize(("dtype", "weight", "x", "scale"), RANGES)
def test_scaled_weights_stay_in_their_range(
    dtype: str, weight: np.ndarray, x: np.ndarray, scale: float, after: bool
) -> None:
    nodes: list[Node] = [("Conv", ("x", "w")), ("Mul", ("v0", "s"))]
    if not after:
        nodes, x = [("Mul", ("x", "s")), ("Conv", ("v0", "w"))], x.astype(dtype)
    file = model(nodes, {"w": weight, "s": scale}, x.shape, dtype)
    found = [at_level(file, level, x.astype(dtype)).astype(np.float64) for level in LEVELS]
    for level in LEVELS[1:]:
        np.testing.assert_allclose(found[level], found[0], rtol=4e-3 if dtype == "float16" else 1e-5)


# --- chains of any operators -----------------------------------------------------------------------------------

NUMBERS = (
    0.0, -0.0, 1.0, -1.0, 0.1, 3.0, 100.0, -7.5, 1e-3, MAGIC, -MAGIC, 4097.0, 1e30, 1e-30, -1e20, 1e-20, 3e38, 1e-40,
)  # fmt: skip
BINARY, UNARY = ("Add", "Sub", "Mul", "Div"), ("Neg", "Abs", "Relu", "Floor", "Round", "Sqrt", "Reciprocal", "Sign")


def chain(rng: random.Random) -> tuple[list[Node], dict[str, float]]:
    """Some operators in a row; constants recur, their signs changed."""
    nodes, constants = list[Node](), dict[str, float]()
    for i in range(rng.randint(2, 6)):
        last = f"v{i - 1}" if i else "x"
        if rng.random() < 0.25:
            nodes.append((rng.choice(UNARY), (last,)))
            continue
        known = [-value for value in constants.values()] if rng.random() < 0.3 else []
        constants[f"c{i}"] = rng.choice(known or NUMBERS)
        other = rng.choice(("x", *(f"v{k}" for k in range(i)))) if rng.random() < 0.15 else f"c{i}"
        nodes.append((rng.choice(BINARY), (last, other) if rng.random() < 0.7 else (other, last)))
    return nodes, constants


def around(constants: Sequence[float]) -> np.ndarray:
    """Numbers near a model's constants, where sums cancel; ends of the range; ordinary ones."""
    with np.errstate(all="ignore"):
        ends = np.array([s * c for c in (*constants, 1.0, 0.5) for s in (1, -1)], np.float32)
        near = [ends, np.nextafter(ends, np.float32(np.inf)), ends * np.float32(1 + 1e-6), ends + np.float32(0.3)]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, -3e38, 0.3, 1.7, -2.4, 2.5, 1000.49]
    return np.concatenate([*near, ends / 2, np.array(special, np.float32)]).astype(np.float32)


@pytest.mark.parametrize("seed", range(24))
def test_chains_have_the_bits_of_ieee_754(seed: int) -> None:
    nodes, constants = chain(random.Random(seed))
    x = around(list(constants.values()))
    file = model(nodes, constants, x.shape)
    want = reference(file, x)
    for level in (0, 3):
        wrong = ~same_bits(at_level(file, level, x), want)
        assert not wrong.any(), f"level {level}: {nodes} {constants} of {x[wrong][:4]}"


# --- special numbers -------------------------------------------------------------------------------------------

SPECIAL = np.array(
    [0.0, -0.0, 1e-40, -1e-40, 1e-30, -1e-30, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3, -3.5, 88, -88, 1e10, -1e10]
    + [3e38, -3e38, np.inf, -np.inf, np.nan, 100, -104, MAGIC + 1, 0.1],
    np.float32,
)
SMOOTH = [
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Cos",
    "Cosh",
    "Erf",
    "Exp",
    "Log",
    "Sin",
    "Sinh",
    "Tan",
    "Tanh",
]
BENT = [
    "Abs",
    "Ceil",
    "Celu",
    "Elu",
    "Floor",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mish",
    "Neg",
    "Reciprocal",
    "Relu",
]
ALONE = [*SMOOTH, *BENT, "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "ThresholdedRelu"]
PAIRS = ["Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Max", "Min"]


def of_special_numbers(operators: Sequence[str], inputs: Sequence[np.ndarray]) -> bytes:
    """Each operator's result of the same inputs."""
    names = [f"x{i}" for i in range(len(inputs))]
    graph = helper.make_graph(
        [helper.make_node(op, names, [op]) for op in operators],
        "g",
        [helper.make_tensor_value_info(n, 1, a.shape) for n, a in zip(names, inputs, strict=True)],
        [helper.make_tensor_value_info(op, 1, None) for op in operators],
    )
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    )


@pytest.mark.parametrize(("operators", "count"), [(ALONE, 1), (PAIRS, 2)])
def test_special_numbers_come_out_as_in_onnx_runtime(operators: list[str], count: int) -> None:
    """Zeros with their signs; ONNX Runtime's own Max and Min of two zeros are now the first, now the second."""
    inputs = [grid.reshape(-1).copy() for grid in np.meshgrid(*[SPECIAL] * count)]
    file, feeds = of_special_numbers(operators, inputs), {f"x{i}": a for i, a in enumerate(inputs)}
    wanted = ort.InferenceSession(file).run(None, feeds)
    for level in (0, 3):
        found = minitvm.InferenceSession(file, opt_level=level).run(None, feeds)
        for op, have, want in zip(operators, found, wanted, strict=True):
            zeros = (have == 0) & (want == 0) & (op not in ("Max", "Min"))
            assert (np.signbit(have) == np.signbit(want))[zeros].all(), f"{op} at level {level}: the sign of a zero"
            np.testing.assert_allclose(have, want, rtol=3e-5, atol=1e-29, err_msg=f"{op} at level {level}")
