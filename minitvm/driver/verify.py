"""What ``MINITVM_VERIFY`` asks of kernels: that their code computes what their operators mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from minitvm.driver.program import Program, read_program
from minitvm.errors import CompilerError
from minitvm.ir.decision import decide
from minitvm.ir.expr import Call, Function, Var
from minitvm.ir.node import describe_call
from minitvm.ir.visitor import calls
from minitvm.passes.compare import compare
from minitvm.runtime.graph import Artifact
from minitvm.runtime.instance import Instance
from minitvm.runtime.library import Library

Link = Callable[[Program], Artifact]
"""The artefact of a program whose kernels are compiled."""


def verify_code(symbol: str, group: Function, maker: str, link: Link) -> None:
    """Run one kernel and its operators' references on random inputs; :class:`CompilerError` where they differ.

    ``maker`` is what wrote its loops: a template, or the default nests over the compute rules.  Says what was
    compared; :class:`CompilerError`, too, where that is nothing.
    """
    instance: Instance = Library(link(_program_of(symbol, group)))["default"]()

    def run(inputs: list[Any]) -> Any:
        for name, value in zip(instance.input_names, inputs, strict=True):
            instance.assign(name, value)
        for step in instance.steps:
            step()
        return tuple(np.array(instance.value(head)) for head in instance.graph.heads)

    found = compare(group, run)
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


def _program_of(symbol: str, group: Function) -> Program:
    """The kernel alone, without the check that its result may stand for."""
    named = Function(group.params, group.body, {**group.attrs, "name": symbol}, span=group.span)
    params = [Var(p.name, p.type) for p in group.params]
    program = read_program(Function(params, Call(named, params)))
    nodes = tuple(replace(node, check="") for node in program.graph.nodes)
    return replace(program, graph=replace(program.graph, nodes=nodes))
