"""A compiled model as data: what ``build`` makes, a file holds, and instances run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from minitvm.errors import origin
from minitvm.ir.types import Span
from minitvm.runtime.graph import Graph, Plan, graph_form

if TYPE_CHECKING:
    from minitvm.ir.expr import Function


@dataclass(frozen=True)
class CpuTag:
    """The CPU that object code was made for."""

    triple: str
    name: str
    features: tuple[str, ...]
    """Instruction sets that the code may use, without ``+``."""


@dataclass(frozen=True)
class HostCall:
    """An operator that runs in Python instead of in a kernel, and why."""

    op: str
    reason: str
    node: str
    span: Span = ()

    def __str__(self) -> str:
        return f"{self.op}{f' ({origin(self.span)})' if self.span else ''}: {self.reason}"


@dataclass(frozen=True)
class Host:
    """What a call in Python does: a function over its operands, and the compiled branches of control flow."""

    function: Function
    branches: Mapping[str, Artifact] = field(default_factory=dict)
    """By attribute of the operator."""


@dataclass(frozen=True)
class Artifact:
    """Everything that a compiled model consists of; what its file holds."""

    graph: Graph
    plan: Plan
    params: Mapping[str, np.ndarray]
    """64-byte aligned."""
    objects: Mapping[str, Any]
    """By kernel, what the target's :class:`Code` runs: object code, or bytes of another kind."""
    metadata: Mapping[str, Mapping[str, Any]]
    target: str
    cpu: CpuTag
    threads: int
    """What kernels were scheduled for, and the plan's workspaces made for."""
    entry: bytes = b""
    """What calls the kernels; holds the seal, from which the library's file is written and read.
    Nothing of targets whose libraries cannot be saved."""
    hosts: Mapping[str, Host] = field(default_factory=dict)
    """By node."""
    host_calls: tuple[HostCall, ...] = ()

    @property
    def graph_json(self) -> str:
        return json.dumps(graph_form(self.graph, self.plan), indent=1)

    @cached_property
    def work_seconds(self) -> float:
        """The predicted time of one run's kernels on one thread, branches of control flow not counted."""
        return float(sum(self.metadata[n.func]["seconds"] for n in self.graph.nodes if n.is_kernel))
