"""The library file: one uncompressed zip archive with a manifest that vouches for every member; or, where its name
ends in ``.tar``, a tar archive of the same members.

    manifest.json   format, versions, target, CPU, kernels, host calls; length and SHA-256 of every other member
    graph.json      the graph with its memory plan
    params.bin      the parameters' values
    code/entry.o    what calls the kernels; holds the seal
    code/kernel/NAME.o           a kernel
    branch/NODE/ATTRIBUTE.mtvm   a branch of a control-flow node: again a library
    model.json      what the ONNX model says of itself: names, types and shapes of inputs and outputs, metadata
    values.json     inputs of the model for whose values it was compiled
    shape/N.mtvm    the same model compiled for other shapes or values, N = 1, 2, ...: again a library
    borrowed.json   of one of these, parameters that it has from a library before it in the file
    signature       where the library is signed: the key and its signature of the manifest

What a library does is read from its seal (``document.py``).  The two JSON files repeat the seal for people and other
programs, and must do so to the letter.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from minitvm import config
from minitvm.doors import door, left_out
from minitvm.errors import LibraryError
from minitvm.ir.arrays import aligned_empty
from minitvm.runtime.code import code_for
from minitvm.runtime.container import (
    Damaged,
    Data,
    Member,
    is_tar,
    pack,
    pack_tar,
    stray_member,
    unpack,
    unpack_tar,
    write_atomically,
)
from minitvm.runtime.document import (
    FORMAT,
    FORMAT_VERSION,
    Json,
    artifact_of,
    cpu_of,
    difference,
    model_of,
    params_data,
    sealed,
    sha256,
    values_form,
    values_of,
)
from minitvm.runtime.graph import Artifact
from minitvm.runtime.origin import Origin

if TYPE_CHECKING:
    from minitvm.runtime.signing import PrivateKey, PublicKey

_MANIFEST, _SIGNATURE = "manifest.json", "signature"
_GRAPH, _PARAMS, _ENTRY = "graph.json", "params.bin", "code/entry.o"
_MODEL, _VALUES, _BORROWED = "model.json", "values.json", "borrowed.json"
_AGAIN = "copy the file again, or compile the model again"

# --- writing --------------------------------------------------------------------------------------------------


def write(artifact: Artifact, path: Path, key: PrivateKey | None = None) -> None:
    """Write the file, signed where there is a key, and atomically."""
    members = _file(artifact, key)
    try:
        _require_ordinary(path)
        write_atomically(path, lambda file: (pack_tar if path.suffix == ".tar" else pack)(members, file))
    except OSError as error:
        raise LibraryError(
            f"the library cannot be written to {path}: {error.strerror}", hint="choose a folder that can be written"
        ) from error


def _require_ordinary(path: Path) -> None:
    """A file may be written over; a folder, a pipe, a device may not."""
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "not an ordinary file"
        raise LibraryError(f"the library cannot be written to {path}: it is {what}", hint="give the path of a file")


@door
def sign(manifest: bytes, key: PrivateKey) -> bytes:
    """The signature's member for a manifest."""
    raise left_out("signing")


@door
def trusted_keys(given: Iterable[PublicKey] | None) -> Sequence[bytes] | None:
    """The raw public keys of those that are trusted; ``None``: no signature is asked for."""
    if given is not None or config.read("MINITVM_TRUSTED_KEYS") or config.read_flag("MINITVM_REQUIRE_SIGNED"):
        raise left_out("signing")
    return None


@door
def origin_of(name: str, manifest: bytes, member: bytes | None, trusted: Sequence[bytes] | None) -> Origin:
    """The origin of a library file that has this signature, if any."""
    if member is not None or trusted is not None:
        raise left_out("signing")
    return Origin(name)


def to_bytes(artifact: Artifact, key: PrivateKey | None = None) -> bytes:
    """The file's bytes."""
    out = io.BytesIO()
    pack(_file(artifact, key), out)
    return out.getvalue()


