"""``minitvm lab orders`` and ``levels``: what an order or a level makes of a network."""

from __future__ import annotations

import csv
import io
import multiprocessing
import pathlib
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from click.testing import CliRunner

from minitvm.cli import cli
from minitvm.errors import ConfigError, PassError
from minitvm.ir.parser import parse_module
from minitvm.lab.ordering import COLUMNS, Way, levels, orders, tried
from minitvm.lab.subject import Subject
from minitvm.passes.pipeline import Plan
from minitvm.testing import mlp

MODULE = parse_module("""
def @main(%x: Tensor[(1, 8, 6, 6), float32], %w: Tensor[(8, 8, 3, 3), float32]) {
  %y = nn.conv2d(%x, %w, padding=[1, 1, 1, 1]);
  nn.relu(add(multiply(%y, 1f), add(1f, 2f)))
}
""")


def test_every_order_of_passes_in_their_places() -> None:
    found = orders(MODULE, ["SimplifyExpr", "FoldConstant#1", "AlterOpLayout"], rounds=0)
    assert [trial.way.split()[0] for trial in found.trials] == (
        ["SimplifyExpr"] * 2 + ["FoldConstant#1"] * 2 + ["AlterOpLayout"] * 2
    )
    assert found.agree and all(trial.kernels and trial.nbytes for trial in found.trials)


def test_levels_are_timed_and_written(tmp_path: pathlib.Path) -> None:
    found = levels(MODULE, rounds=1)
    rows = list(csv.reader(io.StringIO(found.csv())))
    assert tuple(rows[0]) == COLUMNS and [row[0] for row in rows[1:]] == [f"level {n}" for n in (3, 2, 1, 0)]
    assert found.trials[-1].kernels > found.trials[0].kernels and found.agree
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "levels.png")
    assert (tmp_path / "levels.png").read_bytes().startswith(b"\x89PNG")
    levels(MODULE, rounds=0).plot(tmp_path / "predicted.svg")
    assert "ms predicted" in (tmp_path / "predicted.svg").read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="the picture cannot be written"):
        found.plot(tmp_path / "nowhere" / "levels.png")


def test_indices_are_inside_of_small_tables() -> None:
    """Token types of BERT are 0 or 1."""
    module = parse_module("""
    def @main(%table: Tensor[(2, 4), float32], %kind: Tensor[(9,), int64]) { take(%table, %kind, axis=0) }
    """)
    assert levels(module, rounds=0).agree


def test_an_order_that_is_refused_is_a_row() -> None:
    class WithoutKernels(Way):
        def plan(self, given: Subject) -> Plan:
            return Plan.of(pipeline=["InferType"])

    ways = {"default": Way(3), "without kernels": WithoutKernels(3)}
    found = tried("a title", Subject.of(MODULE), ways, 0)
    refused = [trial for trial in found.trials if trial.refused]
    assert not found.agree
    assert refused and all("no kernel" in trial.row[-1] for trial in refused)


def test_what_cannot_be_permuted() -> None:
    with pytest.raises(PassError) as error:
        orders(MODULE, ["FuseOp", "InferType"])
    assert error.value.hint == "did you mean 'FuseOps'?"
    with pytest.raises(PassError, match="no run 'FoldConstant#9'"):
        orders(MODULE, ["FoldConstant#9", "InferType"])
    for wrong in (["FuseOps"], [], ["FuseOps", "FuseOps"]):
        with pytest.raises(ConfigError, match="two or more different passes"):
            orders(MODULE, wrong)
    with pytest.raises(ConfigError, match="720 orders"):
        orders(MODULE, [f"FoldConstant#{n}" for n in range(1, 4)] + ["InferType", "FuseOps", "SimplifyExpr"])


def test_a_picture_without_matplotlib_is_refused_before_anything_is_tried(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(cli, ["lab", "levels", "--plot", str(tmp_path / "levels.png")])
    assert isinstance(result.exception, ConfigError) and result.output == ""
    assert result.exception.hint == "pip install matplotlib"


def test_on_the_command_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "no" / "orders.csv"
    result = CliRunner().invoke(cli, ["lab", "orders", "--passes", "InferType", "--csv", str(path)])
    assert isinstance(result.exception, ConfigError)
    assert "orders" in CliRunner().invoke(cli, ["lab", "--help"]).output


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_an_executor_makes_the_same_trials(kind: str) -> None:
    """In threads, and in processes that know nothing but what is sent to them."""
    module, params = mlp.get_workload(1)
    spawned = multiprocessing.get_context("spawn")
    made = ThreadPoolExecutor(2) if kind == "threads" else ProcessPoolExecutor(1, mp_context=spawned)
    names = ["SimplifyExpr", "FoldConstant#1"]
    with made as executor:
        there = orders(module, names, rounds=0, params=params, executor=executor)
        assert there == orders(module, names, rounds=0, params=params)
        assert levels(module, rounds=1, params=params, executor=executor).agree
        with pytest.raises(PassError):
            orders(module, ["SimplifyExpr", "Nothing"], params=params, executor=executor)
