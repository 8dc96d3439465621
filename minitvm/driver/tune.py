"""Tuning: what templates could make of a model's kernels is tried, and how each did is written down, a line a trial.

Where the target's machine is there, kernels are measured; else only their code is asked what it needs, and their costs
are predicted again from that.  What a file has already is not tried again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from minitvm import config
from minitvm.codegen.problem import Choice, Template
from minitvm.codegen.records import Key, Record, key_of, read, trying
from minitvm.driver.compile import alone, backend_for, optimize_for
from minitvm.driver.kernels import KernelCompiler, Progress
from minitvm.driver.program import read_program
from minitvm.driver.roofline import rates_of
from minitvm.errors import CompilerError, ConfigError, DeviceError, MiniTVMError, as_raised
from minitvm.ir.expr import Function, Module
from minitvm.passes.draws import random_value
from minitvm.passes.manager import PassContext
from minitvm.runtime.cache import KernelCache
from minitvm.runtime.debug import GraphModuleDebug
from minitvm.runtime.graph import Node
from minitvm.runtime.library import Library
from minitvm.runtime.measured import Measured, again
from minitvm.runtime.roofline import cost_of
from minitvm.target import Rates

SECONDS_OF_A_TRIAL = 0.05
_MOST_RUNS = 100


@dataclass(frozen=True)
class Task:
    """A problem, and the first of the model's kernels that a template makes for it."""

    symbol: str
    group: Function
    template: Template

    def trials(self, most: int) -> list[Trial]:
        """The most promising choices, as predicted."""
        key = asdict(key_of(self.template))
        choices = [choice for choice in self.template.candidates if not choice.why_not][:most]
        return [Trial(self, choice, Record(**key, choice=str(choice), cycles=choice.cycles)) for choice in choices]


@dataclass(frozen=True)
class Trial:
    task: Task
    choice: Choice
    record: Record


@dataclass
class Tuned:
    """What came of it: how many of ``total`` trials were made ``now``, were ``known``; why none was measured."""

    total: int
    known: int = 0
    now: int = 0
    not_measured: str = ""

    @property
    def is_whole(self) -> bool:
        return self.known + self.now == self.total

    def count(self, record: Record | None, before: Record | None, file: IO[str]) -> None:
        """Counts a trial, and writes its record where it says something that was not known before."""
        if record is None or record == before:
            self.known += 1
            return
        print(record, file=file, flush=True)
        self.now += 1


def tasks(module: Module, params: dict[str, Any], compiler: KernelCompiler, opt_level: int | None = None) -> list[Task]:
    """The problems of a module's kernels for which a template has a choice, what is predicted to take longest first.

    Empties ``params``.
    """
    main = optimize_for(compiler.backend, module, params, opt_level).main
    found: dict[Key, Task] = {}
    for symbol, group in read_program(main).groups.items():
        template = _template(symbol, group, compiler)
        if template is not None and template.problem.is_static and len(template.candidates) > 1:
            found.setdefault(key_of(template), Task(symbol, group, template))
    return sorted(found.values(), key=lambda task: -task.template.choice.cycles)


def _template(symbol: str, group: Function, compiler: KernelCompiler) -> Template | None:
    backend = compiler.backend
    if backend.library_call(group, symbol) is not None:
        return None
    try:
        return backend.lower(group, symbol).template
    except CompilerError:  # it will run in Python
        return None


def tuned(
    module: Module,
    params: dict[str, Any],
    compiler: KernelCompiler,
    opt_level: int | None,
    path: Path,
    budget: float,
    most: int,
    on_progress: Progress | None,
    executor: Executor | None,
) -> Tuned:
    """:func:`tune` of all :func:`tasks` of a module."""
    return tune(tasks(module, params, compiler, opt_level), compiler, path, budget, most, on_progress, True, executor)


def tune(
    found: Sequence[Task],
    compiler: KernelCompiler,
    path: Path,
    budget: float,
    most: int = 8,
    on_progress: Progress | None = None,
    measures: bool = True,
    executor: Executor | None = None,
) -> Tuned:
    """Try ``most`` choices of every task for ``budget`` seconds at most, the best ones of all tasks first.

    ``measures``: false where their code is only asked for what it needs, and kept for whoever measures it later.
    ``executor``: who tries them, in processes or on machines of the same kind; here without one.  Lines are the same,
    and in the same order, but for what is measured.
    Raises :class:`ConfigError` where ``path`` holds something else, or the budget is too small for anything.
    """
    if not budget > 0:
        raise ConfigError(f"the budget is {budget} seconds, in which nothing can be tried", hint="give some more")
    known = {(r.key, r.choice): r for r in read(path)} if path.exists() else {}
    rounds = [list(enumerate(task.trials(most))) for task in found]
    trials = [trial for _, trial in sorted((t for tried in rounds for t in tried), key=lambda t: t[0])]
    state, end = Tuned(len(trials), not_measured="" if measures else "nobody asked"), time.monotonic() + budget
    tuner = _Tuner(compiler, state) if executor is None else _Sent(compiler, state, executor=executor)
    with path.open("a", encoding="utf-8") as file, tuner:
        tuner.begin([(trial, known.get((trial.record.key, trial.record.choice))) for trial in trials])
        for done, trial in enumerate(trials, 1):
            if time.monotonic() > end:
                break
            before = known.get((trial.record.key, trial.record.choice))
            record = None if tuner.is_known(trial, before) else tuner.tried(trial, before)
            state.count(record, before, file)
            if on_progress is not None:
                with as_raised():
                    on_progress(done, len(trials), trial.task.symbol)
    return state


