"""A library without its bytes: all that is not object code or a parameter's values, as one JSON document.

It is sealed into the entry object (``seal.py``), which is where it is read from; the JSON files of a library repeat
it for people and other programs.  Digests in it bind the other object code, branches included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from minitvm import config
from minitvm.ir.types import type_of
from minitvm.runtime.cpu_tag import CpuTag
from minitvm.runtime.graph import graph_form, graph_of
from minitvm.runtime.library import Contents, HostCall, Library
from minitvm.runtime.memory import Plan

if TYPE_CHECKING:
    from minitvm.runtime.control import HostFunction

FORMAT = "minitvm-library"
FORMAT_VERSION = 2


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def document_of(contents: Contents) -> dict[str, Any]:
    """The document of contents whose entry has not been compiled yet."""
    plan = contents.plan
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "minitvm": config.version(),
        "target": contents.target,
        "cpu": {"triple": contents.cpu.triple, "name": contents.cpu.name, "features": list(contents.cpu.features)},
        "threads": contents.threads,
        "kernels": contents.metadata,
        "code": {symbol: sha256(image) for symbol, image in contents.objects.items()},
        "params": list(contents.params),
        "plan": {
            "storage_ids": plan.storage_ids,
            "workspaces": {str(node): at for node, at in plan.workspaces.items()},
            "lower_bound": plan.lower_bound,
            "naive": plan.naive,
        },
        "hosts": {name: _host_form(host) for name, host in contents.hosts.items()},
        "host_calls": [[h.op, h.reason, h.node, h.span] for h in contents.host_calls],
        "graph": graph_form(contents.graph, plan.storage_ids, plan.offsets, plan.nbytes),
    }


def _host_form(host: HostFunction) -> dict[str, Any]:
    from minitvm.runtime.host_text import host_to_json

    branches = {attribute: sha256(library.contents.entry) for attribute, library in host.branches.items()}
    return {**host_to_json(host), "branches": branches}


def contents_of(
    document: dict[str, Any],
    entry: bytes,
    objects: Mapping[str, bytes],
    params: dict[str, np.ndarray],
    branches: Mapping[tuple[str, str], Contents],
) -> Contents:
    """The contents that a sealed document describes, and :func:`foreign_part` has found nothing in.

    ``branches`` are by node and attribute.  :class:`LibraryError` where an operator that Python runs is not known.
    """
    graph, offsets, nbytes = graph_of(document["graph"])
    plan = document["plan"]
    workspaces = {int(node): at for node, at in plan["workspaces"].items()}
    return Contents(
        graph=graph,
        plan=Plan(tuple(offsets), tuple(plan["storage_ids"]), workspaces, nbytes, plan["lower_bound"], plan["naive"]),
        params=params,
        objects=objects,
        entry=entry,
        metadata=document["kernels"],
        target=document["target"],
        cpu=cpu_of(document),
        threads=document["threads"],
        hosts={node: _host(node, form, branches) for node, form in document["hosts"].items()},
        host_calls=tuple(HostCall(op, why, node, tuple(span)) for op, why, node, span in document["host_calls"]),
    )


def cpu_of(document: dict[str, Any]) -> CpuTag:
    cpu = document["cpu"]
    return CpuTag(cpu["triple"], cpu["name"], tuple(cpu["features"]))


def _host(node: str, form: dict[str, Any], branches: Mapping[tuple[str, str], Contents]) -> HostFunction:
    from minitvm.runtime.control import HostFunction
    from minitvm.runtime.host_text import host_from_json

    return HostFunction(host_from_json(form), {a: Library(branches[node, a]) for a in form["branches"]})


def foreign_part(
    document: dict[str, Any],
    objects: Mapping[str, bytes],
    params: Mapping[str, np.ndarray],
    branches: Mapping[tuple[str, str], Contents],
) -> str | None:
    """The first part that is not the one a sealed document means, in words; ``None`` where all are."""
    return next(_foreign_parts(document, objects, params, branches), None)


def _foreign_parts(
    document: dict[str, Any],
    objects: Mapping[str, bytes],
    params: Mapping[str, np.ndarray],
    branches: Mapping[tuple[str, str], Contents],
) -> Iterator[str]:
    for symbol, digest in document["code"].items():
        if sha256(objects[symbol]) != digest:
            yield f"the code of kernel {symbol!r} is not the code that its entry was made for"
    for (node, attribute), contents in branches.items():
        if sha256(contents.entry) != document["hosts"][node]["branches"][attribute]:
            yield f"{attribute} of {node!r} is not the branch that its entry was made for"
    yield from _foreign_params(document, params)


def _foreign_params(document: dict[str, Any], params: Mapping[str, np.ndarray]) -> Iterator[str]:
    graph, names = graph_of(document["graph"])[0], document["params"]
    types = {node.name: node.types[0] for node in graph.nodes if node.is_null}
    for name in names:
        if name not in params:
            yield f"params.bin: parameter {name!r} is missing"
    for name, array in params.items():
        if name not in names:
            yield f"params.bin: parameter {name!r} does not belong in it"
        elif type_of(array) != types[name]:
            yield f"params.bin: parameter {name!r} is {type_of(array)}, the code was compiled for {types[name]}"
