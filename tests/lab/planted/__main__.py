"""``python -m tests.lab.planted [NAME ...]``: plants each mistake, and prints the table of docs/check.md."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import pytest

from minitvm.lab import check
from minitvm.lab.check_result import Finding
from tests.lab.planted.faults import FAULTS, Fault

PARTS = ("passes", "kernels", "model", "threads")


@dataclass(frozen=True)
class Found:
    """What ``check`` says of a planted mistake."""

    fault: Fault
    finding: Finding | None
    seconds: float

    @property
    def is_named(self) -> bool:
        return self.finding is not None and self.fault.names in self.finding.guilty

    def row(self) -> str:
        calls = str(self.finding.calls) if self.finding else ""
        who = self.finding.guilty.split(", on ")[0] if self.finding else "not found"
        return f"| {self.fault.what} | {'' if self.is_named else '(not named) '}{who} | {calls} | {self.seconds:.1f} |"


def look(name: str, reduction: float = 30.0) -> Found:
    """Plants a mistake, and looks for it."""
    planted = FAULTS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINITVM_CACHE_DIR", "")
        planted.plant(patch)
        start = time.perf_counter()
        found = check(planted.model, parts=PARTS, reduction=reduction)
        seconds = time.perf_counter() - start
    named = [f for f in found.findings if planted.names in f.guilty]
    return Found(planted, (named or found.findings or [None])[0], seconds)


def main() -> None:
    print("| planted | found | calls | seconds |\n|---|---|---|---|")
    good = 0
    for name in sys.argv[1:] or FAULTS:
        found = look(name)
        good += found.is_named and found.finding is not None and found.finding.calls <= 5 and found.seconds < 60
        print(found.row(), flush=True)
    print(f"\n{good} of {len(sys.argv[1:] or FAULTS)} are found, named, and made small.")


if __name__ == "__main__":
    main()
