"""The thread team: Python starts the threads and is out of the way.

Worker threads stay in native code between runs for a short while, spinning on a counter; after that they return
to Python and sleep on a lock.  A run publishes its function, wakes who sleeps, takes part as thread 0, and returns
when all threads are done.  Nothing is called back per kernel.

A team's memory (one cache line each, so that threads do not disturb one another)::

    0    epoch          i64   counts runs; workers wait for it to change
    64   function, slots      what to run
    128  done           i64   workers that have finished this run
    192  arrived        i32   the barrier that kernels and segments spin on
    256  generation     i32
    320 + 64 * worker:  asleep i64, wake i64
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pathlib
import platform
import threading
from functools import lru_cache

from minitvm import config
from minitvm.errors import ConfigError
from minitvm.runtime.cpu import NativeCode
from minitvm.runtime.cpu_tag import this_machine
from minitvm.runtime.ndarray import aligned_empty

BARRIER, WORKERS, LINE = 192, 320, 64
SPINS = 4000
"""How often a worker looks for work before it sleeps: roughly 100 microseconds."""
MOST_THREADS = 1024


def pause_of(triple: str) -> tuple[str, str]:
    """What a spinning thread should execute: the call and its declaration (nothing to declare: empty)."""
    if triple.startswith(("x86", "i686")):
        return "call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"
    if triple.startswith(("aarch64", "arm64")):
        return "call void @llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)"
    return "fence seq_cst", ""


def yield_of(triple: str) -> tuple[str, str]:
    """How a thread gives its core away: the call and its declaration."""
    if "windows" in triple:
        return "call i32 @SwitchToThread()", "declare i32 @SwitchToThread()"
    return "call i32 @sched_yield()", "declare i32 @sched_yield()"


def _team_text(triple: str) -> str:
    give_up, declare_yield = yield_of(triple)
    pause, declare_pause = pause_of(triple)
    return f"""
target triple = "{triple}"
{declare_yield}
{declare_pause}

define i64 @team_publish(ptr %team, i64 %threads, ptr %function, ptr %slots) {{
entry:
  %f = getelementptr i8, ptr %team, i64 64
  store ptr %function, ptr %f, align 8
  %s = getelementptr i8, ptr %team, i64 72
  store ptr %slots, ptr %s, align 8
  %done = getelementptr i8, ptr %team, i64 128
  store atomic i64 0, ptr %done monotonic, align 8
  %old = atomicrmw add ptr %team, i64 1 seq_cst
  br label %head
head:
  %i = phi i64 [1, %entry], [%i1, %tail]
  %count = phi i64 [0, %entry], [%count1, %tail]
  %more = icmp ult i64 %i, %threads
  br i1 %more, label %body, label %exit
body:
  %o = mul i64 %i, 64
  %o2 = add i64 %o, 320
  %state = getelementptr i8, ptr %team, i64 %o2
  %swap = cmpxchg ptr %state, i64 1, i64 0 seq_cst seq_cst
  %slept = extractvalue {{i64, i1}} %swap, 1
  %flag = zext i1 %slept to i64
  %o3 = add i64 %o, 328
  %wake = getelementptr i8, ptr %team, i64 %o3
  store i64 %flag, ptr %wake, align 8
  br label %tail
tail:
  %count1 = add i64 %count, %flag
  %i1 = add i64 %i, 1
  br label %head
exit:
  ret i64 %count
}}

define void @team_take_part(ptr %team, i64 %threads) {{
entry:
  %f = getelementptr i8, ptr %team, i64 64
  %function = load ptr, ptr %f, align 8
  %s = getelementptr i8, ptr %team, i64 72
  %slots = load ptr, ptr %s, align 8
  %barrier = getelementptr i8, ptr %team, i64 {BARRIER}
  call void %function(ptr %slots, i64 0, i64 %threads, ptr %barrier)
  %done = getelementptr i8, ptr %team, i64 128
  %others = sub i64 %threads, 1
  br label %wait
wait:
  %spins = phi i64 [0, %entry], [%more, %again], [%more, %rest]
  %n = load atomic i64, ptr %done acquire, align 8
  %all = icmp eq i64 %n, %others
  br i1 %all, label %exit, label %spin
spin:
  %more = add i64 %spins, 1
  %long = icmp ugt i64 %more, 2000
  br i1 %long, label %rest, label %again
again:
  {pause}
  br label %wait
rest:
  %ignored = {give_up}
  br label %wait
exit:
  ret void
}}

