"""Text as input and output."""

import numpy as np
import onnxruntime as ort
from helper import text_model

session = ort.InferenceSession(text_model(), providers=["CPUExecutionProvider"])
print(session.get_inputs()[0].type, session.get_outputs()[0].type)
words = np.array([["Hello", "World"], ["of", "ONNX"]])
lower, codes = session.run(None, {"words": words})
print(lower.tolist(), lower.dtype == object, codes.tolist())
(lower,) = session.run(["lower"], {"words": words.astype(object)})
print(lower.tolist())
