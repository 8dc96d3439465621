"""Small networks through ONNX Runtime's own quantization and optimization tools: the models that people come with."""

from __future__ import annotations

import logging
import pathlib
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from benchmarks.graph import Graph
from benchmarks.sequences import attention
from minitvm import InferenceSession
from minitvm.errors import MiniTVMError

Feeds: TypeAlias = "dict[str, np.ndarray]"
Network: TypeAlias = "tuple[onnx.ModelProto, Feeds]"

# --- networks -------------------------------------------------------------------------------------------------


def _image(channels: int = 3, size: int = 16) -> Feeds:
    return {"data": np.random.default_rng(1).normal(0, 1, (1, channels, size, size)).astype(np.float32)}


def convolutions() -> Network:
    g = Graph(1)
    x = g.node("Relu", [g.norm(g.conv("data", 3, 16, 3), 16)])
    x = g.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = g.node("LeakyRelu", [g.conv(x, 16, 24, 3, bias=True)], alpha=0.1)
    both = [g.node("Sigmoid", [g.conv(x, 24, 8, 1, bias=True)]), g.node("Relu", [g.conv(x, 24, 8, 3, bias=True)])]
    x = g.node("AveragePool", [g.node("Concat", both, axis=1)], kernel_shape=[2, 2], strides=[2, 2])
    return g.model(g.node("Softmax", [g.classify(x, 16, 10)], axis=-1), (1, 3, 16, 16)), _image()


def depthwise() -> Network:
    """Inverted residuals with squeeze-and-excitation."""
    g = Graph(2)
    x = g.relu6(g.norm(g.conv("data", 3, 16, 3, 2), 16))
    y = g.relu6(g.norm(g.conv(x, 16, 32, 1), 32))
    y = g.relu6(g.norm(g.conv(y, 32, 32, 3, groups=32), 32))
    gate = g.node("Relu", [g.conv(g.node("GlobalAveragePool", [y]), 32, 8, 1, bias=True)])
    y = g.node("Mul", [y, g.node("Sigmoid", [g.conv(gate, 8, 32, 1, bias=True)])])
    x = g.node("Add", [g.norm(g.conv(y, 32, 16, 1), 16), x])
    return g.model(g.classify(x, 16, 10), (1, 3, 16, 16)), _image()


