"""What kernels should take beside what they take: the model by hand, the machine's figures, the table."""

from __future__ import annotations

import pathlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import minitvm
from benchmarks.onnx_models import Graph
from minitvm.codegen.backend import Backend
from minitvm.codegen.llvm import backend as llvm_backend
from minitvm.codegen.llvm.compile import host, machine_model
from minitvm.codegen.llvm.peak import measure
from minitvm.driver import backend_for
from minitvm.driver.roofline import rates_of, roofline_of
from minitvm.runtime.cost import Cost
from minitvm.runtime.debug import GraphModuleDebug
from minitvm.runtime.measured import ATTEMPTS, Measured
from minitvm.runtime.roofline import Roofline, roofline
from minitvm.target import Level, MachineModel, Rates

LEVELS = (Level("L1", 1e3, 8e9), Level("L2", 1e4, 4e9), Level("L3", 1e5, 2e9), Level("memory", float("inf"), 1e9))
RATES = Rates(1, flops=32e9, clock=1e9, levels=LEVELS, launch=1e-7)


def dense() -> Any:
    g = Graph()
    hidden = g.node("Relu", [g.linear("data", 96, 80)])
    return g.model(g.node("Softmax", [g.linear(hidden, 80, 40)]), [4, 96])


@pytest.fixture(scope="module")
def library() -> minitvm.Library:
    return minitvm.compile(dense(), num_threads=1)


@pytest.fixture
def table(library: minitvm.Library) -> Roofline:
    module = GraphModuleDebug(library["default"]())
    module.set_input("data", np.random.default_rng(0).normal(size=(4, 96)).astype("float32"))
    return roofline(library.artifact, module.seconds_of_kernels(2), Measured(1e-9), RATES)


# --- the model --------------------------------------------------------------------------------------------------------


def test_time_is_that_of_operations_or_of_memory_and_a_launch() -> None:
    computes = Cost(flops=32e3, nbytes=800, cycles=2000)
    assert computes.seconds(RATES) == pytest.approx(2e-6 + 1e-7) and computes.bound(RATES) == "compute"
    assert computes.floor(RATES) == pytest.approx(1e-6)
    moves = Cost(flops=32, nbytes=8000, cycles=1)  # in the second level
    assert moves.seconds(RATES) == pytest.approx(2e-6 + 1e-7) and moves.bound(RATES) == "L2"
    assert Cost(flops=1, nbytes=8, cycles=1).bound(RATES) == "launch"


def test_fewer_multiplications_have_a_lower_floor() -> None:
    assert Cost(flops=64e3, nbytes=8, cycles=500).floor(RATES) == pytest.approx(5e-7)


@pytest.mark.parametrize(("footprint", "level"), [(900, "L1"), (9e3, "L2"), (9e4, "L3"), (9e5, "memory")])
def test_weights_come_from_the_level_that_holds_a_run(footprint: int, level: str) -> None:
    cost = Cost(flops=1, nbytes=900, cycles=1, weights=800, footprint=footprint)
    rate = RATES.level(footprint).rate
    assert cost.moving(RATES)[level] == pytest.approx(800 / rate + (100 / 8e9 if level == "L1" else 0))


def test_threads_share_operations_and_have_caches_of_their_own() -> None:
    machine = MachineModel(32, 16, l1_bytes=1 << 15, l2_bytes=1 << 19)
    one, four = machine.rates(1), machine.rates(4)
    assert (four.flops, four.clock) == (4 * one.flops, one.clock)
    assert one.level(1 << 16).name == "L2" and four.level(1 << 16).name == "L1"
    assert one.level(1 << 25).name == four.level(1 << 25).name == "L3" and one.level(1 << 26).name == "memory"
    cost = Cost(flops=1e9, nbytes=100, cycles=1e8)
    assert cost.seconds(four) - four.launch == pytest.approx((cost.seconds(one) - one.launch) / 4)


# --- the machine ------------------------------------------------------------------------------------------------------


def test_a_machine_is_measured() -> None:
    small = replace(machine_model(host()), l3_bytes=1 << 20)
    found = measure(host(), small, 2, tries=1)
    assert found.threads == 2 and found.flops > 0 and found.clock > 0
    assert [level.name for level in found.levels] == ["L1", "L2", "L3", "memory"]
    assert all(level.rate > 0 for level in found.levels)
    lanes, chains = small.lanes("float32"), 2
    assert found.flops == pytest.approx(2 * chains * lanes * found.clock * found.threads)


