"""Resize along axes whose extents only a run knows: coordinates are quotients of whole numbers that kernels compute."""

from __future__ import annotations

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
    if not x.tensor_type.is_float:
        raise Undecided("interpolated whole numbers of sizes that only a run knows")
    if x.dtype == "float16":
        return cast(linear_along(cast(x, "float32"), axis, size, coordinates), "float16")
    above, below = _places(x.tensor_type.shape[axis], size, coordinates)
    first = _floor(above, below)
    share = cast(above - first * below, x.dtype) / cast(below, x.dtype)
    share = reshaped(share, [size, *[1] * (rank(x) - 1 - axis)])
    return _taken(x, axis, first) * (1.0 - share) + _taken(x, axis, first + 1) * share


def _places(extent: Dim, size: Dim, mode: str) -> tuple[Expr, Expr]:
    """Where results lie on the axis, (size,) each: whole numbers, the first over the second."""
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
