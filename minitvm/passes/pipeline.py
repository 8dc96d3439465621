"""Passes in order: ``Sequential``, orders of one's own, the default pipeline in Relay's order, what a build runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitvm.errors import PassError
from minitvm.ir.budget import compiling, current
from minitvm.ir.decision import decide
from minitvm.ir.expr import Call, Module
from minitvm.ir.visitor import calls
from minitvm.passes.alter_op_layout import AlterOpLayout
from minitvm.passes.canonicalize import CanonicalizeCast, CanonicalizeOps, InferType, Legalize, SimplifyInference
from minitvm.passes.context import KNOWN_PASSES, PassContext, Placement, closest, register_config, using
from minitvm.passes.fold_scale_axis import BackwardFoldScaleAxis, ForwardFoldScaleAxis
from minitvm.passes.fuse_ops import FuseOps, is_lowerable
from minitvm.passes.instrument import PassInfo, PassInstrument
from minitvm.passes.manager import PASSES, Pass, as_pass
from minitvm.passes.places import Asked, LibraryOf, Predict, Slower, other_ways, remembering, with_placed
from minitvm.passes.redundancy import (
    DeadCodeElimination,
    EliminateCommonSubexpr,
    FoldConstant,
    bind_captured,
    bind_params,
)
from minitvm.passes.simplify_expr import SimplifyExpr, SimplifyExprPostAlterOp, SinkReshape
from minitvm.target import MachineModel

_TF32 = (
    "products of float32 on a GPU's tensor cores, factors rounded to TF32 where that is predicted to save two fifths"
)
register_config("cuda.allow_tf32", bool, False, _TF32)
register_config("cuda.split_tf32", bool, False, "products of float32 on a GPU's tensor cores, as three of TF32")
SCHEDULES = register_config(
    "minitvm.schedules", dict, {}, "schedules of one's own by kernel: functions from plain loops to those that run"
)


@dataclass(frozen=True)
class Place:
    """The place where a pass stands among passes, some of which are made of passes; ``runs``: at the level that was
    asked for."""

    path: tuple[int, ...]
    step: Pass
    runs: bool


class Sequential(Pass):
    """Passes in order.  Runs those that the current ``PassContext`` enables, each after the passes it requires.

    Names may say which run is meant where a pass has several: ``FoldConstant#2`` is the second one.
    """

    def __init__(
        self, passes: Sequence[Any], opt_level: int = 0, name: str = "sequential", required: Sequence[str] = ()
    ) -> None:
        if not isinstance(passes, Iterable):
            raise PassError(f"{name}: {passes!r} is not a list of passes")
        self.passes = tuple(_step(step, name) for step in passes)
        self.info = PassInfo(name, opt_level, tuple(required))
        KNOWN_PASSES.add(name)

    def transform(self, module: Module, context: PassContext) -> Module:
        for step in self.passes:
            if not context.pass_enabled(step.info):
                decide(step.info.name, "the whole module", context.why_not(step.info))
                continue
            for name in step.info.required:
                module = get_pass(name)(module)
            module = step(module)
            current().check_time(f"the pass {step.info.name}")
        return module

    # --- orders of one's own ---

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all passes, in order; of one that is made of passes its own, then theirs."""
        return tuple(place.step.info.name for place in self._places())

    def before(self, name: str, step: Any) -> Sequential:
        """The same passes, and one more before the first run of a pass."""
        return self._put(name, 0, lambda found: (as_pass(step), found))

    def after(self, name: str, step: Any) -> Sequential:
        """The same passes, and one more after the last run of a pass."""
        return self._put(name, -1, lambda found: (found, as_pass(step)))

    def without(self, name: str) -> Sequential:
        """The same passes but all runs of one, or the run that the name says."""
        return self._everywhere(name, lambda found: ())

    def replaced(self, name: str, step: Any) -> Sequential:
        """The same passes with another one for all runs of one, or for the run that the name says."""
        return self._everywhere(name, lambda found: (as_pass(step),))

    def with_step(self, place: Place, step: Pass) -> Sequential:
        """The same passes with another one in a place that :meth:`find` found in these."""
        return self._edited(place.path, lambda _: (step,))

    def placed(self, placements: Iterable[Placement], context: PassContext) -> Sequential:
        """The sequence with what a context places; runs are counted as they are at its level.  The one said last stands
        nearest."""
        made = self
        for p in placements:
            which = 0 if p.side == "before" else -1
            path = made.find(p.anchor, context)[which].path
            step = as_pass(p.step)
            made = made._edited(path, lambda old, s=step, w=which: (s, old) if w == 0 else (old, s))  # type: ignore[misc]
        return made

    def find(self, name: str, context: PassContext | None = None) -> list[Place]:
        """The place where a pass stands: those that run, or where none does, all; :class:`PassError` where it does
        not."""
        wanted, hash_, number = str(name).partition("#")
        same = [place for place in self._places(context) if place.step.info.name == wanted]
        if not same:
            raise PassError(f"{self.info.name} has no pass {wanted!r}", hint=closest(wanted, sorted(set(self.names))))
        found = [place for place in same if place.runs] or same
        if not hash_:
            return found
        if not number.isdecimal() or not 1 <= int(number) <= len(found):
            hint = f"the runs are {', '.join(f'{wanted}#{n}' for n in range(1, len(found) + 1))}"
            raise PassError(f"{self.info.name} has no run {name!r}", hint=hint)
        return [found[int(number) - 1]]

    def _places(self, context: PassContext | None = None) -> Iterator[Place]:
        for i, step in enumerate(self.passes):
            runs = context is None or context.pass_enabled(step.info)
            yield Place((i,), step, runs)
            if isinstance(step, Sequential):
                inside = step._places(context)
                yield from (Place((i, *place.path), place.step, runs and place.runs) for place in inside)

    def _put(self, name: str, which: int, becomes: Callable[[Pass], tuple[Pass, ...]]) -> Sequential:
        return self._edited(self.find(name)[which].path, becomes)

    def _everywhere(self, name: str, becomes: Callable[[Pass], tuple[Pass, ...]]) -> Sequential:
        made = self
        for place in reversed(self.find(name)):
            made = made._edited(place.path, becomes)
        return made

    def _edited(self, path: tuple[int, ...], becomes: Callable[[Pass], tuple[Pass, ...]]) -> Sequential:
        """With what stands at a path replaced by what ``becomes`` makes of it."""
        at, rest = path[0], path[1:]
        old = self.passes[at]
        new = (old._edited(rest, becomes),) if rest and isinstance(old, Sequential) else becomes(old)
        passes = (*self.passes[:at], *new, *self.passes[at + 1 :])
        return Sequential(passes, self.info.opt_level, self.info.name, self.info.required)


