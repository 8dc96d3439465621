"""The thread team and the native entry: every thread takes part, barriers where they are needed, nothing hangs."""

from __future__ import annotations

import ctypes
import math
import os
import pathlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE
from team_kernels import shared_loop

import minitvm
from minitvm import config, relay
from minitvm.codegen.llvm.compile import compile_object, host, machine_model
from minitvm.codegen.llvm.entry import barriers_before
from minitvm.config import cpu_quota, physical_cores, resolve_threads, usable_cpus
from minitvm.errors import ConfigError
from minitvm.ir.dims import Dim, symbol
from minitvm.ir.types import TensorType
from minitvm.runtime import instance, native
from minitvm.runtime.graph import Alias, Graph, HostStep, Launch, Node, Segment, Step, steps_of
from minitvm.runtime.memory import plan_memory, unplanned
from minitvm.runtime.native import NativeCode, Team, team
from minitvm.target import SHARING, spinning_text

TEAM = """
declare i1 @minitvm.take(ptr, ptr, i64, i64, i64)
declare i1 @minitvm.alone(ptr, i64, i64)
declare void @minitvm.finished(ptr, i64)
declare void @minitvm.barrier(ptr, i64)
declare void @minitvm.meet(ptr, i64)

define void @add(ptr %counts, i64 %i, i64 %more) {
  %at = getelementptr i64, ptr %counts, i64 %i
  %n = load i64, ptr %at
  %sum = add i64 %n, %more
  store i64 %sum, ptr %at
  ret void
}

define void @counted(ptr %counts, i64 %total, i64 %thread, i64 %threads, ptr %place) {
COUNTED
}

; Every element is counted three times, the second time in two pieces of which none waits for the other; element 0
; once more by thread 0 alone.
define void @run(ptr %slots, i64 %thread, i64 %threads, ptr %place) {
entry:
  %counts = load ptr, ptr %slots
  %total.at = getelementptr ptr, ptr %slots, i64 1
  %total = load i64, ptr %total.at
  call void @counted(ptr %counts, i64 %total, i64 %thread, i64 %threads, ptr %place)
  call void @minitvm.barrier(ptr %place, i64 %threads)
  %left = lshr i64 %total, 1
  %right = sub i64 %total, %left
  %behind = getelementptr i64, ptr %counts, i64 %left
  call void @counted(ptr %counts, i64 %left, i64 %thread, i64 %threads, ptr %place)
  call void @counted(ptr %behind, i64 %right, i64 %thread, i64 %threads, ptr %place)
  call void @minitvm.barrier(ptr %place, i64 %threads)
  call void @counted(ptr %counts, i64 %total, i64 %thread, i64 %threads, ptr %place)
  call void @minitvm.barrier(ptr %place, i64 %threads)
  %mine = call i1 @minitvm.alone(ptr %place, i64 %thread, i64 %threads)
  br i1 %mine, label %first, label %all
first:
  call void @add(ptr %counts, i64 0, i64 100)
  call void @minitvm.finished(ptr %place, i64 %threads)
  br label %all
all:
  ret void
}

; Every thread adds to the count of its own, and then sees what all have added.
define void @met(ptr %slots, i64 %thread, i64 %threads, ptr %place) {
entry:
  %counts = load ptr, ptr %slots
  call void @add(ptr %counts, i64 %thread, i64 1)
  call void @minitvm.meet(ptr %place, i64 %threads)
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %sum = phi i64 [ 0, %entry ], [ %more, %loop ]
  %at = getelementptr i64, ptr %counts, i64 %i
  %n = load i64, ptr %at
  %more = add i64 %sum, %n
  %next = add i64 %i, 1
  %again = icmp ult i64 %next, %threads
  br i1 %again, label %loop, label %end
end:
  call void @minitvm.meet(ptr %place, i64 %threads)
  %mine = getelementptr i64, ptr %counts, i64 %threads
  call void @add(ptr %mine, i64 %thread, i64 %more)
  ret void
}
""".replace("COUNTED", shared_loop("%total", "call void @add(ptr %counts, i64 %i, i64 1)"))


@pytest.fixture(scope="module")
def code() -> NativeCode:
    sharing = f'target triple = "{host().triple}"\n{spinning_text(SHARING, machine_model(host()).features)}'
    return NativeCode([compile_object(TEAM, host())], ["run", "met", "minitvm.take"], sharing)


