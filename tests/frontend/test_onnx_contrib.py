"""The operators of ONNX Runtime's own domain, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_build import build, run, value

RNG = np.random.default_rng(13)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def whole(low: int, high: int, *shape: int, dtype: str = "int64") -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def scale(value: float) -> np.ndarray:
    return np.array(value, np.float32)


X = floats(2, 3, 4)
HALVES = np.linspace(-8, 8, 2 * 3 * 4).reshape(X.shape).astype(np.float16)
IMAGE, KERNEL = floats(1, 4, 7, 6), floats(5, 4, 3, 3)
BYTES, MORE = whole(0, 256, 5, 8, dtype="uint8"), whole(-128, 128, 8, 6, dtype="int8")
QKV, MASK = [floats(2, 3, 8) for _ in range(3)], np.array([[1, 1, 0], [1, 1, 1]], np.int32)
PAST = floats(2, 2, 4, 4)
ANGLES = np.arange(12, dtype=np.float32)[:, None] * np.float32([[1, 0.1]])
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)
TABLES = [floats(20, 8), floats(9, 8), floats(2, 8)]
CASES = [
    ("Gelu", [X], 1, {}),
    ("BiasGelu", [X, floats(4)], 1, {}),
    ("FastGelu", [X], 1, {}),
    ("FastGelu", [X, floats(4)], 1, {}),
    ("QuickGelu", [X], 1, {}),
    ("QuickGelu", [X], 1, {"alpha": 1.5}),
    ("FusedMatMul", [X, floats(2, 5, 4)], 1, {"transB": 1, "alpha": 0.5}),
    ("FusedMatMul", [X, floats(3, 5)], 1, {"transA": 1}),
    ("FusedMatMul", [floats(3, 2, 4), floats(4, 2, 5)], 1, {"transBatchA": 1, "transBatchB": 1}),
    (
        "FusedMatMul",
        [floats(4, 2, 3), floats(5, 2, 4)],
        1,
        dict.fromkeys(("transA", "transB", "transBatchA", "transBatchB"), 1),
    ),
    ("FusedMatMul", [300 * HALVES, 300 * HALVES[0]], 1, {"transB": 1, "alpha": 0.1}),
    ("TransposeMatMul", [X, floats(2, 5, 4)], 1, {"transB": 1}),
    ("FastGelu", [HALVES], 1, {}),
    ("FastGelu", [HALVES, HALVES[0, 0]], 1, {}),
    ("SkipLayerNormalization", [X, floats(2, 3, 4), floats(4)], 1, {}),
    ("SkipLayerNormalization", [X, floats(2, 3, 4), floats(4), floats(4), floats(4)], 4, {"epsilon": 1e-3}),
    ("SkipLayerNormalization", [5000 * HALVES, 5000 * HALVES, HALVES[0, 0]], 1, {}),
    ("SkipSimplifiedLayerNormalization", [X, floats(2, 3, 4), floats(4)], 1, {"epsilon": 1e-5}),
    ("SkipSimplifiedLayerNormalization", [X, floats(2, 3, 4), floats(4), floats(4)], 4, {"epsilon": 1e-3}),
    ("FusedConv", [IMAGE, KERNEL, floats(5)], 1, {"activation": "Relu", "pads": [1, 1, 1, 1]}),
    ("FusedConv", [IMAGE, KERNEL], 1, {"activation": "LeakyRelu", "activation_params": [0.3]}),
    (
        "FusedConv",
        [IMAGE, KERNEL, None, floats(1, 5, 5, 4)],
        1,
        {"activation": "Clip", "activation_params": [-1.0, 2.0]},
    ),
    ("FusedConv", [IMAGE, KERNEL], 1, {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]}),
    ("FusedGemm", [X[0], floats(5, 4), floats(5)], 1, {"transB": 1, "activation": "Tanh"}),
    ("FusedGemm", [X[0], floats(4, 5)], 1, {"alpha": 0.5, "activation": "LeakyRelu", "activation_alpha": 0.2}),
    ("Trilu", [X, np.array(1)], 1, {"upper": 0}),
    ("Pad", [X[0], np.array([0, 1, 2, 0])], 1, {}),
    ("Range", [np.array(1, np.int32), np.array(9, np.int32), np.array(2, np.int32)], 1, {}),
    ("Range", [np.array(1.5, np.float32), np.array(6, np.float32)], 1, {}),
    ("Unique", [np.float32([2, 1, 1, 3, 4, 3])], 3, {}),
    ("GridSample", [IMAGE, floats(1, 3, 4, 2)], 1, {"mode": "bilinear", "padding_mode": "border"}),
    ("ExpandDims", [X, np.array(1, np.int32)], 1, {}),
    (
        "EmbedLayerNormalization",
        [
            whole(0, 20, 2, 5, dtype="int32"),
            whole(0, 2, 2, 5, dtype="int32"),
            *TABLES,
            floats(8),
            floats(8),
            whole(0, 2, 2, 5, dtype="int32"),
        ],
        3,
        {"epsilon": 1e-5},
    ),
    (
        "EmbedLayerNormalization",
        [whole(0, 20, 2, 5, dtype="int32"), None, *TABLES[:2], None, floats(8), floats(8)],
        2,
        {},
    ),
    ("Attention", [X, floats(4, 24), floats(24)], 1, {"num_heads": 2}),
    ("Attention", [X, floats(4, 24), floats(24), MASK], 2, {"num_heads": 2, "unidirectional": 1, "scale": 0.3}),
    ("Attention", [X, floats(4, 24), floats(24), np.array([2, 3], np.int32)], 1, {"num_heads": 2}),
    ("Attention", [X, floats(4, 24), floats(24), np.array([2, 3, 0, 1], np.int32)], 1, {"num_heads": 2}),
    ("Attention", [X, floats(4, 24), floats(24), None, floats(2, 2, 2, 5, 4)], 2, {"num_heads": 2}),
    ("Attention", [X, floats(4, 20), floats(20)], 1, {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}),
    ("Attention", [X, floats(4, 24), floats(24), whole(0, 2, 2, 3, 3, dtype="int32")], 1, {"num_heads": 2}),
    ("MultiHeadAttention", QKV, 3, {"num_heads": 2}),
    ("MultiHeadAttention", [*QKV, floats(24), MASK, floats(1, 2, 3, 3)], 1, {"num_heads": 2, "unidirectional": 1}),
    ("MultiHeadAttention", [*QKV, None, None, None, PAST, floats(2, 2, 4, 4)], 3, {"num_heads": 2}),
    ("MultiHeadAttention", [QKV[0], PAST, floats(2, 2, 4, 4)], 1, {"num_heads": 2}),
    ("RotaryEmbedding", [QKV[0], np.array([[0, 1, 2], [4, 5, 3]]), COS, SIN], 1, {}),
    ("RotaryEmbedding", [QKV[0], np.array([2]), COS, SIN], 1, {"interleaved": 1}),
    ("RotaryEmbedding", [floats(2, 2, 3, 8), np.array([2]), COS, SIN], 1, {"rotary_embedding_dim": 4, "num_heads": 2}),
    ("RotaryEmbedding", [floats(2, 3, 0), np.array([2]), COS, SIN], 1, {}),
    ("DynamicQuantizeMatMul", [X[0], MORE[:4], scale(0.02), np.int8(3), floats(6)], 1, {}),
    ("DynamicQuantizeMatMul", [X[0], MORE[:4], floats(6), whole(-5, 5, 6, dtype="int8")], 1, {}),
    ("MatMulIntegerToFloat", [BYTES, MORE, scale(0.1), scale(0.2), np.uint8(120), np.int8(4), floats(6)], 1, {}),
    ("MatMulIntegerToFloat", [BYTES, MORE, scale(0.1), floats(6), np.uint8(120)], 1, {}),
    ("MatMulInteger16", [whole(-300, 300, 3, 4, dtype="int16"), whole(-300, 300, 4, 2, dtype="int16")], 1, {}),
    (
        "QAttention",
        [
            whole(0, 256, 2, 3, 4, dtype="uint8"),
            whole(-128, 128, 4, 24, dtype="int8"),
            floats(24),
            scale(0.01),
            scale(0.02),
            None,
            np.uint8(120),
            np.int8(2),
        ],
        1,
        {"num_heads": 2, "unidirectional": 1},
    ),
    ("QLinearSoftmax", [BYTES, scale(0.1), np.uint8(100), scale(1 / 256), np.uint8(0)], 1, {"axis": 1, "opset": 13}),
    ("QLinearSoftmax", [MORE, scale(0.07), np.int8(3), scale(0.003), np.int8(-128)], 1, {"axis": 0, "opset": 12}),
    (
        "QLinearGlobalAveragePool",
        [whole(0, 256, 1, 4, 3, 5, dtype="uint8"), scale(0.1), np.uint8(9), scale(0.13), np.uint8(7)],
        1,
        {"channels_last": 1},
    ),
    (
        "QLinearConv",
        [
            whole(0, 256, 1, 6, 5, 3, dtype="uint8"),
            scale(0.1),
            np.uint8(9),
            whole(-128, 128, 4, 3, 3, 3, dtype="int8"),
            scale(0.05),
            np.int8(0),
            scale(2.5),
            np.uint8(7),
        ],
        1,
        {"channels_last": 1},
    ),
    (
        "MatMulNBits",
        [floats(3, 40), whole(0, 256, 5, 3, 8, dtype="uint8"), floats(15)],
        1,
        {"K": 40, "N": 5, "bits": 4, "block_size": 16},
    ),
    (
        "MatMulNBits",
        [
            floats(3, 40),
            whole(0, 256, 5, 3, 8, dtype="uint8"),
            floats(15),
            whole(0, 256, 10, dtype="uint8"),
            None,
            floats(5),
        ],
        1,
        {"K": 40, "N": 5, "bits": 4, "block_size": 16},
    ),
    (
        "MatMulNBits",
        [floats(3, 32), whole(0, 256, 5, 2, 16, dtype="uint8"), floats(5, 2)],
        1,
        {"K": 32, "N": 5, "bits": 8, "block_size": 16},
    ),
    (
        "MatMulNBits",
        [floats(3, 32), whole(0, 256, 5, 2, 4, dtype="uint8"), floats(5, 2)],
        1,
        {"K": 32, "N": 5, "bits": 2, "block_size": 16},
    ),
    (
        "GatherBlockQuantized",
        [whole(0, 256, 20, 16, dtype="uint8"), whole(0, 20, 2, 3), floats(20, 2)],
        1,
        {"block_size": 16, "bits": 4, "quantize_axis": 1},
    ),
    (
        "GatherBlockQuantized",
        [whole(0, 256, 20, 32, dtype="uint8"), whole(0, 20, 2, 3), floats(20, 2), whole(0, 256, 20, 2, dtype="uint8")],
        1,
        {"block_size": 16, "bits": 8, "quantize_axis": 1},
    ),
]
GROUPED = {"num_heads": 4, "kv_num_heads": 2}
TURNS = np.arange(12, dtype=np.float32)[:, None] * np.logspace(0, -2, 8, dtype=np.float32)
TABLE = [np.cos(TURNS), np.sin(TURNS)]
GQA = [floats(2, 3, 64), floats(2, 3, 32), floats(2, 3, 32)]
ALL, OLD, ENDS, TOTAL = [a[:1] for a in GQA], [floats(1, 2, 5, 16), floats(1, 2, 5, 16)], np.int32([7]), np.int32(8)
TURNED = {**GROUPED, "do_rotary": 1, "rotary_interleaved": 1, "softcap": 2.0}
ONE, OLDER = [a[:, :1] for a in GQA], [floats(2, 2, 5, 16), floats(2, 2, 5, 16)]
CASES += [
    ("GroupQueryAttention", [*GQA, None, None, np.int32([2, 2]), np.int32(3)], 3, GROUPED),
    ("GroupQueryAttention", [*ALL, *OLD, ENDS, TOTAL], 3, {**GROUPED, "local_window_size": 4}),
    ("GroupQueryAttention", [*ONE, *OLDER, np.int32([5, 3]), np.int32(6), *TABLE], 3, {**GROUPED, "do_rotary": 1}),
    ("GroupQueryAttention", [np.concatenate(ALL, 2), None, None, *OLD, ENDS, TOTAL, *TABLE], 3, TURNED),
    (
        "GroupQueryAttention",
        [*ALL, *OLD, ENDS, TOTAL, None, None, None, floats(1, 4, 3, 8)],
        3,
        {**GROUPED, "scale": 0.3},
    ),
]
LSTM = [
    floats(2, 2, 3),
    whole(-128, 128, 2, 3, 16, dtype="int8"),
    whole(-128, 128, 2, 4, 16, dtype="int8"),
    floats(2, 32),
    None,
    floats(2, 2, 4),
    floats(2, 2, 4),
    floats(2, 12),
]
CASES += [
    (
        "DynamicQuantizeLSTM",
        [*LSTM, scale([0.01, 0.02]), whole(0, 4, 2, dtype="int8"), scale([0.015, 0.01]), np.zeros(2, np.int8)],
        3,
        {"hidden_size": 4, "direction": "bidirectional"},
    ),
    (
        "DynamicQuantizeLSTM",
        [
            LSTM[0],
            *(a[:1] for a in LSTM[1:4]),
            None,
            None,
            None,
            None,
            0.01 + abs(floats(1, 16)) / 50,
            np.zeros((1, 16), np.int8),
            scale([0.015]),
            np.zeros(1, np.int8),
        ],
        1,
        {"hidden_size": 4, "direction": "reverse"},
    ),
]


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "attributes"), CASES, ids=[f"{op}-{i}" for i, (op, *_) in enumerate(CASES)]
)
def test_as_onnx_runtime(op: str, inputs: list[np.ndarray | None], outputs: int, attributes: dict[str, Any]) -> None:
    """Weights and their scales are constants, as in every file; so are shapes."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    given = {f"x{i}": np.asarray(a) for i, a in enumerate(inputs) if a is not None}
    constant = FIXED.get(op, ())
    feeds = {n: a for n, a in given.items() if int(n[1:]) not in constant}
    check(op, names, feeds, {n: a for n, a in given.items() if n not in feeds}, outputs, attributes)


