"""A cursor that writes one LLVM function: registers, blocks, loops, and which registers are visible where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

Saved: TypeAlias = tuple[int, int, int, str]
"""A point in the text to return to when an attempt is given up."""


@dataclass
class Writer:
    """Text in order of emission.  ``pure`` reuses a register that already holds the same instruction's result."""

    lines: list[str] = field(default_factory=list)
    allocas: list[str] = field(default_factory=list)
    declarations: dict[str, str] = field(default_factory=dict)
    metadata: list[str] = field(default_factory=list)
    block: str = "start"
    _count: int = 0
    _known: dict[str, str] = field(default_factory=dict)
    _trail: list[str] = field(default_factory=list)

    def name(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def op(self, text: str) -> str:
        """Emit an instruction, return its register."""
        self._count += 1
        register = f"%v{self._count}"
        self.lines.append(f"  {register} = {text}")
        return register

    def pure(self, text: str) -> str:
        """As :meth:`op`, for instructions without effects that do not read memory."""
        register = self._known.get(text)
        if register is None:
            register = self._known[text] = self.op(text)
            self._trail.append(text)
        return register

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
        """Registers written inside are not visible after it."""
        mark = len(self._trail)
        yield
        self._forget(mark)

    def _forget(self, mark: int) -> None:
        for text in self._trail[mark:]:
            del self._known[text]
        del self._trail[mark:]

    def save(self) -> Saved:
        return len(self.lines), len(self.allocas), len(self._trail), self.block

    def restore(self, saved: Saved) -> None:
        lines, allocas, scope, self.block = saved
        del self.lines[lines:], self.allocas[allocas:]
        self._forget(scope)

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
        self.jump(head)
        self.label(head)
        phi = len(self.lines)
        self.lines.append("")
        with self.scope():
            yield register
        self.lines[phi] = f"  {register} = phi i64 [ {start}, %{before} ], [ {following}, %{self.block} ]"
        self.do(f"{following} = add nuw nsw i64 {register}, 1")
        more = self.op(f"icmp slt i64 {following}, {stop}")
        self.do(f"br i1 {more}, label %{head}, label %{after}{self._loop_metadata() if plain else ''}")
        self.label(after)

    def _loop_metadata(self) -> str:
        if not self.metadata:
            self.metadata += ['!0 = !{!"llvm.loop.unroll.disable"}', '!1 = !{!"llvm.loop.vectorize.enable", i1 false}']
        number = len(self.metadata)
        self.metadata.append(f"!{number} = distinct !{{!{number}, !0, !1}}")
        return f", !llvm.loop !{number}"
