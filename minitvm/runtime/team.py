"""The thread team: Python starts the threads and is out of the way.

Worker threads stay in native code between runs for a short while, spinning on a counter; after that they return
to Python and sleep on a lock.  A run publishes its function, wakes who sleeps, takes part as thread 0, and returns
when all threads are done.  Nothing is called back per kernel.  The native code, and the memory that threads share, is
in ``team.ll``.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from functools import lru_cache

from minitvm.runtime.cpu import NativeCode, this_machine
from minitvm.runtime.ndarray import aligned_empty
from minitvm.runtime.spin import marks_of, spinning_text


class _Native:
    """The functions of ``team.ll``, compiled once per process."""

    def __init__(self) -> None:
        triple, (pointer, integer) = this_machine().triple, (ctypes.c_void_p, ctypes.c_int64)
        text = spinning_text("runtime/team.ll", marks_of(triple))
        names = ("team_bytes", "team_publish", "team_sleeps", "team_take_part", "team_work")
        self.code = NativeCode([], names, f'target triple = "{triple}"\n{text}')
        self.bytes = self.code.function("team_bytes", integer, integer)
        self.publish = self.code.function("team_publish", integer, pointer, integer, pointer, pointer)
        self.sleeps = self.code.function("team_sleeps", integer, pointer, integer)
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
        self._native = _native()
        self._memory = aligned_empty((self._native.bytes(threads),), "uint8")
        self._memory[:] = 0
        self._team = self._memory.ctypes.data
        self._sleep = [threading.Lock() for _ in range(threads)]
        self._workers: list[threading.Thread] = []
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
            if self._native.sleeps(self._team, i):
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
