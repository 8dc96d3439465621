"""A model in pieces of a few calls: what a deep model's last layers hide, a relu that lets a little through, shows in a
piece, whose inputs are drawn and whose results are compared as they are."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from minitvm.ir.attributes import print_attributes
from minitvm.ir.expr import Call, Constant, Expr, Function
from minitvm.ir.op import Op
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import calls
from minitvm.lab.minify import NO_CANDIDATE, part_of

CALLS = 6
"""Of a piece; the next one begins in its middle, so whatever spans four calls is whole in one.  Those of a model that
is no larger have half of its calls."""
_NAMED = 16
"""Numbers in attributes up to here are strides, axes, windows: they tell pieces apart; larger ones are extents."""


def pieces(function: Function) -> list[Function]:
    """Stretches of consecutive calls over inputs of their own; of those alike but for extents the smallest.  The
    smallest of all first."""
    order, found = calls(function.body), dict[Hashable, list[Call]]()
    length = CALLS if len(order) > CALLS else (len(order) + 1) // 2
    stride = (length + 1) // 2
    for start in range(0, len(order) - length + stride, stride) if len(order) > 1 else ():
        part = order[start : start + length]
        kind = _kind(part)
        if kind not in found or _elements(part) < _elements(found[kind]):
            found[kind] = part
    parts = sorted(found.values(), key=_elements)
    return [piece for part in parts if (piece := _piece(function, part)) is not None]


def _piece(function: Function, part: list[Call]) -> Function | None:
    try:
        return part_of(function, part)
    except NO_CANDIDATE:
        return None


def _kind(part: list[Call]) -> Hashable:
    numbers = {call: i for i, call in enumerate(part)}
    return tuple((_operator(call), tuple(_operand(arg, numbers) for arg in call.args)) for call in part)


def _operator(call: Call) -> Hashable:
    if not isinstance(call.op, Op):
        return id(call.op)
    words = " ".join(print_attributes(call.op)).replace(",", " ").replace("[", " ").replace("]", " ").split()
    return call.op.name, tuple("#" if word.isdigit() and int(word) > _NAMED else word for word in words)


def _operand(arg: Expr, numbers: Mapping[Call, int]) -> Hashable:
    """Which call of the piece it is, whether it is constant, its dtype, and which extents are 1 or whole vectors."""
    type_ = arg.checked_type
    shape = type_.static_shape if isinstance(type_, TensorType) and type_.is_static else ()
    dtype = type_.dtype if isinstance(type_, TensorType) else str(type_)
    known = numbers.get(arg) if isinstance(arg, Call) else None
    return known, isinstance(arg, Constant), dtype, tuple((n == 1, n % 16 == 0) for n in shape)


def _elements(part: list[Call]) -> int:
    types = [node.checked_type for call in part for node in (call, *call.args)]
    return sum(t.size for t in types if isinstance(t, TensorType) and t.is_static)
