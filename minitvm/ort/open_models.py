"""One library for all shapes that a model leaves open: compiled once, and what is told of a model before that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from minitvm.codegen.backend import Backend
from minitvm.doors import door, left_out
from minitvm.driver import backend_for, build_consuming, require_symbolic
from minitvm.driver.kernels import Progress
from minitvm.errors import MiniTVMError, UnknownValueError
from minitvm.frontend import ValueDescription, describe_onnx, from_onnx, load_model
from minitvm.ir.budget import compiling
from minitvm.ir.dims import Undecided, assumptions, deciding, is_asked
from minitvm.ir.dims import measured as measured_here
from minitvm.ir.expr import Function, Module
from minitvm.models import NEEDS_NUMBERS, Model, in_stages
from minitvm.runtime.library import Library
from minitvm.target import Target


@compiling()
def compile_symbolic(
    model: Model,
    target: Target,
    opt_level: int = 3,
    *,
    shape_dict: Mapping[str, Sequence[int | str]] = MappingProxyType({}),
    sample: Mapping[str, Sequence[int]] = MappingProxyType({}),
    measured: Mapping[str, int] = MappingProxyType({}),
    grown: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    imported: list[Imported] | None = None,
    num_threads: int | None = None,
    on_progress: Progress | None = None,
) -> Library:
    """Compile an ONNX model once for all shapes that it leaves open; ``shape_dict`` names or fixes dimensions.

    What the model decides by its sizes, a branch or a broadcast, is decided as inputs of the shapes ``sample`` have it;
    the library then serves all shapes for which it is decided likewise, and refuses others.  Sizes that the data decide
    are ``measured`` in a run; they are taken for what they were in an earlier one.  Inputs that are ``grown`` are
    memory with room (``passes.caches``), of which ``measured`` has the size.  What :func:`require_consistent` has
    ``imported`` is taken out of there.  Raises what :func:`compile` raises; above all :class:`CompilerError` for
    operators whose loops are made for numbers.
    """
    backend = backend_for(target, num_threads)
    opened = load_model(model)
    if imported:
        opened.files.require_unchanged()  # an import looks at that itself
    with assumptions({**_sizes_of(opened, shape_dict, sample), **measured} if sample else None):
        module, params = _import_symbolic(opened, backend, shape_dict, imported)
        module = module.with_function("main", with_room(module.main, grown)) if grown else module
        said, files = describe_onnx(opened).form, opened.files
        del opened
        for value in params.values():
            value.setflags(write=False)
        built = build_consuming(module, params, backend, opt_level, strict=True, on_progress=on_progress)
        files.require_unchanged()
        return built.made_for(said)


Imported: TypeAlias = tuple[Module, "dict[str, np.ndarray]"]
"""A module and its weights."""


def _import_symbolic(
    model: Model,
    backend: Backend,
    names: Mapping[str, Sequence[int | str]] = MappingProxyType({}),
    imported: list[Imported] | None = None,
) -> Imported:
    """The model with names for open dimensions; an error where it is seen at once that kernels cannot have them."""
    given = {value.name: _open_shape(value) for value in describe_onnx(model).inputs if value.held is None}
    with deciding():
        module, params = _taken(imported or []) or from_onnx(model, shape_dict={**given, **names})
    module = in_stages(module, params, measured_here())
    require_symbolic(module.main, backend)
    return module, params


def _taken(imported: list[Imported]) -> Imported | None:
    """What is there, for one thread alone: who compiles it empties it."""
    try:
        return imported.pop()
    except IndexError:
        return None


def _sizes_of(
    model: Model, names: Mapping[str, Sequence[int | str]], shapes: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """What open dimensions are where inputs have these shapes."""
    found: dict[str, int] = {}
    for value in describe_onnx(model).inputs:
        if value.held is None:
            named = names.get(value.name) or _open_shape(value)
            pairs = zip(named, shapes[value.name], strict=True)
            found |= {str(name): extent for name, extent in pairs if not isinstance(name, int)}
    return found


_SIZES = (64, 224, *range(1, 17))
"""Which open dimensions are tried with; a model that is right for any is right."""


def require_consistent(model: Model, names: Mapping[str, Sequence[int | str]] = MappingProxyType({})) -> list[Imported]:
    """Raises what is wrong with a model whatever its open dimensions are: what is found with names for them, and
    likewise with every number that is tried.  The import, where no sizes that a run may bring would change it."""
    opened = load_model(model)
    try:
        shapes = {v.name: _open_shape(v) for v in describe_onnx(opened).inputs if v.held is None} | dict(names)
        with assumptions():
            found = from_onnx(opened, shape_dict=shapes)
            return [] if is_asked() else [found]
    except (UnknownValueError, Undecided):
        return []
    except MiniTVMError as error:
        if not isinstance(error.__cause__, Undecided) and all(_fails_at(error, opened, shapes, n) for n in _SIZES):
            raise
    return []


def _fails_at(error: MiniTVMError, model: Model, shapes: Mapping[str, Sequence[int | str]], extent: int) -> bool:
    """True if the import fails likewise where open dimensions are numbers."""
    sizes = {name: [extent if isinstance(dim, str) else dim for dim in shape] for name, shape in shapes.items()}
    try:
        from_onnx(model, shape_dict=sizes)
    except UnknownValueError:
        return False
    except MiniTVMError as other:
        return _said(other) == _said(error)
    return False


def _said(error: MiniTVMError) -> tuple[str, list[str]]:
    """What is wrong but for the sizes, and of which node.  That names are no numbers is not said of numbers."""
    return re.sub(r"\([^()]*\)|\[[^\[\]]*\]", "", error.message), re.findall(
        r'ONNX node "[^"]*"', "\n".join(error.where)
    )


def why_specialised(model: Model, target: str | Target = "llvm") -> str | None:
    """The reason why a model with open dimensions is compiled for each shape, as far as that is seen without a
    build."""
    try:
        with assumptions():
            _import_symbolic(model, backend_for(target, 1))
    except NEEDS_NUMBERS as error:
        return reason_of(error)
    return None


def reason_of(error: Exception) -> str:
    if isinstance(error, MiniTVMError):
        return "; ".join([error.message, *(" ".join(line.split()) for line in error.where[:1])])
    return f"{type(error).__name__}: {error}"


def _open_shape(value: ValueDescription) -> list[int | str]:
    """A shape in which everything that is open has a name: the model's, or one of its own."""
    if not value.has_rank:
        raise UnknownValueError(f"input {value.name!r} has no shape in the model")
    return [f"{value.name}.{axis}" if dim is None else dim for axis, dim in enumerate(value.shape)]


@door
def with_room(function: Function, grown: Mapping[str, tuple[int, int]]) -> Function:
    """The function with memory that grows for values that grow from run to run."""
    raise left_out("values that grow in place")
