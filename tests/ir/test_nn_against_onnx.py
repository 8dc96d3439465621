"""References of the nn operators against ONNX Runtime: one node each, the same numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import minitvm.ir.ops  # noqa: F401  (registers the operators)
from minitvm.ir.op import OPS

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is the judge here")

_rng = np.random.default_rng(77)


def _f(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return _rng.uniform(low, high, shape).astype("float32")


@dataclass
class Case:
    """Our operator on ``args``, and the ONNX operator on ``feeds`` (``args`` where there are none)."""

    name: str
    attributes: dict[str, Any]
    args: tuple[np.ndarray, ...]
    onnx_type: str
    onnx_attributes: dict[str, Any]
    feeds: tuple[np.ndarray | None, ...] = ()
    outputs: int = 1
    opset: int = 19
    rename: dict[int, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}-{self.onnx_attributes}"


def _conv(x: tuple[int, ...], w: tuple[int, ...], groups: int = 1, **window: Any) -> Case:
    """``window``: strides, padding, dilation, as lists."""
    onnx_names = {"strides": "strides", "padding": "pads", "dilation": "dilations"}
    given = {onnx_names[k]: v for k, v in window.items()}
    name = f"nn.conv{len(x) - 2}d"
    return Case(name, {**window, "groups": groups}, (_f(*x), _f(*w)), "Conv", {**given, "group": groups})


def _deconv(x: tuple[int, ...], w: tuple[int, ...], groups: int = 1, **window: Any) -> Case:
    onnx_names = {"strides": "strides", "padding": "pads", "dilation": "dilations", "output_padding": "output_padding"}
    given = {onnx_names[k]: v for k, v in window.items()}
    name = f"nn.conv{len(x) - 2}d_transpose"
    return Case(name, {**window, "groups": groups}, (_f(*x), _f(*w)), "ConvTranspose", {**given, "group": groups})


def _pool(
    kind: str, x: tuple[int, ...], ceil_mode: bool = False, include_pad: bool | None = None, **window: Any
) -> Case:
    onnx_names = {"pool_size": "kernel_shape", "strides": "strides", "padding": "pads", "dilation": "dilations"}
    given: dict[str, Any] = {onnx_names[k]: v for k, v in window.items()}
    ours: dict[str, Any] = {**window, "ceil_mode": ceil_mode}
    if include_pad is not None:
        ours["count_include_pad"] = include_pad
        given["count_include_pad"] = int(include_pad)
    onnx_type = "MaxPool" if kind == "max" else "AveragePool"
    return Case(f"nn.{kind}_pool{len(x) - 2}d", ours, (_f(*x),), onnx_type, {**given, "ceil_mode": int(ceil_mode)})


WINDOWS = [
    _conv((2, 3, 9, 8), (4, 3, 3, 2)),
    _conv((1, 4, 9, 8), (6, 2, 3, 3), groups=2, strides=[2, 1], padding=[1, 0, 2, 1]),
    _conv((1, 4, 9, 8), (8, 1, 3, 3), groups=4, dilation=[2, 2], padding=[2, 2, 2, 2]),
    _conv((2, 3, 12), (4, 3, 4), strides=[3], padding=[2, 1]),
    _conv((1, 2, 5, 6, 4), (3, 2, 2, 3, 2), strides=[2, 1, 1], padding=[0, 1, 0, 1, 1, 0]),
    _deconv((2, 3, 4, 5), (3, 2, 3, 3), strides=[2, 2], padding=[1, 1, 0, 1], output_padding=[1, 0]),
    _deconv((1, 4, 4, 5), (4, 3, 2, 3), groups=2, strides=[1, 3], dilation=[2, 1]),
    _deconv((1, 2, 7), (2, 3, 4), strides=[2], padding=[1, 1]),
    _deconv((1, 2, 3, 3, 2), (2, 2, 2, 2, 2), strides=[2, 1, 2]),
    _pool("max", (1, 2, 9, 8), pool_size=[3, 2], strides=[2, 2], padding=[1, 0, 1, 1]),
    _pool("max", (1, 2, 9, 8), pool_size=[2, 2], dilation=[2, 3]),
    _pool("max", (1, 2, 10, 8), ceil_mode=True, pool_size=[3, 3], strides=[2, 3], padding=[1, 1, 1, 1]),
    _pool("max", (1, 2, 9), pool_size=[3], strides=[2]),
    _pool("max", (1, 2, 5, 6, 4), pool_size=[2, 3, 2], strides=[1, 2, 2]),
    _pool("avg", (1, 2, 9, 8), pool_size=[3, 2], strides=[2, 2], padding=[1, 0, 1, 1]),
    _pool("avg", (1, 2, 9, 8), include_pad=True, pool_size=[3, 3], padding=[1, 2, 1, 0]),
    _pool("avg", (1, 2, 10, 8), ceil_mode=True, pool_size=[3, 3], strides=[2, 3]),
    _pool("avg", (1, 2, 10, 8), True, True, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1]),
    _pool("avg", (1, 2, 9, 9), include_pad=False, pool_size=[3, 3], dilation=[2, 2], padding=[1, 1, 1, 1]),
    _pool("avg", (1, 2, 5, 6, 4), pool_size=[2, 3, 2], strides=[1, 2, 2], padding=[1, 1, 0, 0, 1, 0]),
    Case("nn.global_avg_pool2d", {}, (_f(2, 3, 5, 4),), "GlobalAveragePool", {}),
    Case("nn.global_max_pool2d", {}, (_f(2, 3, 5, 4),), "GlobalMaxPool", {}),
]


def _norms() -> list[Case]:
    x, gamma, beta = _f(2, 6, 4, 5), _f(6), _f(6)
    mean, var = _f(6), _f(6, low=0.1)
    return [
        Case("nn.batch_norm", {"epsilon": 1e-3}, (x, gamma, beta, mean, var), "BatchNormalization", {"epsilon": 1e-3}),
        Case("nn.instance_norm", {"epsilon": 0.01}, (x, gamma, beta), "InstanceNormalization", {"epsilon": 0.01}),
        Case("nn.group_norm", {"num_groups": 3}, (x, gamma, beta), "GroupNormalization", {"num_groups": 3}, opset=21),
        Case("nn.layer_norm", {"epsilon": 0.1}, (_f(2, 3, 6), gamma, beta), "LayerNormalization", {"epsilon": 0.1}),
        Case("nn.lrn", {"size": 3, "alpha": 0.3, "bias": 1.5}, (x,), "LRN", {"size": 3, "alpha": 0.3, "bias": 1.5}),
        Case("nn.l2_normalize", {"axis": 1}, (x,), "LpNormalization", {"axis": 1, "p": 2}),
    ]


def _quantized() -> list[Case]:
    x, scale = _f(3, 40, low=-9, high=9), _f(3, low=0.01, high=0.05)
    zero = _rng.integers(-20, 20, 3, "int8")
    q = _rng.integers(-128, 127, (3, 40), "int8", endpoint=True)
    blocks = (q, _f(3, 5, low=0.01, high=0.05), _rng.integers(-20, 20, (3, 5), "int8"))
    ties = np.arange(-300, 300, 1).astype("float32") / 2
    return [
        Case("qnn.quantize", {"axis": 0}, (x, scale, zero), "QuantizeLinear", {"axis": 0}),
        Case("qnn.quantize", {"out_dtype": "uint8"}, (ties, np.float32(1), np.uint8(3)), "QuantizeLinear", {}),
        Case("qnn.dequantize", {"axis": 0}, (q, scale, zero), "DequantizeLinear", {"axis": 0}),
        Case("qnn.dequantize", {}, (q, np.float32(0.3), np.int8(-7)), "DequantizeLinear", {}),
        Case("qnn.dequantize_blocks", {"block": 8}, blocks, "DequantizeLinear", {"block_size": 8}, opset=21),
    ]


def _resizes() -> list[Case]:
    x = _f(1, 2, 5, 6)
    methods = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
    cases = []
    for mode, method in methods.items():
        for coordinates in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
            for size in ((10, 9), (3, 4), (1, 7)):
                ours = {"size": size, "method": method, "coordinate_transformation_mode": coordinates}
                theirs = {"mode": mode, "coordinate_transformation_mode": coordinates}
                if mode == "nearest":
                    ours["rounding_method"] = theirs["nearest_mode"] = "round_prefer_floor"
                if mode == "cubic":
                    ours["cubic_alpha"] = -0.75
                feeds = (x, None, None, np.array([1, 2, *size], "int64"))
                cases.append(Case("image.resize2d", ours, (x,), "Resize", theirs, feeds))
    for scales in ((2.0, 1.5), (0.6, 0.7), (1.3, 2.6)):
        size = tuple(int(np.floor(n * s)) for n, s in zip(x.shape[2:], scales, strict=True))
        for rounding in ("floor", "ceil", "round_prefer_ceil"):
            ours = {"size": size, "scales": scales, "method": "nearest_neighbor", "rounding_method": rounding}
            feeds = (x, None, np.array([1, 1, *scales], "float32"))
            cases.append(
                Case("image.resize2d", ours, (x,), "Resize", {"mode": "nearest", "nearest_mode": rounding}, feeds)
            )
        ours = {"size": size, "scales": scales}
        cases.append(Case("image.resize2d", ours, (x,), "Resize", {"mode": "linear"}, feeds))
    return cases


def _rest() -> list[Case]:
    x, image = _f(2, 3, 4), _f(2, 12, 4, 6)
    pads = ((1, 0), (2, 1), (0, 3))
    flat = np.array([1, 2, 0, 0, 1, 3], "int64")
    return [
        Case("nn.softmax", {"axis": 1}, (x,), "Softmax", {"axis": 1}),
        Case("nn.log_softmax", {"axis": -1}, (x * 30,), "LogSoftmax", {"axis": -1}),
        Case("nn.leaky_relu", {"alpha": 0.2}, (x,), "LeakyRelu", {"alpha": 0.2}),
        Case("nn.prelu", {"axis": 1}, (x, (slope := _f(3))), "PRelu", {}, (x, slope.reshape(3, 1))),
        Case("nn.relu", {}, (x,), "Relu", {}),
        Case("nn.pad", {"pad_width": pads}, (x, np.float32(1.5)), "Pad", {}, (x, flat, np.float32(1.5))),
        Case("nn.pad", {"pad_width": pads, "pad_mode": "edge"}, (x,), "Pad", {"mode": "edge"}, (x, flat)),
        Case("nn.pad", {"pad_width": pads, "pad_mode": "reflect"}, (x,), "Pad", {"mode": "reflect"}, (x, flat)),
        Case("nn.depth_to_space", {"block_size": 2}, (image,), "DepthToSpace", {"blocksize": 2}),
        Case(
            "nn.depth_to_space",
            {"block_size": 2, "mode": "CRD"},
            (image,),
            "DepthToSpace",
            {"blocksize": 2, "mode": "CRD"},
        ),
        Case("nn.space_to_depth", {"block_size": 2}, (image,), "SpaceToDepth", {"blocksize": 2}),
        Case("nn.dense", {}, ((a := _f(3, 5)), (b := _f(4, 5))), "Gemm", {"transB": 1}, (a, b)),
        Case("nn.matmul", {"transpose_a": True}, ((a := _f(5, 3)), (b := _f(5, 4))), "Gemm", {"transA": 1}, (a, b)),
        Case("nn.batch_matmul", {"transpose_b": False}, (_f(2, 3, 5), _f(1, 5, 4)), "MatMul", {}),
    ]


def _recurrent() -> list[Case]:
    steps, batch, features, hidden = 4, 2, 3, 5
    x, h0, c0 = _f(steps, batch, features), _f(batch, hidden), _f(batch, hidden)
    cases = []
    for direction in ("forward", "reverse"):
        for name, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
            w, r = _f(gates * hidden, features), _f(gates * hidden, hidden)
            bias, recurrent_bias, peephole = _f(gates * hidden), _f(gates * hidden), _f(3 * hidden)
            both = np.concatenate([bias, recurrent_bias])
            feeds = [x, w[None], r[None], both[None], None, h0[None]]
            theirs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
            ours: dict[str, Any] = {"reverse": direction == "reverse"}
            inner = recurrent_bias if name != "GRU" else 0
            args = [x @ w.T + bias + inner, r]
            if name == "GRU":
                theirs["linear_before_reset"] = int(direction == "forward")
                ours["linear_before_reset"] = direction == "forward"
                args.append(recurrent_bias)
            args.append(h0)
            if name == "LSTM":
                args += [c0, peephole]
                feeds += [c0[None], peephole[None]]
            outputs = 3 if name == "LSTM" else 2
            case = Case(f"nn.{name.lower()}", ours, tuple(args), name, theirs, tuple(feeds), outputs)
            case.rename = {0: lambda y: y[:, 0], **{n: lambda h: h[0] for n in range(1, outputs)}}
            cases.append(case)
    return cases


CASES = [*WINDOWS, *_norms(), *_quantized(), *_resizes(), *_rest(), *_recurrent()]


def _judged(case: Case) -> list[np.ndarray]:
    """What ONNX Runtime computes."""
    feeds = [None if v is None else np.asarray(v) for v in case.feeds or case.args]
    names = [f"i{n}" if v is not None else "" for n, v in enumerate(feeds)]
    results = [f"o{n}" for n in range(case.outputs)]
    node = helper.make_node(case.onnx_type, names, results, **case.onnx_attributes)
    weights = [numpy_helper.from_array(v, n) for n, v in zip(names[1:], feeds[1:], strict=True) if v is not None]
    x = helper.make_tensor_value_info(names[0], helper.np_dtype_to_tensor_dtype(feeds[0].dtype), feeds[0].shape)
    graph = helper.make_graph([node], "one", [x], [onnx.ValueInfoProto(name=r) for r in results], initializer=weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {names[0]: feeds[0]})
    return [case.rename.get(n, lambda v: v)(v) for n, v in enumerate(found)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_what_onnx_runtime_computes(case: Case) -> None:
    result = OPS[case.name](**case.attributes).reference(*map(np.asarray, case.args))
    found = result if isinstance(result, tuple) else (result,)
    for have, want in zip(found, _judged(case), strict=False):
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=2e-6 * max(1.0, float(np.abs(want).max())))
