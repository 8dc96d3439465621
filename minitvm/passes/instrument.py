"""Instruments watch passes run: timing, printing, a log, verification with numbers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from minitvm.errors import MiniTVMError, PassError, origin
from minitvm.ir.decision import decide
from minitvm.ir.evaluate import evaluate, evaluate_calls
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.op import Op
from minitvm.ir.structural import structural_hash
from minitvm.ir.verify import verify
from minitvm.ir.visitor import calls, children
from minitvm.passes.bound import Bound
from minitvm.passes.compare import DRAWS, Comparison, Draw, close, compare
from minitvm.passes.roundings import HALF_RTOL, RTOL, Results, flatten


@dataclass(frozen=True)
class PassInfo:
    """A pass's name, the lowest level that runs it, the passes to run before it, whether it rounds to fewer bits, and
    by how much it moves results otherwise (``None``: it keeps their bits, or its rules state bounds of their own)."""

    name: str
    opt_level: int = 0
    required: tuple[str, ...] = ()
    rounds: bool = False
    bound: Bound | None = None

    @property
    def draws(self) -> Sequence[Draw]:
        """The inputs that results are compared on; large ones may become infinite in fewer bits."""
        return DRAWS[:2] if self.rounds else DRAWS


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


Known = WeakKeyDictionary[Function, dict[Draw, Results]]
"""Results of modules' ``main``: what a pass made is what the next one is given."""


class NotCompared(PassError):
    """No random inputs tell whether a pass is right."""


class NumbersDiffer(PassError):
    """A pass changed what a module computes."""

    found: Comparison


class Verify(PassInstrument):
    """Checks modules between passes; raises :class:`PassError` that names the pass.

    ``numbers``: also run both modules through the operators' references on random inputs, and name the first call
    whose value has no equal any more; :class:`NotCompared` where that says nothing.  A pass that changes the module
    it was given is caught by its hash.
    """

    def __init__(self, numbers: bool = True, rtol: float = RTOL, seed: int = 0) -> None:
        self.numbers = numbers
        self.rtol = rtol
        self.seed = seed
        self._known: Known = WeakKeyDictionary()
        self._running = Running[tuple[Module, int]]()

    def run_before_pass(self, module: Module, info: PassInfo) -> None:
        self._running.begin(info, (module, structural_hash(module)))

    def run_after_pass(self, module: Module, info: PassInfo) -> None:
        before, hash_before = self._running.end(info)
        if structural_hash(before) != hash_before:
            raise PassError(f"pass {info.name} changed the module that it was given", hint="build new nodes instead")
        if module is before:
            return
        try:
            verify(module)
        except MiniTVMError as error:
            raise PassError(
                f"pass {info.name} made a module that is not valid: {error.message}", where=error.where
            ) from error
        if self.numbers:
            self._compare(before, module, info)

    def _rtol_for(self, info: PassInfo) -> float:
        return max(self.rtol, HALF_RTOL) if info.rounds else self.rtol

    def _compare(self, before: Module, after: Module, info: PassInfo) -> None:
        name = info.name
        found = compare_numbers(before, after, f"pass {name}", self._rtol_for(info), self.seed, info.draws, self._known)
        decide("Verify", name, str(found))
        if not found.agreed:
            raise NotCompared(
                f"pass {name} changed a module whose numbers cannot be compared",
                where=[f"inputs that are {draw}: {why}" for draw, why in found.skipped.items()],
                hint="instruments=[Verify(numbers=False)] checks its form alone",
            )


def compare_numbers(
    before: Module,
    after: Module,
    what: str,
    rtol: float = RTOL,
    seed: int = 0,
    draws: Sequence[Draw] = DRAWS,
    known: Known | None = None,
) -> Comparison:
    """Run both ``main`` functions on random inputs; :class:`NumbersDiffer` where the results do.

    The error names the output and the first call that the second module computes and the first one does not: the
    earliest whose operands all have values that occur in the first module.  Says what was compared, which may be
    nothing: inputs that are untyped or very large, or that the module before raises on.
    """
    known = WeakKeyDictionary() if known is None else known

    def run(inputs: list[Any]) -> Any:
        given = arguments_for(before.main, after.main, inputs, what)
        try:
            return evaluate(after, *given)
        except MiniTVMError as error:
            failed = f"{what} made a module that fails where the one before did not: {error.message}"
            raise PassError(failed, where=error.where) from error

    found = compare(before.main, run, rtol, seed, draws, known.get(before.main), after.main)
    known[after.main] = found.results
    if found.difference:
        given = arguments_for(before.main, after.main, found.inputs, what)
        error = NumbersDiffer(
            f"{what} changed {found.difference}",
            where=_first_difference(before.main, after.main, found.inputs, given, rtol),
            hint="both modules ran through the operators' references on the same random inputs",
        )
        error.found = found
        raise error
    return found


def arguments_for(before: Function, after: Function, inputs: list[Any], what: str = "it") -> list[Any]:
    """The same inputs for ``after``: by name, since a pass may bind parameters."""
    by_name = {p.name: value for p, value in zip(before.params, inputs, strict=True)}
    missing = [p.name for p in after.params if p.name not in by_name]
    if missing:
        raise PassError(f"{what} added parameters: {', '.join(missing)}")
    return [by_name[p.name] for p in after.params]


def _first_difference(before: Function, after: Function, inputs: list[Any], given: list[Any], rtol: float) -> list[str]:
    """The first call of ``after`` whose new value leads to a wrong result through new values only.

    A value is new where no call of ``before`` computes it; a correct rewrite makes new values too, but what uses
    them is as before.
    """
    known: dict[tuple[Any, ...], list[np.ndarray]] = {}
    for leaf in (leaf for _, value in evaluate_calls(before, *inputs) for leaf in flatten(value)):
        known.setdefault((leaf.shape, leaf.dtype.name), []).append(leaf)

    def is_new(leaf: np.ndarray) -> bool:
        return not any(close(leaf, k, rtol) for k in known.get((leaf.shape, leaf.dtype.name), ()))

    new = {call for call, value in evaluate_calls(after, *given) if any(map(is_new, flatten(value)))}
    reached = _reached(after.body, new)
    suspects = [call for call in calls(after) if call in reached]
    if not suspects:
        return []
    first = suspects[0]
    name = first.op.name if isinstance(first.op, Op) else str(first.op.attrs.get("name", "a function"))
    return [f"the first new value is computed by {name}: {first.checked_type} {origin(first.span)}".rstrip()]


def _reached(root: Expr, new: set[Call]) -> set[Expr]:
    """The calls in ``new`` that a walk from the result meets without passing a call that is not."""
    seen: set[Expr] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if node not in seen and (not isinstance(node, Call) or node in new):
            seen.add(node)
            pending.extend(children(node))
    return seen
