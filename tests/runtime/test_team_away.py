"""Workers that are away: a run ends without them, and what they come back to is not what they left."""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np
import pytest
from team_kernels import shared_loop

from minitvm.codegen.llvm.compile import compile_object, host, machine_model
from minitvm.codegen.llvm.entry import entry_text
from minitvm.ir.types import TensorType
from minitvm.runtime import native
from minitvm.runtime.graph import Graph, Launch, Node
from minitvm.runtime.memory import plan_memory
from minitvm.runtime.native import NativeCode, Team, native_control
from minitvm.target import SHARING, spinning_text

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="delays are the system's")
T = (TensorType((64,), "int8"),)

ONE = """%slept = call i32 @usleep(i32 5)
  %other = sub i64 7, %i
  %from.other = getelementptr i64, ptr %in, i64 %other
  %to.this = getelementptr i64, ptr %out, i64 %i
  %n = load i64, ptr %from.other
  %sum = add i64 %n, 1
  store i64 %sum, ptr %to.this"""

KERNEL = """
declare i1 @minitvm.take(ptr, ptr, i64, i64, i64)
declare i32 @usleep(i32)

; Each of 8 elements is the one before it more one, and takes a while.
define void @slowly(ptr %in, ptr %out, ptr %workspace, i64 %thread, i64 %threads, ptr %place) {
SHARED
}
""".replace("SHARED", shared_loop("8", ONE))


ABSENT = """
declare ptr @pthread_self()
declare i32 @usleep(i32)

; Workers that have to give way are asleep while the flag at FLAG is set.  The place at FLAG + 8 counts how often they
; had to; from what is at FLAG + 16 on it begins.
define internal void @minitvm.rest() nounwind {
  %self = call ptr @pthread_self()
  %self.number = ptrtoint ptr %self to i64
  %mine = icmp eq i64 %self.number, CALLER
  br i1 %mine, label %go.on, label %count
count:
  %times.at = inttoptr i64 TIMES to ptr
  %first.at = inttoptr i64 FIRST to ptr
  %before = atomicrmw add ptr %times.at, i64 1 seq_cst
  %first = load atomic i64, ptr %first.at seq_cst, align 8
  %absent = icmp uge i64 %before, %first
  br i1 %absent, label %sleep, label %go.on
sleep:
  %slept = call i32 @usleep(i32 50)
  %flag.at = inttoptr i64 FLAG to ptr
  %flag = load atomic i64, ptr %flag.at seq_cst, align 8
  %still = icmp ne i64 %flag, 0
  br i1 %still, label %sleep, label %go.on
go.on:
  ret void
}

define internal i64 @minitvm.cpu() nounwind {
  ret i64 -1
}

define internal i64 @minitvm.now() nounwind {
  %times.at = inttoptr i64 CLOCK to ptr
  %time = atomicrmw add ptr %times.at, i64 2000000 seq_cst
  ret i64 %time
}

define internal i64 @minitvm.used() nounwind {
  %time = call i64 @minitvm.now()
  ret i64 %time
}
"""


