"""Providers with dictionaries of options, and one that is not there."""

import warnings

import numpy as np
import onnxruntime as ort
from helper import two_layers

wanted = [
    ("CUDAExecutionProvider", {"device_id": 0, "arena_extend_strategy": "kNextPowerOfTwo"}),
    "CPUExecutionProvider",
]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    session = ort.InferenceSession(two_layers(), providers=wanted)
print(len(caught), "CUDAExecutionProvider" in str(caught[0].message), caught[0].category.__name__)
print(session.get_providers(), session.get_provider_options())
print("CPUExecutionProvider" in ort.get_available_providers(), ort.get_device())
print("CUDAExecutionProvider" in ort.get_all_providers())
usable = [p for p in ["CUDAExecutionProvider", "CPUExecutionProvider"] if p in ort.get_available_providers()]
session.set_providers(usable)
print(session.get_providers())
session = ort.InferenceSession(two_layers(), providers=["CPUExecutionProvider"], provider_options=[{}])
session.disable_fallback()
print(session.run(["y"], {"x": np.ones((1, 16), np.float32)})[0].shape)
