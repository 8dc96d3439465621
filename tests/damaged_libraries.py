"""Damaged and forged library files, made up from good ones by a random number generator."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from forging import Members, forged, members_of, resealed, zipped

from minitvm.errors import LibraryError

Bases: TypeAlias = Sequence[bytes]
"""Good library files, and the one that is damaged is chosen among them too."""

Damage: TypeAlias = Callable[[bytes, Bases, random.Random], bytes]

# --- bytes ------------------------------------------------------------------------------------------------------


def flip_bytes(data: bytes, _: Bases, rng: random.Random) -> bytes:
    altered = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8, 64))):
        altered[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(altered)


def cut(data: bytes, _: Bases, rng: random.Random) -> bytes:
    """At either end; often right where an inner archive ends or begins."""
    marks = [i for mark in (b"PK\5\6", b"PK\3\4", b"PK\1\2") for i in _finds(data, mark)]
    at = rng.choice((rng.randrange(len(data)), rng.choice(marks), rng.choice(marks) + rng.choice((-1, 1, 4, 22, 30))))
    at = min(max(at, 0), len(data))
    return data[:at] if rng.random() < 0.8 else data[at:]


def _finds(data: bytes, mark: bytes) -> list[int]:
    found, at = [], data.find(mark)
    while at >= 0:
        found.append(at)
        at = data.find(mark, at + 1)
    return found


def move_bytes(data: bytes, _: Bases, rng: random.Random) -> bytes:
    """A piece removed, doubled, or in another place."""
    start, to = sorted(rng.sample(range(len(data)), 2))
    end = min(len(data), start + rng.choice((1, 4, 64, 4096)))
    piece = data[start:end]
    return rng.choice(
        (
            data[:start] + data[end:],
            data[:end] + piece + data[end:],
            data[:start] + data[end:to] + piece + data[max(end, to) :],
            data[:start] + rng.randbytes(len(piece)) + data[end:],
        )
    )


def edit_headers(data: bytes, _: Bases, rng: random.Random) -> bytes:
    """Numbers of the zip's own records."""
    sizes = {b"PK\5\6": 22, b"PK\1\2": 46, b"PK\3\4": 30}
    altered = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        mark = rng.choice(list(sizes))
        at = rng.choice(_finds(data, mark)) + rng.randrange(4, sizes[mark] - 2)
        kind, value = rng.choice((("<H", 1 << 16), ("<I", 1 << 32)))
        if at + struct.calcsize(kind) <= len(data):
            (old,) = struct.unpack_from(kind, data, at)
            new = rng.choice((0, 1, value - 1, value // 2, old + 1, old - 1, len(data), rng.randrange(value)))
            struct.pack_into(kind, altered, at, new % value)
    return bytes(altered)


def join(data: bytes, bases: Bases, rng: random.Random) -> bytes:
    other = rng.choice(bases)
    return rng.choice((data + other, other[: rng.randrange(len(other))] + data, data + b"\0" * rng.randrange(1, 100)))


# --- members ----------------------------------------------------------------------------------------------------


def change_members(data: bytes, bases: Bases, rng: random.Random) -> bytes:
    """Members removed, renamed, exchanged, or of other libraries; with the manifest as it was or made right."""
    others = members_of(rng.choice(bases))

    def change(members: Members) -> None:
        name = rng.choice(list(members))
        kind = rng.randrange(5)
        if kind == 0:
            del members[name]
        elif kind == 1:
            members[rng.choice((name + "x", "code/" + name, "../x", "", "branch/a/b.mtvm"))] = members.pop(name)
        elif kind == 2:
            second = rng.choice(list(members))
            members[name], members[second] = members[second], members[name]
        else:
            other = rng.choice(list(others))
            members[other if kind == 3 else name] = others[other]

    if rng.random() < 0.5:
        members = members_of(data)
        change(members)
        return zipped(members)
    return forged(data, lambda _, __, members: change(members))


def change_parameters(data: bytes, _: Bases, rng: random.Random) -> bytes:
    """Other bytes, fewer, or more; hashes made right."""

    def change(_: Any, __: Any, members: Members) -> None:
        raw = bytearray(members["params.bin"])
        for _ in range(rng.choice((1, 2, 8)) if raw else 0):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        kept = rng.choice((len(raw), len(raw), rng.randrange(len(raw) + 1)))
        members["params.bin"] = bytes(raw[:kept]) + bytes(rng.choice((0, 0, 1, 64)))

    return forged(data, change)


# --- JSON -------------------------------------------------------------------------------------------------------

_NUMBERS = (0, 1, -1, 2, 63, 64, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63), 10**30, 1.0, 1.5, -0.0)
_OTHERS: tuple[Any, ...] = (None, True, False, "", "x", "float64", "int8", [], {}, [0], [[0, 0, 0]], {"a": 1})
_STRANGE = (float("nan"), float("inf"), 1e308, 10**400)


def edit_json(data: bytes, bases: Bases, rng: random.Random) -> bytes:
    """A few edits of the JSON, hashes made right, often in a branch."""

    def change(manifest: Any, graph: Any, members: Members) -> None:
        inner = [name for name in members if name.startswith(("branch/", "shape/"))]
        if inner and rng.random() < 0.4:
            name = rng.choice(inner)
            members[name] = edit_json(members[name], bases, rng)
            return
        others = [name for name in members if name.endswith(".json")]
        if others and rng.random() < 0.4:
            name = rng.choice(others)
            form = [json.loads(members[name])]
            edit_somewhere(form, rng)
            members[name] = json.dumps(form[0], indent=1).encode() if form else b""
            return
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            edit_somewhere(rng.choice((manifest, graph, graph, graph.get("attrs", graph))), rng)

    return forged(data, change)


def edit_somewhere(value: Any, rng: random.Random) -> None:
    """One edit in place, at any depth."""
    parent, key = value, None
    while isinstance(parent, (dict, list)) and parent:
        key = rng.choice(list(parent)) if isinstance(parent, dict) else rng.randrange(len(parent))
        inner = parent[key]
        if not (isinstance(inner, (dict, list)) and inner) or rng.random() < 0.1:
            break
        parent = inner
    if key is None:
        return
    kind = rng.randrange(10)
    if kind == 0:
        del parent[key]
    elif kind == 1:
        _insert(parent, key, copy.deepcopy(parent[key]), rng)
    elif kind == 2 and isinstance(parent, list):
        rng.shuffle(parent)
    elif kind == 3:
        parent[key] = nested(rng.choice((3, 50)))
    else:
        parent[key] = _other(parent[key], rng)


def _insert(parent: Any, key: Any, value: Any, rng: random.Random) -> None:
    if isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), value)
    else:
        parent[rng.choice((f"{key}_", "", key.upper()))] = value


