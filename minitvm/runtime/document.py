"""A library without its bytes: all that is not object code or a parameter's values, as one JSON document.

It is sealed into the entry object (``seal.py``), which is where it is read from; the JSON files of a library repeat
it for people and other programs.  Digests in it bind the other object code, branches included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from minitvm import config
from minitvm.ir.types import type_of
from minitvm.runtime.artifact import Artifact, Host, HostCall
from minitvm.runtime.cpu_tag import CpuTag
from minitvm.runtime.graph import graph_form, graph_of
from minitvm.runtime.memory import Plan

FORMAT = "minitvm-library"
FORMAT_VERSION = 2


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def document_of(artifact: Artifact) -> dict[str, Any]:
    """The document of an artefact whose entry has not been compiled yet."""
    plan = artifact.plan
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "minitvm": config.version(),
        "target": artifact.target,
        "cpu": {"triple": artifact.cpu.triple, "name": artifact.cpu.name, "features": list(artifact.cpu.features)},
        "threads": artifact.threads,
        "kernels": artifact.metadata,
        "code": {symbol: sha256(image) for symbol, image in artifact.objects.items()},
        "params": list(artifact.params),
        "plan": {
            "storage_ids": plan.storage_ids,
            "workspaces": {str(node): at for node, at in plan.workspaces.items()},
            "lower_bound": plan.lower_bound,
            "naive": plan.naive,
        },
        "hosts": {name: _host_form(host) for name, host in artifact.hosts.items()},
        "host_calls": [[h.op, h.reason, h.node, h.span] for h in artifact.host_calls],
        "graph": graph_form(artifact.graph, plan.storage_ids, plan.offsets, plan.nbytes),
    }


def _host_form(host: Host) -> dict[str, Any]:
    from minitvm.runtime.host_text import host_to_json

    branches = {attribute: sha256(branch.entry) for attribute, branch in host.branches.items()}
    return {**host_to_json(host.function), "branches": branches}


def artifact_of(
    document: dict[str, Any],
    entry: bytes,
    objects: Mapping[str, bytes],
    params: dict[str, np.ndarray],
    branches: Mapping[tuple[str, str], Artifact],
) -> Artifact:
    """The artefact that a sealed document describes, and :func:`foreign_part` has found nothing in.

    ``branches`` are by node and attribute.  :class:`LibraryError` where an operator that Python runs is not known.
    """
    graph, offsets, nbytes = graph_of(document["graph"])
    plan = document["plan"]
    workspaces = {int(node): at for node, at in plan["workspaces"].items()}
    return Artifact(
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


def _host(node: str, form: dict[str, Any], branches: Mapping[tuple[str, str], Artifact]) -> Host:
    from minitvm.runtime.host_text import host_from_json

    return Host(host_from_json(form), {a: branches[node, a] for a in form["branches"]})


def foreign_part(
    document: dict[str, Any],
    objects: Mapping[str, bytes],
    params: Mapping[str, np.ndarray],
    branches: Mapping[tuple[str, str], Artifact],
) -> str | None:
    """The first part that is not the one a sealed document means, in words; ``None`` where all are."""
    return next(_foreign_parts(document, objects, params, branches), None)


def _foreign_parts(
    document: dict[str, Any],
    objects: Mapping[str, bytes],
    params: Mapping[str, np.ndarray],
    branches: Mapping[tuple[str, str], Artifact],
) -> Iterator[str]:
    for symbol, digest in document["code"].items():
        if sha256(objects[symbol]) != digest:
            yield f"the code of kernel {symbol!r} is not the code that its entry was made for"
    for (node, attribute), artifact in branches.items():
        if sha256(artifact.entry) != document["hosts"][node]["branches"][attribute]:
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
