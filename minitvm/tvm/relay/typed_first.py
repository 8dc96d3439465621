"""Passes of minitvm's own infer the types of a module that has none yet, as Relay's do by what they require: in
scripts of TVM's."""

from __future__ import annotations

import contextlib

from minitvm.errors import TypeInferenceError
from minitvm.ir.expr import Module
from minitvm.passes import InferType, Sequential
from minitvm.passes.manager import PREPARE, Pass, PassContext
from minitvm.scopes.passes import OverScopes


def _asks_for_types(step: Pass) -> bool:
    home = type(step).__module__
    return home.startswith(("minitvm.passes.", "minitvm.tvm.")) and not isinstance(step, (Sequential, OverScopes))


def _with_types(step: Pass, box: list[Module]) -> None:
    """Puts a module with types in place of one without; one whose types cannot be found stays as it is."""
    functions = box[-1].functions.values()
    if any(function.checked_type is None for function in functions) and _asks_for_types(step):
        with contextlib.suppress(TypeInferenceError):
            box[-1] = InferType().transform(box[-1], PassContext.current())


def install() -> None:
    """Has all passes do so."""
    if _with_types not in PREPARE:
        PREPARE.append(_with_types)
