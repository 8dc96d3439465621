"""What a back end is, and which one a target means.

A back end compiles for one target.  It knows the machine, lowers a group to kernels, prints and compiles them, and
makes the entry that ties an artefact's kernels together; its :class:`Code` runs what it made.  The back end of kind
``K`` is in ``codegen/K/backend.py``; one from outside is there as soon as it is registered.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, TypeAlias

from minitvm.codegen.legalize import legalize
from minitvm.codegen.listing import Listing, loop_lines
from minitvm.codegen.lower import Lowering, lowered, predicted
from minitvm.codegen.problem import TEMPLATES, Choice, Problem, Template
from minitvm.errors import TargetError, is_own, place_of
from minitvm.ir.decision import Declined
from minitvm.ir.dims import Dim, larger
from minitvm.ir.expr import Call, Function
from minitvm.ir.loop import Alloc, Buffer, Kernel, Stmt, stmt_children
from minitvm.ir.op import Op
from minitvm.passes.fuse_ops import is_lowerable
from minitvm.runtime.code import CODES, Code, seal_of
from minitvm.runtime.graph import Artifact, CpuTag, Segment
from minitvm.target import OPTIONS, MachineModel, Rates, Target

Compile: TypeAlias = Callable[[Any], Any]
""":meth:`Backend.image`, with the cache on disk in front of it."""

Takes: TypeAlias = Callable[[Call], Any]
"""What a vendor's library is called with for an operator; why it is not (``Declined``); ``None`` where nobody would
ask it."""


@dataclass(frozen=True)
class Launches:
    """A group's kernels, launched one after the other; what one leaves in a buffer, the next ones find there."""

    params: tuple[Buffer, ...]
    """The group's: inputs, then results.  What kernels share beside them is workspace."""
    kernels: tuple[Kernel, ...]


