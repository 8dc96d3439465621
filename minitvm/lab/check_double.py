"""A function in float64: what rounding alone makes of it in float32 is then known, and no tolerance need be guessed."""

from __future__ import annotations

from typing import Any

import numpy as np

from minitvm.errors import MiniTVMError
from minitvm.ir.attributes import attributes_of
from minitvm.ir.decision import Declined
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Constant, Expr, Function, Var
from minitvm.ir.op import Op
from minitvm.ir.types import TensorType, TupleType, Type
from minitvm.ir.visitor import as_function, rewrite
from minitvm.passes.compare import Comparison
from minitvm.passes.roundings import Results, beyond_roundings, flatten

EXACT = 1e-9
"""Of the largest element: what two functions that mean the same may differ by in float64."""
FAR = 64.0
"""Times what a function's open roundings move its results."""
MARGIN = 4.0
"""How many times the error of the model's own float32 evaluation a compiled one may have, which rounds elsewhere."""


def widened(function: Function) -> Function | Declined:
    """The function with float64 wherever it has float32; or why there is none."""

    def visit(old: Expr, new: Expr) -> Expr:
        if isinstance(new, Var):
            return Var(new.name, _wide_type(new.type), span=new.span)
        if isinstance(new, Constant) and new.value.dtype == np.float32:
            return Constant(new.value.astype(np.float64), new.name, span=new.span)
        if isinstance(new, Call) and isinstance(new.op, Function):
            return Call(as_function(rewrite(new.op, visit)), new.args, span=new.span)
        if isinstance(new, Call) and isinstance(new.op, Op):
            return _wide_call(new, new.op)
        return new

    try:
        return as_function(rewrite(function, visit))
    except (MiniTVMError, TypeError, ValueError, AssertionError) as error:
        return Declined(f"it has no form in float64: {getattr(error, 'message', error)}")


def _wide_type(type_: Type) -> Type:
    if isinstance(type_, TupleType):
        return TupleType(tuple(map(_wide_type, type_.fields)))
    return type_.with_dtype("float64") if isinstance(type_, TensorType) and type_.dtype == "float32" else type_


def _wide_call(call: Call, op: Op) -> Expr:
    named = {n: "float64" for n in attributes_of(type(op)) if getattr(op, n) == "float32"}
    return Call(op.with_attributes(**named), call.args, span=call.span) if named else call


def _wide_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_wide_value, value))
    return value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype == np.float32 else value


def evaluated(function: Function, inputs: list[Any]) -> Results | Declined:
    """The results in float64."""
    wide = widened(function)
    if isinstance(wide, Declined):
        return wide
    try:
        return flatten(evaluate(wide, *map(_wide_value, inputs)))
    except MiniTVMError as error:
        return Declined(f"it cannot be computed in float64: {error.message}")


def error_of(found: Results, exact: Results) -> float:
    """The largest difference, relative to the largest element of its result; infinite where something else is off."""
    if [f.shape for f in found] != [e.shape for e in exact]:
        return float("inf")
    return max(map(_error, found, exact), default=0.0)


def _error(found: np.ndarray, exact: np.ndarray) -> float:
    have, want = found.astype(np.float64), exact.astype(np.float64)
    finite = np.isfinite(want)
    if not np.array_equal(np.isfinite(have), finite):
        return float("inf")
    scale = float(np.abs(want[finite]).max(initial=0)) or 1.0
    return float(np.abs(have[finite] - want[finite]).max(initial=0)) / scale


def excuse(exact: Results | Declined, own: Results, found: Results) -> str:
    """The reason why a difference is the model's and not the compiler's: nothing where it is not, or nobody knows.

    ``own`` are the results of the operators' references in the model's own dtypes, ``found`` the others.
    """
    if isinstance(exact, Declined):
        return ""
    theirs, ours = error_of(own, exact), error_of(found, exact)
    if not np.isfinite(theirs) or ours > MARGIN * theirs:
        return ""
    return (
        f"against float64 it is off by {ours:.1e} of the largest element, and the model's own operators in its own "
        f"dtypes by {theirs:.1e}: roundings decide this result"
    )


def same_in_double(before: Function, after: Function, inputs: list[Any], given: list[Any]) -> str:
    """The reason why a difference between two functions is rounding alone: they are equal in float64.  Nothing where
    they are not, or nobody knows."""
    one, other = evaluated(before, inputs), evaluated(after, given)
    if isinstance(one, Declined) or isinstance(other, Declined):
        return ""
    apart = error_of(other, one)
    return f"in float64 both are equal to {apart:.1e} of the largest element: roundings decide it" * (apart <= EXACT)


def is_far(function: Function, found: Comparison | None) -> bool:
    """True if results differ by more than the function's own open roundings explain: then no excuse holds, as the
    operators of IEEE 754 have one result.  ``(x + c) - c`` is x in float64, and rounds in float32."""
    if found is None or found.draw not in found.results:
        return False
    results, own = found.results[found.draw], found.expected[found.draw]
    return bool(beyond_roundings(function, found.inputs, results, own, margin=FAR))
