"""A cursor that writes one LLVM function: registers, blocks, loops, and which registers are visible where."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

Lines: TypeAlias = "list[str | Lines]"
"""Text in the order of execution; what stands before a loop grows while the loop is written."""

_REGISTER = re.compile(r"%[inv]\d+")


@dataclass(frozen=True, slots=True)
class Saved:
    """A point in the text to return to when an attempt is given up."""

    lines: int
    loops: int
    scopes: int
    known: int
    guard: int
    block: str


@dataclass
class Writer:
    """Text in order of emission.  ``pure`` reuses a register that already holds the same instruction's result.

    Registers have a level: how many loops are around them, or need to be.  A pure instruction is written before the
    loops that do not change its operands.
    """

    lines: Lines = field(default_factory=list)
    allocas: list[str] = field(default_factory=list)
    declarations: dict[str, str] = field(default_factory=dict)
    metadata: list[str] = field(default_factory=list)
    is_shaped: bool = True
    """No loop is LLVM's to unroll or vectorize."""
    block: str = "start"
    _count: int = 0
    _known: dict[str, str] = field(default_factory=dict)
    _scopes: list[list[str]] = field(default_factory=lambda: [[]])
    _loops: list[tuple[Lines, list[str]]] = field(default_factory=list)  # lines before each open one, and their scope
    _levels: dict[str, int] = field(default_factory=dict)
    _guard: int = 0  # loops around the innermost condition

    def name(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def op(self, text: str) -> str:
        """Emit an instruction, return its register."""
        return self._write(text, self.lines, len(self._loops))

    def _write(self, text: str, lines: Lines, level: int) -> str:
        self._count += 1
        register = f"%v{self._count}"
        self._levels[register] = level
        lines.append(f"  {register} = {text}")
        return register

    def pure(self, text: str, reads: bool = False) -> str:
        """As :meth:`op`, for instructions without effects.  One that ``reads`` memory stays behind its conditions."""
        register = self._known.get(text)
        if register is None:
            level = max(map(self.level, _REGISTER.findall(text)), default=0)
            level = max(level, self._guard) if reads else level
            inside = level == len(self._loops)
            lines, scope = (self.lines, self._scopes[-1]) if inside else self._loops[level]
            register = self._known[text] = self._write(text, lines, level)
            scope.append(text)
        return register

    def level(self, register: str) -> int:
        """How many loops a register needs around it; 0 for a literal."""
        return self._levels.get(register, 0)

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def declare(self, symbol: str, text: str) -> None:
        self.declarations.setdefault(symbol, text)

    def alloca(self, element: str, count: int) -> str:
        self._count += 1
        register = f"%a{self._count}"
        self.allocas.append(f"  {register} = alloca [{max(count, 1)} x {element}], align 64")
        return register

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, condition: str, then: str, orelse: str) -> None:
        self.do(f"br i1 {condition}, label %{then}, label %{orelse}")

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A block of its own, behind a condition: registers written inside are not visible after it."""
        outer = self._guard
        self._guard = len(self._loops)
        self._scopes.append([])
        yield
        self._forget(len(self._scopes) - 1)
        self._guard = outer

    def _forget(self, scopes: int, known: int | None = None) -> None:
        """What was written in the scopes from that number on, and in the last one left from ``known`` on."""
        gone = self._scopes[scopes:]
        del self._scopes[scopes:]
        if known is not None:
            gone.append(self._scopes[-1][known:])
            del self._scopes[-1][known:]
        for text in itertools.chain(*gone):
            del self._known[text]

    def save(self) -> Saved:
        scopes = len(self._scopes), len(self._scopes[-1])
        return Saved(len(self.lines), len(self._loops), *scopes, self._guard, self.block)

    def restore(self, saved: Saved) -> None:
        """What was written before loops that are around the attempt stays: nothing is wrong with it."""
        del self.lines[saved.lines :], self._loops[saved.loops :]
        self._forget(saved.scopes, saved.known)
        self._guard, self.block = saved.guard, saved.block

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """What is written inside runs where the ``i1`` holds."""
        inside, after = self.name("then"), self.name("end")
        self.branch(condition, inside, after)
        self.label(inside)
        with self.scope():
            yield
        self.jump(after)
        self.label(after)

    @contextmanager
    def counted(self, start: str, stop: str, plain: bool) -> Iterator[str]:
        """A loop from ``start`` below ``stop`` that runs at least once (the caller guards); yields the counter.

        ``plain`` keeps LLVM from unrolling and vectorizing it once more.
        """
        before, head, after = self.block, self.name("loop"), self.name("done")
        register, following = f"%{self.name('i')}", f"%{self.name('n')}"
        self.is_shaped &= plain
        self._loops.append(([], self._scopes[-1]))
        self._scopes.append([])
        self._levels[register] = len(self._loops)
        self.lines.append(self._loops[-1][0])
        self.jump(head)
        self.label(head)
        phi = len(self.lines)
        self.lines.append("")
        yield register
        self.lines[phi] = f"  {register} = phi i64 [ {start}, %{before} ], [ {following}, %{self.block} ]"
        self._forget(len(self._scopes) - 1)
        self._loops.pop()
        self.do(f"{following} = add nuw nsw i64 {register}, 1")
        more = self.op(f"icmp ne i64 {following}, {stop}")
        self.do(f"br i1 {more}, label %{head}, label %{after}{self._loop_metadata() if plain else ''}")
        self.label(after)

    def _loop_metadata(self) -> str:
        if not self.metadata:
            self.metadata += ['!0 = !{!"llvm.loop.unroll.disable"}', '!1 = !{!"llvm.loop.vectorize.enable", i1 false}']
        number = len(self.metadata)
        self.metadata.append(f"!{number} = distinct !{{!{number}, !0, !1}}")
        return f", !llvm.loop !{number}"


def flattened(lines: Lines) -> Iterator[str]:
    for line in lines:
        if isinstance(line, str):
            yield line
        else:
            yield from flattened(line)
