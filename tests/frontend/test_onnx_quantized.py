"""Statically quantized models as ONNX Runtime's own tool writes them, in both of its formats, against ONNX Runtime."""

from __future__ import annotations

import itertools
import logging
import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_build import one_node, run
from onnx_oracle import compiled, onnx_runtime

from minitvm.session import InferenceSession

quantization = pytest.importorskip("onnxruntime.quantization")
TYPE = quantization.QuantType
RNG = np.random.default_rng(23)
IMAGE, ROWS, BATCHES = (1, 3, 8, 8), (3, 6), (2, 3, 6)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, output.split(), name=f"{op}_{output}", **attributes)


CONV = node("Conv", "x w", "c")
WEIGHTS = {"w": floats(3, 3, 1, 1)}
NETS: dict[str, tuple[list[onnx.NodeProto], tuple[int, ...], dict[str, np.ndarray]]] = {
    "conv": (
        [node("Conv", "x w b", "c", pads=[1] * 4), node("Relu", "c", "r"), node("Conv", "r w2", "y", strides=[2, 1])],
        IMAGE,
        {"w": floats(5, 3, 3, 3), "b": floats(5), "w2": floats(4, 5, 1, 1)},
    ),
    "depthwise": ([node("Conv", "x w", "y", group=3)], IMAGE, {"w": floats(3, 1, 3, 3)}),
    "conv of a row": ([node("Conv", "x w", "y")], (1, 3, 12), {"w": floats(4, 3, 3)}),
    "gemm": ([node("Gemm", "x w b", "y")], ROWS, {"w": floats(6, 4), "b": floats(4)}),
    "transposed gemm": ([node("Gemm", "x w b", "y", transB=1)], ROWS, {"w": floats(4, 6), "b": floats(4)}),
    "scaled gemm": ([node("Gemm", "x w", "y", transB=1, alpha=0.5)], ROWS, {"w": floats(4, 6)}),
    "matmul": ([node("MatMul", "x w", "h"), node("Add", "h b", "y")], BATCHES, {"w": floats(6, 4), "b": floats(4)}),
    "attention": (
        [
            node("MatMul", "x w", "q"),
            node("Transpose", "x", "t", perm=[0, 2, 1]),
            node("MatMul", "q t", "s"),
            node("Softmax", "s", "p"),
            node("MatMul", "p x", "y"),
        ],
        BATCHES,
        {"w": floats(6, 6)},
    ),
    "residual": ([CONV, node("Add", "c x", "y")], IMAGE, WEIGHTS),
    "gated": ([node("Sigmoid", "x", "s"), node("Mul", "x s", "y")], IMAGE, {}),
    "maxpool": ([CONV, node("MaxPool", "c", "y", kernel_shape=[2, 2], strides=[2, 2])], IMAGE, WEIGHTS),
    "averagepool": (
        [CONV, node("AveragePool", "c", "y", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 0])], IMAGE, WEIGHTS
    ),
    "global pool": ([CONV, node("GlobalAveragePool", "c", "y")], IMAGE, WEIGHTS),
    "concat": ([CONV, node("Concat", "c x", "y", axis=1)], IMAGE, WEIGHTS),
    "leaky": ([CONV, node("LeakyRelu", "c", "y", alpha=0.2)], IMAGE, WEIGHTS),
    "clip": (
        [CONV, node("Clip", "c lo hi", "d"), node("Conv", "d w", "y")], IMAGE,
        {**WEIGHTS, "lo": np.float32(0), "hi": np.float32(6)},
    ),
    "flat": ([CONV, node("Flatten", "c", "f"), node("MatMul", "f v", "y")], IMAGE, {**WEIGHTS, "v": floats(192, 4)}),
    "split": (
        [CONV, node("Split", "c", "a b", axis=2), node("Concat", "b a", "y", axis=2)], IMAGE, WEIGHTS
    ),
    "resize": (
        [CONV, node("Resize", "c - s", "y", mode="nearest")], IMAGE, {**WEIGHTS, "s": np.float32([1, 1, 2, 2])}
    ),
    "pad": ([CONV, node("Pad", "c p", "y")], IMAGE, {**WEIGHTS, "p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}),
    "gather": ([CONV, node("Gather", "c i", "y", axis=1)], IMAGE, {**WEIGHTS, "i": np.array([2, 0])}),
    "layer norm": ([node("LayerNormalization", "x g b", "y")], BATCHES, {"g": floats(6), "b": floats(6)}),
    "transposed conv": ([node("ConvTranspose", "x w", "y")], IMAGE, {"w": floats(3, 4, 3, 3)}),
    "softmax": ([node("MatMul", "x w", "h"), node("Softmax", "h", "y")], BATCHES, {"w": floats(6, 4)}),
}  # fmt: skip
WAYS = [  # activations, weights, per channel, reduced range
    (a, w, c, r)
    for (a, w), c, r in itertools.product(
        ((TYPE.QUInt8, TYPE.QUInt8), (TYPE.QUInt8, TYPE.QInt8), (TYPE.QInt8, TYPE.QInt8)), (False, True), (False, True)
    )
    if not (r and w == TYPE.QUInt8)
]
FORMATS = (quantization.QuantFormat.QDQ, quantization.QuantFormat.QOperator)


class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, inputs: np.ndarray) -> None:
        self.left = [{"x": x} for x in inputs]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


