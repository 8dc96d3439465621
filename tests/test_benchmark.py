"""The benchmark's machinery on a model that runs in microseconds; no peer needs to be installed."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks import levels, measure, report, scale, worker
from benchmarks.machine import Peak
from benchmarks.onnx_models import WORKLOADS
from benchmarks.runtimes import relative_error, statistics
from minitvm.runtime import timing


@pytest.fixture(autouse=True)
def _timed_as_users_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINITVM_POISON", raising=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("benchmark") / "mlp.onnx"
    onnx.save(scale.mlp(), path)
    return path


@pytest.fixture
def result(model: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(measure, "measure_peak", lambda threads: Peak(threads, 100.0, 10.0, 50.0))
    settings = measure.Settings(
        [str(model)], (1, 2), rounds=2, pause=0, runtimes=["minitvm"], processes=False, graph=False
    )
    return measure.benchmark(settings, say=lambda text: None)


def test_a_result_has_every_figure_that_the_page_explains(result: dict[str, Any]) -> None:
    (found,) = result["models"]
    assert [run["threads"] for run in found["runs"]] == [1, 2]
    assert set(found["runs"][0]["times"]["minitvm"]) == {"median", "best", "low", "high", "runs", "spread"}
    assert result["peaks"][1] == {"threads": 2, "gflops": 100.0, "memory_gbs": 10.0, "l2_gbs": 50.0}
    assert json.loads(json.dumps(result)) == result


def test_the_tables_name_model_runtime_and_threads(result: dict[str, Any]) -> None:
    console = Console(width=140, record=True)
    report.show(result, console)
    lines = [line.split() for line in console.export_text().splitlines()]
    assert [line[:3] for line in lines if line[:1] == ["mlp"]] == [["mlp", "minitvm", "1"], ["mlp", "minitvm", "2"]]


def test_the_ladder_has_a_line_for_every_level(model: pathlib.Path) -> None:
    console = Console(width=140, record=True)
    result = levels.measure_levels([str(model)], threads=1, rounds=1, pause=0)
    levels.show_levels(result, console)
    lines = [line.split() for line in console.export_text().splitlines()[1:]]
    assert [line[:2] for line in lines] == [["mlp", str(level)] for level in levels.LEVELS]
    assert lines[-1][4] == "1.00" and max(result[0]["errors"].values()) < 1e-5


def test_ratios_are_the_peers_time_over_ours() -> None:
    seconds = {"minitvm": [0.001, *[0.002] * 4], "peer": [0.002, *[0.003] * 4]}
    times = {name: statistics(timing.BenchmarkResult(found)) for name, found in seconds.items()}
    run = {"threads": 1, "times": times, "errors": {"peer": 1e-6}}
    (rated,) = measure.with_rates({"name": "m", "gflop": 0.1, "runs": [run]}, {1: 100.0})["runs"]
    cells = [report.time_cells(name, rated["times"][name], rated) for name in times]
    assert cells[0] == ["2.00", "1.00", "0 %", "50", "50 %", "1.00", "", "", ""]
    assert cells[1] == ["3.00", "2.00", "0 %", "33", "33 %", "1.00", "1.50", "2.00", "1e-06"]


def test_a_disturbed_peak_does_not_count() -> None:
    assert Peak(2, 100.0, 20.0, 90.0).better_of(Peak(2, 190.0, 10.0, 95.0)) == Peak(2, 190.0, 20.0, 95.0)


def test_the_plot_is_a_picture(result: dict[str, Any], tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    report.plot(result, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_turns_rotate_and_their_first_run_is_not_counted() -> None:
    calls: list[str] = []
    runs = {name: (lambda name=name: calls.append(name)) for name in "ab"}
    times = timing.side_by_side(runs, rounds=2, pause=0)
    timed = calls[calls.index("b", calls.index("b") + 3) :]
    assert len(times["a"].results) == len(times["b"].results) == 2 * timing.MOST_RUNS_OF_A_TURN
    assert timed[-1] == "a"  # the second round began with b


def test_statistics_are_quartiles_in_milliseconds() -> None:
    found = statistics(timing.BenchmarkResult([0.001 * n for n in (1, 2, 3, 4, 5)]))
    assert found == pytest.approx({"low": 2, "median": 3, "high": 4, "best": 1, "runs": 5, "spread": 2 / 3})


def test_the_error_is_relative_to_the_largest_magnitude() -> None:
    expected = np.array([1.0, -4.0], np.float32)
    assert relative_error([expected + np.float32(0.5)], [expected]) == pytest.approx(0.125)


def test_a_fresh_process_reports_seconds_and_memory(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    worker.save_feeds(model, scale.mlp_feeds())
    found = worker.measure("minitvm", model, 1, tmp_path)
    assert found["peak_mb"] >= found["running_mb"] > found["baseline_mb"] > 10
    assert found["open_s"] > found["first_run_s"] > 0
    assert any(tmp_path.iterdir()), "the cache folder was not used"


def test_a_process_that_fails_says_why(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match=r"^minitvm could not run none\.onnx:\n"):
        worker.measure("minitvm", tmp_path / "none.onnx", 1)


def test_the_mesh_has_the_calls_asked_for() -> None:
    cost = scale.graph_cost(calls=60)
    assert 60 <= cost.calls < 70
    assert 0 < cost.kernels < cost.calls


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--models", "resnet19"], f"'resnet19' is neither a file nor one of {', '.join(WORKLOADS)}"),
        (["--threads", "1,x"], "'1,x' is not a list of positive numbers, such as 1,2"),
        (["--peers", "tvm"], "'tvm' is not installed; here are minitvm"),
    ],
)
def test_options_that_cannot_be_are_refused(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(command.main, arguments)
    assert done.exit_code == 2
    assert text in done.output
