"""Tuning on a GPU: kernels are timed by events.  ``test_cuda_standin.py`` runs these tests on the stand-in."""

from __future__ import annotations

import os
import pathlib
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from nvrtc import needs_nvrtc
from test_cuda_device import REASON, target

import minitvm
from benchmarks.graph import Graph
from minitvm.cli import cli
from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.records import best, read
from minitvm.models import tune
from minitvm.passes.manager import PassContext
from minitvm.runtime.nvidia.driver import gpu

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=REASON), needs_nvrtc]


@pytest.fixture(autouse=True)
def none_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuModel, "records", None)


def layers() -> Any:
    """A convolution and a dense layer: two tasks."""
    g = Graph()
    x = g.node("Relu", [g.conv("data", 8, 16, 3)])
    return g.model(g.linear(g.node("Flatten", [x]), 16 * 6 * 6, 24), (1, 8, 6, 6))


def test_every_way_is_timed_and_what_was_fastest_is_built(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "gpu.jsonl"
    found = tune(layers(), path, target(), most=2)
    tried = read(path)
    assert (found.total, found.now, found.not_measured) == (4, 4, "") and len({r.template for r in tried}) == 2
    assert all(r.seconds is not None and r.seconds > 0 and r.machine == gpu(0).arch for r in tried)
    x = np.random.default_rng(0).normal(size=(1, 8, 6, 6)).astype("float32")
    with PassContext(config={"minitvm.records": str(path)}):
        library = minitvm.compile(layers(), target())
        kernels = list(map(library.report.kernel, library.report.groups))
        taken = {str(k.candidates[0]) for k in kernels if len(k.candidates) > 1}
        assert taken == {record.choice for record in best(tried).values()}
    expected = minitvm.compile(layers()).run({"data": x})
    minitvm.testing.assert_allclose(library.run({"data": x})[0], expected[0], rtol=1e-5, atol=1e-5)


def test_what_was_only_predicted_is_measured_where_a_gpu_is(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "gpu.jsonl"
    tune(layers(), path, target(), most=1)
    measured = read(path)
    path.write_text("".join(f"{replace(record, seconds=None)}\n" for record in measured[:1]), encoding="utf-8")
    found = tune(layers(), path, target(), most=1)
    assert (found.total, found.now, found.known) == (2, 2, 0)
    assert all(r.seconds is not None for r in best(read(path)).values())
    again = tune(layers(), path, target(), most=1)
    assert (again.now, again.known) == (0, 2)


def test_the_command(tmp_path: pathlib.Path) -> None:
    model, path = tmp_path / "layers.onnx", tmp_path / "layers.jsonl"
    onnx.save(layers(), str(model))
    said = CliRunner().invoke(cli, ["tune", str(model), "--target", target(), "-n", "1"])
    assert said.exit_code == 0 and f"{path}: 2 of 2 ways tried, 0 known before" in said.output, said.output
    assert "not measured" not in said.output


@pytest.mark.skipif("STANDIN_ARCH" not in os.environ, reason="only the stand-in fails when it is asked to")
def test_a_way_that_faults_is_refused_and_the_next_one_is_measured(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.jsonl"
    monkeypatch.setenv("STANDIN_FAIL", "cuStreamSynchronize:2:700")
    found = tune(layers(), path, target(), most=2)
    first, *others = read(path)
    assert found.now == 4 and found.not_measured == ""
    assert first.seconds is None and first.why_not.startswith("a kernel failed on cuda(0): an illegal memory access")
    assert all(record.seconds is not None for record in others)
