"""LLVM without its loop strength reduction, for as long as minitvm compiles.

The pass is a third of what LLVM takes for a kernel, more than proportionally for large loops.  It looks for the
cheapest way to count addresses up.  The emitter's loops have them nearly so: what a loop does not change stands before
it, and neighbouring elements are constants away from one register.  What is left is an addition an iteration.

LLVM knows no such wish for one module, only for the process, where others (Numba) compile, too: it holds for as long as
any thread of minitvm's is at it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding

llvm: Any = llvmlite.binding  # has no types

_lock = threading.Lock()
_inside = 0


@contextmanager
def plain_addresses() -> Iterator[None]:
    """What LLVM makes inside is made without the pass, whoever asks for it."""
    _enter(1)
    try:
        yield
    finally:
        _enter(-1)


def _enter(more: int) -> None:
    global _inside
    with _lock:
        was, _inside = _inside, _inside + more
        if (was > 0) != (_inside > 0):
            llvm.set_option("minitvm", f"-disable-lsr={str(_inside > 0).lower()}")
