"""Where a run's time goes: kernels and threads as they run together, beside what the machine does at most.

    found = minitvm.lab.profile("model.onnx", shape_dict={"data": (1, 3, 224, 224)})
    print(found)                                  # a line for each kernel, the longest first
    found.save_trace("trace.json")                # for https://ui.perfetto.dev or chrome://tracing

Kernels are not called one by one: the segments of a run are made once more with a clock beside every kernel (two reads
a kernel and thread), so that threads, barriers and caches are a run's.  What runs otherwise is as it was.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from minitvm.codegen.backend import Backend
from minitvm.driver import backend_for
from minitvm.driver.kernels import Progress
from minitvm.driver.roofline import rates_of
from minitvm.errors import ConfigError
from minitvm.lab.inputs import random_inputs
from minitvm.lab.tables import aligned
from minitvm.models import Model, compile
from minitvm.runtime.devices import Device
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.graph import Node, Segment, steps_of
from minitvm.runtime.hosts import operators_of
from minitvm.runtime.instance import Instance
from minitvm.runtime.library import Library, load
from minitvm.runtime.measured import Measured, again, doubts
from minitvm.runtime.roofline import Roofline, Row, cost_of
from minitvm.runtime.timing import timed
from minitvm.shown import Shown
from minitvm.target import Rates

IN_PYTHON = "Python"
"""What a node is bound by that is no kernel."""

_Stamp: TypeAlias = tuple[int, int, int, int]
"""(thread, node, begin, end), in nanoseconds of :func:`_now`."""


@dataclass(frozen=True)
class Slice:
    """A thread's time in one kernel, in seconds from the beginning of the run.  Between its slices a thread waits."""

    thread: int
    kernel: str
    start: float
    end: float
    node: int
    """In ``library.graph.nodes``."""


@dataclass(frozen=True)
class ProfileRow(Row):
    """A kernel call of a run; ``measured``: its part of the run.  Moments in which threads are in different kernels are
    shared among these; those in which all wait are the next one's."""

    index: int
    """Of its node, in ``library.graph.nodes``."""
    share: float
    """Of the time of all rows."""
    of_peak: float
    """The time that its operations take at the machine's peak, over its own."""
    of_bandwidth: float
    """The time that its bytes take at the rate of the memory that holds them, over its own."""
    idle: float
    """The share of all threads' time in which they wait."""


