"""Fits a cost model to what tuning measured: predicted cycles are corrected by what a tile's sizes say."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from minitvm.lab import features
from minitvm.models import tune

weights = np.random.default_rng(0).normal(size=(128, 96)).astype("float32")
x, y = (
    helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [32, 128]), ("y", None))
)
product = helper.make_node("MatMul", ["x", "w"], ["y"])
model = helper.make_model(
    helper.make_graph([product], "one", [x], [y], [numpy_helper.from_array(weights, "w")]), ir_version=8
)

with tempfile.TemporaryDirectory() as folder:
    tune(model, Path(folder) / "records.jsonl", num_threads=1, most=12)
    rows = [row for row in features(Path(folder) / "records.jsonl") if row["seconds"]]

seconds = np.log([row["seconds"] for row in rows])
known = np.log([[row["cycles"], row["rows"], row["blocks"], np.e] for row in rows])
weight, *_ = np.linalg.lstsq(known, seconds, rcond=None)
for name, column in (("predicted", known[:, 0] - known[:, 0].mean()), ("fitted", known @ weight - seconds.mean())):
    error = np.exp(np.sqrt(np.mean((column - (seconds - seconds.mean())) ** 2)))
    print(f"{name:10} off by a factor of {error:.3f}, of {len(rows)} ways that were measured")
