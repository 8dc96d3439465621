"""Serialized models: bytes, a path, a pathlib.Path, with weights in a file beside."""

import pathlib
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from helper import two_layers

model, again = onnx.load_from_string(two_layers()), onnx.load_from_string(two_layers())
x = np.arange(16, dtype=np.float32)[None] / 16
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "model.onnx")
    onnx.save(model, path)
    beside = pathlib.Path(folder, "beside.onnx")
    onnx.save(again, beside, save_as_external_data=True, location="weights.bin", size_threshold=0)
    for source in (model.SerializeToString(), str(path), path, str(beside)):
        session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
        print(type(source).__name__.replace("Posix", ""), session.run(None, {"x": x})[0].round(4).tolist())
