"""Many cases, on several workers at once: verdicts are counted, failures shrunk, told apart and written."""

from __future__ import annotations

import itertools
import pathlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from minitvm.testing.fuzz import generate
from minitvm.testing.fuzz.case import Case
from minitvm.testing.fuzz.judge import Judge, Outcome, Verdict
from minitvm.testing.fuzz.shrink import shrink
from minitvm.testing.fuzz.write import write


@dataclass
class Finding:
    """One kind of failure: the case that showed it first, shrunk, and how often it was met."""

    index: int
    case: Case
    verdict: Verdict
    path: pathlib.Path | None = None
    count: int = 1


@dataclass
class Report:
    """What a campaign has seen."""

    seed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: dict[Outcome, Counter[str]] = field(default_factory=lambda: {o: Counter() for o in Outcome})
    """What decided, and how often."""
    operators: Counter[str] = field(default_factory=Counter)
    findings: dict[tuple[str, ...], Finding] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def cases(self) -> int:
        return sum(self.outcomes.values())

    def add(self, case: Case, verdict: Verdict) -> None:
        self.outcomes[verdict.outcome.value] += 1
        self.operators.update(set(case.operators))
        own = "own reference agrees" if verdict.outcome is Outcome.NO_ORACLE else "each result alone"
        self.reasons[verdict.outcome][verdict.kind or own] += 1


@dataclass(frozen=True)
class Plan:
    """What to run: so many cases, or as many as fit in some seconds, from ``first`` on."""

    seed: int = 0
    first: int = 0
    cases: int | None = None
    seconds: float | None = None
    jobs: int = 1
    levels: Sequence[int] = generate.LEVELS
    only: Sequence[str] = ()
    output: pathlib.Path | None = None
    shrink_seconds: float = 120.0


Watcher = Callable[[Report, "Finding | None"], None]
"""Called after every case, with what it found that is new."""


def run(plan: Plan, watch: Watcher = lambda report, finding: None) -> Report:
    """Runs a plan; an interrupt ends it early, with the report so far."""
    campaign = _Campaign(plan, watch)
    threads = [threading.Thread(target=campaign.work, daemon=True) for _ in range(plan.jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        campaign.stopped = True
        for thread in threads:
            thread.join()
    if campaign.error is not None:
        raise campaign.error
    return campaign.report


class _Campaign:
    """The state that the threads share."""

    def __init__(self, plan: Plan, watch: Watcher) -> None:
        self.plan, self.watch = plan, watch
        self.report = Report(plan.seed)
        self.stopped = False
        self.error: BaseException | None = None
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._indices = self._numbers()

    def _numbers(self) -> Iterator[int]:
        plan = self.plan
        for index in itertools.count(plan.first):
            if self.stopped or (plan.cases is not None and index >= plan.first + plan.cases):
                return
            if plan.seconds is not None and time.monotonic() - self._start > plan.seconds:
                return
            yield index

    def work(self) -> None:
        judge = Judge()
        try:
            while True:
                with self._lock:
                    index = next(self._indices, None)
                if index is None:
                    return
                self._one(judge, index)
        except BaseException as error:
            self.error, self.stopped = error, True
        finally:
            judge.close()

    def _one(self, judge: Judge, index: int) -> None:
        case = generate.case(self.plan.seed, index, self.plan.levels, self.plan.only)
        verdict = judge.verdict(case)
        finding = self._finding(judge, index, case, verdict) if verdict.failed else None
        with self._lock:
            self.report.add(case, verdict)
            self.report.seconds = time.monotonic() - self._start
            self.watch(self.report, finding)

    def _is_known(self, key: tuple[str, ...]) -> bool:
        """Counts a failure that was found before."""
        with self._lock:
            if key in self.report.findings:
                self.report.findings[key].count += 1
            return key in self.report.findings

    def _finding(self, judge: Judge, index: int, case: Case, verdict: Verdict) -> Finding | None:
        """The failure, shrunk and written; ``None`` where its like was found before."""
        if self._is_known(verdict.signature):
            return None
        small, verdict = shrink(case, verdict, judge, self.plan.shrink_seconds)
        key: tuple[str, ...] = verdict.signature
        if verdict.kind == "difference":  # their messages are all alike: the operators tell them apart
            key = (*key, *sorted(set(small.operators)))
        if self._is_known(key):
            return None
        finding = Finding(index, small, verdict)
        with self._lock:
            self.report.findings[key] = finding
        if self.plan.output is not None:
            expected, message = judge.expected(small), f"{verdict.kind}: {verdict.message}\n\n{verdict.detail}"
            finding.path = write(small, expected, self.plan.seed, index, message, self.plan.output)
        return finding
