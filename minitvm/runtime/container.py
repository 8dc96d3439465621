"""The container of a library file: an uncompressed zip archive in which each member's bytes begin at a multiple of 64,
as with Android's zipalign; or a tar archive, which is so by itself."""

import contextlib
import io
import os
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

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
    """Says why the bytes are not such an archive."""


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


def pack_tar(members: Mapping[str, Member], out: BinaryIO) -> None:
    """Packs as :func:`pack` does, for ``tar`` to read."""
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, pieces in members.items():
            info = tarfile.TarInfo(name)
            info.size = sum(map(len, pieces))
            archive.addfile(info, _Pieces(pieces))


class _Pieces(io.RawIOBase):
    """Pieces of bytes as a file to read."""

    def __init__(self, pieces: Member) -> None:
        self._left = [memoryview(piece).cast("B") for piece in pieces if len(piece)]

    def read(self, size: int = -1) -> bytes:
        found = []
        while self._left and size:
            piece = self._left.pop(0)
            taken = piece if size < 0 else piece[:size]
            found.append(taken)
            size -= len(taken) if size > 0 else 0
            if len(taken) < len(piece):
                self._left.insert(0, piece[len(taken) :])
        return b"".join(found)


def is_tar(data: memoryview) -> bool:
    return bytes(data[257:262]) == b"ustar"


def unpack_tar(data: memoryview) -> dict[str, Data]:
    """Unpacks as :func:`unpack` does what :func:`pack_tar` wrote."""
    window: Any = _Window(data)
    try:
        with tarfile.TarFile(fileobj=window) as archive:
            return _tar_members(data, archive.getmembers())
    except (tarfile.TarError, EOFError, OSError, ValueError, ArithmeticError, RecursionError, struct.error) as error:
        raise Damaged(str(error)) from error


def _tar_members(data: memoryview, infos: Sequence[tarfile.TarInfo]) -> dict[str, Data]:
    """Tar readers stop at the first thing that is no header: so each member must begin where the one before ends, and
    all that is none must be zeros."""
    found: dict[str, Data] = {}
    at = 0
    for info in infos:
        if info.offset != at or info.type != tarfile.REGTYPE or info.pax_headers:
            raise Damaged(f"{info.name} at byte {info.offset} is not as it was written")
        if info.name in found:
            raise Damaged(f"{info.name} is in it twice")
        end = info.offset_data + info.size
        at = _upwards(end, tarfile.BLOCKSIZE)
        found[info.name] = data[info.offset_data : end]
        if len(data) < at or any(data[end:at]):
            raise Damaged(f"{info.name} ends at byte {end}, the file at {len(data)}")
    if len(data) != _upwards(at + 2 * tarfile.BLOCKSIZE, tarfile.RECORDSIZE) or any(data[at:]):
        raise Damaged("there are bytes in it that belong to no member")
    return found


def _upwards(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


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


def stray_member(listed: Iterable[str], members: Iterable[str]) -> str | None:
    """The first member too many or too few, in words."""
    found = min(set(listed) ^ set(members), default=None)
    return found and f"{found} {'does not belong in' if found in members else 'is missing from'} it"


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


def write_atomically(path: Path, write_to: Callable[[BinaryIO], object], mode: int = 0o666) -> None:
    """The path holds the old file or the whole new one, of that mode but for the umask; nothing is left behind, after
    Ctrl-C neither.  What lies at the name that is written to first, such as a link, is not written through."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            write_to(file)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
