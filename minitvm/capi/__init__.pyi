# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
from minitvm.capi import onnxruntime_pybind11_state as onnxruntime_pybind11_state
