"""Cases of reductions, running sums and sorting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from operator_cases.accuracy import EXACT, Accuracy
from operator_cases.case import Case, case, generator, summed
from operator_cases.draw import Draw


def _axes(draw: Draw, rank: int) -> dict[str, Any]:
    """Attributes: which axes, all by default, and what becomes of them."""
    axis = None if draw.flag(4) else draw.axes(rank)
    return {"axis": axis, "keepdims": draw.flag(), "exclude": axis is not None and draw.flag(4)}


def _count(shape: tuple[int, ...], attributes: dict[str, Any]) -> int:
    """An upper bound of how many elements become one."""
    return math.prod(shape)


@generator("sum", "mean")
def sums(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(0, 4)
    attributes = _axes(draw, len(shape))
    special = "nonfinite" if np.dtype(dtype).kind == "f" else "all"
    x = draw.array(shape, dtype, special=special)
    return summed(name, x, terms=_count(shape, attributes), **attributes)


@generator("prod")
def prod(name: str, draw: Draw, dtype: str) -> Case:
    """Factors close to 1: a product of many others is 0 or infinite."""
    shape = draw.shape(0, 4)
    low, high = (0.9, 1.1) if np.dtype(dtype).kind == "f" else (-9, 9)
    x = draw.array(shape, dtype, low, high, "nonfinite" if np.dtype(dtype).kind == "f" else "all")
    inner = 1.0 if dtype == "float16" else float(max(1, x.size))
    return case(name, x, accuracy=Accuracy(ulps=inner + 2), **_axes(draw, len(shape)))


@generator("max", "min", "all", "any")
def extremes(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(0, 4)
    return case(name, draw.array(shape, dtype, -99, 99, "all"), **_axes(draw, len(shape)))


@generator("argmax", "argmin")
def positions(name: str, draw: Draw, dtype: str) -> Case:
    """Among few values, so that the extreme comes more than once."""
    shape = draw.shape(0, 4, least=1)
    x = draw.array(shape, dtype, *((0, 2) if draw.flag() else (-99, 99)), "all")
    return case(name, x, **_axes(draw, len(shape)), select_last_index=draw.flag())


@generator("variance")
def variance(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(0, 4)
    attributes = _axes(draw, len(shape))
    x = draw.array(shape, dtype)
    with np.errstate(all="ignore"):
        made = case("mean", x, **{**attributes, "keepdims": True})
        (mean,) = made.reference()
    found = case(name, x, mean, unbiased=draw.flag(4), **attributes)
    return Case(found.op, found.args, Accuracy(ulps=1, scale=_count(shape, attributes) + 4))


@generator("logsumexp")
def logsumexp(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(0, 4)
    attributes = _axes(draw, len(shape))
    x = draw.array(shape, dtype, *draw.choice(((-3, 3), (-40, 40), (200, 300))))
    terms = 4 + _count(shape, attributes)

    def one() -> np.ndarray:
        """The logarithm is off by what its argument is off by, relatively: absolutely, a rounding of 1."""
        return np.ones_like(found.reference()[0], "float64")

    found = case(name, x, **attributes)
    return Case(found.op, found.args, Accuracy(ulps=3, terms=terms, magnitude=one))


@generator("cumsum", "cumprod")
def running(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4)
    axis = draw.axis(len(shape))
    special = "nonfinite" if np.dtype(dtype).kind == "f" else "all"
    if name == "cumprod":
        made = case(name, draw.array(shape, dtype, -2, 2, special), axis=axis, exclusive=draw.flag())
        return Case(made.op, made.args, Accuracy(ulps=shape[axis] + 2))
    return summed(
        name, draw.array(shape, dtype, special=special), terms=shape[axis] + 2, axis=axis, exclusive=draw.flag()
    )


@generator("sort", "argsort", "topk")
def sorting(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4)
    axis = draw.axis(len(shape))
    x = draw.array(shape, dtype, *((0, 3) if draw.flag() else (-99, 99)), "all")
    attributes: dict[str, Any] = {"axis": axis, "is_ascend": draw.flag()}
    if name != "sort":
        attributes["dtype"] = draw.signed_dtype()
    if name == "topk":
        attributes |= {"k": draw.integer(0, shape[axis]), "ret_type": draw.choice(("both", "values", "indices"))}
    return case(name, x, accuracy=EXACT, **attributes)


@generator("arange")
def arange(name: str, draw: Draw, dtype: str) -> Case:
    """Steps that a float dtype holds exactly."""
    start, step = draw.integer(-9, 9), draw.choice((1, 2, 3, -1, -2))
    if dtype.startswith("uint"):
        start, step = abs(start), abs(step)
    stop = start + step * draw.integer(0, 40)
    return case(name, *(np.asarray(abs(v) if dtype.startswith("u") else v).astype(dtype) for v in (start, stop, step)))


@generator("argwhere")
def argwhere(name: str, draw: Draw, dtype: str) -> Case:
    return case(name, draw.array(draw.shape(), dtype, 0, 1))