class Backend(ABC):
    """Compiles for one target; threads may use it at the same time.

    A group goes through ``lower``, ``legalize``, ``bind``, ``source`` and ``image``, in that order.
    """

    kind: ClassVar[str]
    options: ClassVar[Mapping[str, str]] = {}
    """What a target string may say, with its meaning (of a back end from outside; the others' are in ``target.py``)."""
    schedules: ClassVar[str] = "llvm"
    """The kind whose schedules and layouts it uses."""
    templates: ClassVar[tuple[str, ...]] = ("llvm",)
    """The kinds whose templates it takes; behind the first, those of operators that would have no loops otherwise."""
    libraries: ClassVar[Mapping[str, Takes]] = {}
    """Vendors' libraries that ``-libs`` may name, with what they take."""
    native: frozenset[str] = frozenset()
    """Scalar functions that it can spell; the others become polynomials."""
    code: ClassVar[type[Code]]
    """What runs its artefacts."""
    stages: ClassVar[Mapping[str, Callable[[Any, Launches], str]]] = {}
    """Texts that it can show of a group's kernels, by name: functions of the back end and the launches."""

    machine: MachineModel
    made_for: CpuTag
    """What an artefact is marked with, and ``code`` checks where it is loaded."""
    version: str | None = None
    """What an image depends on beside its source: compilers, the processor.  ``None``: images are not kept on disk."""

    def __init__(self, target: Target, threads: int) -> None:
        """For kernels that so many threads share; :class:`TargetError` where there is no such machine."""
        self.target = target
        for library in target.libs:
            if library not in self.libraries:
                raise TargetError(f"target {self.kind!r} calls no library {library!r}", hint=self._known_libraries())

    def _known_libraries(self) -> str:
        known = ", ".join(self.libraries)
        return f"leave it out of -libs; it calls {known}" if known else "leave out -libs"

    def library_of(self, call: Call) -> str | Declined | None:
        """The vendor's library that computes an operator, which is then a group of its own; or why none does, where
        one might be expected to; ``None`` for all else.  ``CallLibraries`` asks, where the target has ``-libs``."""
        declined: Declined | None = None
        for name in self.target.libs:
            found = self.libraries[name](call)
            if isinstance(found, Declined):
                declined = declined or found
            elif found is not None:
                return name
        return declined

    def slower(self, call: Call) -> Declined | None:
        """The reason why an operator that stands for several would be no faster than these: ``FuseAttention`` asks."""
        if not is_lowerable(call) or any(0 in arg.shape for arg in call.args):
            return Declined("its shapes are known only when it runs, or it computes nothing")
        if self.target.libs:
            return Declined("a library is asked for its products")
        reasons = []
        for maker in TEMPLATES.find(self.schedules, call.op) if isinstance(call.op, Op) else ():
            template = maker(Problem.of(call), self.machine)
            reason = template.refusal() or template.slower()
            if reason is None:
                return None
            reasons.append(reason)
        return reasons[0] if reasons else Declined(f"{self.kind} has no template for it")

    def library_call(self, group: Function, symbol: str) -> Any | None:
        """What :attr:`code` calls a vendor's library with in place of a kernel; ``None``: the group becomes kernels."""
        return None

    def library_text(self, group: Function, symbol: str) -> str:
        """The same to be read."""
        return f"# {symbol} calls a library:\n{group}"

    def asked(self, group: Function) -> Any:
        """What a group's library is called with, as the table of :attr:`libraries` says; ``None`` where it has none."""
        call, name = group.body, group.attrs.get("library")
        return self.libraries[name](call) if isinstance(name, str) and isinstance(call, Call) else None

    def predicted(self, call: Call) -> float | Declined:
        """The cycles that a call takes by itself as a template has it; why there is none."""
        return predicted(call, self.machine, self.templates)

    def lower(self, group: Function, symbol: str) -> Lowering:
        """A fused group as loops; :class:`CompilerError` where it has no template and no compute rule."""
        return lowered(group, symbol, self.machine, self.schedules, self.templates)

    def measured(self) -> Rates:
        """What the machine that is here does at most; usual figures where it is not measured."""
        return self.machine.rates(self.machine.threads)

    def measured_flops(self, tries: int) -> float:
        """Floating-point operations a second of one thread, the best of so many short tries: what kernels are held
        against that ran a moment before; the usual figure where nothing is measured."""
        return self.machine.rates(1).flops

    def judged(self, template: Template, choice: Choice, source: Any) -> tuple[float, str]:
        """What a choice costs as is known from its source, and what speaks against it, where something does."""
        return choice.cycles, ""

    def legalize(self, kernel: Kernel) -> Kernel:
        """The loops with nothing in them that the back end cannot spell."""
        return legalize(kernel, self.native)

    def bind(self, kernel: Kernel) -> Launches:
        """What is launched for a group; the kernel itself unless a launch can do less than it."""
        return Launches(kernel.params, (kernel,))

    def workspace(self, launches: Launches) -> Workspace:
        """The memory that a group's launches need beside its parameters; here there is one."""
        (kernel,) = launches.kernels
        return plan_workspace(kernel)

    def listings(self, readable: Kernel, legal: Kernel) -> tuple[Listing, ...]:
        """The texts of a kernel's way to code, each line with its line in the text before; loops first.

        ``readable``: before legalization.
        """
        return (loop_lines([legal], [readable]).listing,)

    @abstractmethod
    def source(self, launches: Launches) -> Any:
        """What :meth:`image` makes code of; text where images are kept on disk."""

    @abstractmethod
    def image(self, source: Any) -> Any:
        """Code as ``code`` takes it; bytes where artefacts can be saved."""

    def entry(self, artifact: Artifact, workspaces: Mapping[int, Dim], compile: Compile) -> bytes:
        """The entry of an artefact that has none yet, its document sealed in; nothing where it cannot be saved.

        ``workspaces`` are bytes by kernel node.  Here it is the seal alone: :attr:`code` calls kernels by itself.
        """
        if not all(isinstance(image, bytes) for image in artifact.objects.values()):  # calls of a library
            return b""
        return seal_of(artifact)

    def clocked(self, artifact: Artifact, segment: Segment, table: int) -> str | None:
        """Source for ``Code.clocked``: a segment that also writes down when each thread begins and ends each kernel.

        ``table``: the address of int64 (thread, kernel, begin or end, seconds or nanoseconds) of the monotonic clock.
        ``None`` where threads cannot be watched: kernels are timed one by one then.
        """
        return None


