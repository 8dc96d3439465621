"""What the check found as tables: a short one on the screen, and the one of ``docs/benchmark.md``.

A figure that nobody measured is "not yet measured"; those of the stand-in, whose GPU is a CPU, are no figures.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cuda_check.networks import FLOAT16, FLOAT32, NETWORKS, TF32
from benchmarks.cuda_check.peers import LIBRARIES, OWN
from benchmarks.cuda_check.tools import COUNTERS

Result = Mapping[str, Any]
MISSING = "not yet measured"
DOCS = pathlib.Path(__file__).parents[2] / "docs"
RECORD = DOCS / "cuda-check.json"
"""Where figures of a GPU are kept, if there are any."""
PAGE = DOCS / "benchmark.md"
BEGIN, END = "<!-- cuda-check -->\n", "<!-- end of cuda-check -->"

WAYS = {OWN: "minitvm", "eager": "PyTorch eager", "reduce-overhead": "reduce-overhead", "max-autotune": "max-autotune"}
WAYS[LIBRARIES] = "with cuDNN, cuBLAS"


def rows_of(result: Result | None, section: str) -> list[Mapping[str, Any]]:
    """A section's, none where nothing was measured on a GPU."""
    return [] if result is None or result["stand_in"] else result["sections"].get(section, [])


def times_of(result: Result | None, model: str, batch: int, precision: str) -> dict[str, float]:
    """Medians in ms by way of running; those measured beside PyTorch count where there are any."""
    found: dict[str, float] = {}
    for row in (*rows_of(result, "speed"), *rows_of(result, "torch")):
        if (row["model"], row["batch"], row["precision"]) == (model, batch, precision) and not row.get("wrong"):
            found |= {name: times["median"] for name, times in row.get("times", {}).items()}
    return found


# --- what was asked for -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """``source``: where it comes from; ``found``: what was measured on a GPU, "" if nothing was."""

    what: str
    least: str
    aim: str
    source: str
    found: Callable[[Result | None], str] | None = None
    """None where no GPU is needed."""

    def cells(self, result: Result | None) -> list[str]:
        value = "needs no GPU" if self.found is None else self.found(result) or MISSING
        return [self.what, self.least, self.aim, value, self.source]


def _numbers(result: Result | None) -> str:
    rows = rows_of(result, "correct")
    right = sum(bool(row.get("right")) for row in rows)
    return f"{right} of {len(rows)} right" if rows else ""


def _ratios(batch: int, precision: str, peers: tuple[str, ...]) -> Callable[[Result | None], str]:
    """The least of the peers' medians over minitvm's, by network."""

    def found(result: Result | None) -> str:
        texts = []
        for name in NETWORKS:
            times = times_of(result, name, batch, precision)
            least = min((times[peer] for peer in peers if peer in times), default=None)
            if OWN in times and least is not None:
                texts.append(f"{name} {least / times[OWN]:.2f}")
        return ", ".join(texts)

    return found


def _floors(result: Result | None) -> str:
    texts = []
    for name, network in NETWORKS.items():
        times = times_of(result, name, 1, FLOAT32)
        if OWN in times and network.floors:
            texts.append(f"{name} {times[OWN] / network.floors[1, FLOAT32]:.1f}")
    return ", ".join(texts)


def _python(result: Result | None) -> str:
    return ", ".join(f"{r['model']} {r['microseconds']:.1f}" for r in rows_of(result, "python") if "microseconds" in r)


def _compile(result: Result | None) -> str:
    rows = [row for row in rows_of(result, "compile") if "seconds" in row]
    return " / ".join(f"{row['seconds']:.1f}" for row in rows) + (f" s, {rows[0]['model']}" if rows else "")


