"""Many cases, on several workers at once: verdicts are counted, failures shrunk, told apart and written."""

import itertools
import pathlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.fuzz import generate
from tests.fuzz.case import Case
from tests.fuzz.draw import GENERATORS
from tests.fuzz.failure import shrink, write
from tests.fuzz.families.cases import VARIANTS, family_case
from tests.fuzz.judge import Judge, Outcome, Verdict


@dataclass
class Finding:
    """One kind of failure: the case that showed it first, shrunk, and how often it was met."""

    number: str
    """As ``--replay`` takes it: the case's number, after its family where it is of one."""
    case: Case
    verdict: Verdict
    path: pathlib.Path | None = None
    count: int = 1


@dataclass
class Report:
    """What a campaign has seen."""

    seed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    families: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By family and outcome."""
    reasons: dict[Outcome, Counter[str]] = field(default_factory=lambda: {o: Counter() for o in Outcome})
    """What decided, and how often."""
    operators: Counter[str] = field(default_factory=Counter)
    findings: dict[tuple[str, ...], Finding] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def cases(self) -> int:
        return sum(self.outcomes.values())

    def add(self, case: Case, verdict: Verdict, family: str = "") -> None:
        self.outcomes[verdict.outcome.value] += 1
        self.families[family, verdict.outcome.value] += 1
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
    families: Sequence[str] = ()
    """In turns; single operators where there are none."""
    alone: bool = False
    """Without peers."""
    output: pathlib.Path | None = None
    shrink_seconds: float = 120.0

    def case(self, index: int) -> tuple[str, str, Case]:
        """The family, the number as ``--replay`` takes it, and the case."""
        if not self.families:
            return "", str(index), generate.case(self.seed, index, self.levels, self.only)
        turn, place = divmod(index, len(self.families))
        family = self.families[place]
        return family, f"{family}:{turn}", family_case(family, self.seed, turn, self.levels)


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
        judge = Judge(alone=self.plan.alone)
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
        family, number, case = self.plan.case(index)
        verdict = judge.verdict(case)
        finding = self._finding(judge, number, case, verdict) if verdict.failed else None
        with self._lock:
            self.report.add(case, verdict, family)
            self.report.seconds = time.monotonic() - self._start
            self.watch(self.report, finding)

    def _is_known(self, key: tuple[str, ...]) -> bool:
        """Counts a failure that was found before."""
        with self._lock:
            if key in self.report.findings:
                self.report.findings[key].count += 1
            return key in self.report.findings

    def _finding(self, judge: Judge, number: str, case: Case, verdict: Verdict) -> Finding | None:
        """The failure, shrunk and written; ``None`` where its like was found before."""
        if self._is_known(verdict.signature):
            return None
        small, verdict = shrink(case, verdict, judge, self.plan.shrink_seconds)
        key: tuple[str, ...] = verdict.signature
        if verdict.kind == "difference":  # their messages are all alike: the operators tell them apart
            key = (*key, *sorted(set(small.operators)))
        if self._is_known(key):
            return None
        finding = Finding(number, small, verdict)
        with self._lock:
            self.report.findings[key] = finding
        if self.plan.output is not None:
            expected, message = judge.expected(small), f"{verdict.kind}: {verdict.message}\n\n{verdict.detail}"
            finding.path = write(small, expected, self.plan.seed, number, message, self.plan.output)
        return finding


stdout = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
stderr = Console(stderr=True, highlight=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", type=click.FloatRange(0), help="Stop after so long.  [default: 60, without --cases]")
@click.option("--cases", type=click.IntRange(0), help="Stop after so many cases.")
@click.option("--seed", default=0, show_default=True, help="Everything follows from it, and a case's number.")
@click.option("--first", default=0, show_default=True, help="Number of the first case.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Cases judged at once.")
@click.option("--levels", default="", metavar="0,1,2,3", help="Optimization levels to draw from.  [default: all]")
@click.option("--only", default="", metavar="OP,OP", help="Operators to build graphs of.  [default: all]")
@click.option(
    "--families",
    default="",
    metavar="cnn,open",
    help=f"Networks in place of single operators, in turns: {', '.join(VARIANTS)}, or all.",
)
@click.option("--metamorphic", is_flag=True, help="Ask no peer: level 0, and the model in float64, say what is right.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    help="Folder for a test file and a model for each kind of failure.",
)
@click.option(
    "--shrink-seconds", default=120.0, show_default=True, help="Time to make one failure smaller; 0 not at all."
)
@click.option("--replay", metavar="SEED:INDEX", help="Judge a case again and print it; or SEED:FAMILY:INDEX.")
def main(
    seconds: float | None,
    cases: int | None,
    seed: int,
    first: int,
    jobs: int,
    levels: str,
    only: str,
    families: str,
    metamorphic: bool,
    output: pathlib.Path | None,
    shrink_seconds: float,
    replay: str | None,
) -> None:
    """Compile and run random ONNX graphs, and compare the results with ONNX Runtime and with ONNX's reference.

    Graphs are of 1 to 12 nodes over every operator that minitvm imports; shapes, dtypes, values, names, opsets,
    optimization levels, thread counts and targets are drawn, too.  Compiler and peers run in processes of their
    own: a crash or a hang is a finding, and the campaign goes on.  Each failure is shrunk; those alike are counted
    once; with --output, each becomes a test file.

    A case agrees when its results are those of a peer, up to rounding.  It is refused when minitvm names a known
    limit; "oracles differ" when the peers contradict each other; "unspecified" when ONNX leaves the result open;
    and there is "no oracle" when no peer runs it.  Anything else has failed.  The exit status is 1 after a failure.

    \b
    Examples:
      python -m tests.fuzz --seconds 600 --seed 7 --jobs 2 --output found
      python -m tests.fuzz --cases 200 --only Conv,Relu,Add --levels 3
      python -m tests.fuzz --families all --seconds 3600 --seed 7
      python -m tests.fuzz --replay 7:1234
    """
    chosen = tuple(_levels(levels)) or generate.LEVELS
    if replay:
        sys.exit(_replay(replay, chosen, _operators(only), metamorphic))
    seconds = 60.0 if seconds is None and cases is None else seconds
    drawn = tuple(VARIANTS) if families == "all" else _names(families, VARIANTS, "--families")
    plan = Plan(seed, first, cases, seconds, jobs, chosen, _operators(only), drawn, metamorphic, output, shrink_seconds)
    report = _watched(plan)
    stdout.print(summary(report))
    if drawn:
        stdout.print(by_family(report))
    sys.exit(1 if report.findings else 0)


def _levels(text: str) -> list[int]:
    found = [int(part) if part.strip().isdigit() else -1 for part in text.split(",") if part]
    if not set(found) <= {0, 1, 2, 3}:
        raise click.BadParameter(f"{text!r} is no list of levels 0 to 3", param_hint="--levels")
    return found


def _operators(text: str) -> list[str]:
    return _names(text, GENERATORS, "--only")


def _names(text: str, known: Collection[str], option: str) -> list[str]:
    found = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise click.BadParameter(f"no generator for {', '.join(unknown)}", param_hint=option)
    return found


def _watched(plan: Plan) -> Report:
    """Runs the plan with a line that counts, and prints each new failure; quiet where nobody watches."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        task = progress.add_task("starting", total=None)

        def watch(report: Report, finding: Finding | None) -> None:
            progress.update(task, description=_line(report))
            if finding is not None:
                stdout.print(_described(report.seed, finding), markup=False, soft_wrap=True)

        return run(plan, watch)


