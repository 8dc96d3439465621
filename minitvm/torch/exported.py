"""A model of PyTorch as ONNX, by ``torch.export`` and PyTorch's own exporter, and from there as a module."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from minitvm.errors import FrontendError, InputError
from minitvm.frontend import from_onnx
from minitvm.ir.expr import Module
from minitvm.torch.decompositions import DECOMPOSITIONS


def from_torch(
    module: torch.nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    shape_dict: Mapping[str, Sequence[int | None]] | None = None,
) -> tuple[Module, dict[str, np.ndarray]]:
    """Imports a model of PyTorch; the module and its weights by name, as ``from_onnx`` gives them.

    Parameters
    ----------
    module:
        A ``torch.nn.Module`` after ``eval()``, or what ``torch.export.export`` gave.
    example_inputs, example_kwargs:
        What ``forward`` is called with; needed for a ``torch.nn.Module``.
    dynamic_shapes:
        Dimensions that stay open, as ``torch.export.export`` takes them.
    shape_dict:
        Numbers for dimensions that are open, by input, as ``from_onnx`` takes them.

    Returns
    -------
    ``main`` takes the tensors that ``forward`` takes, under its parameters' names, then the weights.  Results are
    ``forward``'s, flattened as ``torch.utils._pytree`` does.

    Raises
    ------
    InputError
        without example inputs for a ``torch.nn.Module``, or with some for an exported program; in training mode.
    FrontendError
        for what PyTorch cannot export, or the importer cannot read.
    """
    return from_onnx(
        to_onnx(module, example_inputs, example_kwargs=example_kwargs, dynamic_shapes=dynamic_shapes),
        shape_dict=shape_dict,
    )


def to_onnx(
    module: torch.nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> Any:
    """The ``onnx.ModelProto`` that :func:`from_torch` imports; what ``minitvm.compile`` and sessions take, too."""
    program = _exported(module, example_inputs, example_kwargs, dynamic_shapes)
    with _explained("make a function of the model"), _quiet():
        program = program.run_decompositions(DECOMPOSITIONS)
    _require_function(program)
    with _explained("write the model as ONNX"), _quiet():
        return torch.onnx.export(program, dynamo=True, verbose=False).model_proto


class NotAFunction(FrontendError):
    """A model that does something else than compute results from inputs."""


class Writes(NotAFunction):
    """It writes to its inputs or buffers."""


def _require_function(program: ExportedProgram) -> None:
    """ONNX has results only."""
    signature = program.graph_signature
    written = {*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()}
    if written:
        raise Writes(f"the model writes to {', '.join(sorted(map(str, written)))}, and only its results are computed")
    drawing = {str(node.target) for node in program.graph.nodes if _draws(node)}
    if drawing:
        raise NotAFunction(
            f"{', '.join(sorted(drawing))} draws random numbers, which are PyTorch's", hint="model.eval()"
        )


_STILL = {"train": False, "training": False, "p": 0, "dropout": 0, "dropout_p": 0}
"""Arguments of operators that may draw random numbers, with the value where they do not."""


def _draws(node: torch.fx.Node) -> bool:
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    defaults = {a.name: a.default_value for a in node.target._schema.arguments if a.has_default_value()}
    given = {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}
    return not any(name in given and given[name] == still for name, still in _STILL.items())


def _exported(module: Any, inputs: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, open_: Any) -> Any:
    if isinstance(module, ExportedProgram):
        if inputs is not None or kwargs is not None or open_ is not None:
            raise InputError("an exported program has its inputs and open dimensions already")
        return module
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"{type(module).__name__} is neither a torch.nn.Module nor an exported program")
    if inputs is None:
        raise InputError("example inputs are missing", hint="from_torch(model, (torch.randn(1, 3, 224, 224),))")
    if module.training:
        raise InputError("the model is in training mode", hint="model.eval() first")
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    with _explained("export the model"), _quiet():
        return torch.export.export(module, tuple(inputs), dict(kwargs or {}), dynamic_shapes=open_)


@contextmanager
def _explained(step: str) -> Iterator[None]:
    """Errors of PyTorch's exporter in one sentence; their whole text is the cause."""
    try:
        yield
    except Exception as error:
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        said = next((line.strip() for line in str(root).splitlines() if line.strip()), "")
        raise FrontendError(
            f"PyTorch could not {step}: {type(root).__name__}: {said}",
            hint="torch.export.export(model, inputs) alone shows where; graph breaks need torch.compile instead",
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on packages that are not installed, and on its own future."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", (FutureWarning, DeprecationWarning, UserWarning))
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
