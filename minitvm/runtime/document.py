"""A library without its bytes: all that is not code or a parameter's values, as one JSON document, and its seal.

Native code reads and writes where it was compiled to, whatever the JSON beside it says.  So everything that it relies
on (signatures, the graph, the memory plan, digests of the other code) is *sealed*: it stands as one JSON document in
the read-only data of the entry object.  A library is used as its seal says; the JSON files beside it repeat the seal
for people and other programs, and what says otherwise in them is refused, with the place.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from minitvm import config
from minitvm.ir.arrays import aligned
from minitvm.ir.dims import RELATIONS, Dim, Fact
from minitvm.ir.dtypes import DTYPES, STORED
from minitvm.ir.types import numpy_dtype
from minitvm.runtime.container import Data
from minitvm.runtime.graph import Artifact, CpuTag, Graph, Host, HostCall, Plan, round_up
from minitvm.runtime.graph_json import dim_json, dim_of, graph_form, graph_of

Json: TypeAlias = Any
"""What ``json.loads`` returns."""

FORMAT, FORMAT_VERSION = "minitvm-library", 8


def sha256(*pieces: Data) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


def document_of(artifact: Artifact) -> dict[str, Json]:
    """The document of an artefact whose entry has not been compiled yet."""
    plan = artifact.plan
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "minitvm": config.version(),
        "target": artifact.target,
        "cpu": artifact.cpu._asdict(),
        "threads": artifact.threads,
        "kernels": {symbol: _with_dims(facts, dim_json) for symbol, facts in artifact.metadata.items()},
        "code": {symbol: sha256(image) for symbol, image in artifact.objects.items()},
        "params": list(artifact.params),
        "plan": {name: value for name, value in vars(plan).items() if name not in ("offsets", "nbytes")},
        "hosts": {name: _host_form(host) for name, host in artifact.hosts.items()},
        "host_calls": [list(call) for call in artifact.host_calls],
        "sizes": {name: list(symbols) for name, symbols in artifact.sizes.items()},
        "assumed": sorted([fact.relation, str(fact.a), str(fact.b)] for fact in artifact.assumed),
        "graph": graph_form(artifact.graph, plan),
    }


_DIMS = ("workspace", "workspace_per_thread")
"""Facts of a kernel that are dimensions."""


def _with_dims(facts: Mapping[str, Any], form: Callable[[Any], Any]) -> dict[str, Any]:
    """A kernel's facts, those that depend on sizes in another form: as text, or read again."""
    return {**facts, **{name: form(facts[name]) for name in _DIMS if name in facts}}


def _host_form(host: Host) -> dict[str, Json]:
    from minitvm.runtime.host_json import host_to_json

    branches = {attribute: sha256(branch.entry) for attribute, branch in host.branches.items()}
    return {**host_to_json(host.function), "branches": branches}


