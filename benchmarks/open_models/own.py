"""Kernels for all sizes beside those that are made for one size: how much longer they take, by network and by part."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from unittest import mock

import numpy as np
import onnx

import minitvm
from benchmarks.open_models import inputs
from minitvm.runtime.instance import Instance
from minitvm.runtime.library import Library

NETWORKS = (
    "bert.legacy",
    "convnext.legacy",
    "densenet.legacy",
    "detr.legacy",
    "efficientnet.legacy",
    "gpt2.dynamo",
    "hrnet.legacy",
    "inception.legacy",
    "levit.legacy",
    "llama.dynamo",
    "mobilenetv3.legacy",
    "regnet.legacy",
    "resnet18.legacy",
    "segformer.legacy",
    "squeezebert.legacy",
    "swin_open.legacy",
    "t5.legacy",
    "unet2d.legacy",
    "wav2vec2.legacy",
    "yolov8n.legacy",
)
"""Text, images, sound; a batch alone is open in some, pixels and lengths in others."""
SIZES: Mapping[str, int] = {"batch": 1, "height": 224, "width": 224, "seq": 64, "past": 0, "samples": 16000}
"""That all are measured at; other dimensions as the file says."""
TURNS, FEWEST, MOST = 60, 4, 2.0
"""How often each runs: at least and at most, and for how many seconds."""
LEAST = 20e-6
"""Seconds that a part takes with its own kernels: shorter ones are mostly calls."""


@dataclass(frozen=True)
class Part:
    """Kernels that do what the same ONNX nodes ask for; seconds of all of them, the fastest of many turns."""

    open: tuple[str, ...]
    """Names of the kernels for all sizes."""
    own: tuple[str, ...]
    open_seconds: float
    own_seconds: float

    @property
    def ratio(self) -> float:
        return self.open_seconds / self.own_seconds


@dataclass(frozen=True)
class Compared:
    """One network; seconds of whole runs, the fastest of many turns."""

    name: str
    open_seconds: float
    own_seconds: float
    parts: Sequence[Part]

    @property
    def ratio(self) -> float:
        return self.open_seconds / self.own_seconds

    @property
    def worst(self) -> Part | None:
        """Of the parts that take long enough to be timed."""
        return max((p for p in self.parts if p.own_seconds >= LEAST), key=lambda p: p.ratio, default=None)


def compared(path: pathlib.Path, is_first: bool) -> Compared:
    """A file's kernels for all sizes; the run that they were compiled in has the size that is measured (``is_first``),
    or the file's first one."""
    named, sizes = inputs.read(onnx.load(path, load_external_data=False))
    known = next(iter(inputs.runs(sizes)))
    feeds = inputs.feeds(named, {name: SIZES.get(name, extent) for name, extent in known.items()})
    shapes = {name: array.shape for name, array in feeds.items()}
    with mock.patch.dict(os.environ, MINITVM_CACHE_DIR=""):  # what is kept there was compiled in other runs
        session = minitvm.InferenceSession(str(path), num_threads=1, specialise_after=0)
        session.run(None, feeds if is_first else inputs.feeds(named, known))
        own = minitvm.compile(str(path), shape_dict=shapes, num_threads=1)
    both = [_instance(library, feeds) for library in (session.libraries[-1].for_shapes(shapes), own)]
    whole = fastest([one.run for one in both])
    kernels = [fastest([one.node_step(i) for i in _kernels(one)]) for one in both]
    return Compared(path.stem, whole[0], whole[1], parts(*map(_named, both, kernels)))


def _instance(library: Library, feeds: Mapping[str, np.ndarray]) -> Instance:
    instance: Instance = library["default"](None, 1)
    for name, array in feeds.items():
        if name in instance.input_entry:
            instance.assign(name, array)
    return instance


def _kernels(instance: Instance) -> list[int]:
    """Those of every run."""
    kept = bool(instance.kept)
    return [i for i, node in enumerate(instance.graph.nodes) if node.is_kernel and not (node.once and kept)]


