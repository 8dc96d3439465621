"""PyTorch's models: ``from_torch`` imports one, ``torch.compile(model, backend="minitvm")`` runs one.

    module, params = minitvm.from_torch(model, (torch.randn(1, 3, 224, 224),))
    library = minitvm.build(module, params=params)

    fast = torch.compile(model, backend="minitvm")
    with torch.no_grad():
        fast(torch.randn(1, 3, 224, 224))

Needs ``pip install torch onnxscript``; what needs it is imported when it is called.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minitvm.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from minitvm.ir.expr import Module


def from_torch(
    module: Any, example_inputs: Sequence[Any] | None = None, **options: Any
) -> tuple[Module, dict[str, np.ndarray]]:
    """A model of PyTorch as a module, and its weights by name: :func:`minitvm.torch.exported.from_torch`, which says
    what the options are (``example_kwargs``, ``dynamic_shapes``, ``shape_dict``).

    Raises :class:`ConfigError` where PyTorch or onnxscript is not installed, and what is raised there.
    """
    found: tuple[Module, dict[str, np.ndarray]] = _part("exported").from_torch(module, example_inputs, **options)
    return found


def to_onnx(module: Any, example_inputs: Sequence[Any] | None = None, **options: Any) -> Any:
    """A model of PyTorch as an ``onnx.ModelProto``: :func:`minitvm.torch.exported.to_onnx`."""
    return _part("exported").to_onnx(module, example_inputs, **options)


def backend(graph: Any, example_inputs: Sequence[Any], options: Any = None) -> Any:
    """The back end of ``torch.compile``: :func:`minitvm.torch.dynamo.backend`."""
    return _part("dynamo").backend(graph, example_inputs, options)


def _part(name: str) -> Any:
    try:
        for package in ("torch", "onnxscript"):  # of the second one torch says nothing but that it is missing
            importlib.import_module(package)
    except ImportError as absent:
        hint = "pip install torch onnxscript"
        raise ConfigError(f"{absent.name} is not installed", hint=hint) from absent
    return importlib.import_module(f"minitvm.torch.{name}")
