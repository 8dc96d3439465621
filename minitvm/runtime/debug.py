"""The debug executor: node by node, with times, FLOP/s, checksums, a table and a Chrome trace."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minitvm.errors import ConfigError, InputError, listing
from minitvm.runtime import executor
from minitvm.runtime.checks import joined
from minitvm.runtime.devices import Device
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.graph import Node
from minitvm.runtime.graph_json import json_of
from minitvm.runtime.instance import Instance
from minitvm.runtime.library import Library
from minitvm.runtime.measured import Measured, again
from minitvm.runtime.profiled import Profile, ProfiledCall
from minitvm.runtime.timing import BenchmarkResult, measure, timed

ROUNDS = 10
"""Of a profile: how often every step runs, and the whole."""


@dataclass(frozen=True)
class NodeRecord:
    """One node of the last run.  ``seconds`` of every repetition; ``start`` counts from the run's beginning."""

    node: Node
    index: int
    start: float
    seconds: tuple[float, ...]
    flops: float
    nbytes: int
    checksum: int
    """CRC-32 of the node's results."""

    @property
    def mean(self) -> float:
        return sum(self.seconds) / len(self.seconds)

    @property
    def gflops(self) -> float:
        return self.giga_per_second(self.flops)

    def giga_per_second(self, count: float) -> float:
        return count / self.mean / 1e9 if self.mean > 0 else 0.0


def _bytes_of(value: Any) -> bytes:
    """An array's; of text and of what is no array, those of what it prints."""
    return value.tobytes() if isinstance(value, np.ndarray) and value.dtype != object else repr(value).encode()


_COLUMNS: dict[str, Callable[[NodeRecord, float], str]] = {
    "Node": lambda r, _: r.node.name,
    "Kernel": lambda r, _: r.node.func,
    "Time(us)": lambda r, _: f"{r.mean * 1e6:.1f}",
    "Time(%)": lambda r, total: f"{100 * r.mean / total if total else 0:.1f}",
    "GFLOP/s": lambda r, _: f"{r.gflops:.1f}",
    "GB/s": lambda r, _: f"{r.giga_per_second(r.nbytes):.1f}",
    "Shape": lambda r, _: " ".join(str(t.shape).replace(" ", "") for t in r.node.types),
    "Inputs": lambda r, _: str(len(r.node.inputs)),
    "Outputs": lambda r, _: str(len(r.node.types)),
    "Checksum": lambda r, _: f"{r.checksum:08x}",
}
"""Of the table: a node's record and the time of all -> a cell."""


