"""Instruments watch passes run: timing, printing, a log, verification with numbers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minitvm.ir.expr import Expr, Function, Module
from minitvm.ir.visitor import calls


@dataclass(frozen=True)
class PassInfo:
    """A pass's name, the lowest level that runs it, and the passes to run before it."""

    name: str
    opt_level: int = 0
    required: tuple[str, ...] = ()


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


@dataclass
class _Node:
    """One run of a pass and the runs inside it (a ``Sequential``'s)."""

    name: str
    start: float
    depth: int
    seconds: float | None = None
    inside: list[_Node] = field(default_factory=list)


class _Stack:
    """The passes that are running now.  A pass that raised is dropped when the one around it ends."""

    def __init__(self) -> None:
        self.roots: list[_Node] = []
        self._open: list[_Node] = []

    def begin(self, name: str) -> None:
        node = _Node(name, time.perf_counter(), len(self._open))
        (self._open[-1].inside if self._open else self.roots).append(node)
        self._open.append(node)

    def end(self, name: str) -> _Node:
        while self._open[-1].name != name:
            self._open.pop()
        node = self._open.pop()
        node.seconds = time.perf_counter() - node.start
        return node

    def clear(self) -> None:
        self._open.clear()


class PassTiming(PassInstrument):
    """Times every pass; ``render()`` gives a tree, inside or after the context."""

    def __init__(self) -> None:
        self._stack = _Stack()

    def enter_pass_ctx(self) -> None:
        self._stack = _Stack()

    def run_before_pass(self, module: Module, info: PassInfo) -> None:
        self._stack.begin(info.name)

    def run_after_pass(self, module: Module, info: PassInfo) -> None:
        self._stack.end(info.name)

    def render(self) -> str:
        """One line a pass: its time, its share of the pass around it, and the time not spent in passes inside."""
        total = sum(node.seconds or 0.0 for node in self._stack.roots)
        lines = [line for node in self._stack.roots for line in _timing_lines(node, total)]
        return "\n".join([*lines, f"total: {total * 1e3:.2f} ms"])


def _timing_lines(node: _Node, around: float) -> list[str]:
    own = "  " * node.depth + node.name
    if node.seconds is None:
        lines = [f"{own}: did not finish"]
    else:
        share = 100 * node.seconds / around if around else 100.0
        rest = node.seconds - sum(child.seconds or 0.0 for child in node.inside)
        lines = [
            f"{own}: {node.seconds * 1e3:.2f} ms ({share:.0f}%)" + (f", own {rest * 1e3:.2f} ms" * bool(node.inside))
        ]
    return lines + [line for child in node.inside for line in _timing_lines(child, node.seconds or 0.0)]


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
        self._stack = _Stack()
        self._before: list[tuple[str, Module]] = []

    def run_before_pass(self, module: Module, info: PassInfo) -> None:
        self._before.append((info.name, module))
        self._stack.begin(info.name)

    def run_after_pass(self, module: Module, info: PassInfo) -> None:
        node = self._stack.end(info.name)
        before = _pop_until(self._before, info.name)
        changed = module is not before
        counts = count_calls(before), count_calls(module)
        self.records.append(PassRecord(info.name, node.seconds or 0.0, changed, *counts, depth=node.depth))

    def __str__(self) -> str:
        return "\n".join(map(str, self.records))


def _pop_until(stack: list[tuple[str, Module]], name: str) -> Module:
    while stack[-1][0] != name:  # a pass that raised, and whose error was caught, never ended
        stack.pop()
    return stack.pop()[1]


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
        self,
        before: Sequence[str] = (),
        after: Sequence[str] = (),
        write: Callable[[str], object] | None = None,
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
