"""JIT linking: object code for a CPU comes into memory, is checked against this machine, and called by each thread.

LLVM's ORC links it, which needs no compiler or linker.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from minitvm import config
from minitvm.doors import door, left_out
from minitvm.errors import LibraryError, require
from minitvm.ir.arrays import aligned_empty
from minitvm.runtime.code import CODES, Code
from minitvm.runtime.devices import Memory
from minitvm.runtime.graph import Artifact, CpuTag, LibraryCall, Segment, segments, steps_of, workspace_slots
from minitvm.target import SHARING, cpu_text, marks_of, spinning_text, text_of

llvm: Any = require("llvmlite.binding", "machine code")
ffi: Any = llvm.ffi

_NONE: Mapping[str, int] = MappingProxyType({})
_lock = threading.Lock()

LINKED_TOGETHER = 16
"""Links of one JIT.  Of code that is unloaded it keeps 8 KB; a JIT takes 160 KB and 0.6 ms, and goes with the last code
that it linked."""


class _Linker:
    """A JIT for each :data:`LINKED_TOGETHER` links, one after the other: what all of them keep has a bound."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._links, self._left = itertools.count(), 0

    def link(self, builder: Any) -> Any:
        """JITLink lays an object out in one piece; the older linker's pieces may be too far apart to reach each other,
        for which it ends the process."""
        if not self._left:
            self._jit, self._left = llvm.create_lljit_compiler(use_jit_link=True), LINKED_TOGETHER
        self._left -= 1
        return builder.link(self._jit, f"minitvm-{next(self._links)}")


_linker = cache(_Linker)


_DONTNEED = 4  # of madvise(2), where there is /proc


@cache
def _llvm_pages() -> tuple[tuple[int, int], ...]:
    """Start and bytes of LLVM's own code and tables: what is mapped from its file, and nobody has written to."""
    try:
        smaps = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    areas = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", smaps, flags=re.MULTILINE)[1:]
    clean = (a for a in areas if ffi.lib._name in a.splitlines()[0] and re.search(r"^Anonymous: +0 kB$", a, re.M))
    edges = ([int(edge, 16) for edge in a.split(maxsplit=2)[0].split("-")] for a in clean if a.split()[1][1] == "-")
    return tuple((start, end - start) for start, end in edges)


def let_go_of_llvm() -> None:
    """LLVM's pages leave this process's memory (tens of megabytes); those that are needed again come back from its
    file, or from the system's copy of it."""
    for start, nbytes in _llvm_pages():
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(nbytes), _DONTNEED)


class NativeCode:
    """Objects, and LLVM IR ``text``, linked together and loaded; ``address(symbol)`` of the exported ones.

    ``imports`` are addresses of what they call outside of the process's own functions.

    Unloaded when collected.
    """

    def __init__(
        self, objects: Iterable[bytes], exports: Sequence[str], text: str = "", imports: Mapping[str, int] = _NONE
    ) -> None:
        builder = llvm.JITLibraryBuilder()
        if text:
            builder.add_ir(text)
        for image in objects:
            builder.add_object_img(image)
        for symbol in exports:
            builder.export_symbol(symbol)
        for name, address in imports.items():
            builder.import_symbol(name, address)
        builder.add_current_process()
        with _lock:
            try:
                self._tracker = _linker().link(builder)
            except RuntimeError as error:
                raise LibraryError(
                    f"the object code cannot be linked: {error}", hint="build the library again on this machine"
                ) from error
        let_go_of_llvm()

    def address(self, symbol: str) -> int:
        return int(self._tracker[symbol])

    def function(self, symbol: str, result: Any, *arguments: Any) -> Any:
        """The symbol as a ctypes function; calls release the interpreter's lock."""
        return ctypes.CFUNCTYPE(result, *arguments)(self.address(symbol))


# --- this machine ---------------------------------------------------------------------------------------------

_NOT_CODE = frozenset({
    "64bit", "cldemote", "clflushopt", "clwb", "clzero", "cx8", "enqcmd", "fsgsbase", "fxsr", "hreset", "invpcid",
    "lwp", "movdir64b", "movdiri", "mwaitx", "pconfig", "pku", "prfchw", "ptwrite", "rdpid", "rdpru", "rtm", "sahf",
    "serialize", "sgx", "shstk", "tsxldtrk", "uintr", "vzeroupper", "waitpkg", "wbnoinvd", "xsave", "xsavec",
    "xsaveopt", "xsaves",
})  # fmt: skip
"""Features that kernels make no use of, so that a machine without them may still run the code."""


