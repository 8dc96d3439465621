"""``minitvm lab orders`` and ``minitvm lab levels``."""

from __future__ import annotations

import functools
import importlib.resources
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from minitvm.cli import building, common
from minitvm.cli.common import say, stdout, table
from minitvm.cli.options import PATH, OnnxModel, as_json, command, option
from minitvm.cli.workers import executor, workers
from minitvm.lab.ordering import COLUMNS, Experiment, Trial
from minitvm.lab.ordering import levels as try_levels
from minitvm.lab.ordering import orders as try_orders
from minitvm.lab.pictures import kind_of


@dataclass(frozen=True)
class _Asked:
    """What both commands are asked."""

    model: Path | None
    rounds: int
    csv_path: Path | None
    plot: Path | None
    as_json: bool
    workers: int | None
    scheduler: str | None
    chosen: building.Chosen

    def answer(self, title: str, measure: Callable[..., Experiment], **how: Any) -> None:
        """Measures, and shows what came of it."""
        given = subject(self.model, self.chosen, self.csv_path, self.plot)
        with executor(self.workers, self.scheduler) as made, common.compiling(title) as progress:
            found = measure(rounds=self.rounds, on_progress=progress, executor=made, **how, **given)
        show(found, self.csv_path, self.plot, self.as_json)


_OPTIONS = (
    workers,
    as_json,
    option("--plot", type=PATH, help="File for a picture of time and bytes (needs matplotlib)."),
    option("--csv", "csv_path", type=PATH, help="File for the figures, in bytes and seconds."),
    option("--rounds", default=5, type=click.IntRange(0), help="Turns of a few runs; 0: nothing is timed."),
)


def _asks(*own: Callable[[Any], Any], **defaults: Any) -> Callable[[Callable[..., None]], Any]:
    """The options of both commands, as one argument, and a command's ``own``."""

    def wrap(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def collected(**given: Any) -> None:
            shared = {field.name: given.pop(field.name) for field in fields(_Asked)}
            function(_Asked(**shared), **given)

        model = click.argument("model", type=PATH, required=False, cls=OnnxModel)
        made: Any = building.compiles(**defaults)(collected)
        for one in (*_OPTIONS, *own, model):
            made = one(made)
        return made

    return wrap


@command()
@_asks(option("--passes", required=True, metavar="A,B,C", help="The passes; FoldConstant#2 is the second run of one."))
def orders(asked: _Asked, passes: str) -> None:
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
    asked.answer("orders", try_orders, passes=names, opt_level=asked.chosen.opt_level)


@command()
@_asks(opt_level=None)
def levels(asked: _Asked) -> None:
    """Compile MODEL (.onnx; EfficientNet-Lite0, which is included, by default) at all levels, and run all on the same
    random inputs; columns as those of 'minitvm lab orders'.
    """
    asked.answer("levels", try_levels)


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
