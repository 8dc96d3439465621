"""A generated call as the anchor of a fused group: something before it, something after it, by exact operations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from operator_cases import Accuracy, Case, Draw
from test_lower import as_function

from minitvm.ir.builder import call_op
from minitvm.ir.dtypes import STORED, carrier
from minitvm.ir.expr import Call, Expr, Function, Var
from minitvm.ir.types import TensorType, type_of


@dataclass(frozen=True)
class Group:
    """A function, what it is given, and what it must give."""

    function: Function
    arrays: list[np.ndarray]
    expected: tuple[np.ndarray, ...]
    accuracy: Accuracy


def group(call: Case, draw: Draw) -> Group:
    """The call alone, or with neighbours."""
    function, arrays = as_function(call)
    found = Group(function, arrays, call.reference(), call.accuracy)
    if arrays and arrays[0].ndim and draw.flag(3):
        found = _behind(found)
    if len(found.expected) == 1 and isinstance(found.function.body.checked_type, TensorType) and draw.flag():
        found = _before(found, draw)
    return found


_OPPOSITE = {"b": "logical_not", "i": "negative", "u": "bitwise_not", "f": "negative"}
"""What applied twice gives the same bits, by kind of dtype."""


def _turned(array: np.ndarray) -> np.ndarray:
    return np.asarray(np.negative(array) if array.dtype.kind in "if" else np.invert(array))


def _behind(found: Group) -> Group:
    """The first array arrives as its opposite, which the group turns round; stored numbers as what holds them."""
    array, (param, *others) = found.arrays[0], found.function.params
    if array.dtype.name in STORED:
        wide = array.astype(carrier(array.dtype.name))
        fresh = Var("wide", type_of(wide))
        body = _rebuilt(found.function.body, param, call_op("cast", fresh, dtype=array.dtype.name, saturate=False))
        return replace(found, function=Function([fresh, *others], body), arrays=[wide, *found.arrays[1:]])
    fresh = Var("turned", type_of(array))
    body = _rebuilt(found.function.body, param, call_op(_OPPOSITE[array.dtype.kind], fresh))
    return replace(found, function=Function([fresh, *others], body), arrays=[_turned(array), *found.arrays[1:]])


def _rebuilt(body: Expr, old: Expr, new: Expr) -> Expr:
    """The one call with another operand, also inside of a tuple."""
    if body is old:
        return new
    if isinstance(body, Call):
        return Call(body.op, [_rebuilt(a, old, new) for a in body.args])
    fields = getattr(body, "fields", None)
    return type(body)([_rebuilt(f, old, new) for f in fields]) if fields else body  # type: ignore[call-arg]


def _before(found: Group, draw: Draw) -> Group:
    """The result, no smaller than another tensor that is as large, a row, or one number; and turned round.

    What is only stored becomes what holds it.
    """
    (want,) = found.expected
    if want.dtype.name in STORED:
        wide = carrier(want.dtype.name)
        body = call_op("cast", found.function.body, dtype=wide)
        return replace(found, function=Function(found.function.params, body), expected=(want.astype(wide),))
    if not found.accuracy.scale:  # what is relative to the largest element needs that element
        found = _bounded(found, draw)
    (want,) = found.expected
    body = call_op(_OPPOSITE[want.dtype.kind], found.function.body)
    return replace(found, function=Function(found.function.params, body), expected=(_turned(want),))


def _bounded(found: Group, draw: Draw) -> Group:
    (want,) = found.expected
    shape = draw.choice((want.shape, want.shape[-1:], ()))
    other = draw.array(shape, want.dtype.name, special="none")
    bound = Var("bound", type_of(other))
    function = Function([*found.function.params, bound], call_op("maximum", found.function.body, bound))
    accuracy = replace(found.accuracy, signs=False)
    return Group(function, [*found.arrays, other], (np.asarray(np.maximum(want, other)),), accuracy)