def _step(given: Any, name: str) -> Pass:
    try:
        return as_pass(given)
    except PassError as error:
        error.message = f"{name}: {error.message}"
        raise


def get_pass(name: str) -> Pass:
    """A pass by its name, built with its defaults; :class:`PassError` where there is none."""
    if name not in PASSES:
        raise PassError(f"there is no pass {name!r}", hint=closest(name, sorted(PASSES)))
    try:
        return PASSES[name]()
    except TypeError as error:
        raise PassError(f"pass {name} needs arguments, so it cannot be run by name", hint="call it") from error


# --- the default pipeline ---


def FoldScaleAxis() -> Sequential:
    """Per-channel scales go into the weights before or after them."""
    steps = (BackwardFoldScaleAxis(), ForwardFoldScaleAxis(), FoldConstant())
    return Sequential(steps, opt_level=3, name="FoldScaleAxis")


BEFORE_LAYOUTS = (
    InferType(),  #                                   level 0
    SimplifyInference(),  #                           level 0
    EliminateCommonSubexpr(),  #                      level 3
    SinkReshape(),  #                                 level 2
    FoldConstant(fold_qnn=True),  #                   level 2
    FoldScaleAxis(),  #                               level 3
    SimplifyExpr(),  #                                level 0: exact rules; 2: all
)
CANONICAL = (CanonicalizeCast(), CanonicalizeOps(), Legalize())  # level 3
AFTER_LAYOUTS = (
    FoldConstant(fold_qnn=True, has_layouts=True),  # level 2
    SimplifyExprPostAlterOp(),  #                     level 0: exact rules; 2: all
    FoldConstant(fold_qnn=True, has_layouts=True),  # level 2
    DeadCodeElimination(),  #                         level 1
    FuseOps(),  #                                     level 0: one operator a kernel; 1: groups
)


def default_pipeline(
    machine: MachineModel,
    kind: str = "llvm",
    library_of: LibraryOf | None = None,
    slower: Slower | None = None,
    predict: Predict | None = None,
) -> Sequential:
    """The passes for a machine, gated by the current ``PassContext``; ``kind`` is the target's.

    ``library_of`` says which library is called for what, where any is; ``slower`` why a larger operator would not be
    faster than those that it is made of; ``predict`` how long the target takes for a call: without it, convolutions
    are direct ones, and all products worth fewer bits where an option asks for these.
    """
    layouts = AlterOpLayout(machine, kind, weigh=True, faster=None if predict is None else other_ways(predict))
    steps = (*BEFORE_LAYOUTS, *CANONICAL, layouts, *AFTER_LAYOUTS)
    asked = Asked(machine, layouts, kind, library_of, slower and remembering(slower), predict)
    return Sequential(with_placed(steps, asked), name="default_pipeline")


