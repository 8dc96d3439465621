"""Values shared with numpy by DLPack, without copies; utilities of the module."""

import numpy as np
import onnxruntime as ort
from helper import two_layers

session = ort.InferenceSession(two_layers(), providers=["CPUExecutionProvider"])
x = np.random.default_rng(3).normal(size=(2, 16)).astype(np.float32)
value = ort.OrtValue.from_dlpack(x)
print(value.data_ptr() == x.ctypes.data, value.shape(), value.__dlpack_device__())
(result,) = session.run_with_ort_values(None, {"x": value})
seen = np.from_dlpack(result)
print(seen.shape, seen.ctypes.data == result.data_ptr(), np.shares_memory(result.numpy(), seen))
print(np.allclose(np.asarray(result), session.run(None, {"x": x})[0], atol=1e-5))
x *= 0
(zeros,) = session.run_with_ort_values(["y"], {"x": value})
print(zeros.numpy().round(4).tolist())
print(isinstance(ort.__version__, str), ort.get_device(), ort.ExecutionMode.ORT_PARALLEL.name)
print(int(ort.GraphOptimizationLevel.ORT_ENABLE_ALL), ort.GraphOptimizationLevel.ORT_ENABLE_BASIC.name)
ort.set_seed(7)
ort.set_default_logger_verbosity(0)
ort.disable_telemetry_events()
