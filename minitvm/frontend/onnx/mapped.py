"""A model's file without its large weights.

That a model of gigabytes is not in memory twice while it is imported, the file is parsed without their bytes: they are
cut out of the protobuf, and in their place stands ONNX's reference to external data, in that file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from minitvm.frontend.files import File
from minitvm.frontend.onnx.model import LARGE

_GRAPH, _INITIALIZER, _RAW, _LOCATION = 7, 5, 9, 14
"""Numbers of fields of ``ModelProto``, ``GraphProto`` and ``TensorProto``."""
_BYTES = 2
"""The wire type of what has a length."""
_FIXED = {1: 8, 5: 4}
"""Bytes of what has wire types of fixed lengths."""

Field: TypeAlias = tuple[int, int, int, int]
"""Number; where the field begins, its content begins, it ends."""


def without_weights(data: File, name: str) -> bytes | None:
    """The model in the file ``name`` with its large weights as external data in that file.

    ``None`` where there are none, or the bytes are no protobuf as it is usually written: then it is parsed whole.
    """
    try:
        cut = [*_cut(data, name)]
    except (IndexError, ValueError, KeyError, OSError, DecodeError):
        return None
    return b"".join(cut) if len(cut) > 1 else None


def _cut(data: File, name: str) -> Iterator[bytes]:
    """The pieces of the model; one where nothing was cut out."""
    fields = [*_fields(data, 0, len(data))]
    graphs = [field for field in fields if field[0] == _GRAPH]
    if len(graphs) != 1:
        raise ValueError
    _, begin, start, end = graphs[0]
    pieces, done = list[bytes](), start
    for number, first, inside, stop in _fields(data, start, end):
        if number == _INITIALIZER and stop - inside >= LARGE:
            slim = _reference(data, inside, stop, name)
            if slim is not None:
                pieces += [data[done:first], _tag(_INITIALIZER, len(slim)), slim]
                done = stop
    if pieces:
        pieces.append(data[done:end])
        yield data[:begin] + _tag(_GRAPH, sum(map(len, pieces)))
        yield from pieces
        yield data[end:]


def _reference(data: File, start: int, end: int, name: str) -> bytes | None:
    """A tensor whose bytes are raw as external data; ``None`` for others."""
    fields = [*_fields(data, start, end)]
    raw = [field for field in fields if field[0] == _RAW]
    if len(raw) != 1 or any(number == _LOCATION for number, *_ in fields):
        return None
    _, begin, content, stop = raw[0]
    tensor = onnx.TensorProto.FromString(data[start:begin] + data[stop:end])
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if stop - content < LARGE or not tensor.name or not dtype.isbuiltin or min(tensor.dims, default=0) < 0:
        return None
    if math.prod(tensor.dims) * dtype.itemsize != stop - content:
        return None  # not as it should be, which the importer says
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", name), ("offset", content), ("length", stop - content)):
        tensor.external_data.add(key=key, value=str(value))
    return bytes(tensor.SerializeToString())


def _fields(data: File, at: int, end: int) -> Iterator[Field]:
    """The fields of a message; ``ValueError`` or ``IndexError`` where it is none."""
    while at < end:
        begin = at
        tag, at = _varint(data, at)
        start = at
        if tag & 7 == _BYTES:
            length, start = _varint(data, at)
            at = start + length
        elif tag & 7:
            at += _FIXED.get(tag & 7, end)
        else:
            _, at = _varint(data, at)
        if at > end:
            raise ValueError
        yield tag >> 3, begin, start, at


def _varint(data: File, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    value = shift = 0
    while True:
        byte = data.at(at)
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError


def _tag(number: int, length: int) -> bytes:
    """What stands before a field of so many bytes."""
    found = bytearray([number << 3 | _BYTES])
    while length > 127:
        found.append(length & 127 | 128)
        length >>= 7
    return bytes([*found, length])
