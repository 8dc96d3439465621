"""What a check says: what was compared, what differs and why, and what could not be compared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from minitvm.ir.expr import Module
from minitvm.lab.minify import size
from minitvm.passes.compare import Comparison


class Outcome(str, Enum):
    """What came of one comparison."""

    AGREES = "agrees"
    DIFFERS = "differs"
    ILL = "ill-conditioned"
    """It differs, and so do the model's own roundings: no compiler could do better."""
    OPEN = "not compared"


@dataclass(frozen=True)
class Compared:
    """One comparison: of which part, of what, and what is to be said of it."""

    part: str
    what: str
    outcome: Outcome
    said: str

    def __str__(self) -> str:
        return f"{self.part:<8} {self.what}: {self.outcome.value}; {self.said}"


@dataclass
class Finding:
    """Something wrong: who did it, and the smallest module that shows it."""

    part: str
    guilty: str
    """The pass, with the rule and which of its applications; the kernel, with what wrote its loops; else the stage."""
    message: str
    module: Module
    """The smallest that was found."""
    repeat: str = ""
    """The call of ``minitvm.lab`` that shows it for ``MODULE``."""
    notes: tuple[str, ...] = ()
    onnx: bytes = field(default=b"", repr=False)
    """The model that shows it, where it is the import that is wrong."""
    path: Path | None = None
    """The test file, where one was asked for."""

    @property
    def calls(self) -> int:
        """Operator calls in :attr:`module`."""
        return size(self.module.main)

    def __str__(self) -> str:
        lines = [f"{self.guilty}", f"  {self.message}", *(f"  {note}" for note in self.notes)]
        lines += [f"  smallest module that shows it ({self.calls} call{'s' * (self.calls != 1)}):"]
        lines += [f"    {line}" for line in str(self.module).rstrip().splitlines()]
        return "\n".join([*lines, *([f"  written to {self.path}"] if self.path else [])])


@dataclass
class Checked:
    """All that a check compared, and found.  ``print(checked)`` is the report; ``checked.ok`` the answer."""

    subject: str
    compared: list[Compared] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """By part, and for ``reduction``."""

    @property
    def ok(self) -> bool:
        """True if nothing differs, and something was compared."""
        return not self.findings and not self.of(Outcome.DIFFERS) and bool(self.of(Outcome.AGREES))

    def of(self, outcome: Outcome) -> list[Compared]:
        """The comparisons with an outcome."""
        return [row for row in self.compared if row.outcome is outcome]

    def add(self, part: str, what: str, outcome: Outcome, said: str) -> None:
        self.compared.append(Compared(part, what, outcome, said))

    def agrees(self, part: str, what: str, found: Comparison) -> None:
        """Nothing differs, as far as anything was compared."""
        self.add(part, what, Outcome.AGREES if found.agreed else Outcome.OPEN, str(found))

    def differs(self, part: str, what: str, message: str, excuse: str = "") -> None:
        """``excuse``: why it is roundings that decide."""
        self.add(part, what, Outcome.ILL if excuse else Outcome.DIFFERS, excuse or message)

    def __str__(self) -> str:
        return "\n".join([self._headline(), *self._by_part(), *self._said(), *self._found()])

    __repr__ = __str__

    def _headline(self) -> str:
        total = sum(self.seconds.values())
        counts = Counter(row.outcome.value for row in self.compared)
        said = ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing was compared"
        found = "nothing is wrong" if self.ok else f"{len(self.findings)} found" if self.findings else "not proved"
        return f"{self.subject}: {found}; {said} ({total:.1f} s)"

    def _by_part(self) -> list[str]:
        lines = []
        for part in dict.fromkeys(row.part for row in self.compared):
            rows = [row for row in self.compared if row.part == part and row.outcome is Outcome.AGREES]
            alike = Counter(row.said for row in rows)
            for said, count in alike.items():
                names = [row.what for row in rows if row.said == said]
                shown = ", ".join(names[:4]) + (f", ... ({count} in all)" if count > 4 else "")
                lines.append(f"  {part:<8} {shown}: {said}")
        return lines

    def _said(self) -> list[str]:
        return [f"  {row}" for row in self.compared if row.outcome is not Outcome.AGREES]

    def _found(self) -> list[str]:
        found = []
        for number, finding in enumerate(self.findings, 1):
            first, *rest = str(finding).splitlines()
            found += [f"  {number}. {first}", *(f"  {line}" for line in rest)]
        return found

    def expect(self) -> Checked:
        """Itself; :class:`AssertionError` with the report where something is wrong, or nothing was compared."""
        assert self.ok, f"\n{self}"
        return self
