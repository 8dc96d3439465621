"""Whole libraries, kept on disk between processes: found again they are mapped and linked, and compiled no more.

An entry is one file in the kernel cache's folder, ``libraries/KE/KEY.lib``:

    16 bytes    what kind of file it is
    32 bytes    SHA-256 of all that follows but the parameters
    16 bytes    length of the head, and of the pieces
    head        JSON: the key, where the pieces are, what its maker wants to know of it
    pieces      object code and seals
    parameters  from a page on, each from a 64-byte boundary on

The parameters are most of it, and reading them is most of opening a model.  So they are not hashed but added up, page
by page: damage to a file shows in these sums, which the head holds the SHA-256 of.  Parameters that another entry has
are not written again but borrowed from there.

What is mapped is never written to: entries are replaced by renaming, and live on in a process that has them when they
are deleted.  Many megabytes of parameters are written beside what their process does next; whoever asks for the entry
there, and the process's end, wait for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import struct
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from minitvm.errors import MiniTVMError
from minitvm.ir.arrays import WORTH_SHARING, Mapped, shared
from minitvm.runtime.cache import KernelCache, opened
from minitvm.runtime.container import Data
from minitvm.runtime.document import Json, artifact_of, params_data, sealed, values_form, values_of
from minitvm.runtime.graph import Artifact

LIMIT_BYTES = 2 << 30
_MAGIC, _DIGEST, _LENGTHS = b"minitvm library\1", 32, struct.Struct("<QQ")
_FRONT = len(_MAGIC) + _DIGEST + _LENGTHS.size
_PAGE, _BLOCK = 4096, 1 << 21
_BESIDE = 16 << 20
"""Bytes of parameters from which an entry is written beside the first runs: 500 MB take the system a second."""
_ABANDONED_S = 3600
"""Seconds after which nobody is still writing an entry."""


@dataclass(frozen=True)
class Kept:
    """A library that was kept, and what its maker noted beside it."""

    artifact: Artifact
    notes: Json


def _paged(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _in_blocks(pieces: Iterable[Data]) -> Iterator[Data]:
    """The same bytes, in blocks that are written at once: file systems with large pages make each of them one, which
    takes one entry of the TLB where the file is mapped, not 512."""
    block = bytearray()
    for piece in pieces:
        for start in range(0, len(piece), _BLOCK):
            part, room = memoryview(piece)[start : start + _BLOCK], _BLOCK - len(block)
            block += part[:room]
            if len(block) == _BLOCK:
                yield memoryview(block)
                block = bytearray(part[room:])
    yield memoryview(block)


class LibraryCache(KernelCache):
    """Libraries by key; entries of up to half of the ``limit``."""

    places = "libraries/{}/*.lib"

    def __init__(self, folder: Path | None, limit: int = LIMIT_BYTES) -> None:
        super().__init__(folder, limit)

    def find(self, key: str, borrowers: tuple[str, ...] = ()) -> Kept | None:
        """What was kept under ``key``; ``None`` where nothing is, or nothing whole: that is deleted.

        ``borrowers`` are entries that are being read, and have parameters from this one."""
        found = None
        self._settle(key)
        if self.is_usable() and key not in borrowers:
            path = self._path(key)
            with contextlib.suppress(OSError):
                found = self._mapped(path, (*borrowers, key))
                os.utime(path) if found is not None else path.unlink()
        self.hits += found is not None
        self.misses += found is None
        return found

    def _mapped(self, path: Path, keys: tuple[str, ...]) -> Kept | None:
        with opened(path, self.limit // 2) as file:
            if file is None or not os.fstat(file.fileno()).st_size:
                return None
            memory = Mapped(file.fileno())
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
        with contextlib.suppress(ValueError, KeyError, struct.error, MiniTVMError):  # it is damaged
            return _Reader(memoryview(memory), self, keys).read()
        return None

    def keep(self, key: str, artifact: Artifact, notes: Json = None) -> bool:
        """Keep a library under ``key``; whether it will be: one that is too large, or cannot be saved, is not."""
        self._settle()
        if not self.is_usable() or not is_keepable(artifact):
            return False
        writer = _Writer(self, key)
        head = {"key": key, "form": writer.form(artifact), "notes": notes, "sums": writer.sums.hexdigest()}
        text = json.dumps(head, separators=(",", ":")).encode()
        lengths = _LENGTHS.pack(len(text), writer.pieces.size)
        start = _FRONT + len(text) + writer.pieces.size
        if _paged(start) + writer.params.size > self.limit // 2:
            return False
        digest = hashlib.sha256(lengths + text)
        for piece in writer.pieces.data:
            digest.update(piece)
        between = bytes(_paged(start) - start)
        opening = [_MAGIC, digest.digest(), lengths, text]
        blocks = _in_blocks([*opening, *writer.pieces.data, between, *writer.params.data])
        if writer.params.size < _BESIDE:
            return self._put(key, blocks, writer.own)
        thread = threading.Thread(target=self._put, args=(key, blocks, writer.own), name="minitvm-kept")
        thread.start()
        _writing[str(self.folder)] = key, thread
        return True

    def _put(self, key: str, blocks: Iterable[Data], own: Mapping[str, np.ndarray]) -> bool:
        if not self._write(key, blocks):
            return False
        for name, value in own.items():
            self.lend(value, key, name)
        self.trim()
        return True

    def _settle(self, key: str | None = None) -> None:
        """Waits until an entry is there that is being written to the folder, or whichever is."""
        found = _writing.get(str(self.folder))
        if found is not None and key in (found[0], None):
            found[1].join()

    def trim(self) -> None:
        """Trims as :class:`KernelCache` does; what killed processes left behind as they wrote an entry goes, too."""
        super().trim()
        assert self.folder is not None
        for path in self.folder.glob(self.places.format("*").replace(".lib", ".part")):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink()

    # --- which entry has an array ---

    def lend(self, value: np.ndarray, key: str, name: str) -> None:
        """Lets entries borrow it from this one from now on."""
        identity = id(value)
        if value.nbytes >= WORTH_SHARING:
            lender = (str(self.folder), key, name)
            _lenders[identity] = (weakref.ref(value, lambda _: _lenders.pop(identity, None)), lender)

    def lender(self, value: np.ndarray) -> tuple[str, str] | None:
        """The entry of this folder that has an array, and its name there."""
        array, (folder, key, name) = _lenders.get(id(value), _NOBODY)
        if array is None or array() is not value or folder != str(self.folder) or not self._path(key).exists():
            return None
        return key, name


_Lender: TypeAlias = "tuple[weakref.ref[np.ndarray] | None, tuple[str, str, str]]"
_NOBODY: _Lender = (None, ("", "", ""))
_lenders: dict[int, _Lender] = {}
"""By an array's identity: the folder and the key of the entry that has it, and its name there."""
_alive: weakref.WeakValueDictionary[tuple[str, str], Artifact] = weakref.WeakValueDictionary()
"""Entries in use, by folder and key."""
_writing: dict[str, tuple[str, threading.Thread]] = {}
"""By folder, the entry that was last written beside other work, and who writes it."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_writing.clear)  # a child has no such thread


def is_keepable(artifact: Artifact) -> bool:
    """True if a file can hold it: a library of object code, whose calls in Python have plain attributes."""
    document = sealed(artifact.entry)
    if document is None or any(value.dtype.hasobject for value in artifact.params.values()):
        return False
    hosts = document["hosts"].values()
    branches = [branch for host in artifact.hosts.values() for branch in host.branches.values()]
    return not any("unsaved" in host for host in hosts) and all(map(is_keepable, branches))


# --- writing ----------------------------------------------------------------------------------------------------------


class _Area:
    """Pieces one after the other."""

    def __init__(self) -> None:
        self.data: list[Data] = []
        self.size = 0

    def add(self, *pieces: Data) -> list[int]:
        """The place where they begin, and how many bytes they are."""
        start = self.size
        self.data += pieces
        self.size += sum(map(len, pieces))
        return [start, self.size - start]


class _Writer:
    """What an entry of this key will hold."""

    def __init__(self, cache: LibraryCache, key: str) -> None:
        self._cache, self._key = cache, key
        self.pieces, self.params, self.sums = _Area(), _Area(), hashlib.sha256()
        self.own: dict[str, np.ndarray] = {}

    def form(self, artifact: Artifact, is_branch: bool = False) -> Json:
        lenders = {name: self._cache.lender(value) for name, value in artifact.params.items()}
        borrowed = {name: found for name, found in lenders.items() if found is not None and found[0] != self._key}
        own = {name: value for name, value in artifact.params.items() if name not in borrowed}
        if not is_branch:  # whose names may be those of others
            self.own = own
        branches = {
            node: {attribute: self.form(branch, True) for attribute, branch in host.branches.items()}
            for node, host in artifact.hosts.items()
            if host.branches
        }
        for value in artifact.params.values():  # in the order in which they are read: of branches first
            self.sums.update(_sums(value))
        return {
            "entry": self.pieces.add(artifact.entry),
            "objects": {symbol: self.pieces.add(image) for symbol, image in artifact.objects.items()},
            "branches": branches,
            "params": self.params.add(*params_data(own)),
            "borrowed": borrowed,
            "model": dict(artifact.model),
            "values": values_form(artifact.values),
        }


def _sums(value: np.ndarray) -> bytes:
    """Of each page of an array the sum of its words of 8 bytes, modulo 2**64."""
    data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    whole = len(data) // _PAGE * _PAGE
    rest = np.zeros(_PAGE, np.uint8)
    rest[: len(data) - whole] = data[whole:]
    pages = np.add.reduce(data[:whole].view("<u8").reshape(-1, _PAGE // 8), axis=1, dtype="<u8")
    return bytes(pages.tobytes() + np.add.reduce(rest.view("<u8"), dtype="<u8").tobytes())


# --- reading ----------------------------------------------------------------------------------------------------------


class _Reader:
    """What an entry holds; ``ValueError``, ``KeyError`` and the like where it is damaged."""

    def __init__(self, data: memoryview, cache: LibraryCache, keys: tuple[str, ...]) -> None:
        self._data, self._cache, self._keys = data, cache, keys
        self._sums = hashlib.sha256()

    def read(self) -> Kept:
        data, lengths = self._data, self._data[_FRONT - _LENGTHS.size : _FRONT]
        head_size, pieces_size = _LENGTHS.unpack(lengths)
        self._pieces = _FRONT + head_size
        end = self._pieces + pieces_size
        digest = hashlib.sha256(data[_FRONT - _LENGTHS.size : end]).digest()
        if data[: len(_MAGIC)] != _MAGIC or digest != data[len(_MAGIC) : len(_MAGIC) + _DIGEST]:
            raise ValueError("it is no library, or damaged")
        head = json.loads(bytes(data[_FRONT : self._pieces]))
        self._params = _paged(end)
        found = self._artifact(head["form"])
        key = self._keys[-1]
        if head["key"] != key or self._sums.hexdigest() != head["sums"]:
            raise ValueError("it is another one, or its parameters are damaged")
        given = list(found.params.values())
        found = replace(found, params={name: shared(value) for name, value in found.params.items()})
        for value in given:  # which others may have been compared with
            self._let_go(value)
        for name in found.params.keys() - head["form"]["borrowed"].keys():
            self._cache.lend(found.params[name], key, name)
        _alive[str(self._cache.folder), key] = found
        return Kept(found, head["notes"])

    def _artifact(self, form: Json) -> Artifact:
        document = sealed(self._piece(form["entry"]))
        if document is None:
            raise ValueError("it has no seal")
        start, size = form["params"]
        borrowed = {name: self._borrowed(*lender) for name, lender in form["borrowed"].items()}
        branches = {
            (node, attribute): self._artifact(inner)
            for node, attributes in form["branches"].items()
            for attribute, inner in attributes.items()
        }
        objects = {symbol: self._piece(place) for symbol, place in form["objects"].items()}
        data = self._data[self._params + start : self._params + start + size]
        found = artifact_of(document, self._piece(form["entry"]), objects, data, branches, borrowed)
        for value in found.params.values():
            self._sums.update(_sums(value))
            self._let_go(value)
        return replace(found, model=form["model"], values=values_of(form["values"]))

    def _let_go(self, value: np.ndarray) -> None:
        """What was only added up leaves memory; runs read again what they need, a table of tokens hardly."""
        whole = np.frombuffer(self._data, np.uint8)
        start = value.ctypes.data - whole.ctypes.data
        first, last = (edge + -edge % mmap.PAGESIZE for edge in (start, start + value.nbytes))
        memory = self._data.obj
        is_here = 0 <= first < last <= len(whole) and value.nbytes >= WORTH_SHARING  # not borrowed from another entry
        if isinstance(memory, mmap.mmap) and is_here and hasattr(mmap, "MADV_DONTNEED"):
            memory.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _piece(self, place: Sequence[int]) -> bytes:
        start, size = place
        return bytes(self._data[self._pieces + start : self._pieces + start + size])

    def _borrowed(self, key: str, name: str) -> np.ndarray:
        lender = _alive.get((str(self._cache.folder), key))
        if lender is None:
            kept = self._cache.find(key, self._keys)
            if kept is None:
                raise KeyError(f"the entry that has {name} is gone")
            lender = kept.artifact
        return lender.params[name]
