"""The library file: one uncompressed zip archive with a manifest that vouches for every member.

    manifest.json   format, versions, target, CPU, host calls; length and SHA-256 of every other member
    graph.json      the graph with its memory plan
    params.bin      the parameters, as ``save_param_dict`` writes them
    code/NAME.o     object code
    branch/NODE/ATTRIBUTE.mtvm   a branch of a control-flow node: again a library

Nothing in it is executed on load but the object code, after every length and hash has been checked.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, TypeAlias

from minitvm import config
from minitvm.errors import LibraryError
from minitvm.runtime.archive_check import contradiction
from minitvm.runtime.control import HostFunction
from minitvm.runtime.cpu_tag import CpuTag, check_cpu
from minitvm.runtime.graph import from_json, to_json
from minitvm.runtime.host_text import host_from_json, host_to_json
from minitvm.runtime.library import Contents, HostCall, Library
from minitvm.runtime.memory import Plan
from minitvm.runtime.param_dict import load_arrays, save_param_dict

FORMAT = "minitvm-library"
FORMAT_VERSION = 1
_AGAIN = "copy the file again, or compile the model again"

# --- writing --------------------------------------------------------------------------------------------------


def write(contents: Contents, path: pathlib.Path) -> None:
    """Write the file, atomically: the path holds the old file or the whole new one."""
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "not an ordinary file"
        raise LibraryError(f"the library cannot be written to {path}: it is {what}", hint="give the path of a file")
    data = to_bytes(contents)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise LibraryError(
            f"the library cannot be written to {path}: {error.strerror}", hint="choose a folder that can be written"
        ) from error


def to_bytes(contents: Contents) -> bytes:
    """The file's bytes."""
    members = _members(contents)
    manifest = _manifest(contents)
    manifest["members"] = {n: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in members.items()}
    text = json.dumps(manifest, indent=1).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {"manifest.json": text, **members}.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    return out.getvalue()


def _members(contents: Contents) -> dict[str, bytes]:
    plan = contents.plan
    graph = to_json(contents.graph, plan.storage_ids, plan.offsets, plan.nbytes)
    members = {"graph.json": graph.encode(), "params.bin": save_param_dict(contents.params)}
    members |= {f"code/{name}.o": data for name, data in contents.objects.items()}
    for node, function in contents.hosts.items():
        for attribute, library in function.branches.items():
            members[f"branch/{node}/{attribute}.mtvm"] = to_bytes(library.contents)
    return members


def _manifest(contents: Contents) -> dict[str, Any]:
    plan = contents.plan
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "minitvm": config.version(),
        "target": contents.target,
        "cpu": {"triple": contents.cpu.triple, "name": contents.cpu.name, "features": list(contents.cpu.features)},
        "metadata": contents.metadata,
        "threads": contents.threads,
        "plan": {
            "storage_ids": plan.storage_ids,
            "workspaces": {str(node): at for node, at in plan.workspaces.items()},
            "lower_bound": plan.lower_bound,
            "naive": plan.naive,
        },
        "hosts": {name: host_to_json(function) for name, function in contents.hosts.items()},
        "host_calls": [[h.op, h.reason, h.node, h.span] for h in contents.host_calls],
    }


# --- reading --------------------------------------------------------------------------------------------------


def read(path: pathlib.Path) -> Contents:
    """The contents of a library file; :class:`LibraryError` for anything that is not one, whole and for this CPU."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                return from_bytes(b"", str(path))
            return from_bytes(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), str(path))
    except OSError as error:
        raise LibraryError(
            f"the library {path} cannot be read: {error.strerror}", hint="give the path that save() was called with"
        ) from error


Data: TypeAlias = "bytes | memoryview"


def from_bytes(data: Data, name: str) -> Contents:
    """As :func:`read`; what is kept of ``data`` is copied."""
    members = _unzip(data, name)
    manifest = _checked_manifest(members.pop("manifest.json", None), name)
    try:
        _check_members(manifest["members"], members, name)
        cpu = CpuTag(manifest["cpu"]["triple"], manifest["cpu"]["name"], tuple(manifest["cpu"]["features"]))
        check_cpu(cpu, name)
        contents = _assemble(manifest, members, cpu, name)
        found = contradiction(contents)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise LibraryError(
            f"{name} is altered: its parts do not fit together: {type(error).__name__}: {error}", hint=_AGAIN
        ) from error
    if found is not None:
        raise LibraryError(f"{name} is altered: {found}", hint=_AGAIN)
    return contents


def _unzip(data: Data, name: str) -> dict[str, Data]:
    """The members, as views of ``data``.  The zip's checksum vouches for the manifest, the manifest for the rest."""
    if bytes(data[:2]) != b"PK":
        raise LibraryError(
            f"{name} is not a minitvm library" if len(data) else f"{name} is empty, not a minitvm library",
            hint="libraries are written by lib.save(path) or `minitvm compile`",
        )
    try:
        with zipfile.ZipFile(_Window(data)) as archive:
            members = {info.filename: _member(data, info) for info in archive.infolist()}
            manifest = archive.NameToInfo.get("manifest.json")
            if manifest is not None and zlib.crc32(members["manifest.json"]) != manifest.CRC:
                raise zipfile.BadZipFile("wrong checksum of manifest.json")
            return members
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error) as error:
        raise LibraryError(f"{name} is truncated or altered: {error}", hint=_AGAIN) from error