def _named(instance: Instance, seconds: Sequence[float]) -> list[Timed]:
    nodes = [instance.graph.nodes[i] for i in _kernels(instance)]
    return [Timed(n.func, tuple(n.spans), s) for n, s in zip(nodes, seconds, strict=True)]


def fastest(runs: Sequence[Callable[[], None]]) -> list[float]:
    """Seconds of each, the least of many turns that they take one after the other."""
    found = [float("inf")] * len(runs)
    until = time.perf_counter() + MOST
    for turn in range(TURNS):
        for i, run in enumerate(runs):
            start = time.thread_time()
            run()
            found[i] = min(found[i], time.thread_time() - start)
        if turn >= FEWEST and time.perf_counter() > until:
            break
    return found


class Timed(NamedTuple):
    """A kernel call."""

    kernel: str
    nodes: tuple[str, ...]
    """ONNX nodes that ask for it."""
    seconds: float


def parts(opened: Sequence[Timed], own: Sequence[Timed]) -> list[Part]:
    """Kernels that do the same: an own kernel, or some whose nodes a kernel for all sizes has together.  What moves
    pixels between two windows counts as the second one's."""
    home = {node: i for i, one in reversed(list(enumerate(own))) for node in one.nodes}
    leader = list(range(len(own)))

    def led(i: int) -> int:
        while leader[i] != i:
            i = leader[i]
        return i

    for i, one in enumerate(own):
        _together(leader, led, [*(home[n] for n in one.nodes), i])
    found = [[home[n] for n in one.nodes if n in home] for one in opened]
    found = [met[-1:] if "_tiles" in one.kernel else met for met, one in zip(found, opened, strict=True)]
    for met in found:
        _together(leader, led, met)
    grouped: dict[int, tuple[list[Timed], list[Timed]]] = {}
    for i, one in enumerate(own):
        grouped.setdefault(led(i), ([], []))[1].append(one)
    for met, one in zip(found, opened, strict=True):
        if met:
            grouped[led(met[0])][0].append(one)
    return [Part(_kernels_of(a), _kernels_of(b), _seconds_of(a), _seconds_of(b)) for a, b in grouped.values()]


def _kernels_of(some: Sequence[Timed]) -> tuple[str, ...]:
    return tuple(one.kernel for one in some)


def _seconds_of(some: Sequence[Timed]) -> float:
    return sum(one.seconds for one in some)


def _together(leader: list[int], led: Callable[[int], int], some: Sequence[int]) -> None:
    for other in some[1:]:
        leader[led(other)] = led(some[0])


def line(one: Compared) -> str:
    """One network's, as text of fixed columns."""
    worst = one.worst
    part = f"{worst.ratio:5.2f} x {1e6 * worst.own_seconds:.0f} us, {worst.own[-1]}" if worst else "-"
    figures = f"{1e3 * one.open_seconds:8.2f} / {1e3 * one.own_seconds:.2f} ms = {one.ratio:.2f}"
    return f"{one.name:24} {figures:32} worst part {part}"


def summary(found: Sequence[Compared]) -> str:
    mean = float(np.exp(np.mean([np.log(one.ratio) for one in found])))
    parts = [part.ratio for one in found if (part := one.worst) is not None]
    network, worst = max(one.ratio for one in found), max(parts, default=1.0)
    return f"{len(found)} networks: geometric mean {mean:.2f}, worst network {network:.2f}, worst part {worst:.2f}"


def slowest(one: Compared, count: int) -> str:
    """The parts that lose most time."""
    parts = sorted(one.parts, key=lambda part: part.own_seconds - part.open_seconds)[:count]
    rows = (
        f"  {p.ratio:6.2f} {1e6 * p.open_seconds:8.0f} {1e6 * p.own_seconds:8.0f} us  "
        f"{' '.join(p.own)} <- {' '.join(p.open)}"
        for p in parts
    )
    return "\n".join(rows)
