"""Orders of passes and levels, tried out: what each makes of a model, in kernels, bytes, time, and numbers.

print(orders("model.onnx", ["SimplifyExpr", "FoldConstant#1", "FoldScaleAxis"]))
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minitvm.codegen.backend import Backend
from minitvm.driver import backend_for
from minitvm.driver.compile import pipeline_for
from minitvm.errors import ConfigError, MiniTVMError, listing
from minitvm.lab.subject import Subject
from minitvm.passes.compare import first_difference
from minitvm.passes.manager import Pass, PassContext
from minitvm.passes.pipeline import Plan, Sequential
from minitvm.passes.roundings import flatten
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.rounds import side_by_side
from minitvm.runtime.timing import BenchmarkResult

MOST_ORDERS = 120
"""Builds that one experiment may take: the orders of five passes."""
COLUMNS = ("way", "kernels", "bytes", "memory", "predicted", "seconds", "spread", "results")

OnProgress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Trial:
    """What one way made of the model.

    ``kernels`` run once for each result they make; ``nbytes`` is what they read and write in a run, ``memory`` the
    bytes of its intermediate values; ``predicted`` seconds on one thread; ``results`` says in words how its numbers
    are beside the first way's.  ``refused``: why there is no library; nothing else then.
    """

    way: str
    kernels: int = 0
    nbytes: int = 0
    memory: int = 0
    predicted: float = 0.0
    time: BenchmarkResult | None = None
    results: str = ""
    refused: str = ""

    @property
    def row(self) -> tuple[Any, ...]:
        """The values under :data:`COLUMNS`; seconds are a run's median."""
        if self.refused:
            return (self.way, "", "", "", "", "", "", f"refused: {self.refused}")
        time = (self.time.median, self.time.spread) if self.time else ("", "")
        return (self.way, self.kernels, self.nbytes, self.memory, self.predicted, *time, self.results)