@dataclass(frozen=True, repr=False)
class Profile(Shown):
    """Kernels of a run, the longest first; ``timeline`` is one run's, the median one."""

    model: str
    rows: tuple[ProfileRow, ...]
    timeline: tuple[Slice, ...]
    rates: Rates
    first: Measured
    """The first run of all, which pays for what is done once; it counts nowhere else."""
    run: Measured
    """A run as ever, without clocks."""
    clocked: Measured
    """A run with them."""
    repeats: int
    stalled: int
    """Of ``repeats``, runs in which a thread lost its core to somebody else; they are in no figure."""
    idle: tuple[float, ...]
    """By thread, the share of a run in which it waits."""
    together: bool
    """Whether kernels ran as in a run, on all threads; else one by one, where threads cannot be watched."""
    disturbed: int = 0
    """Of the runs that are counted, those in which a thread lost its core: where most did, none is left out."""

    def __str__(self) -> str:
        return self.text()

    def text(self, top: int | None = None) -> str:
        """All of it, or of the table the ``top`` lines."""
        rows = self.table(top)
        lines = aligned(rows, left=(0, len(COLUMNS) - 2, len(COLUMNS) - 1))
        left = self.rows[len(rows) - 1 :]
        rest = [f"and {len(left)} more, {sum(r.share for r in left):.1%} of the time"] if left else []
        return "\n".join([self.summary, *self.notes, "", *lines, *rest])

    def table(self, top: int | None = None) -> list[tuple[str, ...]]:
        """Headings, then the cells of each row, or of the ``top`` ones."""
        return [COLUMNS, *(_cells(row) for row in self.rows[:top])]

    def __repr__(self) -> str:
        return f"<profile of {self.model}: {len(self.rows)} kernels, {self.text_of(self.run)} ms a run>"

    @property
    def summary(self) -> str:
        threads = f"{len(self.idle)} thread{'s' if len(self.idle) > 1 else ''}"
        return (
            f"{self.model}: {self.text_of(self.run)} ms a run on {threads},"
            f" the median of {self.repeats - self.stalled};"
            f" the first run took {self.text_of(self.first)} ms and is not counted"
        )

    def text_of(self, run: Measured) -> str:
        """Milliseconds of a whole run."""
        return run.text(self.predicted, 1e3, 3)

    @property
    def unreliable(self) -> int:
        """The number of measurements that cannot be believed."""
        return sum(not one.is_reliable for one in (self.run, self.clocked, *(row.measured for row in self.rows)))

    @property
    def doubts(self) -> list[str]:
        """What there is to say of measurements that cannot be believed; nothing where all can."""
        return doubts([row.measured for row in self.rows]) + doubts([self.run], "run")

    @property
    def notes(self) -> list[str]:
        """What there is to say of all kernels together."""
        how = (
            "with a clock beside every kernel" if self.together else "kernels one by one, as threads cannot be watched"
        )
        waits = ", ".join(f"{i}: {share:.0%}" for i, share in enumerate(self.idle))
        notes = [f"{how}: {self.text_of(self.clocked)} ms, predicted {self.predicted * 1e3:.3f} ms", *self.doubts]
        if self.stalled:
            notes += [f"{self.stalled} of {self.repeats} runs are left out: a thread lost its core to something else"]
        if self.disturbed:
            runs = f"{self.disturbed} of {self.repeats} runs"
            notes += [f"in {runs} a thread lost its core to something else: times of single kernels say little"]
        return [*notes, *([f"threads wait {waits} of the time"] if len(self.idle) > 1 else [])]

    @property
    def predicted(self) -> float:
        """Seconds of all kernels, as predicted from the machine's rates."""
        return sum(row.predicted for row in self.rows)

    @property
    def form(self) -> dict[str, Any]:
        """The profile for JSON, times in seconds."""
        figures = {name: getattr(self, name) for name in ("model", "repeats", "stalled", "disturbed", "together")} | {
            name: getattr(self, name).form for name in ("first", "run", "clocked")
        }
        timeline = [asdict(found) for found in self.timeline]
        machine = Roofline(self.rates, (), self.run).form["machine"]
        rows = [asdict(row) for row in self.rows]
        return {**figures, "idle": list(self.idle), "machine": machine, "kernels": rows, "timeline": timeline}

    def chrome_trace(self) -> str:
        """The timeline as Chrome's trace events, a track for each thread, with what it waits; Perfetto reads them."""
        names = {row.index: row for row in self.rows}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": thread, "args": {"name": f"thread {thread}"}}
            for thread in range(len(self.idle))
        ]
        for found in self.timeline:
            row = names[found.node]
            facts = {"nodes": list(row.nodes), "predicted_us": row.predicted * 1e6, "bound by": row.bound}
            events.append(_event(found.kernel, "kernel", found.thread, found.start, found.end, facts))
        events += [_event("waits", "idle", *gap, {}) for gap in self.gaps()]
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})

    def gaps(self) -> Iterator[tuple[int, float, float]]:
        """(thread, start, end) of what threads wait, in the timeline."""
        last = max((found.end for found in self.timeline), default=0.0)
        for thread in range(len(self.idle)):
            at = 0.0
            for start, end in [*((s.start, s.end) for s in self.timeline if s.thread == thread), (last, last)]:
                if start > at:
                    yield thread, at, start
                at = max(at, end)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`chrome_trace` to a file; :class:`OSError` where that cannot be."""
        Path(path).write_text(self.chrome_trace(), encoding="utf-8")


def profile(
    model: Library | Model,
    feeds: Mapping[str, Any] | None = None,
    *,
    repeats: int = 20,
    warmup: int = 3,
    num_threads: int | None = None,
    device: Device | None = None,
    seed: int = 0,
    on_progress: Progress | None = None,
    **options: Any,
) -> Profile:
    """Time the kernels of a model, or of a library, as they run together.

    ``feeds`` are its inputs; random ones of ``seed`` unless given.  ``warmup`` runs are not counted, ``repeats`` are;
    a figure is their median.  ``options`` are those of :func:`minitvm.compile`.
    """
    for name, value, least in (("repeats", repeats, 1), ("warmup", warmup, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name} is {value!r}, not a whole number from {least}")
    library = _library(model, num_threads, options)
    if feeds is not None and (library.artifact.is_open or library.others):
        library = library.for_shapes({name: np.shape(value) for name, value in feeds.items()}, feeds)
    module = GraphModule(library["default"](device, num_threads))
    given = random_inputs(module, seed) if feeds is None else feeds
    return profile_module(module, given, _title(model), repeats, warmup, on_progress)


def _library(model: Library | Model, num_threads: int | None, options: dict[str, Any]) -> Library:
    saved = Path(model) if isinstance(model, (str, os.PathLike)) else None
    if isinstance(model, Library) or (saved is not None and saved.suffix == ".mtvm"):
        if options:
            raise ConfigError(f"{', '.join(options)}: a library is compiled already", hint="give the model instead")
        return model if isinstance(model, Library) else load(saved or "")
    return compile(model, num_threads=num_threads, **options)


def _title(model: Any) -> str:
    return Path(model).name if isinstance(model, (str, os.PathLike)) else "the model"


def profile_module(
    module: GraphModule,
    feeds: Mapping[str, Any],
    title: str,
    repeats: int,
    warmup: int,
    on_progress: Progress | None = None,
) -> Profile:
    """Profiles a module that is ready to run: each repetition is a run that warms, one as ever, and one with clocks.

    All are made again, three times at most, as long as some measurement is unreliable.
    """
    instance = module.instance
    backend = backend_for(instance.artifact.target, instance.num_threads)
    [first] = timed(lambda: module.run(feeds))
    clocked, rates = _Clocked(instance, backend), rates_of(backend)

    def attempt() -> Profile:
        return _attempt(instance, clocked, (title, rates, first), repeats, warmup, on_progress)

    return again(attempt, lambda found: found.unreliable)


def _attempt(
    instance: Instance,
    clocked: _Clocked,
    known: tuple[str, Rates, float],
    repeats: int,
    warmup: int,
    on_progress: Progress | None,
) -> Profile:
    plain, stamps, lost = list[float](), list[list[_Stamp]](), list[int]()
    for done in range(warmup + repeats):
        instance.run()
        plain += timed(instance.run)
        before = _lost_cores()
        stamps.append(clocked.run())
        lost.append(_lost_cores() - before)
        if on_progress is not None:
            on_progress(done + 1, warmup + repeats, "")
    instance.finish(settled=True)
    whole = [found for found, count in zip(stamps[warmup:], lost[warmup:], strict=True) if not count]
    is_calm = len(whole) * 4 >= repeats  # what is left of many is no median
    kept = whole if is_calm else stamps[warmup:]
    runs = [_Run(found, instance.num_threads if clocked.together else 1) for found in kept]
    found = _summary(instance, runs, known, plain[warmup:], repeats - len(kept), clocked.together)
    return found if is_calm else replace(found, disturbed=repeats - len(whole))


# --- what is measured -------------------------------------------------------------------------------------------------


def _now() -> int:
    """Nanoseconds of the clock that segments read."""
    if hasattr(time, "clock_gettime_ns"):
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return time.perf_counter_ns()


def _lost_cores() -> int:
    """How often threads of this process were taken off their cores so far; 0 where nobody counts."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class _Clocked:
    """The steps of an instance, each of which says when its threads began and ended what."""

    def __init__(self, instance: Instance, backend: Backend) -> None:
        self.instance, self.backend, self.together = instance, backend, True
        steps = steps_of(instance.graph)
        self.steps = [self._segment(s) if isinstance(s, Segment) else self._alone(s) for s in steps]

    def run(self) -> list[_Stamp]:
        """One run, in the order of its kernels."""
        return [stamp for step in [step() for step in self.steps] for stamp in step()]

    def _segment(self, segment: Segment) -> Callable[[], Callable[[], list[_Stamp]]]:
        """Runs it, and gives what reads the stamps: reading them would let the threads fall asleep."""
        instance, threads = self.instance, self.instance.num_threads
        table = np.zeros((threads, len(segment.nodes), 2, 2), np.int64)
        source = self.backend.clocked(instance.artifact, segment, table.ctypes.data)
        if source is None:
            self.together = False
            return self._one_by_one(segment)
        run = instance.code.clocked(source, segment, instance.slots, threads)

        def stamps() -> list[_Stamp]:
            found = table[..., 0] * 1_000_000_000 + table[..., 1]
            table[:] = 0
            rows = found.transpose(1, 0, 2).tolist()
            return [(t, n, *pair) for n, row in zip(segment.nodes, rows, strict=True) for t, pair in enumerate(row)]

        def step() -> Callable[[], list[_Stamp]]:
            run()
            return stamps

        return step

    def _one_by_one(self, segment: Segment) -> Callable[[], Callable[[], list[_Stamp]]]:
        steps = [self._alone(node) for node in segment.nodes]

        def step() -> Callable[[], list[_Stamp]]:
            found = [stamp for one in steps for stamp in one()()]
            return lambda: found

        return step

    def _alone(self, node: int) -> Callable[[], Callable[[], list[_Stamp]]]:
        """A node by itself: a call in Python, control flow, or a kernel of a machine with a clock of its own."""
        run, code = self.instance.node_step(node), self.instance.code
        clock = code.timed if self.instance.graph.nodes[node].is_kernel else timed

        def step() -> Callable[[], list[_Stamp]]:
            begin = _now()
            [seconds] = clock(run, 1)
            return lambda: [(0, node, begin, begin + round(seconds * 1e9))]

        return step


