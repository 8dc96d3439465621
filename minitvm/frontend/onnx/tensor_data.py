"""ONNX tensors as numpy arrays, stored in the model or beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from minitvm.errors import FrontendError
from minitvm.ir.types import DTYPES

_MOST_DIGITS = 19
"""A number of bytes has no more."""
_SHOWN = 80


def dtype_name(code: int, reject: Callable[[str, str | None], FrontendError] | None = None) -> str:
    """The dtype of an ONNX element type; raises what ``reject(message, hint)`` makes where minitvm has none."""
    name = type_name(code)
    known = {"float": "float32", "double": "float64"}.get(name, name)
    if known in DTYPES:
        return known
    message, hint = f"element type {name!r} is not supported", f"supported: {', '.join(DTYPES)}"
    raise reject(message, hint) if reject else FrontendError(message, hint=hint)


def type_name(code: int) -> str:
    """ONNX's own name of an element type: ``float``, ``int64``, ..."""
    try:
        return str(onnx.TensorProto.DataType.Name(code)).lower()
    except ValueError:
        return f"code {code}"


def array_of(tensor: onnx.TensorProto, folder: str | Path) -> np.ndarray:
    """The array of a tensor; external data is looked up below ``folder`` (``""``: there is no folder).

    Raises :class:`FrontendError` for element types without a numpy dtype, data shorter than the shape asks for,
    and external files that are missing or outside the folder.
    """
    where = [f'ONNX tensor "{tensor.name}"']
    dtype = dtype_name(tensor.data_type, lambda message, hint: FrontendError(message, where=where, hint=hint))
    if any(d < 0 for d in tensor.dims):
        raise FrontendError(f"a tensor has the shape {tuple(tensor.dims)}", where=where)
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    try:
        found = _external(tensor, dtype, folder, where) if external else onnx.numpy_helper.to_array(tensor)
        return np.ascontiguousarray(found).reshape(tuple(tensor.dims))
    except (ValueError, TypeError) as error:
        shape = tuple(tensor.dims)
        raise FrontendError(
            f"the data of a tensor does not fill its shape {shape} of {dtype}", where=where, hint="the file is damaged"
        ) from error


def _external(tensor: onnx.TensorProto, dtype: str, folder: str | Path, where: list[str]) -> np.ndarray:
    """The elements in a row."""
    entries = {e.key: e.value for e in tensor.external_data}
    path = _external_path(entries.get("location", ""), folder, where)
    wanted = math.prod(tensor.dims) * np.dtype(dtype).itemsize
    offset = _number(entries, "offset", 0, where)
    if _number(entries, "length", wanted, where) != wanted:
        raise FrontendError(f"external data of {entries['length']} bytes for a tensor of {wanted} bytes", where=where)
    if offset + wanted > path.stat().st_size:
        raise FrontendError(
            f"{path.name} has {path.stat().st_size} bytes; a tensor is stored at {offset} to {offset + wanted}",
            where=where,
            hint="the file is truncated",
        )
    with path.open("rb") as file:
        file.seek(offset)
        data = np.frombuffer(file.read(wanted), np.dtype(dtype).newbyteorder("<"))
    return data.astype(dtype, copy=False)


def _number(entries: dict[str, str], name: str, default: int, where: list[str]) -> int:
    text = entries.get(name, str(default))
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise FrontendError(
            f"the {name} of external data is {text!r}, not a number", where=where, hint="the file is damaged"
        )
    return int(text)


def _external_path(location: str, folder: str | Path, where: list[str]) -> Path:
    if not str(folder):
        raise FrontendError(
            f"the model stores tensors in the file {location!r}, but was not given as a path",
            where=where,
            hint="call from_onnx with the path of the .onnx file, beside which that file lies",
        )
    root = Path(folder).resolve()
    named = repr(location if len(location) <= _SHOWN else f"{location[:_SHOWN]}...")
    try:
        path = (root / location).resolve()
        is_file = path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null character, links in a circle
        raise FrontendError(
            f"external data {named} is no name of a file", where=where, hint="the model is damaged"
        ) from error
    if not location or not path.is_relative_to(root):
        raise FrontendError(
            f"external data {named} leaves the model's folder",
            where=where,
            hint="external data must lie in the folder of the .onnx file or below it",
        )
    if not is_file:
        raise FrontendError(
            f"external data {named} does not exist", where=where, hint=f"put the file into the model's folder, {root}"
        )
    return path
