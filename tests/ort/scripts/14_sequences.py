"""Sequences in and out, as lists of arrays."""

import numpy as np
import onnxruntime as ort
from helper import sequences

session = ort.InferenceSession(sequences(), providers=["CPUExecutionProvider"])
print([(i.name, i.type) for i in session.get_inputs()], [(o.name, o.type) for o in session.get_outputs()])
parts = [np.array([1.0, 2.0], np.float32), np.array([3.0], np.float32), np.array([4.0, 5.0, 6.0], np.float32)]
whole, back, count = session.run(None, {"parts": parts, "more": np.array([7.0], np.float32)})
print(whole.tolist(), [b.tolist() for b in back], int(count))
