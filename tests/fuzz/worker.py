"""Worker processes: a request in, a reply out; one that crashes or computes for too long is replaced."""

import contextlib
import faulthandler
import multiprocessing
import os
import pathlib
import resource
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.fuzz.peers", "tests.fuzz.subject"])
MEMORY = 16 << 30
"""Bytes of address space of a worker: a request for more fails there and nowhere else."""

PATIENCE = 10
"""How much longer than computing a worker may wait: for its turn, or for ever."""

Handler = Callable[[Any], Any]


@dataclass(frozen=True)
class Crash:
    """The worker died; ``trace`` is the end of what it wrote before."""

    signal: str
    trace: str


@dataclass(frozen=True)
class Hang:
    """The worker computed for so long without an answer, or waited ten times as long."""

    seconds: float


class Worker:
    """One process that answers requests with ``handler``.  Started when it is first needed."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._process: Any = None
        self._connection: Any = None
        handle, name = tempfile.mkstemp(prefix="minitvm-fuzz-", suffix=".log")
        os.close(handle)
        self._log = pathlib.Path(name)

    def ask(self, request: Any, seconds: float) -> Any:
        """The handler's answer, or a :class:`Crash` or :class:`Hang`."""
        if self._process is None:
            self._start()
        try:
            self._connection.send(request)
            if not self._answers(seconds):
                self.stop()
                return Hang(seconds)
            return self._connection.recv()
        except (EOFError, OSError):
            return self._crashed()

    def _answers(self, seconds: float) -> bool:
        """Whether there is an answer before its time is over: the processor's, since others may use the machine."""
        start, computed = time.monotonic(), _computed(self._process.pid)
        while not self._connection.poll(seconds / 10):
            waited = time.monotonic() - start
            if _computed(self._process.pid) - computed > seconds or waited > PATIENCE * seconds:
                return False
        return True

    def _start(self) -> None:
        self._log.write_text("")
        self._connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(theirs, self._handler, str(self._log)), daemon=True)
        self._process.start()
        theirs.close()

    def _crashed(self) -> Crash:
        self._process.join(10)
        code = self._process.exitcode
        self.stop()
        name = signal.Signals(-code).name if code is not None and code < 0 else f"exit {code}"
        return Crash(name, self._log.read_text(errors="replace")[-3000:])

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None

    def close(self) -> None:
        self.stop()
        self._log.unlink(missing_ok=True)


def _computed(pid: int) -> float:
    """Seconds that a process has computed, on all its threads; where nobody knows, those that have passed."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _serve(connection: Connection, handler: Handler, log: str) -> None:
    """The process's life.  What native code prints goes into the log, along with the stack of a crash."""
    with open(log, "w") as file:  # noqa: PTH123  (a descriptor is needed)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        faulthandler.enable(file)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(EOFError, BrokenPipeError):
            while True:
                connection.send(handler(connection.recv()))
