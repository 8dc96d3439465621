"""Reading models.  ``from_onnx`` imports, ``describe_onnx`` looks at inputs and outputs, ``onnx_op`` adds operators.

What is used is imported: to hold a model, and to say what goes into it, takes neither ``onnx`` nor the importer.
"""

import importlib
from typing import Any

from minitvm.frontend.other_formats import refusal  # from_mxnet, from_tensorflow, ...

_HOMES = {
    "description": "ModelDescription ValueDescription",
    "held": "hold keep_files",
    "onnx.importer": "describe_importable from_onnx",
    "onnx.model": "describe_onnx load_model",
    "onnx.overrides": "overridden with_inputs",
    "onnx.registry": "onnx_op supported_operators",
}
_PLACES = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    return refusal(name)


def __dir__() -> list[str]:
    return sorted(_PLACES)
