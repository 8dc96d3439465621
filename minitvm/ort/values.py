"""ONNX Runtime's ``OrtValue``: a value of a model, on the host or a GPU, that is handed on without a copy."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from minitvm.errors import InputError
from minitvm.ir.arrays import aligned_empty
from minitvm.ir.types import STRING, TensorType, numpy_dtype
from minitvm.ort.errors import BindingError, OptionTypeError
from minitvm.runtime.devices import HOST, Device, device_of, memory_of
from minitvm.runtime.ndarray import NDArray

ELEMENTS = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: STRING, 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16", 17: "float8_e4m3fn",
    18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4_e2m1fn",
    24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}  # fmt: skip
"""dtypes by the numbers of ONNX's element types (``onnx.TensorProto.FLOAT`` is 1); those of complex numbers, 14 and 15,
are left out, as nothing here computes them."""
NUMBERS = {dtype: number for number, dtype in ELEMENTS.items()}
_NAMES = {
    "float32": "float", "float64": "double", "float8_e4m3fn": "float8e4m3fn", "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2", "float8_e5m2fnuz": "float8e5m2fnuz", "float8_e8m0fnu": "float8e8m0",
    "float4_e2m1fn": "float4e2m1",
}  # fmt: skip
"""Of dtypes that ONNX Runtime calls otherwise."""


def dtype_of(element_type: Any) -> str:
    """The dtype of what numpy takes for one, or of ONNX's number of an element type; :class:`InputError` otherwise."""
    if isinstance(element_type, int) and not isinstance(element_type, bool):
        if element_type in ELEMENTS:
            return ELEMENTS[element_type]
        raise InputError(f"ONNX's element type {element_type} is not supported")
    try:
        found = str(element_type) if isinstance(element_type, str) else np.dtype(element_type).name
        found = STRING if np.dtype(numpy_dtype(found)).kind in "OUS" else found
    except TypeError:
        found = repr(element_type)
    if found not in NUMBERS:
        raise InputError(f"{found} is no type of a tensor's elements", hint="such as numpy.float32, or ONNX's number")
    return found


def tensor_text(dtype: str) -> str:
    """``tensor(float)``: the type of a tensor in ONNX Runtime's words."""
    return f"tensor({_NAMES.get(dtype, dtype)})"


def dtype_of_text(text: str) -> str:
    """The dtype of such a type; :class:`InputError` of another one."""
    found = next((dtype for dtype in NUMBERS if tensor_text(dtype) == text), None)
    if found is None:
        raise InputError(f"{text} is no type of a tensor", hint="such as tensor(float)")
    return found


def device_named(device_type: str, device_id: int = 0) -> Device:
    """A device in ONNX Runtime's words; :class:`InputError` for a kind that is not here."""
    kinds = {"cpu": "cpu", "cuda": "cuda", "gpu": "cuda"}
    if str(device_type).lower() not in kinds:
        raise InputError(f"there are no devices {device_type!r}", hint="'cpu' or 'cuda'")
    return Device(kinds[str(device_type).lower()], device_id)


class OrtDevice:
    """A kind of device and its number."""

    def __init__(self, device: Device) -> None:
        self._device = device

    @staticmethod
    def make(ort_device_name: str, device_id: int = 0, vendor_id: int = -1) -> OrtDevice:
        """The device of a name, ``cpu`` or ``cuda``; a vendor's number changes nothing."""
        return OrtDevice(device_named(ort_device_name, device_id))

    def device_id(self) -> int:
        return self._device.index

    def device_type(self) -> int:
        """0 for the host, 1 for a GPU."""
        return int(self._device.kind != "cpu")


