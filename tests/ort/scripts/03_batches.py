"""A data set in batches, the last one smaller."""

import numpy as np
import onnxruntime
from helper import two_layers

options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
session = onnxruntime.InferenceSession(two_layers(), options, providers=onnxruntime.get_available_providers()[-1:])
data = np.random.default_rng(0).normal(size=(37, 16)).astype(np.float32)
predictions = []
for start in range(0, len(data), 8):
    batch = data[start : start + 8]
    predictions.append(session.run(None, {session.get_inputs()[0].name: batch})[0])
whole = np.concatenate(predictions)
print(whole.shape, whole.dtype, [len(p) for p in predictions])
print(np.bincount(whole.argmax(1), minlength=8).tolist(), round(float(whole.mean()), 4))
