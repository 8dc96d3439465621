"""Schedule steps: each is ``Kernel -> Kernel`` and computes the same in another order, or says why it cannot.

    kernel = split(kernel, "j", 8, tail="exact")
    kernel = vectorize(reorder(kernel, "k", "j_inner"), "j_inner")
    print(kernel)

Loops: :mod:`minitvm.codegen.schedule_loops`.  Memory: :mod:`minitvm.codegen.schedule_memory`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from minitvm.codegen.schedule_loops import (
    bind,
    find_loop,
    fuse,
    loops,
    parallel,
    reorder,
    rfactor,
    split,
    tile,
    unroll,
    vectorize,
)
from minitvm.codegen.schedule_memory import cache_read, cache_write, compute_at
from minitvm.errors import UserCodeError, user_code
from minitvm.ir.loop import Kernel
from minitvm.ir.loop.verify import verify_kernel

__all__ = ["apply", "bind", "cache_read", "cache_write", "compute_at", "find_loop", "fuse", "loops", "parallel"]
__all__ += ["reorder", "rfactor", "split", "tile", "title", "unroll", "vectorize"]

Schedule: TypeAlias = Callable[[Kernel], Kernel]
"""From a group's plain loops to those that are compiled; made of steps."""


def title(schedule: Schedule) -> str:
    return f"schedule {getattr(schedule, '__name__', schedule)}"


def apply(schedule: Schedule, kernel: Kernel) -> Kernel:
    """What a user's schedule makes of a kernel; it has the same parameters, and is well-formed."""
    where = [f"kernel: {kernel.name}"]
    with user_code(schedule, title(schedule), lambda: where):
        made = schedule(kernel)
    if not isinstance(made, Kernel) or (made.name, made.params) != (kernel.name, kernel.params):
        hint = "a schedule returns the kernel that it was given, as its steps made it"
        raise UserCodeError(f"{title(schedule)} returned {made!r}", where=where, hint=hint)
    verify_kernel(made)
    return made