_CHECK = "`python -m benchmarks cuda-check`"
FIGURES = (
    Figure("all models, simulated CUDA", "1e-5 of the largest; tf32 5e-4, fp16 1e-2", "", "`cuda-sim`"),
    Figure("host calls inside those models", "none in float32", "", "`cuda-sim`"),
    Figure("kernels of ResNet-18 and BERT at sm_90", "no spills", "", "`nvrtc`"),
    Figure("compile and save without a driver", "works", "", "`tests/runtime/test_cuda_library.py`"),
    Figure("all models on a GPU", "right", "", f"{_CHECK}, section correct", _numbers),
    Figure(
        "batch 1, float32: the faster of PyTorch eager and reduce-overhead over minitvm",
        "1",
        "",
        f"{_CHECK}, section torch",
        _ratios(1, FLOAT32, ("eager", "reduce-overhead")),
    ),
    Figure("batch 1, float32: minitvm over the H200's floor", "", "2", f"{_CHECK}, section speed", _floors),
    Figure(
        "batch 32, fp16: max-autotune over minitvm",
        "0.8",
        "1.2",
        f"{_CHECK}, section torch",
        _ratios(32, FLOAT16, ("max-autotune",)),
    ),
    Figure(
        "batch 32, tf32: max-autotune over minitvm",
        "0.8",
        "1.2",
        f"{_CHECK}, section torch",
        _ratios(32, TF32, ("max-autotune",)),
    ),
    Figure("Python's time a run, us", "20", "5", f"{_CHECK}, section python", _python),
    Figure("compile ResNet-50, cold / cached", "40 / 1 s", "15 / 0.3 s", f"{_CHECK}, section compile", _compile),
)


# --- the page -----------------------------------------------------------------------------------------------------


def record() -> Result | None:
    """What was measured on a GPU, if anything was."""
    found: Result | None = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else None
    return found


def markdown(result: Result | None) -> str:
    """The tables between the page's marks."""
    asked = _table(["what", "at least", "aim", "found", "where it comes from"], (f.cells(result) for f in FIGURES))
    heading = ["network", "batch", "precision", "H200's floor", *WAYS.values()]
    return f"\n{machine(result)}\n\n{asked}\n\nMedians in ms:\n\n{_table(heading, _time_rows(result))}\n\n"


def machine(result: Result | None) -> str:
    """The GPU and the software."""
    if result is None or result["stand_in"]:
        return f"GPU and software: {MISSING}."
    there = result["device"]
    versions = ", ".join(f"{name} {number}" for name, number in there["versions"].items())
    return f"{there['name']} ({there['arch']}), CUDA {there['driver']}; {versions}; {result['date']}."


def _time_rows(result: Result | None) -> Iterator[list[str]]:
    for name, network in NETWORKS.items():
        for batch, precision in ((1, FLOAT32), (32, FLOAT32), (32, TF32), (32, FLOAT16)):
            times = times_of(result, name, batch, precision)
            cells = [f"{times[way]:.3g}" if way in times else MISSING for way in WAYS]
            yield [name, str(batch), precision, f"{(network.floors or {})[batch, precision]:g}", *cells]


