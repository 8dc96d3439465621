"""Dimensions, shapes and dtypes from what a user writes for them."""

from __future__ import annotations

import operator
from typing import Any

from minitvm.errors import TypeInferenceError, did_you_mean
from minitvm.ir.dims import Dim, SymbolicDim, anonymous, symbol
from minitvm.ir.dtypes import DTYPES, STORED, register


def as_dim(given: Any) -> Dim:
    """A dimension from what a user writes: a number, a symbol's name, ``None`` for one that is anonymous."""
    if given is None or isinstance(given, (str, SymbolicDim)):
        return anonymous() if given is None else symbol(given) if isinstance(given, str) else given
    return operator.index(given)


def as_shape(given: Any) -> tuple[Dim, ...]:
    """A shape from what a user writes: :func:`as_dim` of each."""
    try:
        return tuple(map(as_dim, [b""] if isinstance(given, str) else given))  # letters are no dimensions
    except TypeError as error:
        hint = "a shape is a tuple of whole numbers, symbols' names and None"
        raise TypeInferenceError(f"{given!r} is no shape", hint=hint) from error


def as_dtype(given: Any, *more: str) -> str:
    """A dtype's name from what a user writes: the name, numpy's dtype, its class; or one ``more``."""
    name = given.__name__ if isinstance(given, type) else str(given)
    if name in STORED:
        register()
    if name in (*DTYPES, *more):
        return name
    known = f"known dtypes: {', '.join(DTYPES)}"
    raise TypeInferenceError(f"{name!r} is not a dtype", hint=did_you_mean(name, DTYPES) or known)


def no_shape(shape: tuple[Dim, ...], most: int) -> TypeInferenceError:
    """What is wrong with one of more than ``most`` dimensions, or of a negative one."""
    if len(shape) > most:
        return TypeInferenceError(f"a tensor of {len(shape)} dimensions, more than {most}")
    return TypeInferenceError(f"shape {shape} has a negative dimension", hint="(None, 3) leaves a dimension open")
