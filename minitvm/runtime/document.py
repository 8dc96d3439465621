"""A library without its bytes: all that is not code or a parameter's values, as one JSON document, and its seal.

Native code reads and writes where it was compiled to, whatever the JSON beside it says.  So everything that it relies
on (signatures, the graph, the memory plan, digests of the other code) is *sealed*: it stands as one JSON document in
the read-only data of the entry object.  A library is used as its seal says; the JSON files beside it repeat the seal
for people and other programs, and what says otherwise in them is refused, with the place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from minitvm import config
from minitvm.ir.arrays import aligned
from minitvm.runtime.graph import Artifact, CpuTag, Graph, Host, HostCall, Plan, graph_form, graph_of, round_up

Json: TypeAlias = Any
"""What ``json.loads`` returns."""
Data: TypeAlias = "bytes | memoryview"

FORMAT, FORMAT_VERSION = "minitvm-library", 3


def sha256(data: Data) -> str:
    return hashlib.sha256(data).hexdigest()


def document_of(artifact: Artifact) -> dict[str, Json]:
    """The document of an artefact whose entry has not been compiled yet."""
    plan = artifact.plan
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "minitvm": config.version(),
        "target": artifact.target,
        "cpu": vars(artifact.cpu),
        "threads": artifact.threads,
        "kernels": artifact.metadata,
        "code": {symbol: sha256(image) for symbol, image in artifact.objects.items()},
        "params": list(artifact.params),
        "plan": {name: value for name, value in vars(plan).items() if name not in ("offsets", "nbytes")},
        "hosts": {name: _host_form(host) for name, host in artifact.hosts.items()},
        "host_calls": [list(vars(call).values()) for call in artifact.host_calls],
        "graph": graph_form(artifact.graph, plan),
    }


def _host_form(host: Host) -> dict[str, Json]:
    from minitvm.runtime.hosts import host_to_json

    branches = {attribute: sha256(branch.entry) for attribute, branch in host.branches.items()}
    return {**host_to_json(host.function), "branches": branches}


def artifact_of(
    document: dict[str, Json],
    entry: bytes,
    objects: Mapping[str, bytes],
    params: Data,
    branches: Mapping[tuple[str, str], Artifact],
) -> Artifact:
    """The artefact that a sealed document describes.  ``branches`` are by node and attribute.

    ``ValueError`` names a part that is not the one that the document means; :class:`LibraryError` where an operator
    that Python runs is not known.
    """
    for symbol, digest in document["code"].items():
        if sha256(objects[symbol]) != digest:
            raise ValueError(f"the code of kernel {symbol!r} is not the code that its entry was made for")
    for (node, attribute), branch in branches.items():
        if sha256(branch.entry) != document["hosts"][node]["branches"][attribute]:
            raise ValueError(f"{attribute} of {node!r} is not the branch that its entry was made for")
    graph, offsets, nbytes = graph_of(document["graph"])
    plan = {**document["plan"], "storage_ids": tuple(document["plan"]["storage_ids"])}
    plan["workspaces"] = {int(node): at for node, at in plan["workspaces"].items()}
    return Artifact(
        graph=graph,
        plan=Plan(offsets=tuple(offsets), nbytes=nbytes, **plan),
        params=_arrays(document["params"], graph, params),
        objects=objects,
        entry=entry,
        metadata=document["kernels"],
        target=document["target"],
        cpu=cpu_of(document),
        threads=document["threads"],
        hosts={node: _host(node, form, branches) for node, form in document["hosts"].items()},
        host_calls=tuple(HostCall(op, why, node, tuple(span)) for op, why, node, span in document["host_calls"]),
    )


def cpu_of(document: dict[str, Json]) -> CpuTag:
    return CpuTag(**{**document["cpu"], "features": tuple(document["cpu"]["features"])})


def _host(node: str, form: dict[str, Json], branches: Mapping[tuple[str, str], Artifact]) -> Host:
    from minitvm.runtime.hosts import host_from_json

    return Host(host_from_json(form), {a: branches[node, a] for a in form["branches"]})


# --- parameters ---------------------------------------------------------------------------------------------------


def params_data(params: Mapping[str, np.ndarray]) -> bytes:
    """Their values, little endian and row-major, each from a 64-byte boundary on; the graph has the types."""
    parts = []
    for value in params.values():
        data = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
        parts.append(data.ljust(round_up(len(data)), b"\0"))
    return b"".join(parts)


def _arrays(names: list[str], graph: Graph, data: Data) -> dict[str, np.ndarray]:
    """The parameters of those names: views of ``data`` where it lies on a 64-byte boundary, copies otherwise."""
    types = {node.name: node.types[0] for node in graph.nodes if node.is_null}
    wanted = sum(round_up(types[name].nbytes) for name in names)
    if len(data) != wanted:
        raise ValueError(f"params.bin: it has {len(data)} bytes, the code was compiled for parameters of {wanted}")
    found, at = {}, 0
    for name in names:
        type_ = types[name]
        values = np.frombuffer(data, np.dtype(type_.dtype).newbyteorder("<"), type_.size, at)
        found[name] = aligned(values.reshape(type_.static_shape))
        at += round_up(type_.nbytes)
    return found


# --- the seal -----------------------------------------------------------------------------------------------------

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
    if isinstance(found, dict) and isinstance(sealed_, dict):
        names = {key: f"{place}.{key}".lstrip(".") for key in (*sealed_, *found)}
        yield from (f"{names[key]} is missing" for key in sealed_ if key not in found)
        yield from (f"{names[key]} does not belong there" for key in found if key not in sealed_)
        for key in sealed_:
            yield from _differences(found[key], sealed_[key], names[key])
    elif isinstance(found, list) and isinstance(sealed_, list):
        if len(found) != len(sealed_):
            yield f"{place} has {len(found)} items, the code was compiled with {len(sealed_)}"
        for i, (one, other) in enumerate(zip(found, sealed_, strict=False)):
            yield from _differences(one, other, f"{place}[{i}]")
    elif json.dumps(found) != json.dumps(sealed_):  # 1, 1.0 and True are equal in Python, a NaN not to itself
        yield f"{place or 'it'} is {_shown(found)}, the code was compiled with {_shown(sealed_)}"


def _shown(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
