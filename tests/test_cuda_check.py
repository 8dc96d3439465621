"""``python -m benchmarks cuda-check`` from end to end: a small network on the stand-in for NVIDIA's driver."""

from __future__ import annotations

import ctypes
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import minitvm
from benchmarks import __main__ as command
from benchmarks.cuda_check import calibrate, constants, figures, run
from benchmarks.cuda_check.jobs import Job, floor, too_far
from benchmarks.cuda_check.networks import FLOAT16, FLOAT32, NETWORKS, TF32, Sample, cost_of_half, model_of, sample
from benchmarks.cuda_check.nodes import walked
from benchmarks.cuda_check.sections import CALLS, SECTIONS
from minitvm.codegen.cuda.backend import compile_cubin
from minitvm.codegen.cuda.machine import Seen, gpu_model
from minitvm.codegen.records import best, read
from minitvm.errors import MiniTVMError
from simulated_gpu import standin
from tests.compilers import needs_compiler

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is made for Linux")
pytest.importorskip("cuda.bindings", reason="pip install cuda-bindings nvidia-cuda-nvrtc")


def _has_driver() -> bool:
    try:
        return bool(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return False


DRY = """
import contextlib, io, json, os, pathlib, sys
from dataclasses import replace
from benchmarks.cuda_check import jobs, run, sections, tuning
from simulated_gpu import standin

def inside(self, job, seconds, environment):
    os.environ.update(environment)
    out, log = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(log):
        try:
            jobs.main(replace(job, stand_in=job.kind in ("tests", "sanitize", "calibrate")).text())
        except SystemExit:
            pass
    lines = [line for line in out.getvalue().splitlines() if line.startswith(jobs.MARK)]
    return json.loads(lines[-1][len(jobs.MARK) :]), log.getvalue()

standin.use_host_code()
standin.use_host_code = lambda: None
run.Check._job, tuning.MOST, sections.TRIAL_PARTS = inside, 1, 1
first = lambda name, of: lambda made, kept: of(made, kept)[: 2 if name == "compile" else 1]
for name, section in sections.SECTIONS.items():
    sections.SECTIONS[name] = replace(section, jobs=first(name, section.jobs))
sections.SECTIONS["build"] = replace(sections.SECTIONS["build"], jobs=lambda made, kept: [jobs.Job("build", "unknown")])
for name, chosen in sections.CALLS.items():
    settings = run.Settings(["small_residual"], chosen, batch=2, rounds=1, stand_in=True, seconds=1e6)
    run.Check(settings, pathlib.Path(sys.argv[1], name), lambda text: None).run()
"""
TOOLS = {
    "compute-sanitizer": "shift; shift; shift; shift; \"$@\" | tail -1; echo '========= ERROR SUMMARY: 0 errors'",
    "ncu": """echo '==PROF== Connected'
printf '"ID","Kernel Name","gpu__time_duration.sum","a__pipe_tensor_b",'
echo '"sm__warps_active.avg.pct_of_peak_sustained_active"'
echo '"","","ns","%","%"'
echo '"0","k1","1,500","n/a","12.5"'""",
}
"""What the tools print, where there are none."""


@needs_compiler
@needs_linux
def test_the_four_calls_on_the_stand_in(tmp_path: pathlib.Path) -> None:
    """A job of each section, all in one process; some fail, as they have to, and the others run."""
    for name, text in TOOLS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = standin.environment(arch=90)
    environment |= {"PATH": f"{tmp_path}:{environment['PATH']}", "PYTHONPATH": str(pathlib.Path(__file__).parents[1])}
    environment["PYTEST_ADDOPTS"] = "-p a_plug_in_of_the_caller_s"
    command = [sys.executable, "-c", DRY, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = {name: json.loads((tmp_path / name / run.RESULT).read_text()) for name in CALLS}
    rows = {name: found for result in results.values() for name, found in result["sections"].items()}
    assert list(rows) == [name for chosen in CALLS.values() for name in chosen]
    found = {name: of[0] for name, of in rows.items()}
    assert [name for name, row in found.items() if "failed" in row] == ["build"]
    assert found["build"]["failed"] == "KeyError: 'unknown'"
    assert "Traceback" in (tmp_path / "speed" / "log.txt").read_text()
    _says_what_it_should(found)
    cold, cached = (row["misses"] for row in rows["compile"])
    assert cold > cached == 0
    assert "__global__" not in (tmp_path / "contact" / "log.txt").read_text()
    trials = read(tmp_path / "tuned" / "trials.jsonl")
    assert any(one.seconds for one in trials) and {str(one) for one in best(trials).values()} <= {
        *(tmp_path / "tuned" / "records.jsonl").read_text().splitlines()
    }
    for result in results.values():
        _is_shown_and_not_kept(result)


def _says_what_it_should(found: dict[str, dict[str, Any]]) -> None:
    assert list(found["calibrate"]["missing"]) == ["overlapped"] and found["calibrate"]["figures"]["ffma_cycles"] > 0
    assert "1 passed" in found["tests"]["tests"] and found["tests"]["failures"] == []
    assert (found["sanitize"]["tool"], found["sanitize"]["errors"]) == ("memcheck", 0)
    assert found["correct"]["right"] and found["correct"]["error"] < 1e-6
    assert found["speed"]["times"]["minitvm"]["median"] > 0 and found["python"]["microseconds"] > 0
    kernels = found["roofline"]["kernels"]
    assert {k["launches"] for k in kernels} == {1} and sum(k["share"] for k in kernels) == pytest.approx(1)
    assert found["counters"]["counters"] == [{"kernel": "k1", "us": 1.5, "tensor": None, "warps": 12.5}]
    assert {*found["warm"]["missing"]} == {"eager", "reduce-overhead"} == {*found["torch"]["missing"]}
    assert found["tune"]["tried"] == found["trials"]["tried"] > 1 and set(found["tune"]["times"]) == {
        "shipped",
        "tuned",
    }


def _is_shown_and_not_kept(result: dict[str, Any]) -> None:
    console = Console(width=160, record=True)
    figures.show(result, console)
    text = console.export_text()
    assert "the stand-in: times say nothing" in text
    assert figures.markdown(result) == figures.markdown(None)


def test_a_wrong_kernel_is_found_node_by_node(tmp_path: pathlib.Path) -> None:
    """Those behind it get what it made, and are right; its arrays and its source are kept."""
    library = minitvm.compile(model_of("small_residual", 1, FLOAT32), "llvm")
    instance = minitvm.GraphModule(library["default"](minitvm.cpu(0))).instance
    for name, value in sample("small_residual").feed.items():
        instance.assign(name, value)
    *_, plain = walked(instance, library, 1e-5, tmp_path / "right")
    assert not plain["first"] and not [*tmp_path.iterdir()] and max(row["error"] for row in plain["rows"]) < 1e-6
    wrong = [n for n, node in enumerate(instance.graph.nodes) if node.is_kernel][2]
    step = instance.node_step

    def planted(node: int) -> Callable[[], None]:
        def run() -> None:
            step(node)()
            if node == wrong:
                instance.memory.write(instance.there((node, 0)), instance.value((node, 0)) + 1)

        return run

    instance.node_step = planted  # type: ignore[method-assign]
    *_, found = walked(instance, library, 1e-5, tmp_path / "wrong")
    assert [row["node"] for row in found["rows"] if row["differs"]] == [found["first"]]
    assert found["first"] == instance.graph.nodes[wrong].name
    kept = np.load(tmp_path / "wrong.npz")
    np.testing.assert_allclose(kept["found0"], kept["expected0"] + 1, rtol=1e-5)
    assert "__global__ void" in (tmp_path / "wrong.cu").read_text()


def test_a_job_that_takes_too_long_is_ended_with_what_it_started() -> None:
    inner = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    process = subprocess.Popen([sys.executable, "-c", inner], start_new_session=True)
    assert run._end_of(process, 0.2) == "ended after 0 s"
    assert process.returncode == -9


@pytest.mark.skipif(_has_driver(), reason="there is a driver on this machine")
def test_without_a_gpu_it_says_what_is_missing(tmp_path: pathlib.Path) -> None:
    done = CliRunner().invoke(command.main, ["cuda-check", "--out", str(tmp_path / "found")])
    assert done.exit_code == 1 and not (tmp_path / "found").exists()
    first, *_, driver, hint = done.output.splitlines()
    assert first == "Error: there is no NVIDIA driver on this machine, so no GPU can be used"
    assert "hint: install NVIDIA's driver" in driver
    assert hint == "  = hint: --stand-in shows without a GPU how the check works"


def test_figures_of_the_stand_in_are_not_written() -> None:
    done = CliRunner().invoke(command.main, ["cuda-check", "--stand-in", "--write"])
    assert done.exit_code == 2 and "--write needs a GPU" in done.output


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_the_kernels_of_the_calibration_are_compiled_for_a_gpu(arch: str) -> None:
    found = compile_cubin(calibrate.source(arch), arch)
    assert found.spills == 0 and "serialized" not in found.log
    assert ("multiply_by_groups" in found.log) == (arch == "sm_90")


def test_a_floor_is_the_largest_of_three() -> None:
    h200 = gpu_model("sm_90")
    assert floor(h200, FLOAT32, 50e12, 0, 1) == pytest.approx(1)
    assert floor(h200, FLOAT16, 0.62 * 990e12, 0, 1) == floor(h200, TF32, 0.31 * 990e12, 0, 1) == pytest.approx(1)
    assert floor(h200, FLOAT32, 0, 4.3e12, 1) == pytest.approx(1)
    assert floor(h200, FLOAT32, 1, 1, 2) == 3e-6


def test_the_page_has_the_figures_of_the_record() -> None:
    """That nobody measured one is said by the code that writes measured ones."""
    page = figures.PAGE.read_text(encoding="utf-8")
    assert figures.BEGIN + figures.markdown(figures.record()) + figures.END in page


def test_figures_of_a_gpu_are_in_the_tables() -> None:
    def row(**has: Any) -> dict[str, Any]:
        return {"model": "resnet50", "batch": 1, "precision": FLOAT32, **has}

    times = {"minitvm": {"median": 0.5}, "eager": {"median": 2.0}, "reduce-overhead": {"median": 0.75}}
    there = {"name": "H200", "arch": "sm_90", "driver": "13.0", "versions": {"torch": "2.11"}}
    sections = {
        "correct": [row(right=True), row(failed="ended by signal 11: ")],
        "speed": [row(times={"minitvm": {"median": 0.6}, "libraries": {"median": 0.9}})],
        "torch": [row(times=times)],
        "python": [row(microseconds=7.0)],
        "compile": [row(seconds=20.0), row(seconds=0.4)],
    }
    text = figures.markdown({"stand_in": False, "date": "today", "device": there, "sections": sections})
    none = figures.MISSING
    assert f"| resnet50 | 1 | float32 | 0.17 | 0.5 | 2 | 0.75 | {none} | 0.9 |" in text
    assert f"| resnet18 | 1 | float32 | 0.08 | {none} |" in text
    for found in ("1 of 2 right", "resnet50 1.50", "resnet50 2.9", "resnet50 7.0", "20.0 / 0.4 s, resnet50"):
        assert f"| {found} |" in text
    assert set(NETWORKS) == {"resnet18", "resnet50", "mobilenet_v2", "bert_base_s128"}


def test_what_is_wrong_is_the_commands_end(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"batch": 1, "number": 0, "against": "onnxruntime", "error": 0.5}
    rows = [{**row, "model": name, "precision": TF32, "right": name == "good"} for name in ("good", "bad")]
    failed = {"model": "late", "batch": 1, "precision": FLOAT32, "failed": "ended after 9 s"}
    there = {"name": "Stand-in", "arch": "sm_90"}
    sections = {"correct": [*rows, failed], "roofline": [failed]}
    result = {"stand_in": True, "device": there, "seconds": 1.0, "sections": sections}
    monkeypatch.setattr(run.Check, "run", lambda self: result)
    done = CliRunner().invoke(command.main, ["cuda-check", "--out", str(tmp_path)])
    assert done.exit_code == 1 and done.output.endswith("Error: wrong results: bad in tf32\n")
    assert "WRONG, off by 5.0e-01 from onnxruntime" in done.output and "slowest" not in done.output


def test_what_is_rounded_is_held_to_what_that_costs_the_reference() -> None:
    """PyTorch itself is 0.0174 off in float16 where a GPU was found to be 0.0171 off; in TF32 one was 0.0077 off."""
    wide = np.array([[1.0, 0.5]])
    plain = Sample({}, [wide], "")
    assert plain.is_right([wide], 0.0171, FLOAT16, 0.0174) and not plain.is_right([wide], 0.0171, FLOAT16, 0.004)
    assert plain.is_right([wide], 0.0077, TF32, 0.016) and not plain.is_right([wide], 0.0077, TF32, 0.0076)
    assert not plain.is_right([wide], 0.0171, FLOAT32, 0.0174) and not plain.is_right([wide], np.inf, FLOAT16, 0.0174)
    assert 0 < cost_of_half("small_residual", FLOAT16) < 1e-2 and cost_of_half("small_residual", FLOAT32) == 0


def test_a_large_batch_is_checked_for_results_and_what_differs_has_no_times() -> None:
    jobs = SECTIONS["correct"].jobs(["resnet50"], [])
    assert {(job.batch, job.precision) for job in jobs} == {(b, p) for b in (1, 32) for p in (FLOAT32, TF32, FLOAT16)}
    job = Job("speed", "small_residual", 32, FLOAT16)
    assert too_far(job, {"eager": 0.3, "libraries": 1e-3}) == {"eager": 0.3}
    assert list(too_far(job, {"eager": float("nan")})) == ["eager"] and not too_far(job, {"eager": 1.9e-2})
    row = {"model": "resnet50", "batch": 32, "precision": FLOAT16, "times": {"minitvm": {"median": 1.0}}}
    result = {"stand_in": False, "sections": {"torch": [{**row, "wrong": {"eager": 0.3}}]}}
    assert figures.times_of(result, "resnet50", 32, FLOAT16) == {}
    assert figures.wrong(result) == ["resnet50, batch 32, in float16"]


def test_of_steps_the_class_counts_too() -> None:
    wide, near, other = (np.array([[0.0, 1.0, scores]]) for scores in (0.99, 0.98, 1.01))
    steps, plain = Sample({}, [wide], "", 2e-2), Sample({}, [wide], "")
    assert steps.is_right([near], 1e-2, FLOAT32) and not steps.is_right([other], 2e-2, FLOAT32)
    assert not steps.is_right([near], 3e-2, FLOAT32) and not plain.is_right([near], 1e-2, FLOAT32)
    assert plain.is_right([other], 1e-2, FLOAT16)


def test_a_calibration_becomes_constants_of_its_card_alone() -> None:
    figures = {"clock_hz": 2e9, "launch_gap_s": 5e-7, "latency_l2_cycles": 300.4, "latency_memory_cycles": 700}
    figures |= {"l2_read_bytes_s": 132 * 2e9 * 32, "memory_read_bytes_s": 4e12}
    figures |= {"mma_f16_flops": 495e12, "wgmma_f16_flops": 594e12}
    device = {"name": "NVIDIA H200", "arch": "sm_90", "sms": 132, "memory_bytes": 5e12}
    result = {"stand_in": False, "device": device, "sections": {"calibrate": [{"figures": figures}]}}
    found = constants.seen_of(result)
    assert found == Seen("NVIDIA H200", 1000, 300, 700, 32.0, 0.5, 0.6, 0.8)
    text = constants.TABLE.read_text(encoding="utf-8")
    after, before = constants.replaced(text, "sm_90", found)
    assert before == gpu_model("sm_90").seen
    assert after.count('Seen("NVIDIA H200", 1000, 300, 700, 32.0, 0.5, 0.6, 0.8)') == 1
    assert constants.replaced(after, "sm_80", found)[0].count("80: Seen(") == 1
    for wrong, says in (
        ({**result, "stand_in": True}, "not those of a GPU"),
        ([], "not those of a GPU"),
        ({**result, "device": {**device, "arch": "sm_12"}}, "unknown GPU architecture"),
        ({**result, "sections": {}}, "did not measure clock_hz, launch_gap_s"),
        ({**result, "device": {**device, "name": "NVIDIA H100"}}, "of an NVIDIA H100, those of sm_90 in the table"),
    ):
        with pytest.raises(MiniTVMError, match=says):
            constants.replaced(text, "sm_90", constants.seen_of(wrong))
