"""Memory between pages that nobody may touch."""

import ctypes
import mmap
import re

import numpy as np

_PAGE = mmap.PAGESIZE
_ALIGN = 16
_libc = ctypes.CDLL(None, use_errno=True)
_POISON = 0xFF  # NaN, as a float of any width
_ADDRESS = re.compile(r"address (0x[0-9a-f]+)")


class Guarded:
    """A copy of an array's bytes that lies at the end (or at the start) of pages of its own.

    A pointer is to be good for accesses of 16 bytes, as on a GPU; what is left beside the bytes is poisoned.
    """

    def __init__(self, array: np.ndarray, at_end: bool = True) -> None:
        assert array.flags.c_contiguous
        self.nbytes = array.nbytes
        room = -(-max(self.nbytes, 1) // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, room + 2 * _PAGE)
        whole = np.frombuffer(self._map, np.uint8)
        start = whole.ctypes.data
        for page in (start, start + _PAGE + room):
            if _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        self._inside = whole[_PAGE : _PAGE + room]
        self._from = (room - self.nbytes) // _ALIGN * _ALIGN if at_end else 0
        self.address = start + _PAGE + self._from
        self._beside()[0][...] = self._beside()[1][...] = _POISON
        self._bytes()[...] = array.reshape(-1).view(np.uint8)

    def _bytes(self) -> np.ndarray:
        return self._inside[self._from : self._from + self.nbytes]

    def _beside(self) -> tuple[np.ndarray, np.ndarray]:
        return self._inside[: self._from], self._inside[self._from + self.nbytes :]

    def is_overrun(self) -> bool:
        """Whether anything was stored beside the bytes."""
        return any((part != _POISON).any() for part in self._beside())

    def copy_to(self, array: np.ndarray) -> None:
        array.reshape(-1).view(np.uint8)[...] = self._bytes()

    def describe(self, message: str, name: str) -> str | None:
        """Where an address that a message names lies, if it is near."""
        found = _ADDRESS.search(message)
        if found is None:
            return None
        offset = int(found[1], 16) - self.address
        if not -self._from - _PAGE <= offset < len(self._inside) - self._from + _PAGE:
            return None
        return f"byte {offset} of {name}, which has {self.nbytes}"
