"""Free dimensions get sizes before the session is made."""

import numpy as np
import onnxruntime as ort
from helper import two_layers

so = ort.SessionOptions()
so.add_free_dimension_override_by_name("N", 4)
session = ort.InferenceSession(two_layers(), so, providers=["CPUExecutionProvider"])
print(session.get_inputs()[0].shape, session.get_outputs()[0].shape)
print(session.run(None, {"x": np.ones((4, 16), np.float32)})[0].shape)
try:
    session.run(None, {"x": np.ones((3, 16), np.float32)})
except Exception as e:
    print("refused", type(e).__name__ in ("InvalidArgument", "InputError"))

by_denotation = ort.SessionOptions()
by_denotation.add_free_dimension_override_by_denotation("DATA_BATCH", 2)
print(
    ort.InferenceSession(two_layers("DATA_BATCH"), by_denotation, providers=["CPUExecutionProvider"])
    .get_inputs()[0]
    .shape
)
