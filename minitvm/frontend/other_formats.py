"""Formats that Relay imports and minitvm does not: how to get to ONNX from there, for importers and for files."""

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from minitvm.errors import FrontendError

FRAMEWORKS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "from_caffe2": ("Caffe2", "the exporter in PyTorch's caffe2.python.onnx", ()),
    "from_coreml": ("CoreML", "onnxmltools.convert_coreml", (".mlmodel", ".mlpackage")),
    "from_keras": ("Keras", "model.export(path, format='onnx'), or tf2onnx", (".h5", ".keras")),
    "from_mxnet": ("MXNet", "mxnet.onnx.export_model", (".params", ".json")),
    "from_paddle": ("Paddle", "paddle2onnx", ()),
    "from_pytorch": ("PyTorch", "torch.onnx.export", (".pt", ".pth")),
    "from_tensorflow": ("TensorFlow", "tf2onnx", (".pb", ".pbtxt")),
    "from_tflite": ("TensorFlow Lite", "tf2onnx", (".tflite",)),
}
"""Importer -> (framework, what exports from it, suffixes of its files)."""


def framework_of(suffix: str) -> tuple[str, str] | None:
    """The framework whose files end so, and what exports from it."""
    return next(((name, how) for name, how, suffixes in FRAMEWORKS.values() if suffix.lower() in suffixes), None)


def _refuse(importer: str, *_: Any, **__: Any) -> NoReturn:
    framework, exporter, _suffixes = FRAMEWORKS[importer]
    raise FrontendError(
        f"minitvm imports ONNX models only, {framework} models are not read",
        hint=f"export to ONNX (with {exporter}), then use from_onnx",
    )


def refusal(name: str) -> Callable[..., NoReturn]:
    """What stands where ``from_mxnet`` and its like would be: raises :class:`FrontendError` when it is called."""
    if name not in FRAMEWORKS:
        raise AttributeError(f"minitvm.frontend has no attribute {name!r}")
    return partial(_refuse, name)
