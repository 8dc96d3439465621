"""``minitvm lab``: experiments with passes, rules, templates and orders."""

from __future__ import annotations

import importlib.resources
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from minitvm.cli import LazyGroup, building, common
from minitvm.cli.common import say, stdout, table
from minitvm.cli.options import PATH, OnnxModel, as_json, command, option
from minitvm.errors import ConfigError
from minitvm.lab.ordering import COLUMNS, Experiment, Trial
from minitvm.lab.ordering import levels as try_levels
from minitvm.lab.ordering import orders as try_orders
from minitvm.lab.pictures import kind_of
from minitvm.lab.user_files import names_of
from minitvm.passes.manager import closest
from minitvm.passes.rule import Rule

if TYPE_CHECKING:
    from minitvm.lab.rule_check import Verdict

COMMANDS = {
    "orders": ("lab:orders", "Try every order of some passes: kernels, bytes, time, and whether results agree."),
    "levels": ("lab:levels", "The same for optimization levels."),
    "start": ("lab_grade:start", "Write the starter code of a chapter of the course."),
    "grade": ("lab_grade:grade", "Grade the answers to a chapter of the course."),
    "mutate": ("lab:mutate", "Take one precondition after another from a pass, and see whether its tests notice."),
    "verify": ("lab:verify", "Try a rewrite rule on every kind of small case, and print a counterexample."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def lab() -> None:
    """Experiments: other orders of passes, other levels, rules and passes put to the test; the course's exercises.

    \b
    Examples:
      minitvm lab orders resnet18.onnx --passes SimplifyExpr,FoldScaleAxis,FoldConstant#2
      minitvm lab levels resnet18.onnx --plot levels.png
      minitvm lab start chapter1
      minitvm lab grade chapter1 chapter1.py
      minitvm lab verify --all
      minitvm lab mutate FuseOps
      minitvm lab verify my_rules.py:drop_zero
    """


_model = click.argument("model", type=PATH, required=False, cls=OnnxModel)
_rounds = option("--rounds", default=5, type=click.IntRange(0), help="Turns of a few runs; 0: nothing is timed.")
_csv = option("--csv", "csv_path", type=PATH, help="File for the figures, in bytes and seconds.")
_plot = option("--plot", type=PATH, help="File for a picture of time and bytes (needs matplotlib).")


@command()
@_model
@option("--passes", required=True, metavar="A,B,C", help="The passes; FoldConstant#2 is the second run of one.")
@_rounds
@_csv
@_plot
@as_json
@building.compiles()
def orders(
    model: Path | None,
    passes: str,
    rounds: int,
    csv_path: Path | None,
    plot: Path | None,
    as_json: bool,
    chosen: building.Chosen,
) -> None:
    """Compile MODEL (.onnx; EfficientNet-Lite0, which is included, by default) with --passes in every order, each in
    the places that they have in the default pipeline; run all on the same random inputs.

    "bytes" is what kernels read and write in a run, "memory" what intermediate values take; times are medians of
    interleaved runs. The exit status is 1 where an order is refused, or its results differ.

    \b
    Examples:
      minitvm lab orders --passes SimplifyExpr,FoldScaleAxis
      minitvm lab orders resnet18.onnx --passes AlterOpLayout,FoldConstant#2,SimplifyExpr --csv orders.csv
    """
    names = [name.strip() for name in passes.split(",") if name.strip()]
    given = subject(model, chosen, csv_path, plot)
    with common.compiling("orders") as progress:
        how: dict[str, Any] = {"opt_level": chosen.opt_level, "rounds": rounds, "on_progress": progress}
        found = try_orders(passes=names, **how, **given)
    show(found, csv_path, plot, as_json)


@command()
@_model
@_rounds
@_csv
@_plot
@as_json
@building.compiles(opt_level=None)
def levels(
    model: Path | None, rounds: int, csv_path: Path | None, plot: Path | None, as_json: bool, chosen: building.Chosen
) -> None:
    """Compile MODEL (.onnx; EfficientNet-Lite0, which is included, by default) at all levels, and run all on the same
    random inputs; columns as those of 'minitvm lab orders'.
    """
    given = subject(model, chosen, csv_path, plot)
    with common.compiling("levels") as progress:
        found = try_levels(rounds=rounds, on_progress=progress, **given)
    show(found, csv_path, plot, as_json)


@command()
@click.argument("rules", nargs=-1, metavar="RULE...")
@option("--all", "every", is_flag=True, excludes=("RULE...",), help="All rules of minitvm's passes.")
@option("--tries", default=6000, type=click.IntRange(1), help="Expressions that are begun.")
@option("--seed", type=click.IntRange(0), default=0, help="Seed of what is drawn.")
@as_json
def verify(rules: tuple[str, ...], every: bool, tries: int, seed: int, as_json: bool) -> None:
    """Try each RULE on small expressions that its pattern admits, of all dtypes, ranks and layouts, and hold results
    beside each other: exact rules to the bit. RULE is a rule of a pass of minitvm's, or FILE.py:NAME; of a file alone,
    all of its rules.

    A rule holds where it fired, was right each time, and every part of its pattern was drawn; exit status 1 otherwise.

    \b
    Examples:
      minitvm lab verify merge_casts drop_added_zero
      minitvm lab verify my_rules.py:drop_zero
    """
    from minitvm.lab.rule_check import verify_rule

    chosen = _rules(rules, every)
    verdicts = []
    for rule in chosen:
        verdicts.append(verify_rule(rule, tries, seed))
        if not as_json:
            say(str(verdicts[-1]))
    holds = all(verdict.holds for verdict in verdicts)
    if as_json:
        common.say_json({"rules": {verdict.rule.name: _form(verdict) for verdict in verdicts}}, ok=holds)
    if not holds:
        sys.exit(1)


def _form(verdict: Verdict) -> dict[str, Any]:
    counts = {name: getattr(verdict, name) for name in ("tried", "drawn", "matched", "fired", "compared", "declined")}
    shown = None if verdict.counterexample is None else str(verdict.counterexample)
    return {"state": verdict.state, "why": verdict.why, **counts, "counterexample": shown}


def _rules(names: tuple[str, ...], every: bool) -> list[Rule]:
    from minitvm.lab.rule_check import known_rules

    known = known_rules()
    if not names and not every:
        raise click.UsageError(f"name a RULE, or give --all; the rules are {', '.join(known)}")
    found: list[Rule] = list(known.values()) if every else []
    for name in names:
        if name.partition(":")[0].endswith(".py"):
            found += _of_file(name)
        elif name in known:
            found.append(known[name])
        else:
            raise ConfigError(f"there is no rule {name!r}", hint=closest(name, sorted(known)))
    return found


def _of_file(place: str) -> list[Rule]:
    path, _, name = place.partition(":")
    space = names_of(Path(path), "a Python file that defines rules")
    found = {key: value for key, value in space.items() if isinstance(value, Rule)}
    if not found or (name and name not in found):
        raise ConfigError(f"{path} has no rule{f' {name!r}' if name else ''}", hint=f"its rules: {', '.join(found)}")
    return [found[name]] if name else list(found.values())


@command()
@click.argument("what", metavar="PASS")
@option("--tests", multiple=True, help="Argument of pytest, such as a file.  Repeatable.")
@option("-j", "--jobs", type=click.IntRange(0), default=0, help="Processes at a time; 0: one a core.")
@as_json
def mutate(what: str, tests: tuple[str, ...], jobs: int, as_json: bool) -> None:
    """Run the tests of PASS (or of a FILE.py) with one of its preconditions gone after another: a guard that declines,
    or an operand of an "and". No file is changed. Prints those that no test misses; exit status 1 where there are any.

    Tests are those of a checkout that name the pass, unless --tests says which.

    \b
    Examples:
      minitvm lab mutate CombineParallelConv2D
      minitvm lab mutate my_pass.py --tests test_my_pass.py
    """
    from minitvm.lab.mutation import mutate as run_mutants

    with common.compiling(f"mutants of {what}") as progress:
        found = run_mutants(what, tests, jobs, on_progress=progress)
    if as_json:
        common.say_json({"preconditions": [vars(outcome) for outcome in found.outcomes]}, what, not found.survivors)
    else:
        rows = table("line", "precondition", "without it")
        for outcome in found.outcomes:
            rows.add_row(f"{found.path.name}:{outcome.line}", outcome.removed, outcome.how)
        stdout.print(rows)
        say(f"{len(found.survivors)} of {len(found.outcomes)} preconditions are missed by no test")
    if found.survivors:
        sys.exit(1)


def included() -> Path:
    """The model that comes with minitvm."""
    return Path(str(importlib.resources.files("minitvm") / "demo_data" / "efficientnet_lite0.onnx"))


def subject(model: Path | None, chosen: building.Chosen, csv_path: Path | None, plot: Path | None) -> dict[str, Any]:
    """What the shared options say of a model; of the one that is included, where none is given."""
    path = model or included()
    for one in filter(None, (csv_path, plot)):
        common.output(one, path)
    if plot is not None:
        kind_of(plot)
    return {"model": path, **chosen.of(path)}


def show(found: Experiment, csv_path: Path | None, plot: Path | None, as_json: bool) -> None:
    """A table, or all in one JSON object; files beside it."""
    note = (lambda _: None) if as_json else say
    if as_json:
        trials = [
            dict(zip(COLUMNS, (None if v == "" else v for v in trial.row), strict=True)) for trial in found.trials
        ]
        common.say_json({"trials": trials}, found.title, found.agree)
    else:
        stdout.print(_rows(found))
    if csv_path is not None:
        csv_path.write_text(found.csv(), encoding="utf-8")
        note(f"{csv_path}: the figures")
    if plot is not None:
        found.plot(plot)
        note(f"{plot}: the picture")
    if not found.agree:
        sys.exit(1)


def _rows(found: Experiment) -> Table:
    figures = ("kernels", "MB", "memory MB", "predicted ms", "median ms", "spread")
    rows = table("way", *figures, "results", title=found.title)
    for trial in found.trials:
        rows.add_row(*_cells(trial))
    return rows


def _cells(trial: Trial) -> list[str]:
    if trial.refused:
        return [trial.way, *[""] * 6, f"refused: {trial.refused}"]
    time = (f"{trial.time.median * 1e3:.3f}", f"{trial.time.spread:.0%}") if trial.time else ("", "")
    sizes = (f"{trial.nbytes / 1e6:.2f}", f"{trial.memory / 1e6:.2f}", f"{trial.predicted * 1e3:.3f}")
    return [trial.way, str(trial.kernels), *sizes, *time, trial.results]
