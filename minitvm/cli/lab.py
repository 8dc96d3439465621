"""``minitvm lab``: experiments with passes, rules, templates and orders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minitvm.cli import LazyGroup, common
from minitvm.cli.common import say, stdout, table
from minitvm.cli.options import as_json, command, option
from minitvm.errors import ConfigError
from minitvm.lab.user_files import names_of
from minitvm.passes.manager import closest
from minitvm.passes.rule import Rule

if TYPE_CHECKING:
    from minitvm.lab.rule_check import Verdict

COMMANDS = {
    "orders": ("lab_orders:orders", "Try every order of some passes: kernels, bytes, time, and whether results agree."),
    "levels": ("lab_orders:levels", "The same for optimization levels."),
    "read": ("lab_grade:read", "Read a chapter of the course, here or in a browser."),
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
      minitvm lab read chapter1
      minitvm lab start chapter1
      minitvm lab grade chapter1 chapter1.py
      minitvm lab verify --all
      minitvm lab mutate FuseOps
      minitvm lab verify my_rules.py:drop_zero
    """


@command()
@click.argument("rules", nargs=-1, metavar="RULE...")
@option("--all", "every", is_flag=True, excludes=("RULE...",), help="All rules of minitvm's passes.")
@option("--tries", default=12_000, type=click.IntRange(1), help="Expressions that are begun.")
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