class OrtValue:
    """A tensor on a device, or a sequence, a map, an optional on the host.

    ``run``, ``run_with_ort_values`` and bindings read a tensor where it is; :meth:`numpy` is a view of it.
    """

    def __init__(self, data: Any, where: Device = HOST.device, element_type: str | None = None) -> None:
        """``data`` is an array of the host, a value of a device's memory, or what Python holds; made by the functions
        below."""
        self._data, self._device = data, where
        self._dtype = element_type or (_name_of(data.dtype) if hasattr(data, "dtype") else "")

    # --- making one ---

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: np.ndarray, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Over an array's memory on the host, where it is row-major; a copy of it on another device."""
        array = np.asarray(numpy_obj)
        if array.dtype.kind in "OUS":
            raise BindingError("an OrtValue is made of numbers; text is given to run() as an array of str")
        where = device_named(device_type, device_id)
        array = np.ascontiguousarray(array).reshape(array.shape)
        return cls(array if where == HOST.device else memory_of(where).hold(array), where)

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: np.ndarray, /, onnx_element_type: int) -> OrtValue:
        """Over an array's memory, its bytes taken for another type of the same size: bfloat16 in ``uint16``."""
        dtype = np.dtype(numpy_dtype(dtype_of(onnx_element_type)))
        if dtype.itemsize != data.dtype.itemsize:
            raise InputError(f"elements of {data.dtype} cannot be {dtype}: their sizes differ")
        return cls(np.ascontiguousarray(data).view(dtype))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any = None,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: Any = None,
    ) -> OrtValue:
        """New memory, contents undefined.  On a 64-byte boundary, so that kernels can write results there."""
        where, dtype = device_named(device_type, device_id), dtype_of(element_type)
        if dtype == STRING:
            raise BindingError("an OrtValue of text has no memory of its own")
        type_ = TensorType(tuple(shape), dtype)
        if where == HOST.device:
            return cls(aligned_empty(type_.static_shape, dtype, lasts=True))
        return cls(memory_of(where).empty(type_.static_shape, dtype), where)

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """Over the memory of an array of any library, or of a DLPack capsule of the host's memory."""
        if not hasattr(data, "__dlpack__"):
            data = _Capsule(data)
        where = device_of(data)
        return cls(np.from_dlpack(data) if where == HOST.device else memory_of(where).taken(data), where)

    def first(self, places: int, axis: int) -> OrtValue:
        """So many first places along an axis, in the same memory: of a cache with room, what is in use."""
        if not 0 <= places <= self._tensor.shape[axis]:
            raise BindingError(f"{_shown(self._tensor)} has not {places} places along axis {axis}")
        if self._device != HOST.device:
            raise BindingError(f"the first places of a value on {self._device} are no value of their own")
        return OrtValue(self._tensor[(slice(None),) * (axis % self._tensor.ndim) + (slice(places),)])

    # --- what it is ---

    def shape(self) -> list[int]:
        return list(self._tensor.shape)

    def data_type(self) -> str:
        """``tensor(float)``, ``seq(tensor(float))``, ``map(string,tensor(int64))``."""
        return _type_text(self._data)

    def element_type(self) -> int:
        """ONNX's number of the elements' type; 0 for what is no tensor."""
        return NUMBERS[_dtype_name(self._data)] if self.is_tensor() else 0

    def device_name(self) -> str:
        return self._device.kind

    def tensor_size_in_bytes(self) -> int:
        return int(self._tensor.nbytes)

    def has_value(self) -> bool:
        """True if an optional holds something."""
        return self._data is not None

    def is_tensor(self) -> bool:
        return hasattr(self._data, "dtype")

    def is_sparse_tensor(self) -> bool:
        return False

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._data, list) and all(isinstance(one, np.ndarray) for one in self._data)

    @property
    def _tensor(self) -> Any:
        if not self.is_tensor():
            raise BindingError(f"the value is a {self.data_type()}, not a tensor", hint="run() gives it as Python's")
        return self._data

    # --- its data ---

    def data_ptr(self) -> int:
        """The address of the first element."""
        return memory_of(self._device).address(self._tensor)

    def numpy(self) -> np.ndarray:
        """A view of the tensor; a copy of one that is on another device."""
        return np.asarray(self._tensor)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = self.numpy()
        return np.array(found, dtype, copy=True) if copy else np.asarray(found, dtype)

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        """A capsule over the same memory."""
        return self._tensor.__dlpack__(**options, **({} if stream is None else {"stream": stream}))

    def __dlpack_device__(self) -> tuple[int, int]:
        number, index = self._tensor.__dlpack_device__()
        return int(number), int(index)

    def update_inplace(self, data: Any) -> None:
        """Overwrite the tensor with an array, or another value's, of the same number of elements and type."""
        if not isinstance(data, (np.ndarray, OrtValue)):
            raise OptionTypeError(f"data is a {type(data).__name__}, not a numpy array or an OrtValue")
        source = data._tensor if isinstance(data, OrtValue) else np.ascontiguousarray(data)
        mine = self._tensor
        if source.dtype != mine.dtype or source.size != mine.size:
            raise BindingError(
                f"an OrtValue of {_shown(mine)} cannot be overwritten with an array of {_shown(source)}",
                hint="make a new one: OrtValue.ortvalue_from_numpy(array)",
            )
        if isinstance(mine, np.ndarray) and not mine.flags.writeable:
            raise BindingError("the OrtValue is over an array that is read-only")
        memory_of(self._device).write(mine, source.reshape(mine.shape))

    def __repr__(self) -> str:
        held = f"{self.data_type()} {self.shape()}" if self.is_tensor() else self.data_type()
        return f"<OrtValue {held} on {self._device}>"


