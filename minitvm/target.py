"""Target strings: ``llvm``, ``llvm -mcpu=skylake-avx512``, ``interp``, ``cuda -arch=sm_90 -libs=cudnn,cublas``."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import InitVar, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple

from minitvm.cpu_costs import CPU
from minitvm.doors import door
from minitvm.errors import TargetError, did_you_mean

OPTIONS: dict[str, dict[str, str]] = {
    "llvm": {
        "mtriple": "LLVM target triple; the host's by default",
        "mcpu": "CPU name as LLVM spells it; the host's by default",
        "mtune": "CPU to put instructions in order for; the host's by default, with -mtriple that of -mcpu",
        "mattr": "features to add or remove: +avx2,-fma; the host's by default",
        "libs": "vendor libraries to hand layers to: cblas",
        "caches": "a core's first- and second-level data cache, and the third that all share: 32K,1M,16M; the host's,"
        " or of a named CPU 32K,512K,32M",
    },
    "interp": {},
    "cuda": {
        "arch": "architecture to compile for, such as sm_90; the first GPU's by default, sm_90 where there is none",
        "libs": "vendor libraries to hand layers to: cudnn, cublas",
    },
}


class Kind(str):
    """A target's kind; ``name`` is what TVM calls the text itself."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return str(self)


_entered: ContextVar[tuple[Target, ...]] = ContextVar("targets", default=())


@dataclass(frozen=True)
class Target:
    """A kind (``llvm``, ``interp``, ``cuda``) with its options.  ``str(target)`` parses back.

    ``Target("llvm -mcpu=skylake")`` reads a target string.  ``with target:`` makes it the one of builds that name none.
    ``host`` may say what TVM would compile for the CPU beside a GPU's code: ``llvm``, and nothing else.
    """

    kind: str
    options: Mapping[str, str] = field(default_factory=dict)
    host: InitVar[str | Target | None] = None

    def __post_init__(self, host: str | Target | None) -> None:
        found = self if self.kind in OPTIONS else Target.parse(self.kind)
        options = found.options if isinstance(self.options, Mapping) else {}
        for given in (host, None if isinstance(self.options, Mapping) else self.options):
            _check_host(given)
        object.__setattr__(self, "kind", Kind(found.kind))
        object.__setattr__(self, "options", options)

    @staticmethod
    def current(allow_none: bool = True) -> Target | None:
        """The innermost target that was entered, of this thread; :class:`TargetError` where one must be and none is."""
        if not _entered.get() and not allow_none:
            raise TargetError("no target was entered", hint='with minitvm.Target("llvm"): ...')
        return (*_entered.get()[-1:], None)[0]

    def __enter__(self) -> Target:
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        _entered.set(_entered.get()[:-1])

    @property
    def attrs(self) -> Mapping[str, str]:
        """The options, as TVM calls them."""
        return self.options

    @property
    def mcpu(self) -> str:
        """The CPU's name where one is given."""
        return self.options.get("mcpu", "")

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"-{k}={v}" for k, v in self.options.items())])

    def __hash__(self) -> int:
        return hash(str(self))

    @staticmethod
    def parse(text: str | Target | Mapping[str, str]) -> Target:
        """Parse a target string, or a dictionary of ``kind`` and options; :class:`TargetError` names what is unknown
        and what is close to it."""
        if isinstance(text, Target):
            return text
        if isinstance(text, Mapping) and "kind" not in text:
            raise TargetError("a target without its kind", hint='{"kind": "llvm", "mcpu": "znver4"}, or a string')
        if isinstance(text, Mapping):
            return Target.parse(shlex.join([text["kind"], *(f"-{k}={v}" for k, v in text.items() if k != "kind")]))
        kind, *words = _words(tagged(str(text))) or [""]
        if kind not in OPTIONS:
            raise TargetError(f"unknown target {textwrap.shorten(str(text), 80)!r}", hint=_known_targets(kind, text))
        options: dict[str, str] = {}
        for word in words:
            name, _, value = word.lstrip("-").partition("=")
            if name not in OPTIONS[kind]:
                raise TargetError(
                    f"unknown option {word!r} of target {kind!r}", hint=_closest(name, list(OPTIONS[kind]), "options")
                )
            if not value:
                raise TargetError(f"option -{name} of target {kind!r} has no value", hint=f"write -{name}=VALUE")
            if name in options:
                given = f"-{name}={options[name]} and -{name}={value}"
                raise TargetError(f"option -{name} of target {kind!r} is given twice", hint=f"keep one of {given}")
            options[name] = value
        return Target(kind, options)

    @property
    def libs(self) -> tuple[str, ...]:
        return tuple(lib for lib in self.options.get("libs", "").split(",") if lib)


