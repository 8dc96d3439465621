"""Determinants."""

from minitvm.frontend.onnx.node import emit
from minitvm.frontend.onnx.registry import formulas

formulas({"Det-11": lambda n: emit("linalg.det", n[0])})
