"""Chapter 7: loops and schedules up to 80 % of peak.  Grade with: minitvm lab grade chapter7 THIS_FILE"""

from minitvm.codegen import schedule
from minitvm.codegen.backend import backend_of
from minitvm.ir.loop import Buffer, Kernel, Store, const, loop, seq
from minitvm.target import Target

MACHINE = backend_of(Target.parse("llvm"), 1).machine
"""``MACHINE.lanes("float32")`` floats are a vector, of which ``MACHINE.vector_registers`` are in registers."""


def matmul(m: int, k: int, n: int) -> Kernel:
    """7.1  A kernel named "matmul" over buffers a (m, k), b (k, n) and c (m, n) of float32: c = a @ b."""
    raise NotImplementedError


def in_lanes(kernel: Kernel) -> Kernel:
    """7.2  The plain kernel of a matrix product (loops i, j, r) with 16 neighbours of a row of the result at once."""
    raise NotImplementedError


def fast(kernel: Kernel) -> Kernel:
    """7.3  The same with a tile of sums in registers: 80 % of what one core can do.  96 x 192 times 192 x 384."""
    raise NotImplementedError
