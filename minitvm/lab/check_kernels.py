"""The part ``kernels`` of a check: every kernel alone, on several numbers of threads, beside its references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minitvm.codegen.lower import plain
from minitvm.driver.compile import alone
from minitvm.driver.kernels import KernelCompiler, NotLowered
from minitvm.driver.report import KernelReport
from minitvm.driver.verify import compare_code
from minitvm.errors import MiniTVMError
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Function
from minitvm.ir.loop import Kernel
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.op import Op
from minitvm.ir.types import tensor_fields
from minitvm.ir.visitor import calls, sizes_of
from minitvm.passes.compare import Comparison, compare
from minitvm.passes.draws import DRAWS, Draw
from minitvm.passes.roundings import Results
from minitvm.runtime.instance import Instance
from minitvm.runtime.library import Library

TEAMS = (1, 2, 3)
"""Numbers of threads that kernels run on."""
_WORTH_A_TEAM = 1.0
"""Seconds: a kernel is run on as many threads as it is asked to."""


@dataclass
class KernelProof:
    """What a kernel was compared on, and what is wrong with it."""

    symbol: str
    group: Function
    threads: int = 1
    found: Comparison | None = None
    error: str = ""
    draw: Draw | None = None

    @property
    def is_wrong(self) -> bool:
        return bool(self.error)


def with_team(library: Library, threads: int) -> Instance:
    """A running copy on that many threads, however small the work is."""
    artifact = library.artifact
    metadata = {s: {**m, "seconds": _WORTH_A_TEAM} for s, m in artifact.metadata.items()}
    found: Instance = Library(replace(artifact, metadata=metadata))["default"](None, threads)
    return found


def prove_kernel(
    symbol: str, group: Function, compiler: KernelCompiler, teams: Sequence[int] = TEAMS, draw: Draw | None = None
) -> KernelProof | Declined:
    """One kernel on each number of threads, until one is wrong; or why it cannot be compared.

    ``draw``: the one that it is compared on, instead of all.
    """
    if sizes_of(group):
        return Declined("its sizes are known only when it runs")
    try:
        code = compiler.compile(symbol, group)
    except NotLowered as error:
        return Declined(f"it runs in Python: {error.message}")
    except MiniTVMError as error:
        return KernelProof(symbol, group, error=f"it cannot be compiled: {error.message}")
    library, proof = alone(symbol, group, code, compiler), KernelProof(symbol, group)
    known: Mapping[Draw, Results] | None = None
    for threads in teams:
        proof = _on(threads, library, proof, [draw] if draw else DRAWS, known)
        if proof.is_wrong:
            return proof
        known = proof.found.expected if proof.found else known
    return proof


def _on(
    threads: int, library: Library, proof: KernelProof, draws: Sequence[Draw], known: Mapping[Draw, Results] | None
) -> KernelProof:
    try:
        found = compare_code(proof.group, with_team(library, threads), draws=draws, known=known)
    except MiniTVMError as error:
        return replace(proof, threads=threads, error=f"it raises: {error.message}")
    return replace(proof, threads=threads, found=found, error=found.difference, draw=found.draw)


# --- who is wrong ---------------------------------------------------------------------------------------------


def maker_of(proof: KernelProof, compiler: KernelCompiler) -> str:
    """The maker of the loops that are wrong: a compute rule, a template or schedule, or who made code of them."""
    report = KernelReport(proof.symbol, proof.group, compiler)
    names = " and ".join(dict.fromkeys(_name(call) for call in calls(proof.group.body)))
    try:
        if report.template == "call of a library":
            return "the call of a library"
        basic = _in_loops(proof, plain(proof.group, proof.symbol))
        if basic:
            return f"the compute rule of {names}"
    except MiniTVMError:  # an operator without compute rules
        pass
    wrong = _in_loops(proof, report.loops)
    if not wrong and not _in_loops(proof, report.legalized):
        return f"code generation: the loops of {report.template} are right in the interpreter"
    return f"{report.template}" if wrong else f"legalization of the loops of {report.template}"


def _name(call: Call) -> str:
    return call.op.name if isinstance(call.op, Op) else "a function"


def _in_loops(proof: KernelProof, kernel: Kernel) -> str:
    """What is wrong in the loop interpreter, which checks races too; nothing where nothing is."""

    shapes = [t.static_shape for t in tensor_fields(proof.group.ret_type)]

    def run(inputs: list[Any]) -> Any:
        given = [a.reshape(b.shape) for a, b in zip(inputs, kernel.inputs, strict=True)]  # schedules flatten axes
        found = run_kernel(kernel, *given, check_races=True)
        return tuple(result.reshape(shape) for result, shape in zip(found, shapes, strict=True))

    try:
        return compare(proof.group, run, draws=[proof.draw] if proof.draw else DRAWS[:2]).difference
    except MiniTVMError as error:
        return error.message
