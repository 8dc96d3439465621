"""Reading models.  ``from_onnx`` imports, ``describe_onnx`` looks at inputs and outputs, ``onnx_op`` adds operators."""

from minitvm.frontend.onnx.importer import describe_importable, from_onnx
from minitvm.frontend.onnx.model import ModelDescription, ValueDescription, describe_onnx, hold, keep_files, load_model
from minitvm.frontend.onnx.overrides import overridden, with_inputs
from minitvm.frontend.onnx.registry import onnx_op, supported_operators
from minitvm.frontend.other_formats import refusal as __getattr__  # from_mxnet, from_tensorflow, ...
