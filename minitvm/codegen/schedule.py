"""Schedule steps: each is ``Kernel -> Kernel`` and computes the same in another order, or says why it cannot.

    kernel = split(kernel, "j", 8, tail="exact")
    kernel = vectorize(reorder(kernel, "k", "j_inner"), "j_inner")
    print(kernel)

Loops: :mod:`minitvm.codegen.schedule_loops`.  Memory: :mod:`minitvm.codegen.schedule_memory`.
"""

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

__all__ = [
    "bind",
    "cache_read",
    "cache_write",
    "compute_at",
    "find_loop",
    "fuse",
    "loops",
    "parallel",
    "reorder",
    "rfactor",
    "split",
    "tile",
    "unroll",
    "vectorize",
]