def _other(value: Any, rng: random.Random) -> Any:
    if type(value) is int and rng.random() < 0.7:
        return rng.choice((value + 1, value - 1, value * 2, value * 1000, -value, float(value % 1000), str(value)[:50]))
    if isinstance(value, str) and rng.random() < 0.5:
        return rng.choice((value + "x", value[:-1], value.upper(), "\0", "\U0001f600"))
    return rng.choice((*_NUMBERS, *_OTHERS, *_STRANGE))


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def edit_json_text(data: bytes, _: Bases, rng: random.Random) -> bytes:
    """The text of a JSON file: bytes, keys twice, very deep, very long numbers; the manifest's hashes made right."""
    members = members_of(data)
    file = rng.choice([name for name in members if name.endswith(".json")])
    text = members[file]
    at = rng.randrange(len(text))
    members[file] = rng.choice(
        (
            text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :],
            text[:at] + rng.choice((b"[", b"]", b'"', b"NaN", b"1e999", b"\xff", b"\\ud800", b",", b"0")) + text[at:],
            text[:at],
            b"[" * rng.choice((10, 100_000)),
            text.replace(b": 0", b": " + b"9" * rng.choice((20, 10_000)), 1),
            b'{"nodes": [], ' + text[1:],
            b"\xef\xbb\xbf" + text,
        )
    )
    return zipped(members) if file == "manifest.json" else resealed(json.loads(members.pop("manifest.json")), members)


DAMAGES: tuple[Damage, ...] = (
    *(flip_bytes, cut, move_bytes, edit_headers, join, change_members, change_parameters),
    *(edit_json, edit_json, edit_json, edit_json, edit_json_text),
)


def damaged(bases: Bases, rng: random.Random) -> tuple[int, str, bytes]:
    """Which library was damaged and how, and the file."""
    which, damage = rng.randrange(len(bases)), rng.choice(DAMAGES)
    try:
        return which, damage.__name__, damage(bases[which], bases, rng)
    except LibraryError:  # of the parameters that were to be changed a second time
        return which, "nothing", bases[which]