def run(code: NativeCode, threads: int, total: int, times: int, pause: float = 0.0, name: str = "run") -> list[int]:
    counts = np.zeros(total, np.int64)
    slots = (ctypes.c_void_p * 2)(counts.ctypes.data, total)
    for _ in range(times):
        team(threads).run(code.address(name), ctypes.addressof(slots))
        time.sleep(pause) if pause else None
    return [int(n) for n in counts]


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 16, 64])
@pytest.mark.parametrize("total", [1, 2, 7, 64, 1000])
def test_all_work_is_done_once(code: NativeCode, threads: int, total: int) -> None:
    times = 200 if threads < 16 else 10
    assert run(code, threads, total, times) == [103 * times] + [3 * times] * (total - 1)


@pytest.mark.parametrize("threads", [1, 2, 3, 64])
@pytest.mark.parametrize("total", [0, 1, 3, 100, 2**30 - 1, 2**31 + 5, 2**32 + 1, 10**10 + 7])
def test_one_thread_takes_everything_where_no_other_comes(code: NativeCode, threads: int, total: int) -> None:
    take = code.function("minitvm.take", ctypes.c_bool, *2 * [ctypes.c_void_p], *3 * [ctypes.c_int64])
    shared, part = np.zeros(16 + 16 * threads, np.int64), np.zeros(4, np.int64)
    place = np.array([shared.ctypes.data, 0, 0], np.int64)
    found = []
    while take(place.ctypes.data, part.ctypes.data, total, threads - 1, threads):
        found.append((int(part[2]), int(part[3])))
    found.sort()
    ends = [0, *(to for _, to in found)]
    assert [first for first, _ in found] == ends[:-1] and ends[-1] == total
    assert threads == 1 or shared[0] == place[2] == total
    assert len(found) <= 5 * threads


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 16])
def test_threads_meet(code: NativeCode, threads: int) -> None:
    sums = threads * sum(range(1, 51))
    assert run(code, threads, 2 * threads, 50, name="met") == [50] * threads + [sums] * threads


def test_workers_that_sleep_come_back(code: NativeCode) -> None:
    assert run(code, 3, 6, 15, pause=0.004, name="met")[:3] == [15] * 3


