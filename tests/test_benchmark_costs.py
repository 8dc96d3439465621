"""The cost table of CPUs: each figure is measured or says where it is from, and what is measured can be written."""

from __future__ import annotations

import pathlib
import runpy
from dataclasses import asdict, fields

from rich.console import Console

from benchmarks import costs
from minitvm.cpu_costs import CPU, CpuCosts


def test_each_figure_is_measured_or_says_where_it_is_from() -> None:
    found = costs.measured(tries=1)
    assert sorted([*found, *costs.NOT_MEASURED]) == sorted(field.name for field in fields(CpuCosts))
    assert all(value > 0 for name, value in found.items() if name != "own_caches") and min(found["own_caches"]) > 0
    console = Console(record=True, width=140)
    costs.show(found, console)
    text = console.export_text()
    assert all(name in text for name in asdict(CPU))


def test_the_table_is_written_anew(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "cpu_costs.py"
    path.write_text(costs.TABLE.read_text(encoding="utf-8"), encoding="utf-8")
    changed = {"clock": 4.25e9, "own_caches": (0.9, 0.5), "fma_latency": 5, "l2_vector": 1.75}
    costs.write(changed, path)
    made = asdict(runpy.run_path(str(path))["CPU"])
    assert {name: made[name] for name in changed} == {**changed, "clock": 4.2e9}  # in two digits
    assert {name for name, value in asdict(CPU).items() if made[name] != value} == {*changed, "measured_on"}
    before, after = (p.read_text(encoding="utf-8").splitlines() for p in (costs.TABLE, path))
    assert sum(a != b for a, b in zip(before, after, strict=True)) == len(changed) + 1