class _Run:
    """What the stamps of one run say; a thread that came too late for it has none, and waits all the time."""

    def __init__(self, stamps: Sequence[_Stamp], threads: int) -> None:
        self.nodes = [*dict.fromkeys(node for _, node, _, _ in stamps)]
        self.stamps = [stamp for stamp in stamps if 0 < stamp[2] <= stamp[3]]  # a clock that goes back says nothing
        self.begin = min((begin for _, _, begin, _ in self.stamps), default=0)
        self.end = max((end for *_, end in self.stamps), default=0)
        self.threads = threads
        self.seconds = (self.end - self.begin) / 1e9
        self.of_node, self.busy, self.of_thread = self._progress()

    def _progress(self) -> tuple[dict[int, float], dict[int, float], list[float]]:
        """By node, its part of the run, and the threads' time in it; by thread, its time in all."""
        busy, of_thread = dict[int, float](), [0.0] * self.threads
        for thread, node, begin, end in self.stamps:
            busy[node] = busy.get(node, 0.0) + (end - begin) / 1e9
            of_thread[thread] += (end - begin) / 1e9
        return self._parts(), busy, of_thread

    def _parts(self) -> dict[int, float]:
        """Every moment of the run is of the nodes that threads are in, by their threads; of the next one, where all
        wait."""
        edges = sorted([(s[2], 1, s[1]) for s in self.stamps] + [(s[3], -1, s[1]) for s in self.stamps])
        found = {node: 0.0 for _, node, _, _ in self.stamps}
        inside, last = dict[int, int](), self.begin
        for moment, step, node in edges:
            count = sum(inside.values())
            for one, threads in inside.items() if count else [(node, 1)]:
                found[one] += (moment - last) * threads / (count or 1) / 1e9
            last = moment
            inside[node] = inside.get(node, 0) + step
        return found

    def slices(self, names: Sequence[str]) -> tuple[Slice, ...]:
        def seconds(moment: int) -> float:
            return (moment - self.begin) / 1e9

        return tuple(Slice(t, names[n], seconds(begin), seconds(end), n) for t, n, begin, end in self.stamps)