@cache
def this_machine() -> CpuTag:
    """The CPU that this process runs on."""
    llvm.initialize_native_target()
    features = [name for name, there in llvm.get_host_cpu_features().items() if there]
    return CpuTag(llvm.get_process_triple(), llvm.get_host_cpu_name(), tuple(sorted(features)))


def check_cpu(made_for: CpuTag, name: str) -> None:
    """:class:`LibraryError` where this machine cannot run code made for that CPU; ``name`` is the library's."""
    here = this_machine()
    hint = "compile the model again on this machine, or for it: minitvm compile --target 'llvm -mcpu=...'"
    if made_for.triple.split("-")[0] != here.triple.split("-")[0]:
        raise LibraryError(f"{name} was compiled for {made_for.triple}, this machine is {here.triple}", hint=hint)
    lacking = [f for f in made_for.features if f not in here.features and f not in _NOT_CODE]
    if lacking:
        more = f" and {len(lacking) - 6} more" if len(lacking) > 6 else ""
        raise LibraryError(
            f"{name} was compiled for {made_for.name}; this machine's CPU, {here.name}, "
            f"lacks {', '.join(lacking[:6])}{more}",
            hint=hint,
        )


# --- the thread team ------------------------------------------------------------------------------------------
#
# Python starts the threads and is out of the way.  Worker threads stay in native code between runs for a short while,
# spinning on a counter; after that they return to Python and sleep on a lock.  A run publishes its function, wakes who
# sleeps, takes part as thread 0, and returns when all work is done: of a worker that comes late nothing is expected.
# Nothing is called back per kernel.  The native code, and the memory that threads share, is in team.ll.


class _Native:
    """The functions of ``team.ll``, compiled once per process."""

    def __init__(self) -> None:
        triple, (pointer, integer) = this_machine().triple, (ctypes.c_void_p, ctypes.c_int64)
        marks = marks_of(triple)
        text = "\n".join([spinning_text(SHARING, marks), cpu_text(marks), text_of("runtime/team.ll")])
        names = ("team_bytes", "team_publish", "team_sleeps", "team_take_part", "team_work", "team_cpu")
        self.code = NativeCode([], names, f'target triple = "{triple}"\n{text}')
        self.bytes = self.code.function("team_bytes", integer, integer)
        self.publish = self.code.function("team_publish", integer, pointer, integer, pointer, pointer)
        self.sleeps = self.code.function("team_sleeps", integer, pointer, integer)
        self.take_part = self.code.function("team_take_part", None, pointer, integer)
        self.work = self.code.function("team_work", integer, pointer, *4 * [integer])
        self.cpu = self.code.function("team_cpu", integer, pointer)


_native = cache(_Native)


class _Affinity:
    """The CPUs that the calling thread may run on, but for one.

    Whoever wakes a thread goes on: woken on the same CPU, as Linux likes to, it would wait there for its turn.
    """

    def __init__(self) -> None:
        self._allowed = self._own = config.allowed_cpus()

    def avoid(self, cpu: int) -> bool:
        """True if it will run elsewhere."""
        now = config.allowed_cpus()
        if now != self._own:
            self._allowed = now  # somebody else has set it
        wanted = self._allowed - {cpu} or self._allowed
        if wanted != now and hasattr(os, "sched_setaffinity"):
            with suppress(OSError):  # a CPU that has been taken away: the next time
                os.sched_setaffinity(0, wanted)
        self._own = wanted
        return cpu not in config.allowed_cpus()


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
        try:
            self._start()
        except BaseException:  # the system has no more threads: those that there are would wait for ever
            self.stop()
            raise

    def _start(self) -> None:
        for lock in self._sleep[1:]:
            lock.acquire()
        for i in range(1, self.threads):
            worker = threading.Thread(target=self._worker, args=(i,), name=f"minitvm-{i}", daemon=True)
            worker.start()
            self._workers.append(worker)

    def _worker(self, thread: int) -> None:
        work, team, threads = self._native.work, self._team, self.threads
        sleep = self._sleep[thread]
        seen, moves, own = 0, True, _Affinity()
        while (seen := work(team, thread, threads, seen, moves)) != -1:
            moves = own.avoid(self._native.cpu(team))
            if seen >= 0:
                sleep.acquire()
            else:
                seen = -2 - seen

    def run(self, function: int, slots: int) -> None:
        """Call the native ``function(slots, thread, threads, place)`` on threads that come, until all work is done."""
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
            if self._workers and self._native.publish(self._team, self.threads, None, None):
                self._wake()
        for worker in self._workers:
            worker.join(timeout=1.0)


