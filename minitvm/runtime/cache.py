"""Compiled objects, and what was measured for them, kept on disk between runs.

A file is the SHA-256 of its contents and the contents, named by the key.  Writes are atomic (a rename), so several
processes may share the folder.  An entry that does not match its hash is dropped and compiled again.  A folder that
cannot be written costs one warning, never an error.
"""

import contextlib
import hashlib
import os
import warnings
from pathlib import Path

from minitvm.runtime.archive import write_atomically

LIMIT_BYTES = 1 << 30
_HASH_BYTES = 32
_FOLDERS = 256
"""By the first two digits of the keys."""
_warned: set[str] = set()


class CacheWarning(UserWarning):
    """The kernel cache cannot be used; kernels are compiled each time."""


def cache_key(*parts: str) -> str:
    """The key of what is determined by ``parts``."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode() + part.encode())
    return digest.hexdigest()


class KernelCache:
    """Bytes by key in a folder; off where ``folder`` is ``None``.  ``hits`` and ``misses`` are counted."""

    def __init__(self, folder: Path | None, limit: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self.limit = limit
        self.hits = 0
        self.misses = 0
        self.written: str | None = None
        """The folder of the newest entry."""

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / "objects" / key[:2] / f"{key}.bin"

    def get(self, key: str) -> bytes | None:
        """What was put under ``key``, or ``None``."""
        found = self._read(key) if self.folder is not None else None
        self.hits += found is not None
        self.misses += found is None
        return found

    def _read(self, key: str) -> bytes | None:
        path = self._path(key)
        try:
            stored = path.read_bytes()
        except OSError:  # not there, or not readable: compile
            return None
        data = stored[_HASH_BYTES:]
        is_whole = hashlib.sha256(data).digest() == stored[:_HASH_BYTES]
        with contextlib.suppress(OSError):  # least recently used entries are the ones with the oldest time
            os.utime(path) if is_whole else path.unlink()
        return data if is_whole else None

    def put(self, key: str, data: bytes) -> None:
        """Keep ``data`` under ``key``."""
        if self.folder is None:
            return
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda file: file.write(hashlib.sha256(data).digest() + data))
            self.written = path.parent.name
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if str(self.folder) in _warned:
            return
        _warned.add(str(self.folder))
        warnings.warn(
            f"the kernel cache {self.folder} cannot be written ({error.strerror}); kernels are compiled each time. "
            "Set MINITVM_CACHE_DIR to a writable folder, or to nothing to turn the cache off.",
            CacheWarning,
            stacklevel=4,
        )

    def trim_where_due(self) -> None:
        """:meth:`trim`, where the folder that was written to holds an eighth more than its share.

        Keys are spread evenly over the folders; to look at all entries would take as long as to compile a few.
        """
        if self.written is None:
            return
        share = sum(size for _, size, _ in self._entries(self.written))
        if share * _FOLDERS > self.limit * 9 / 8:
            self.trim()

    def trim(self) -> None:
        """Delete the least recently used entries until the folder is within its limit."""
        if self.folder is None:
            return
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self.limit:
                return
            with contextlib.suppress(OSError):  # another process was faster
                path.unlink()
            total -= size

    def _entries(self, folder: str = "*") -> list[tuple[float, int, Path]]:
        assert self.folder is not None
        found = []
        for path in self.folder.glob(f"objects/{folder}/*.bin"):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        return found
