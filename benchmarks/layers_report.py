"""The sweep of layers as tables: ratios by level and kind, and the worst layers with what was chosen for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.asked import OF_LAYERS, Asked
from benchmarks.report import machine_line, table_of

WORST = 20
Result = Mapping[str, Any]


def show_layers(result: Result, console: Console) -> None:
    """All tables."""
    console.print(machine_line(result))
    console.print(_settings_line(result), soft_wrap=True)
    for level in levels(result):
        console.print(f"\n{level}: {PEER_OVER_OURS}", soft_wrap=True)
        console.print(kind_table(result, level))
        console.print(asked_line(result, level), soft_wrap=True)
        console.print(f"\n{level}: the slowest")
        for line in worst_lines(result, level):
            console.print(line, soft_wrap=True, markup=False)
    for line in problem_lines(result):
        console.print(line, soft_wrap=True, markup=False)


PEER_OVER_OURS = "onnxruntime's time over minitvm's, above 1 where minitvm is faster"


def levels(result: Result) -> list[str]:
    return [f"level {level}" for level in result["settings"]["levels"]]


def _settings_line(result: Result) -> str:
    settings, calls = result["settings"], result["call_us"]
    overhead = ", ".join(f"{name} {microseconds:.0f} us" for name, microseconds in calls.items())
    threads = f"{settings['threads']} thread{'s' if settings['threads'] > 1 else ''}"
    count = len(result["layers"])
    kept = f"; {result['kept']}" if result["kept"] else ""
    times = f"{result['seconds']:.0f} s; a small call: {overhead}"
    return f"{count} layers, {threads}, target {settings['target']}, {times}{kept}"


def quantiles(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Least, tenth percentile, median."""
    return float(np.min(ratios)), float(np.quantile(ratios, 0.1)), float(np.median(ratios))


def figures_of(result: Result, level: str) -> dict[str, float]:
    """Least, tenth percentile and median of all layers, by name; nothing where none was measured."""
    ratios = by_kind(result, level)["all"]
    return dict(zip(OF_LAYERS, quantiles(ratios), strict=True)) if ratios else {}


def asked_line(result: Result, level: str) -> str:
    """All layers beside what is asked of them."""
    found = figures_of(result, level).items()
    return ", ".join(f"{name} {number:.2f} ({_beside(OF_LAYERS[name], number)})" for name, number in found)


def _beside(asked: Asked, number: float) -> str:
    return ", ".join(filter(None, (_WORDS[asked.met(number)], f"asked {asked}")))


_WORDS = {"short": "short", "aim": "as aimed for", "": ""}


def by_kind(result: Result, level: str) -> dict[str, list[float]]:
    """The ratios of every kind, and of ``all``."""
    found: dict[str, list[float]] = {"all": []}
    for layer in result["layers"]:
        if level in layer["ratios"]:
            for kind in ("all", layer["name"].partition("/")[0]):
                found.setdefault(kind, []).append(layer["ratios"][level])
    return found


def kind_table(result: Result, level: str) -> Table:
    table = table_of("kind | | layers | least | tenth percentile | median | under half | faster")
    for kind, ratios in by_kind(result, level).items():
        if ratios:
            figures = (f"{figure:.2f}" for figure in quantiles(ratios))
            counts = (sum(r < 0.5 for r in ratios), sum(r > 1 for r in ratios))
            table.add_row(kind, "", str(len(ratios)), *figures, *map(str, counts))
    return table


def worst_lines(result: Result, level: str, count: int = WORST) -> Iterator[str]:
    """A line for each of the slowest layers, then one for each of its kernels and for every reason to decline."""
    measured = [layer for layer in result["layers"] if level in layer["ratios"]]
    for layer in sorted(measured, key=lambda found: found["ratios"][level])[:count]:
        own, peer = (1e3 * layer["times"][name]["median"] for name in (level, "onnxruntime"))
        yield f"{layer['ratios'][level]:.2f}  {layer['name']}: {layer['text']}  ({own:.0f} us against {peer:.0f})"
        for choice in layer["choices"][level]:
            yield f"        {choice['kernel']}: {' '.join(filter(None, (choice['chosen'], choice['layout'])))}"
            yield from (f"            {reason}" for reason in choice["declined"])


def problem_lines(result: Result) -> Iterator[str]:
    """Layers that are wrong or refused."""
    found = [(layer, level, text) for layer in result["layers"] for level, text in layer["problems"].items()]
    if found:
        yield "\nwrong or refused"
    for layer, level, text in found:
        yield f"{level}  {layer['name']}: {layer['text']}: {text}"