def _table(heading: list[str], rows: Iterator[list[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(result: Result) -> None:
    """Keep a GPU's figures, and put them on the page."""
    RECORD.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + markdown(result) + END + after, encoding="utf-8")


# --- the screen ---------------------------------------------------------------------------------------------------


def show(result: Result, console: Console) -> None:
    """A line for every job, then the slowest kernels beside their floors."""
    there = result["device"]
    stand_in = "; the stand-in: times say nothing" if result["stand_in"] else ""
    console.print(f"{there['name']} ({there['arch']}), {result['seconds']:.0f} s{stand_in}")
    table = Table("section", "model", "batch", "precision", "found", title="CUDA")
    for name, rows in result["sections"].items():
        for row in rows:
            table.add_row(name, row["model"], str(row["batch"]), row["precision"], summary(row))
    console.print(table)
    for row in result["sections"].get("nodes", []):
        console.print(_walked(row))
    for row in result["sections"].get("counters", []):
        console.print(_counters(row))
    for row in result["sections"].get("roofline", []):
        if "kernels" in row:
            console.print(_kernels(row))


def wrong(result: Result) -> list[str]:
    """What was found not to be right."""
    rows = [row for name in ("correct", "speed", "torch", "tune") for row in result["sections"].get(name, [])]
    found = [row for row in rows if not row.get("right", True) or row.get("wrong")]
    return list(dict.fromkeys(f"{row['model']}{_batch(row)} in {row['precision']}" for row in found))


def _batch(row: Mapping[str, Any]) -> str:
    return f", batch {row['batch']}," if row["batch"] > 1 else ""


def summary(row: Mapping[str, Any]) -> str:
    """A job's result in a line, and why there is no more."""
    texts = []
    if "error" in row:
        texts.append(f"{'right' if row['right'] else 'WRONG'}, off by {row['error']:.1e} from {row['against']}")
    texts += [f"{name} {times['median']:.3f} ms" for name, times in row.get("times", {}).items()]
    texts += [f"WRONG, {off:.1e} from {name}" for name, off in row.get("wrong", {}).items()]
    texts += [f"no {name}: {why}" for name, why in row.get("missing", {}).items()]
    if "counters" in row:
        texts.append(f"{len(row['counters'])} kernels counted")
    texts += [f"{row[kind]}" for kind in ("tests", "tool") if kind in row]
    if "tried" in row:
        texts.append(f"{row['tried']} of {row['of']} ways tried {row.get('not_measured', '')}".rstrip())
    if "figures" in row:
        texts += [f"{name} {value:.4g}" for name, value in row["figures"].items()]
    if "seconds" in row:
        texts.append(f"compiled in {row['seconds']:.1f} s")
    if "rows" in row:
        count = sum(bool(kernel.get("differs")) for kernel in row["rows"])
        texts.append(f"{count} of {len(row['rows'])} kernels differ, the first is {row['first'] or 'none'}")
    if "microseconds" in row:
        texts.append(f"{row['microseconds']:.1f} us of Python a run")
    if "kernels" in row and isinstance(row["kernels"], list):
        texts.append(f"{len(row['kernels'])} kernels, {sum(k['us'] for k in row['kernels']):.0f} us together")
    return "; ".join([*texts, *([row["failed"]] if "failed" in row else [])])


def _walked(row: Mapping[str, Any], most: int = 12) -> Table:
    table = Table("node", "kernel", "off by", title=f"{row['model']}{_batch(row)} in {row['precision']}, node by node")
    for one in sorted(row.get("rows", []), key=lambda one: -one.get("error", float("inf")))[:most]:
        table.add_row(one["node"], one["kernel"], one.get("failed") or f"{one['error']:.1e}")
    return table


def _counters(row: Mapping[str, Any]) -> Table:
    title = f"{row['model']}{_batch(row)} in {row['precision']}: counters"
    table = Table("kernel", *COUNTERS, title=title)
    for one in row.get("counters", []):
        values = [one.get(name) for name in COUNTERS]
        table.add_row(one["kernel"], *("" if value is None else f"{value:.4g}" for value in values))
    return table


def _kernels(row: Mapping[str, Any], most: int = 8) -> Table:
    title = f"{row['model']}, batch {row['batch']}, {row['precision']}: the slowest kernels"
    table = Table("kernel", "us", "share", "MFLOP", "MB", "floor us", "of floor", title=title)
    for k in sorted(row.get("kernels", []), key=lambda k: -k["us"])[:most]:
        figures = (f"{k['flops'] / 1e6:.2f}", f"{k['bytes'] / 1e6:.2f}", f"{k['floor_us']:.1f}", f"{k['of_floor']:.0%}")
        table.add_row(k["kernel"], f"{k['us']:.1f}", f"{k['share']:.0%}", *figures)
    return table
