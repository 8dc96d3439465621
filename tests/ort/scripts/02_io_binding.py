"""IO binding as in the documentation: arrays of the CPU, outputs allocated by the session, read back."""

import numpy as np
import onnxruntime as ort
from helper import two_layers

session = ort.InferenceSession(two_layers(), providers=["CPUExecutionProvider"])
x = np.linspace(-1, 1, 2 * 16, dtype=np.float32).reshape(2, 16)

io_binding = session.io_binding()
io_binding.bind_cpu_input("x", x)
io_binding.bind_output("y")
session.run_with_iobinding(io_binding)
print(len(io_binding.get_outputs()), io_binding.copy_outputs_to_cpu()[0].round(4).tolist())

x_value = ort.OrtValue.ortvalue_from_numpy(x * 2)
print(x_value.device_name(), x_value.shape(), x_value.data_type(), x_value.is_tensor())
io_binding.bind_input("x", x_value.device_name(), 0, np.float32, x_value.shape(), x_value.data_ptr())
io_binding.bind_output("y", "cpu")
session.run_with_iobinding(io_binding)
print(io_binding.get_outputs()[0].numpy().round(4).tolist())

y_value = ort.OrtValue.ortvalue_from_shape_and_type([2, 8], np.float32, "cpu", 0)
io_binding = session.io_binding()
io_binding.bind_ortvalue_input("x", x_value)
io_binding.bind_ortvalue_output("y", y_value)
session.run_with_iobinding(io_binding)
print(np.allclose(y_value.numpy(), session.run(None, {"x": x * 2})[0], atol=1e-5))
before = y_value.data_ptr()
x_value.update_inplace(x)
session.run_with_iobinding(io_binding)
print(y_value.data_ptr() == before, y_value.numpy().round(4).tolist())

buffer = np.zeros((2, 8), np.float32)
io_binding.clear_binding_outputs()
io_binding.bind_output("y", "cpu", 0, np.float32, buffer.shape, buffer.ctypes.data)
io_binding.synchronize_inputs()
session.run_with_iobinding(io_binding)
io_binding.synchronize_outputs()
print(buffer.round(4).tolist())