def _median(figures: Sequence[float]) -> float:
    return float(np.median(figures)) if figures else 0.0


def _summary(
    instance: Instance,
    runs: Sequence[_Run],
    known: tuple[str, Rates, float],
    plain: Sequence[float],
    stalled: int,
    together: bool,
) -> Profile:
    title, rates, first = known
    found = [_row(instance, i, runs, rates) for i in runs[0].nodes]
    total = sum(row.seconds for row in found) or 1.0
    rows = sorted((replace(row, share=row.seconds / total) for row in found), key=lambda row: -row.seconds)
    floor = sum(row.floor for row in rows)
    clocked = Measured.of([run.seconds for run in runs], floor)
    middle = min(runs, key=lambda run: abs(run.seconds - clocked.seconds))
    waits = tuple(
        _median([1 - run.of_thread[t] / run.seconds if run.seconds else 0.0 for run in runs])
        for t in range(runs[0].threads)
    )
    slices = middle.slices([_name(instance, node) for node in instance.graph.nodes])
    times = Measured.of([first], floor), Measured.of(plain, floor), clocked
    return Profile(title, tuple(rows), slices, rates, *times, len(runs) + stalled, stalled, waits, together)


def _name(instance: Instance, node: Node) -> str:
    """Of a kernel, or of what Python or the executor does in its place."""
    host = instance.artifact.hosts.get(node.name)
    return node.func if host is None else operators_of(host.function)


