"""Checks of what a user hands in as inputs; the texts are part of the interface."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minitvm.errors import InputError, did_you_mean, listing
from minitvm.ir.dtypes import is_float
from minitvm.ir.types import MOST_BYTES, STRING, AnyTensor, Leaf, MapType, TensorType, fits, numpy_dtype, shape_text
from minitvm.runtime.devices import HOST, Memory, device_of
from minitvm.runtime.ndarray import NDArray


def unknown_name(name: object, known: Sequence[str], what: str = "input") -> InputError:
    """The error for a name that the model does not have."""
    guess = did_you_mean(name, known)
    its = f"its {what}s are: {listing(known)}"
    return InputError(f"the model has no {what} {name!r}", hint=f"{guess} {its}" if guess else its)


def missing_inputs(names: Sequence[str]) -> InputError:
    """The error for inputs that were never given."""
    plural = "input" if len(names) == 1 else "inputs"
    return InputError(
        f"{plural} not set: {listing(names)}", hint="give every input, in run(name=array) or by set_input(name, array)"
    )


def joined(feeds: Mapping[str, Any] | None, named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Inputs from a dictionary and by keyword as one dictionary; :class:`InputError` for one that is in both.

    From here on inputs travel as a dictionary: their names may be ``self``, ``key`` or no identifier at all.
    """
    if feeds is None:
        return named
    if not isinstance(feeds, Mapping):
        raise InputError(
            f"the inputs are a {type(feeds).__name__}, not a dictionary",
            hint="run({name: array, ...}), run(name=array)",
        )
    twice = [name for name in feeds if name in named]
    if twice:
        raise InputError(f"input {twice[0]!r} is given twice, in the dictionary and by keyword")
    return {**feeds, **named}


def from_zigzag(code: int) -> int:
    """The integer that an unsigned zigzag code stands for: 0, -1, 1, -2, ... in this order."""
    return -(code + 1) // 2 if code % 2 else code // 2


def as_array(name: str, value: Any, dtype: str, memory: Memory = HOST) -> Any:
    """``value`` as an array, or as a value of ``memory`` where it is there already.

    Lists and numbers take the input's dtype; arrays keep theirs (checked later).
    """
    return np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else _made(name, value, dtype, memory)


def _made(name: str, value: Any, dtype: str, memory: Memory) -> Any:
    """The same of a value that is no array of numpy's."""
    where = device_of(value)
    if where not in (HOST.device, memory.device):
        raise InputError(
            f"input {name!r} is on {where}, the model runs on {memory.device}",
            hint="copy it there, or to the host: array.numpy() of minitvm's, x.cpu() of torch's, cupy.asnumpy(x)",
        )
    if where != HOST.device:
        return memory.taken(value)
    if isinstance(value, NDArray) or hasattr(value, "__array__"):
        return np.asarray(value)
    if value is None:
        raise InputError(f"input {name!r} is None", hint=f"give an array of {dtype}")
    try:
        found = np.asarray(value)
        if dtype == STRING:
            return found
        array = found.astype(dtype) if found.dtype.kind in "biuf" else np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _no_array(name, value, dtype, str(error)) from error
    if found.dtype.kind not in "biuf" or (not is_float(dtype) and not np.array_equal(array, found)):
        raise _no_array(name, value, dtype, "not all of its values are numbers of that kind")
    return array


def _no_array(name: str, value: Any, dtype: str, why: str) -> InputError:
    return InputError(
        f"input {name!r} is a {type(value).__name__} that is no array of {dtype}: {why}", hint="give a numpy array"
    )


def check_shapes(given: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of inputs by name, as numbers; :class:`InputError` for what is none."""
    return {name: _shape(name, shape) for name, shape in dictionary(given, "shapes", "{name: (2, 3)}").items()}


def dictionary(given: Any, what: str, example: str) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping):
        raise InputError(f"the {what} are a {type(given).__name__}, not a dictionary", hint=f"such as {example}")
    return given


def _shape(name: str, given: Any) -> tuple[int, ...]:
    try:
        found = tuple(map(operator.index, given))
    except TypeError:
        found = (-1,)
    if min(found, default=0) < 0 or math.prod(found) > MOST_BYTES:
        raise InputError(f"the shape of input {name!r} is {given!r}", hint="a shape is a tuple of sizes: (2, 3)")
    return found


def check_input(name: str, value: Any, expected: Leaf, memory: Memory = HOST) -> Any:
    """``value`` as one of that type (symbolic dimensions fit any); :class:`InputError` names both sides.

    What is in ``memory``, a device's, stays there.

    A sequence is a list or a tuple, an optional without a value ``None``.
    """
    if isinstance(expected, TensorType):
        if type(value) is np.ndarray and fits(value, expected) and expected.dtype != STRING:
            return value
        return _check_tensor(name, as_array(name, value, expected.dtype, memory), expected)
    if isinstance(expected, AnyTensor):
        return _check_dtype(name, as_array(name, value, expected.dtype), expected)
    if isinstance(expected, MapType):
        return _check_map(name, value, expected)
    if expected.optional:
        return None if value is None else check_input(name, value, expected.element)
    if not isinstance(value, (list, tuple)):
        raise InputError(f"input {name!r} is a {type(value).__name__}, the model expects a list: {expected}")
    return [check_input(f"{name}[{i}]", one, expected.element) for i, one in enumerate(value)]


def _check_map(name: str, value: Any, expected: MapType) -> dict[Any, Any]:
    """Keys and values as the model expects them: Python's text, numbers as numpy's scalars."""
    if not isinstance(value, Mapping):
        raise InputError(f"input {name!r} is a {type(value).__name__}, the model expects a dictionary: {expected}")
    columns = [(list(value), expected.key), (list(value.values()), expected.dtype)]
    keys, values = (_check_dtype(name, as_array(name, given, d), AnyTensor(d)).tolist() for given, d in columns)
    return dict(zip(keys, values, strict=True))


def _check_dtype(name: str, array: Any, expected: TensorType | AnyTensor) -> Any:
    dtype, is_text = numpy_dtype(expected.dtype), expected.dtype == STRING
    if is_text and array.dtype.kind in "OU" and all(isinstance(one, str) for one in array.flat):
        return array.astype(object)
    if is_text or (array.dtype != dtype and array.dtype.name != expected.dtype):  # other byte orders fit
        raise InputError(
            f"input {name!r} is {array.dtype.name}, the model expects {expected.dtype}",
            where=[f"%{name}: {expected}"],
            hint="give an array of str" if is_text else f"convert it: array.astype({expected.dtype!r})",
        )
    return array


def _check_tensor(name: str, value: Any, expected: TensorType) -> Any:
    array = _check_dtype(name, value, expected)
    if array.ndim != expected.rank:
        raise InputError(
            f"input {name!r} has rank {array.ndim}, shape {array.shape}; the model expects rank {expected.rank}",
            where=[f"%{name}: {expected}"],
            hint="add or remove dimensions, for example array[np.newaxis] for a batch of one",
        )
    if not fits(array, expected):
        raise InputError(
            f"input {name!r} has shape {array.shape}, the model expects {shape_text(expected.shape)}",
            where=[f"%{name}: {expected}"],
            hint="reshape or resize the array, or compile the model for this shape",
        )
    return array
