"""Measurements that cannot be: none is shown unmarked, whatever the clock says."""

from __future__ import annotations

import json
import math
import pathlib
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner

import minitvm
from benchmarks.graph import Graph
from minitvm.cli import cli
from minitvm.codegen.llvm import backend as llvm_backend
from minitvm.codegen.records import read
from minitvm.lab import profile, profiling
from minitvm.runtime import rounds
from minitvm.runtime.measured import BELOW, MISSING, RELIABLE, SPREAD, Measured, again
from minitvm.viewer.document import document_of

ABSURD = (1e-12, 0.0)
"""Seconds that a clock says passed between two looks at it."""


def test_a_verdict_is_by_the_floor_the_spread_and_the_runs() -> None:
    assert Measured.of([2e-6, 2.1e-6, 1.9e-6], 1e-6).verdict == RELIABLE
    assert Measured.of([2e-6, 2.1e-6, 1.9e-6], 3e-6).verdict == BELOW
    assert Measured.of([1e-6, 2e-6, 9e-6], 1e-7).verdict == SPREAD
    assert {Measured.of(runs).verdict for runs in ([], [math.nan], [0.0], [-1.0])} == {MISSING}
    unreliable = Measured.of([2e-6], 3e-6)
    assert unreliable.text(4e-6, 1e6, 1) == "~4.0" and Measured.of([2e-6]).text(4e-6, 1e6, 1) == "2.0"
    assert unreliable.best(0.0) == 2e-6  # nothing is predicted of what Python does


def test_what_a_measuring_takes_is_no_part_of_it() -> None:
    assert Measured.of([2e-6, 2e-6]).less(1e-6, 0.5e-6) == Measured(1e-6, 0.0, 2)
    assert Measured.of([2e-6]).less(1.9e-6, 0.5e-6).verdict == BELOW
    assert Measured.of([2e-6]).less(2e-6, 0.5e-6).verdict == MISSING


def test_what_is_unreliable_is_measured_again_and_the_best_attempt_stays() -> None:
    attempts = iter([3, 1, 2, 0])
    assert again(lambda: next(attempts), lambda found: found) == 1
    assert next(attempts) == 0
    assert again(lambda: 0, lambda found: found) == 0


# --- with a clock that says what cannot be ---------------------------------------------------------------------------


@pytest.fixture(params=ABSURD)
def _absurd_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that times a run or a kernel sees it."""

    def timed(run: Any, runs: int = 1) -> list[float]:
        return [(run(), request.param)[1] for _ in range(runs)]

    run, step = profiling._Clocked.run, round(request.param * 1e9)

    def squeezed(self: Any) -> list[Any]:
        return [(t, n, 10**9 + i * step, 10**9 + (i + 1) * step) for i, (t, n, *_) in enumerate(run(self))]

    for place in ("lab.profiling", "runtime.debug", "runtime.code", "runtime.timing", "runtime.rounds", "cli.run"):
        monkeypatch.setattr(f"minitvm.{place}.timed", timed)
    monkeypatch.setattr(profiling._Clocked, "run", squeezed)
    monkeypatch.setattr(rounds, "_repeats", lambda *_: 2)
    monkeypatch.setattr("minitvm.cli.run.side_by_side", partial(rounds.side_by_side, pause=0.0))
    monkeypatch.setattr(llvm_backend.LlvmBackend, "measured", lambda self: self.machine.rates(self.machine.threads))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    g = Graph()
    hidden = g.node("Softmax", [g.linear("data", 96, 80)])
    path = tmp_path_factory.mktemp("absurd") / "chain.onnx"
    path.write_bytes(g.model(g.node("Softmax", [g.linear(hidden, 80, 40)]), [4, 96]).SerializeToString())
    return path


def measurements(form: Any) -> Iterator[dict[str, Any]]:
    """All of a document, wherever they stand."""
    if isinstance(form, dict):
        if "verdict" in form:
            yield form
        for value in form.values():
            yield from measurements(value)
    elif isinstance(form, (list, tuple)):
        for value in form:
            yield from measurements(value)


@pytest.mark.usefixtures("_absurd_clock")
def test_the_profile_and_the_viewer_mark_every_time(model: pathlib.Path) -> None:
    library = minitvm.compile(model, num_threads=1, trace=True)
    found = profile(library, repeats=3)
    kernels = [row for row in found.rows if row.floor > 0]
    assert kernels and not any(row.measured.is_reliable for row in found.rows) and found.doubts
    assert [row.seconds for row in kernels] == [row.predicted for row in kernels]
    assert all(row.of_peak <= 1 for row in kernels)
    cells = [row[1] for row in found.table()[1:]]
    assert all(cell.startswith("~") for cell in cells) and found.doubts[0] in str(found)
    assert re.search(r": ~\d+\.\d{3} ms a run", str(found)) and "took ~" in str(found)
    document = document_of(library.report, "chain", found)
    assert document["run"]["doubts"] == found.doubts
    said = [*measurements(document)]
    assert len(said) == len(found.rows) + 1 and not any(one["verdict"] == RELIABLE for one in said)
    assert document["run"]["seconds"] == found.predicted


@pytest.mark.usefixtures("_absurd_clock")
@pytest.mark.parametrize("command", [("profile",), ("bench",), ("bench", "--roofline")])
def test_commands_mark_every_time(model: pathlib.Path, command: tuple[str, ...]) -> None:
    name, *options = command
    asked = [name, str(model), "-n", "2", "-t", "1", *options]
    text = CliRunner().invoke(cli, asked)
    assert text.exit_code == 0 and "unreliable: " in text.stdout and "~" in text.stdout, text.output
    answer = CliRunner().invoke(cli, [*asked, "--json"])
    said = [*measurements(json.loads(answer.stdout))]
    assert said and not any(one["verdict"] == RELIABLE for one in said)


@pytest.mark.usefixtures("_absurd_clock")
def test_tuning_writes_no_such_time_down(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "chain.jsonl"
    done = CliRunner().invoke(cli, ["tune", str(model), "-o", str(path), "-n", "2", "-t", "1"])
    assert done.exit_code == 0, done.output
    records = read(path)
    assert records and all(record.seconds is None and record.verdict != RELIABLE for record in records)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_and_its_calls_have_one_floor(model: pathlib.Path, threads: int) -> None:
    library = minitvm.compile(model, num_threads=threads, trace=True)
    document = document_of(library.report, "chain", profile(library, repeats=1))
    floors = {kernel["symbol"]: (kernel["floor"], kernel["predicted"]) for kernel in document["kernels"]}
    for node, _, predicted, floor, *_ in document["run"]["kernels"]:
        if document["graph"][node]["kind"] == "kernel":
            assert floors[document["graph"][node]["func"]] == (floor, predicted)


def test_a_thread_that_comes_late_takes_no_time_from_others() -> None:
    """It passes what is done already when the run ends; that is no part of what the first one does."""
    late = [(1, node, 9_000 + node, 9_001 + node) for node in range(3)]
    work = [(0, node, 3_000 * node, 3_000 * (node + 1)) for node in range(3)]
    stamps = [stamp for pair in zip(work, late, strict=True) for stamp in pair]
    found = profiling._Run([(t, n, b + 1, e + 1) for t, n, b, e in stamps], 2).of_node
    assert [round(found[node] * 1e6) for node in range(3)] == [3, 3, 3]
