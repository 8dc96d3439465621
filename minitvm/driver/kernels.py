"""From one fused group to object code: the stages of a kernel, and the cache in front of them."""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import llvmlite
import numpy as np

from minitvm import config
from minitvm.codegen.coverage import Verdict, check_coverage
from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.compile import Cpu, assembly, compile_object
from minitvm.codegen.llvm.emit import emit
from minitvm.codegen.llvm.spell import SPELLINGS
from minitvm.codegen.lower import lower
from minitvm.codegen.problem import TEMPLATES
from minitvm.codegen.simplify import simplify
from minitvm.codegen.workspace import plan_workspace
from minitvm.driver.cache import KernelCache, cache_key
from minitvm.errors import CompilerError
from minitvm.ir.expr import Call, Constant, Expr, Function, TupleGetItem, Var
from minitvm.ir.loop import Kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.ir.op import Op
from minitvm.ir.visitor import calls, children, post_order
from minitvm.target import MachineModel


class NotLowered(CompilerError):
    """A group that no template accepts and no compute rule describes: it can only run in Python."""


@dataclass(frozen=True)
class KernelCode:
    """A compiled kernel, and the workspace that it needs: ``fixed`` bytes and ``per_thread`` for each thread."""

    image: bytes
    fixed: int
    per_thread: int
    undecided: tuple[str, ...] = ()
    """The results that could not be shown to be stored whole, and why."""

    def workspace(self, threads: int) -> int:
        return self.fixed + threads * self.per_thread


class Timings:
    """Seconds by stage, summed over threads."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.seconds[name] += time.perf_counter() - start  # type: ignore[assignment]


class KernelCompiler:
    """The stages of a kernel for one machine.  Safe to use from several threads."""

    def __init__(self, machine: MachineModel, cpu: Cpu, cache: KernelCache, timings: Timings | None = None) -> None:
        self.machine = machine
        self.cpu = cpu
        self.cache = cache
        self.timings = timings or Timings()
        self._verify = config.read_flag("MINITVM_VERIFY")

    def scheduled(self, symbol: str, group: Function) -> Kernel:
        """The group as loops for this target, functions not yet spelled out."""
        with self.timings.stage("lower"):
            try:
                lowered = lower(group, symbol, self.machine)
            except CompilerError as error:
                raise NotLowered(error.message, where=error.where, hint=error.hint) from error
        with self.timings.stage("simplify"):
            return simplify(lowered)

    def kernel(self, symbol: str, group: Function) -> Kernel:
        """The group as loops that the emitter can spell."""
        scheduled = self.scheduled(symbol, group)
        with self.timings.stage("legalize"):
            kernel = legalize(scheduled, SPELLINGS)
        if self._verify:
            with self.timings.stage("verify"):
                verify_kernel(kernel)
        return kernel

    def llvm_ir(self, symbol: str, group: Function) -> str:
        return self._emit(self.kernel(symbol, group))

    def _emit(self, kernel: Kernel) -> str:
        with self.timings.stage("emit"):
            return emit(kernel, self.machine)

    def assembly(self, symbol: str, group: Function) -> str:
        return assembly(self.llvm_ir(symbol, group), self.cpu)

    def compile(self, symbol: str, group: Function) -> KernelCode:
        """Object code for the group, from the cache where it is there."""
        if not is_own(group):  # the key does not see a change of other people's sources; LLVM's output is kept
            return self._compile(symbol, group)
        key = cache_key("group", group_text(group), symbol, *self._versions())
        kept = self.cache.get(key)
        if kept is not None:
            return _unpack(kept)
        code = self._compile(symbol, group)
        self.cache.put(key, _pack(code))
        return code

    def _compile(self, symbol: str, group: Function) -> KernelCode:
        kernel = self.kernel(symbol, group)
        with self.timings.stage("coverage"):
            found = check_coverage(kernel)
        undecided = tuple(f"{c.buffer.name}: {c.reason}" for c in found if c.verdict is Verdict.UNDECIDED)
        workspace = plan_workspace(kernel)
        image = self.object_of(self._emit(kernel))
        return KernelCode(image, workspace.nbytes - workspace.thread_bytes, workspace.thread_bytes, undecided)

    def object_of(self, llvm_ir: str) -> bytes:
        """Object code of LLVM IR text, from the cache where it is there."""
        key = cache_key("llvm", llvm_ir, str(self.cpu), llvmlite.__version__)
        kept = self.cache.get(key)
        if kept is not None:
            return kept
        with self.timings.stage("llvm"):
            image = compile_object(llvm_ir, self.cpu)
        self.cache.put(key, image)
        return image

    def _versions(self) -> tuple[str, ...]:
        machine = {**vars(self.machine), "features": sorted(self.machine.features)}
        return (str(machine), str(self.cpu), llvmlite.__version__, source_fingerprint())


def _pack(code: KernelCode) -> bytes:
    return json.dumps([code.fixed, code.per_thread, code.undecided]).encode() + b"\n" + code.image


def _unpack(data: bytes) -> KernelCode:
    head, _, image = data.partition(b"\n")
    fixed, per_thread, undecided = json.loads(head)
    return KernelCode(image, fixed, per_thread, tuple(undecided))


def is_own(group: Function) -> bool:
    """Whether minitvm's own sources alone decide what the group's kernel looks like: its operators and templates."""
    ops = [call.op for call in calls(group.body) if isinstance(call.op, Op)]
    makers = [*(type(op) for op in ops), *(template for op in ops for template in TEMPLATES.find("llvm", op))]
    return all(maker.__module__.partition(".")[0] == "minitvm" for maker in makers)


@functools.cache
def source_fingerprint() -> str:
    """A hash of the sources that decide what a kernel looks like, so that a changed compiler misses the cache."""
    digest = hashlib.sha256()
    root = pathlib.Path(__file__).parents[1]
    for folder in ("ir", "codegen"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    for name in ("driver/kernels.py", "target.py"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def group_text(group: Function) -> str:
    """All that a group's kernel depends on, as text: operators, attributes, types, literals, who uses what."""
    number: dict[Expr, int] = {}
    lines = []
    for node in post_order(*group.params, group.body):
        number[node] = len(number)
        lines.append(f"{_label(node)} {[number[c] for c in children(node)]} {node.checked_type}")
    return "\n".join([*lines, f"result {number[group.body]}"])


def _label(node: Expr) -> str:
    match node:
        case Var():
            return "var"
        case Constant():
            return f"constant {hashlib.sha256(np.ascontiguousarray(node.value).tobytes()).hexdigest()}"
        case Call():
            return f"call {node.op!r} {node.op.name}" if not isinstance(node.op, Function) else "function"
        case TupleGetItem():
            return f"item {node.index}"
    return type(node).__name__