def _check_host(host: str | Target | None) -> None:
    if host is not None and str(Target.parse(host)) != "llvm":
        raise TargetError(
            f"the host's side is for this machine, not for {str(host)!r}", hint='leave the host away, or say "llvm"'
        )


class Level(NamedTuple):
    """A level of memory: bytes that it holds for all threads together, and how many they read from it in a second."""

    name: str
    nbytes: float
    rate: float


@dataclass(frozen=True)
class Rates:
    """What ``threads`` threads of a machine do at most; usual figures, or measured ones.

    ``flops``: float32 operations a second of all together; ``clock``: cycles a second of each, where a core's units
    multiply and add ``CPU.fma_per_cycle`` vectors in one; ``launch``: seconds that a kernel takes which does nothing.
    """

    threads: int
    flops: float
    clock: float
    levels: tuple[Level, ...]
    launch: float

    def better_of(self, other: Rates) -> Rates:
        """Each figure's better one."""
        levels = tuple(max(pair, key=lambda level: level.rate) for pair in zip(self.levels, other.levels, strict=True))
        return replace(self, flops=max(self.flops, other.flops), clock=max(self.clock, other.clock), levels=levels)

    def level(self, nbytes: float) -> Level:
        """The nearest level that holds so many bytes."""
        return next((level for level in self.levels if nbytes <= level.nbytes), self.levels[-1])