OWN = frozenset(OPTIONS)
"""The kinds of minitvm's back ends."""
BACKENDS: dict[str, type[Backend]] = {}
"""By kind of target; those of minitvm as soon as they are asked for."""


def register(backend: type[Backend]) -> type[Backend]:
    """Make a back end known: its kind is a target from now on.  A class decorator; one that is defined again takes the
    first one's place.  :class:`TargetError` where the kind is one of minitvm's."""
    if not is_own(backend):
        if backend.kind in OWN:
            raise TargetError(f"target {backend.kind!r} is minitvm's own", hint=f"another kind for {place_of(backend)}")
        OPTIONS[backend.kind] = dict(backend.options)
    BACKENDS[backend.kind] = backend
    CODES[backend.kind] = backend.code
    return backend


def backend_class(kind: str) -> type[Backend]:
    """The back end of a kind that :data:`minitvm.target.OPTIONS` knows."""
    if kind not in BACKENDS:
        importlib.import_module(f"minitvm.codegen.{kind}.backend")
    return BACKENDS[kind]


def backend_of(target: Target, threads: int) -> Backend:
    return backend_class(target.kind)(target, threads)


def stages() -> dict[str, str]:
    """Every text that a back end can show of kernels, with the back end's kind."""
    return {stage: kind for kind in OPTIONS for stage in backend_class(kind).stages}


# --- workspace: Where the memory that a kernel needs for itself lies inside the workspace it is given.


STACK_LIMIT = 64 * 1024
"""``local`` buffers beyond this many bytes go to the workspace: a thread's stack is small."""

_ALIGN = 64


@dataclass(frozen=True)
class Workspace:
    """``offsets``: bytes from the workspace's start.  Buffers in ``per_thread`` lie ``thread * thread_bytes`` further.

    ``nbytes`` is what to allocate for the number of threads that the plan was made for; offsets do not depend on it.
    """

    offsets: dict[Buffer, Dim]
    nbytes: Dim
    per_thread: frozenset[Buffer] = frozenset()
    thread_bytes: Dim = 0


def plan_workspace(kernel: Kernel, threads: int = 1) -> Workspace:
    """Offsets of the kernel's ``global`` and ``shared`` allocations and of ``local`` ones too large for the stack.

    Global buffers never overlap: without a barrier a slow thread may still read one while another writes the next.
    A thread's own buffers overlap where they do not live at the same time.
    """
    shared: dict[Buffer, Dim] = {}
    own: dict[Buffer, Dim] = {}

    def place(stmt: Stmt, depth: Dim) -> Dim:
        """``depth``: bytes of the thread's own buffers that are alive here; the most that are below."""
        if isinstance(stmt, Alloc) and stmt.buffer.scope == "global":
            shared.setdefault(stmt.buffer, sum(map(_aligned, shared)))
        elif isinstance(stmt, Alloc) and (stmt.buffer.scope == "shared" or not stmt.buffer.fits(STACK_LIMIT)):
            own[stmt.buffer] = larger(depth, own.get(stmt.buffer, 0))
            depth = own[stmt.buffer] + _aligned(stmt.buffer)
        return reduce(larger, (place(part, depth) for part in stmt_children(stmt)), depth)

    thread_bytes, start = place(kernel.body, 0), sum(map(_aligned, shared))
    offsets = shared | {buffer: start + at for buffer, at in own.items()}
    return Workspace(offsets, start + threads * thread_bytes, frozenset(own), thread_bytes)


def _aligned(buffer: Buffer) -> Dim:
    return -(-buffer.nbytes // _ALIGN) * _ALIGN