define i64 @team_work(ptr %team, i64 %thread, i64 %threads, i64 %from) {{
entry:
  %o = mul i64 %thread, 64
  %o2 = add i64 %o, 320
  %state = getelementptr i8, ptr %team, i64 %o2
  br label %fresh
fresh:
  %seen = phi i64 [%from, %entry], [%epoch, %ran], [%seen, %reclaim]
  br label %look
look:
  %spins = phi i64 [0, %fresh], [%more, %again]
  %epoch = load atomic i64, ptr %team seq_cst, align 8
  %same = icmp eq i64 %epoch, %seen
  br i1 %same, label %spin, label %work
spin:
  %more = add i64 %spins, 1
  %long = icmp ugt i64 %more, {SPINS}
  br i1 %long, label %sleep, label %again
again:
  {pause}
  br label %look
work:
  %f = getelementptr i8, ptr %team, i64 64
  %function = load ptr, ptr %f, align 8
  %stop = icmp eq ptr %function, null
  br i1 %stop, label %leave, label %call
call:
  %s = getelementptr i8, ptr %team, i64 72
  %slots = load ptr, ptr %s, align 8
  %barrier = getelementptr i8, ptr %team, i64 {BARRIER}
  call void %function(ptr %slots, i64 %thread, i64 %threads, ptr %barrier)
  br label %ran
ran:
  %done = getelementptr i8, ptr %team, i64 128
  %ignored = atomicrmw add ptr %done, i64 1 acq_rel
  br label %fresh
sleep:
  store atomic i64 1, ptr %state seq_cst, align 8
  %again_epoch = load atomic i64, ptr %team seq_cst, align 8
  %still = icmp eq i64 %again_epoch, %seen
  br i1 %still, label %return, label %reclaim
reclaim:
  %swap = cmpxchg ptr %state, i64 1, i64 0 seq_cst seq_cst
  %mine = extractvalue {{i64, i1}} %swap, 1
  br i1 %mine, label %fresh, label %return
return:
  ret i64 %seen
leave:
  ret i64 -1
}}
"""


class _Native:
    """The team's three functions, compiled once per process."""

    def __init__(self) -> None:
        names = ("team_publish", "team_take_part", "team_work")
        self.code = NativeCode([], names, _team_text(this_machine().triple))
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self.publish = self.code.function("team_publish", integer, pointer, integer, pointer, pointer)
        self.take_part = self.code.function("team_take_part", None, pointer, integer)
        self.work = self.code.function("team_work", integer, pointer, integer, integer, integer)


@lru_cache(maxsize=1)
def _native() -> _Native:
    return _Native()


class Team:
    """``threads`` threads that run one native function at a time; the caller is thread 0."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._lock = threading.Lock()
        self._memory = aligned_empty((WORKERS + LINE * threads,), "uint8")
        self._memory[:] = 0
        self._team = self._memory.ctypes.data
        self._wake_flags = self._memory[WORKERS + 8 :: LINE]
        self._sleep = [threading.Lock() for _ in range(threads)]
        self._workers: list[threading.Thread] = []
        self._native = _native()
        if threads > 1:
            self._start()

    def _start(self) -> None:
        for lock in self._sleep[1:]:
            lock.acquire()
        for i in range(1, self.threads):
            worker = threading.Thread(target=self._worker, args=(i,), name=f"minitvm-{i}", daemon=True)
            self._workers.append(worker)
            worker.start()

    def _worker(self, thread: int) -> None:
        work, team, threads = self._native.work, self._team, self.threads
        sleep = self._sleep[thread]
        seen = 0
        while (seen := work(team, thread, threads, seen)) >= 0:
            sleep.acquire()

    def run(self, function: int, slots: int) -> None:
        """Call the native ``function(slots, thread, threads, barrier)`` on every thread; returns when all are done."""
        with self._lock:
            if self._native.publish(self._team, self.threads, function, slots):
                self._wake()
            self._native.take_part(self._team, self.threads)

    def _wake(self) -> None:
        for i in range(1, self.threads):
            if self._wake_flags[i]:
                self._sleep[i].release()

    def stop(self) -> None:
        """End the worker threads."""
        with self._lock:
            if self.threads > 1 and self._native.publish(self._team, self.threads, None, None):
                self._wake()
        for worker in self._workers:
            worker.join(timeout=1.0)


_teams: dict[int, Team] = {}
_teams_lock = threading.Lock()


def team(threads: int) -> Team:
    """The process's team of that size, started on first use."""
    found = _teams.get(threads)
    if found is None:
        with _teams_lock:
            found = _teams.get(threads) or _teams.setdefault(threads, Team(threads))
    return found


def _stop_all() -> None:
    for found in list(_teams.values()):
        found.stop()
    _teams.clear()


def _forget() -> None:
    """In a forked child the worker threads do not exist: teams are started anew."""
    global _teams_lock
    _teams_lock = threading.Lock()
    _teams.clear()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


# --- how many threads -----------------------------------------------------------------------------------------


def physical_cores() -> int:
    """Cores that this process may run on, hardware threads of one core counted once; at least 1."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    if platform.system() != "Linux":
        return max(1, len(allowed))
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    cores = {_read_text(siblings.format(c)) or str(c) for c in allowed}
    return max(1, len(cores))


def _read_text(path: str) -> str | None:
    try:
        return pathlib.Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None


def resolve_threads(threads: int | None) -> int:
    """The number of threads to run on: as asked, else ``MINITVM_NUM_THREADS``, else one per physical core."""
    count = config.read_int("MINITVM_NUM_THREADS") if threads is None else threads
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_THREADS:
        raise ConfigError(
            f"num_threads is {count!r}, not a whole number from 0 to {MOST_THREADS}",
            hint="0 or None is one thread per physical core",
        )
    return count or physical_cores()