def _file(artifact: Artifact, key: PrivateKey | None = None) -> dict[str, Member]:
    """All members, the manifest first."""
    held = _Held()
    content = _content(artifact, held)
    for number, other in enumerate(artifact.others, 1):
        out = io.BytesIO()
        pack(_with_manifest(other, _content(other, held, number)), out)
        content[_other(number)] = [out.getbuffer()]
    members = _with_manifest(artifact, content)
    return members if key is None else {**members, _SIGNATURE: [sign(bytes(members[_MANIFEST][0]), key)]}


class _Held(dict[int, "tuple[int, str]"]):
    """Which library of the file holds an array, by the array's identity: its number, and the name there."""


def _content(artifact: Artifact, held: _Held, number: int = 0) -> dict[str, Member]:
    """The members of one library but its manifest.  What it ``held`` before it borrows, and holds the rest."""
    document = sealed(artifact.entry)
    if document is None:
        raise LibraryError(
            f"a library for target {artifact.target!r} cannot be saved: its back end makes no entry",
            hint="build the model for target 'llvm'",
        )
    if (document["sizes"] or document["assumed"]) and not artifact.is_open:
        message = "the library is what a library for all shapes is for one of them, and is not saved alone"
        raise LibraryError(message, hint="save the one for all shapes: session.save(path)")
    for host in document["hosts"].values():
        if "unsaved" in host:
            raise LibraryError(host["unsaved"], hint="its operator needs attributes of plain values")
    borrowed = {name: held[id(value)] for name, value in artifact.params.items() if id(value) in held}
    own = {name: value for name, value in artifact.params.items() if name not in borrowed}
    held.update({id(value): (number, name) for name, value in own.items()})
    members: dict[str, Member] = {_GRAPH: [_text(document["graph"])], _PARAMS: params_data(own)}
    members |= {_ENTRY: [artifact.entry], **{_code(symbol): [image] for symbol, image in artifact.objects.items()}}
    for node, host in artifact.hosts.items():
        for attribute, branch in host.branches.items():
            members[_branch(node, attribute)] = [to_bytes(branch)]
    members |= {_MODEL: [_text(dict(artifact.model))]} if artifact.model else {}
    members |= {_VALUES: [_text(values_form(artifact.values))]} if artifact.values else {}
    return members | ({_BORROWED: [_text(borrowed)]} if borrowed else {})


def _with_manifest(artifact: Artifact, members: dict[str, Member]) -> dict[str, Member]:
    document = sealed(artifact.entry)
    assert document is not None
    return {_MANIFEST: [_manifest(document, _records(members))], **members}


def _code(symbol: str) -> str:
    return f"code/kernel/{symbol}.o"


def _branch(node: str, attribute: str) -> str:
    return f"branch/{node}/{attribute}.mtvm"


def _other(number: int) -> str:
    return f"shape/{number}.mtvm"


def _text(form: Json) -> bytes:
    return json.dumps(form, indent=1).encode("ascii")


def _manifest(document: Mapping[str, Json], records: Mapping[str, Json]) -> bytes:
    return _text({**_facts(document), "members": records})


def _facts(document: Mapping[str, Json]) -> dict[str, Json]:
    """What a manifest says apart from its members."""
    return {key: value for key, value in document.items() if key != "graph"}


def _records(members: Mapping[str, Member]) -> dict[str, Json]:
    return {name: {"bytes": sum(map(len, member)), "sha256": sha256(*member)} for name, member in members.items()}


# --- reading --------------------------------------------------------------------------------------------------


def read(path: Path, trusted: Sequence[bytes] | None = None) -> tuple[Artifact, Origin]:
    """The artefact in a library file, and who signed it.

    Raises :class:`LibraryError` for anything that is not one, whole and for this CPU, and what :func:`origin_of`
    raises, before anything else is read.
    """
    members = _unpacked(_data(path), str(path))
    signature = members.pop(_SIGNATURE, None)
    member = None if signature is None else bytes(signature)
    origin = origin_of(str(path), bytes(members.get(_MANIFEST, b"")), member, trusted)
    return _artifact(members, str(path)), origin


def read_trusted(path: Path, keys: Iterable[PublicKey] | None) -> tuple[Artifact, Origin]:
    """:func:`read`, of what is signed by one of these keys, or by one that the environment names."""
    return read(path, trusted_keys(keys))