def test_the_best_of_all_measurements_is_kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour can only lower a figure; what was kept may be damaged, or of another number of threads."""
    monkeypatch.setenv("MINITVM_CACHE_DIR", str(tmp_path))
    slow_caches = replace(RATES, flops=40e9, levels=tuple(level._replace(rate=level.rate / 2) for level in LEVELS))
    measured = [RATES, slow_caches, replace(RATES, flops=1e9), slow_caches, slow_caches, slow_caches]
    monkeypatch.setattr(llvm_backend, "measure", lambda *_: measured.pop(0))
    best = replace(RATES, flops=40e9)
    assert [rates_of(backend_for("llvm", 1)) for _ in range(3)] == [RATES, best, best]
    assert rates_of(backend_for("llvm -caches=16K,1M", 1)) == slow_caches
    for path in tmp_path.rglob("*.bin"):
        path.write_bytes(b"{}")
    assert rates_of(backend_for("llvm", 1)) == slow_caches
    monkeypatch.setenv("MINITVM_CACHE_DIR", "")
    assert rates_of(backend_for("llvm", 1)) == slow_caches and not measured


def test_what_is_not_here_is_not_measured() -> None:
    backend = backend_for("llvm -mtriple=aarch64-linux-gnu", 2)
    assert backend.measured() == backend.machine.rates(2)
    assert rates_of(backend_for("interp", 1)) == backend_for("interp", 1).machine.rates(1)


def test_builds_go_by_usual_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Backend) -> Rates:
        raise AssertionError("a build measures the machine")

    monkeypatch.setattr(llvm_backend.LlvmBackend, "measured", fails)
    named = "llvm -mcpu=x86-64 -mtriple=x86_64-unknown-linux-gnu"
    first, second = (minitvm.compile(dense(), named, num_threads=2) for _ in range(2))
    assert first.artifact.metadata == second.artifact.metadata
    assert first.artifact.cpu.caches == (32 << 10, 512 << 10, 32 << 20)


# --- a model ----------------------------------------------------------------------------------------------------------


def test_rows_are_kernels_with_their_nodes(library: minitvm.Library, table: Roofline) -> None:
    assert sorted(row.kernel for row in table.rows) == sorted(n.func for n in library.graph.nodes if n.is_kernel)
    nodes = {name for row in table.rows for name in row.nodes}
    assert nodes >= {node.name for node in dense().graph.node if node.op_type != "Identity"}
    assert [row.seconds for row in table.rows] == sorted((row.seconds for row in table.rows), reverse=True)
    first = next(row for row in table.rows if any("Relu" in n or "relu" in n for n in row.nodes))
    assert first.flops >= 2 * 4 * 96 * 80 and first.nbytes >= 4 * (4 * 96 + 96 * 80 + 4 * 80)
    assert all(0 < row.floor <= row.predicted and row.seconds > 0 for row in table.rows)
    assert {row.bound for row in table.rows} <= {"compute", "launch", *(level.name for level in LEVELS)}


def test_the_total_is_the_sum(table: Roofline) -> None:
    total = table.total
    for name in ("flops", "nbytes", "at_peak", "floor", "predicted", "seconds"):
        assert getattr(total, name) == pytest.approx(sum(getattr(row, name) for row in table.rows))
    assert table.share(total) == pytest.approx(total.at_peak / total.seconds)
    assert total.at_peak <= total.flops / RATES.flops


def test_what_needs_fewer_operations_is_within_the_peak() -> None:
    """Winograd's algorithm does a convolution in fewer cycles than its multiplications take at the machine's peak."""
    direct, fewer = (Cost(3.2e9, 100, cycles) for cycles in (2e8, 4e7))
    assert (direct.at_peak(RATES), fewer.at_peak(RATES)) == (0.1, 0.04)
    assert all(cost.at_peak(RATES) <= cost.floor(RATES) for cost in (direct, fewer))


def test_calls_of_kernels_alone_are_not_their_time(library: minitvm.Library) -> None:
    nodes = [node for node in library.graph.nodes if node.is_kernel]
    alone = [(node, [1e-4 * (i + 2)]) for i, node in enumerate(nodes)]
    run = sum(seconds for _, [seconds] in alone) - 1e-6 * len(nodes)
    found = roofline(library.artifact, alone, Measured(run), RATES)
    assert found.total.seconds == pytest.approx(run)
    assert [row.measured.seconds for row in found.rows] == pytest.approx([s - 1e-6 for _, [s] in reversed(alone)])


def test_one_prediction(library: minitvm.Library) -> None:
    """What `show` says of a kernel is what its library holds."""
    backend = backend_for("llvm", 1)
    assert library.report is not None
    for name, facts in library.artifact.metadata.items():
        cost = Cost(facts["flops"], facts["bytes"], facts["cycles"])
        assert facts["seconds"] == cost.seconds(backend.machine.rates(1)) == library.report.kernel(name).seconds
        assert library.report.kernel(name).cost == cost


def test_of_a_module(library: minitvm.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm_backend.LlvmBackend, "measured", lambda self: RATES)
    module, seen = GraphModuleDebug(library["default"]()), list[tuple[int, int]]()
    module.set_input("data", np.zeros((4, 96), "float32"))
    backend, run = backend_for("llvm", 1), Measured(1e-4)
    found = roofline_of(module, lambda: [1e-4], backend, 3, lambda done, total, _: seen.append((done, total)))
    assert len(found.rows) == len(library.artifact.metadata) and found.run == run
    assert seen in [[(0, 3), (1, 3), (2, 3), (3, 3)] * attempts for attempts in range(1, ATTEMPTS + 1)]
