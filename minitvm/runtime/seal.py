"""The seal: what a library's code was compiled for, kept inside of the code itself.

Native code reads and writes where it was compiled to, whatever the JSON beside it says.  So everything that it
relies on (signatures, the graph, the memory plan, digests of the other code) stands as one JSON document in the
read-only data of the entry object.  A library is used as its seal says; whatever in its file says otherwise is
refused, with the place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""What ``json.loads`` returns."""

_MAGIC = b"\xffminitvm's seal\x00"  # the document is ASCII, so these 16 bytes occur once
_LENGTH_BYTES, _DIGEST_BYTES = 8, 32
_SHOWN = 60


def seal(document: Mapping[str, Json]) -> bytes:
    """The document as an entry object holds it."""
    text = json.dumps(document, separators=(",", ":")).encode("ascii")
    return _MAGIC + len(text).to_bytes(_LENGTH_BYTES, "little") + hashlib.sha256(text).digest() + text


def sealed(image: bytes) -> dict[str, Json] | None:
    """The document in an entry object; ``None`` where there is none, or none as :func:`seal` wrote it."""
    _, magic, rest = image.partition(_MAGIC)
    length = int.from_bytes(rest[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + _DIGEST_BYTES
    text = rest[start : start + length]
    if not magic or hashlib.sha256(text).digest() != rest[_LENGTH_BYTES:start]:
        return None
    found: dict[str, Json] = json.loads(text)
    return found


# --- where two documents differ -----------------------------------------------------------------------------------


def difference(found: Json, sealed_: Json) -> str | None:
    """The first place where a file's JSON says something else than the seal, in words; ``None`` if there is none."""
    return next(_differences(found, sealed_, ""), None)


def _differences(found: Json, sealed_: Json, place: str) -> Iterator[str]:
    if type(found) is not type(sealed_):  # 1, 1.0 and True are equal in Python
        yield f"{place or 'it'} is {_shown(found)}, the code was compiled with {_shown(sealed_)}"
    elif isinstance(found, dict):
        yield from _keys(found, sealed_, place)
        for key in sealed_:
            yield from _differences(found[key], sealed_[key], f"{place}.{key}" if place else key)
    elif isinstance(found, list):
        if len(found) != len(sealed_):
            yield f"{place} has {len(found)} items, the code was compiled with {len(sealed_)}"
        for i, (one, other) in enumerate(zip(found, sealed_, strict=False)):
            yield from _differences(one, other, f"{place}[{i}]")
    elif json.dumps(found) != json.dumps(sealed_):  # a NaN is not equal to itself
        yield f"{place} is {_shown(found)}, the code was compiled with {_shown(sealed_)}"


def _keys(found: dict[str, Json], sealed_: dict[str, Json], place: str) -> Iterator[str]:
    inside = f"{place}." if place else ""
    for key in sealed_:
        if key not in found:
            yield f"{inside}{key} is missing"
    for key in found:
        if key not in sealed_:
            yield f"{inside}{key} does not belong there"


def _shown(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
