"""The same operator in the forms that it had over time, and what the importer does with the differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_build import build, one_node, run, value

RNG = np.random.default_rng(5)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def case(
    op: str,
    opset: int,
    *inputs: np.ndarray,
    constants: dict[int, np.ndarray] | None = None,
    outputs: int = 1,
    **attributes: Any,
) -> Any:
    model = one_node(op, *inputs, opset=opset, constants=constants, outputs=outputs, **attributes)
    names = [v.name for v in model.graph.input]
    return pytest.param(model, dict(zip(names, inputs, strict=True)), id=f"{op}-{opset}")


X, IMAGE, POSITIVE = floats(2, 3, 4), floats(1, 4, 6, 8), np.abs(floats(2, 3, 4)) + 0.5
GAMMA = {i: np.abs(floats(4)) + 0.5 for i in range(1, 5)}

CASES = [
    case("ArgMax", 7, X, axis=1),
    case("ArgMax", 13, X, axis=-1, keepdims=0, select_last_index=1),
    case("AveragePool", 7, IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    case("AveragePool", 19, IMAGE, kernel_shape=[2, 2], dilations=[2, 2], ceil_mode=1, strides=[2, 2]),
    case("BatchNormalization", 7, IMAGE, constants=GAMMA),
    case("BatchNormalization", 15, IMAGE, constants=GAMMA, epsilon=1e-2),
    case("Cast", 9, X, to=onnx.TensorProto.INT32),
    case("Cast", 21, X, to=onnx.TensorProto.BOOL),
    case("Clip", 7, X, min=-0.5, max=0.25),
    case("Clip", 10, X, max=0.25),
    case("Clip", 11, X, constants={1: np.float32(-0.5)}),
    case("Clip", 13, ints(-4, 3, 9), constants={1: np.int64(-2), 2: np.int64(5)}),
    case("Clip", 13, X, np.float32(-0.5), np.float32(0.5)),
    case("Concat", 7, X, X, axis=1),
    case("Concat", 13, X, X, axis=-1),
    case("Conv", 7, IMAGE, constants={1: floats(5, 4, 3, 3), 2: floats(5)}, pads=[1, 0, 1, 2], strides=[2, 1]),
    case("Conv", 22, IMAGE, constants={1: floats(4, 1, 3, 3)}, group=4, auto_pad="SAME_LOWER", strides=[2, 2]),
    case("Conv", 11, floats(2, 4, 9), constants={1: floats(6, 2, 3), 2: floats(6)}, group=2, dilations=[2]),
    case("Conv", 11, floats(1, 2, 4, 5, 6), constants={1: floats(3, 2, 2, 3, 2)}, pads=[1, 1, 0, 0, 1, 1]),
    case("ConvTranspose", 7, IMAGE, constants={1: floats(4, 3, 3, 3), 2: floats(3)}, strides=[2, 2]),
    case("ConvTranspose", 11, floats(1, 4, 7), constants={1: floats(4, 2, 3)}, strides=[2], output_padding=[1]),
    case("CumSum", 11, X, constants={1: np.array(-1)}, exclusive=1, reverse=1),
    case("DequantizeLinear", 10, np.uint8([1, 200, 7]), constants={1: np.float32(0.1), 2: np.uint8(7)}),
    case(
        "DequantizeLinear",
        13,
        np.int8([[1, -2], [3, 4]]),
        constants={1: np.float32([0.1, 0.2]), 2: np.int8([1, 2])},
        axis=0,
    ),
    case("Dropout", 7, X, ratio=0.7),
    case("Dropout", 13, X, constants={1: np.float32(0.7)}),
    case("Flatten", 9, X, axis=2),
    case("Flatten", 21, X, axis=-1),
    case("Gather", 7, X, constants={1: np.array([[1, 0], [1, 1]])}, axis=1),
    case("Gather", 13, X, np.array([-1, 2]), axis=2),
    case("Gemm", 7, floats(2, 3), constants={1: floats(4, 3), 2: floats(4)}, transB=1, alpha=0.5, beta=2.0),
    case("Gemm", 13, floats(3, 2), constants={1: floats(3, 4), 2: floats(2, 1)}, transA=1),
    case("Hardmax", 11, X, axis=1),
    case("Hardmax", 13, X, axis=1),
    case("LogSoftmax", 7, X, axis=1),
    case("LogSoftmax", 13, X, axis=1),
    case("MaxPool", 8, IMAGE, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("MaxPool", 12, IMAGE, kernel_shape=[2, 2], dilations=[2, 2], pads=[1, 1, 0, 0], ceil_mode=1, strides=[2, 3]),
    case("Pad", 2 + 5, X, pads=[0, 1, 0, 2, 0, 1], value=1.5),
    case("Pad", 11, X, constants={1: ints(0, 1, 2, 1, 0, 1), 2: np.float32(-2)}),
    case("Pad", 18, X, constants={1: ints(0, 1, 0, 0, 0, 2)}, mode="edge"),
    case("Pow", 7, POSITIVE, constants={1: floats(4)}),
    case("Pow", 13, POSITIVE, constants={1: np.int64(2)}),
    case("Pow", 15, POSITIVE, constants={1: np.float32(0.5)}),
    case("Pow", 15, ints(2, 3, 5), constants={1: np.float32([2.5, 1, 0])}),
    case("ReduceMax", 11, X, axes=[0, 2]),
    case("ReduceMax", 18, X, constants={1: ints(-1)}, keepdims=0),
    case("ReduceMean", 7, X),
    case("ReduceSum", 11, X, axes=[-2], keepdims=0),
    case("ReduceSum", 13, X, constants={1: ints(0, 1)}),
    case("ReduceSum", 13, X, noop_with_empty_axes=1),
    case("ReduceL2", 18, X, constants={1: ints(1)}),
    case("Reshape", 7, X, constants={1: ints(0, -1)}),
    case("Reshape", 14, floats(2, 0, 3), constants={1: ints(0, 6)}, allowzero=1),
    case("Resize", 10, IMAGE, constants={1: np.float32([1, 1, 2, 1.5])}, mode="nearest"),
    case("Resize", 11, IMAGE, constants={1: np.float32([]), 2: np.float32([1, 1, 2, 2])}, mode="linear"),
    case(
        "Resize",
        13,
        IMAGE,
        constants={1: np.float32([]), 2: np.float32([]), 3: ints(1, 4, 9, 5)},
        mode="cubic",
        coordinate_transformation_mode="align_corners",
    ),
    case(
        "Resize",
        18,
        IMAGE,
        constants={1: np.float32([]), 2: np.float32([]), 3: ints(3, 5)},
        mode="linear",
        antialias=1,
        axes=[2, 3],
    ),
    case("Shape", 13, X),
    case("Shape", 15, X, start=-2),
    case("Slice", 7, X, starts=[0, 1], ends=[2, 100], axes=[0, 2]),
    case("Slice", 10, X, constants={1: ints(-1), 2: ints(-100), 3: ints(2), 4: ints(-2)}),
    case("Slice", 13, X, constants={1: ints(1, -3), 2: ints(2**62, -1)}),
    case("Softmax", 7, X, axis=1),
    case("Softmax", 11, X),
    case("Softmax", 13, X, axis=1),
    case("Split", 7, X, axis=2, outputs=2),
    case("Split", 11, X, axis=2, split=[1, 3], outputs=2),
    case("Split", 13, X, constants={1: ints(3, 1)}, axis=-1, outputs=2),
    case("Split", 18, X, axis=1, num_outputs=2, outputs=2),
    case("Squeeze", 11, floats(1, 3, 1), axes=[0]),
    case("Squeeze", 13, floats(1, 3, 1), constants={1: ints(-1)}),
    case("Squeeze", 13, floats(1, 3, 1)),
    case("TopK", 7, X, axis=2, k=2, outputs=2),
    case("TopK", 10, X, constants={1: ints(2)}, outputs=2),
    case("TopK", 11, X, constants={1: ints(3)}, largest=0, axis=1, outputs=2),
    case("Unsqueeze", 7, X, axes=[0, 4]),
    case("Unsqueeze", 13, X, constants={1: ints(-1, 1)}),
    case("Upsample", 7, IMAGE, scales=[1.0, 1.0, 2.0, 3.0]),
    case("Upsample", 9, IMAGE, constants={1: np.float32([1, 1, 2, 2])}, mode="nearest"),
]


def _oracle(model: onnx.ModelProto, feeds: dict[str, np.ndarray], dtypes: list[np.dtype]) -> list[Any]:
    """ONNX Runtime's outputs; it wants the outputs' types in the model, and refuses wrong ones."""
    runtime = pytest.importorskip("onnxruntime")
    for output, dtype in zip(model.graph.output, dtypes, strict=True):
        output.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {name: np.asarray(array) for name, array in feeds.items()}))


@pytest.mark.parametrize(("model", "feeds"), CASES)
def test_as_onnx_runtime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    found = run(model, feeds)
    expected = _oracle(model, feeds, [array.dtype for array in found])
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6)


def test_the_oldest_softmax_flattens() -> None:
    """Before opset 13 all dimensions from the axis on are one."""
    (old,), (new,) = (run(one_node("Softmax", X, opset=o, axis=1), {"x0": X}) for o in (11, 13))
    np.testing.assert_allclose(old.sum((1, 2)), 1, rtol=1e-6)
    np.testing.assert_allclose(new.sum(1), 1, rtol=1e-6)


MATMULS = [
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 5, 2, 3), (3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((2, 1, 2, 3), (5, 3, 4)),
    ((2, 5, 2, 3), (1, 1, 3, 4)),
    ((2, 3), (5, 3, 4)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((3,), (3,)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((0, 3), (3, 4)),
]


@pytest.mark.parametrize(("left", "right"), MATMULS)
def test_matmul_by_numpys_rule(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = floats(*left), floats(*right)
    (found,) = run(one_node("MatMul", a, b), {"x0": a, "x1": b})
    np.testing.assert_allclose(found, a @ b, rtol=1e-5, atol=1e-6, strict=True)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ij->", [(2, 3)]),
        ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)]),
        ("bij,bj->bi", [(2, 3, 4), (2, 4)]),
        ("ij,ji", [(2, 3), (3, 2)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [floats(*shape) for shape in shapes]
    model = one_node("Einsum", *operands, equation=equation)
    (found,) = run(model, {f"x{i}": a for i, a in enumerate(operands)})
    np.testing.assert_allclose(found, np.einsum(equation, *operands), rtol=1e-5, atol=1e-5, strict=True)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent_layers(op: str, direction: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    gates, count, hidden, states = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 1 + (direction == "bidirectional"), 5, 1
    states += op == "LSTM"
    x, h, c = floats(4, 2, 3), floats(count, 2, hidden), floats(count, 2, hidden)
    weights = {
        "w": floats(count, gates * hidden, 3),
        "r": floats(count, gates * hidden, hidden),
        "b": floats(count, 2 * gates * hidden),
    }
    node = onnx.helper.make_node(
        op, ["x", "w", "r", "b", "", "h", *["c"][: states - 1]], ["y", "yh", "yc"][: states + 1],
        hidden_size=hidden, direction=direction,
    )  # fmt: skip
    feeds = {"x": x, "h": h, "c": c}
    model = build([node], [value(n, a) for n, a in feeds.items()], list(node.output), weights)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for mine, theirs in zip(run(model, feeds), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5, strict=True)