# --- what a build runs ---


@dataclass(frozen=True)
class Plan:
    """``first`` runs before all others; ``instead``, where given, in place of the default pipeline."""

    first: tuple[Pass, ...] = ()
    instead: Sequential | tuple[Any, ...] | None = None

    @staticmethod
    def of(passes: Sequence[Any] = (), pipeline: Sequence[Any] | Sequential | None = None) -> Plan:
        """:class:`PassError` where one of them is no list."""
        first = tuple(map(as_pass, _listed("passes", passes)))
        if pipeline is None or isinstance(pipeline, Sequential):
            return Plan(first, pipeline)
        return Plan(first, tuple(_listed("pipeline", pipeline)))

    def steps(self, default: Sequential, context: PassContext) -> Sequential:
        """All passes in order; :class:`PassError` for a name that is none, and where nothing makes kernels."""
        pipeline = default
        if isinstance(self.instead, Sequential):
            pipeline = self.instead
        elif self.instead is not None:
            pipeline = Sequential([_named(step, default) for step in self.instead], name="pipeline")
        pipeline = pipeline.placed(context.placements, context)
        if self.first:
            pipeline = Sequential((*self.first, *pipeline.passes), name=pipeline.info.name)
        return pipeline


def _listed(argument: str, given: Any) -> Iterable[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise PassError(f"{argument} is {given!r}, not a list of passes", hint=f"{argument}=[my_pass]")
    return given


def _named(given: Any, default: Sequential) -> Pass:
    """A pass by its name: one of the default pipeline, which is made for the target, or any other."""
    if not isinstance(given, str):
        return as_pass(given)
    if given.partition("#")[0] in default.names:
        return default.find(given)[0].step
    return get_pass(given)


def with_kernels(module: Module) -> Module:
    """The module itself; :class:`PassError` where a call that could be in a kernel is in none."""
    for call in calls(module.main.body):
        if isinstance(call, Call) and is_lowerable(call):
            name = FuseOps.info.name
            raise PassError(
                f"after all passes {getattr(call.op, 'name', call.op)} is in no kernel",
                where=[str(call.checked_type)],
                hint=f"{name} makes kernels, and passes that make new calls belong before it",
            )
    return module


@compiling()
def optimize(
    module: Module,
    machine: MachineModel,
    params: dict[str, Any] | None = None,
    opt_level: int | None = None,
    recorder: PassInstrument | None = None,
    schedules: str = "llvm",
    library_of: LibraryOf | None = None,
    slower: Slower | None = None,
    predict: Predict | None = None,
    plan: Plan | None = None,
) -> Module:
    """The module after the default pipeline (or what ``plan`` makes of it), under the current ``PassContext``; layouts
    as ``schedules`` has them.

    ``params`` are bound, and taken out of the dictionary: nothing here holds a weight that the passes have replaced.
    """
    taken = params if params is not None else {}
    arrays = {name: np.asarray(taken.pop(name)) for name in list(taken)}
    box = [module.with_function("main", bind_captured(bind_params(module.main, arrays)))]
    del arrays
    with context_for(opt_level, recorder) as context:
        steps = (plan or Plan()).steps(default_pipeline(machine, schedules, library_of, slower, predict), context)
        return with_kernels(steps.consume(box))


@contextmanager
def context_for(opt_level: int | None, recorder: PassInstrument | None) -> Iterator[PassContext]:
    """The current ``PassContext``, with another level and one more instrument where given, for a block.  Instruments
    are told of passes only: the context that has them has told them that it is entered."""
    outer = PassContext.current()
    if "FuseOps" in outer.disabled_pass:
        raise PassError(
            "FuseOps cuts the graph into kernels: a build cannot do without it",
            hint="at opt_level=0 every operator is a kernel of its own",
        )
    context = PassContext(
        opt_level=outer.opt_level if opt_level is None else opt_level,
        required_pass=outer.required_pass,
        disabled_pass=outer.disabled_pass,
        instruments=[*outer.given_instruments, *([recorder] if recorder else [])],
        config=outer.config,
    )
    context.placements = outer.placements
    with using(context):
        yield context