@dataclass
class _Tuner(AbstractContextManager[None]):
    compiler: KernelCompiler
    state: Tuned
    measures: bool = False
    """It is known that kernels can be."""

    def begin(self, trials: Sequence[tuple[Trial, Record | None]]) -> None:
        """All trials, with what is known of them, before the first one."""

    def __exit__(self, *_: object) -> None:
        """Trials that nobody asked for are left."""

    def is_known(self, trial: Trial, record: Record | None) -> bool:
        """What was only predicted may be measured now; whether it can be, the first trial says."""
        if record is None:
            return False
        return record.seconds is not None or record.why_not != "" or not self._can_measure(trial)

    def _can_measure(self, trial: Trial) -> bool:
        self.measures = self.measures or (not self.state.not_measured and self._instance(trial) is not None)
        return self.measures

    def tried(self, trial: Trial, known: Record | None = None) -> Record:
        """The choice's record; ``known`` has what its code says."""
        record = known or self._predicted(trial)
        if record.why_not or self.state.not_measured:
            return record
        try:
            found = self._measured(trial)
        except DeviceError as error:  # a kernel that faults; later ones have a context of their own
            return replace(record, why_not=error.message)
        if found is None:
            return record
        return replace(record, seconds=found.seconds if found.is_reliable else None, verdict=found.verdict)

    def _predicted(self, trial: Trial) -> Record:
        task, compiler = trial.task, self.compiler
        with trying(trial.record):
            source = compiler.source(task.symbol, task.group)
            cycles, why_not = compiler.backend.judged(task.template, trial.choice, source)
            if not why_not:
                compiler.image_of(source)
        return replace(trial.record, cycles=round(cycles, 1), why_not=why_not)

    def _instance(self, trial: Trial) -> GraphModuleDebug | None:
        """The kernel alone, where it can run."""
        task = trial.task
        with trying(trial.record):
            code = self.compiler.fresh(task.symbol, task.group)
        library = alone(task.symbol, task.group, code, self.compiler)
        try:
            return GraphModuleDebug(_on_device(library))
        except MiniTVMError as error:
            self.state.not_measured = error.message
            return None

    def _measured(self, trial: Trial) -> Measured | None:
        """The least of some runs; of several attempts, where it is below its floor or far from the others."""
        module = self._instance(trial)
        if module is None:
            return None
        rng = np.random.default_rng(0)
        feeds = {name: random_value(type_, rng) for name, type_ in module.input_types().items()}
        node, first = _seconds(module, feeds, trial.task.symbol, 3)
        runs = int(min(_MOST_RUNS, max(3, SECONDS_OF_A_TRIAL / max(min(first), 1e-7))))
        floor = cost_of(module.instance.artifact, node).floor(self.rates)

        def attempt() -> Measured:
            _, seconds = _seconds(module, {}, trial.task.symbol, runs)
            least, low = min(seconds), float(np.quantile(seconds, 0.25))  # others can only have lengthened a run
            spread = low / least - 1 if least > 0 else 0.0
            return Measured(float(f"{least:.4g}"), spread, runs).judged(floor)

        return again(attempt, lambda found: not found.is_reliable)

    @cached_property
    def rates(self) -> Rates:
        return rates_of(self.compiler.backend)


@dataclass
class _Sent(_Tuner):
    """Trials that an executor makes; whether kernels can be measured, it says with the first one."""

    executor: Executor = field(kw_only=True)
    futures: dict[tuple[Key, str], Future[tuple[Record, str]]] = field(default_factory=dict, init=False)

    def begin(self, trials: Sequence[tuple[Trial, Record | None]]) -> None:
        how, measures = dict(PassContext.current().config), not self.state.not_measured
        backend = self.compiler.backend
        for trial, known in trials:
            if not self.is_known(trial, known):
                task = (trial.task.symbol, trial.task.group, str(backend.target), backend.machine.threads)
                sent = self.executor.submit(_tried_there, task, trial.record, known, how, measures)
                self.futures[trial.record.key, trial.record.choice] = sent

    def __exit__(self, *_: object) -> None:
        for future in self.futures.values():
            future.cancel()

    def _can_measure(self, trial: Trial) -> bool:
        return not self.state.not_measured

    def tried(self, trial: Trial, known: Record | None = None) -> Record:
        record, self.state.not_measured = self.futures[trial.record.key, trial.record.choice].result()
        return record


def _tried_there(
    task: tuple[str, Function, str, int], asked: Record, known: Record | None, how: dict[str, Any], measures: bool
) -> tuple[Record, str]:
    """One trial in whatever process this is; its record, and why it was not measured.

    :class:`ConfigError` on a machine of another kind, whose figures would count for nothing.
    """
    symbol, group, target, threads = task
    with PassContext(config=how):
        compiler = KernelCompiler(backend_for(target, threads), KernelCache(config.cache_dir()))
        template = _template(symbol, group, compiler)
        if template is None or key_of(template) != asked.key:
            raise ConfigError(
                f"{asked.template} is tuned for {asked.machine}, and a worker is another machine",
                hint="workers have to be machines of one kind",
            )
        [choice] = [choice for choice in template.candidates if str(choice) == asked.choice]
        state = Tuned(1, not_measured="" if measures else "nobody asked")
        tuner = _Tuner(compiler, state)
        return tuner.tried(Trial(Task(symbol, group, template), choice, asked), known), state.not_measured


def _on_device(library: Library) -> Any:
    return library["default"](library.device())


def _seconds(
    module: GraphModuleDebug, feeds: Mapping[str, Any], symbol: str, runs: int
) -> tuple[Node, tuple[float, ...]]:
    [found] = [record for record in module.run_quietly(feeds, runs) if record.node.func == symbol]
    return found.node, found.seconds