def _member(data: Data, info: zipfile.ZipInfo) -> Data:
    """A stored member's bytes: after its local header of 30 bytes, its name and its extra field."""
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise zipfile.BadZipFile(f"{info.filename} is compressed")
    lengths = struct.unpack_from("<HH", data, info.header_offset + 26)
    start = info.header_offset + 30 + sum(lengths)
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


def _checked_manifest(text: Data | None, name: str) -> dict[str, Any]:
    if text is None:
        raise LibraryError(f"{name} is a zip archive but not a minitvm library: it has no manifest.json")
    try:
        manifest = json.loads(bytes(text))
        known = manifest["format"] == FORMAT
        version = manifest["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise LibraryError(f"{name} is not a minitvm library: its manifest cannot be read") from error
    if not known:
        raise LibraryError(f"{name} is not a minitvm library: its format is {manifest['format']!r}")
    if version != FORMAT_VERSION:
        raise LibraryError(
            f"{name} has format version {version}, this minitvm reads version {FORMAT_VERSION}",
            where=[f"written by minitvm {manifest.get('minitvm')}, read by minitvm {config.version()}"],
            hint="compile the model again with this version of minitvm",
        )
    return dict(manifest)


def _check_members(expected: Mapping[str, Any], members: Mapping[str, Data], name: str) -> None:
    for member in sorted(set(expected) ^ set(members)):
        state = "is missing from" if member in expected else "does not belong in"
        raise LibraryError(f"{name} is altered: {member} {state} it", hint=_AGAIN)
    for member, data in members.items():
        want = expected[member]
        if len(data) != want["bytes"]:
            raise LibraryError(f"{name} is altered: {member} has {len(data)} bytes, not {want['bytes']}", hint=_AGAIN)
        if hashlib.sha256(data).hexdigest() != want["sha256"]:
            raise LibraryError(f"{name} is altered: the contents of {member} do not match their hash", hint=_AGAIN)


def _assemble(manifest: dict[str, Any], members: dict[str, Data], cpu: CpuTag, name: str) -> Contents:
    graph, offsets, nbytes = from_json(bytes(members["graph.json"]).decode())
    found = manifest["plan"]
    workspaces = {int(node): at for node, at in found["workspaces"].items()}
    plan = Plan(tuple(offsets), tuple(found["storage_ids"]), workspaces, nbytes, found["lower_bound"], found["naive"])
    return Contents(
        graph=graph,
        plan=plan,
        params=load_arrays(members["params.bin"]),
        objects={m[len("code/") : -len(".o")]: bytes(d) for m, d in members.items() if m.startswith("code/")},
        metadata=manifest["metadata"],
        target=manifest["target"],
        cpu=cpu,
        threads=manifest["threads"],
        hosts={node: _host(node, form, members, name) for node, form in manifest["hosts"].items()},
        host_calls=tuple(HostCall(op, why, node, tuple(span)) for op, why, node, span in manifest["host_calls"]),
    )


def _host(node: str, form: dict[str, Any], members: Mapping[str, Data], name: str) -> HostFunction:
    prefix = f"branch/{node}/"
    branches = {
        member[len(prefix) : -len(".mtvm")]: Library(from_bytes(data, f"{name}:{member}"))
        for member, data in members.items()
        if member.startswith(prefix)
    }
    return HostFunction(host_from_json(form), branches)
