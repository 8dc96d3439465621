"""Values of shapes: what small tensors of whole numbers and conditions are, whatever the inputs' sizes.

Exporters compute shapes in the graph: ``Shape``, ``Gather``, ``Mul``, ``Concat``, then ``Reshape``.  One abstract
evaluation gives such a tensor an array of :data:`Dim` (numbers and polynomials over the inputs' dimensions), of
``bool``, or, between a ``Cast`` to floats and the one back, of :class:`Quotient`.  An operator that only moves
elements is its own ``reference`` over these arrays; one that computes has a row in ``_ELEMENTS`` or ``_WHOLE``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np

from minitvm.errors import MiniTVMError
from minitvm.ir.builder import call_op
from minitvm.ir.dims import (
    Dim,
    Undecided,
    facts,
    forget_since,
    is_equal,
    is_less,
    larger_here,
    measure,
    product,
    smaller_here,
    truncating_divide,
)
from minitvm.ir.expr import Call, Constant, Expr, Tuple, TupleGetItem
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops.tensor import NdArraySize, ShapeOf
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import children, post_order

MOST_ELEMENTS = 4096
"""Of a tensor whose values are looked at: shapes, positions, masks of axes; what is larger is data."""

_EXACT = 1 << 16
"""Whole numbers below it are exact in float32, times what :func:`_quotient_of` takes and over whole numbers too."""


@dataclass(frozen=True)
class Quotient:
    """A float that is a dimension over a whole number: ``Cast(n) * 0.5``."""

    above: Dim
    below: int

    @property
    def floor(self) -> Dim:
        return self.above // self.below

    @property
    def ceil(self) -> Dim:
        return -(-self.above // self.below)


Known: TypeAlias = Mapping[Expr, np.ndarray]
"""The values of expressions that are known already."""
Element: TypeAlias = "Dim | bool | Quotient"


class NoShapeValue(Exception):
    """Something else than the inputs' sizes decides."""


def shape_value(expr: Expr, known: Known) -> np.ndarray | None:
    """The value of a tensor that follows from sizes alone, an array of :data:`Dim` or of ``bool``; ``None`` where
    something else decides."""
    found: dict[Expr, Any] = {}
    before = facts()
    try:
        for node in post_order(expr, operands=lambda e: () if _is_size(e) or e in known else children(e)):
            found[node] = _value(node, found, known)
    except (NoShapeValue, Undecided, TypeError, ValueError, IndexError, KeyError, MiniTVMError):
        forget_since(before)
        return None
    value = found[expr]
    if not isinstance(value, np.ndarray) or any(isinstance(e, Quotient) and e.below != 1 for e in value.flat):
        return None
    return _each(lambda e: e.above if isinstance(e, Quotient) else e, value)


MOST_MEASURED = 16
"""Elements of a tensor whose values a run measures."""


def measured_value(expr: Expr, known: Known, signed: bool = False) -> np.ndarray | None:
    """The value with a dimension that a run measures for each whole number that nothing else says; for one that may be
    less than 0 two, of which one is 0."""
    before = facts()
    measured: dict[Expr, Any] = {}
    value = _in_part(expr, known, measured, signed)
    if any(one is not None for one in measured.values()):  # what is below those does not matter, nor what it decides
        forget_since(before)
        value = _in_part(expr, known, measured, signed)
    if not isinstance(value, np.ndarray) or any(isinstance(e, Quotient) for e in value.flat):
        return None
    return value


def _in_part(expr: Expr, known: Known, measured: dict[Expr, Any], signed: bool) -> Any:
    """A value where those that are ``measured`` are known; more of them are put there."""
    most = min(expr.tensor_type.size, MOST_MEASURED) if expr.tensor_type.is_static else 0
    cut = {node for node, value in measured.items() if value is not None}
    found: dict[Expr, Any] = {}
    for node in post_order(expr, operands=lambda e: () if _is_size(e) or e in known or e in cut else children(e)):
        try:
            if any(found[child] is None for child in children(node) if child in found):
                raise NoShapeValue("data")
            found[node] = measured[node] if node in cut else _value(node, found, known)
        except (NoShapeValue, Undecided, TypeError, ValueError, IndexError, KeyError, MiniTVMError):
            found[node] = measured[node] = _measured(node, most, signed)
    return found[expr]


