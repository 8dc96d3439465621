"""The container of a library: an uncompressed zip archive that is the whole file, members one after the other."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from typing import TypeAlias

Data: TypeAlias = "bytes | memoryview"

_LOCAL_HEADER = 30
_END_OF_ARCHIVE = 22


class Damaged(Exception):
    """Why the bytes are not such an archive."""


def pack(members: Mapping[str, bytes]) -> bytes:
    """The archive's bytes; the same members give the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    return out.getvalue()


def unpack(data: Data) -> dict[str, Data]:
    """The members as views of ``data``; :class:`Damaged` where the archive is not all of ``data`` and in one piece.

    Checksums are the manifest's business.
    """
    try:
        with zipfile.ZipFile(_Window(data)) as archive:
            return _members(data, archive)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error) as error:
        raise Damaged(str(error)) from error


def _members(data: Data, archive: zipfile.ZipFile) -> dict[str, Data]:
    """Zip readers look for the archive from the file's end and take what is before it for something else: the last
    member of a truncated file may be an archive itself.  So each member must begin where the one before ends."""
    found: dict[str, Data] = {}
    at = 0
    for info in archive.infolist():
        if info.header_offset != at:
            raise Damaged(f"{info.filename} begins at byte {info.header_offset}, not {at}")
        if info.filename in found:
            raise Damaged(f"{info.filename} is in it twice")
        found[info.filename] = _member(data, info)
        at = _start(data, info) + info.file_size
    if at != archive.start_dir or archive.comment or bytes(data[-_END_OF_ARCHIVE:][:4]) != b"PK\5\6":
        raise Damaged("there are bytes in it that belong to no member")
    return found


def _start(data: Data, info: zipfile.ZipInfo) -> int:
    """Where a stored member's bytes begin: after its local header, its name and its extra field."""
    lengths = struct.unpack_from("<HH", data, info.header_offset + 26)
    return int(info.header_offset + _LOCAL_HEADER + sum(lengths))


def _member(data: Data, info: zipfile.ZipInfo) -> Data:
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise Damaged(f"{info.filename} is compressed")
    start = _start(data, info)
    return data[start : start + info.file_size]


class _Window(io.RawIOBase):
    """A buffer as a file to read, without a copy of the whole."""

    def __init__(self, data: Data) -> None:
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if start + offset < 0:
            raise ValueError("seek before the start")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size < 0 else self._at + size
        found = bytes(self._data[self._at : end])
        self._at += len(found)
        return found
