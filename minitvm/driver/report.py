"""What a build did, and every kernel's stages, made again on demand."""

from __future__ import annotations

from dataclasses import dataclass, field

from minitvm.codegen.lower import Lowering, lowering
from minitvm.driver.kernels import KernelCompiler, Timings
from minitvm.errors import CompilerError
from minitvm.ir.expr import Function, Module
from minitvm.ir.loop import Kernel
from minitvm.passes.instrument import PassInfo, PassInstrument


@dataclass(frozen=True)
class PassStep:
    """One run of a pass, with the module before and after it."""

    name: str
    before: Module
    after: Module


class Recorder(PassInstrument):
    """Keeps the module before and after every pass, for ``minitvm show``."""

    def __init__(self) -> None:
        self.steps: list[PassStep] = []
        self._open: list[Module] = []

    def run_before_pass(self, module: Module, info: PassInfo) -> None:
        self._open.append(module)

    def run_after_pass(self, module: Module, info: PassInfo) -> None:
        self.steps.append(PassStep(info.name, self._open.pop(), module))


@dataclass
class BuildReport:
    """What a build did: seconds by stage, and every kernel's stages, made again on demand."""

    timings: Timings
    compiler: KernelCompiler
    groups: dict[str, Function] = field(default_factory=dict)
    steps: list[PassStep] = field(default_factory=list)
    module: Module | None = None
    """The module after all passes; kept, as ``steps`` are, where the build was asked to ``trace``."""
    cache_hits: int = 0
    cache_misses: int = 0
    undecided: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By kernel, the results that could not be shown to be stored whole, and why."""

    @property
    def seconds(self) -> dict[str, float]:
        return dict(self.timings.seconds)

    def group(self, symbol: str) -> Function:
        """A kernel's group; :class:`CompilerError` where there is no such kernel."""
        if symbol not in self.groups:
            raise CompilerError(f"there is no kernel {symbol!r}", hint=f"kernels: {', '.join(self.groups)}")
        return self.groups[symbol]

    def lowering(self, symbol: str) -> Lowering:
        """What made the kernel's loops, and which templates declined."""
        return lowering(self.group(symbol), symbol, self.compiler.machine)

    def scheduled(self, symbol: str) -> Kernel:
        """The kernel's loops before legalization."""
        return self.compiler.scheduled(symbol, self.group(symbol))

    def kernel(self, symbol: str) -> Kernel:
        """The kernel's loops as they are emitted."""
        return self.compiler.kernel(symbol, self.group(symbol))

    def llvm_ir(self, symbol: str) -> str:
        return self.compiler.llvm_ir(symbol, self.group(symbol))

    def assembly(self, symbol: str) -> str:
        return self.compiler.assembly(symbol, self.group(symbol))
