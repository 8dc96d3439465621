"""What runs in Python instead of in kernels: why, and the warning of it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from minitvm.driver.program import Program
from minitvm.errors import CompilerError
from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Function
from minitvm.ir.types import Type
from minitvm.runtime.artifact import Host, HostCall
from minitvm.runtime.graph import HostStep
from minitvm.runtime.hosts import branch_functions, operators_of


class HostCallWarning(UserWarning):
    """Part of a model runs in Python instead of in compiled kernels."""


def host_calls_of(program: Program, hosts: Mapping[str, Host], refused: Mapping[str, str]) -> tuple[HostCall, ...]:
    """The host calls of a program and, after each, those inside its branches."""
    found: list[HostCall] = []
    for node in program.graph.nodes:
        if isinstance(node.step, HostStep):
            host = hosts[node.name]
            reason = refused.get(str(host.function.attrs.get("symbol"))) or _reason(host.function)
            found.append(HostCall(operators_of(host.function), reason, node.name, node.spans))
            decide("placement", found[-1].op, Declined(f"no kernel, since {reason}"), node.spans)
            for branch in host.branches.values():
                found.extend(branch.host_calls)
    return tuple(found)


def _reason(function: Function) -> str:
    """Why a call stayed outside of the kernels."""
    types: list[Type] = [function.ret_type, *(p.type for p in function.params)]
    if branch_functions(function):
        return "control flow that depends on data; its branches are compiled"
    if not all(t.is_static for t in types):
        return "a shape that is known only when the model runs"
    return "no compute rule"


def announce(found: tuple[HostCall, ...], strict: bool) -> None:
    """Warn of host calls once, or refuse them."""
    if not found:
        return
    lines = list(dict.fromkeys(str(call) for call in found))
    shown = [*lines[:8], *([f"... and {len(lines) - 8} more"] if len(lines) > 8 else [])]
    what = f"{len(found)} operator{'s' if len(found) > 1 else ''}"
    if strict:
        message = f"{what} would run in Python instead of in kernels"
        raise CompilerError(message, where=shown, hint="build with strict=False to allow it")
    message = f"{what} run{'s' if len(found) == 1 else ''} in Python instead of in kernels"
    warnings.warn(
        "\n  | ".join([message, *shown]) + "\n  = hint: library.host_calls lists them",
        HostCallWarning,
        stacklevel=4,
    )
