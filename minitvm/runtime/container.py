"""The container of a library file: an uncompressed zip archive in which each member's bytes begin at a multiple of 64,
as with Android's zipalign."""

import io
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import BinaryIO, TypeAlias

from minitvm.ir.arrays import ALIGNMENT

Data: TypeAlias = "bytes | memoryview"
Member: TypeAlias = "Sequence[Data]"
"""The contents of a member, in pieces."""

_LOCAL_HEADER = 30
_END_OF_ARCHIVE = 22
_LARGE_FIELD = 20
_PADDING = 0xD935
"""An extra field of zeros."""


class Damaged(Exception):
    """Why the bytes are not such an archive."""


def pack(members: Mapping[str, Member], out: BinaryIO) -> None:
    """Writes the archive; the same members give the same bytes."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, pieces in members.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.file_size = sum(map(len, pieces))
            is_large = info.file_size * 1.05 > zipfile.ZIP64_LIMIT  # as zipfile decides; its sizes are one more field
            header = _LOCAL_HEADER + len(name.encode()) + 4 + (_LARGE_FIELD if is_large else 0)
            padding = -(out.tell() + header) % ALIGNMENT
            info.extra = struct.pack("<HH", _PADDING, padding) + bytes(padding)
            with archive.open(info, "w", force_zip64=is_large) as member:
                for piece in pieces:
                    member.write(piece)


def unpack(data: memoryview) -> dict[str, Data]:
    """The members as views of ``data``; :class:`Damaged` where the archive is not all of ``data`` and in one piece.

    Checksums are the manifest's business.
    """
    try:
        with zipfile.ZipFile(_Window(data)) as archive:
            return _members(data, archive)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error) as error:
        raise Damaged(str(error)) from error


def _members(data: memoryview, archive: zipfile.ZipFile) -> dict[str, Data]:
    """Zip readers look for the archive from the file's end and take what is before it for something else: the last
    member of a truncated file may be an archive itself.  So each member must begin where the one before ends."""
    found: dict[str, Data] = {}
    at = 0
    for info in archive.infolist():
        if info.header_offset != at:
            raise Damaged(f"{info.filename} begins at byte {info.header_offset}, not {at}")
        if info.filename in found:
            raise Damaged(f"{info.filename} is in it twice")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise Damaged(f"{info.filename} is compressed")
        start = at + _LOCAL_HEADER + sum(struct.unpack_from("<HH", data, at + 26))  # its name and its extra field
        at = start + info.file_size
        found[info.filename] = data[start:at]
    if at != archive.start_dir or archive.comment or bytes(data[-_END_OF_ARCHIVE:][:4]) != b"PK\5\6":
        raise Damaged("there are bytes in it that belong to no member")
    return found


class _Window:
    """A buffer as a file to read, without a copy of the whole."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if self._at < 0:
            raise ValueError("seek before the start")
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        found = bytes(self._data[self._at :] if size < 0 else self._data[self._at : self._at + size])
        self._at += len(found)
        return found