class GraphModuleDebug(GraphModule):
    """A :class:`GraphModule` whose ``run`` goes node by node and prints a table.

    ``dump_root``: folder for ``graph.json`` and ``trace.json`` (Chrome's ``about:tracing``), written by every run.
    """

    def __init__(
        self,
        instance: Instance,
        devices: Sequence[Device] = (),
        graph_json: str | None = None,
        dump_root: str | Path | None = None,
    ) -> None:
        super().__init__(instance)
        self.graph_json = graph_json or json_of(instance.artifact.graph, instance.artifact.plan)
        self.dump_root = Path(dump_root) if dump_root is not None else None
        self.records: list[NodeRecord] = []
        self._kept: dict[int, list[Any]] = {}
        self._run_node = {i: instance.node_step(i) for i, node in enumerate(self._graph.nodes) if not node.is_null}

    def run(self, feeds: Mapping[str, Any] | None = None, /, number: int = 1, **inputs: Any) -> None:
        """Run every node ``number`` times in order, keep its results, print the table and write the dumps."""
        self.run_quietly(feeds, number, **inputs)
        print(self.table())
        if self.dump_root is not None:
            self.dump_root.mkdir(parents=True, exist_ok=True)
            (self.dump_root / "graph.json").write_text(self.graph_json, encoding="utf-8")
            (self.dump_root / "trace.json").write_text(self.chrome_trace(), encoding="utf-8")

    def run_quietly(
        self, feeds: Mapping[str, Any] | None = None, /, number: int = 1, **inputs: Any
    ) -> list[NodeRecord]:
        """Runs as :meth:`run` does, without output."""
        with self._alone():
            self._assign_all(joined(feeds, inputs))
            origin = time.perf_counter()
            self.instance.has_run = False
            self.records = [self._run_one(i, number, origin) for i in self._run_node]
            self.instance.finish(settled=True)
        return self.records

    def seconds_of_kernels(
        self, rounds: int, on_progress: Callable[[int, int, str], None] | None = None
    ) -> list[tuple[Node, list[float]]]:
        """The kernels in order, with their seconds: each runs once a round, so that its operands are where a run leaves
        them.  The inputs are set; a round before the first is not counted."""
        return [(node, found) for node, found in self._seconds_of_steps(rounds, on_progress) if node.is_kernel]

    def _seconds_of_steps(
        self, rounds: int, on_progress: Callable[[int, int, str], None] | None = None
    ) -> list[tuple[Node, list[float]]]:
        """:meth:`seconds_of_kernels` of all that runs."""
        seconds: dict[int, list[float]] = {i: [] for i in self._run_node}
        for done in range(rounds + 1):
            for index, run in self._run_node.items():
                node = self._graph.nodes[index]
                seconds[index] += (self.instance.code.timed if node.is_kernel else timed)(run, 1)
            if on_progress is not None:
                on_progress(done, rounds, "")
        self.instance.finish(settled=True)
        return [(self._graph.nodes[i], found[1:]) for i, found in seconds.items()]

    # --- profiles ---

    def profile(self, collectors: Sequence[Any] | None = None, **inputs: Any) -> Profile:
        """What every step takes, alone and warm, and what a run does; the results are those of a run.

        All is measured again where something is unreliable.  There are no metrics but times: ``collectors`` are
        refused.
        """
        if collectors:
            raise ConfigError(
                "there are no collectors of metrics", hint="what bounds a kernel says `minitvm bench --roofline`"
            )
        with self._alone():
            self._assign_all(inputs)
            return again(self._profiled, lambda found: sum(not one.seconds.is_reliable for one in found.calls))

    def _profiled(self) -> Profile:
        calls = tuple(self._profiled_call(*one) for one in self._seconds_of_steps(ROUNDS))
        runs = timed(self._whole, ROUNDS + 1)[1:]
        return Profile(calls, Measured.of(runs), {"Rounds": ROUNDS, "Number of threads": self.instance.num_threads})

    def _whole(self) -> None:
        self.instance.run()
        self.instance.memory.wait()

    def _profiled_call(self, node: Node, seconds: Sequence[float]) -> ProfiledCall:
        given = [self._graph.nodes[n].types[i] for n, i in node.inputs]
        shapes = ", ".join(f"{t.dtype}{list(t.shape)}".replace("'", "") for t in (*given, *node.types))
        predicted = float(self.instance.artifact.metadata.get(node.func, {}).get("seconds", 0))
        return ProfiledCall(node.func or node.name, Measured.of(seconds), str(self.instance.device), shapes, predicted)

    def run_individual(self, number: int = 10, repeat: int = 1, min_repeat_ms: float = 0) -> list[list[float]]:
        """The seconds of every node, ``repeat`` of them, each the mean of ``number`` runs of it alone, as TVM's; inputs
        and parameters take none.  The inputs are set, and the results are those of a run."""
        nodes = range(len(self._graph.nodes))
        return [[*self.run_individual_node(i, number, repeat, min_repeat_ms).results] for i in nodes]

    def run_individual_node(
        self, index: str | int, number: int = 10, repeat: int = 1, min_repeat_ms: float = 0
    ) -> BenchmarkResult:
        """The times that :meth:`run_individual` finds, of one node by its name or number."""
        run = self._run_node.get(self._node_index(index))
        with self._alone():
            self._assign_all({})
            if run is None:
                return BenchmarkResult([0.0] * repeat)
            self.instance.run()
            found = measure(run, repeat, number, min_repeat_ms, self.instance.memory.wait)
            self.instance.run()
            return found

    def _run_one(self, index: int, number: int, origin: float) -> NodeRecord:
        start = time.perf_counter()
        node = self._graph.nodes[index]
        seconds = (self.instance.code.timed if node.is_kernel else timed)(self._run_node[index], number)
        results = [self.instance.result((index, i)) for i in range(len(node.types))]
        self._kept[index] = results
        checksum = zlib.crc32(b"".join(map(_bytes_of, results)))
        known = self.instance.artifact.metadata.get(node.func, {})
        flops, nbytes = float(known.get("flops", 0)), int(known.get("bytes", 0))
        return NodeRecord(node, index, start - origin, tuple(seconds), flops, nbytes, checksum)

    # --- results ---

    def debug_get_output(self, node: str | int, output: int = 0) -> Any:
        """A node's result as it was right after the node ran, by the node's name or number."""
        index = self._node_index(node)
        if self._graph.nodes[index].is_null:
            return self.get_input(self._graph.nodes[index].name)
        if index not in self._kept:
            raise InputError(f"node {node!r} has not run yet", hint="call run() first")
        return self._handed_out(self._kept[index][output])

    def _node_index(self, node: str | int) -> int:
        names = [n.name for n in self._graph.nodes]
        if isinstance(node, str) and node in names:
            return names.index(node)
        if isinstance(node, int) and 0 <= node < len(names):
            return node
        raise InputError(f"the graph has no node {node!r}", hint=f"its nodes are: {listing(names)}")

    @property
    def debug_datum(self) -> GraphModuleDebug:
        """Itself; TVM has :meth:`get_debug_result` there."""
        return self

    def get_debug_result(self, sort_by_time: bool = True) -> str:
        """:meth:`table`, as TVM calls it, with the longest first."""
        return self.table(sort_by_time)

    def table(self, sort_by_time: bool = False) -> str:
        """One line per node: time, share, GFLOP/s, GB/s, shapes; then the total."""
        total = sum(r.mean for r in self.records)
        records = sorted(self.records, key=lambda r: -r.mean) if sort_by_time else self.records
        rows = [list(_COLUMNS), *([cell(r, total) for cell in _COLUMNS.values()] for r in records)]
        rows.append(["total", "-", f"{total * 1e6:.1f}", "100.0", *["-"] * 6])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join(lines)

    def chrome_trace(self) -> str:
        """The last run as Chrome trace events (B and E per node, microseconds)."""
        events: list[dict[str, Any]] = []
        for record in self.records:
            common = {"name": record.node.name, "cat": record.node.func, "pid": 0, "tid": 0}
            arguments = {"spans": list(record.node.spans), "shapes": [list(t.shape) for t in record.node.types]}
            events.append({**common, "ph": "B", "ts": record.start * 1e6, "args": arguments})
            events.append({**common, "ph": "E", "ts": (record.start + sum(record.seconds)) * 1e6})
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, default=str)  # a dimension may have a name


def create(graph_json: str, lib: Library, device: Device, dump_root: str | Path | None = None) -> GraphModuleDebug:
    """A module from its parts, as TVM's ``debug_executor.create``; raises what :func:`executor.create` does."""
    return GraphModuleDebug(executor.create(graph_json, lib, device).instance, [device], graph_json, dump_root)
