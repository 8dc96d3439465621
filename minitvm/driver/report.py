"""What a build did and why: its passes, its decisions, and every kernel's stages, made again on demand."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from minitvm.codegen.listing import Listing
from minitvm.codegen.lower import Lowering, plain
from minitvm.codegen.problem import Choice
from minitvm.codegen.schedule_steps import Steps
from minitvm.codegen.scheduled import Scheduled
from minitvm.doors import door, left_out
from minitvm.driver.kernels import KernelCompiler, Timings
from minitvm.driver.program import group_cost
from minitvm.errors import CompilerError, ConfigError
from minitvm.ir.decision import Decision, Decisions, decisions, name_of
from minitvm.ir.expr import Call, Expr, Function, Module, Tuple, TupleGetItem
from minitvm.ir.loop import Kernel
from minitvm.ir.text import operands
from minitvm.ir.visitor import as_function, calls, post_order, rewrite
from minitvm.passes.instrument import PassInfo, PassInstrument, Running
from minitvm.passes.manager import closest
from minitvm.runtime.cost import Cost
from minitvm.runtime.graph import Artifact, Graph
from minitvm.shown import Shown

_LOG = logging.getLogger("minitvm")


@dataclass(frozen=True, repr=False)
class PassStep(Shown):
    """One run of a pass: what it decided, and the module before and after it where the build was asked to trace."""

    name: str
    decisions: tuple[Decision, ...]
    modules: tuple[Module, Module] | None = None
    seconds: float = 0.0
    """Of passes inside it, too."""
    depth: int = 0
    """How many passes are around it."""

    def __repr__(self) -> str:
        return f"<a run of {self.name}: {len(self.decisions)} decisions>"

    @property
    def before(self) -> Module:
        return self._traced[0]

    @property
    def after(self) -> Module:
        return self._traced[1]

    @property
    def _traced(self) -> tuple[Module, Module]:
        if self.modules is None:
            raise ConfigError(f"the module around {self.name} was not kept", hint="minitvm.build(..., trace=True)")
        return self.modules


class Recorder(PassInstrument):
    """Keeps a :class:`PassStep` for every pass; with ``trace`` also the modules, and with them their weights.

    ``log`` is where decisions arrive; those of a pass inside another are the inner one's.
    """

    def __init__(self, log: list[Decision], trace: bool) -> None:
        self.steps: list[PassStep] = []
        self._log = log
        self._trace = trace
        self._running = Running[tuple[list[Decision], Module | None, float]]()
        self._claimed = 0
        self._present: dict[str, str] | None = None

    def run_before_pass(self, module: Module, info: PassInfo) -> None:
        self._claim()
        if self._present is None:
            self._present = _origins(module)
        self._running.begin(info, ([], module if self._trace else None, time.perf_counter()))

    def run_after_pass(self, module: Module, info: PassInfo) -> None:
        self._claim()
        decided, before, start = self._running.end(info)
        decided += self._gone(info.name, module, decided)
        modules, depth = None if before is None else (before, module), len(self._running.open)
        self.steps.append(PassStep(info.name, tuple(decided), modules, time.perf_counter() - start, depth))

    def _gone(self, by: str, module: Module, decided: list[Decision]) -> list[Decision]:
        """The model's nodes of which a pass leaves no call, where it did not say so itself."""
        before, self._present = self._present or {}, _origins(module)
        told = {name for one in decided for name in one.spans}
        lost = [(name, about) for name, about in before.items() if name not in self._present and name not in told]
        return [Decision(by, about, True, "no call comes from it any more", (name,)) for name, about in lost]

    def _claim(self) -> None:
        """What was decided since is the innermost running pass's."""
        if self._running.innermost is not None:
            self._running.innermost[0].extend(self._log[self._claimed :])
        self._claimed = len(self._log)


def _origins(module: Module) -> dict[str, str]:
    """The model's nodes that calls of ``main`` come from, each with the first one's operator."""
    found: dict[str, str] = {}
    for call in calls(module.main.body):
        for name in call.span:
            if name not in found:
                found[name] = name_of(call)
    return found


