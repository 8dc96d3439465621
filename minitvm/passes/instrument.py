"""Instruments watch passes run: timing, printing, a log, verification with numbers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from minitvm.ir.decision import Exactness
from minitvm.ir.expr import Expr, Function, Module
from minitvm.ir.visitor import calls
from minitvm.passes.bound import Bound


@dataclass(frozen=True)
class PassInfo:
    """A pass's name, the lowest level that runs it, the passes to run before it, whether it rounds to fewer bits, by
    how much it moves results otherwise (``None``: it keeps their bits, or its rules state bounds of their own), and its
    exactness, as a rule states it (``None``: not stated)."""

    name: str
    opt_level: int = 0
    required: tuple[str, ...] = ()
    rounds: bool = False
    bound: Bound | None = None
    exactness: Exactness | None = None


class PassInstrument:
    """Base class: override what you want to watch.

    Order: ``enter_pass_ctx`` of all, then for each pass ``should_run`` of all, ``run_before_pass`` of all, the pass,
    ``run_after_pass`` of all; at the end ``exit_pass_ctx`` of all.  A pass runs where all ``should_run`` agree; passes
    in ``required_pass`` run without asking.  A pass that raises gets no ``run_after_pass``.
    """

    def enter_pass_ctx(self) -> None: ...

    def exit_pass_ctx(self) -> None: ...

    def should_run(self, module: Module, info: PassInfo) -> bool:
        return True

    def run_before_pass(self, module: Module, info: PassInfo) -> None: ...

    def run_after_pass(self, module: Module, info: PassInfo) -> None: ...


Kept = TypeVar("Kept")


class Running(threading.local, Generic[Kept]):
    """What an instrument keeps of the passes that are running now on a thread, the innermost last.

    A pass that raised, and whose error was caught, never ends: it is dropped when the one around it does.
    """

    def __init__(self) -> None:
        self.open: list[tuple[str, Kept]] = []

    @property
    def innermost(self) -> Kept | None:
        return self.open[-1][1] if self.open else None

    def begin(self, info: PassInfo, kept: Kept) -> None:
        self.open.append((info.name, kept))

    def end(self, info: PassInfo) -> Kept:
        name, kept = self.open.pop()
        while name != info.name:
            name, kept = self.open.pop()
        return kept


@dataclass
class _Run:
    """One run of a pass, and the seconds that the runs inside it took (a ``Sequential``'s)."""

    name: str
    start: float
    around: _Run | None
    depth: int
    seconds: float | None = None
    inside: float = 0.0

    def line(self, total: float) -> str:
        own = f"{'  ' * self.depth}{self.name}: "
        if self.seconds is None:
            return own + "did not finish"
        whole = total if self.around is None else self.around.seconds or 0.0
        share = 100 * self.seconds / whole if whole else 100.0
        rest = f", own {(self.seconds - self.inside) * 1e3:.2f} ms" if self.inside else ""
        return f"{own}{self.seconds * 1e3:.2f} ms ({share:.0f}%){rest}"


class PassTiming(PassInstrument):
    """Times every pass; ``render()`` gives a tree, inside or after the context."""

    def __init__(self) -> None:
        self.enter_pass_ctx()

    def enter_pass_ctx(self) -> None:
        self._runs: list[_Run] = []
        self._running = Running[_Run]()

    def run_before_pass(self, module: Module, info: PassInfo) -> None:
        self._runs.append(_Run(info.name, time.perf_counter(), self._running.innermost, len(self._running.open)))
        self._running.begin(info, self._runs[-1])

    def run_after_pass(self, module: Module, info: PassInfo) -> None:
        run = self._running.end(info)
        run.seconds = time.perf_counter() - run.start
        if run.around is not None:
            run.around.inside += run.seconds

    def render(self) -> str:
        """One line a pass: its time, its share of the pass around it, and the time not spent in passes inside."""
        total = sum(run.seconds or 0.0 for run in self._runs if run.around is None)
        return "\n".join([*(run.line(total) for run in self._runs), f"total: {total * 1e3:.2f} ms"])


@dataclass(frozen=True)
class PassRecord:
    """What one run of a pass did; calls are counted over all functions, fused groups included."""

    name: str
    seconds: float
    changed: bool
    calls_before: int
    calls_after: int
    depth: int = 0

    def __str__(self) -> str:
        effect = f"{self.calls_before} -> {self.calls_after} calls" if self.changed else "(unchanged)"
        return f"{'  ' * self.depth}{self.name:<28} {self.seconds * 1e3:8.2f} ms  {effect}"


class PassLog(PassInstrument):
    """Keeps a :class:`PassRecord` of every pass that ran, in order of completion, in ``records``."""

    def __init__(self) -> None:
        self.records: list[PassRecord] = []
        self._running = Running[tuple[float, int, Module]]()

    def run_before_pass(self, module: Module, info: PassInfo) -> None:
        self._running.begin(info, (time.perf_counter(), len(self._running.open), module))

    def run_after_pass(self, module: Module, info: PassInfo) -> None:
        start, depth, before = self._running.end(info)
        seconds, counts = time.perf_counter() - start, (count_calls(before), count_calls(module))
        self.records.append(PassRecord(info.name, seconds, module is not before, *counts, depth=depth))

    def __str__(self) -> str:
        return "\n".join(map(str, self.records))


def count_calls(module: Module) -> int:
    """Operator calls in a module; a call of a fused group counts as what is in the group."""
    return sum(_calls_in(function) for function in module.functions.values())


def _calls_in(root: Expr) -> int:
    return sum(_calls_in(call.op.body) if isinstance(call.op, Function) else 1 for call in calls(root))


class PrintIR(PassInstrument):
    """Prints the module before and after the passes named; ``"*"`` stands for all.

    ``PrintIR(after=["FuseOps"])``; without arguments it prints after every pass.
    """

    def __init__(
        self, before: Sequence[str] = (), after: Sequence[str] = (), write: Callable[[str], object] | None = None
    ) -> None:
        self.before = frozenset(before)
        self.after = frozenset(after) if before or after else frozenset({"*"})
        self.write = write

    def run_before_pass(self, module: Module, info: PassInfo) -> None:
        self._print(self.before, "before", module, info)

    def run_after_pass(self, module: Module, info: PassInfo) -> None:
        self._print(self.after, "after", module, info)

    def _print(self, wanted: frozenset[str], when: str, module: Module, info: PassInfo) -> None:
        if wanted & {info.name, "*"}:
            text = f"// {when} {info.name}\n{module.astext(show_meta_data=False)}\n"
            (self.write or sys.stdout.write)(text)
