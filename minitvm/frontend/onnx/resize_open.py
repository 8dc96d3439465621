"""Resize along axes whose extents only a run knows: coordinates are quotients of whole numbers that kernels compute."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce

from minitvm.frontend.onnx.node import cast, emit, rank
from minitvm.frontend.onnx.tensor import positions, reshaped
from minitvm.ir.dims import Dim, Undecided, is_equal
from minitvm.ir.expr import Expr


def nearest_along(x: Expr, axis: int, size: Dim, coordinates: str, rounding: str) -> Expr:
    """Nearest neighbours along an axis, by size over extent; :class:`Undecided` for coordinates that need numbers."""
    above, below = _places(x.tensor_type.shape[axis], size, coordinates)
    return _taken(x, axis, _rounded(above, below, rounding))


def linear_along(x: Expr, axis: int, size: Dim, coordinates: str) -> Expr:
    """Two neighbours by their distance, likewise; of floats."""
    return _weighted(x, axis, size, coordinates, lambda t: {0: 1.0 - t, 1: t})


def cubic_along(x: Expr, axis: int, size: Dim, coordinates: str, alpha: float) -> Expr:
    """Four neighbours by Keys' kernel, likewise."""

    def near(d: Expr) -> Expr:
        return ((alpha + 2) * d - (alpha + 3)) * d * d + 1.0

    def far(d: Expr) -> Expr:
        return (d - 1.0) * (d - 2.0) * (d - 2.0) * alpha

    weights = lambda t: {-1: far(t + 1.0), 0: near(t), 1: near(1.0 - t), 2: far(2.0 - t)}  # noqa: E731
    return _weighted(x, axis, size, coordinates, weights)


def _weighted(x: Expr, axis: int, size: Dim, coordinates: str, weights: Callable[[Expr], dict[int, Expr]]) -> Expr:
    """Neighbours, counted from the one before each place, by weights that follow from the distance to that one."""
    if not x.tensor_type.is_float:
        raise Undecided("interpolated whole numbers of sizes that only a run knows")
    if x.dtype == "float16":
        return cast(_weighted(cast(x, "float32"), axis, size, coordinates, weights), "float16")
    above, below = _places(x.tensor_type.shape[axis], size, coordinates)
    first = _floor(above, below)
    share = cast(above - first * below, x.dtype) / cast(below, x.dtype)
    share = reshaped(share, [size, *[1] * (rank(x) - 1 - axis)])
    parts = [_taken(x, axis, first + place) * weight for place, weight in weights(share).items()]
    return reduce(operator.add, parts)


def _places(extent: Dim, size: Dim, mode: str) -> tuple[Expr, Expr]:
    """The place where results lie on the axis, (size,) each: whole numbers, the first over the second."""
    x = positions(size)
    if mode in ("align_corners", "pytorch_half_pixel") and is_equal(size, 1):
        return x * 0, x * 0 + 1
    if mode == "align_corners":
        return x * (extent - 1), x * 0 + (size - 1)
    if mode == "asymmetric":
        return x * extent, x * 0 + size
    if mode in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"):
        return (x * 2 + 1) * extent - size, x * 0 + size * 2
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


def _taken(x: Expr, axis: int, places: Expr) -> Expr:
    """The elements at places, those outside at the border."""
    last = x.tensor_type.shape[axis] - 1
    return emit("take", x, emit("minimum", emit("maximum", places, 0), last), axis=axis, mode="clip")
