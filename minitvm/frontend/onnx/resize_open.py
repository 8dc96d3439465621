"""Resize along axes whose extents only a run knows: coordinates are quotients of whole numbers that kernels compute."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from minitvm.frontend.onnx.node import cast, emit, rank, scalar
from minitvm.frontend.onnx.tensor import number, positions, reshaped
from minitvm.ir.dims import Dim, Undecided, larger, smaller
from minitvm.ir.expr import Expr


@dataclass(frozen=True)
class OpenAxis:
    """The resizing of one axis: its extents, what coordinates are computed by, the scale as a quotient."""

    axis: int
    extent: Dim
    size: Dim
    coordinates: str
    above: Dim
    below: Dim
    """The scale is ``above`` over ``below``."""


def nearest_along(x: Expr, by: OpenAxis, rounding: str) -> Expr:
    """Nearest neighbours; :class:`Undecided` for coordinates that need numbers."""
    return _taken(x, by.axis, once(_rounded(*_places(by), rounding)))


def interpolated_along(x: Expr, by: OpenAxis, alpha: float | None) -> Expr:
    """Four neighbours by Keys' kernel, or (without ``alpha``) two by their distance, likewise; of floats."""
    above, below = _places(by)
    first = once(_floor(above, below))
    t = once(cast(above - first * below, x.dtype) / cast(below, x.dtype))
    t = reshaped(t, [by.size, *[1] * (rank(x) - 1 - by.axis)])
    weights = {0: 1.0 - t, 1: t}
    if alpha is not None:
        near, far = _keys_parts(alpha)
        weights = {-1: far(t + 1.0), 0: near(t), 1: near(1.0 - t), 2: far(2.0 - t)}
    return reduce(operator.add, [_taken(x, by.axis, first + place) * weight for place, weight in weights.items()])


def smoothed_along(x: Expr, by: OpenAxis, alpha: float | None, antialias: bool, exclude_outside: bool) -> Expr:
    """A sum over all pixels, by Keys' kernel or (without ``alpha``) a tent: stretched where ``antialias`` is asked for
    and the axis shrinks.  Pixels outside are those at the border, or, with ``exclude_outside``, have no part."""
    reach: Dim = 1 if alpha is None else 2
    stretch: Expr = scalar(1.0, "float64")
    if antialias:
        reach = larger(reach, -(-reach * by.below // by.above))
        stretch = emit("maximum", cast(number(by.below), "float64") / cast(number(by.above), "float64"), stretch)
    beyond: Dim = 0 if exclude_outside else reach
    count = by.extent + 2 * beyond
    pixels = reshaped(positions(count), [1, count]) - beyond
    above, below = (reshaped(part, [by.size, 1]) for part in _places(by))
    distance = cast(emit("abs", pixels * below - above), "float64") / (cast(below, "float64") * stretch)
    values = emit("maximum", 1.0 - distance, 0.0) if alpha is None else _keys(distance, alpha)
    total = emit("sum", values, axis=(1,), keepdims=True)
    shape = [by.size, count, *[1] * (rank(x) - 1 - by.axis)]
    share = reshaped(cast(values / emit("where", emit("equal", total, 0.0), 1.0, total), x.dtype), shape)
    near = emit("expand_dims", _taken(x, by.axis, positions(count) - beyond), axis=by.axis)
    parts = emit("where", emit("equal", share, 0.0), 0.0, near) * share  # what weighs 0 may be infinite
    return emit("sum", parts, axis=(by.axis + 1,))


def _keys_parts(alpha: float) -> tuple[Callable[[Expr], Expr], Callable[[Expr], Expr]]:
    """Keys' kernel up to a distance of 1, and from there to 2."""
    return (
        lambda d: ((alpha + 2) * d - (alpha + 3)) * d * d + 1.0,
        lambda d: (d - 1.0) * (d - 2.0) * (d - 2.0) * alpha,
    )


def _keys(distance: Expr, alpha: float) -> Expr:
    near, far = _keys_parts(alpha)
    outside = emit("where", emit("less", distance, 2.0), far(distance), 0.0)
    return emit("where", emit("less_equal", distance, 1.0), near(distance), outside)


def _places(by: OpenAxis) -> tuple[Expr, Expr]:
    """The place where results lie on the axis, (size,) each: whole numbers, the first over the second."""
    extent, size, mode = by.extent, by.size, by.coordinates
    x = positions(size)
    if mode == "align_corners":  # a single pixel is the first one
        return x * (extent - 1), x * 0 + larger(size - 1, 1)
    if mode == "asymmetric":
        return x * by.below, x * 0 + by.above
    if mode == "half_pixel_symmetric":  # (2x + 1) / scale - 1 + extent - size / scale, halved
        return (x * 2 + 1 - size) * by.below + (extent - 1) * by.above, x * 0 + by.above * 2
    if mode in ("half_pixel", "pytorch_half_pixel"):
        is_several: Dim = smaller(size - 1, 1) if mode == "pytorch_half_pixel" else 1
        return ((x * 2 + 1) * by.below - by.above) * is_several, x * 0 + by.above * 2
    raise Undecided(f"coordinates of {mode} with sizes that only a run knows")


def _floor(above: Expr, below: Expr) -> Expr:
    """The quotient rounded down, of what is at least -``below``."""
    return emit("divide", above + below, below) - 1


def _rounded(above: Expr, below: Expr, how: str) -> Expr:
    if how == "floor":
        return _floor(above, below)
    if how == "ceil":
        return _floor(above + below - 1, below)
    return _floor(above * 2 + below - (how == "round_prefer_floor") * 1, below * 2)


def once(x: Expr) -> Expr:
    """Computed before what reads it, not for each of its elements: as quotients of an axis are, and rows that several
    others are made of."""
    return emit("annotation.stop_fusion", x)


def _taken(x: Expr, axis: int, places: Expr) -> Expr:
    """The elements at places, those outside at the border."""
    return emit("take", x, places, axis=axis, mode="clip")