FIXED = {
    "GroupQueryAttention": (6,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "ExpandDims": (1,),
    "DynamicQuantizeMatMul": (1, 2, 3, 4),
    "MatMulIntegerToFloat": (1, 3, 5, 6),
    "QAttention": (1, 2, 3, 4, 6, 7),
    "MatMulNBits": (1, 2, 3, 4, 5),
    "GatherBlockQuantized": (0, 2, 3),
    "QLinearConv": (1, 2, 3, 4, 5, 6, 7),
    "DynamicQuantizeLSTM": (1, 2, 3, 7, 8, 9, 10, 11),
    "QLinearSoftmax": (1, 2, 3, 4),
    "QLinearReduceMean": (1, 2, 3, 4),
    "QLinearGlobalAveragePool": (1, 2, 3, 4),
}
"""Inputs that are constants of the model."""
UNREAD = {"SkipLayerNormalization": (1, 2), "SkipSimplifiedLayerNormalization": (1, 2)}
"""Outputs that nobody computes."""


def check(
    op: str,
    names: list[str],
    feeds: dict[str, np.ndarray],
    weights: dict[str, np.ndarray],
    outputs: int,
    attributes: dict[str, Any],
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    made = ["" if i in UNREAD.get(op, ()) else f"y{i}" for i in range(outputs)]
    node = onnx.helper.make_node(op, names, made, domain="com.microsoft", **attributes)
    model = build([node], [value(n, a) for n, a in feeds.items()], [n for n in made if n], weights)
    for output in model.graph.output:
        output.ClearField("type")
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1  # sequences are quantized by threads
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for mine, theirs in zip(run(model, feeds), session.run(None, feeds), strict=True):
        half = theirs.dtype == np.float16
        np.testing.assert_allclose(mine, theirs, rtol=1e-3 if half else 1e-4, atol=1e-6 if half else 1e-5, strict=True)


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention over heads in the second last dimension, which are joined."""
    q, k, v = (np.swapaxes(x, 1, 2) for x in (q, k, v))
    mixed = softmax(q @ np.swapaxes(k, 2, 3) / np.float32(q.shape[3] ** 0.5)) @ v
    return np.swapaxes(mixed, 1, 2).reshape(q.shape[0], q.shape[2], -1)


def normed(x: np.ndarray, groups: int) -> np.ndarray:
    """(batch, channels, ...) normalised in groups of channels."""
    parts = x.reshape(x.shape[0], groups, -1)
    parts = (parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + 1e-5)
    return np.asarray(parts.reshape(x.shape))


SCORES, BIAS, PACKED, GAMMA = floats(2, 3, 4, 5), floats(2, 1, 1, 5), floats(2, 3, 2, 3, 4), floats(4)
NHWC = np.ascontiguousarray(IMAGE.transpose(0, 2, 3, 1))
BESIDE = (GAMMA[:, None, None], GAMMA[::-1, None, None])
FORMULAS = [
    ("BiasSoftmax", [SCORES, BIAS], {"axis": 3, "is_inner_broadcast": 1}, softmax(SCORES + BIAS)),
    ("BiasAdd", [IMAGE, GAMMA[:, None, None], IMAGE], {}, 2 * IMAGE + GAMMA[:, None, None]),
    ("MultiHeadAttention", [PACKED], {"num_heads": 2}, attended(*np.moveaxis(PACKED, 3, 0))),
    (
        "MultiHeadAttention",
        [QKV[0], PACKED[:, :, :, :2]],
        {"num_heads": 2},
        attended(QKV[0].reshape(2, 3, 2, 4), *np.moveaxis(PACKED[:, :, :, :2], 3, 0)),
    ),
    (
        "GroupNorm",
        [IMAGE, GAMMA, GAMMA[::-1].copy()],
        {"groups": 2, "activation": 0, "channels_last": 0},
        normed(IMAGE, 2) * BESIDE[0] + BESIDE[1],
    ),
    (
        "SkipGroupNorm",
        [NHWC, GAMMA, np.zeros(4, np.float32), NHWC, np.ones(4, np.float32)],
        {"groups": 2, "activation": 1},
        (lambda y: y / (1 + np.exp(-y)))(normed(2 * IMAGE + 1, 2) * BESIDE[0]).transpose(0, 2, 3, 1),
    ),
    (
        "QLinearReduceMean",
        [BYTES, scale(0.1), np.uint8(100), scale(0.06), np.uint8(90)],
        {"axes": [1], "keepdims": 0},
        np.clip(np.rint((BYTES.astype(np.float32) - 100).mean(1) * 0.1 / 0.06) + 90, 0, 255).astype(np.uint8),
    ),
    ("NhwcMaxPool", [NHWC], {"kernel_shape": [7, 6]}, NHWC.max((1, 2), keepdims=True)),
    ("NhwcConv", [NHWC, KERNEL[:, :, :1, :1].copy()], {}, np.tensordot(NHWC, KERNEL[:, :, 0, 0], (3, 1))),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "expected"), FORMULAS, ids=[op for op, *_ in FORMULAS])
def test_what_onnx_runtime_has_no_cpu_kernel_for(
    op: str, inputs: list[np.ndarray], attributes: dict[str, Any], expected: np.ndarray
) -> None:
    feeds = {f"x{i}": np.asarray(a) for i, a in enumerate(inputs)}
    node = onnx.helper.make_node(op, list(feeds), ["y"], domain="com.microsoft", **attributes)
    (found,) = run(build([node], [value(n, a) for n, a in feeds.items()], ["y"]), feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, strict=True)


@pytest.mark.parametrize("op", ["Gelu", "BiasGelu", "FastGelu", "QuickGelu"])
def test_small_results_of_float16(op: str) -> None:
    """1 plus what is almost -1 has no digits in float16."""
    x, bias = np.linspace(-4.5, 4, 18, dtype=np.float16).reshape(1, 18), np.full(18, 0.125, np.float16)
    feeds = {"x": x, "bias": bias} if "B" in op else {"x": x}
    node = onnx.helper.make_node(op, list(feeds), ["y"], domain="com.microsoft")
    model = build([node], [value(n, a) for n, a in feeds.items()], ["y"])
    (found,) = run(model, feeds)
    wide = {n: a.astype(np.float64) for n, a in feeds.items()}
    (exact,) = run(build([node], [value(n, a) for n, a in wide.items()], ["y"]), wide)
    np.testing.assert_allclose(found, exact, rtol=3e-3, atol=6e-8)