@dataclass(frozen=True)
class Experiment:
    """All ways that were tried, the default one first."""

    title: str
    trials: tuple[Trial, ...]

    @property
    def agree(self) -> bool:
        """True if every way made a library, with the same numbers."""
        return all(not trial.refused and trial.results in ("the first", "equal") for trial in self.trials)

    def csv(self) -> str:
        """A line for each way, under :data:`COLUMNS`; bytes and seconds."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([COLUMNS, *(trial.row for trial in self.trials)])
        return text.getvalue()

    def __str__(self) -> str:
        return self.csv()

    def plot(self, path: str | os.PathLike[str]) -> None:
        """A picture of time (the predicted one where none was measured) and bytes by way; :class:`ConfigError` without
        matplotlib."""
        from minitvm.lab.pictures import bars

        done = [trial for trial in self.trials if not trial.refused]
        times = [trial.time.median * 1e3 for trial in done if trial.time]
        figures = {"ms a run": times} if times else {"ms predicted": [trial.predicted * 1e3 for trial in done]}
        bars(path, self.title, [t.way for t in done], {**figures, "MB moved": [t.nbytes / 1e6 for t in done]})


# --- the two experiments ----------------------------------------------------------------------------------------------


def orders(
    model: Any,
    passes: Sequence[str],
    opt_level: int = 3,
    rounds: int = 5,
    on_progress: OnProgress | None = None,
    executor: Executor | None = None,
    **subject: Any,
) -> Experiment:
    """Every order of ``passes`` in the places that they have in the default pipeline.

    A name is a pass's, or one run's of several: ``FoldConstant#2``.  ``rounds`` turns of runs are timed (0: none),
    interleaved.  With an ``executor`` of ``concurrent.futures`` (or another's that has ``submit``) ways are built and
    timed where it runs them, each alone.  ``subject`` are the arguments of :meth:`Subject.of`: ``params``, ``target``,
    ``shape_dict``, ...

    :class:`ConfigError` where there is nothing to permute, or too much; :class:`PassError` for unknown names.
    """
    given = Subject.of(model, **subject)
    ways = {" ".join(order): Way(opt_level, tuple(passes), order) for order in _permutations(passes)}
    next(iter(ways.values())).plan(given)  # what is wrong with a name is no order's fault
    return tried(f"orders of {', '.join(passes)}", given, ways, rounds, on_progress, executor)


def levels(
    model: Any, rounds: int = 5, on_progress: OnProgress | None = None, executor: Executor | None = None, **subject: Any
) -> Experiment:
    """Optimization levels 3 to 0; arguments as those of :func:`orders`."""
    ways = {f"level {level}": Way(level) for level in (3, 2, 1, 0)}
    return tried("optimization levels", Subject.of(model, **subject), ways, rounds, on_progress, executor)


@dataclass(frozen=True)
class Way:
    """A way to build a library: a level, and some of its passes in another order.  It goes to another process, which a
    pipeline cannot."""

    level: int
    passes: tuple[str, ...] = ()
    order: tuple[str, ...] = ()

    def plan(self, given: Subject) -> Plan:
        """:class:`PassError` for a pass that is none."""
        if not self.order:
            return Plan()
        pipeline, context = _default(self.level, backend_for(given.target, given.num_threads))
        return Plan.of(pipeline=_ordered(pipeline, self.passes, self.order, context))


def reordered(order: Sequence[str], level: int, backend: Backend) -> Sequential:
    """The default pipeline with some of its passes in another order, in the places that they have together; errors as
    those of :func:`orders`."""
    _require_several(order)
    pipeline, context = _default(level, backend)
    return _ordered(pipeline, sorted(order, key=lambda name: pipeline.find(name, context)[0].path), order, context)


def _default(level: int, backend: Backend) -> tuple[Sequential, PassContext]:
    with PassContext(level, config=PassContext.current().config) as context:
        return pipeline_for(backend), context


def _require_several(passes: Sequence[str]) -> None:
    if isinstance(passes, str) or len(passes) < 2 or len(set(passes)) < len(passes):
        raise ConfigError(f"{listing(passes)}: an order is of two or more different passes", hint="A,B or A,B,C")


def _permutations(passes: Sequence[str]) -> list[tuple[str, ...]]:
    _require_several(passes)
    if math.factorial(len(passes)) > MOST_ORDERS:
        raise ConfigError(
            f"{len(passes)} passes have {math.factorial(len(passes)):,} orders; {MOST_ORDERS} are tried at most",
            hint="name five passes or fewer",
        )
    return list(itertools.permutations(passes))


def _ordered(pipeline: Sequential, passes: Sequence[str], order: Sequence[str], context: PassContext) -> Sequential:
    """The pipeline with ``order`` in the places of ``passes``."""
    places = [pipeline.find(name, context)[0] for name in passes]
    steps: dict[str, Pass] = {name: place.step for name, place in zip(passes, places, strict=True)}
    for place, name in zip(places, order, strict=True):
        pipeline = pipeline.with_step(place, steps[name])
    return pipeline


# --- trying -----------------------------------------------------------------------------------------------------------


def tried(
    title: str,
    given: Subject,
    ways: Mapping[str, Way],
    rounds: int,
    on_progress: OnProgress | None = None,
    executor: Executor | None = None,
) -> Experiment:
    """A build for every way, the first one what the others' results are held beside."""
    backend_for(given.target, given.num_threads)  # what is wrong with it is no way's fault
    if executor is not None:
        return Experiment(title, tuple(_elsewhere(given, ways, rounds, on_progress, executor)))
    found: dict[str, Trial] = {}
    modules: dict[str, GraphModule] = {}
    first: list[np.ndarray] | None = None
    for done, (way, how) in enumerate(ways.items(), 1):
        try:
            modules[way] = module = given.runner(given.build(how.level, how.plan(given)))
            results = _results(module)
            found[way] = _trial(way, module, results, first)
            first = results if first is None else first
        except MiniTVMError as error:
            found[way] = Trial(way, refused=error.message)
        if on_progress is not None:
            on_progress(done, len(ways), way)
    return Experiment(title, tuple(_timed(found, modules, rounds)))


def _elsewhere(
    given: Subject, ways: Mapping[str, Way], rounds: int, on_progress: OnProgress | None, executor: Executor
) -> Iterator[Trial]:
    """Trials that an executor makes, in order."""
    config = dict(PassContext.current().config)
    futures = {way: executor.submit(_alone, way, given, how, rounds, config) for way, how in ways.items()}
    first: list[np.ndarray] | None = None
    for done, (way, future) in enumerate(futures.items(), 1):
        trial, results = future.result()
        if results and first is not None:
            trial = replace(trial, results=first_difference(results, first) or "equal")
        first = first or results
        if on_progress is not None:
            on_progress(done, len(ways), way)
        yield trial


def _alone(
    way: str, given: Subject, how: Way, rounds: int, config: dict[str, Any]
) -> tuple[Trial, list[np.ndarray] | None]:
    """One trial, and its results, in whatever process this is."""
    with PassContext(config=config):
        try:
            module = given.runner(given.build(how.level, how.plan(given)))
        except MiniTVMError as error:
            return Trial(way, refused=error.message), None
        results = _results(module)
        [trial] = _timed({way: _trial(way, module, results, None)}, {way: module}, rounds)
        return trial, results


def _results(module: GraphModule) -> list[np.ndarray]:
    return [np.array(value) for value in flatten(tuple(module.outputs()))]


def _trial(way: str, module: GraphModule, results: list[np.ndarray], first: list[np.ndarray] | None) -> Trial:
    artifact = module.instance.artifact
    figures = [artifact.metadata[node.func] for node in artifact.graph.nodes if node.is_kernel]
    said = "the first" if first is None else first_difference(results, first) or "equal"
    nbytes, memory = sum(f["bytes"] for f in figures), int(artifact.plan.nbytes)
    return Trial(way, len(figures), int(nbytes), memory, artifact.work_seconds, results=said)


def _timed(found: dict[str, Trial], modules: dict[str, GraphModule], rounds: int) -> list[Trial]:
    if not rounds or not modules:
        return list(found.values())
    times = side_by_side({way: module.run for way, module in modules.items()}, rounds)
    return [replace(trial, time=times.get(way)) for way, trial in found.items()]
