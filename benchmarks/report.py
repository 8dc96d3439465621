"""The benchmark's result as tables, JSON and a plot."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

Result = Mapping[str, Any]
"""What ``benchmark.json`` holds."""

OWN = "minitvm"


def write_json(result: Result, path: pathlib.Path) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def show(result: Result, console: Console) -> None:
    """All tables."""
    console.print(machine_line(result))
    for title, table in tables(result):
        console.print(f"\n{title}", soft_wrap=True)
        console.print(table)


def machine_line(result: Result) -> str:
    machine = result["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}; {versions}; {result['date']}"


def tables(result: Result) -> Iterator[tuple[str, Table]]:
    """Titles and tables."""
    yield "What the machine can do, measured in this run", _peak_table(result)
    title = (
        "Time of a run; ratio: the peer's time over minitvm's, above 1 where minitvm is faster; floor: FLOPs at peak"
    )
    yield title, _time_table(result)
    if any(model["processes"] for model in result["models"]):
        title = "Opening a model, and memory, each in a fresh process; ratio: peak over onnxruntime's"
        yield title, _process_table(result)
    if result["graph"]:
        yield "Without kernels", _graph_table(result)


def table_of(headings: str) -> Table:
    """A table whose first two columns are text; ``headings`` separated by bars."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, heading in enumerate(headings.split("|")):
        table.add_column(heading.strip(), justify="left" if i < 2 else "right", no_wrap=True)
    return table


def _peak_table(result: Result) -> Table:
    table = table_of("threads | | GFLOP/s | GB/s L2 | GB/s memory")
    for peak in result["peaks"]:
        figures = (peak["gflops"], peak["l2_gbs"], peak["memory_gbs"])
        table.add_row(str(peak["threads"]), "", *(f"{figure:.0f}" for figure in figures))
    return table


def _time_table(result: Result) -> Table:
    table = table_of(
        "model | runtime | threads | median | best ms | spread | GFLOP/s | of peak | floor | ratio | of bests | error"
    )
    for model in result["models"]:
        for run in model["runs"]:
            for name, found in run["times"].items():
                table.add_row(model["name"], name, str(run["threads"]), *time_cells(name, found, run))
            table.add_section()
    return table


def time_cells(name: str, found: Result, run: Result) -> list[str]:
    own = run["times"][OWN]
    cells = [f"{found['median']:.2f}", f"{found['best']:.2f}", f"{100 * found['spread']:.0f} %"]
    known = run["floor_ms"] is not None
    cells += (
        [f"{found['gflops']:.0f}", f"{100 * found['of_peak']:.0f} %", f"{run['floor_ms']:.2f}"] if known else [""] * 3
    )
    if name == OWN:
        return [*cells, "", "", ""]
    ratios = (found["median"] / own["median"], found["best"] / own["best"])
    return [*cells, *(f"{ratio:.2f}" for ratio in ratios), f"{run['errors'][name]:.0e}"]


def _process_table(result: Result) -> Table:
    table = table_of(
        "model | runtime | import s | open s | first run ms | peak MB | above interpreter | while running | ratio"
    )
    for model in result["models"]:
        peer = model["processes"].get("onnxruntime")
        for name, found in model["processes"].items():
            ratio = f"{found['peak_mb'] / peer['peak_mb']:.2f}" if peer else ""
            table.add_row(
                *(model["name"], name, f"{found['import_s']:.2f}", f"{found['open_s']:.2f}"),
                *(f"{1e3 * found['first_run_s']:.1f}", f"{found['peak_mb']:.0f}"),
                *(f"{found['peak_mb'] - found['baseline_mb']:.0f}", f"{found['running_mb']:.0f}", ratio),
            )
        table.add_section()
    return table


def _graph_table(result: Result) -> Table:
    table = table_of("what | |")
    cost = result["graph"]
    table.add_row(f"a graph of {cost['calls']} calls: import", "", f"{cost['import_s']:.2f} s")
    table.add_row(f"passes at level 3, to {cost['kernels']} kernel calls", "", f"{cost['passes_s']:.2f} s")
    table.add_row("executable graph and memory plan", "", f"{cost['plan_s']:.2f} s")
    table.add_row("all three", "", f"{cost['total_s']:.2f} s")
    for name, seconds in result["imports"].items():
        table.add_row(f"import {name}", "", f"{seconds:.2f} s")
    for name, found in result["small_mlp_us"].items():
        table.add_row(f"a run of a small mlp: {name}", "", f"{found:.0f} us")
    return table


def plot(result: Result, path: pathlib.Path) -> None:
    """Bars of each runtime's median time over minitvm's, one panel for each number of threads; whiskers: quartiles."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    threads = sorted({run["threads"] for model in result["models"] for run in model["runs"]})
    figure, axes = pyplot.subplots(1, len(threads), figsize=(6 * len(threads), 4), squeeze=False, sharey=True)
    for axis, count in zip(axes[0], threads, strict=True):
        _plot_panel(axis, result, count)
    axes[0][0].set_ylabel("runs in the time of one run of onnxruntime" if _has_peer(result) else "runs per second")
    figure.suptitle(machine_line(result), fontsize=8)
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncols=len(names), fontsize=8)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _has_peer(result: Result) -> bool:
    return "onnxruntime" in result["versions"]


def _plot_panel(axis: Any, result: Result, threads: int) -> None:
    """Speed relative to onnxruntime, or absolute where it is not installed."""
    panel = [(m["name"], run["times"]) for m in result["models"] for run in m["runs"] if run["threads"] == threads]
    names = list(result["versions"])
    for i, name in enumerate(names):
        unit = [times["onnxruntime"]["median"] if _has_peer(result) else 1e3 for _, times in panel]
        found = [times[name] for _, times in panel]
        speed = [u / f["median"] for u, f in zip(unit, found, strict=True)]
        below = [s - u / f["high"] for s, u, f in zip(speed, unit, found, strict=True)]
        above = [u / f["low"] - s for s, u, f in zip(speed, unit, found, strict=True)]
        at = [j + 0.8 * (i - (len(names) - 1) / 2) / len(names) for j in range(len(panel))]
        axis.bar(at, speed, 0.75 / len(names), yerr=(below, above), label=name, capsize=2, error_kw={"linewidth": 0.8})
    axis.set_xticks(range(len(panel)), [name for name, _ in panel], rotation=15)
    axis.set_title(f"{threads} thread{'s' if threads > 1 else ''}")
    axis.grid(axis="y", alpha=0.3)
