"""The loop interpreter as a back end: whole models run on what the loop IR means (``runtime/interpreter.py``).

Kernels are legalized for a machine that has no functions at all.
"""

from minitvm.codegen.backend import Backend, Launches, Workspace, register
from minitvm.ir.loop.verify import verify_kernel
from minitvm.runtime.graph import CpuTag
from minitvm.runtime.interpreter import Interpreter, to_bytes
from minitvm.target import MachineModel


@register
class InterpBackend(Backend):
    kind = "interp"
    code = Interpreter
    machine = MachineModel(vector_bytes=32, vector_registers=16)
    made_for = CpuTag("", "interpreter", ())

    def workspace(self, launches: Launches) -> Workspace:
        """None: the interpreter has memory of its own."""
        return Workspace({}, 0)

    def source(self, launches: Launches) -> Launches:
        return launches

    def image(self, source: Launches) -> bytes:
        for kernel in source.kernels:
            verify_kernel(kernel)
        return to_bytes(source.params, source.kernels)
