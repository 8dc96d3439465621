"""An artefact in memory, its code linked: what the instances of one model share."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Mapping

import numpy as np

import minitvm.runtime.native  # noqa: F401  (runs object code)
from minitvm.runtime.artifact import Artifact
from minitvm.runtime.code import Code, code_for
from minitvm.runtime.graph import graph_form

_FLOPS_A_SECOND, _BYTES_A_SECOND = 5e10, 2e10  # one core with wide vectors; its second-level cache


class Loaded:
    """May be shared by threads."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.graph = artifact.graph
        self.plan = artifact.plan
        self.params: dict[str, np.ndarray] = dict(artifact.params)
        self.threads = artifact.threads
        self.function_metadata = dict(artifact.metadata)
        self._code: Code | None = None
        self._lock = threading.Lock()

    @property
    def graph_json(self) -> str:
        form = graph_form(self.graph, self.plan.storage_ids, self.plan.offsets, self.plan.nbytes)
        return json.dumps(form, indent=1)

    @property
    def code(self) -> Code:
        """Its code, linked on first use."""
        with self._lock:
            if self._code is None:
                self._code = code_for(self.artifact.target)(self.artifact)
            return self._code

    @functools.cached_property
    def work_seconds(self) -> float:
        """A rough estimate of one run's native work on one thread, branches of control flow not counted."""
        facts = [self.function_metadata[n.func] for n in self.graph.nodes if n.is_kernel]
        return float(sum(f["flops"] / _FLOPS_A_SECOND + f["bytes"] / _BYTES_A_SECOND for f in facts))

    @functools.cached_property
    def branches(self) -> Mapping[tuple[str, str], Loaded]:
        """The compiled branches of control flow, by node and attribute."""
        hosts = self.artifact.hosts.items()
        return {(node, name): Loaded(branch) for node, host in hosts for name, branch in host.branches.items()}
