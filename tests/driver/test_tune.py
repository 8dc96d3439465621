"""Tuning: what is tried, what is written down, what a build makes of it."""

from __future__ import annotations

import json
import os
import pathlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from nvrtc import needs_nvrtc

import minitvm
from benchmarks.graph import Graph
from benchmarks.onnx_models import WORKLOADS
from minitvm.cli import cli
from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.llvm.compile import USUAL
from minitvm.codegen.records import Record, best, key_of, read
from minitvm.config import read_int, resolve_threads
from minitvm.driver import backend_for
from minitvm.driver.kernels import KernelCompiler
from minitvm.driver.tune import tasks
from minitvm.errors import ConfigError, MiniTVMError
from minitvm.frontend import from_onnx
from minitvm.models import tune
from minitvm.passes.manager import PassContext
from minitvm.runtime.cache import KernelCache

SHIPPED = GpuModel.records or pathlib.Path()
NEEDED = {"machine": "sm_80", "options": "", "template": "t", "problem": "p", "choice": "c", "cycles": 3}


def dense(batch: int = 32) -> Any:
    g = Graph()
    return g.model(g.node("Relu", [g.linear("data", 96, 80)]), [batch, 96])


@pytest.fixture(autouse=True)
def none_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuModel, "records", None)


def with_records(path: pathlib.Path) -> PassContext:
    return PassContext(config={"minitvm.records": str(path)})


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("tuned") / "dense.jsonl"
    found = tune(dense(), path, "llvm", num_threads=1, most=3)
    assert (found.total, found.now, found.known, found.is_whole, found.not_measured) == (3, 3, 0, True, "")
    return path


def test_every_way_that_was_tried_is_a_line_with_its_time(tuned: pathlib.Path) -> None:
    tried = read(tuned)
    assert len({record.choice for record in tried}) == 3 and len({record.key for record in tried}) == 1
    assert all(record.seconds is not None and record.seconds > 0 for record in tried)
    [taken] = best(tried).values()
    assert taken.seconds == min(record.seconds or 0 for record in tried)


