"""From an ONNX model to a library: for the shapes that are given, or one for all that the model leaves open."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from minitvm import config
from minitvm.doors import door, left_out
from minitvm.driver import backend_for, build_consuming
from minitvm.driver.kernels import KernelCompiler, Progress, kernel_cache
from minitvm.errors import MiniTVMError, stage
from minitvm.frontend import describe_onnx, from_onnx, load_model
from minitvm.ir.budget import compiling
from minitvm.ir.decision import Decision, decisions
from minitvm.ir.dims import Assumptions, Undecided, assumed, assumptions, deciding, facts, under
from minitvm.ir.dims import measured as measured_here
from minitvm.ir.expr import Expr, Module
from minitvm.ir.types import leaves
from minitvm.ir.visitor import post_order
from minitvm.passes.pipeline import Plan
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
    executor: Executor | None = None,
) -> Tuned:
    """Try what the templates of a model's kernels could be, ``most`` ways each and ``budget`` seconds in all.

    What came of it is written to ``path``, for the option ``minitvm.records`` of later builds; what is there already is
    not tried again.  An ``executor`` of ``concurrent.futures``, or a cluster's, tries several ways at a time, in
    processes or on machines of the same kind.
    """
    module, params = from_onnx(model, shape_dict=shape_dict, value_dict=value_dict)
    backend = backend_for(target, num_threads)
    compiler = KernelCompiler(backend, kernel_cache(config.cache_dir()))
    return tuned(module, params, compiler, opt_level, path, budget, most, on_progress, executor)


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
    executor: Executor | None,
) -> Tuned:
    """Tries what the kernels of a module could be."""
    raise left_out("tuning")


@door
def in_stages(module: Module, params: Mapping[str, np.ndarray], measured: Mapping[str, Expr]) -> Module:
    """The module, cut where the data decide sizes: what follows is compiled for all of them."""
    if measured:
        raise left_out("what follows from sizes that the data decide")
    return module