@dataclass(frozen=True, repr=False)
class KernelReport(Shown):
    """One kernel: its group, its predicted cost, who writes its loops and why, and its way to machine code."""

    symbol: str
    group: Function
    compiler: KernelCompiler = field(repr=False)

    def __repr__(self) -> str:
        return f"<kernel {self.symbol}: {' -> '.join(map(name_of, calls(self.group.body)))}>"

    @cached_property
    def _lowering(self) -> Lowering | None:
        if self.compiler.library_call(self.symbol, self.group) is not None:
            return None
        with decisions() as log:
            found = self.compiler.lowered(self.symbol, self.group)
        return replace(found, decisions=tuple(log))

    @property
    def template(self) -> str:
        """What writes the loops: a template, a given schedule, or the default nests; or that there are none."""
        return "call of a library" if self._lowering is None else self._lowering.chosen

    @property
    def steps(self) -> Steps:
        """The steps that make the template's loops of its plain ones; ``print`` shows a line for each.

        :class:`CompilerError` where the loops are written in another way.
        """
        made_by = None if self._lowering is None else self._lowering.template
        if not isinstance(made_by, Scheduled):
            hint = "'loops' is the stage that has what was written; docs/write-a-schedule.md: one of your own"
            raise CompilerError(f"the loops of {self.symbol} are no list of steps: {self.template}", hint=hint)
        return made_by.steps()

    @property
    def candidates(self) -> tuple[Choice, ...]:
        """The template's search space: what was taken, then the others, the fastest as predicted first."""
        made_by = None if self._lowering is None else self._lowering.template
        return () if made_by is None else made_by.candidates

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions of its lowering, and of binding what no schedule bound."""
        if self._lowering is None:
            return ()
        with decisions() as binding:
            self.compiler.backend.bind(self.loops)
        return (*self._lowering.decisions, *binding)

    @property
    def cost(self) -> Cost:
        """Operations, bytes, and what the machine model predicts; the cycles are those of a template's tiles."""
        cycles = 0.0 if self._lowering is None else self._lowering.cycles
        return group_cost(self.group, self.compiler.backend.machine, cycles)

    @property
    def seconds(self) -> float:
        """The predicted seconds on one thread."""
        return self.cost.seconds(self.compiler.backend.machine.rates(1))

    @cached_property
    def plain(self) -> Kernel:
        """The loops of the operators' compute rules, before any schedule."""
        return plain(self.group, self.symbol)

    @cached_property
    def loops(self) -> Kernel:
        """The loops before legalization."""
        return self.compiler.lowered(self.symbol, self.group).kernel

    @cached_property
    def legalized(self) -> Kernel:
        """The loops as they are emitted."""
        return self.compiler.kernel(self.symbol, self.group)

    def listings(self, kind: str = "") -> tuple[Listing, ...]:
        """The texts of its way to code, line by line, by the build's back end or one of another kind (``cuda``)."""
        return self.compiler.listings(self.symbol, self.group, kind)

    def text(self, stage: str) -> str:
        """The kernel as ``loops``, or at a stage that a back end offers: ``llvm``, ``asm``, ``cuda``."""
        return self.compiler.text(self.symbol, self.group, stage)