def _data(path: Path) -> memoryview:
    """The file as it is now, from a 64-byte boundary on: what is checked is what is used, whatever becomes of it."""
    try:
        if path.exists() and not path.is_file():  # to open a pipe waits for its other end
            raise OSError(None, "Is a directory" if path.is_dir() else "Is not an ordinary file")
        with path.open("rb") as file:
            memory = aligned_empty((os.fstat(file.fileno()).st_size,), "uint8")
            return memory[: file.readinto(memory.data)].data
    except OSError as error:
        raise LibraryError(
            f"the library {path} cannot be read: {error.strerror}", hint="give the path that save() was called with"
        ) from error


def from_bytes(data: Data, name: str) -> Artifact:
    """The artefact in an unsigned library file; what is kept of ``data`` is copied."""
    memory = aligned_empty((len(data),), "uint8")
    memory[:] = np.frombuffer(data, np.uint8)
    return _artifact(_unpacked(memory.data, name), name)


def _artifact(members: dict[str, Data], name: str, before: Sequence[Artifact] = ()) -> Artifact:
    """The artefact in the file with those members, the signature's not among them; ``before`` are those of the
    libraries that it may borrow parameters from."""
    manifest = members.pop(_MANIFEST, None)
    if manifest is None:
        raise LibraryError(f"{name} is an archive but not a minitvm library: it has no {_MANIFEST}")
    entry = bytes(members.get(_ENTRY, b""))
    document = sealed(entry)
    if document is None or not _is_written_by(
        document, bytes(manifest), members, _records_meanwhile(members, document)
    ):
        raise _explained(document, manifest, members, name)
    code_for(document["target"]).check(cpu_of(document), name)
    branches = {}
    for node, form in document["hosts"].items():
        for attribute in form["branches"]:
            member = _branch(node, attribute)
            inner = f"{name}:{member}"
            branches[node, attribute] = _artifact(_unpacked(memoryview(members[member]), inner), inner)
    objects = {symbol: bytes(members[_code(symbol)]) for symbol in document["code"]}
    try:
        borrowed = _borrowed(_json(members.get(_BORROWED, b"{}")), before)
        found = artifact_of(document, entry, objects, members[_PARAMS], branches, borrowed)
        model = model_of(_json(members.get(_MODEL, b"{}")), found.inputs, len(found.graph.heads))
        found = replace(found, model=model, values=values_of(_json(members.get(_VALUES, b"{}"))))
    except ValueError as error:
        raise LibraryError(f"{name} is altered: {error}", hint=_AGAIN) from error
    others: list[Artifact] = []
    for member in _others(members):
        inner = f"{name}:{member}"
        others.append(_artifact(_unpacked(memoryview(members[member]), inner), inner, [found, *others]))
    return replace(found, others=tuple(others)) if others else found


def _borrowed(form: Json, before: Sequence[Artifact]) -> dict[str, np.ndarray]:
    """Parameters of libraries before; ``ValueError`` where there are none such."""
    try:
        return {name: before[number].params[theirs] for name, (number, theirs) in form.items()}
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ValueError(f"{_BORROWED} names parameters that no library before it has") from None


def _others(members: Iterable[str]) -> list[str]:
    found = set(members)
    return [*takewhile(found.__contains__, map(_other, count(1)))]


def _unpacked(data: memoryview, name: str) -> dict[str, Data]:
    if bytes(data[:2]) != b"PK" and not is_tar(data):
        raise LibraryError(
            f"{name} is not a minitvm library" if len(data) else f"{name} is empty, not a minitvm library",
            hint="libraries are written by lib.save(path) or `minitvm compile`",
        )
    try:
        return (unpack_tar if is_tar(data) else unpack)(data)
    except Damaged as error:
        raise LibraryError(f"{name} is truncated or altered: {error}", hint=_AGAIN) from error