def _measured(node: Expr, most: int, signed: bool) -> np.ndarray | None:
    """Of a tensor of no more elements than are asked for: what reduces many is measured, not they."""
    type_ = node.type
    if not isinstance(type_, TensorType) or not type_.is_static or np.dtype(type_.dtype).kind not in "iu":
        return None
    if type_.size > most:
        return None
    made = np.empty(type_.static_shape, object)
    for number, place in enumerate(np.ndindex(made.shape)):
        one = partial(element, node, number)
        if signed:
            above, below = (measure(partial(_part, one, sign), (node, number, sign), 0) for sign in (1, -1))
            made[place] = above - below
        else:
            made[place] = measure(one, (node, number))
    return made


def _part(value: Callable[[], Expr], sign: int) -> Expr:
    """How far a number is above 0 (1), or below (-1)."""
    zero, one = Constant(np.array(0)), value()
    return call_op("maximum", one if sign > 0 else call_op("negative", one), zero)


def element(value: Expr, number: int) -> Expr:
    """One whole number of a tensor: () int64."""
    flat: Expr = call_op("reshape", value, newshape=(value.tensor_type.size,))
    one = call_op("take", flat, Constant(np.array(number)), axis=0, mode="clip")
    return one if one.dtype == "int64" else call_op("cast", one, dtype="int64")


def _is_size(expr: Expr) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, (ShapeOf, NdArraySize))


def _value(node: Expr, found: Mapping[Expr, Any], known: Known) -> Any:
    """One node's: an array of elements, or a tuple of these."""
    if isinstance(node, Tuple):
        return tuple(found[field] for field in node.fields)
    if isinstance(node, TupleGetItem):
        return found[node.tuple][node.index]
    array = node.value if isinstance(node, Constant) else known.get(node)
    if array is not None:
        return _elements(array)
    if not isinstance(node, Call) or not isinstance(node.op, Op):
        raise NoShapeValue("an input")
    if _is_size(node):
        shape = _array(node.args[0].tensor_type.shape)
        return shape if isinstance(node.op, ShapeOf) else np.array(product(shape), object)
    return _called(node, node.op, [found[arg] for arg in node.args])


def _called(node: Call, op: Op, operands: list[Any]) -> Any:
    if op.name in _WHOLE:
        return _WHOLE[op.name](node, *operands)
    if op.name in _ELEMENTS:
        return _each(_ELEMENTS[op.name], *operands)
    if op.fusion is not Fusion.INJECTIVE:
        raise NoShapeValue(op.name)
    moved = op.reference(*operands)
    return tuple(map(_array, moved)) if isinstance(moved, (tuple, list)) else _array(moved)


def _array(values: Any) -> np.ndarray:
    return np.asarray(values, object)


def _elements(array: np.ndarray) -> np.ndarray:
    """A constant's: whole numbers, conditions, or floats that are a whole number over a power of two."""
    if array.size > MOST_ELEMENTS:
        raise NoShapeValue("data")
    if array.dtype.kind == "f":
        return _each(_quotient_of, array)
    return _each(bool if array.dtype == "bool" else operator.index, array)


def _quotient_of(number: float) -> Quotient:
    """What products with whole numbers are exact of: few digits, so that no sum is rounded."""
    if not math.isfinite(number):
        raise NoShapeValue("no number")
    exact = Fraction(float(number))
    if abs(exact.numerator) >= 1 << 8 or exact.denominator >= 1 << 16:
        raise NoShapeValue("a float of many digits")
    return Quotient(exact.numerator, exact.denominator)