def artifact_of(
    document: dict[str, Json],
    entry: bytes,
    objects: Mapping[str, bytes],
    params: Data,
    branches: Mapping[tuple[str, str], Artifact],
    borrowed: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Artifact:
    """The artefact that a sealed document describes.  ``branches`` are by node and attribute.

    ``params`` are the bytes of the parameters, but for those that are ``borrowed`` from another library.
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
        params=_arrays(document["params"], graph, params, borrowed),
        objects=objects,
        entry=entry,
        metadata={symbol: _with_dims(facts, dim_of) for symbol, facts in document["kernels"].items()},
        target=document["target"],
        cpu=cpu_of(document),
        threads=document["threads"],
        hosts={node: _host(node, form, branches) for node, form in document["hosts"].items()},
        host_calls=tuple(HostCall(op, why, node, tuple(span)) for op, why, node, span in document["host_calls"]),
        sizes={name: tuple(symbols) for name, symbols in document["sizes"].items()},
        assumed=frozenset(_fact(*parts) for parts in document["assumed"]),
    )


def _fact(relation: str, a: str, b: str) -> Fact:
    if relation not in RELATIONS:
        raise ValueError(f"{relation!r} is no relation of two dimensions")
    return Fact(relation, _dim(a), _dim(b))


def _dim(text: str) -> Dim:
    found = dim_of(text)
    assert found is not None
    return found


def cpu_of(document: dict[str, Json]) -> CpuTag:
    form = document["cpu"]
    return CpuTag(**{**form, "features": tuple(form["features"]), "caches": tuple(form["caches"])})


def _host(node: str, form: dict[str, Json], branches: Mapping[tuple[str, str], Artifact]) -> Host:
    from minitvm.runtime.host_json import host_from_json

    return Host(host_from_json(form), {a: branches[node, a] for a in form["branches"]})


# --- parameters ---------------------------------------------------------------------------------------------------


def params_data(params: Mapping[str, np.ndarray]) -> list[Data]:
    """Their values, little endian and row-major, each from a 64-byte boundary on; the graph has the types.

    In pieces that are the arrays' own memory: what is saved is not copied before.
    """
    pieces: list[Data] = []
    for value in params.values():
        data = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False)
        pieces += [data.reshape(-1).view(np.uint8).data, bytes(round_up(data.nbytes) - data.nbytes)]
    return pieces


def values_form(values: Mapping[str, np.ndarray]) -> Json:
    """Values of inputs by name, each with its dtype and shape."""
    return {name: [value.dtype.name, list(value.shape), value.ravel().tolist()] for name, value in values.items()}


def values_of(form: Json) -> dict[str, np.ndarray]:
    """What :func:`values_form` made it of; ``ValueError`` where it is none."""
    try:
        return {name: _array(*given) for name, given in form.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise ValueError("values.json says of no inputs what their values are") from None


def _array(dtype: str, shape: list[int], value: list[Any]) -> np.ndarray:
    if dtype not in {*DTYPES, *STORED}:  # numpy has others, some with a size
        raise ValueError(dtype)
    return np.array(value, numpy_dtype(dtype)).reshape(shape)


_METADATA: Mapping[str, type] = {
    **dict.fromkeys(("producer_name", "graph_name", "domain", "description", "graph_description"), str),
    "version": int,
    "custom_metadata_map": dict,
}
"""What a model may say of itself besides, all of it or not."""


def model_of(form: Json, inputs: Collection[str], results: int) -> dict[str, Json]:
    """What a model with at least those inputs and so many results says of itself, or nothing; ``ValueError`` where it
    is no such thing."""
    if form == {}:
        return {}
    whole = isinstance(form, dict) and form.keys() == {"inputs", "outputs", "metadata"}
    whole = whole and _are_values(form["inputs"]) and _are_values(form["outputs"]) and _is_metadata(form["metadata"])
    if not whole or len(form["outputs"]) != results:
        raise ValueError("model.json does not say what goes into the model and what comes out")
    names = [name for name, _, _ in form["inputs"]]
    if len(set(names)) != len(names) or not set(names).issuperset(inputs):
        raise ValueError(f"model.json has inputs {', '.join(names)}, the code was compiled for {', '.join(inputs)}")
    found: dict[str, Json] = form
    return found


def _are_values(form: Json) -> bool:
    return isinstance(form, list) and all(map(_is_value, form))


def _is_value(form: Json) -> bool:
    """A name, a type in words, a shape."""
    if not isinstance(form, list) or len(form) != 3 or not isinstance(form[2], list):
        return False
    return all(isinstance(text, str) for text in form[:2]) and all(
        dim is None or isinstance(dim, str) or (type(dim) is int and dim >= 0) for dim in form[2]
    )


def _is_metadata(form: Json) -> bool:
    if not isinstance(form, dict) or not all(type(form[key]) is _METADATA.get(key) for key in form):
        return False
    return all(isinstance(text, str) for text in form.get("custom_metadata_map", {}).values())


def _arrays(names: list[str], graph: Graph, data: Data, borrowed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parameters of those names: views of ``data`` where it lies on a 64-byte boundary, copies otherwise."""
    types = {node.name: node.types[0] for node in graph.nodes if node.is_null}
    for name, value in borrowed.items():
        if name not in names or (value.dtype.name, value.shape) != (types[name].dtype, types[name].shape):
            raise ValueError(f"parameter {name!r} is none of another library: it would be {value.dtype} {value.shape}")
    wanted = sum(round_up(types[name].nbytes) for name in names if name not in borrowed)
    if len(data) != wanted:
        raise ValueError(f"params.bin: it has {len(data)} bytes, the code was compiled for parameters of {wanted}")
    found, at = dict(borrowed), 0
    for name in (name for name in names if name not in borrowed):
        type_ = types[name]
        values = np.frombuffer(data, np.dtype(type_.dtype).newbyteorder("<"), type_.size, at)
        found[name] = aligned(values.reshape(type_.static_shape))
        at += round_up(type_.nbytes)
    return {name: found[name] for name in names}


# --- the seal -----------------------------------------------------------------------------------------------------

_MAGIC = b"\xffminitvm's seal\x00"  # the document is ASCII, so these 16 bytes occur once
_LENGTH_BYTES, _DIGEST_BYTES = 8, 32
_SHOWN = 60


def seal(document: Mapping[str, Json]) -> bytes:
    """The document as an entry object holds it."""
    text = json.dumps(document, separators=(",", ":")).encode("ascii")
    return _MAGIC + len(text).to_bytes(_LENGTH_BYTES, "little") + hashlib.sha256(text).digest() + text


def seal_of(artifact: Artifact) -> bytes:
    """The seal of an artefact whose entry has not been compiled yet."""
    return seal(document_of(artifact))


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
