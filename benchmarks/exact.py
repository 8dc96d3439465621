"""A model's outputs in float64, by minitvm's numpy references: what every runtime's error is counted from."""

from __future__ import annotations

import hashlib
import os
import pathlib
import subprocess
import sys

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from benchmarks import worker
from benchmarks.runtimes import Feeds
from minitvm import config
from minitvm.frontend import from_onnx
from minitvm.ir.evaluate import evaluate

FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE


def widen(graph: onnx.GraphProto) -> None:
    """Makes float64 of whatever is float32: weights, inputs, outputs, constants, casts."""
    tensors = [*graph.initializer, *(a.t for node in graph.node for a in node.attribute)]
    for tensor in tensors:
        if tensor.data_type == FLOAT:
            wide = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == FLOAT:
            value.type.tensor_type.elem_type = DOUBLE
    del graph.value_info[:]
    for attribute in (a for node in graph.node for a in node.attribute):
        if attribute.name == "to" and attribute.i == FLOAT:
            attribute.i = DOUBLE
        if attribute.type == AttributeProto.GRAPH:
            widen(attribute.g)
    _keep_float32(graph)


def _keep_float32(graph: onnx.GraphProto) -> None:
    """What operators demand: scales of Resize are float32; and float32 is what they make where nothing is said."""
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        if node.op_type == "ConstantOfShape" and not node.attribute:
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
        if node.op_type == "Resize" and len(node.input) > 2 and node.input[2]:
            narrow = f"{node.output[0]}/float32"
            graph.node.append(helper.make_node("Cast", [node.input[2]], [narrow], to=FLOAT))
            node.input[2] = narrow
        graph.node.append(node)


def outputs(path: pathlib.Path, feeds: Feeds) -> list[np.ndarray]:
    """The model's outputs, computed in float64 from inputs and weights in float32."""
    model = onnx.load(path)
    widen(model.graph)
    wide = {name: a.astype(np.float64) if a.dtype == np.float32 else a for name, a in feeds.items()}
    module, params = from_onnx(model, {name: array.shape for name, array in wide.items()})
    found = evaluate(module, *({**params, **wide}[p.name] for p in module.main.params))
    return [np.asarray(one) for one in (found if isinstance(found, tuple) else (found,))]


def kept(path: pathlib.Path, timeout: float) -> pathlib.Path | None:
    """A file of the outputs for the inputs beside a model, made by a process of its own or found in the cache;
    ``None`` where there are none: an operator has no float64, or it took too long."""
    digest = hashlib.sha256(path.read_bytes() + path.with_suffix(".npz").read_bytes()).hexdigest()
    folder = (config.cache_dir() or path.parent) / "float64"
    file, new = folder / f"{digest}.npz", path.with_suffix(".exact.npz")
    if not file.exists():
        command = [sys.executable, "-m", "benchmarks.exact", str(path), str(new)]
        try:
            subprocess.run(command, env=worker.environment(), capture_output=True, check=True, timeout=timeout)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return None
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f"{os.getpid()}.npz"
        beside.write_bytes(new.read_bytes())
        beside.replace(file)
    return file


if __name__ == "__main__":
    np.savez(sys.argv[2], *outputs(pathlib.Path(sys.argv[1]), worker.read_feeds(sys.argv[1])))