def quantized(
    name: str, kind: Any, way: Any, folder: pathlib.Path, **options: Any
) -> tuple[onnx.ModelProto, np.ndarray]:
    nodes, shape, weights = NETS[name]
    inputs = np.random.default_rng(list(NETS).index(name)).standard_normal((4, *shape)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), key) for key, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "a.onnx")
    activations, kinds, per_channel, reduced = way
    quantization.quantize_static(
        folder / "a.onnx", folder / "b.onnx", Reader(inputs[1:]), quant_format=kind, per_channel=per_channel,
        activation_type=activations, weight_type=kinds, reduce_range=reduced, extra_options=options,
    )  # fmt: skip
    return onnx.load(folder / "b.onnx"), inputs[0]


def check_steps(found: np.ndarray, expected: np.ndarray, model: onnx.ModelProto) -> None:
    """A rounding error may move a few elements by a step of a tensor's scale."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    scales = [numpy_helper.to_array(t) for t in model.graph.initializer if t.name.endswith("_scale")]
    step = max((scale.item() for scale in scales if scale.size == 1), default=1e-3)
    apart = np.abs(found - expected) / step
    assert apart.max() < 1.01 and (apart > 0.01).mean() < 0.1, (apart.max(), (apart > 0.01).mean())


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", list(NETS))
def test_as_onnx_runtime(name: str, kind: Any, tmp_path: pathlib.Path) -> None:
    """Every way in turn over the networks; through numpy, and one of them compiled."""
    first = list(NETS).index(name) * 2 + FORMATS.index(kind)
    for turn in range(2):
        model, x = quantized(name, kind, WAYS[(first + 3 * turn) % len(WAYS)], tmp_path)
        (expected,) = onnx_runtime(model, {"x": x})
        check_steps(run(model, {"x": x})[0], expected, model)
    check_steps(compiled(model, {"x": x})[0], expected, model)


@pytest.mark.parametrize("contributed", [False, True])
@pytest.mark.parametrize("activations", [TYPE.QUInt16, TYPE.QInt16])
def test_activations_of_16_bits(activations: Any, contributed: bool, tmp_path: pathlib.Path) -> None:
    """In ONNX's domain, and in ONNX Runtime's own where the tool is asked to."""
    for name in ("conv", "residual"):
        way = (activations, TYPE.QInt8, False, False)
        model, x = quantized(name, FORMATS[0], way, tmp_path, UseQDQContribOps=contributed)
        assert any(n.domain == "com.microsoft" for n in model.graph.node) == contributed
        (expected,) = onnx_runtime(model, {"x": x})
        check_steps(run(model, {"x": x})[0], expected, model)
        check_steps(compiled(model, {"x": x})[0], expected, model)


@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("right", ["int8", "uint8"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 3), (17, 33)])
def test_integer_products_of_every_sign(left: str, right: str, rows: int, columns: int) -> None:
    """Sums of 16 and 64 products of mixed signs are dot product instructions to LLVM.  Each depth for one number of
    rows."""
    rng = np.random.default_rng(5)
    for depth in (1, 4, 8, 15, 16, 17, 32, 48, 64, 128)[rows % 3 :: 3]:
        a, b = (
            rng.integers(np.iinfo(t).min, np.iinfo(t).max, s, dtype=t, endpoint=True)
            for t, s in ((left, (rows, depth)), (right, (depth, columns)))
        )
        for level in (0, 3):
            session = InferenceSession(one_node("MatMulInteger", a, constants={1: b}), opt_level=level)
            (found,) = session.run(None, {"x0": a})
            np.testing.assert_array_equal(found, a.astype("int32") @ b.astype("int32"))


@pytest.mark.parametrize(("opset", "how"), [(21, {}), (23, {}), (23, {"precision": 1}), (23, {"axis": 0})], ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_quotients_of_half_precision(opset: int, how: dict[str, int], dtype: str) -> None:
    """From opset 23 on rounded in the scale's dtype before they are integers, unless ``precision`` is another; before,
    as in ONNX Runtime, not at all."""
    x = np.outer(np.arange(-12, 13), np.float16([0.25, 0.75, 1, 3])).T.astype("float16")
    scale = np.float16([0.0645, 0.0101, 0.03, 0.11]) if "axis" in how else np.float16(0.0645)
    parameters = {1: scale, 2: np.full(scale.shape, 11, dtype)}
    model = one_node("QuantizeLinear", x, opset=opset, constants=parameters, **how)
    (expected,) = onnx_runtime(model, {"x0": x})
    half = np.rint(x / scale.reshape(-1, 1))
    assert (half != np.rint(x.astype("f8") / scale.reshape(-1, 1))).any()
    for level in (0, 3):
        (found,) = InferenceSession(model, opt_level=level).run(None, {"x0": x})
        np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("opset", [21, 23])
def test_quotients_of_bfloat16(opset: int) -> None:
    x, scale = np.array([3.0, 1.01, 2.7], ml_dtypes.bfloat16), np.array(0.0645, ml_dtypes.bfloat16)
    model = one_node("QuantizeLinear", x, opset=opset, constants={1: scale, 2: np.uint8(11)})
    exact = x.astype("float32") / scale.astype("float32")
    steps = exact.astype(ml_dtypes.bfloat16) if opset == 23 else exact
    (found,) = InferenceSession(model).run(None, {"x0": x})
    np.testing.assert_array_equal(found, (np.rint(steps.astype("float32")) + 11).astype("uint8"), strict=True)