def _expected(document: Mapping[str, Json], members: Mapping[str, Data]) -> list[str]:
    """The members besides the manifest, in order; which of those that need not be there are, ``members`` says."""
    branches = [_branch(node, attribute) for node, form in document["hosts"].items() for attribute in form["branches"]]
    there = [member for member in (_MODEL, _VALUES, _BORROWED) if member in members]
    return [_GRAPH, _PARAMS, _ENTRY, *map(_code, document["code"]), *branches, *there, *_others(members)]


def _records_meanwhile(members: Mapping[str, Data], document: Mapping[str, Json]) -> dict[str, Json]:
    """The records of all members, hashed while what runs the code is imported (LLVM takes as long as 50 MB)."""
    with ThreadPoolExecutor(1) as pool:
        hashing = pool.submit(_records, _whole(members))
        with contextlib.suppress(LibraryError):  # of a target that is unknown here: said later
            code_for(str(document.get("target")))
        return hashing.result()


def _whole(members: Mapping[str, Data]) -> dict[str, Member]:
    return {name: [data] for name, data in members.items()}


def _is_written_by(
    document: Mapping[str, Json], manifest: bytes, members: Mapping[str, Data], records: Mapping[str, Json]
) -> bool:
    """True if this version of minitvm would write just these files for a sealed document."""
    if (document.get("format"), document.get("format_version")) != (FORMAT, FORMAT_VERSION):
        return False
    expected = _expected(document, members)
    if sorted(expected) != sorted(members) or members[_GRAPH] != _text(document["graph"]):
        return False
    return manifest == _manifest(document, {name: records[name] for name in expected})


# --- what is wrong with a file that is not as it was written ----------------------------------------------------


def _explained(
    document: Mapping[str, Json] | None, manifest: Data, members: Mapping[str, Data], name: str
) -> LibraryError:
    found = _json(manifest)
    if not isinstance(found, dict) or "format" not in found or "format_version" not in found:
        return LibraryError(f"{name} is not a minitvm library: its manifest cannot be read")
    if found["format"] != FORMAT:
        return LibraryError(f"{name} is not a minitvm library: its format is {found['format']!r}")
    if found["format_version"] != FORMAT_VERSION:
        return LibraryError(
            f"{name} has format version {found['format_version']}, this minitvm reads version {FORMAT_VERSION}",
            where=[f"written by minitvm {found.get('minitvm')}, read by minitvm {config.version()}"],
            hint="compile the model again with this version of minitvm",
        )
    why = _altered_member(found.get("members"), members) or _altered_fact(document, found, members)
    return LibraryError(f"{name} is altered: {why}", hint=_AGAIN)


def _json(text: Data) -> Json:
    try:
        return json.loads(bytes(text))
    except (ValueError, RecursionError):
        return None


def _altered_member(listed: Json, members: Mapping[str, Data]) -> str | None:
    """The first member that is not what the manifest says."""
    if not isinstance(listed, dict):
        return f"{_MANIFEST} lists no members"
    stray = stray_member(listed, members)
    if stray is not None:
        return stray
    for member, record in _records(_whole(members)).items():
        want = listed[member]
        if not isinstance(want, dict) or want.keys() != record.keys():
            return f"{_MANIFEST} does not say what {member} is"
        if want["bytes"] != record["bytes"]:
            return f"{member} has {record['bytes']} bytes, not {json.dumps(want['bytes'])[:60]}"
        if want["sha256"] != record["sha256"]:
            return f"the contents of {member} do not match their hash"
    return None


def _altered_fact(document: Mapping[str, Json] | None, manifest: dict[str, Json], members: Mapping[str, Data]) -> str:
    """The first thing in the JSON files, which match their hashes, that is not as it was sealed."""
    if document is None:
        return f"{_ENTRY} holds no seal"
    facts = {key: value for key, value in manifest.items() if key != "members"}
    stray = stray_member(_expected(document, members), members)
    if stray is not None:
        return stray
    graph = _json(members[_GRAPH])
    for file, found, must in ((_MANIFEST, facts, _facts(document)), (_GRAPH, graph, document["graph"])):
        place = "it is no JSON" if found is None else difference(found, must)
        if place is not None:
            return f"{file}: {place}"
    return f"{_MANIFEST} or {_GRAPH} says the same, but is not written as minitvm writes it"
