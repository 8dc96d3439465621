"""Weights given from outside the model, and an optimized model written for later."""

import os
import tempfile
import warnings

import numpy as np
import onnxruntime as ort
from helper import two_layers

x = np.ones((1, 16), np.float32)
options = ort.SessionOptions()
bias = ort.OrtValue.ortvalue_from_numpy(np.full(8, 10, np.float32))
options.add_initializer("b2", bias)
plain = ort.InferenceSession(two_layers(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
moved = ort.InferenceSession(two_layers(), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
print(plain.round(3).tolist(), moved.round(3).tolist())

with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
    warnings.simplefilter("ignore")
    options = ort.SessionOptions()
    options.optimized_model_filepath = os.path.join(folder, "optimized.onnx")
    ort.InferenceSession(two_layers(), options, providers=["CPUExecutionProvider"])
    print(os.path.getsize(options.optimized_model_filepath) > 0)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    path = os.path.join(folder, "optimized.onnx")
    again = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    print([i.name for i in again.get_inputs()], [o.name for o in again.get_outputs()])
    print(np.allclose(again.run(["y"], {"x": x})[0], plain, atol=1e-4))
