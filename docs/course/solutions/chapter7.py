"""Solutions of chapter 7."""

from minitvm.codegen import schedule
from minitvm.codegen.backend import backend_of
from minitvm.ir.loop import Buffer, Kernel, Store, const, loop, seq
from minitvm.target import Target


def matmul(m: int, k: int, n: int) -> Kernel:
    a, b, c = Buffer("a", (m, k), "float32"), Buffer("b", (k, n), "float32"), Buffer("c", (m, n), "float32")

    def element(i, j):
        zero = Store(c, (i, j), const(0, "float32"))
        return seq(zero, loop(k, lambda r: Store(c, (i, j), c[i, j] + a[i, r] * b[r, j]), name="r"))

    return Kernel("matmul", (a, b, c), loop(m, lambda i: loop(n, lambda j: element(i, j), name="j"), name="i"))


def in_lanes(kernel: Kernel) -> Kernel:
    kernel = schedule.split(kernel, "j", 16, tail="exact")
    return schedule.vectorize(kernel, "j_inner")


MACHINE = backend_of(Target.parse("llvm"), 1).machine
LANES = MACHINE.lanes("float32")


def fast(kernel: Kernel) -> Kernel:
    rows = 8 if MACHINE.vector_registers >= 32 else 4  # two vectors of sums in each row, and some registers are left
    kernel = schedule.tile(kernel, "i", "j", rows, 2 * LANES, tail="exact")
    kernel = schedule.reorder(kernel, "j_outer", "i_outer")
    kernel = schedule.vectorize(kernel, "j_inner")
    return schedule.jam(kernel, "i_inner")
