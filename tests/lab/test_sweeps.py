"""Sweeps and tuning by an executor: the same results as here, gone on with, and on a cluster of Dask's."""

from __future__ import annotations

import multiprocessing
import pathlib
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from benchmarks.graph import Graph
from minitvm.cli import cli
from minitvm.codegen.records import Record, read
from minitvm.errors import ConfigError
from minitvm.lab import levels, orders, sweep
from minitvm.models import tune
from minitvm.testing import mlp

NAMES = ["SimplifyExpr", "FoldConstant#1"]


def dense() -> Any:
    g = Graph()
    return g.model(g.node("Relu", [g.linear("data", 96, 80)]), [32, 96])


def untimed(path: pathlib.Path) -> list[tuple[Any, ...]]:
    return [(record.key, record.choice, record.cycles, record.why_not, bool(record.seconds)) for record in read(path)]


def bytes_of_level(batch: int) -> int:
    module, params = mlp.get_workload(batch)
    return levels(module, rounds=0, params=params).trials[0].nbytes


def refused(_: int) -> None:
    raise ConfigError("not this one")


# --- sweeps -----------------------------------------------------------------------------------------------------------


def test_a_sweep_has_the_same_results_by_any_executor_and_goes_on(tmp_path: pathlib.Path) -> None:
    ways, path = {"one": (1,), "two": (2,)}, tmp_path / "found.jsonl"
    here = sweep(bytes_of_level, ways)
    assert [*here] == ["one", "two"] and here["two"] > here["one"]
    with ThreadPoolExecutor(2) as pool:
        assert sweep(bytes_of_level, {"one": (1,)}, pool, path) == {"one": here["one"]}
        seen: list[str] = []
        assert sweep(bytes_of_level, ways, pool, path, lambda done, total, name: seen.append(name)) == here
        assert seen == ["two"] and len(path.read_text().splitlines()) == 2
        assert sweep(refused, {"x": (1,)}, pool) == sweep(refused, {"x": (1,)}) == {"x": {"refused": "not this one"}}
    path.write_text("nothing\n")
    with pytest.raises(ConfigError, match="line 1, is no result of a sweep"):
        sweep(bytes_of_level, ways, path=path)


def test_what_is_wrong_ends_a_sweep() -> None:
    with pytest.raises(TypeError), ThreadPoolExecutor(1) as pool:
        sweep(bytes_of_level, {"x": ()}, pool)


# --- tuning -----------------------------------------------------------------------------------------------------------


def test_processes_write_the_same_records_and_go_on(tmp_path: pathlib.Path) -> None:
    tune(dense(), tmp_path / "here.jsonl", num_threads=1, most=2)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = tune(dense(), tmp_path / "there.jsonl", num_threads=1, most=1, executor=pool)
        assert (found.now, found.known, found.not_measured) == (1, 0, "")
        found = tune(dense(), tmp_path / "there.jsonl", num_threads=1, most=2, executor=pool)
    assert (found.now, found.known, found.total) == (1, 1, 2)
    assert untimed(tmp_path / "there.jsonl") == untimed(tmp_path / "here.jsonl")


def test_what_cannot_be_measured_there_is_known_the_second_time(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("cuda.bindings")
    path, how = tmp_path / "gpu.jsonl", {"target": "cuda -arch=sm_80", "most": 1}
    with ThreadPoolExecutor(1) as pool:
        first, second = (tune(dense(), path, executor=pool, **how) for _ in range(2))
    assert first.now == first.total == second.known and second.now == 0 and first.not_measured


def test_a_worker_of_another_kind_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Record("another machine", "", "t", "p", "c", 1.0).key
    with ThreadPoolExecutor(1) as pool, pytest.raises(ConfigError, match="a worker is another machine"):
        real = pool.submit

        def submit(run: Any, task: Any, asked: Any, *rest: Any) -> Any:
            return real(run, task, Record(**{**vars(asked), "machine": other.machine}), *rest)

        monkeypatch.setattr(pool, "submit", submit)
        tune(dense(), tmp_path / "x.jsonl", num_threads=1, most=1, executor=pool)


# --- a cluster --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers, each a process, as Dask starts them on one machine."""
    distributed = pytest.importorskip("distributed", reason="no Dask: pip install '.[cluster]'")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as made:
        yield made


@pytest.fixture(scope="module")
def there(cluster: Any) -> Iterator[Executor]:
    with cluster.get_client() as client:
        yield client.get_executor()


def test_a_cluster_makes_the_same_trials(there: Executor) -> None:
    module, params = mlp.get_workload(1)
    how: dict[str, Any] = {"rounds": 0, "params": params}
    assert orders(module, NAMES, executor=there, **how) == orders(module, NAMES, **how)
    assert levels(module, executor=there, **how) == levels(module, **how)


def test_a_cluster_tunes_from_the_command_line(cluster: Any, tmp_path: pathlib.Path) -> None:
    onnx.save(dense(), tmp_path / "m.onnx")
    tune(dense(), tmp_path / "here.jsonl", num_threads=1, most=2)
    words = ["tune", tmp_path / "m.onnx", "-t", 1, "-n", 2, "--scheduler", cluster.scheduler_address]
    said = CliRunner().invoke(cli, [*map(str, words)], catch_exceptions=False).output
    assert "2 of 2 ways tried" in said
    assert untimed(tmp_path / "m.jsonl") == untimed(tmp_path / "here.jsonl")
