"""A decoder's loop: key-value caches as OrtValues, fed back from step to step."""

import numpy as np
import onnxruntime as ort
from helper import decoder_step

session = ort.InferenceSession(decoder_step(), providers=["CPUExecutionProvider"])
cache = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 0, 8), np.float32))
token, generated = 3, []
for _ in range(6):
    feeds = {"token": ort.OrtValue.ortvalue_from_numpy(np.array([[token]], np.int64)), "past": cache}
    logits, cache = session.run_with_ort_values(["logits", "present"], feeds)
    token = int(logits.numpy()[0].argmax())
    generated.append(token)
print(generated, cache.shape(), cache.data_type(), cache.device_name())

io_binding = session.io_binding()
past = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 0, 8), np.float32))
token, again = 3, []
for _ in range(6):
    io_binding.bind_cpu_input("token", np.array([[token]], np.int64))
    io_binding.bind_ortvalue_input("past", past)
    io_binding.bind_output("logits")
    io_binding.bind_output("present")
    session.run_with_iobinding(io_binding)
    logits, past = io_binding.get_outputs()
    token = int(np.asarray(logits)[0].argmax())
    again.append(token)
    io_binding.clear_binding_inputs()
    io_binding.clear_binding_outputs()
print(again == generated, past.numpy().round(4).sum().round(3))
