"""Where the memory that a kernel needs for itself lies inside the workspace it is given."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from minitvm.ir.loop import Alloc, Buffer, For, If, Kernel, Seq, Stmt
from minitvm.ir.loop.affine import storage_size

STACK_LIMIT = 64 * 1024
"""``local`` buffers beyond this many bytes go to the workspace: a thread's stack is small."""

_ALIGN = 64


@dataclass(frozen=True)
class Workspace:
    """``offsets``: bytes from the workspace's start.  Buffers in ``per_thread`` lie ``thread * thread_bytes`` further.

    ``nbytes`` is what to allocate for the number of threads that the plan was made for; offsets do not depend on it.
    """

    offsets: dict[Buffer, int]
    nbytes: int
    per_thread: frozenset[Buffer] = frozenset()
    thread_bytes: int = 0


def buffer_bytes(buffer: Buffer) -> int:
    return storage_size(buffer) * np.dtype(buffer.dtype).itemsize


def plan_workspace(kernel: Kernel, threads: int = 1) -> Workspace:
    """Offsets of the kernel's ``global`` and ``shared`` allocations and of ``local`` ones too large for the stack.

    Global buffers never overlap: without a barrier a slow thread may still read one while another writes the next.
    A thread's own buffers overlap where they do not live at the same time.
    """
    plan = _Plan()
    plan.walk(kernel.body, 0)
    shared_start = plan.global_bytes
    offsets = plan.globals | {buffer: shared_start + at for buffer, at in plan.shared.items()}
    return Workspace(offsets, shared_start + threads * plan.shared_bytes, frozenset(plan.shared), plan.shared_bytes)


@dataclass
class _Plan:
    globals: dict[Buffer, int] = field(default_factory=dict)
    shared: dict[Buffer, int] = field(default_factory=dict)
    global_bytes: int = 0
    shared_bytes: int = 0

    def walk(self, stmt: Stmt, depth: int) -> None:
        """``depth``: bytes of the thread's own buffers that are alive here."""
        match stmt:
            case For(_, _, body):
                self.walk(body, depth)
            case Seq(stmts):
                for part in stmts:
                    self.walk(part, depth)
            case If(_, then, orelse):
                self.walk(then, depth)
                if orelse is not None:
                    self.walk(orelse, depth)
            case Alloc(buffer, body):
                self.walk(body, self._place(buffer, depth))

    def _place(self, buffer: Buffer, depth: int) -> int:
        size = -(-buffer_bytes(buffer) // _ALIGN) * _ALIGN
        if buffer.scope == "global":
            if buffer not in self.globals:
                self.globals[buffer] = self.global_bytes
                self.global_bytes += size
        elif buffer.scope == "shared" or size > STACK_LIMIT:
            depth = max(depth, self.shared.get(buffer, 0))
            self.shared[buffer] = depth
            depth += size
            self.shared_bytes = max(self.shared_bytes, depth)
        return depth
