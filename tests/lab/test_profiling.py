"""Profiles: what is timed is a run, whole; nothing that is done once is in a kernel's time."""

from __future__ import annotations

import itertools
import json
import pathlib
import time
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import helper

import minitvm
from benchmarks.onnx_models import Graph
from minitvm.cli import cli
from minitvm.driver import roofline
from minitvm.driver.roofline import Backend
from minitvm.errors import ConfigError
from minitvm.lab import Profile, profile
from minitvm.lab.profiling import profile_module
from minitvm.runtime import timing
from minitvm.target import Rates


@pytest.fixture(autouse=True)
def _usual_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is not measured: that takes a second."""

    def usual(backend: Backend) -> Rates:
        return backend.machine.rates(backend.machine.threads)

    monkeypatch.setattr(roofline, "rates_of", usual)
    monkeypatch.setattr("minitvm.lab.profiling.rates_of", usual)


def chain() -> Any:
    g = Graph()
    hidden = g.node("Softmax", [g.linear("data", 96, 80)])
    return g.model(g.node("Softmax", [g.linear(hidden, 80, 40)]), [4, 96])


@pytest.fixture(scope="module")
def library() -> minitvm.Library:
    return minitvm.compile(chain(), num_threads=2)


def check(found: Profile, threads: int) -> None:
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    assert [row.seconds for row in found.rows] == sorted((row.seconds for row in found.rows), reverse=True)
    assert len(found.idle) == threads and all(0 <= share <= 1 for share in found.idle)
    for thread in range(threads):
        own = [s for s in found.timeline if s.thread == thread]
        assert all(s.end <= t.start for s, t in itertools.pairwise(own))
    assert min(s.start for s in found.timeline) == 0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_kernel_of_a_run_has_a_row_and_every_thread_a_track(library: minitvm.Library, threads: int) -> None:
    found = profile(library, repeats=3, num_threads=threads)
    check(found, threads)
    assert found.together and found.repeats == 3
    kernels = {i for i, node in enumerate(library.graph.nodes) if node.is_kernel}
    assert {row.index for row in found.rows} == kernels
    assert {row.kernel for row in found.rows} == {library.graph.nodes[i].func for i in kernels}


def test_a_run_with_clocks_computes_what_a_run_computes(library: minitvm.Library) -> None:
    x = np.random.default_rng(3).normal(size=(4, 96)).astype("float32")
    module = minitvm.GraphModule(library["default"](None, 2))
    profile_module(module, {"data": x}, "a model", 2, 0)
    np.testing.assert_array_equal(module.get_output(0).numpy(), library.run({"data": x})[0])


HOURS = 1e6
"""Seconds."""


def test_what_the_first_run_pays_for_is_in_no_row(library: minitvm.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    module = minitvm.GraphModule(library["default"](None, 2))
    run, late = module.instance.run, [0.0]

    def slow_at_first() -> None:
        late[0] = HOURS
        run()

    module.instance.run = slow_at_first  # type: ignore[method-assign]
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + late[0])
    monkeypatch.setattr(timing, "time", clock)
    found = profile_module(module, {"data": np.zeros((4, 96), "float32")}, "a model", 3, 1)
    assert found.first.seconds > HOURS and sum(row.seconds for row in found.rows) < HOURS > found.run.seconds


@pytest.mark.parametrize(("disturbed", "left_out"), [({2, 3}, 2), (set(range(1, 7)), 0)])
def test_runs_in_which_a_thread_loses_its_core_are_left_out_unless_all_are(
    library: minitvm.Library, monkeypatch: pytest.MonkeyPatch, disturbed: set[int], left_out: int
) -> None:
    """Run 0 warms; a run asks before and after it."""
    asked = itertools.count()
    lost = itertools.accumulate(asked, lambda total, n: total + (n % 2 == 1 and n // 2 in disturbed))
    monkeypatch.setattr("minitvm.lab.profiling._lost_cores", lambda: next(lost))
    monkeypatch.setattr("minitvm.runtime.measured.ATTEMPTS", 1)
    found = profile(library, repeats=6, warmup=1, num_threads=2)
    check(found, 2)
    assert (found.repeats, found.stalled) == (6, left_out)
    assert ("2 of 6 runs are left out: a thread lost its core" in str(found)) is bool(left_out)
    assert ("in 6 of 6 runs a thread lost its core" in str(found)) is not bool(left_out)


def test_calls_in_python_have_rows_too() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["places"], name="where"), helper.make_node("Neg", ["places"], ["y"])]
    x, y = helper.make_tensor_value_info("x", 1, [6]), helper.make_tensor_value_info("y", 7, [1, None])
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = profile(model, {"x": np.ones(6, "float32")}, repeats=2)
    check(found, len(found.idle))
    [called] = [row for row in found.rows if row.kernel == "nonzero" or row.bound == "Python"][:1]
    assert called.bound == "Python" and "Python" in str(found)
    assert "where" in {name for row in found.rows for name in row.nodes}


def test_where_threads_cannot_be_watched_kernels_are_timed_one_by_one() -> None:
    found = profile(chain(), target="interp", repeats=1, warmup=0)
    check(found, 1)
    assert not found.together and "one by one" in str(found)


def test_a_library_of_open_shapes_is_profiled_for_those_of_its_inputs(tmp_path: pathlib.Path) -> None:
    g = Graph()
    session = minitvm.InferenceSession(g.model(g.node("Relu", [g.linear("data", 8, 4)]), ["n", 8]))
    session.save(tmp_path / "open.mtvm")
    found = profile(tmp_path / "open.mtvm", {"data": np.zeros((3, 8), "float32")}, repeats=2)
    check(found, len(found.idle))
    assert found.model == "open.mtvm"


def test_options_that_would_do_nothing_are_refused(library: minitvm.Library) -> None:
    with pytest.raises(ConfigError, match="opt_level: a library is compiled already"):
        profile(library, opt_level=1)
    for wrong in ({"repeats": 0}, {"repeats": True}, {"warmup": -1}):
        with pytest.raises(ConfigError, match="not a whole number"):
            profile(library, **wrong)  # type: ignore[arg-type]


def test_the_trace_has_a_track_for_each_thread_with_its_waiting(library: minitvm.Library) -> None:
    found = profile(library, repeats=2, num_threads=2)
    events = json.loads(found.chrome_trace())["traceEvents"]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["thread 0", "thread 1"]
    assert sum(e.get("cat") == "kernel" for e in events) == len(found.timeline)
    for thread in (0, 1):
        own = sorted((e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == thread)
        assert all(start + length <= after + 1e-6 for (start, length), (after, _) in itertools.pairwise(own))
    assert json.loads(json.dumps(found.form))["kernels"][0]["share"] == found.rows[0].share


def test_the_command(tmp_path: pathlib.Path, library: minitvm.Library) -> None:
    path, trace = tmp_path / "m.mtvm", tmp_path / "trace.json"
    library.save(path)
    result = CliRunner().invoke(cli, ["profile", str(path), "-n", "2", "--top", "1", "--trace", str(trace)])
    assert result.exit_code == 0, result.output
    heading = result.output.splitlines()[-3]
    assert heading.split()[:3] == ["nodes", "us", "share"] and "more" in result.output.splitlines()[-1]
    assert json.loads(trace.read_text())["traceEvents"]
    result = CliRunner().invoke(cli, ["profile", str(path), "-n", "2", "--json"])
    assert json.loads(result.output)["result"]["repeats"] == 2
