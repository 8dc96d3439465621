"""Schedule steps: each is ``Kernel -> Kernel`` and computes the same in another order, or says why it cannot.

    kernel = split(kernel, "j", 8, tail="exact")
    kernel = vectorize(reorder(kernel, "k", "j_inner"), "j_inner")
    print(kernel)

This module is the door.  Steps that change loops are in :mod:`minitvm.codegen.schedule_loops` and, where these come
apart, :mod:`minitvm.codegen.schedule_parts`; those that change where values live in
:mod:`minitvm.codegen.schedule_memory` and :mod:`minitvm.codegen.schedule_stage`.  :class:`Steps` records them as lines
that can be printed and replayed.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from minitvm.codegen.loops import in_blocks
from minitvm.codegen.schedule_loops import (
    bind,
    find_loop,
    fuse,
    jam,
    loops,
    parallel,
    reorder,
    rfactor,
    split,
    unroll,
    vectorize,
)
from minitvm.codegen.schedule_memory import cache_read, cache_write, compute_at
from minitvm.codegen.schedule_parts import distribute, fission, partition, predicate, tile
from minitvm.codegen.schedule_stage import prefetch, stage
from minitvm.codegen.schedule_steps import Step, Steps, replay
from minitvm.doors import door
from minitvm.errors import UserCodeError, user_code
from minitvm.ir.loop import Kernel

__all__ = ["Step", "Steps", "apply", "bind", "cache_read", "cache_write", "compute_at", "distribute", "find_loop"]
__all__ += ["fission", "fuse", "jam", "loops", "parallel", "partition", "predicate", "prefetch", "reorder", "replay"]
__all__ += ["rfactor", "split", "stage", "tile", "title", "unroll", "vectorize"]

# --- schedules of one's own ------------------------------------------------------------------------------------

Schedule: TypeAlias = Callable[[Kernel], Kernel]
"""From a group's plain loops to those that are compiled; made of steps."""


@door
def verify_kernel(kernel: Kernel) -> None:
    """:class:`CompilerError` where a kernel's loops are not well-formed; nobody looks."""


def title(schedule: Schedule) -> str:
    return f"schedule {getattr(schedule, '__name__', schedule)}"


def apply(schedule: Schedule, kernel: Kernel) -> Kernel:
    """What a user's schedule makes of a kernel, long sums in blocks; it has the same parameters, and is well-formed."""
    where = [f"kernel: {kernel.name}"]
    with user_code(schedule, title(schedule), lambda: where):
        made = schedule(kernel)
    if not isinstance(made, Kernel) or (made.name, made.params) != (kernel.name, kernel.params):
        hint = "a schedule returns the kernel that it was given, as its steps made it"
        raise UserCodeError(f"{title(schedule)} returned {made!r}", where=where, hint=hint)
    verify_kernel(made)
    return replace(made, body=in_blocks(made.body))
