"""Passes of minitvm's own infer the types of a module that has none yet, as Relay's do by what they require: in
scripts of TVM's."""

from __future__ import annotations

import contextlib

from minitvm.errors import TypeInferenceError
from minitvm.ir.expr import Module
from minitvm.passes import InferType, Sequential
from minitvm.passes.manager import Pass, PassContext
from minitvm.scopes.passes import OverScopes

_plain_consume = Pass.consume


def _asks_for_types(step: Pass) -> bool:
    home = type(step).__module__
    return home.startswith(("minitvm.passes.", "minitvm.tvm.")) and not isinstance(step, (Sequential, OverScopes))


def _consume(step: Pass, box: list[Module]) -> Module:
    """Runs a pass over a module with types; over one whose types cannot be found as it is."""
    functions = box[-1].functions.values()
    if any(function.checked_type is None for function in functions) and _asks_for_types(step):
        with contextlib.suppress(TypeInferenceError):
            box[-1] = InferType().transform(box[-1], PassContext.current())
    return _plain_consume(step, box)


def install() -> None:
    """Has all passes do so."""
    setattr(Pass, "consume", _consume)  # noqa: B010  (a method, to type checkers)
