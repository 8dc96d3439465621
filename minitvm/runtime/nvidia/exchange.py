"""Arrays between libraries without a copy: DLPack, its legacy and its versioned capsules, by ctypes.

The structures are those of DLPack 1.0 (github.com/dmlc/dlpack, include/dlpack/dlpack.h).
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitvm.errors import InputError

CUDA = 2
"""DLPack's number of the kind of device."""
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_KINDS = {code: kind for kind, code in _CODES.items()}


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Legacy(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_NAMES: dict[type[Any], tuple[bytes, bytes]] = {
    _Legacy: (b"dltensor", b"used_dltensor"),
    _Versioned: (b"dltensor_versioned", b"used_dltensor_versioned"),
}
"""Of capsules, before and after somebody took them; Python keeps the pointers, so these live as long as it does."""

_python = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _python)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _python))

# --- out --------------------------------------------------------------------------------------------------------------

_given_out: dict[int, tuple[Any, ...]] = {}
"""By address of the structure: it, and what it keeps alive."""


def _let_go(address: int) -> None:
    _given_out.pop(address, None)


def _dropped(capsule: int) -> None:
    """The end of a capsule: what nobody took is let go."""
    for fresh, _ in _NAMES.values():
        if _is_valid(capsule, fresh):
            _given_out.pop(_pointer(capsule, fresh), None)


_on_release = _Deleter(_let_go)
_on_end = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_dropped)


def capsule(owner: Any, address: int, shape: Sequence[int], dtype: np.dtype[Any], index: int, versioned: bool) -> Any:
    """Row-major memory of GPU ``index`` as a capsule that keeps ``owner`` alive."""
    if dtype.kind not in _CODES:
        raise InputError(f"DLPack has no word for arrays of {dtype.name}")
    kind = _Versioned if versioned else _Legacy
    made: Any = kind(major=1, minor=0) if versioned else kind()
    extents = (ctypes.c_int64 * len(shape))(*shape)
    strides = (ctypes.c_int64 * len(shape))(*(math.prod(shape[axis + 1 :]) for axis in range(len(shape))))
    number = _Type(_CODES[dtype.kind], 8 * dtype.itemsize, 1)
    made.tensor = _Tensor(address, _Device(CUDA, index), len(shape), number, extents, strides, 0)
    made.deleter = _on_release
    _given_out[ctypes.addressof(made)] = (made, extents, strides, owner)
    return _new(ctypes.addressof(made), _NAMES[kind][0], ctypes.cast(_on_end, ctypes.c_void_p))


# --- in ---------------------------------------------------------------------------------------------------------------


@dataclass
class Taken:
    """What a capsule holds; the library that made it is told when this is collected."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """In elements."""
    dtype: np.dtype[Any]
    index: int
    release: Callable[[], object]

    def __del__(self) -> None:
        self.release()


def taken(found: Any) -> Taken:
    """Take what a capsule holds; nobody else can from now on."""
    for kind, (fresh, used) in _NAMES.items():
        if _is_valid(id(found), fresh):
            address = _pointer(id(found), fresh)
            held = kind.from_address(address)
            _rename(found, used)
            return _described(held.tensor, functools.partial(held.deleter, address) if held.deleter else int)
    raise InputError(f"{found!r} is no DLPack capsule, or somebody took what it held")


def _described(tensor: _Tensor, release: Callable[[], object]) -> Taken:
    rank, number = tensor.ndim, tensor.dtype
    strides = tuple(tensor.strides[:rank]) if tensor.strides else None
    if number.code not in _KINDS or number.lanes != 1:
        release()
        raise InputError(f"DLPack's dtype {number.code}, {number.bits} bits, is none that a model takes")
    kind = np.dtype("bool") if number.code == _CODES["b"] else np.dtype(f"{_KINDS[number.code]}{number.bits // 8}")
    address = (tensor.data or 0) + tensor.byte_offset
    return Taken(address, tuple(tensor.shape[:rank]), strides, kind, tensor.device.index, release)


def is_row_major(shape: Sequence[int], strides: Sequence[int] | None, unit: int = 1) -> bool:
    """True if elements follow each other as those of a new array do; strides are in elements, or in bytes."""
    if strides is None or 0 in shape:
        return True
    wanted = [unit * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return all(have == want for have, want, extent in zip(strides, wanted, shape, strict=True) if extent > 1)