class Absences:
    """A team whose workers give way wherever they can, and do not come back from the ``first`` time on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, threads: int, first: int) -> None:
        self.words = np.array([1, 0, first, 0], np.int64)
        places = {name: self.words.ctypes.data + 8 * i for i, name in enumerate(("FLAG", "TIMES", "FIRST", "CLOCK"))}
        text = ABSENT
        for name, value in {**places, "CALLER": threading.get_ident()}.items():
            text = text.replace(f" {name}", f" {value}")
        pausing = spinning_text(SHARING, machine_model(host()).features)
        pausing = pausing.replace("define internal void @minitvm.rest", "define internal void @minitvm.unused")
        monkeypatch.setattr(native, "spinning_text", lambda *_: pausing)
        monkeypatch.setattr(native, "cpu_text", lambda *_: text)
        made = native._Native()
        monkeypatch.setattr(native, "_native", lambda: made)
        self.team = Team(threads)

    @property
    def there(self) -> bool:
        """Whether one is absent."""
        return bool(self.words[1] > self.words[2])

    def come_back(self) -> None:
        self.words[0] = 0


STEPS = 4


class Stepped:
    """A segment of so many kernels, each of which reads what the one before has written."""

    def __init__(self) -> None:
        nodes = [Node("x", None, (), T)]
        nodes += [Node(f"n{i}", Launch("slowly"), ((i, 0),), T) for i in range(STEPS)]
        graph = Graph(tuple(nodes), ((STEPS, 0),))
        features = machine_model(host()).features
        text = entry_text(graph, plan_memory(graph), dict.fromkeys(range(1, STEPS + 1), 0), features)
        triple = f'target triple = "{host().triple}"\n'
        self.code = NativeCode([compile_object(KERNEL, host())], ["segment_0"], triple + text)
        self.values = np.zeros((STEPS + 1, 8), np.int64)
        self.slots = (ctypes.c_void_p * (2 * STEPS + 2))(*[self.values[i].ctypes.data for i in range(STEPS + 1)])

    def run(self, on: Team) -> bool:
        """Whether the results are right."""
        self.values[1:] = -1
        on.run(self.code.address("segment_0"), ctypes.addressof(self.slots))
        return bool(np.array_equal(self.values, np.repeat(np.arange(STEPS + 1)[:, None], 8, 1)))


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("first", [0, 1, 2, 5])
def test_a_run_ends_without_workers_that_are_away(threads: int, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they are; the code that they have been in may be unloaded meanwhile."""
    absences, model = Absences(monkeypatch, threads, first), Stepped()
    while not absences.there:
        assert model.run(absences.team)
    assert all(model.run(absences.team) for _ in range(3))
    model.slots[:] = [None] * len(model.slots)
    del model
    other = Stepped()
    assert all(other.run(absences.team) for _ in range(3))
    absences.come_back()
    assert all(other.run(absences.team) for _ in range(20))
    absences.team.stop()
    for worker in absences.team._workers:
        worker.join()


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_workers_that_come_and_go_wherever_they_can(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    absences, models = Absences(monkeypatch, threads, 0), [Stepped(), Stepped()]
    absences.come_back()
    assert all(models[i % 2].run(absences.team) for i in range(40))
    absences.team.stop()


def place_at(from_step: int) -> tuple[np.ndarray, np.ndarray]:
    """A thread's place in a run of which everything is finished: nobody waits.  Held by the second array."""
    run = np.zeros(16 + 2 * 16, np.int64)
    run[0] = 2**40
    return np.array([run.ctypes.data, 0, 0, from_step], np.int64), run


def test_a_worker_leaves_a_segment_before_each_barrier_and_goes_on_from_there() -> None:
    model, (place, run) = Stepped(), place_at(0)
    segment = model.code.function("segment_0", None, ctypes.c_void_p, *2 * [ctypes.c_int64], ctypes.c_void_p)
    seen = []
    for _ in range(STEPS):
        segment(ctypes.addressof(model.slots), 1, 2, place.ctypes.data)
        seen.append((int(place[1]), int(place[3])))
    assert seen == [(1, 2), (2, 3), (3, 4), (4, 0)], "pieces of work, the step to go on from"
    assert run[0] == 2**40 + 8 * STEPS
    assert model.values[STEPS].tolist() == [STEPS] * 8


def test_who_has_to_stay_and_who_made_the_run_go_through_a_segment() -> None:
    model = Stepped()
    segment = model.code.function("segment_0", None, ctypes.c_void_p, *2 * [ctypes.c_int64], ctypes.c_void_p)
    for thread, from_step in ((1, -1), (0, 0)):
        place, _run = place_at(from_step)
        segment(ctypes.addressof(model.slots), thread, 2, place.ctypes.data)
        assert place[1] == STEPS and place[3] == from_step


@pytest.mark.parametrize(("visit", "steps"), [(0, 1), (2, 1), (1, STEPS)])
def test_who_made_a_run_that_is_told_to_stop_leaves_where_no_worker_is_inside(visit: int, steps: int) -> None:
    model, (place, run) = Stepped(), place_at(0)
    segment = model.code.function("segment_0", None, ctypes.c_void_p, *2 * [ctypes.c_int64], ctypes.c_void_p)
    model.slots[-1], run[8], run[42] = 1, 7, visit
    segment(ctypes.addressof(model.slots), 0, 2, place.ctypes.data)
    assert place[1] == steps
    assert run[8] == 0, "nobody may come in"
    assert run[42] == visit % 2, "who is away is out, who is inside goes on"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_that_is_told_to_stop_ends_before_its_next_kernel(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    absences, model = Absences(monkeypatch, threads, 0), Stepped()
    while threads > 1 and not absences.there:
        assert model.run(absences.team)
    model.slots[-1] = 1
    assert not model.run(absences.team)
    assert model.values[:2].tolist() == [[0] * 8, [1] * 8] and (model.values[2:] == -1).all()
    model.slots[-1] = None
    assert model.run(absences.team)
    absences.come_back()
    model.slots[-1] = 1
    for _ in range(20):
        model.run(absences.team)
    absences.team.stop()


@pytest.mark.parametrize("name", ["control_if", "control_loop"])
def test_control_flow_keeps_its_threads(name: str) -> None:
    """They have to meet in it, so none may leave its segments; of a record without steps."""
    control = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *2 * [ctypes.c_int64], ctypes.c_void_p)(native_control(name))
    memory, (place, _run) = np.zeros(8, np.int64), place_at(0)
    slot = np.array([memory.ctypes.data], np.int64)
    record = np.zeros(23, np.int64)
    record[[0, 1] if name == "control_if" else [0, 4, 5, 6, 7, 8]] = slot.ctypes.data
    control(record.ctypes.data, 1, 2, place.ctypes.data)
    assert place[3] == -1
