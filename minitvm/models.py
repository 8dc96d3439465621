"""From an ONNX model to a library: for the shapes that are given, or one for all that the model leaves open."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from minitvm import config
from minitvm.codegen.backend import Backend
from minitvm.doors import door, left_out
from minitvm.driver import backend_for, build_consuming, require_symbolic
from minitvm.driver.kernels import KernelCompiler, Progress
from minitvm.errors import MiniTVMError, UnknownValueError, stage
from minitvm.frontend import ValueDescription, describe_onnx, from_onnx, load_model
from minitvm.ir.budget import compiling
from minitvm.ir.decision import Decision, decisions
from minitvm.ir.dims import Assumptions, Undecided, assumed, assumptions, deciding, facts, is_asked, under
from minitvm.ir.dims import measured as measured_here
from minitvm.ir.expr import Expr, Function, Module
from minitvm.ir.types import leaves
from minitvm.ir.visitor import post_order
from minitvm.passes.pipeline import Plan
from minitvm.runtime.cache import KernelCache
from minitvm.runtime.library import Library
from minitvm.target import Target

if TYPE_CHECKING:
    from minitvm.driver.tune import Tuned

Model: TypeAlias = "str | os.PathLike[str] | bytes | Any"
"""A path, the bytes of a file, or an ``onnx.ModelProto``."""

NEEDS_NUMBERS = (MiniTVMError, Undecided)
"""What is raised where open dimensions will not do: a refusal, or a question that only a number answers."""


@stage("compiling the model")
@compiling()
def compile(
    model: Model,
    target: str | Target = "llvm",
    opt_level: int = 3,
    shape_dict: Mapping[str, Sequence[int | None]] | None = None,
    dtype_dict: Mapping[str, str] | None = None,
    *,
    value_dict: Mapping[str, Any] | None = None,
    num_threads: int | None = None,
    strict: bool = False,
    on_progress: Progress | None = None,
    trace: bool = False,
    passes: Sequence[Any] = (),
    pipeline: Sequence[Any] | None = None,
    staged: bool | None = None,
) -> Library:
    """Compile an ONNX model; its weights become part of the library.

    ``shape_dict`` gives the inputs' shapes where the model leaves dimensions open, ``value_dict`` the values of inputs
    that shapes depend on; those are no inputs of the library.  What follows from sizes that the data decide is compiled
    for all of them where nothing is counted on of one, else computed in Python, as always where ``staged`` is False;
    where it is True, compiled for those that are alike: a run raises :class:`DoesNotFit` for others.  The other options
    are those of :func:`minitvm.build`, the dictionaries those of ``from_onnx``, and so are the errors.
    """
    parsed, plan = Target.parse(target), Plan.of(passes, pipeline)
    opened = load_model(model)
    given: dict[str, Any] = {"shape_dict": shape_dict, "dtype_dict": dtype_dict, "value_dict": value_dict}
    found = _imported(opened, given, staged)
    said, files = describe_onnx(opened).form, opened.files
    del opened  # what it holds of small weights is not needed beside the module's
    with under(found.assumed):
        for value in found.params.values():
            value.setflags(write=False)  # nobody else has them, so constants need not copy them
        backend = backend_for(parsed, num_threads)
        how: dict[str, Any] = {"strict": strict, "on_progress": on_progress, "trace": trace}
        library = build_consuming(found.module, found.params, backend, opt_level, plan=plan, **how)
    files.require_unchanged()  # weights are read until here
    assert library.report is not None
    library.report.imported = found.decided
    return library.made_for(said, {name: np.array(value) for name, value in (value_dict or {}).items()})


@dataclass
class _Imported:
    """A model as passes take it."""

    module: Module
    params: dict[str, np.ndarray]
    decided: list[Decision]
    assumed: Assumptions | None
    """What is counted on of sizes that the data decide, where stages are compiled for these."""


def _imported(model: Any, given: Mapping[str, Any], staged: bool | None) -> _Imported:
    """``staged`` as for :func:`compile`."""
    found = None if staged is False else _in_stages(model, given, bool(staged))
    if found is None:
        with decisions() as read:
            found = _Imported(*from_onnx(model, **given), read, None)
    return found


def _in_stages(model: Any, given: Mapping[str, Any], counts: bool) -> _Imported | None:
    """Where the data decide sizes, in stages for them; ``None`` where something that is counted on may not hold, unless
    it ``counts``, and where other sizes are open."""
    try:
        with assumptions({}), decisions() as read, deciding():
            module, params = from_onnx(model, **given)
            if not measured_here():
                return _Imported(module, params, read, None) if _is_static(module.main.body) else None
            if not counts and (facts() or not _is_static(*module.main.params)):
                return None
            return _Imported(in_stages(module, params, measured_here()), params, read, assumed())
    except NEEDS_NUMBERS:
        if counts:
            raise
        return None


def _is_static(*roots: Expr) -> bool:
    """Whether all values have sizes that are numbers."""
    return all(t.is_static for node in post_order(*roots) for t in leaves(node.type))


@stage("tuning the model")
def tune(
    model: Model,
    path: Path,
    target: str | Target = "llvm",
    opt_level: int = 3,
    shape_dict: Mapping[str, Sequence[int | None]] | None = None,
    *,
    value_dict: Mapping[str, Any] | None = None,
    num_threads: int | None = None,
    budget: float = 600.0,
    most: int = 8,
    on_progress: Progress | None = None,
) -> Tuned:
    """Try what the templates of a model's kernels could be, ``most`` ways each and ``budget`` seconds in all.

    What came of it is written to ``path``, for the option ``minitvm.records`` of later builds; what is there already is
    not tried again.
    """
    module, params = from_onnx(model, shape_dict=shape_dict, value_dict=value_dict)
    backend = backend_for(target, num_threads)
    compiler = KernelCompiler(backend, KernelCache(config.cache_dir()))
    return tuned(module, params, compiler, opt_level, path, budget, most, on_progress)


@door
def tuned(
    module: Module,
    params: dict[str, Any],
    compiler: KernelCompiler,
    opt_level: int,
    path: Path,
    budget: float,
    most: int,
    on_progress: Progress | None,
) -> Tuned:
    """Tries what the kernels of a module could be."""
    raise left_out("tuning")


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
def in_stages(module: Module, params: Mapping[str, np.ndarray], measured: Mapping[str, Expr]) -> Module:
    """The module, cut where the data decide sizes: what follows is compiled for all of them."""
    if measured:
        raise left_out("what follows from sizes that the data decide")
    return module


@door
def with_room(function: Function, grown: Mapping[str, tuple[int, int]]) -> Function:
    """The function with memory that grows for values that grow from run to run."""
    raise left_out("values that grow in place")