def test_a_build_takes_what_did_best_and_says_so(tuned: pathlib.Path, tmp_path: pathlib.Path) -> None:
    plain = minitvm.compile(dense(), num_threads=1)
    [usual] = [plain.report.kernel(symbol).candidates[0] for symbol in plain.report.groups]
    other = next(record for record in read(tuned) if record.choice != str(usual))
    path = tmp_path / "one.jsonl"
    path.write_text(f"{other}\n", encoding="utf-8")
    x = np.random.default_rng(0).normal(size=(32, 96)).astype("float32")
    with with_records(path):
        library = minitvm.compile(dense(), num_threads=1)
        [kernel] = map(library.report.kernel, library.report.groups)
        assert str(kernel.candidates[0]) == other.choice
        assert any("measured (" in str(decision) for decision in kernel.decisions)
    assert library.artifact.objects != plain.artifact.objects  # not the cache's either
    [found], [expected] = library.run({"data": x}), plain.run({"data": x})
    minitvm.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_tuning_goes_on_where_it_was_interrupted(tuned: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "part.jsonl"
    first = tuned.read_text(encoding="utf-8").splitlines()[0]
    path.write_text(first + "\n", encoding="utf-8")
    seen: list[tuple[int, int]] = []
    found = tune(dense(), path, num_threads=1, most=2, on_progress=lambda done, total, _: seen.append((done, total)))
    assert (found.known, found.now) == (1, 1) and seen == [(1, 2), (2, 2)]
    assert path.read_text(encoding="utf-8").startswith(first) and len(read(path)) == 2


def test_what_is_tuned_is_what_is_built() -> None:
    """Winograd's convolutions and whole attentions, too, as the passes ask the back end about them."""
    g = Graph()
    weight = g.normal([64, 64, 3, 3], 1.0)
    model = g.model(g.node("Conv", ["data", weight], pads=[1] * 4), [1, 64, 28, 28])
    backend = backend_for("llvm", 1)
    found = tasks(*from_onnx(model), KernelCompiler(backend, KernelCache(None)), opt_level=3)
    report = minitvm.compile(model, num_threads=1).report
    assert any("winograd" in key_of(task.template).problem for task in found)
    assert {task.symbol for task in found} <= set(report.groups)


def test_on_a_machine_that_says_nothing_of_itself(
    tuned: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No caches to be read, one CPU of the container's: usual caches, one thread, right results, records of its own."""
    monkeypatch.delenv("MINITVM_NUM_THREADS", raising=False)
    monkeypatch.setattr("minitvm.codegen.llvm.compile.of_host", lambda: USUAL)
    monkeypatch.setattr("minitvm.config.cpu_quota", lambda: 0.5)
    backend = backend_for("llvm", None)
    assert backend.machine.threads == 1 and backend.machine.l1_bytes == USUAL[0]
    x = np.random.default_rng(0).normal(size=(32, 96)).astype("float32")
    plain = minitvm.compile(dense())
    path = tmp_path / "own.jsonl"
    tune(dense(), path, most=1)
    assert {record.machine for record in read(path)} == {backend.machine.name}
    with with_records(path):
        library = minitvm.compile(dense())
    for left, right in zip(library.run({"data": x}), plain.run({"data": x}), strict=True):
        minitvm.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity masks")
def test_under_a_mask_of_one_cpu(tmp_path: pathlib.Path) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert resolve_threads(None) == 1 or read_int("MINITVM_NUM_THREADS")
        found = tune(dense(), tmp_path / "one.jsonl", num_threads=4, most=2)  # four threads take turns
        assert found.is_whole and all(record.seconds for record in read(tmp_path / "one.jsonl"))
        with with_records(tmp_path / "one.jsonl"):
            library = minitvm.compile(dense(), num_threads=4)
        x = np.ones((32, 96), "float32")
        [result], [expected] = library.run({"data": x}), minitvm.compile(dense(), num_threads=1).run({"data": x})
        minitvm.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_spent_budget_ends_it(tmp_path: pathlib.Path) -> None:
    found = tune(dense(), tmp_path / "none.jsonl", num_threads=1, budget=1e-9)
    assert not found.is_whole and found.now == 0
    with pytest.raises(ConfigError, match="the budget is 0 seconds, in which nothing can be tried"):
        tune(dense(), tmp_path / "none.jsonl", budget=0)


# --- a GPU that is not there ------------------------------------------------------------------------------------------


@needs_nvrtc
def test_without_a_gpu_code_is_asked_what_it_needs(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "gpu.jsonl"
    found = tune(dense(512), path, "cuda -arch=sm_80", most=2)
    tried = read(path)
    if found.not_measured:
        assert all(record.seconds is None and record.cycles > 0 for record in tried)
    assert {record.machine for record in tried} == {"sm_80"}
    with with_records(path):
        minitvm.compile(dense(512), "cuda -arch=sm_80")
        with pytest.raises(ConfigError, match=r"gpu\.jsonl was made on 'sm_80', not on 'sm_90'"):
            minitvm.compile(dense(512), "cuda -arch=sm_90")
    tf32 = PassContext(config={"cuda.allow_tf32": True})
    with tf32:
        assert tune(dense(512), path, "cuda -arch=sm_80", most=1).now == 1
    assert {record.options for record in read(path)} == {"", "cuda.allow_tf32=True"}


def test_what_was_refused_or_only_predicted_is_behind_what_was_measured() -> None:
    def made(choice: str, **other: Any) -> Record:
        return Record(**{**NEEDED, "choice": choice, **other})

    predicted, measured = made("a", cycles=1), made("b", seconds=0.5)
    assert list(best([predicted, made("c", cycles=0, why_not="spills"), measured]).values()) == [measured]
    assert list(best([predicted, made("d")]).values()) == [predicted] and best([made("e", why_not="spills")]) == {}


# --- files that are something else ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "Expecting property name"),
        ("[]", "it is no object but '\\[\\]'"),
        ("[" * 100_000, "recursion|no object"),
        (json.dumps({**NEEDED, "cycles": "3"}), "its 'cycles' is '3'"),
        (json.dumps({**NEEDED, "seconds": True}), "its 'seconds' is True"),
        (json.dumps({**NEEDED, "seconds": -1}), "its 'seconds' is -1"),
        (json.dumps({**NEEDED, "cycles": float("nan")}), "its 'cycles' is nan"),
        (json.dumps({**NEEDED, "tile": 3}), "it has a field 'tile', which none has"),
        (json.dumps({k: v for k, v in NEEDED.items() if k != "choice"}), "it has no 'choice'"),
    ],
)
def test_a_line_that_is_no_record_is_named(line: str, why: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{json.dumps(NEEDED)}\n\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"bad\.jsonl, line 3, is no tuning record: .*({why})"):
        read(path)
    with with_records(path), pytest.raises(ConfigError, match="is no tuning record"):
        minitvm.compile(dense())
    with pytest.raises(ConfigError, match="is no tuning record"):
        tune(dense(), path, budget=10)


def test_a_file_that_is_missing_or_no_text(tmp_path: pathlib.Path) -> None:
    with with_records(tmp_path / "none.jsonl"), pytest.raises(ConfigError, match="cannot be read: No such file"):
        minitvm.compile(dense())
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\x00")
    with pytest.raises(ConfigError, match="has no tuning records that can be read"):
        read(tmp_path / "bytes.jsonl")


def test_a_way_that_is_none_any_more_is_declined(tuned: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text(str(replace(read(tuned)[0], choice="gone")), encoding="utf-8")
    with with_records(path):
        library = minitvm.compile(dense(), num_threads=1)
        [kernel] = map(library.report.kernel, library.report.groups)
        assert any("what records name, gone: it is none of its ways" in str(d) for d in kernel.decisions)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: pathlib.Path) -> None:
    import onnx

    model, path = tmp_path / "dense.onnx", tmp_path / "dense.jsonl"
    onnx.save(dense(), str(model))
    said = CliRunner().invoke(cli, ["tune", str(model), "-t", "1", "-n", "1", "--budget", "600"])
    assert said.exit_code == 0, said.output
    assert f"{path}: 1 of 1 ways tried, 0 known before" in said.output
    options = [str(model), "-t", "1", "--config", f"minitvm.records={path}"]
    assert CliRunner().invoke(cli, ["compile", *options]).exit_code == 0
    assert "measured (" in CliRunner().invoke(cli, ["show", *options, "--why", "*"]).output
    path.write_text("{}\n")
    refused = CliRunner().invoke(cli, ["compile", *options])
    assert isinstance(refused.exception, MiniTVMError) and "is no tuning record" in str(refused.exception)
    wrong = CliRunner().invoke(cli, ["compile", str(model), "--config", "cuda.allow_tf32=maybe"])
    assert wrong.exit_code == 2 and "cuda.allow_tf32=true" in wrong.output


def test_shipped_records_are_small() -> None:
    assert SHIPPED.stat().st_size < 200_000


@pytest.mark.parametrize(("arch", "options"), [("sm_90", {}), ("sm_80", {"cuda.allow_tf32": True})])
def test_a_common_network_takes_what_ships(
    arch: str, options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where this fails since ways were renamed or are others: ``python -m benchmarks tuned``."""
    monkeypatch.setattr(GpuModel, "records", SHIPPED)
    backend = backend_for(f"cuda -arch={arch}", 1)
    with PassContext(config=options):
        compiler = KernelCompiler(backend, KernelCache(None))
        found = tasks(*from_onnx(WORKLOADS["resnet18"].build()), compiler, opt_level=3)
    taken = [t for t in found if t.template.record and t.template.record.choice == str(t.template.choice)]
    assert len(found) >= 10 and len(taken) > len(found) / 2
