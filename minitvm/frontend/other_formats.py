"""Importers that Relay has and minitvm has not: each answers how to get to ONNX from there."""

from __future__ import annotations

from typing import Any, NoReturn

from minitvm.errors import FrontendError

EXPORTERS = {
    "from_caffe2": ("Caffe2", "the exporter in PyTorch's caffe2.python.onnx"),
    "from_coreml": ("Core ML", "coremltools and onnxmltools"),
    "from_keras": ("Keras", "model.export(path, format='onnx'), or tf2onnx"),
    "from_mxnet": ("MXNet", "mxnet.onnx.export_model"),
    "from_paddle": ("Paddle", "paddle2onnx"),
    "from_pytorch": ("PyTorch", "torch.onnx.export"),
    "from_tensorflow": ("TensorFlow", "tf2onnx"),
    "from_tflite": ("TensorFlow Lite", "tf2onnx"),
}
"""Importer -> (framework, what exports from it)."""


class _Refusal:
    """Stands where an importer would be; calling it raises :class:`FrontendError`."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        framework, exporter = EXPORTERS[self.__name__]
        raise FrontendError(
            f"minitvm imports ONNX models only, {framework} models are not read",
            hint=f"export to ONNX (with {exporter}), then use from_onnx",
        )


def refusal(name: str) -> _Refusal:
    """The answer to ``from_mxnet`` and its like; :class:`AttributeError` for other names."""
    if name not in EXPORTERS:
        raise AttributeError(f"minitvm.frontend has no attribute {name!r}")
    return _Refusal(name)
