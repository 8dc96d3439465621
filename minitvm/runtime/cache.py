"""Compiled objects, and what was measured for them, kept on disk between runs.

A file is named by its key, and is the SHA-256 of key and contents, and the contents.  Writes are atomic (a rename), so
several processes may share the folder.  An entry that does not match its hash, or is none that this user wrote, is
dropped and compiled again.  A folder that cannot be written, or that others can write to, costs one warning, never an
error.

Code from here runs in this process: whoever can write to the folder is trusted with as much, and only this user is, and
root.
"""

import contextlib
import functools
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from minitvm.errors import warn
from minitvm.runtime.container import Data, write_atomically

LIMIT_BYTES = 1 << 30
MOST_BYTES = LIMIT_BYTES // 16
"""Of an entry: what is larger is not kept, and not read."""
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

    places = "objects/{}/*.bin"
    """Of the entries whose keys begin so."""

    def __init__(self, folder: Path | None, limit: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self.limit = limit
        self.hits = 0
        self.misses = 0
        self.written: str | None = None
        """The folder of the newest entry."""

    @functools.cached_property
    def refusal(self) -> str | None:
        """The reason why the folder is not used, though there is one."""
        return None if self.folder is None else _why_not_trusted(self.folder)

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / self.places.format(key[:2]).replace("*", key)

    def is_usable(self) -> bool:
        """True if there is a folder that can be trusted; warns of one that cannot be."""
        if self.refusal is not None:
            self._warn(f"is not used: {self.refusal}", "Give it to this user alone, or set", "folder of this user's")
        return self.folder is not None and self.refusal is None

    def key(self, *parts: str) -> str:
        """The key of what is determined by ``parts``."""
        return cache_key(*parts)

    def get(self, key: str) -> bytes | None:
        """What was put under ``key``, or ``None``."""
        found = self._read(key) if self.is_usable() else None
        self.hits += found is not None
        self.misses += found is None
        return found

    def _read(self, key: str) -> bytes | None:
        path = self._path(key)
        try:
            stored = _contents(path)
        except OSError:  # not there, or not readable: compile
            return None
        data = stored[_HASH_BYTES:]
        is_whole = _digest(key, data) == stored[:_HASH_BYTES]
        with contextlib.suppress(OSError):  # least recently used entries are the ones with the oldest time
            os.utime(path) if is_whole else path.unlink()
        return data if is_whole else None

    def put(self, key: str, data: bytes) -> None:
        """Keep ``data`` under ``key``."""
        if self.is_usable() and len(data) <= MOST_BYTES - _HASH_BYTES:
            self._write(key, [_digest(key, data), data])

    def _write(self, key: str, pieces: Iterable[Data]) -> bool:
        """An entry as a whole; whether there is one now."""
        assert self.folder is not None
        path = self._path(key)
        try:
            if not self.folder.exists():
                self.folder.mkdir(0o700, parents=True, exist_ok=True)
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
            write_atomically(path, lambda file: file.writelines(pieces), 0o600)
            self.written = path.parent.name
        except OSError as error:
            self._warn(f"cannot be written ({error.strerror})", "Set", "writable folder")
            return False
        return True

    def _warn(self, why: str, remedy: str, folder: str) -> None:
        if str(self.folder) in _warned:
            return
        _warned.add(str(self.folder))
        warn(
            f"the kernel cache {self.folder} {why}; kernels are compiled each time. "
            f"{remedy} MINITVM_CACHE_DIR to a {folder}, or to nothing to turn the cache off.",
            CacheWarning,
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
        if not self.is_usable():
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
        for path in self.folder.glob(self.places.format(folder)):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        return found


def _digest(key: str, data: bytes) -> bytes:
    """Of an entry with its key: one in another's place is none."""
    return hashlib.sha256(f"{key}:".encode() + data).digest()


_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Opening waits for nobody at a pipe's other end, and follows no link."""


def _contents(path: Path) -> bytes:
    """The bytes of an entry; none of what is no ordinary file of this user's, or is larger than any entry.

    ``OSError`` where nothing can be read."""
    with opened(path, MOST_BYTES) as file:
        return b"" if file is None else file.read(MOST_BYTES)


@contextlib.contextmanager
def opened(path: Path, most: int) -> Iterator[BinaryIO | None]:
    """An entry to read; ``None`` for what is no ordinary file of this user's, or has more bytes.

    ``OSError`` where there is none."""
    if not stat.S_ISREG(path.lstat().st_mode):  # to open a device may be to do something
        yield None
        return
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _PLAIN)) as file:
        status = os.fstat(file.fileno())
        is_entry = stat.S_ISREG(status.st_mode) and status.st_size <= most and _why_others(status) is None
        yield file if is_entry else None


# --- who can write there ----------------------------------------------------------------------------------------------


def _why_not_trusted(folder: Path) -> str | None:
    """The reason why others decide what lies in the folder: it is another user's, or others can write to it, or anybody
    can put another one in its place.  ``None`` where nobody does, it is not there, or the system knows no users."""
    for end in (folder, Path(os.path.realpath(folder))):
        for path, why_not in ((end, _why_others), *((parent, _why_anybody) for parent in end.absolute().parents)):
            with contextlib.suppress(OSError):  # not there: made when it is needed, for this user alone
                why = why_not(path.lstat())
                if why is not None:
                    return f"{'it' if path == folder else path} {why}"
    return None


def _why_others(status: os.stat_result) -> str | None:
    if not hasattr(os, "geteuid"):
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (number {status.st_uid})"
    if status.st_mode & 0o022 and not stat.S_ISLNK(status.st_mode):
        return f"can be written to by others (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def _why_anybody(status: os.stat_result) -> str | None:
    """Folders such as ``/tmp`` are everybody's, too, but with the bit that lets only owners rename."""
    is_open = status.st_mode & 0o002 and not status.st_mode & stat.S_ISVTX and stat.S_ISDIR(status.st_mode)
    return f"can be written to by anybody (mode {stat.S_IMODE(status.st_mode):o})" if is_open else None
