"""Whoever runs beside minitvm on a GPU: each a :class:`Runner`, or an error that says why it cannot."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.cuda_check.networks import CONFIG, FLOAT16, FLOAT32, TF32, model_of, network, sample, stored
from minitvm import GraphModule, Library, compile, cuda
from minitvm.passes.manager import PassContext
from minitvm.runtime.rounds import in_rotation

OWN = "minitvm"


class Runner(Protocol):
    def times(self, runs: int) -> list[float]:
        """Seconds of each of so many runs, between CUDA events."""

    def outputs(self) -> list[np.ndarray]:
        """Of the last run."""


# --- minitvm ------------------------------------------------------------------------------------------------------


def compiled(name: str, batch: int, precision: str, arch: str, libs: str = "", records: str = "") -> Library:
    shapes = {key: array.shape for key, array in sample(name).feed.items()} if name in stored() else None
    with PassContext(config={**CONFIG[precision], **({"minitvm.records": records} if records else {})}):
        target = f"cuda -arch={arch}" + (f" -libs={libs}" if libs else "")
        return compile(model_of(name, batch, precision), target, shape_dict=shapes)


class Own:
    """A library on the first GPU."""

    def __init__(self, library: Library, feed: Mapping[str, np.ndarray]) -> None:
        self.library, self.module = library, GraphModule(library["default"](cuda(0)))
        self.module.run(feed)

    def times(self, runs: int) -> list[float]:
        return list(self.module.instance.code.timed(self.module.run, runs))

    def outputs(self) -> list[np.ndarray]:
        return self.module.outputs()


# --- PyTorch ------------------------------------------------------------------------------------------------------


class Torch:
    """A network of PyTorch, on the first GPU where there is one; ``mode``: of ``torch.compile``, or none for eager."""

    def __init__(self, name: str, batch: int, precision: str, feed: Mapping[str, np.ndarray], mode: str = "") -> None:
        torch: Any = importlib.import_module("torch")
        self._torch, where = torch, "cuda" if torch.cuda.is_available() else "cpu"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == TF32
        torch.backends.cudnn.benchmark = True
        module = torch_module(model_of(name, batch, FLOAT32), network(name).heads).eval().to(where)
        (data,) = (torch.from_numpy(array).to(where) for array in feed.values())
        if precision == FLOAT16:
            module = module.half()
        if precision != FLOAT32 and data.ndim == 4:  # what its tensor cores want
            module = module.to(memory_format=torch.channels_last)
            data = data.contiguous(memory_format=torch.channels_last)
        self._run, self._data = torch.compile(module, mode=mode) if mode else module, data
        self._found: Any = None
        for _ in range(3):  # compiles, measures, captures
            self._once()

    def _once(self) -> None:
        with self._torch.inference_mode():
            self._found = self._run(self._data)

    def times(self, runs: int) -> list[float]:
        events = [self._torch.cuda.Event(enable_timing=True) for _ in range(runs + 1)]
        events[0].record()
        for event in events[1:]:
            self._once()
            event.record()
        self._torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]

    def outputs(self) -> list[np.ndarray]:
        return [self._found.cpu().numpy()]


def torch_module(model: onnx.ModelProto, heads: int) -> Any:
    """The network as somebody would write it for PyTorch: straight-line calls of ``torch.nn.functional``."""
    weights = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    if heads:
        return _Transformer.of([w for w in weights if w.size > 1 and w.dtype == np.float32], heads)
    return _translated(model)


class _Transformer:
    """Encoder layers with the weights of ``onnx_models.bert``, sixteen a layer in the order that it makes them."""

    @staticmethod
    def of(weights: list[np.ndarray], heads: int) -> Any:
        torch: Any = importlib.import_module("torch")
        f = torch.nn.functional

        class Layer(torch.nn.Module):  # type: ignore[misc]
            def __init__(self, given: list[np.ndarray]) -> None:
                super().__init__()
                for n, w in enumerate(given):
                    wanted = np.ascontiguousarray(w.T) if w.ndim == 2 else w
                    self.register_buffer(f"w{n}", torch.from_numpy(wanted.copy()))

            def forward(self, x: Any) -> Any:
                b, s, hidden = x.shape
                projected = ((self.w0, self.w1), (self.w2, self.w3), (self.w4, self.w5))
                parts = (f.linear(x, w, bias).view(b, s, heads, -1).transpose(1, 2) for w, bias in projected)
                mixed = f.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(b, s, hidden)
                x = x + f.linear(mixed, self.w6, self.w7)
                x = f.layer_norm(x, (hidden,), self.w8, self.w9, 1e-12)
                y = f.linear(f.gelu(f.linear(x, self.w10, self.w11)), self.w12, self.w13)
                return f.layer_norm(x + y, (hidden,), self.w14, self.w15, 1e-12)

        return torch.nn.Sequential(*(Layer(weights[n : n + 16]) for n in range(0, len(weights), 16)))


def _translated(model: onnx.ModelProto) -> Any:
    """Node by node, as a module whose ``forward`` is a line a node."""
    torch: Any = importlib.import_module("torch")
    fx: Any = importlib.import_module("torch.fx")
    root, graph, values = torch.nn.Module(), fx.Graph(), dict[str, Any]()
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values["data"] = graph.placeholder("data")
    for name, array in constants.items():
        if array.size > 1:
            root.register_buffer(name, torch.from_numpy(array.copy()))
            values[name] = graph.get_attr(name)
        else:
            values[name] = array.item()
    for node in model.graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        function, args, keywords = _call(torch, node.op_type, [values[name] for name in node.input], attributes)
        values[node.output[0]] = graph.call_function(function, tuple(args), keywords) if function else args[0]
    graph.output(values[model.graph.output[0].name])
    return fx.GraphModule(root, graph)


def _call(torch: Any, kind: str, args: list[Any], has: Mapping[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
    """A node of convolutional networks as a function of PyTorch, its arguments and options."""
    f = torch.nn.functional
    windows = {"stride": has.get("strides", [1, 1]), "padding": list(has.get("pads", [0, 0]))[:2]}
    match kind:
        case "Conv":
            return f.conv2d, args, {**windows, "groups": has["group"]}
        case "BatchNormalization":
            x, gamma, beta, mean, variance = args
            return f.batch_norm, [x, mean, variance, gamma, beta], {}
        case "MaxPool":
            return f.max_pool2d, [*args, has["kernel_shape"]], windows
        case "Gemm":
            return f.linear, args, {}
        case "GlobalAveragePool":
            return f.adaptive_avg_pool2d, [*args, 1], {}
        case "Flatten":
            return torch.flatten, [*args, 1], {}
        case "Identity":
            return None, args, {}
    return {"Relu": torch.relu, "Add": torch.add, "Clip": f.hardtanh}[kind], args, {}


# --- all ----------------------------------------------------------------------------------------------------------

MODES = {"eager": "", "reduce-overhead": "reduce-overhead", "max-autotune": "max-autotune"}
LIBRARIES = "libraries"
"""minitvm itself, with cuDNN and cuBLAS for convolutions and products."""


def peer(kind: str, name: str, batch: int, precision: str, arch: str, feed: Mapping[str, np.ndarray]) -> Runner:
    """One of ``MODES`` or ``LIBRARIES``; raises whatever stands in the way."""
    if kind == LIBRARIES:
        return Own(compiled(name, batch, precision, arch, "cudnn,cublas"), feed)
    if not importlib.import_module("torch").cuda.is_available():
        raise RuntimeError("PyTorch sees no GPU")
    return Torch(name, batch, precision, feed, MODES[kind])


def taken_in_turns(
    runners: Mapping[str, Runner], rounds: int, seconds: float, least: int = 2
) -> Iterator[tuple[str, list[float]]]:
    """Names and times: every round each runner for so many seconds, the order changed; a turn's first run is not
    counted."""
    runs = {name: _runs(runner.times, seconds, least) for name, runner in runners.items()}
    for turn in range(rounds):
        for name in in_rotation(runners, turn):
            yield name, runners[name].times(runs[name] + 1)[1:]


def _runs(times: Callable[[int], list[float]], seconds: float, least: int) -> int:
    return max(least, min(200, int(seconds / max(1e-6, min(times(3)[1:])))))