@dataclass(frozen=True)
class MachineModel:
    """What templates need to know of a target: of a host what it is, of a named CPU what its name says.

    The same for a target string and a number of threads everywhere, but for what the string leaves to the host.
    """

    vector_bytes: int  # width of one vector register: 64 AVX-512, 32 AVX, 16 SSE and NEON
    vector_registers: int  # 32 or 16
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 512 * 1024
    threads: int = 1
    features: frozenset[str] = frozenset()
    l3_bytes: int = 32 * 1024 * 1024
    records: ClassVar[Path | None] = None
    """Tuning records that ship for machines of its kind."""

    @property
    def l1_ways(self) -> int:
        """Lines that a place of the first-level cache holds."""
        return max(1, self.l1_bytes // CPU.way_bytes)

    @property
    def name(self) -> str:
        """What tuning records call machines that are alike."""
        vectors = f"{self.vector_registers} vectors of {self.vector_bytes} bytes"
        caches = f"caches of {self.l1_bytes} and {self.l2_bytes}"
        return ", ".join([vectors, caches, f"{self.threads} threads", *sorted(self.features)])

    def rates(self, threads: int) -> Rates:
        """Usual figures of machines with such vectors: builds go by them, so that they are the same everywhere."""
        loads = CPU.fma_per_cycle * self.vector_bytes * CPU.clock * threads
        own, shared = (loads * share for share in CPU.own_caches), CPU.l3_bytes_per_cycle * CPU.clock * threads
        rates = (*own, shared, CPU.memory_rate * min(threads, 2))
        flops = 2 * CPU.fma_per_cycle * self.lanes("float32") * CPU.clock * threads
        launch = CPU.launch + (CPU.meeting if threads > 1 else 0)
        return Rates(threads, flops, CPU.clock, self.levels(threads, rates), launch)

    def levels(self, threads: int, rates: Sequence[float]) -> tuple[Level, ...]:
        """Caches and memory, with the bytes a second that so many threads read from each."""
        sizes = (self.l1_bytes * threads, self.l2_bytes * threads, self.l3_bytes, math.inf)
        return tuple(map(Level, ("L1", "L2", "L3", "memory"), sizes, rates))

    def lines_kept(self, apart: int) -> int:
        """The number of cache lines, so many bytes apart, that the first-level cache holds."""
        return CPU.way_bytes // math.gcd(apart, CPU.way_bytes) * self.l1_ways

    def cycles(self, flops: float, dtype: str) -> float:
        """The cycles of a core that does so many operations a vector at a time, multiplied and added without a stop."""
        return flops / (2 * self.lanes(dtype))

    def pays_to_move(self, multiply_adds: int, elements: int) -> bool:
        """True if a convolution alone may gain more from other layouts than moving so many elements costs."""
        return True

    def pays_to_fill(self, multiply_adds: int, times: float, nbytes: int) -> bool:
        """True if a convolution gains more from whole vectors of channels than it costs to have so many times its
        multiply-adds, and to move so many bytes."""
        return False

    def pays_to_round(self, exact: float, rounded: float) -> bool:
        """True if the cycles of a product with factors of fewer bits are worth what it loses; memory always gains."""
        return True

    def lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` in one vector register."""
        bits = 8 if dtype == "bool" else int("".join(c for c in dtype if c.isdigit()))
        return max(1, self.vector_bytes * 8 // bits)


@door
def tagged(text: str) -> str:
    """The target string that a name of a device stands for; the text itself where it is no such name."""
    return text


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise TargetError(
            f"target {text!r} cannot be read: {error}", hint='write it as "llvm -mcpu=NAME -mattr=+FEATURE"'
        ) from error


def _known_targets(kind: str, text: str) -> str:
    """All, and of one that was to call libraries, which ones are called."""
    closest = _closest(kind, list(OPTIONS), "targets")
    called = [
        f"{name} ({options['libs'].rpartition(': ')[2]})" for name, options in OPTIONS.items() if "libs" in options
    ]
    return f"{closest}; vendor libraries are called by {' and '.join(called)}" if "-libs" in text else closest


def _closest(word: str, known: list[str], what: str) -> str:
    guess = did_you_mean(word, known)
    return f"{guess + ' ' if guess else ''}known {what}: {', '.join(known)}"


create = Target
"""What ``Target`` was called first."""


def llvm(options: str = "") -> Target:
    """``Target.parse("llvm " + options)``, as TVM's ``target`` functions."""
    return Target.parse(f"llvm {options}")


def cuda(options: str = "") -> Target:
    """``Target.parse("cuda " + options)``."""
    return Target.parse(f"cuda {options}")


SHARING = "codegen/llvm/sharing.ll"
"""The text of ``@minitvm.take``, ``barrier`` and so on."""


# --- how threads wait: `@minitvm.pause` and `@minitvm.rest` of the `.ll` texts, by machine ---------------------------

_WAITING = """
declare {declared}
declare i32 @{give_up}()

define internal void @minitvm.pause() nounwind {{
  {pause}
  ret void
}}

define internal void @minitvm.rest() nounwind {{
  %ignored = call i32 @{give_up}()
  ret void
}}
"""

_CPU = """
declare i32 @sched_getcpu()
declare i32 @clock_gettime(i32, ptr)

define internal i64 @minitvm.clock(i32 %which) nounwind {
  %time = alloca [2 x i64], align 8
  %done = call i32 @clock_gettime(i32 %which, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %nano.at = getelementptr [2 x i64], ptr %time, i64 0, i64 1
  %nano = load i64, ptr %nano.at, align 8
  %large = mul i64 %seconds, 1000000000
  %sum = add i64 %large, %nano
  ret i64 %sum
}

define internal i64 @minitvm.now() nounwind {
  %monotonic = call i64 @minitvm.clock(i32 1)
  ret i64 %monotonic
}

define internal i64 @minitvm.used() nounwind {
  %thread = call i64 @minitvm.clock(i32 3)
  ret i64 %thread
}

define internal i64 @minitvm.cpu() nounwind {
  %cpu = call i32 @sched_getcpu()
  %number = sext i32 %cpu to i64
  ret i64 %number
}
"""
_NO_CPU = """
define internal i64 @minitvm.cpu() nounwind {
  ret i64 -1
}

define internal i64 @minitvm.now() nounwind {
  ret i64 0
}

define internal i64 @minitvm.used() nounwind {
  ret i64 0
}
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
    """The architecture; ``neon``; ``posix``, where the system has ``sched_yield``, and ``linux``."""
    arch = arch_of(triple)
    posix = "windows" not in triple and "msvc" not in triple
    marks = {arch: True, "neon": arch == "aarch64", "posix": posix, "linux": "linux" in triple}
    return frozenset(mark for mark, there in marks.items() if there)


def text_of(name: str) -> str:
    """An LLVM text of this package, such as ``runtime/team.ll``."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


@cache
def spinning_text(name: str, marks: frozenset[str]) -> str:
    """One whose threads wait, for a machine."""
    declared, pause = next((_PAUSE[arch] for arch in _PAUSE if arch in marks), _FENCE)
    give_up = "sched_yield" if "posix" in marks else "SwitchToThread"
    return text_of(name) + _WAITING.format(declared=declared, pause=pause, give_up=give_up)


def cpu_text(marks: frozenset[str]) -> str:
    """``@minitvm.cpu``: the number of the CPU that a thread is on; -1 where the system does not say.  ``@minitvm.now``:
    nanoseconds; ``used``: those that the thread had a CPU.  0 there."""
    return _CPU if "linux" in marks else _NO_CPU
