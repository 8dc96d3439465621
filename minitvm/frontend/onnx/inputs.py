"""The inputs of a model as variables: of the shapes and dtypes asked for, where they fit the model's."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minitvm.errors import FrontendError, InputError
from minitvm.frontend.description import ValueDescription
from minitvm.ir.dims import Dim, are_counted_on
from minitvm.ir.expr import Var
from minitvm.ir.types import DTYPES, STRING, Shape, TensorType, as_dim


def input_variable(value: ValueDescription, shape: Any, dtype: str | None) -> Var:
    """The variable of an input, of the shape asked for where it fits the model's."""
    if value.held is not None:
        if shape is not None or dtype is not None:
            option = "shape" if shape is not None else "dtype"
            raise InputError(f"{option}_dict names input {value.name!r}, which is {value.type} and has no {option}")
        return Var(value.name, value.held)
    return Var(value.name, TensorType(_input_shape(value, shape), _input_dtype(value, dtype)))


def _input_dtype(value: ValueDescription, dtype: str | None) -> str:
    found = dtype or value.dtype
    if str(found) not in DTYPES and (dtype or found != STRING):
        raise InputError(
            f"dtype_dict gives input {value.name!r} the dtype {found!r}"
            if dtype
            else f"input {value.name!r} has no dtype",
            hint=f"dtypes: {', '.join(DTYPES)}",
        )
    return str(found)


def _input_shape(value: ValueDescription, shape: Any) -> Shape:
    declared = value.shape
    if shape is None:
        return _declared_shape(value)
    if not isinstance(shape, (Sequence, np.ndarray)) or isinstance(shape, (str, bytes)):
        raise InputError(f"shape_dict gives input {value.name!r} {shape!r}, which is no shape")
    given = tuple(shape)
    if value.has_rank and len(given) != len(declared):
        raise InputError(
            f"shape_dict gives input {value.name!r} {len(given)} dimensions; it has {len(declared)}: {_text(declared)}"
        )
    return tuple(_input_dim(value, axis, dim) for axis, dim in enumerate(given))


def _input_dim(value: ValueDescription, axis: int, dim: Any) -> Dim:
    if dim is None:
        declared = value.shape[axis] if value.has_rank else None
        return as_dim(declared if isinstance(declared, str) else None)
    if isinstance(dim, str) and are_counted_on() and value.has_rank and not isinstance(value.shape[axis], int):
        return as_dim(dim)
    whole = isinstance(dim, (int, np.integer)) and not isinstance(dim, bool)
    whole = whole or (isinstance(dim, float) and math.isfinite(dim) and dim == int(dim))
    if not whole or dim < 0:
        raise InputError(
            f"shape_dict gives dimension {axis} of input {value.name!r} as {dim!r}",
            hint="a dimension is a whole number, 0 or more",
        )
    fixed = value.shape[axis] if value.has_rank else None
    if isinstance(fixed, int) and fixed != dim:
        raise InputError(
            f"shape_dict gives dimension {axis} of input {value.name!r} as {int(dim)}; the model fixes it at {fixed}",
            hint=f"the input's shape is {_text(value.shape)}",
        )
    return int(dim)


def _declared_shape(value: ValueDescription) -> Shape:
    if not value.has_rank:
        raise FrontendError(
            f"input {value.name!r} has no shape in the model", hint=f"give it: shape_dict={{{value.name!r}: (...)}}"
        )
    open_dims = [str(d) if d is not None else "?" for d in value.shape if not isinstance(d, int)]
    if open_dims:
        example = ", ".join(str(d) if isinstance(d, int) else "1" for d in value.shape)
        comma = "," if len(value.shape) == 1 else ""
        raise FrontendError(
            f"input {value.name!r} has dimensions without a size: {', '.join(open_dims)}, in {_text(value.shape)}",
            hint=f"give them: shape_dict={{{value.name!r}: ({example}{comma})}}",
        )
    return tuple(int(d) for d in value.shape)  # type: ignore[arg-type]


def _text(shape: Sequence[int | str | None]) -> str:
    return f"({', '.join('?' if d is None else str(d) for d in shape)})"
