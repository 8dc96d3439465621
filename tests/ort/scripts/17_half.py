"""float16 in and out, and what OrtValue says of it."""

import numpy as np
import onnxruntime as ort
from helper import half_model

session = ort.InferenceSession(half_model(), providers=["CPUExecutionProvider"])
print(session.get_inputs()[0].type, session.get_outputs()[0].type)
x = np.linspace(-2, 2, 8, dtype=np.float16)[None]
(y,) = session.run(None, {"x": x})
print(y.dtype, np.allclose(y.astype(np.float32), 2 * np.maximum(x.astype(np.float32), 0) + 1, atol=1e-2))
value = ort.OrtValue.ortvalue_from_numpy(x)
print(value.data_type(), value.element_type(), value.tensor_size_in_bytes(), value.shape())
(out,) = session.run_with_ort_values(["y"], {"x": value})
print(out.data_type(), out.numpy().dtype, out.has_value(), out.is_tensor_sequence(), out.is_sparse_tensor())
bf16 = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros((2, 2), np.uint16), 16)
print(bf16.data_type(), bf16.element_type(), ort.OrtValue.ortvalue_from_shape_and_type([2, 3], 10).data_type())