def residual() -> Network:
    g = Graph(3)
    x = g.node("Relu", [g.norm(g.conv("data", 3, 16, 3), 16)])
    for before, after in ((16, 16), (16, 32)):
        y = g.node("Relu", [g.norm(g.conv(x, before, after, 3, after // before), after)])
        y = g.norm(g.conv(y, after, after, 3), after)
        short = x if before == after else g.norm(g.conv(x, before, after, 1, 2), after)
        x = g.node("Relu", [g.node("Add", [y, short])])
    return g.model(g.classify(x, 32, 10), (1, 3, 16, 16)), _image()


def perceptron() -> Network:
    g = Graph(4)
    x = g.node("Relu", [g.linear("data", 64, 48)])
    x = g.node("Gemm", [x, g.normal((32, 48), 0.15), g.normal((32,), 0.1)], transB=1)
    x = g.linear(g.node("Tanh", [x]), 32, 10)
    feeds = {"data": np.random.default_rng(2).normal(0, 1, (4, 64)).astype(np.float32)}
    return g.model(g.node("Softmax", [x], axis=-1), (4, 64)), feeds


def transformer() -> Network:
    g, (length, hidden, heads) = Graph(5), (8, 32, 4)
    x = g.layer_norm("data", hidden)
    for _ in range(2):
        x = g.layer_norm(g.node("Add", [x, attention(g, x, 1, length, hidden, heads)]), hidden)
        y = g.linear(g.gelu(g.linear(x, hidden, 64)), 64, hidden)
        x = g.layer_norm(g.node("Add", [y, x]), hidden)
    feeds = {"data": np.random.default_rng(3).normal(0, 1, (1, length, hidden)).astype(np.float32)}
    return g.model(x, (1, length, hidden)), feeds


def recurrent() -> Network:
    """An LSTM in both directions, then a GRU."""
    g, (length, before, hidden) = Graph(6), (6, 16, 12)
    x, width = g.node("Transpose", ["data"], perm=[1, 0, 2]), before
    for kind, gates, directions in (("LSTM", 4, 2), ("GRU", 3, 1)):
        shapes = ((directions, gates * hidden, width), (directions, gates * hidden, hidden))
        weights = [g.normal(shape, 0.3) for shape in shapes] + [g.normal((directions, 2 * gates * hidden), 0.1)]
        direction = "bidirectional" if directions == 2 else "forward"
        y = g.node(kind, [x, *weights], hidden_size=hidden, direction=direction)
        width = directions * hidden
        flat = g.node("Transpose", [y], perm=[0, 2, 1, 3])
        x = g.node("Reshape", [flat, g.weight(np.array([length, 2, width], np.int64))])
    feeds = {"data": np.random.default_rng(4).normal(0, 1, (2, length, before)).astype(np.float32)}
    return g.model(g.linear(x, width, 5), (2, length, before)), feeds


def embedding() -> Network:
    """Words and places looked up, normalised, mixed and averaged."""
    g, (length, words, width) = Graph(7), (12, 50, 32)
    known = g.node("Gather", [g.normal((words, width), 1.0), "data"])
    place = g.node("Gather", [g.normal((length, width), 1.0), g.weight(np.arange(length)[None])])
    x = g.layer_norm(g.node("Add", [known, place]), width)
    x = g.node("Relu", [g.linear(x, width, 64)])
    total = g.node("ReduceSum", [x, g.weight(np.array([1]))], keepdims=0)
    x = g.linear(g.node("Mul", [total, g.weight(np.float32(1 / length))]), 64, 8)
    model = g.model(g.node("Softmax", [x], axis=-1), (2, length))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    return model, {"data": np.random.default_rng(5).integers(0, words, (2, length))}


NETWORKS: dict[str, Callable[[], Network]] = {
    network.__name__: network
    for network in (convolutions, depthwise, residual, perceptron, transformer, recurrent, embedding)
}

# --- tools ----------------------------------------------------------------------------------------------------

Tool: TypeAlias = "Callable[[onnx.ModelProto, Feeds, pathlib.Path], onnx.ModelProto]"


class _Calibration:
    """What ``quantize_static`` reads its feeds from: three, of other scales."""

    def __init__(self, feeds: Feeds) -> None:
        factors = (1.0, 0.5, 1.25)
        self.left = [{n: a * np.float32(f) if a.dtype.kind == "f" else a for n, a in feeds.items()} for f in factors]

    def get_next(self) -> Feeds | None:
        return self.left.pop() if self.left else None


def _static(form: str, activations: str, weights: str, per_channel: bool = False, **options: Any) -> Tool:
    def tool(model: onnx.ModelProto, feeds: Feeds, folder: pathlib.Path) -> onnx.ModelProto:
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

        quantize_static(
            model,
            folder / "made.onnx",
            _Calibration(feeds),
            quant_format=QuantFormat[form],
            per_channel=per_channel,
            activation_type=QuantType[activations],
            weight_type=QuantType[weights],
            extra_options=options,
        )
        return onnx.load(folder / "made.onnx")

    return tool


def _dynamic(model: onnx.ModelProto, feeds: Feeds, folder: pathlib.Path) -> onnx.ModelProto:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(model, folder / "made.onnx", per_channel=True)
    return onnx.load(folder / "made.onnx")


def _optimized(before: Tool | None = None) -> Tool:
    """What ONNX Runtime makes of a model for this kind of machine."""

    def tool(model: onnx.ModelProto, feeds: Feeds, folder: pathlib.Path) -> onnx.ModelProto:
        import onnxruntime

        model = before(model, feeds, folder) if before else model
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.optimized_model_filepath = str(folder / "optimized.onnx")
        options.log_severity_level = 4
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(folder / "optimized.onnx")

    return tool


def _few_bits(model: onnx.ModelProto, feeds: Feeds, folder: pathlib.Path) -> onnx.ModelProto:
    with _tensors_of_onnx():
        from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

        config = DefaultWeightOnlyQuantConfig(
            block_size=16, is_symmetric=False, op_types_to_quantize=("MatMul", "Gather")
        )
        quantizer = MatMulNBitsQuantizer(model, algo_config=config)
        quantizer.process()
    made: onnx.ModelProto = quantizer.model.model
    return made


@contextmanager
def _tensors_of_onnx() -> Iterator[None]:
    """That quantizer reads and writes tensors by a package of its own; onnx has all it asks for."""
    stand_in: Any = types.ModuleType("onnx_ir")
    stand_in.from_proto = lambda tensor: types.SimpleNamespace(numpy=lambda: numpy_helper.to_array(tensor))
    stand_in.Tensor = lambda array, name: numpy_helper.from_array(array, name)
    stand_in.serde = types.SimpleNamespace(serialize_tensor=lambda tensor: tensor)
    known = sys.modules.setdefault("onnx_ir", stand_in)
    try:
        yield
    finally:
        if known is stand_in:
            del sys.modules["onnx_ir"]


def _half(model: onnx.ModelProto, feeds: Feeds, folder: pathlib.Path) -> onnx.ModelProto:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    made: onnx.ModelProto = convert_float_to_float16(model)
    return made


def _transformer_optimizer(model: onnx.ModelProto, feeds: Feeds, folder: pathlib.Path) -> onnx.ModelProto:
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    options = FusionOptions("bert")
    options.enable_shape_inference = False  # needs packages that nothing else here does
    sizes = {"num_heads": 4, "hidden_size": 32}
    made: onnx.ModelProto = optimize_model(model, "bert", **sizes, opt_level=0, optimization_options=options).model
    return made


TOOLS: dict[str, Tool] = {
    "QDQ": _static("QDQ", "QUInt8", "QInt8"),
    "QDQ per channel": _static("QDQ", "QInt8", "QInt8", per_channel=True, ActivationSymmetric=False),
    "QDQ 16 bits": _static("QDQ", "QUInt16", "QUInt8", WeightSymmetric=False),
    "QOperator": _static("QOperator", "QUInt8", "QInt8", per_channel=True),
    "dynamic": _dynamic,
    "4 bits": _few_bits,
    "float16": _half,
    "transformers": _transformer_optimizer,
    "optimized": _optimized(),
    "QDQ, optimized": _optimized(_static("QDQ", "QUInt8", "QInt8")),
    "dynamic, optimized": _optimized(_dynamic),
}


@cache
def network(name: str) -> Network:
    return NETWORKS[name]()


def made(name: str, tool: str) -> tuple[onnx.ModelProto, Feeds]:
    """The network ``name`` as ``tool`` makes it, and inputs for it."""
    model, feeds = network(name)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for level in ("root", "onnxruntime"):
        logging.getLogger(level).setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = TOOLS[tool](copy, dict(feeds), pathlib.Path(folder))
    half = {i.name for i in found.graph.input if i.type.tensor_type.elem_type == TensorProto.FLOAT16}
    return found, {n: a.astype(np.float16) if n in half else a for n, a in feeds.items()}


# --- what becomes of them -------------------------------------------------------------------------------------

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "made-models.md"
FLOAT32, FLOAT16 = 1e-4, 2e-3
"""How far results may be from ONNX Runtime's, as a share of the largest: float16 has digits for 5e-4 a rounding."""


@dataclass(frozen=True)
class Outcome:
    """``error`` is that of minitvm, or the largest difference as a share of what is allowed, where it is more."""

    error: str
    host_calls: tuple[str, ...]

    def __str__(self) -> str:
        if self.error:
            return self.error
        return f"right; Python: {', '.join(self.host_calls)}" if self.host_calls else "right"


def outcome(name: str, tool: str) -> Outcome:
    """Runs a model with minitvm and, as the file says, without more optimisations, with ONNX Runtime."""
    model, feeds = made(name, tool)
    expected = onnx_runtime(model, feeds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # operators in Python are part of the outcome
            session = InferenceSession(model, num_threads=1)
        found = session.run(None, feeds)
    except MiniTVMError as error:
        return Outcome(f"refused: {error.message}", ())
    excess = max(_excess(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    calls = tuple(dict.fromkeys(call.op for call in session.host_calls))
    return Outcome(f"differs: {excess:.3g}" if excess > 1 else "", calls)


def onnx_runtime(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(array) for array in session.run(None, feeds)]


def _excess(found: np.ndarray, expected: np.ndarray) -> float:
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return float("inf")
    allowed = FLOAT16 if found.dtype == np.float16 else FLOAT32
    distance = np.abs(found.astype(np.float64) - expected).max()
    return float(distance / (allowed * np.abs(expected).max()))


TEMPLATE = """# What the tools of ONNX Runtime make

{count} models: {networks} small networks through {tools} of onnxruntime {version}'s own ways to quantize and optimize,
compiled at level 3 on one thread and compared with ONNX Runtime on the same file, its optimisations off (they change
what it computes: its integer softmax is up to a step beside the quantized one). `python -m benchmarks made` makes this
page; the tests hold half of the models to it.

**{right} are right, {compiled} of them as kernels only.** A result is right where no number is further off than
{single:g} of the largest ({half:g} in float16).

| tool | {heading} |
|{rule}|
{rows}
"""


def page(found: Mapping[tuple[str, str], Outcome]) -> str:
    """The text of ``docs/made-models.md``, of outcomes by network and tool."""
    import onnxruntime

    return TEMPLATE.format(
        count=len(found),
        networks=len(NETWORKS),
        tools=len(TOOLS),
        version=onnxruntime.__version__,
        right=sum(not o.error for o in found.values()),
        compiled=sum(not o.error and not o.host_calls for o in found.values()),
        single=FLOAT32,
        half=FLOAT16,
        heading=" | ".join(NETWORKS),
        rule="---|" * len(NETWORKS) + "---",
        rows="\n".join(row(tool, found) for tool in TOOLS),
    )


def row(tool: str, found: Mapping[tuple[str, str], Outcome]) -> str:
    return f"| {tool} | {' | '.join(str(found[name, tool]) for name in NETWORKS)} |"