def _row(instance: Instance, index: int, runs: Sequence[_Run], rates: Rates) -> ProfileRow:
    """Without its share."""
    node = instance.graph.nodes[index]
    times = [run.of_node[index] for run in runs if index in run.of_node]
    whole = sum(times) * runs[0].threads
    idle = max(0.0, 1 - sum(run.busy.get(index, 0.0) for run in runs) / whole) if whole else 0.0
    nodes, name = node.spans or (node.name,), _name(instance, node)
    if not node.is_kernel:
        measured = Measured.of(times)
        return ProfileRow(nodes, name, 0.0, 0, 0.0, 0.0, 0.0, measured, IN_PYTHON, index, 0.0, 0.0, 0.0, idle)
    cost = cost_of(instance.artifact, node)
    floor = cost.floor(rates)
    figures = cost.at_peak(rates), floor, cost.seconds(rates), Measured.of(times, floor), cost.bound(rates)
    row = Row(nodes, name, cost.flops, cost.nbytes, *figures)
    of_peak = of_bandwidth = 0.0
    with suppress(ZeroDivisionError):
        of_peak = row.at_peak / row.seconds
        of_bandwidth = sum(cost.moving(rates).values()) / row.seconds
    return ProfileRow(**vars(row), index=index, share=0.0, of_peak=of_peak, of_bandwidth=of_bandwidth, idle=idle)


# --- as text ----------------------------------------------------------------------------------------------------------

COLUMNS = ("nodes", "us", "share", "predicted", "x predicted", "of peak", "of bandwidth", "waits", "bound by", "kernel")


def _cells(row: ProfileRow) -> tuple[str, ...]:
    nodes = f"{row.nodes[0]}{f' +{len(row.nodes) - 1}' if row.nodes[1:] else ''}"
    times = (row.measured.text(row.predicted, 1e6, 1), f"{row.share:.1%}")
    if row.bound == IN_PYTHON:
        return (nodes, *times, "-", "-", "-", "-", f"{row.idle:.0%}", row.bound, row.kernel)
    ratio = f"{row.measured.seconds / row.predicted:.2f}" if row.predicted and row.measured.is_reliable else "-"
    shares = (f"{row.of_peak:.0%}", f"{row.of_bandwidth:.0%}", f"{row.idle:.0%}")
    return (nodes, *times, f"{row.predicted * 1e6:.1f}", ratio, *shares, row.bound, row.kernel)


def _event(name: str, kind: str, thread: int, start: float, end: float, facts: Mapping[str, Any]) -> dict[str, Any]:
    moments = {"ts": start * 1e6, "dur": (end - start) * 1e6}
    return {"ph": "X", "name": name, "cat": kind, "pid": 0, "tid": thread, **moments, "args": dict(facts)}