def _each(function: Callable[..., Any], *operands: Any) -> np.ndarray:
    """Element by element, as numpy broadcasts."""
    arrays = np.broadcast_arrays(*operands)
    made = np.empty(arrays[0].shape, object)
    for place in np.ndindex(made.shape):
        made[place] = function(*(a[place] for a in arrays))
    return made


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _arithmetic(whole: Callable[[Dim, Dim], Dim], quotients: Callable[[Quotient, Quotient], Quotient]) -> Any:
    """Of dimensions, or of quotients, where one of two may still be a number."""

    def compute(a: Element, b: Element) -> Element:
        if isinstance(a, Quotient) and isinstance(b, Quotient):
            return quotients(a, b)
        return whole(_dim(a), _dim(b))

    return compute


def _over_common(whole: Callable[[Dim, Dim], Dim]) -> Callable[[Quotient, Quotient], Quotient]:
    """Of what stands above the product of both divisors."""
    return lambda a, b: Quotient(whole(a.above * b.below, b.above * a.below), a.below * b.below)


def _dim(value: Element) -> Dim:
    if isinstance(value, (bool, Quotient)):
        raise NoShapeValue("no whole number")
    return value


def _over(a: Quotient, b: Quotient) -> Quotient:
    if not isinstance(b.above, int) or b.above <= 0 or b.below != 1 or a.below != 1:
        raise NoShapeValue("a quotient of floats")
    return Quotient(a.above, b.above)


