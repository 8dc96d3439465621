"""Parameter dictionaries as bytes, in the layout of TVM's ``save_param_dict``, so that either can read the other's.

Little endian: u64 magic, u64 0; the names (u64 count, then u64 length and UTF-8 each); u64 count; per array: u64
magic, u64 0, i32 device type and id, i32 rank, u8 kind, u8 bits, u16 lanes, i64 per dimension, i64 bytes, the data.
"""

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from minitvm.errors import InputError, LibraryError
from minitvm.ir.arrays import aligned_empty
from minitvm.ir.dtypes import DTYPES, bits_of, packed, packed_bytes, unpacked
from minitvm.runtime.ndarray import NDArray

_LIST_MAGIC = 0xF7E58D4F05049CB7
_ARRAY_MAGIC = 0xDD5E40F096B4A13F
_KINDS = {
    "bfloat16": 4,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
    "float4_e2m1fn": 17,
}
"""DLPack's, of dtypes that are neither integers (0), unsigned (1) nor IEEE floats (2)."""


def _code(dtype: str) -> tuple[int, int]:
    """Kind and bits."""
    if dtype == "bool":
        return 1, 1
    return _KINDS.get(dtype, "iuf".find(dtype[0])), bits_of(dtype)


_CODES = {name: _code(name) for name in DTYPES}
_DTYPES = {code: name for name, code in _CODES.items()}


def _save_array(value: np.ndarray) -> bytes:
    data = packed(value)
    head = (_ARRAY_MAGIC, 0, 1, 0, value.ndim, *_CODES[value.dtype.name], 1, *value.shape, len(data))
    return struct.pack(f"<QQiiiBBH{value.ndim}qq", *head) + data


def save_param_dict(params: Mapping[str, Any]) -> bytes:
    """The arrays (numpy or NDArray) by name, as bytes; :class:`LibraryError` for what the layout cannot hold."""
    if not isinstance(params, Mapping):
        raise LibraryError(f"the parameters are a {type(params).__name__}, not a dictionary of arrays by name")
    arrays = {name: np.asarray(value) for name, value in params.items()}
    for name, array in arrays.items():
        if not isinstance(name, str) or array.dtype.name not in _CODES:
            raise LibraryError(
                f"parameter {name!r} cannot be saved: it is {array.dtype.name}",
                hint="parameters are arrays of booleans, integers or floats by name",
            )
    count, texts = struct.pack("<Q", len(arrays)), [name.encode() for name in arrays]
    names = [struct.pack("<Q", len(text)) + text for text in texts]
    head = struct.pack("<QQ", _LIST_MAGIC, 0)
    return b"".join([head, count, *names, count, *map(_save_array, arrays.values())])


class _Reader:
    def __init__(self, data: bytes | memoryview) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise LibraryError(
                f"the parameters are a {type(data).__name__}, not bytes", hint="pass what save_param_dict returned"
            )
        self.data = memoryview(data)
        self.at = 0

    def take(self, nbytes: int) -> memoryview:
        if not 0 <= nbytes <= len(self.data) - self.at:
            raise LibraryError(
                f"the parameters are truncated: {nbytes} bytes wanted at {self.at} of {len(self.data)}",
                hint="save them again with save_param_dict",
            )
        self.at += nbytes
        return self.data[self.at - nbytes : self.at]

    def unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def magic(self, expected: int) -> None:
        found, _ = self.unpack("<QQ")
        if found != expected:
            raise LibraryError(
                f"this is not a parameter file: it starts with {found:#x}, not {expected:#x}",
                hint="save one with save_param_dict(lib.params)",
            )


def _load_array(reader: _Reader) -> np.ndarray:
    reader.magic(_ARRAY_MAGIC)
    _, _, rank, kind, bits, lanes = reader.unpack("<iiiBBH")
    if not 0 <= rank <= 32:
        raise LibraryError(f"the parameters hold an array of rank {rank}")
    shape = reader.unpack(f"<{rank}q")
    if (kind, bits) not in _DTYPES or lanes != 1:
        raise LibraryError(f"the parameters hold a dtype that is not known: kind {kind}, {bits} bits, {lanes} lanes")
    dtype = _DTYPES[kind, bits]
    (nbytes,) = reader.unpack("<q")
    if min(shape, default=0) < 0 or nbytes != packed_bytes(dtype, math.prod(shape)):
        raise LibraryError(f"the parameters hold {nbytes} bytes for an array of shape {shape}, {dtype}")
    data = unpacked(reader.take(nbytes), dtype, math.prod(shape))
    try:
        array = aligned_empty(shape, dtype)
    except InputError as error:
        raise LibraryError(f"the parameters hold an array that there is no room for: {error.message}") from error
    array[...] = data.reshape(shape)
    return array


def _name(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise LibraryError("the parameters hold a name that is not text", hint="the bytes are damaged") from error


def load_arrays(data: bytes | memoryview) -> dict[str, np.ndarray]:
    """The arrays by name, 64-byte aligned; :class:`LibraryError` where the bytes are not what was saved."""
    reader = _Reader(data)
    reader.magic(_LIST_MAGIC)
    (count,) = reader.unpack("<Q")
    names = []
    for _ in range(count):
        (length,) = reader.unpack("<Q")
        names.append(_name(bytes(reader.take(length))))
    (arrays,) = reader.unpack("<Q")
    if arrays != count:
        raise LibraryError(f"the parameters hold {count} names but {arrays} arrays")
    return {name: _load_array(reader) for name in names}


def load_param_dict(data: bytes) -> dict[str, NDArray]:
    """What :func:`save_param_dict` wrote."""
    return {name: NDArray(value) for name, value in load_arrays(data).items()}
