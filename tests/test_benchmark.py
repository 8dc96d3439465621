"""The benchmark's machinery on a model that runs in microseconds; no peer needs to be installed."""

from __future__ import annotations

import json
import pathlib
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from rich.console import Console

import minitvm
from benchmarks import __main__ as command
from benchmarks import (
    asked,
    cases,
    cold,
    company,
    exact,
    figures,
    levels,
    measure,
    narrow,
    opening,
    report,
    runtimes,
    scale,
    start,
    turns,
    where,
    worker,
)
from benchmarks.graph import Graph
from benchmarks.machine import Peak
from benchmarks.onnx_models import NETWORKS
from benchmarks.runtimes import relative_error, statistics
from minitvm.runtime import rounds, timing


@pytest.fixture(autouse=True)
def _timed_as_users_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINITVM_POISON", raising=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("benchmark") / "mlp.onnx"
    onnx.save(scale.mlp(), path)
    return path


@pytest.fixture
def result(model: pathlib.Path, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> dict[str, Any]:
    monkeypatch.setenv("MINITVM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measure, "measure_peak", lambda threads: Peak(threads, 100.0, 10.0, 50.0))
    settings = measure.Settings([str(model)], (1, 2), ("llvm",), rounds=1, runtimes=["minitvm"], pause=0)
    return measure.benchmark(settings)


def shown(result: dict[str, Any]) -> list[str]:
    console = Console(width=160, record=True)
    report.show(result, console)
    return console.export_text().splitlines()


def test_a_result_has_every_figure_that_the_page_explains(result: dict[str, Any]) -> None:
    (found,) = result["models"]
    here = found["targets"]["llvm"]
    assert [run["threads"] for run in here["runs"]] == [1, 2]
    assert set(here["runs"][0]["times"]["minitvm"]) == {"steady", "burst"}
    figures = {"median", "best", "low", "high", "runs", "spread", "turns"}
    assert set(here["runs"][0]["times"]["minitvm"]["burst"]) == figures
    assert found["reference"] == "float64" and 0 < here["errors"]["minitvm"] < 1e-5
    assert result["peaks"][1] == {"threads": 2, "gflops": 100.0, "memory_gbs": 10.0, "l2_gbs": 50.0}
    assert json.loads(json.dumps(result))["models"] == result["models"]
    assert [line.split()[0] for line in shown(result) if line.startswith("mlp")] == ["mlp"] * 3


def of_peer(seconds: float, model: str = "resnet18", **more: Any) -> dict[str, Any]:
    """A result in which ours takes 2 ms, a peer ``seconds``."""
    times = {
        name: {kind: statistics(timing.BenchmarkResult([s, s])) for kind in ("steady", "burst")}
        for name, s in (("minitvm", 0.002), ("onnxruntime", seconds), ("openvino", 2 * seconds))
    }
    runs = [{"threads": threads, "times": times} for threads in (1, 2)]
    found = {"runs": runs, "errors": {"minitvm": 1e-6, "openvino": 2e-6}, "problems": {}, "where": "all of it", **more}
    return {
        "machine": {"cpu": "a CPU", "cores": 2, "system": "Linux"},
        "versions": {"minitvm": "1"},
        "date": "2026-11-22",
        "seconds": 60.0,
        "settings": {"targets": ["llvm"], "threads": [1, 2], "runtimes": ["minitvm", "onnxruntime", "openvino"]},
        "kept": {"llvm": "", "llvm -mcpu=haswell": "onnxruntime is told something"},
        "absent": {"tvm": "not installed: tvm"},
        "peaks": [{"threads": n, "gflops": 100.0, "l2_gbs": 1.0, "memory_gbs": 1.0} for n in (1, 2)],
        "models": [{"name": model, "gflop": 0.1, "reference": "float64", "targets": {"llvm": found}}],
    }


def rows(result: dict[str, Any], first: str) -> list[str]:
    return [" ".join(line.split()) for line in shown(result) if line.startswith(first)]


def test_a_row_has_the_faster_peers_time_over_ours_and_what_is_asked() -> None:
    one, two, errors, where = rows(of_peer(0.003), "resnet18")
    assert one == "resnet18 2 ± 0 % 3 ± 0 % 6 ± 0 % 1.50 1.50 1.50 1.25 / 1.7 50%"
    assert two == "resnet18 2 ± 0 % 3 ± 0 % 6 ± 0 % 1.50 1.50 1.50 50%"
    assert errors == "resnet18 float64 1e-06 2e-06"
    assert where == "resnet18, llvm (1.50): all of it"
    assert rows(of_peer(0.002), "resnet18")[0].endswith("short 1.25 / 1.7 50%")
    assert rows(of_peer(0.004), "resnet18")[0].endswith("aim 1.25 / 1.7 50%")


def test_means_are_of_the_networks_and_to_every_peer() -> None:
    assert rows(of_peer(0.003), "mean of 1 to openvino")[0].endswith("openvino 3.00 3.00 3.00")
    one, two = rows(of_peer(0.003), "mean of 1 to the faster")
    assert one.endswith("1.50 1.50 1.50 aim 1.2 / 1.5")
    assert two.endswith("1.50 1.50 1.50 aim 1.15 / 1.5; aim 1.05 / 1.4")
    assert rows(of_peer(0.003, "a_real_one"), "mean of 0 to the faster")[0] == "mean of 0 to the faster 1.2 / 1.5"


def test_what_is_left_out_says_why() -> None:
    lines = shown(of_peer(0.003, problems={"openvino": "RuntimeError: no such operator"}))
    assert lines[-2:] == ["tvm: not installed: tvm", "resnet18, llvm: openvino: RuntimeError: no such operator"]


def test_lists_of_numbers_are_a_line(tmp_path: pathlib.Path) -> None:
    result = {"turns": [1.5, 2e-05, -3], "text": "a [0, 2,  1] b", "names": ["a", "b"], "none": []}
    report.write_json(result, tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert ' "turns": [ 1.5, 2e-05, -3 ],\n' in text and json.loads(text) == result


def test_a_model_is_held_against_the_peer_that_is_named() -> None:
    times = of_peer(0.003)["models"][0]["targets"]["llvm"]["runs"][0]["times"]
    assert asked.ratio(times) == 1.5 and asked.ratio(times, peer="openvino") == 3.0
    assert asked.ratio({"onnxruntime": times["onnxruntime"]}) != asked.ratio(times)  # not a number
    assert asked.mean([2.0, 8.0, float("nan")]) == pytest.approx(4.0)
    assert asked.explained("resnet18", 9.0) and asked.explained("vgg16", 1.6) and asked.explained("other", 1.1)
    assert not asked.explained("vgg16", 1.8) and not asked.explained("other", 1.3)
    assert [asked.Asked(1.0, 2.0).met(r) for r in (0.9, 1.0, 2.0)] == ["short", "", "aim"]


def test_a_ratio_is_that_of_the_rounds_where_both_took_their_turns() -> None:
    """The machine is slow in the second round, and then while ours runs: by medians alone ours would be slower."""
    ours = {"median": 2.0, "best": 1.0, "turns": [1.0, 2.0, 2.0]}
    peer = {"median": 1.5, "best": 1.5, "turns": [1.5, 3.0, 1.5]}
    assert asked.over(peer, ours) == 1.5 == asked.over(peer, ours, "best")
    assert asked.over({**peer, "turns": [1.5]}, ours) == 0.75
    assert asked.ratio({"minitvm": {"steady": ours}, "openvino": {"steady": peer}}) == 1.5


def test_threads_take_turns_too(model: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []

    def opened(path: str, threads: int, target: str) -> Any:
        return lambda feeds: order.append(threads) or [np.zeros(1)]

    monkeypatch.setitem(runtimes.OPENERS, "minitvm", opened)
    monkeypatch.setattr(turns, "turn", lambda run, pause: (run(), ([1.0], [2.0]))[1])
    worker.save_feeds(model, scale.mlp_feeds())
    found = turns.work(turns.Job(str(model), (1, 2), "llvm", ["minitvm"], 3, 1.0, pause=0))
    assert order == [1, 2, *(1, 2), *(2, 1), *(1, 2)]
    assert [run["times"]["minitvm"]["steady"]["turns"] for run in found["runs"]] == [[2000.0] * 3] * 2


def test_a_runtime_with_one_number_of_threads_is_told_where_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "_AGREED", {})
    told: list[int] = []
    for threads in (1, 1, 2, 2, 1):
        runtimes._agree("torch", told.append, threads)
    assert told == [1, 2, 1]


def test_no_time_is_no_measurement(model: pathlib.Path) -> None:
    clock = measure.Clock(until=0.0, shares=2)
    settings = measure.Settings([str(model)], runtimes=["minitvm"])
    found = measure._measured(str(model), ["minitvm"], settings, clock, lambda text: None)
    assert (found["problem"], found["targets"], clock.shares, clock.share()) == ("no time was left", {}, 1, 0.0)


def test_rounds_end_when_the_time_is_over() -> None:
    calls: list[str] = []
    turns.take_turns({"a": lambda: calls.append("a")}, rounds=10**6, until=0.0, pause=0)
    once = len(calls)
    found = turns.take_turns({}, rounds=10**6, until=0.0)
    assert once >= turns.LEAST_ROUNDS * turns.BURST and not found


def test_a_burst_is_the_runs_after_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(turns, "time", SimpleNamespace(perf_counter=lambda: now[0], sleep=lambda seconds: None))

    for seconds, runs in ((1 / 1024, 42), (1 / 32, 3)):
        burst, steady = turns.turn(lambda taken=seconds: now.__setitem__(0, now[0] + taken))
        assert (len(burst), len(steady)) == (turns.BURST, runs)


def test_a_runtime_that_cannot_says_why_and_the_others_run(
    model: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: str, threads: int, target: str) -> Any:
        raise ValueError("no such operator\nat all")

    monkeypatch.setitem(runtimes.OPENERS, "openvino", broken)
    worker.save_feeds(model, scale.mlp_feeds())
    found = turns.work(turns.Job(str(model), (1,), "llvm", ["minitvm", "openvino"], 1, 1.0, pause=0))
    assert list(found["runs"][0]["times"]) == ["minitvm"]
    assert found["problems"] == {"openvino": "ValueError: no such operator"}


def test_a_process_that_takes_too_long_is_ended(model: pathlib.Path) -> None:
    found = turns.run_job(turns.Job(str(model), (1,), "llvm", ["minitvm"], 1, 1.0), {}, timeout=-1)
    assert found == {"problem": "took longer than -1 s"}


def test_float64_is_of_the_same_model(model: pathlib.Path) -> None:
    (found,) = exact.outputs(model, scale.mlp_feeds())
    (ours,) = minitvm.InferenceSession(model).run(None, scale.mlp_feeds())
    assert found.dtype == np.float64 and 0 < relative_error([ours], [found]) < 1e-5


def test_float64_leaves_what_operators_demand_in_float32(tmp_path: pathlib.Path) -> None:
    g = Graph()
    zeros = g.node("ConstantOfShape", [g.weight(np.array([1, 1, 2, 2]))])
    x = g.node("Add", [g.node("Cast", [g.node("Cast", ["data"], to=7)], to=1), zeros])
    x = g.node("Resize", [x, "", g.weight(np.array([1, 1, 2, 2], np.float32))], mode="nearest")
    onnx.save(g.model(x, (1, 1, 2, 2)), tmp_path / "m.onnx")
    (found,) = exact.outputs(tmp_path / "m.onnx", {"data": np.full((1, 1, 2, 2), 3.5, np.float32)})
    assert found.dtype == np.float64 and np.array_equal(found, np.full((1, 1, 4, 4), 3.0))


def test_inputs_and_outputs_beside_a_model_are_its_own(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    copied, feeds = tmp_path / "m.onnx", scale.mlp_feeds()
    copied.write_bytes(model.read_bytes())
    np.savez(tmp_path / "m.npz", **{"in0.data": feeds["data"], "out0.output": np.ones((1, 8), np.float32)})
    (tmp_path / "folder").mkdir()
    case = cases.make(str(copied), tmp_path / "folder")
    assert np.array_equal(case.feeds["data"], feeds["data"]) and case.expected is not None
    assert np.array_equal(worker.read_feeds(str(case.path))["data"], feeds["data"])


def test_where_time_goes_is_said_by_kinds_of_kernels(model: pathlib.Path) -> None:
    text = where.where_time_goes(str(model), scale.mlp_feeds(), "llvm")
    assert re.match(r"\d+% \w+dense\w* x \d \(\d+% of peak, \d+% of what \w+ allows\)", text)
    assert where.kind_of("fused_nn_conv2d_add_12") == "nn_conv2d_add"


def test_narrow_targets_limit_peers_that_can_be() -> None:
    assert runtimes.limits("llvm") == {}
    wide = "AVX-512" in narrow.hidden("llvm -mcpu=nehalem")
    assert set(runtimes.limits("llvm -mcpu=nehalem")) == (
        {"ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"} if wide else set()
    )


def test_the_plot_is_a_picture(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    report.plot(of_peer(0.003), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_ladder_has_a_line_for_every_level(model: pathlib.Path) -> None:
    console = Console(width=140, record=True)
    result = levels.measure_levels([str(model)], threads=1, rounds=1, pause=0)
    levels.show_levels(result, console)
    lines = [line.split() for line in console.export_text().splitlines()[1:]]
    assert [line[:2] for line in lines] == [["mlp", str(level)] for level in levels.LEVELS]
    assert lines[-1][4] == "1.00" and max(result[0]["errors"].values()) < 1e-5


def test_a_disturbed_peak_does_not_count() -> None:
    assert Peak(2, 100.0, 20.0, 90.0).better_of(Peak(2, 190.0, 10.0, 95.0)) == Peak(2, 190.0, 20.0, 95.0)


def test_threads_in_company_of_a_process_that_keeps_a_core_busy(model: pathlib.Path) -> None:
    worker.save_feeds(model, scale.mlp_feeds())
    found = company.work(company.Job(str(model), company.BUSY, (1, 2), turns=1, seconds=1e-9))
    assert list(found) == ["1", "2"] and min(found.values()) > 0


def test_threads_in_company_of_other_threads_come_right_after_them(
    model: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.save_feeds(model, scale.mlp_feeds())
    calls: list[str] = []
    monkeypatch.setitem(company.OPENERS, "onnxruntime", lambda path, threads: lambda feeds: calls.append("peer"))
    monkeypatch.setitem(company.OPENERS, "minitvm", lambda path, threads: lambda feeds: calls.append(f"own {threads}"))
    company.work(company.Job(str(model), company.SPINNING, (1, 2), turns=2, seconds=1e-9))
    turns = ["peer", "own 1", "peer", "own 2", "peer", "own 2", "peer", "own 1"]
    assert calls == ["peer", "own 1", "own 2", *turns]


def test_turns_rotate_and_their_first_run_is_not_counted() -> None:
    calls: list[str] = []
    runs = {name: (lambda name=name: calls.append(name)) for name in "ab"}
    times = rounds.side_by_side(runs, rounds=2, pause=0, most=2)
    timed = calls[calls.index("b", calls.index("b") + 3) :]
    assert len(times["a"].results) == len(times["b"].results) == 2 * 2
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
    assert found["open_s"] > 0 and found["first_run_s"] > 0
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
        (["--models", "resnet19"], f"'resnet19' is neither a file nor one of {', '.join(NETWORKS)}"),
        (["--threads", "1,x"], "'1,x' is not a list of positive numbers, such as 1,2"),
        (["--peers", "tvm"], "'tvm' is not installed; here are minitvm"),
    ],
)
def test_options_that_cannot_be_are_refused(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(command.main, arguments)
    assert done.exit_code == 2
    assert text in done.output


# --- figures that are asked for ---------------------------------------------------------------------------------------


def test_figures_stand_beside_what_is_asked() -> None:
    one = of_peer(0.0023)
    layer = {"name": "conv/0", "ratios": {"level 3": 1.3}}
    result = {
        "networks": one,
        "layers": {"llvm": {"layers": [layer]}},
        "compile": {"resnet50": 1.5, "densenet121": 7.0},
    }
    result |= {"memory": {"session": 100.0, "library": 80.0, "onnxruntime": 100.0}, "targets": ["llvm"]}
    result |= {"threads": [{"steady": 0.5, "burst": 0.6}, {"steady": 0.6, "burst": 0.9}]}
    console = Console(width=140, record=True)
    figures.show_figures(result, console)
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "every network against the faster peer, 1 thread 1 1.15" in lines
    assert "resnet18, vgg16, unet_256, espcn_x3, 1 thread 1.25 / 1.7 short 1.15" in lines
    assert "geometric mean of the 18, 2 threads, burst 1.05 / 1.4 1.15" in lines
    assert "random layers, tenth percentile 0.95 / 1.1 aim 1.30" in lines
    assert "cold compile of resnet50, s 4 / 2 aim 1.50" in lines
    assert "cold compile of densenet121, s 6 / 3 short 7.00" in lines
    assert "memory while mobilenet_v2 runs over onnxruntime's: session 1.2 / 0.9 1.00" in lines
    assert "mobilenet_v2, 2 threads' time over 1 thread's, worst process, burst 0.85 / 0.65 short 0.90" in lines
    assert "2 threads over 1: resnet50 1.8 / 1.95" in lines  # not measured


def test_every_asked_figure_can_be_measured_and_is_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {row.section for row in figures.ROWS} == set(figures.SECTIONS)
    monkeypatch.setattr(figures, "SECTIONS", {"memory": lambda plan, say: {"session": plan.minutes}})
    path, said = tmp_path / "figures.json", list[str]()
    path.write_text('{"compile": {"resnet50": 3.0}}')
    found = figures.measure_figures(figures.Plan(minutes=2.0), ["memory"], path, said.append)
    assert found == {"compile": {"resnet50": 3.0}, "memory": {"session": 2.0}, "targets": ["llvm"]}
    assert json.loads(path.read_text()) == found


def test_figures_are_written_to_the_page(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- tables -->\nof yesterday\n<!-- end -->\nafter\n")
    monkeypatch.setattr(figures, "PAGE", page)
    figures.write({"networks": of_peer(0.003), "targets": ["llvm"]})
    text = page.read_text()
    assert text.startswith("before\n<!-- tables -->\n```text\na CPU, 2 cores")
    assert text.endswith("```\n<!-- end -->\nafter\n")
    assert "yesterday" not in text and "resnet18" in text
    assert json.loads(page.with_suffix(".json").read_text())["seconds"] == 60.0 and page.with_suffix(".png").exists()


def test_the_networks_are_those_that_are_asked_for() -> None:
    assert len(cases.EIGHTEEN) == 18
    assert set(asked.OF_A_MODEL) - {"efficientnet_lite0_int8_qdq"} <= set(cases.EIGHTEEN)


def test_opening_has_a_line_for_every_process() -> None:
    one = {
        "import_s": 0.1,
        "open_s": 0.2,
        "first_run_s": 0.01,
        "peak_mb": 90.0,
        "baseline_mb": 30.0,
        "running_mb": 60.0,
    }
    graph = {"calls": 5, "kernels": 2, "import_s": 0.1, "passes_s": 0.2, "plan_s": 0.3, "total_s": 0.6}
    models = [{"name": "m", "processes": {"minitvm, cold": one, "onnxruntime": {**one, "peak_mb": 60.0}}}]
    found = {**of_peer(1.0), "models": models, "graph": graph, "imports": {}, "small_mlp_us": {"minitvm": 9.0}}
    console = Console(width=140, record=True)
    opening.show_opening(found, console)
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "m minitvm, cold 0.10 0.20 10.0 90 60 60 1.50" in lines
    assert "all three 0.60 s" in lines and "a run of a small mlp: minitvm 9 us" in lines


def test_a_first_compilation_is_counted(tmp_path: pathlib.Path) -> None:
    onnx.save(scale.mlp(), tmp_path / "mlp.onnx")
    (found,) = cold.measured([str(tmp_path / "mlp.onnx")], tries=1)
    assert 0 < found.before < found.seconds and found.other is None
    compared = cold.Cold("swin_t.legacy", 2.0, 0.1, 4.0)
    assert str(compared).endswith("2.00 s (Python and numpy 0.10), asked 2.5; the other tree 4.00: 0.50 x")
    assert cold.mean([compared]) == "2.0 s in all; geometric mean 0.50 x the other tree's"


def test_first_results_of_processes_are_counted_and_compared(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx.save(scale.mlp(), tmp_path / "mlp.onnx")
    (found,) = start.starts([str(tmp_path / "mlp.onnx")], tries=1)
    assert 0 < found.before < found.cold and found.least == found.median and found.least.keys() == {*start.RUNTIMES}
    assert re.match(r"mlp +1 thread: minitvm [\d.]+ \(median [\d.]+\), onnxruntime .* x; Python and numpy", str(found))
