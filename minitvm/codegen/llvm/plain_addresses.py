"""LLVM without its loop strength reduction, for as long as minitvm compiles a large module.

The pass is a third of what LLVM takes for a kernel, more than proportionally for large loops.  It looks for the
cheapest way to count addresses up.  The emitter's loops have them nearly so: what a loop does not change stands before
it, and neighbouring elements are constants away from one register.  What is left is an addition an iteration.  Kernels
that only move numbers are small, cost the pass little, and take up to 1.7 times as long without it.

LLVM knows no such wish for one module, only for the process, where others (Numba) compile, too: it holds for as long as
any thread of minitvm's is at it.  Modules that want the pass wait until then.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding

llvm: Any = llvmlite.binding  # has no types

LARGE = 350
"""Instructions of a module from which it is large; its comments and what it says for debuggers do not count."""

_changed = threading.Condition()
_inside = {True: 0, False: 0}
"""How many threads compile without the pass, and how many with it."""


def _begin_anew() -> None:
    """In a forked process, which has none of the threads that were compiling."""
    global _changed
    _changed = threading.Condition()
    for plain in (True, False):
        _count(plain, -_inside[plain])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


@contextmanager
def addresses_of(llvm_ir: str) -> Iterator[None]:
    """What LLVM makes inside of a large module is made without the pass, whoever asks for it."""
    plain = llvm_ir.count("\n  ") >= LARGE  # instructions are indented
    with _changed:
        _changed.wait_for(lambda: not _inside[not plain])
        _count(plain, 1)
    try:
        yield
    finally:
        with _changed:
            _count(plain, -1)
            _changed.notify_all()


def _count(plain: bool, more: int) -> None:
    was = _inside[plain]
    _inside[plain] += more
    if plain and (was > 0) != (_inside[plain] > 0):
        llvm.set_option("minitvm", f"-disable-lsr={str(_inside[plain] > 0).lower()}")
