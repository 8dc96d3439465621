"""Kernels beside their operators' references: what ``MINITVM_VERIFY`` asks of a build."""

from __future__ import annotations

from typing import Any

import numpy as np

from minitvm.errors import CompilerError
from minitvm.ir.decision import decide
from minitvm.ir.expr import Function, describe_call
from minitvm.ir.visitor import calls
from minitvm.passes.compare import Comparison, compare
from minitvm.runtime.instance import Instance


def verify_code(symbol: str, group: Function, maker: str, instance: Instance) -> None:
    """Run one kernel and its operators' references on random inputs; :class:`CompilerError` where they differ.

    ``maker`` is what wrote its loops: a template, or the default nests over the compute rules.  Says what was
    compared; :class:`CompilerError`, too, where that is nothing.
    """
    found = compare_code(group, instance)
    decide("verify", symbol, str(found), group.span)
    where = [line for call in calls(group.body) for line in describe_call(call)[:1]]
    if found.difference:
        raise CompilerError(
            f"kernel {symbol} ({maker}) does not compute what its operators mean: {found.difference}",
            where=where,
            hint="the first number is the operators' references', the second the kernel's, on random inputs",
        )
    if not found.agreed:
        reasons = [f"inputs that are {draw}: {why}" for draw, why in found.skipped.items()]
        raise CompilerError(f"kernel {symbol} cannot be compared with its operators' references", where=where + reasons)


def compare_code(group: Function, instance: Instance, **how: Any) -> Comparison:
    """A kernel alone, ready to run, beside its operators' references; ``how`` is :func:`compare`'s."""

    def run(inputs: list[Any]) -> Any:
        for name, value in zip(instance.input_names, inputs, strict=True):
            instance.assign(name, value)
        for step in instance.steps:
            step()
        return tuple(np.array(instance.value(head)) for head in instance.graph.heads)

    return compare(group, run, **how)
