"""From a held model to what compiles it as runs ask for it, or has found it compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitvm.ort.compiling import CompileOptions, Compiling
from minitvm.ort.options import Settings
from minitvm.ort.shelf import Shelf, shelf_of
from minitvm.target import Target

if TYPE_CHECKING:
    from minitvm.models import Model
    from minitvm.ort.varying import Varying

_DECIDING = ("opt_level", "num_threads", "strict", "shape_dict")
"""The options that decide what is compiled."""


def engine_of(model: Model, settings: Settings, options: CompileOptions, target: Target) -> Compiling | Varying:
    """What runs a model; errors are those of a target that cannot be compiled for here, too."""
    as_it_is = not (settings.by_name or settings.by_denotation or settings.initializers)
    shelf = shelf_of(model, target, {name: getattr(options, name) for name in _DECIDING}) if as_it_is else Shelf()
    described = shelf.description(model)
    if described is not None:
        return Compiling(model, target, described, options, shelf, is_new=False)
    from minitvm.ir.budget import rarely_collected

    with rarely_collected():  # what is imported now stays
        return _compiling(model, settings, target, shelf, options)


def _compiling(
    model: Model, settings: Settings, target: Target, shelf: Shelf, options: CompileOptions
) -> Compiling | Varying:
    from minitvm.driver import backend_for
    from minitvm.frontend import describe_importable, overridden
    from minitvm.ort.varying import Varying
    from minitvm.passes.manager import PassContext

    if settings.by_name or settings.by_denotation or settings.initializers:
        model = overridden(model, settings.by_name, settings.by_denotation, settings.initializers)
    PassContext(options.opt_level)  # which says what is wrong with it
    backend_for(target, options.num_threads)
    description = describe_importable(model)
    ranks = [v.name for v in (*description.inputs, *description.overridable) if not v.has_rank and v.held is None]
    if ranks or description.overridable:
        return Varying(model, target, description, ranks, options)
    return Compiling(model, target, description, options, shelf)
