"""Making libraries that lie: the members of a file, changed, and put together so that all hashes are right again."""

from __future__ import annotations

import hashlib
import io
import json
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

from minitvm.runtime.container import pack

Members = dict[str, bytes]


def members_of(data: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(members: Members) -> bytes:
    out = io.BytesIO()
    pack({name: [data] for name, data in members.items()}, out)
    return out.getvalue()


def forged(data: bytes, change: Callable[[dict[str, Any], dict[str, Any], Members], None]) -> bytes:
    """The library after ``change(manifest, graph, other members)``, its manifest made right for what it holds."""
    members = members_of(data)
    manifest, graph = json.loads(members.pop("manifest.json")), json.loads(members.pop("graph.json"))
    change(manifest, graph, members)
    return resealed(manifest, {"graph.json": json.dumps(graph, indent=1).encode(), **members})


def resealed(manifest: dict[str, Any], members: Members) -> bytes:
    sums = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in members.items()
        if name != "signature"
    }
    text = json.dumps({**manifest, "members": sums}, indent=1)
    return zipped({"manifest.json": text.encode(), **members})


def rewrite(path: pathlib.Path, change: Callable[[dict[str, Any], dict[str, Any], Members], None]) -> pathlib.Path:
    path.write_bytes(forged(path.read_bytes(), change))
    return path
