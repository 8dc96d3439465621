"""A session's profile, as ONNX Runtime writes it: a file of Chrome's trace events, one for every node of every run."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from minitvm.errors import ConfigError
from minitvm.ir.types import Leaf, TensorType
from minitvm.runtime.debug import GraphModuleDebug, NodeRecord
from minitvm.runtime.graph import Graph
from minitvm.runtime.library import Library


class Profiler:
    """Runs libraries node by node, and keeps what took how long.

    Kernels run alone, so a run takes longer than without a profile, and its host calls are events like any others.
    """

    def __init__(self, prefix: str, provider: str) -> None:
        self._provider = provider
        self._path = Path(f"{prefix}_{datetime.now():%Y-%m-%d_%H-%M-%S}_{os.getpid()}_{id(self) % 10**6}.json")
        self._lock = threading.Lock()
        self._modules: dict[int, tuple[Library, GraphModuleDebug]] = {}
        self._events: list[dict[str, Any]] = []
        self.start_ns = time.perf_counter_ns()
        self._written = False

    def session_event(self, name: str, start: float) -> None:
        """Something that a session did from ``start`` (of ``time.perf_counter``) until now."""
        self._add("Session", name, start, time.perf_counter() - start)

    def run(self, library: Library, feeds: Mapping[str, Any]) -> list[Any]:
        """Results of a run, whose nodes' times are kept."""
        with self._lock:  # of one module at a time; what is profiled is not in a hurry
            _, module = self._modules.setdefault(id(library), (library, _module(library)))
            start = time.perf_counter()
            records = module.run_quietly(feeds)
            self.session_event("model_run", start)
            for record in records:
                self._node(record, start, module.instance.graph)
            return module.outputs()

    def _node(self, record: NodeRecord, start: float, graph: Graph) -> None:
        node = record.node
        arguments = {
            "op_name": node.func if node.is_kernel else node.name,
            "provider": self._provider,
            "node_index": str(record.index),
            "spans": list(node.spans),
            "input_type_shape": [_typed(graph.type_of(entry)) for entry in node.inputs],
            "output_type_shape": [_typed(type_) for type_ in node.types],
            "output_size": str(sum(t.nbytes for t in node.types if t.is_static)),
            "flops": record.flops,
        }
        name = f"{node.spans[0] if node.spans else node.name}_kernel_time"
        self._add("Node", name, start + record.start, sum(record.seconds), arguments)

    def _add(
        self, category: str, name: str, start: float, seconds: float, arguments: dict[str, Any] | None = None
    ) -> None:
        since = start - self.start_ns / 1e9
        common = {"cat": category, "pid": os.getpid(), "tid": threading.get_ident(), "ph": "X", "name": name}
        self._events.append({**common, "ts": round(since * 1e6), "dur": round(seconds * 1e6), "args": arguments or {}})

    def end(self) -> str:
        """The file's name; it is written the first time, and nothing is kept any more."""
        if not self._written:
            try:
                self._path.write_text(json.dumps(sorted(self._events, key=lambda e: e["ts"])), encoding="utf-8")
            except OSError as error:
                raise ConfigError(
                    f"the profile cannot be written to {self._path}: {error.strerror}",
                    hint="set profile_file_prefix to a path that can be written",
                ) from error
        self._written = True
        self._events.clear()
        self._modules.clear()
        return str(self._path)


def _module(library: Library) -> GraphModuleDebug:
    return GraphModuleDebug(library["default"](None, library.threads))


def _typed(type_: Leaf) -> dict[str, list[Any]]:
    """A type as ONNX Runtime's profiles have it: ``{"float32": [1, 3]}``."""
    if not isinstance(type_, TensorType):
        return {str(type_): []}
    return {type_.dtype: [d if isinstance(d, int) else str(d) for d in type_.shape]}