def _truncated(a: Dim, b: Dim) -> Dim:
    """ONNX's Div of whole numbers rounds towards zero."""
    if isinstance(b, int) and b > 0:
        return truncating_divide(a, b)
    if isinstance(b, int) and b < 0:
        return truncating_divide(-a, -b)
    if not is_less(0, b):
        raise NoShapeValue("a divisor that is not positive")
    return -(-a // b) if is_less(a, 0) else a // b


def _modulo(a: Dim, b: Dim) -> Dim:
    if not is_less(0, b):
        raise NoShapeValue("a divisor that is not positive")
    if isinstance(b, int):
        return a % b
    shifted = a + b if is_less(a, 0) else a
    return shifted if not is_less(shifted, 0) and is_less(shifted, b) else a % b


def _less(a: Element, b: Element) -> bool:
    return is_less(_dim(a), _dim(b))


def _equal(a: Element, b: Element) -> bool:
    if isinstance(a, bool) and isinstance(b, bool):
        return a == b
    return is_equal(_dim(a), _dim(b))


def _truth(value: Element) -> bool:
    if not isinstance(value, bool):
        raise NoShapeValue("no condition")
    return value


def _is_zero(value: Element) -> bool:
    return _equal(value, False if isinstance(value, bool) else 0)


_ELEMENTS: dict[str, Callable[..., Any]] = {
    "abs": lambda a: larger_here(_dim(a), -_dim(a)),
    "add": _arithmetic(operator.add, _over_common(operator.add)),
    "subtract": _arithmetic(operator.sub, _over_common(operator.sub)),
    "multiply": _arithmetic(operator.mul, lambda a, b: Quotient(a.above * b.above, a.below * b.below)),
    "divide": _arithmetic(_truncated, _over),
    "mod": lambda a, b: _modulo(_dim(a), _dim(b)),
    "floor_mod": lambda a, b: _modulo(_dim(a), _dim(b)),
    "negative": lambda a: -_dim(a),
    "maximum": _arithmetic(larger_here, _over_common(larger_here)),
    "minimum": _arithmetic(smaller_here, _over_common(smaller_here)),
    "floor": lambda a: Quotient(a.floor, 1),
    "ceil": lambda a: Quotient(a.ceil, 1),
    "equal": _equal,
    "not_equal": lambda a, b: not _equal(a, b),
    "less": _less,
    "less_equal": lambda a, b: not _less(b, a),
    "greater": lambda a, b: _less(b, a),
    "greater_equal": lambda a, b: not _less(a, b),
    "logical_and": lambda a, b: _truth(a) and _truth(b),
    "logical_or": lambda a, b: _truth(a) or _truth(b),
    "logical_xor": lambda a, b: _truth(a) != _truth(b),
    "logical_not": lambda a: not _truth(a),
    "where": lambda c, a, b: a if _truth(c) else b,
}
"""What operators make of elements."""


# --- whole tensors ----------------------------------------------------------------------------------------------------


def _cast(node: Call, value: np.ndarray) -> np.ndarray:
    return _each(_CASTS[np.dtype(node.tensor_type.dtype).kind], value)


def _to_whole(value: Element) -> Dim:
    if isinstance(value, Quotient):
        return truncating_divide(value.above, value.below)
    return int(value) if isinstance(value, bool) else value


def _to_float(value: Element) -> Quotient:
    if isinstance(value, Quotient):
        return value
    whole = _to_whole(value)
    if not is_less(whole, _EXACT) or not is_less(-_EXACT, whole):
        raise NoShapeValue("a float is rounded")
    return Quotient(whole, 1)


_CASTS: dict[str, Callable[[Element], Element]] = {
    "i": _to_whole,
    "f": _to_float,
    "b": lambda value: not _is_zero(value),
}


def _clipped(node: Call, value: np.ndarray) -> np.ndarray:
    for name, bound in (("maximum", _attributes(node)["a_min"]), ("minimum", _attributes(node)["a_max"])):
        if math.isfinite(bound):
            value = _each(_ELEMENTS[name], value, _elements(np.asarray(bound, node.tensor_type.dtype)))
    return value


def _attributes(node: Call) -> dict[str, Any]:
    assert isinstance(node.op, Op)
    return node.op.attributes()


def _shaped(node: Call, value: np.ndarray, *_: Any) -> np.ndarray:
    return _array(value).reshape(node.tensor_type.static_shape)


def _spread(node: Call, value: np.ndarray, *_: Any) -> np.ndarray:
    return np.broadcast_to(value, node.tensor_type.static_shape)


def _taken(node: Call, value: np.ndarray, indices: np.ndarray) -> Any:
    assert isinstance(node.op, Op)
    return _array(node.op.reference(value, indices.astype(np.int64)))


def _reduced(step: Callable[[Any, Any], Any]) -> Callable[[Call, np.ndarray], np.ndarray]:
    """Over the axes of a reduction."""

    def compute(node: Call, value: np.ndarray) -> np.ndarray:
        given = _attributes(node)["axis"]
        axes = range(value.ndim) if given is None else [int(a) % value.ndim for a in np.ravel(given)]
        kept = [a for a in range(value.ndim) if a not in axes]
        rows = value.transpose(*kept, *(a for a in range(value.ndim) if a not in kept))
        rows = rows.reshape(*(value.shape[a] for a in kept), -1)
        made = np.empty(rows.shape[:-1], object)
        for place in np.ndindex(made.shape):
            made[place] = reduce(step, rows[place])
        return made.reshape(node.tensor_type.static_shape)

    return compute


def _summed(node: Call, value: np.ndarray) -> np.ndarray:
    attributes = _attributes(node)
    if attributes["exclusive"]:
        raise NoShapeValue("an exclusive sum")
    return np.cumsum(value, axis=attributes["axis"], dtype=object)


_WHOLE: dict[str, Callable[..., Any]] = {
    "cast": _cast,
    "clip": _clipped,
    "reshape": _shaped,
    "expand_dims": _shaped,
    "squeeze": _shaped,
    "full": _spread,
    "broadcast_to": _spread,
    "take": _taken,
    "prod": _reduced(_ELEMENTS["multiply"]),
    "sum": _reduced(_ELEMENTS["add"]),
    "max": _reduced(_ELEMENTS["maximum"]),
    "min": _reduced(_ELEMENTS["minimum"]),
    "cumsum": _summed,
}
"""What operators make of whole tensors, where it is not what they make of each element."""
