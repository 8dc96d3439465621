"""Object code for a CPU as an artefact's code: functions of the entry, which every thread of a team calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import numpy as np

from minitvm.config import MOST_THREADS
from minitvm.runtime import cpu
from minitvm.runtime.artifact import Artifact, CpuTag
from minitvm.runtime.code import CODES, Code, HostMemory
from minitvm.runtime.graph import ALIGNMENT, Segment, segments, steps_of, workspace_slots
from minitvm.runtime.team import team

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
"""A native entry: (slots, thread, threads, barrier)."""

_ALONE = np.zeros(2 * ALIGNMENT, np.uint8)
"""The barrier of every team of one, which nobody arrives at."""


class NativeArtifact(Code):
    """The objects of an artefact, linked."""

    memory = HostMemory()
    most_threads = MOST_THREADS

    def __init__(self, artifact: Artifact) -> None:
        kernels, native = workspace_slots(artifact.graph), segments(steps_of(artifact.graph))
        symbols = [*map(_symbol, kernels), *map(_symbol, native)]
        self._code = cpu.NativeCode([*artifact.objects.values(), artifact.entry], symbols)

    @staticmethod
    def check(made_for: CpuTag, name: str) -> None:
        cpu.check_cpu(made_for, name)

    def step(self, what: Segment | int, slots: int, threads: int) -> Callable[[], None]:
        address = self._code.address(_symbol(what))
        if threads == 1:
            return partial(_ENTRY(address), slots, 0, 1, _ALONE.ctypes.data)

        def run() -> None:
            team(threads).run(address, slots)

        return run


def _symbol(what: Segment | int) -> str:
    return what.symbol if isinstance(what, Segment) else f"node_{what}"


CODES["llvm"] = NativeArtifact
