"""Arrays as kernels want them, and once: equal weights of several compiled models are one array."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import mmap
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from minitvm.errors import InputError

ALIGNMENT = 64
"""Bytes: what kernels expect of every buffer (a cache line, and the widest vector register)."""

WORTH_SHARING = 64 * 1024
"""Bytes, below which an array is not looked for among those that are there."""

_SAMPLE = 16
"""Elements by which arrays are found; then all are compared."""


_DATA = object.__basicsize__
"""Where an array object holds its address, behind the head that all objects have (numpy's ``PyArrayObject``)."""


def _named(array: np.ndarray) -> int:
    return array.ctypes.data


def _read(array: np.ndarray) -> int:
    """As ``array.ctypes.data``, which takes 1 us."""
    return _POINTER.from_address(id(array) + _DATA).value or 0


_POINTER = ctypes.c_size_t


def _is_there(sample: np.ndarray) -> bool:
    return sys.implementation.name == "cpython" and all(_read(a) == _named(a) for a in (sample, sample[3:]))


address_of = _read if _is_there(np.zeros(8)) else _named
"""Where an array's elements are."""


def aligned_empty(shape: Sequence[int], dtype: Any, lasts: bool = False) -> np.ndarray:
    """A new row-major array whose first element lies on a 64-byte boundary; contents undefined.  What is large
    and ``lasts`` lies in large pages."""
    kind = np.dtype(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    try:
        memory = (empty_pages if lasts and nbytes >= WORTH_SHARING else np.empty)((nbytes + ALIGNMENT,), np.uint8)
        start = -address_of(memory) % ALIGNMENT
        found: np.ndarray = memory[start : start + nbytes].view(kind).reshape(tuple(shape))
    except (MemoryError, ValueError, OverflowError, OSError) as error:
        raise InputError(
            f"{nbytes:,} bytes of memory cannot be had, for {kind.name} of shape {tuple(shape)}",
            hint="run the model on smaller inputs",
        ) from error
    return found


def aligned(value: np.ndarray) -> np.ndarray:
    """``value`` itself where it is row-major and on a 64-byte boundary, else a copy that is."""
    if value.flags.c_contiguous and address_of(value) % ALIGNMENT == 0 and value.dtype.isnative:
        return value
    copy = aligned_empty(value.shape, value.dtype.newbyteorder("="))
    copy[...] = value
    return copy


# --- once -----------------------------------------------------------------------------------------------------

_Key: TypeAlias = tuple[str, tuple[int, ...], bytes]
_alive: dict[_Key, list[weakref.ref[np.ndarray]]] = {}
_lock = threading.RLock()  # a collection may end an array's life, and forget it, while another one is looked for


def shared(value: np.ndarray) -> np.ndarray:
    """An array of the same dtype, shape and bytes that is alive already, whoever made it; or ``value``, aligned.

    It is not to be written to from now on.  What lies in a mapped file is copied: the file may change.
    """
    if value.nbytes < WORTH_SHARING or not value.dtype.isnative or value.dtype.hasobject:
        return aligned(value)
    if not value.flags.c_contiguous:
        value = _in_pages(value)
    key = (value.dtype.name, value.shape, value.reshape(-1)[:: -(-value.size // _SAMPLE)].tobytes())
    with _lock:
        for reference in _alive.get(key, ()):
            known = reference()
            if known is not None and (known is value or _same_bytes(known, value)):
                return known
        found = value if _is_kept(value) else _in_pages(value)
        _alive.setdefault(key, []).append(weakref.ref(found, lambda dead: _forget(key, dead)))
        return found


def lasting(value: np.ndarray) -> np.ndarray:
    """A new array as :func:`shared`; a view of one that nobody can write to as it is."""
    return value if _owner(value) is not value and not value.flags.writeable else shared(value)


class Named(mmap.mmap):
    """Memory that nobody writes to, with a name that no other has as long as there is a process."""

    name: Hashable


class Pages(Named):
    """Memory of its own for arrays that lie one after the other.  What lives long among what is soon gone would keep
    the heap from shrinking."""

    used = 0

    def __new__(cls, nbytes: int) -> Pages:
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        found = super().__new__(cls, -1, nbytes, **private)
        if _CHUNK:
            found.madvise(mmap.MADV_HUGEPAGE)
        found.name = next(_numbers)
        return found


_CHUNK = hasattr(mmap, "MADV_HUGEPAGE") << 25
"""Bytes that arrays share, so that they lie in large pages, which are read up to twice as fast as small ones; 0 where
the system has none.  What nobody has written to is no memory, and what an array had goes back with it."""
_numbers = itertools.count()
_open = [Pages(1)]


class Mapped(Named):
    """A file that nobody writes to any more, as memory."""

    def __new__(cls, file: int) -> Mapped:
        found = super().__new__(cls, file, 0, access=mmap.ACCESS_READ)
        found.name = next(_numbers)
        return found


def row_major(value: np.ndarray) -> np.ndarray:
    """``value`` itself where it is, else a copy; a large one as :func:`shared` keeps it, which copies it no more."""
    if value.flags.c_contiguous or value.nbytes < WORTH_SHARING or value.dtype.hasobject:
        return np.ascontiguousarray(value)
    return _in_pages(value)


def _in_pages(value: np.ndarray) -> np.ndarray:
    """A copy that nobody can write to.  Of a mapped file what was copied leaves memory, piece by piece."""
    found = empty_pages(value.shape, value.dtype)
    for piece in _pieces(value):
        found[piece] = value[piece]
        let_go(value[piece])
    found.setflags(write=False)
    return found


def _pieces(value: np.ndarray) -> Iterable[Any]:
    """Rows that have some megabytes together, of an array with many; else all of it."""
    if value.nbytes <= _COPIED or not value.flags.c_contiguous:
        return [...]
    rows = max(1, len(value) * _COPIED // value.nbytes)
    return (slice(start, start + rows) for start in range(0, len(value), rows))


def empty_pages(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array to be filled, in memory of its own; one of no bytes anywhere.  Who made it forbids to write to it."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    room = nbytes + -nbytes % mmap.PAGESIZE
    with _lock:
        pages = _open[0]
        if room > len(pages) - pages.used:
            pages = _open[0] = Pages(max(room, _CHUNK))
        start, pages.used = pages.used, pages.used + room
    found: np.ndarray = np.ndarray(shape, dtype, pages, start)
    if _CHUNK:
        weakref.finalize(found, pages.madvise, mmap.MADV_DONTNEED, start, room).atexit = False
    return found


def _is_kept(value: np.ndarray) -> bool:
    """True if an array is where kernels want it, and nobody else can write to its memory."""
    owner = _owner(value)
    ours = not owner.flags.writeable and (owner.base is None or isinstance(_memory(owner), (Pages, Mapped)))
    return ours and value.flags.c_contiguous and address_of(value) % ALIGNMENT == 0


def _owner(value: np.ndarray) -> np.ndarray:
    """The array that it is a view of."""
    while isinstance(value.base, np.ndarray):
        value = value.base
    return value


def _memory(owner: np.ndarray) -> Any:
    """What an array that is no view of another one lies in."""
    return owner.base.obj if isinstance(owner.base, memoryview) else owner.base


# --- what was made of them --------------------------------------------------------------------------------------

_made: weakref.WeakValueDictionary[Hashable, np.ndarray] = weakref.WeakValueDictionary()


def remembered(how: Hashable, of: Sequence[Any], make: Callable[[], Any]) -> Any:
    """What ``make`` makes ``of`` these arrays, ``how`` says in which way; what was made so before, where it is alive.

    So a model that is compiled again, for other shapes, neither reads its weights nor packs them again.
    """
    names = tuple(map(_name, of))
    if None in names:
        return make()
    found = _made.get((how, names))
    if found is None:
        found = make()
        if isinstance(found, np.ndarray) and found.nbytes >= WORTH_SHARING:
            _made[how, names] = found
    return found


def _name(value: Any) -> Hashable | None:
    """What tells an array from every other one: where its memory never changes, or all that is in it."""
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        return None
    kind = (value.dtype.name, value.shape)
    if value.nbytes < WORTH_SHARING:
        return kind, value.tobytes()
    memory = _memory(_owner(value))
    if not isinstance(memory, Named):
        return None
    return kind, value.strides, memory.name, value.ctypes.data - np.frombuffer(memory, np.uint8).ctypes.data


def trim() -> None:
    """What was freed, and the heap keeps, goes back to the system, where the C library can do that."""
    with contextlib.suppress(AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def let_go(value: np.ndarray) -> None:
    """Lets what was read of an array in a mapped file leave memory; it is read again where somebody asks for it."""
    owner = _owner(value)
    memory, owner = owner.base, value if value.flags.c_contiguous else owner
    if isinstance(memory, mmap.mmap) and not isinstance(memory, Pages) and hasattr(mmap, "MADV_DONTNEED"):
        start = owner.ctypes.data - np.frombuffer(memory, np.uint8).ctypes.data
        first, last = (edge + -edge % mmap.PAGESIZE for edge in (start, start + owner.nbytes))
        if first < last:
            memory.madvise(mmap.MADV_DONTNEED, first, min(last, len(memory)) - first)


_COPIED = 1 << 22
"""Bytes that are compared, and copied, at a time."""


def _same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """True if nothing tells two arrays of one type apart, neither zeros of two signs nor two kinds of NaN."""
    one, other = (array.reshape(-1).view(np.uint8) for array in (a, b))
    return all(np.array_equal(one[piece], other[piece]) for piece in _pieces(one))  # as many booleans at a time


def _forget(key: _Key, dead: weakref.ref[np.ndarray]) -> None:
    with _lock:
        left = [reference for reference in _alive.pop(key, ()) if reference is not dead]
        if left:
            _alive[key] = left