@dataclass(repr=False)
class BuildReport(Shown):
    """What a build did: seconds by stage, passes, decisions, kernels."""

    timings: Timings
    compiler: KernelCompiler
    steps: list[PassStep] = field(default_factory=list)
    imported: list[Decision] = field(default_factory=list)
    """What became of the model's nodes of which no call was left when it was read."""
    placement: list[Decision] = field(default_factory=list)
    """What has no kernel, and why."""
    groups: dict[str, Function] = field(default_factory=dict)
    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By kernel, the model's nodes that it computes, wherever it is called."""
    module: Module | None = None
    """The module after all passes; kept where the build was asked to ``trace``."""
    cache_hits: int = 0
    cache_misses: int = 0
    undecided: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By kernel, the results that could not be shown to be stored whole, and why."""
    artifact: Artifact | None = None
    """What was built."""

    def __repr__(self) -> str:
        stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.seconds.items())
        return f"<report of {len(self.steps)} passes and {len(self.groups)} kernels: {stages} seconds>"

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each stage, of all threads together."""
        return dict(self.timings.seconds)

    @property
    def decisions(self) -> Decisions:
        """All that passes did and declined, why kernels are made as they are, and what has none; in order."""
        return Decisions(d for _, decided in self._stages(list(self.groups)) for d in decided)

    def log(self) -> None:
        """Every kernel's operators and loops, where Python's log shows debugging: TVM's dump after fusion."""
        if _LOG.isEnabledFor(logging.DEBUG):
            for name, group in self.groups.items():
                library = group.attrs.get("library")
                _LOG.debug("%s\n%s\n%s", name, group, f"a call of {library}" if library else self.kernel(name).loops)

    def add_program(
        self, graph: Graph, groups: Mapping[str, Function], undecided: Mapping[str, tuple[str, ...]]
    ) -> None:
        """The kernels of a graph, of which nodes they are, and what could not be shown of them; a branch's gets a prime
        where its name is taken."""
        names = {symbol: symbol + "'" * sum(n.rstrip("'") == symbol for n in self.groups) for symbol in groups}
        self.groups.update({names[symbol]: group for symbol, group in groups.items()})
        self.undecided.update({names[symbol]: why for symbol, why in undecided.items() if why and symbol in names})
        for node in graph.nodes:
            if node.is_kernel:
                name = names[node.func]
                self.nodes[name] = tuple(dict.fromkeys((*self.nodes.get(name, ()), *node.spans)))

    def kernel(self, symbol: str) -> KernelReport:
        """All about one kernel; :class:`CompilerError` where there is no such kernel."""
        if symbol not in self.groups:
            raise CompilerError(f"there is no kernel {symbol!r}", hint=f"kernels: {', '.join(self.groups)}")
        return KernelReport(symbol, self.groups[symbol], self.compiler)

    def runs(self, name: str) -> list[PassStep]:
        """The runs of a pass, in order; ``FoldConstant#2`` is the second one alone.

        :class:`ConfigError` where there is none, which names those that ran.
        """
        wanted, hash_, number = name.partition("#")
        found = [step for step in self.steps if step.name == wanted]
        known = dict.fromkeys(step.name for step in self.steps)
        if not found:
            raise ConfigError(f"no pass {wanted!r} ran", hint=closest(wanted, list(known)))
        if not hash_:
            return found
        if not number.isdecimal() or not 1 <= int(number) <= len(found):
            raise ConfigError(f"{wanted} has no run {number!r}", hint=f"it ran {len(found)} times: {wanted}#1 and on")
        return [found[int(number) - 1]]

    def explain(self, *, kernel: str | None = None, node: str | None = None, pass_name: str | None = None) -> Any:
        """Explains why a kernel, a node of the model or a pass's result is as it is: a ``lab.Explanation``."""
        return explained(self, kernel=kernel, node=node, pass_name=pass_name)

    def why(self, name: str) -> dict[str, tuple[Decision, ...]]:
        """What was decided about a node of the model or a kernel, by pass and kernel; ``*`` stands for anything.

        :class:`ConfigError` where nothing was.
        """
        kernels = [s for s, nodes in self.nodes.items() if any(fnmatchcase(n, name) for n in (s, *nodes))]
        named = {n for s in kernels if fnmatchcase(s, name) for n in self.nodes[s]}
        found: dict[str, tuple[Decision, ...]] = {}
        for stage, decided in self._stages(kernels):
            about = [d for d in decided if stage in kernels or _is_about(d, name, named)]
            if about:
                found[stage] = (*found.get(stage, ()), *about)
        if not found:
            raise ConfigError(f"nothing was decided about {name!r}", hint="--kernel list names kernels and nodes")
        return found

    def view(self, path: str | os.PathLike[str] = "report.html", title: str = "", profile: Any = None) -> Path:
        """Write all of it as one HTML file, to be looked at in a browser (``docs/viewer.md``); the file's path.

        With measured times where a ``profile`` is given, that of ``minitvm.lab.profile(library)``.  Builds with
        ``trace=True`` only: :class:`ConfigError` else.
        """
        return page_written(self, path, title, profile)

    def _stages(self, kernels: list[str]) -> Iterator[tuple[str, tuple[Decision, ...]]]:
        """Every decision once, with the pass or kernel that it was made for."""
        yield "from_onnx", tuple(self.imported)
        yield from ((step.name, step.decisions) for step in self.steps)
        yield "placement", tuple(self.placement)
        yield from ((symbol, self.kernel(symbol).decisions) for symbol in kernels)


@door
def explained(report: BuildReport, *, kernel: str | None, node: str | None, pass_name: str | None) -> Any:
    """Decisions of a build in sentences."""
    raise left_out("report.explain")


@door
def page_written(report: BuildReport, path: str | os.PathLike[str], title: str, profile: Any) -> Path:
    """A report as one HTML file."""
    raise left_out("report.view")


def with_names(module: Module) -> Module:
    """The module with names for the calls of ``main`` that come from no node of a model: ``relu_2`` is ``%2`` of its
    text."""
    others = set(module.functions.values())
    bound = [n for n in post_order(module.main.body, operands=operands) if isinstance(n, (Call, Tuple, Function))]
    numbers = {node: number for number, node in enumerate(n for n in bound if n not in others)}

    def visit(old: Expr, new: Expr) -> Expr:
        if isinstance(new, TupleGetItem) and new.tuple.span and not old.span:
            return TupleGetItem(new.tuple, new.index)
        if old.span or old not in numbers or not isinstance(new, Call):
            return new
        return new.over(new.args, (f"{name_of(new).rpartition('.')[2]}_{numbers[old]}",))

    return module.with_function("main", as_function(rewrite(module.main, visit)))


def _is_about(decided: Decision, name: str, named: set[str]) -> bool:
    return any(span in named or fnmatchcase(span, name) for span in decided.spans or ("",))