def test_nobody_waits_for_a_worker_that_has_no_work(code: NativeCode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its wake-up is lost for now; what it would have done, the others do."""
    own, lost, runs = Team(2), list[int](), 0
    monkeypatch.setattr(own, "_wake", lambda: lost.append(runs))
    counts = np.zeros(10, np.int64)
    slots = (ctypes.c_void_p * 2)(counts.ctypes.data, 10)
    while not lost or runs < lost[0] + 3:
        own.run(code.address("run"), ctypes.addressof(slots))
        runs += 1
        time.sleep(0 if lost else 0.001)  # in which it falls asleep, now or later
    assert list(counts) == [103 * runs] + [3 * runs] * 9 and len(lost) == 1
    monkeypatch.undo()
    own._sleep[1].release()
    own.run(code.address("met"), ctypes.addressof(slots))
    own.stop()


def test_calls_from_several_threads_take_turns(code: NativeCode) -> None:
    found: list[list[int]] = []
    callers = [threading.Thread(target=lambda: found.append(run(code, 2, 3, 200))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [[20_600, 600, 600]] * 4


def test_a_team_stops_its_threads() -> None:
    own = Team(3)
    own.stop()
    for worker in own._workers:
        worker.join()


AFTER_FORK = """
import os, sys, numpy as np, minitvm
from minitvm import relay
x = relay.var("x", shape=(64, 64))
module = minitvm.GraphModule(minitvm.build(relay.Function([x], relay.exp(x)), num_threads=2)["default"](None, 2))
value = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
module.run(x=value)
child = os.fork()
module.run(x=value)
good = np.allclose(module.get_output(0).numpy(), np.exp(value), rtol=1e-5)
if child == 0:
    os._exit(0 if good else 1)
sys.exit(0 if good and os.waitpid(child, 0)[1] == 0 else 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_runs_and_both_processes_end() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", AFTER_FORK], check=True, timeout=PATIENCE)


def test_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_NUM_THREADS", "3")
    assert resolve_threads(None) == 3 and resolve_threads(2) == 2
    assert resolve_threads(0) == physical_cores() >= 1
    monkeypatch.setenv("MINITVM_NUM_THREADS", "many")
    with pytest.raises(ConfigError, match=r"^MINITVM_NUM_THREADS is 'many', not an integer\n"):
        resolve_threads(None)
    for wrong in (-1, 1.5, True, 10**6):
        with pytest.raises(ConfigError) as error:
            resolve_threads(wrong)  # type: ignore[arg-type]
        assert str(error.value) == (
            f"num_threads is {wrong!r}, not a whole number from 0 to 1024\n"
            "  = hint: 0 or None is one thread per physical core"
        )


QUOTAS = {
    "nothing is limited": ({"cgroup": "0::/"}, math.inf),
    "no files": ({}, math.inf),
    "of a container": ({"cgroup": "0::/", "cpu.max": "250000 100000"}, 2.5),
    "none in it": ({"cgroup": "0::/", "cpu.max": "max 100000"}, math.inf),
    "the least of all around": (
        {"cgroup": "0::/a/b", "a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000", "cpu.max": "400000 100000"},
        1.5,
    ),
    "version 1": (
        {
            "cgroup": "3:memory:/x\n2:cpu,cpuacct:/a",
            "cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
            "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            "cpu,cpuacct/cpu.cfs_quota_us": "-1",
            "cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
        0.5,
    ),
    "version 1 without": ({"cgroup": "1:cpu:/", "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "1"}, math.inf),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_a_container_with_the_time_of_fewer_cpus(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, quota = QUOTAS[name]
    for file, text in files.items():
        tmp_path.joinpath(file).parent.mkdir(parents=True, exist_ok=True)
        tmp_path.joinpath(file).write_text(f"{text}\n")
    assert cpu_quota(str(tmp_path), str(tmp_path)) == quota
    monkeypatch.setattr(config, "cpu_quota", lambda: quota)
    monkeypatch.setattr(config, "allowed_cpus", lambda: frozenset(range(8)))
    assert usable_cpus() == (8 if quota == math.inf else max(1, int(quota)))
    assert 1 <= physical_cores() <= usable_cpus()


def test_no_more_threads_than_can_run(code: NativeCode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "usable_cpus", lambda: 1)
    monkeypatch.setattr(native, "_teams", {})
    assert team(64) is team(2) and team(64).threads == 1
    assert run(code, 64, 5, 3) == [309, 9, 9, 9, 9]


# --- the native entry -------------------------------------------------------------------------------------------

K = Launch("k")
T = (TensorType((64,), "int8"),)


def graph(*steps: tuple[Step, tuple[int, ...]], heads: tuple[int, ...]) -> Graph:
    nodes = [Node("x", None, (), T)]
    nodes += [Node(f"n{i}", step, tuple((n, 0) for n in inputs), T) for i, (step, inputs) in enumerate(steps, 1)]
    return Graph(tuple(nodes), tuple((h, 0) for h in heads))


def barriers(found: Graph, workspaces: dict[int, int] | None = None) -> set[int]:
    sizes = workspaces or {}
    nodes = [i for i, node in enumerate(found.nodes) if node.is_kernel]
    return barriers_before(found, plan_memory(found, sizes), sizes, nodes)


def test_a_model_runs_on_the_threads_it_was_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one per core; an argument, then ``MINITVM_NUM_THREADS``, may ask for others."""
    monkeypatch.delenv("MINITVM_NUM_THREADS", raising=False)
    x = relay.var("x", shape=(64, 64))
    libraries = {n: minitvm.build(relay.Function([x], relay.exp(x)), num_threads=n) for n in (1, 512)}
    assert libraries[1]["default"]().num_threads == 1
    assert libraries[512]["default"]().num_threads == physical_cores()
    assert libraries[1]["default"](None, 3).num_threads == 3
    monkeypatch.setenv("MINITVM_NUM_THREADS", "2")
    assert libraries[1]["default"]().num_threads == 2


def test_a_barrier_stands_between_a_kernel_and_what_reads_it() -> None:
    assert barriers(graph((K, (0,)), (K, (1,)), (K, (2,)), heads=(3,))) == {2, 3}


def test_independent_kernels_need_none() -> None:
    assert barriers(graph((K, (0,)), (K, (0,)), (K, (0,)), (K, (1, 2, 3)), heads=(4,))) == {4}


def test_memory_that_is_used_again_needs_one() -> None:
    """Node 3 reads only the input but overwrites what node 2 has read."""
    found = graph((K, (0,)), (K, (1,)), (K, (0,)), (K, (2, 3)), heads=(4,))
    plan = plan_memory(found)
    assert plan.offsets[3] == plan.offsets[1]
    assert 3 in barriers(found)


def test_workspaces_count_as_written() -> None:
    found = graph((K, (0,)), (K, (0,)), heads=(1, 2))
    assert barriers(found) == set()
    shared = plan_memory(found, {1: 128, 2: 128}).workspaces
    assert shared[1] == shared[2]
    assert barriers(found, {1: 128, 2: 128}) == {2}


N = (TensorType(("n",), "int8"),)


@given(st.data())
def test_barriers_hold_for_whatever_memory_a_run_plans(data: st.DataObject) -> None:
    """Between two of them no kernel meets another one, in a plan for any sizes."""
    count = data.draw(st.integers(2, 12))
    nodes = [Node("x", None, (), N)]
    for i in range(1, count):
        step = Alias() if data.draw(st.integers(0, 4)) == 0 else K
        inputs = data.draw(st.lists(st.integers(max(0, i - 4), i - 1), min_size=1, max_size=1 if step != K else 3))
        nodes.append(Node(f"n{i}", step, tuple((n, 0) for n in inputs), N))
    found = Graph(tuple(nodes), ((count - 1, 0),))
    kernels = [i for i, node in enumerate(nodes) if node.is_kernel]
    needs: dict[int, Dim] = {i: data.draw(st.sampled_from((0, symbol("n")))) for i in kernels}
    stops = barriers_before(found, unplanned(found), needs, kernels)
    sizes = [0, *data.draw(st.lists(st.sampled_from((64, 128, 640)), min_size=count, max_size=count))]
    for i, node in enumerate(nodes):
        sizes[i] = sizes[node.inputs[0][0]] if node.step == Alias() else sizes[i + 1]
    known = Graph(
        tuple(n.with_types((TensorType((s,), "int8"),)) for n, s in zip(nodes, sizes, strict=False)), found.heads
    )
    scratch = {i: 64 for i in kernels if needs[i] != 0}
    plan, stretch = plan_memory(known, scratch), []
    for i in kernels:
        stretch = [*([] if i in stops else stretch), i]
        assert not barriers_before(known, plan, scratch, stretch), (i, stretch, nodes)


def test_where_a_run_plans_the_memory_independent_kernels_need_no_barriers() -> None:
    steps = ((K, (0,)), (K, (1,)), (K, (1,)), (K, (1,)), (K, (2, 3, 4)))
    nodes = [Node("x", None, (), N)]
    nodes += [Node(f"n{i}", step, tuple((n, 0) for n in inputs), N) for i, (step, inputs) in enumerate(steps, 1)]
    found = Graph(tuple(nodes), ((5, 0),))
    kernels = [1, 2, 3, 4, 5]
    assert barriers_before(found, unplanned(found), dict.fromkeys(kernels, 0), kernels) == {2, 5}
    workspaces: dict[int, Dim] = {**dict.fromkeys(kernels, 0), 2: symbol("n")}
    assert barriers_before(found, unplanned(found), workspaces, kernels) == {2, 3, 5}


def test_host_calls_cut_segments_and_reshapes_vanish() -> None:
    found = graph((K, (0,)), (Alias(), (1,)), (K, (2,)), (HostStep(), (3,)), (K, (4,)), heads=(5,))
    assert steps_of(found) == [Segment("segment_0", (1, 3)), 4, Segment("segment_1", (5,))]


def test_a_model_of_microseconds_runs_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    x = relay.var("x", shape=(4, 5))
    small = relay.build(relay.Function([x], relay.tanh(x)))
    assert small["default"](None, 2).num_threads == 2, "the tests' own setting"
    monkeypatch.setattr(instance, "WORTH_A_TEAM", 50e-6)
    assert small["default"](None, 2).num_threads == 1
    wide = relay.var("wide", shape=(1024, 1024))
    assert relay.build(relay.Function([wide], relay.tanh(wide)))["default"](None, 2).num_threads == 2
