"""What a thread executes while it waits, by machine: ``@minitvm.pause`` and ``@minitvm.rest`` of the ``.ll`` texts."""

from __future__ import annotations

import pathlib
from functools import cache

_WAITING = """
declare {declared}
declare i32 @{give_up}()

define internal void @minitvm.pause() alwaysinline nounwind {{
  {pause}
  ret void
}}

define internal void @minitvm.rest() alwaysinline nounwind {{
  %ignored = call i32 @{give_up}()
  ret void
}}
"""

_PAUSE = {
    "x86": ("void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
_FENCE = ("void @llvm.donothing()", "fence seq_cst")


def arch_of(triple: str) -> str:
    """``x86``, ``aarch64``, or the triple's first word."""
    word = triple.partition("-")[0]
    return "x86" if word in ("x86_64", "i386", "i586", "i686", "amd64") else "aarch64" if word == "arm64" else word


def marks_of(triple: str) -> frozenset[str]:
    """The architecture; ``neon``; ``posix``, where the system has ``sched_yield``."""
    arch = arch_of(triple)
    marks = {arch: True, "neon": arch == "aarch64", "posix": "windows" not in triple and "msvc" not in triple}
    return frozenset(mark for mark, there in marks.items() if there)


def text_of(name: str) -> str:
    """An LLVM text of this package, such as ``runtime/team.ll``."""
    return (pathlib.Path(__file__).parents[1] / name).read_text(encoding="utf-8")


@cache
def spinning_text(name: str, marks: frozenset[str]) -> str:
    """One whose threads wait, for a machine."""
    declared, pause = next((_PAUSE[arch] for arch in _PAUSE if arch in marks), _FENCE)
    give_up = "sched_yield" if "posix" in marks else "SwitchToThread"
    return text_of(name) + _WAITING.format(declared=declared, pause=pause, give_up=give_up)
