"""The benchmark's result as tables, JSON and a plot."""

from __future__ import annotations

import json
import math
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.asked import AGAINST_ONE, OF_ALL, OWN, asked_of, explained, mean, ratio
from benchmarks.cases import EIGHTEEN

Result = Mapping[str, Any]
"""What ``benchmark.json`` holds."""


_NUMBERS = re.compile(r"\[\n[\s\d.,e+-]+\]")


def write_json(result: Result, path: pathlib.Path) -> None:
    """Indented, lists of numbers in a line each."""
    text = _NUMBERS.sub(lambda found: " ".join(found.group().split()), json.dumps(result, indent=1))
    path.write_text(text + "\n", encoding="utf-8")


def machine_line(result: Result) -> str:
    machine = result["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}; {versions}; {result['date']}"


def table_of(headings: str) -> Table:
    """A table whose first two columns are text; ``headings`` separated by bars."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, heading in enumerate(headings.split("|")):
        table.add_column(heading.strip(), justify="left" if i < 2 else "right", no_wrap=True)
    return table


def show(result: Result, console: Console) -> None:
    """The machine, then :func:`show_tables`."""
    console.print(machine_line(result))
    show_tables(result, console)


def show_tables(result: Result, console: Console) -> None:
    """All tables, then where time goes and what was left out."""
    for line in _about(result):
        console.print(line, soft_wrap=True)
    for target in result["settings"]["targets"]:
        for i, threads in enumerate(result["settings"]["threads"]):
            console.print(f"\n{target}, {threads} thread{'s' if threads > 1 else ''}", soft_wrap=True)
            console.print(_times(result, target, i))
    console.print("\nErrors, of the largest output; against float64, or against the outputs that came with the model")
    console.print(_errors(result))
    for title, lines in (("Where time goes", _where(result)), ("Left out", _left_out(result))):
        found = list(lines)
        if found:
            console.print(f"\n{title}", *found, sep="\n", soft_wrap=True, markup=False)


def _about(result: Result) -> Iterator[str]:
    for peak in result["peaks"]:
        threads = f"{peak['threads']} thread{'s' if peak['threads'] > 1 else ''}"
        rates = f"{peak['l2_gbs']:.0f} GB/s L2, {peak['memory_gbs']:.0f} GB/s memory"
        yield f"at most, {threads}: {peak['gflops']:.0f} GFLOP/s, {rates}"
    yield (
        f"{result['seconds'] / 60:.1f} minutes; medians in ms, with half of the range between quartiles; "
        "ratio: the fastest peer's time over ours, the median of the rounds'"
    )
    yield from (f"{target}: {how}" for target, how in result["kept"].items() if how)


def measured(result: Result, target: str, index: int) -> Iterator[tuple[Result, Result]]:
    """Models, each with its times at that number of threads; without those that could not be measured."""
    for model in result["models"]:
        runs = model["targets"].get(target, {}).get("runs", ())
        if len(runs) > index and OWN in runs[index]["times"]:
            yield model, runs[index]["times"]


def _times(result: Result, target: str, index: int) -> Table:
    names, threads = result["settings"]["runtimes"], result["settings"]["threads"][index]
    table = table_of(" | ".join(["model", "", *names, "ratio", "of bests", "in bursts", "asked", "of peak"]))
    (peak,) = (p["gflops"] for p in result["peaks"] if p["threads"] == threads)
    for model, times in measured(result, target, index):
        cells = [_time(times.get(name)) for name in names]
        table.add_row(model["name"], "", *cells, *_ratios(model["name"], times, threads), _share(model, times, peak))
    for name in (*names[1:], None):
        table.add_row(*_mean_row(result, target, index, name, len(names)))
    return table


def _time(times: Result | None) -> str:
    if times is None:
        return ""
    found = times["steady"]
    spread = f" ±{50 * found['spread']:2.0f} %" if found["runs"] > 1 else "  once"
    return f"{found['median']:.3g}{spread}" if found["median"] < 1000 else f"{found['median']:.0f}{spread}"


def _ratios(name: str, times: Result, threads: int) -> list[str]:
    """Steady, of the fastest runs, in bursts; and what is asked on one thread."""
    peer = AGAINST_ONE.get(name)
    steady = ratio(times, peer=peer)
    figures = (steady, ratio(times, figure="best", peer=peer), ratio(times, "burst", peer=peer))
    asked = asked_of(name)
    words = " ".join(filter(None, (asked.met(steady), str(asked)))) if threads == 1 else ""
    return [*map(_figure, figures), words]


def _figure(number: float) -> str:
    return "" if math.isnan(number) else f"{number:.2f}"


def _share(model: Result, times: Result, peak: float) -> str:
    return f"{model['gflop'] / times[OWN]['steady']['median'] * 1e3 / peak:.0%}" if model["gflop"] else ""


def mean_ratio(
    result: Result, target: str, index: int, kind: str, figure: str = "median", peer: str | None = None
) -> float:
    """The geometric mean of the networks among those measured."""
    found = [times for model, times in measured(result, target, index) if model["name"] in EIGHTEEN]
    return mean(ratio(times, kind, figure, peer) for times in found)


def _mean_row(result: Result, target: str, index: int, peer: str | None, columns: int) -> list[str]:
    threads = result["settings"]["threads"][index]
    kinds = (("steady", "median"), ("steady", "best"), ("burst", "median"))
    means = [mean_ratio(result, target, index, *kind, peer) for kind in kinds]
    words = ""
    if peer is None:
        both = [(OF_ALL.get((threads, kind)), mean) for (kind, _), mean in zip(kinds[::2], means[::2], strict=True)]
        words = "; ".join(" ".join(filter(None, (a.met(m), str(a)))) for a, m in both if a is not None)
    count = sum(model["name"] in EIGHTEEN for model, _ in measured(result, target, index))
    return [f"mean of {count} to {peer or 'the faster'}", "", *[""] * columns, *map(_figure, means), words, ""]


def _errors(result: Result) -> Table:
    names, targets = result["settings"]["runtimes"], result["settings"]["targets"]
    own = [f"{OWN} {target}" for target in targets]
    table = table_of(" | ".join(["model", "against", *own, *names[1:]]))
    for model in result["models"]:
        found = [model["targets"].get(target, {}).get("errors", {}) for target in targets]
        cells = [errors.get(OWN) for errors in found] + [found[0].get(name) if found else None for name in names[1:]]
        if any(cell is not None for cell in cells):
            table.add_row(model["name"], model["reference"], *("" if c is None else f"{c:.0e}" for c in cells))
    return table


def _where(result: Result) -> Iterator[str]:
    for model in result["models"]:
        for target, found in model["targets"].items():
            times = found["runs"][0]["times"] if found.get("where") else {}
            reached = ratio(times, peer=AGAINST_ONE.get(model["name"]))
            if times and explained(model["name"], reached):
                yield f"{model['name']}, {target} ({reached:.2f}): {found['where']}"


def _left_out(result: Result) -> Iterator[str]:
    yield from (f"{name}: {why}" for name, why in result["absent"].items())
    for model in result["models"]:
        problems = [model.get("problem"), *(found.get("problem") for found in model["targets"].values())]
        yield from (f"{model['name']}: {why.splitlines()[-1]}" for why in problems if why)
        for target, found in model["targets"].items():
            yield from (f"{model['name']}, {target}: {name}: {why}" for name, why in found.get("problems", {}).items())


def plot(result: Result, path: pathlib.Path) -> None:
    """Ratios of every model, steady and in bursts: a panel for each target and number of threads."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings = result["settings"]
    panels = [(target, i) for target in settings["targets"] for i in range(len(settings["threads"]))]
    height = 1.5 + 0.22 * len(result["models"])
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4 * len(panels), height), squeeze=False, sharey=True)
    for axis, (target, i) in zip(axes[0], panels, strict=True):
        threads = settings["threads"][i]
        _panel(axis, list(measured(result, target, i)))
        axis.set_title(f"{target}, {threads} thread{'s' if threads > 1 else ''}", fontsize=9)
    figure.suptitle(f"the fastest peer's time over minitvm's\n{machine_line(result)}", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _panel(axis: Any, found: Sequence[tuple[Result, Result]]) -> None:
    for shift, kind in ((-0.2, "steady"), (0.2, "burst")):
        axis.barh([y + shift for y in range(len(found))], [ratio(times, kind) for _, times in found], 0.38, label=kind)
    axis.set_yticks(range(len(found)), [model["name"] for model, _ in found], fontsize=7)
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.grid(axis="x", alpha=0.3)
    axis.legend(fontsize=7)
    if not axis.yaxis_inverted():
        axis.invert_yaxis()
