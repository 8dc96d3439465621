"""Relay's ``frontend``: ``from_onnx`` with Relay's arguments.  Other importers say how to get to ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minitvm import frontend
from minitvm.errors import FrontendError
from minitvm.ir.expr import Module
from minitvm.runtime.ndarray import Parameter
from minitvm.tvm import lacking


def from_onnx(
    model: Any,
    shape: Mapping[str, Sequence[int | str | None]] | None = None,
    dtype: str | Mapping[str, str] | None = None,
    opset: int | None = None,
    freeze_params: bool = False,
    convert_config: Mapping[str, Any] | None = None,
    *,
    shape_dict: Mapping[str, Sequence[int | str | None]] | None = None,
    **options: Any,
) -> tuple[Module, dict[str, Parameter]]:
    """:func:`minitvm.from_onnx` with Relay's names (``options`` are its own); parameters are arrays with ``numpy()``.

    ``dtype`` is a dictionary by input, or ``"float32"``, which a model says itself.  :class:`FrontendError` for an
    ``opset`` that is not the model's (models say it themselves) and for any ``convert_config``.
    """
    _require_nothing("opset", opset, "a model says itself which opset it is of")
    _require_nothing("convert_config", convert_config, "the importer has no switches")
    dtypes = None if dtype in (None, "float32") else dtype
    if isinstance(dtypes, str):
        raise FrontendError(f"dtype={dtypes!r} for all inputs", hint='dtype={"input": "float16"}')
    shapes = shape if shape_dict is None else shape_dict
    module, params = frontend.from_onnx(model, shapes, dtypes, freeze_params=freeze_params, **options)
    return module, {name: Parameter.of(array) for name, array in params.items()}


def _require_nothing(option: str, value: Any, why: str) -> None:
    if value:
        raise FrontendError(f"{option}={value!r} would do nothing: {why}", hint=f"leave {option} away")


def __getattr__(name: str) -> Any:
    absent = lacking.why(f"relay.frontend.{name}") is not None
    return lacking.attribute("relay.frontend", name) if absent else getattr(frontend, name)
