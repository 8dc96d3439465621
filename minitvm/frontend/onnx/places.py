"""What indices are known to be that follow from sizes: places along axes, as exporters count them up for masks.

    %places = iota(size=n)
    take(%x, expand_dims(%places, axis=0), axis=1)      # x itself, where it has n places

Such an index is in range or not as sizes say, so that no run has to look, and what it selects is a part of the data.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from minitvm.frontend.onnx.node import emit
from minitvm.frontend.onnx.shape_values import Known, shape_value
from minitvm.ir.dims import Dim, SymbolicDim, Undecided, always_less, is_less, larger, product
from minitvm.ir.expr import Call, Constant, Expr, Tuple
from minitvm.ir.op import Op

MOST_LOOKED_THROUGH = 64
"""Calls between an index and the places that it is made of."""


@dataclass(frozen=True)
class Affine:
    """A number that begins with ``first`` and grows by ``steps`` along axes of its tensor."""

    first: Dim
    steps: Mapping[int, Dim] = field(default_factory=dict)

    def range(self, shape: Sequence[Dim]) -> tuple[Dim, Dim] | None:
        """The least and the most of them, where there are any; ``None`` where a step may go down."""
        if any(always_less(step, 0) or not always_less(-1, step) for step in self.steps.values()):
            return None
        return self.first, self.first + reduce(operator.add, ((shape[a] - 1) * s for a, s in self.steps.items()), 0)


class _Other(Exception):
    """It is something else."""


def affine(expr: Expr, known: Known) -> Affine | None:
    """What a tensor of whole numbers is, if that; ``None`` where something else decides."""
    try:
        return _Looking(known).at(expr)
    except (_Other, Undecided):
        return None


class _Looking:
    def __init__(self, known: Known) -> None:
        self.known, self.left = known, MOST_LOOKED_THROUGH
        self.found: dict[Expr, Affine] = {}

    def at(self, expr: Expr) -> Affine:
        if expr not in self.found:
            self.left -= 1
            if self.left < 0:
                raise _Other
            self.found[expr] = self._look(expr)
        return self.found[expr]

    def _look(self, expr: Expr) -> Affine:
        if not isinstance(expr, Constant) and expr.tensor_type.shape in ((), (1,)):
            value = shape_value(expr, self.known)
            if value is not None:
                return Affine(value.reshape(-1)[0])
        if isinstance(expr, Constant):
            return _counted(expr.value)
        rule = _RULES.get(expr.op.name) if isinstance(expr, Call) and isinstance(expr.op, Op) else None
        if rule is None:
            raise _Other
        assert isinstance(expr, Call)
        return rule(expr, *(_Operand(self, arg) for arg in expr.args))


@dataclass(frozen=True)
class _Operand:
    looking: _Looking
    expr: Expr

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.expr.tensor_type.shape

    def value(self) -> Affine:
        if self.expr.tensor_type.dtype not in ("int32", "int64"):
            raise _Other
        return self.looking.at(self.expr)

    def within(self, shape: tuple[Dim, ...]) -> Affine:
        """As it is broadcast to a shape."""
        value, behind = self.value(), len(shape) - len(self.shape)
        for axis in value.steps:
            if self.shape[axis] not in (1, shape[axis + behind]):
                raise _Other
        return Affine(value.first, {a + behind: s for a, s in value.steps.items() if self.shape[a] != 1})


def _counted(value: np.ndarray) -> Affine:
    """Of a constant: one number, or numbers that grow by one along an axis."""
    if value.dtype not in ("int32", "int64") or not value.size or value.size > 1 << 16:
        raise _Other
    first = int(value.reshape(-1)[0])
    axes = [axis for axis, extent in enumerate(value.shape) if extent > 1]
    if not axes:
        return Affine(first)
    if len(axes) > 1 or (value.reshape(-1) != first + np.arange(value.size)).any():
        raise _Other
    return Affine(first, {axes[0]: 1})


def _same(call: Call, x: _Operand, *_: _Operand) -> Affine:
    return x.value()


def _moved(call: Call, x: _Operand) -> Affine:
    """Dimensions of 1 come or go."""
    before, after = ([(a, d) for a, d in enumerate(s) if d != 1] for s in (x.shape, call.tensor_type.shape))
    if [d for _, d in before] != [d for _, d in after]:
        raise _Other
    to, value = {a: b for (a, _), (b, _) in zip(before, after, strict=True)}, x.value()
    return Affine(value.first, {to[a]: s for a, s in value.steps.items() if a in to})


def _transposed(call: Call, x: _Operand) -> Affine:
    op: Any = call.op
    order, value = list(op.order(len(x.shape))), x.value()
    return Affine(value.first, {order.index(a): s for a, s in value.steps.items()})


def _sum(sign: int) -> Callable[..., Affine]:
    def compute(call: Call, a: _Operand, b: _Operand) -> Affine:
        one, other = (x.within(call.tensor_type.shape) for x in (a, b))
        axes = {*one.steps, *other.steps}
        steps = {axis: one.steps.get(axis, 0) + sign * other.steps.get(axis, 0) for axis in axes}
        return Affine(one.first + sign * other.first, steps)

    return compute


def _scaled(call: Call, a: _Operand, b: _Operand) -> Affine:
    one, other = (x.within(call.tensor_type.shape) for x in (a, b))
    if one.steps and other.steps:
        raise _Other
    value, by = (one, other.first) if one.steps else (other, one.first)
    return Affine(value.first * by, {axis: step * by for axis, step in value.steps.items()})


_RULES: dict[str, Callable[..., Affine]] = {
    "iota": lambda call: Affine(0, {0: 1}),
    "cast": _same,
    "control.after": _same,
    "expand_dims": _moved,
    "squeeze": _moved,
    "reshape": _moved,
    "broadcast_to": lambda call, x: x.within(call.tensor_type.shape),
    "full": lambda call, x: x.within(call.tensor_type.shape),
    "transpose": _transposed,
    "add": _sum(1),
    "subtract": _sum(-1),
    "multiply": _scaled,
}


# --- whether they are in range ----------------------------------------------------------------------------------------

_PARTS = frozenset(
    {
        "strided_slice",
        "take",
        "gather",
        "reshape",
        "expand_dims",
        "squeeze",
        "broadcast_to",
        "transpose",
        "control.after",
    }
)
"""Operators whose result has no other elements than their first operand."""


def _range(expr: Expr, known: Known) -> tuple[Dim, Dim] | None:
    """The least and the most that elements can be."""
    found = affine(expr, known)
    if found is not None:
        return found.range(expr.tensor_type.shape)
    for _ in range(MOST_LOOKED_THROUGH):
        value = expr.value if isinstance(expr, Constant) else known.get(expr)
        if value is not None:
            return (int(value.min()), int(value.max())) if value.size and value.dtype.kind == "i" else None
        if not isinstance(expr, Call) or not isinstance(expr.op, Op):
            return None
        if expr.op.name not in _PARTS:
            return None
        expr = expr.args[0]
    return None


def are_within(indices: Expr, extents: Sequence[Dim], known: Known) -> bool:
    """True if all indices lie in [0, extent) of their axis, rows of several axes by axis, as sizes say; that they do is
    counted on where only a run knows the sizes."""
    parts = components(indices) if len(extents) > 1 else [indices]
    if len(parts) != len(extents):
        return False
    found = [_range(part, known) for part in parts]
    if any(one is None for one in found):
        return False
    try:
        return all(
            not is_less(one[0], 0) and is_less(one[1], extent)
            for one, extent in zip(found, extents, strict=True)
            if one is not None
        )
    except Undecided:
        return False


def components(positions: Expr) -> list[Expr]:
    """The index along each of k axes, of positions that are joined along a new last axis and transposed, (k, ...)."""
    joined = positions.args[0] if isinstance(positions, Call) and _is(positions, "transpose") else positions
    parts = joined.args[0] if isinstance(joined, Call) and _is(joined, "concatenate") else None
    if not isinstance(parts, Tuple) or any(part.tensor_type.shape[-1] != 1 for part in parts.fields):
        return []
    return [emit("squeeze", part, axis=(part.tensor_type.rank - 1,)) for part in parts.fields]


def _is(call: Call, name: str) -> bool:
    return isinstance(call.op, Op) and call.op.name == name


# --- what they select -------------------------------------------------------------------------------------------------


def selected(data: Expr, axis: int, indices: Expr, known: Known) -> Expr | None:
    """``take`` by indices in range that count through all of an axis: a reshape; ``None`` where they do not."""
    found, shape = affine(indices, known), indices.tensor_type.shape
    if found is None or found.first != 0 or isinstance(indices, Constant):
        return None
    step: Dim = 1
    for place in reversed(range(len(shape))):
        if shape[place] != 1 and found.steps.get(place, 0) != step:
            return None
        step = step * shape[place]
    extents = data.tensor_type.shape
    if product(shape) != extents[axis]:
        return None
    return emit("reshape", data, newshape=(*extents[:axis], *shape, *extents[axis + 1 :]), allowzero=True)


def selected_each(data: Expr, positions: Expr, known: Known) -> Expr | None:
    """``gather_nd`` by indices in range, one for each of the first axes, which count along axes of their own: a part of
    the data, turned and repeated; ``None`` where they do not."""
    parts = components(positions)
    found, extents = [affine(part, known) for part in parts], data.tensor_type.shape
    if not parts or any(one is None or list(one.steps.values()) != [1] for one in found):
        return None
    axes = [next(iter(one.steps)) for one in found if one is not None]
    if len(set(axes)) < len(axes):
        return None
    shape = parts[0].tensor_type.shape
    for axis, one in enumerate(found):
        assert one is not None
        begin, count = one.first, shape[axes[axis]]
        if (begin, count) != (0, extents[axis]):
            data = emit("strided_slice", data, begin=(begin,), end=(begin + count,), strides=(1,), axes=(axis,))
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    rest = range(len(axes), len(extents))
    turned = data if order == list(range(len(axes))) else emit("transpose", data, axes=(*order, *rest))
    behind = extents[len(axes) :]
    ones = tuple(shape[a] if a in axes else 1 for a in range(len(shape)))
    spread = emit("reshape", turned, newshape=(*ones, *behind), allowzero=True)
    return spread if ones == shape else emit("broadcast_to", spread, shape=(*shape, *behind))


def open_range(start: Dim | float, limit: Dim | float, delta: Dim | float, dtype: str) -> Expr:
    """A range of which a run says how long it is: ONNX's Range."""
    first, last, step = map(_whole, (start, limit, delta))
    if not is_less(0, step) and not is_less(step, 0):
        raise Undecided(f"a range in steps of {step} has as many elements as a run says")
    ahead, apart = (last - first, step) if is_less(0, step) else (first - last, -step)
    steps = emit("iota", size=larger(-(-ahead // apart), 0), dtype=dtype)
    return emit("add", emit("multiply", steps, step), first)


def _whole(bound: Dim | float) -> Dim:
    if isinstance(bound, float) and not bound.is_integer():
        raise Undecided(f"a range with {bound} in it has as many elements as floats say")
    return bound if isinstance(bound, SymbolicDim) else int(bound)
