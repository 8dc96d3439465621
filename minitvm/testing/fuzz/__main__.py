"""``python -m minitvm.testing.fuzz``."""

from __future__ import annotations

import pathlib
import sys

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from minitvm.testing.fuzz import campaign, generate
from minitvm.testing.fuzz.campaign import Finding, Plan, Report
from minitvm.testing.fuzz.draw import GENERATORS
from minitvm.testing.fuzz.judge import Judge, Outcome

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
    "--output",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    help="Folder for a test file and a model for each kind of failure.",
)
@click.option(
    "--shrink-seconds", default=120.0, show_default=True, help="Time to make one failure smaller; 0 not at all."
)
@click.option("--replay", metavar="SEED:INDEX", help="Judge one case again and print it; no other option is needed.")
def main(
    seconds: float | None,
    cases: int | None,
    seed: int,
    first: int,
    jobs: int,
    levels: str,
    only: str,
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
      python -m minitvm.testing.fuzz --seconds 600 --seed 7 --jobs 2 --output found
      python -m minitvm.testing.fuzz --cases 200 --only Conv,Relu,Add --levels 3
      python -m minitvm.testing.fuzz --replay 7:1234
    """
    chosen = tuple(_levels(levels)) or generate.LEVELS
    if replay:
        sys.exit(_replay(replay, chosen, _operators(only)))
    seconds = 60.0 if seconds is None and cases is None else seconds
    plan = Plan(seed, first, cases, seconds, jobs, chosen, _operators(only), output, shrink_seconds)
    report = _watched(plan)
    stdout.print(summary(report))
    sys.exit(1 if report.findings else 0)


def _levels(text: str) -> list[int]:
    found = [int(part) if part.strip().isdigit() else -1 for part in text.split(",") if part]
    if not set(found) <= {0, 1, 2, 3}:
        raise click.BadParameter(f"{text!r} is no list of levels 0 to 3", param_hint="--levels")
    return found


def _operators(text: str) -> list[str]:
    found = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(found) - set(GENERATORS))
    if unknown:
        raise click.BadParameter(f"no generator for {', '.join(unknown)}", param_hint="--only")
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

        return campaign.run(plan, watch)


def _line(report: Report) -> str:
    rate = report.cases / max(report.seconds, 1e-9)
    counts = ", ".join(f"{report.outcomes[o.value]} {o.value}" for o in Outcome if report.outcomes[o.value])
    return f"{report.cases} cases ({rate:.1f} a second): {counts}; {len(report.findings)} kinds of failure"


def _described(seed: int, finding: Finding) -> str:
    verdict, config = finding.verdict, finding.case.config
    where = f" -> {finding.path}" if finding.path else ""
    operators = ", ".join(finding.case.operators)
    return f"{seed}:{finding.index} {verdict.kind}: {verdict.message}\n    {operators}; {config}{where}"


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


def _replay(text: str, levels: tuple[int, ...], only: list[str]) -> int:
    seed, _, index = text.partition(":")
    if not (seed.lstrip("-").isdigit() and index.isdigit()):
        raise click.BadParameter(f"{text!r} is not SEED:INDEX", param_hint="--replay")
    case = generate.case(int(seed), int(index), levels, only)
    judge = Judge()
    verdict = judge.verdict(case)
    judge.close()
    for node in case.nodes:
        stdout.print(f"{node.op_type} {list(node.input)} -> {list(node.output)}", markup=False)
    for name, array in case.feeds[0].items():
        stdout.print(f"input {name!r}: {array.dtype} {array.shape}", markup=False)
    stdout.print(f"opset {case.opset}; {case.config}", markup=False)
    stdout.print(f"{verdict.outcome.value} {verdict.kind}: {verdict.message}\n{verdict.detail}", markup=False)
    return 1 if verdict.failed else 0


if __name__ == "__main__":
    main()
