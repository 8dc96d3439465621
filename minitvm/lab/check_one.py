"""One pass, one kernel, one operator: parts of a check for who writes them, and for the files that it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minitvm.errors import PassError
from minitvm.ir.builder import call_op
from minitvm.ir.expr import Function, Module, Var
from minitvm.ir.types import TensorType, Type
from minitvm.lab.check_all import REDUCTION, Checking, Source, as_module
from minitvm.lab.check_kernels import TEAMS, prove_kernel
from minitvm.lab.check_models import Setting
from minitvm.lab.check_passes import Prover, named, prove, running
from minitvm.lab.check_result import Checked
from minitvm.passes import Pass, Rule, rule_pass
from minitvm.runtime.native import whole_teams

Rewriter = Pass | Rule | Sequence[Pass | Rule]


def check_pass(
    model: Source,
    the_pass: str | Rewriter,
    *,
    opt_level: int = 3,
    constants: Mapping[str, np.ndarray] | None = None,
    reduction: float = REDUCTION,
    **context: Any,
) -> Checked:
    """Checks that a pass keeps a module's results: what differs is traced to a rule, and made small.

    A pass of the default pipeline by its name (``FoldConstant (run 2)``: the second time), or pass objects and rules,
    which run whatever their level.  ``context`` goes to :class:`PassContext`.
    """
    module = as_module(model, constants=constants)
    checking = Checking(module, Setting(level=opt_level), reduction)
    if not isinstance(the_pass, str):
        steps: Sequence[Pass | Rule] = [the_pass] if isinstance(the_pass, (Pass, Rule)) else the_pass
        for step in steps:
            one = rule_pass(step, name=step.name) if isinstance(step, Rule) else step
            checking.prove(running(one, opt_level, **context), module, f"check_pass(MODULE, {checking.named(step)}")
        return checking.checked
    pipeline = checking.pipeline(opt_level)
    _, prover = prove(pipeline, module, Prover(the_pass))
    proofs = [proof for proof in prover.proofs if named(proof.place) == the_pass]
    for proof in proofs:
        checking.add_pass(proof, pipeline, "passes", f"check_pass(MODULE, {the_pass!r}, opt_level={opt_level}")
    if not proofs:
        checking.unchanged(the_pass)
    return checking.checked


def check_kernel(
    model: Source,
    *,
    target: str = "llvm",
    threads: int | Sequence[int] = TEAMS,
    constants: Mapping[str, np.ndarray] | None = None,
    reduction: float = REDUCTION,
    name: str = "kernel",
) -> Checked:
    """Checks that a function, compiled as one kernel, computes what its operators mean, on every number of
    ``threads``."""
    module = as_module(model, constants=constants)
    checking = Checking(module, Setting(target), reduction)
    group = Function(module.main.params, module.main.body, {"primitive": 1, "name": name})
    teams = (threads,) if isinstance(threads, int) else tuple(threads)
    with whole_teams(*teams):
        checking.add_kernel(name, prove_kernel(name, group, checking.compiler, teams))
    return checking.checked


def check_operator(name: str, *types: str | Type, reduction: float = REDUCTION, **attributes: Any) -> Checked:
    """Checks that an operator's loops compute what its reference does, for arguments of these types.

    Types as in a module's text, ``"Tensor[(2, 3), float32]"``, or objects.  Its reference is held against the type
    that ``infer`` found.
    """
    params = [Var(f"x{i}", _type(t)) for i, t in enumerate(types)]
    body = call_op(name, *params, **attributes)
    return check_kernel(Module(Function(params, body)), reduction=reduction, name=name.replace(".", "_"))


def _type(given: str | Type) -> Type:
    if not isinstance(given, str):
        return given
    from minitvm.ir.reader import Reader

    found = Reader(given, None).type()
    if not isinstance(found, TensorType):
        raise PassError(f"{given} is not the type of a tensor")
    return found
