"""Where scripts written for ONNX Runtime import its exceptions from."""

from minitvm.capi import onnxruntime_pybind11_state

__all__ = ["onnxruntime_pybind11_state"]