_teams: dict[int, Team] = {}
_teams_lock = threading.Lock()


def team(threads: int) -> Team:
    """The process's team for that many threads, started on first use: not more than can run at once."""
    found = _teams.get(threads)
    if found is None:
        with _teams_lock:
            size = min(threads, config.usable_cpus())
            found = _teams.get(size) or _teams.setdefault(size, Team(size))
            _teams[threads] = found
    return found


@contextmanager
def whole_teams(*sizes: int) -> Iterator[None]:
    """Inside, teams of these sizes have as many threads, though fewer can run at once: for checks, not for speed."""
    made = {threads: Team(threads) for threads in sizes if threads > config.usable_cpus()}
    with _teams_lock:
        before = {threads: _teams.pop(threads, None) for threads in made}
        _teams.update(made)
    try:
        yield
    finally:
        with _teams_lock:
            for threads, found in made.items():
                found.stop()
                del _teams[threads]
            _teams.update({threads: found for threads, found in before.items() if found is not None})


def _stop_all() -> None:
    for found in set(_teams.values()):
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


# --- an artefact's code ---------------------------------------------------------------------------------------

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
"""A native entry: (slots, thread, threads, place)."""


class NativeArtifact(Code):
    """The objects of an artefact, linked."""

    memory = Memory()
    most_threads = config.MOST_THREADS

    def __init__(self, artifact: Artifact) -> None:
        kernels, native = workspace_slots(artifact.graph), segments(steps_of(artifact.graph))
        symbols = [*map(_symbol, kernels), *map(_symbol, native)]
        calls_library = any(isinstance(node.step, LibraryCall) for node in artifact.graph.nodes)
        imports = openblas() if calls_library else _NONE
        self._code = NativeCode([*artifact.objects.values(), artifact.entry], symbols, imports=imports)

    @staticmethod
    def check(made_for: CpuTag, name: str) -> None:
        check_cpu(made_for, name)

    def step(self, what: Segment | int, slots: int, threads: int) -> Callable[[], None]:
        return self.call(self.address(what), slots, threads)

    def clocked(self, source: str, segment: Segment, slots: int, threads: int) -> Callable[[], None]:
        kernels = {_symbol(node): self.address(node) for node in segment.nodes}
        code = NativeCode([], ["clocked"], source, kernels)
        run = self.call(code.address("clocked"), slots, threads)

        def kept() -> None:
            """Holds the code, which is unloaded when it is collected."""
            assert code is not None
            run()

        return kept

    def address(self, what: Segment | int) -> int:
        """The address of the code of a segment, or of one kernel node."""
        return self._code.address(_symbol(what))

    @staticmethod
    def call(function: int, argument: int, threads: int) -> Callable[[], None]:
        """Runs a native ``function(argument, thread, threads, place)`` on that many threads."""
        if threads == 1:
            alone = ctypes.c_int64(0), ctypes.c_int64(1), ctypes.c_void_p()
            return partial(_ENTRY(function), ctypes.c_void_p(argument), *alone)  # converted once

        def run() -> None:
            team(threads).run(function, argument)

        return run


@cache
def _control() -> NativeCode:
    triple = this_machine().triple
    texts = spinning_text(SHARING, marks_of(triple)), text_of("runtime/control.ll")
    return NativeCode([], CONTROL, "\n".join([f'target triple = "{triple}"', *texts]))


CONTROL = ("control_fail", "control_if", "control_loop")
"""The functions of ``control.ll``, compiled once per process."""


def native_control(name: str) -> int:
    """The address of one of them."""
    return _control().address(name)


def _symbol(what: Segment | int) -> str:
    return what.symbol if isinstance(what, Segment) else f"node_{what}"


CODES["llvm"] = NativeArtifact


@door
def openblas() -> dict[str, int]:
    """The addresses of OpenBLAS's functions; :class:`TargetError` where there is none."""
    raise left_out("-libs=cblas")