def value_of(given: Any) -> Any:
    """What a run takes for an input: an :class:`OrtValue`'s data, anything else as it is."""
    if not isinstance(given, OrtValue):
        return given
    return given._data if given._device == HOST.device else NDArray(given._data, given._device)


def held(result: Any, where: Device = HOST.device) -> OrtValue:
    """A result of a run as a value, over the same memory; on another device, a copy there."""
    if where == HOST.device or not isinstance(result, np.ndarray):
        return OrtValue(result)
    return OrtValue(memory_of(where).hold(result), where)


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Overwrite each of ``dst`` with the one of ``src``; the copies are made when it returns, whatever the stream."""
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)


def array_at(address: int, shape: Sequence[int], element_type: Any, where: Device) -> Any:
    """The memory at an address, which its owner keeps alive, as an array of the host or a value of a device."""
    dtype = np.dtype(numpy_dtype(dtype_of(element_type)))
    type_ = TensorType(tuple(shape), dtype_of(element_type))
    if where != HOST.device:
        return memory_of(where).taken(_Pointer(address, type_.static_shape, dtype))
    if type_.nbytes == 0:
        return aligned_empty(type_.static_shape, type_.dtype)
    if not address:
        raise BindingError("the address of the buffer is 0")
    memory = (ctypes.c_uint8 * type_.nbytes).from_address(address)
    return np.ctypeslib.as_array(memory).view(dtype).reshape(type_.static_shape)


class _Pointer:
    """Memory of a GPU as the interface of CUDA arrays tells of it."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": shape, "typestr": dtype.str, "strides": None, "version": 3,
        }  # fmt: skip


class _Capsule:
    """A capsule as an object that gives it away, of the host's memory."""

    def __init__(self, capsule: Any) -> None:
        if type(capsule).__name__ != "PyCapsule":
            raise OptionTypeError(f"a {type(capsule).__name__} has no DLPack")
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def _dtype_name(array: Any) -> str:
    return STRING if array.dtype.kind in "OUS" else _name_of(array.dtype)


@functools.cache
def _name_of(dtype: Any) -> str:  # numpy makes the name up at every call
    return str(dtype.name)


def _type_text(value: Any) -> str:
    if hasattr(value, "dtype"):
        return tensor_text(_dtype_name(value))
    if isinstance(value, dict):
        key, held_ = next(iter(value.items()), ("", np.float32()))
        return f"map({'string' if isinstance(key, str) else 'int64'},{_type_text(np.asarray(held_))})"
    if isinstance(value, list):
        return f"seq({_type_text(value[0]) if value else 'tensor(float)'})"
    return "optional()" if value is None else _type_text(np.asarray(value))


def _shown(array: Any) -> str:
    return f"{array.dtype.name}{list(array.shape)}"
