"""Chapter 8: code for CPU and GPU, the executor.  Grade with: minitvm lab grade chapter8 THIS_FILE"""

from minitvm.codegen import schedule
from minitvm.ir.loop import Binary, Const, For, Kernel, Load, LoopExpr, LoopKind, Store


def llvm_of(kernel: Kernel) -> str:
    """8.1  LLVM IR for a kernel ``for i in n: out[i] = ...`` over float32: ``define void @NAME(ptr, ptr, ...)``.

    The value is made of ``Load(buffer, (i,))``, ``Const`` and ``Binary`` with op add, sub, mul or div.
    """
    raise NotImplementedError


def on_gpu(kernel: Kernel) -> Kernel:
    """8.2  The loop i of such a kernel as blocks of 128 threads, whatever its extent is."""
    raise NotImplementedError


def plan_memory(steps: list[tuple[str, list[str], int]], keep: set[str]) -> dict[str, int]:
    """8.3  Where in one piece of memory each result lies, in bytes from its start.

    A step is (name, names of what it reads, bytes of its result), in the order of the run.  A result lives from its
    step to the last one that reads it; those in ``keep`` live to the end.  Results that live at the same time may not
    overlap, nor may a step's result and what it reads.  What nobody made (an input) is not planned.
    """
    raise NotImplementedError
