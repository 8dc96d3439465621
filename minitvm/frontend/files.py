"""The files of a model as they were when they were opened, whatever is written to their paths afterwards.

A file that is deleted, or that another one is renamed over, lives on as long as it is open, and its bytes with it.
One that is written to in place is told by its size and time, and is an error from then on.  Few bytes may be kept in
memory (:meth:`Files.keep`), for which not even that matters.

Large tensors are not read but mapped: what was read of them may leave memory again (``ir.arrays.let_go``).
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
import weakref
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np

from minitvm.errors import FrontendError
from minitvm.ir.arrays import Named, Pages

KEPT = 16 << 20
"""Bytes of all files of a model together, up to which they are kept in memory."""

_BLOCK = 4096


class File:
    """An open file; ``FrontendError`` where it is none that can be read twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
        self._file, self._close = descriptor, weakref.finalize(self, os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # to read a pipe waits for its other end
            raise FrontendError(f"{path} is not an ordinary file", hint="give the path of an .onnx file")
        self._state = self._as_it_is()
        self._memory: Pages | None = None
        self._start, self._block = 0, b""

    def _as_it_is(self) -> tuple[int, ...]:
        found = os.fstat(self._file)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def identity(self) -> tuple[int, ...]:
        """What tells this file from others and from itself, once it is written to: its number, size and times, that of
        its last change of any kind among them, which no program sets."""
        found = os.fstat(self._file)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def __len__(self) -> int:
        return self._state[2]

    def at(self, place: int) -> int:
        """The byte at a place.  Of a mapping, megabytes around each place would stay in memory."""
        if not 0 <= place - self._start < len(self._block):
            self._start, self._block = place, self._read(place, _BLOCK)
        return self._block[place - self._start]

    def __getitem__(self, places: slice) -> bytes:
        start, stop, _ = places.indices(len(self))
        return self._read(start, max(0, stop - start))

    def _read(self, start: int, nbytes: int) -> bytes:
        return os.pread(self._file, nbytes, start) if self._memory is None else self._memory[start : start + nbytes]

    def require_unchanged(self) -> None:
        """:class:`FrontendError` where the file is no longer what it was."""
        if self._memory is None and self._as_it_is() != self._state:
            raise FrontendError(
                f"{self.path} was written to after it was opened",
                hint="write to another file and rename it, or open the model again",
            )

    def whole(self) -> mmap.mmap | bytes:
        """The file's bytes.  Where they are not kept the file is mapped, while somebody has the mapping or an array in
        it."""
        if self._memory is not None or not len(self):
            return self._memory or b""
        self.require_unchanged()
        with _lock:
            found = _maps.get(self._state)
            if found is None:
                found = _maps[self._state] = Named(self._file, 0, access=mmap.ACCESS_READ)
                found.name = self._state
            return found

    def array(self, dtype: str, shape: Sequence[int], offset: int) -> np.ndarray:
        """An array in the file, which nobody may write to."""
        found: np.ndarray = np.ndarray(tuple(shape), np.dtype(dtype).newbyteorder("<"), self.whole(), offset)
        found.setflags(write=False)
        return found

    def keep(self) -> None:
        """Reads the bytes into memory, from where they are taken from now on, and closes the file."""
        if self._memory is None and len(self):
            memory = Pages(len(self))
            for start in range(0, len(self), KEPT):
                piece = self._read(start, KEPT)
                memory[start : start + len(piece)] = piece
            self.require_unchanged()
            self._memory = memory
            self._close()


_lock = threading.Lock()
_maps: weakref.WeakValueDictionary[Hashable, Named] = weakref.WeakValueDictionary()
"""Files that are mapped now."""


class Files:
    """The folder of a model (``""`` where it came from memory), and what was opened in it, by location."""

    def __init__(self, folder: str = "") -> None:
        self.folder = folder
        self.opened: dict[str, File] = {}

    def require_unchanged(self) -> None:
        for file in [*self.opened.values()]:
            file.require_unchanged()

    def keep(self) -> bool:
        """Keep in memory what is open, where it is little; whether anything is kept."""
        found = [*self.opened.values()]
        if sum(map(len, found)) > KEPT:
            return False
        for file in found:
            file.keep()
        return bool(found)
