"""Opening models and memory, each in a fresh process; and what does not depend on kernels."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx
from rich.console import Console
from rich.table import Table

import minitvm
from benchmarks import scale, worker
from benchmarks.cases import Case, make
from benchmarks.measure import about_here
from benchmarks.report import machine_line, table_of
from benchmarks.runtimes import OPENERS

Result = Mapping[str, Any]


def measure_opening(models: Sequence[str], names: Sequence[str], say: Callable[[str], None]) -> dict[str, Any]:
    """Models by runtime and state of minitvm's cache; then imports, a graph of thousands of calls, a small call."""
    found: dict[str, Any] = {**about_here(names), "models": []}
    for name in models:
        say(f"{name}: opening in fresh processes")
        with tempfile.TemporaryDirectory() as folder:
            case = make(name, pathlib.Path(folder))
            found["models"].append({"name": case.name, "processes": processes(case, names)})
    say(f"a graph of {scale.CALLS} calls")
    found["graph"] = scale.graph_cost().as_json()
    found["imports"] = {name: scale.import_seconds(name) for name in ("minitvm.session", *names[1:])}
    return {**found, "small_mlp_us": _overhead(names)}


def processes(case: Case, names: Sequence[str], threads: int = 1) -> dict[str, Any]:
    """minitvm with an empty kernel cache, with a full one, and a saved library; then its peers."""
    with tempfile.TemporaryDirectory() as cache:
        found = {
            state: worker.measure("minitvm", case.path, threads, pathlib.Path(cache))
            for state in ("minitvm, cold", "minitvm, cached")
        }
    saved = case.path.with_suffix(".mtvm")
    minitvm.compile(str(case.path), num_threads=threads).save(saved)
    found["minitvm, saved"] = worker.measure(worker.LIBRARY, saved, threads)
    return found | {name: worker.measure(name, case.path, threads) for name in names[1:]}


def _overhead(names: Sequence[str]) -> dict[str, float]:
    feeds = scale.mlp_feeds()
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "mlp.onnx")
        onnx.save(scale.mlp(), path)
        opened = {name: OPENERS[name](path, 1) for name in names}
        return {name: scale.microseconds(lambda run=run: run(feeds)) for name, run in opened.items()}


def show_opening(result: Result, console: Console) -> None:
    """Both tables."""
    console.print(machine_line(result))
    for title, table in _tables(result):
        console.print(f"\n{title}", soft_wrap=True)
        console.print(table)


def _tables(result: Result) -> Iterator[tuple[str, Table]]:
    yield "Opening a model, and memory, each in a fresh process; ratio: peak over onnxruntime's", _process_table(result)
    yield "Without kernels", _graph_table(result)


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