def _line(report: Report) -> str:
    rate = report.cases / max(report.seconds, 1e-9)
    counts = ", ".join(f"{report.outcomes[o.value]} {o.value}" for o in Outcome if report.outcomes[o.value])
    return f"{report.cases} cases ({rate:.1f} a second): {counts}; {len(report.findings)} kinds of failure"


def _described(seed: int, finding: Finding) -> str:
    verdict, config = finding.verdict, finding.case.config
    where = f" -> {finding.path}" if finding.path else ""
    operators = ", ".join(finding.case.operators)
    return f"{seed}:{finding.number} {verdict.kind}: {verdict.message}\n    {operators}; {config}{where}"


def summary(report: Report) -> Table:
    """One row an outcome, with what is behind it."""
    table = Table(title=f"seed {report.seed}: {report.cases} cases in {report.seconds:.0f} s", title_justify="left")
    table.add_column("outcome")
    table.add_column("cases", justify="right")
    table.add_column("share", justify="right")
    table.add_column("most often")
    for outcome in Outcome:
        count = report.outcomes[outcome.value]
        most = "; ".join(f"{name} {n}" for name, n in report.reasons[outcome].most_common(6))
        table.add_row(outcome.value, str(count), f"{count / max(report.cases, 1):.1%}", most)
    return table


def by_family(report: Report) -> Table:
    """One row a family, with how often each outcome was met."""
    shown = [o for o in Outcome if report.outcomes[o.value]]
    table = Table("family", "graphs", *(o.value for o in shown))
    for family in dict.fromkeys(name for name, _ in report.families):
        counts = [report.families[family, o.value] for o in shown]
        table.add_row(family, str(sum(counts)), *map(str, counts))
    return table


def _replay(text: str, levels: tuple[int, ...], only: list[str], alone: bool) -> int:
    seed, *family, index = text.split(":")
    if not (seed.lstrip("-").isdigit() and index.isdigit()):
        raise click.BadParameter(f"{text!r} is not SEED:INDEX", param_hint="--replay")
    plan = Plan(int(seed), levels=levels, only=only, families=_names(",".join(family), VARIANTS, "--replay"))
    _, _, case = plan.case(int(index))
    judge = Judge(alone=alone)
    verdict = judge.verdict(case)
    judge.close()
    for node in case.nodes:
        stdout.print(f"{node.op_type} {list(node.input)} -> {list(node.output)}", markup=False)
    for name, array in case.feeds[0].items():
        stdout.print(f"input {name!r}: {array.dtype} {array.shape}", markup=False)
    stdout.print(f"opset {case.opset}; {case.config}", markup=False)
    stdout.print(f"{verdict.outcome.value} {verdict.kind}: {verdict.message}\n{verdict.detail}", markup=False)
    return 1 if verdict.failed else 0
