# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
from collections.abc import Mapping, Sequence
from typing import Any
from minitvm import frontend as frontend
from minitvm.errors import FrontendError as FrontendError
from minitvm.ir.expr import Module as Module
from minitvm.runtime.ndarray import Parameter as Parameter
def from_onnx(model: Any, shape: Mapping[str, Sequence[int | str | None]] | None=None, dtype: str | Mapping[str, str] | None=None, opset: int | None=None, freeze_params: bool=False, convert_config: Mapping[str, Any] | None=None, *, shape_dict: Mapping[str, Sequence[int | str | None]] | None=None, **options: Any) -> tuple[Module, dict[str, Parameter]]:
    """:func:`minitvm.from_onnx` with Relay's names (``options`` are its own); parameters are arrays with ``numpy()``.

    ``dtype`` is a dictionary by input, or ``"float32"``, which a model says itself.  :class:`FrontendError` for an
    ``opset`` that is not the model's (models say it themselves) and for any ``convert_config``.
    """
    ...
from minitvm.frontend.description import ModelDescription as ModelDescription
from minitvm.frontend.description import ValueDescription as ValueDescription
from minitvm.frontend.held import hold as hold
from minitvm.frontend.held import keep_files as keep_files
from minitvm.frontend.onnx.importer import describe_importable as describe_importable
from minitvm.frontend.onnx.model import describe_onnx as describe_onnx
from minitvm.frontend.onnx.model import load_model as load_model
from minitvm.frontend.onnx.overrides import overridden as overridden
from minitvm.frontend.onnx.overrides import with_inputs as with_inputs
from minitvm.frontend.onnx.registry import onnx_op as onnx_op
from minitvm.frontend.onnx.registry import supported_operators as supported_operators
from typing import Any, NoReturn
def from_caffe2(*args: Any, **options: Any) -> NoReturn: ...
def from_coreml(*args: Any, **options: Any) -> NoReturn: ...
def from_keras(*args: Any, **options: Any) -> NoReturn: ...
def from_mxnet(*args: Any, **options: Any) -> NoReturn: ...
def from_paddle(*args: Any, **options: Any) -> NoReturn: ...
def from_pytorch(*args: Any, **options: Any) -> NoReturn: ...
def from_tensorflow(*args: Any, **options: Any) -> NoReturn: ...
def from_tflite(*args: Any, **options: Any) -> NoReturn: ...
