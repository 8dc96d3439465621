"""Peak memory of a session over a large model that meets several batch sizes, beside the size of the model's file."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BATCHES = (1, 2, 4, 8, 16)
WIDTH, CHANNELS, PIXELS = 2048, 512, 4
WEIGHTS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int8": TensorProto.INT8}


@dataclass(frozen=True)
class Peak:
    """Megabytes: of the file, of the process at its peak, and of the same process over a model of one small layer."""

    model: str
    runtime: str
    file: float
    peak: float
    empty: float

    def __str__(self) -> str:
        over = f"{self.peak / self.file:5.2f} x the file, {(self.peak - self.empty) / self.file:5.2f} x without"
        return f"{self.model:16} {self.runtime:12} file {self.file:6.1f} MB  peak {self.peak:7.1f} MB  {over} compiler"


def dense(layers: int, width: int = WIDTH, weights: str = "float32") -> onnx.ModelProto:
    """Fully connected layers of any batch; weights in other types than float32 are cast, or have a scale."""
    rng = np.random.default_rng(0)
    nodes, constants, x = [], [], "x"
    for i in range(layers):
        values = rng.standard_normal((width, width), dtype=np.float32) / float(np.sqrt(width))
        kept = (values * 256).astype("int8") if weights == "int8" else values.astype(weights)
        constants.append(numpy_helper.from_array(kept, f"w{i}"))
        if weights == "int8":
            constants.append(numpy_helper.from_array(np.float32(1 / 256), f"s{i}"))
            nodes.append(helper.make_node("DequantizeLinear", [f"w{i}", f"s{i}"], [f"f{i}"]))
        else:
            nodes.append(helper.make_node("Cast", [f"w{i}"], [f"f{i}"], to=TensorProto.FLOAT))
        nodes += [helper.make_node("MatMul", [x, f"f{i}"], [f"h{i}"]), helper.make_node("Relu", [f"h{i}"], [f"r{i}"])]
        x = f"r{i}"
    return _model(nodes, constants, ["n", width], x)


def convolutions(layers: int, channels: int = CHANNELS) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes, constants, x = [], [], "x"
    for i in range(layers):
        values = rng.standard_normal((channels, channels, 3, 3), dtype=np.float32) / float(np.sqrt(9 * channels))
        constants.append(numpy_helper.from_array(values, f"w{i}"))
        nodes.append(helper.make_node("Conv", [x, f"w{i}"], [f"h{i}"], kernel_shape=[3, 3], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"h{i}"], [f"r{i}"]))
        x = f"r{i}"
    return _model(nodes, constants, ["n", channels, PIXELS, PIXELS], x)


def _model(
    nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto], shape: list[int | str], y: str
) -> onnx.ModelProto:
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", y))
    graph = helper.make_graph(nodes, "g", [given], [made], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def peaks(runtimes: tuple[str, ...] = ("minitvm", "onnxruntime"), layers: int = 18) -> list[Peak]:
    """Each model, of 300 MB with 18 layers of floats, in each runtime."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path, small = pathlib.Path(folder, "m.onnx"), pathlib.Path(folder, "small.onnx")
        for name, make in {
            "dense": dense,
            "dense, float16": lambda n: dense(n, weights="float16"),
            "dense, int8": lambda n: dense(n, weights="int8"),
            "conv": lambda n: convolutions(n * 16 // 9),
        }.items():
            onnx.save(make(layers), path)
            onnx.save(convolutions(1, 16) if name == "conv" else dense(1, 32), small)
            size = path.stat().st_size / 1e6
            found += [Peak(name, r, size, peak_of(r, path), peak_of(r, small)) for r in runtimes]
    return found


def peak_of(runtime: str, path: pathlib.Path) -> float:
    """Megabytes that a process of its own had at most, the first time aside: then nothing is compiled."""
    command = [sys.executable, "-m", "benchmarks.memory", runtime, str(path)]
    runs = [subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True) for _ in range(2)]
    return float(json.loads(runs[-1].stdout))


def main(runtime: str, path: str) -> None:
    """One process: a session, five batch sizes, its own peak."""
    if runtime == "minitvm":
        from minitvm import InferenceSession

        session = InferenceSession(path, num_threads=1)
    else:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options)
    shape = session.get_inputs()[0].shape[1:]
    for batch in BATCHES:
        session.run(None, {"x": np.ones((batch, *shape), "float32")})
    print(peak_megabytes())


def peak_megabytes() -> float:
    """What was resident at most of this process."""
    status = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1e3


if __name__ == "__main__":
    main(*sys.argv[1:])
