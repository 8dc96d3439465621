"""The sweep of single layers: each at every level beside onnxruntime, with what was chosen for it."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator

import minitvm
from benchmarks import narrow, worker
from benchmarks.layer_draw import Layer
from benchmarks.layer_kinds import draw_layers, wanted_layers
from benchmarks.machine import cpu_model
from benchmarks.runtimes import relative_error, statistics, versions
from benchmarks.scale import microseconds, mlp, mlp_feeds
from minitvm.driver import BuildReport
from minitvm.errors import MiniTVMError
from minitvm.ir.loop import Alloc, Const, For, Kernel, LoopKind, walk_stmts
from minitvm.ir.op import Op
from minitvm.ir.visitor import calls
from minitvm.runtime.rounds import PAUSE, side_by_side

PEER = "onnxruntime"
MOST_RUNS = 400
"""Of one turn: what takes 20 microseconds needs more runs than a network does."""
TURN = 0.01
"""Seconds: many short turns, so that a machine that is slow for a tenth of a second is so for both."""

Run = Callable[[], "list[np.ndarray]"]


@dataclass(frozen=True)
class Settings:
    """``levels``: the optimization levels of minitvm that are measured."""

    levels: Sequence[int] = (2, 3)
    threads: int = 1
    rounds: int = 12
    target: str = "llvm"

    @property
    def pause(self) -> float:
        """Nobody's worker threads spin where there are none."""
        return PAUSE if self.threads > 1 else 0.0


def measure(layer: Layer, settings: Settings) -> dict[str, Any]:
    """One layer's times in ms by runtime (``level 3``, ``onnxruntime``), ratios and errors by level, and choices."""
    model = layer.model.SerializeToString()
    found: dict[str, Any] = {"name": layer.name, "text": layer.text, "problems": {}, "choices": {}, "errors": {}}
    peer = _peer(model, settings.threads, settings.target)
    expected = peer.run(None, layer.feeds)
    runs: dict[str, Run] = {PEER: lambda: peer.run(None, layer.feeds)}
    for level in settings.levels:
        name = f"level {level}"
        try:
            start = time.perf_counter()
            session = minitvm.InferenceSession(
                model, target=settings.target, num_threads=settings.threads, opt_level=level
            )
            outputs = session.run(None, layer.feeds)
        except MiniTVMError as error:
            found["problems"][name] = f"{type(error).__name__}: {error}"
            continue
        found.setdefault("compile_s", {})[name] = time.perf_counter() - start
        found["errors"][name] = difference(outputs, expected)
        if not found["errors"][name] <= layer.tolerance:
            found["problems"][name] = who_is_wrong(layer, outputs, expected)
        found["choices"][name] = _choices(session)
        runs[name] = lambda session=session: session.run(None, layer.feeds)  # type: ignore[misc]
    times = side_by_side(runs, settings.rounds, settings.pause, most=MOST_RUNS, turn=TURN)
    found["times"] = {name: statistics(stats) for name, stats in times.items()}
    return {**found, "ratios": ratios(found["times"])}


def ratios(times: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The peer's median time over ours, by level: above 1 where we are faster."""
    return {name: times[PEER]["median"] / found["median"] for name, found in times.items() if name != PEER}


def difference(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference relative to the largest element; infinite where shapes or dtypes differ."""
    same = [(a.shape, a.dtype) for a in found] == [(b.shape, b.dtype) for b in expected]
    return relative_error([*found], [b.astype(np.float64) for b in expected]) if same else float("inf")


def who_is_wrong(layer: Layer, outputs: Sequence[np.ndarray], peers: Sequence[np.ndarray]) -> str:
    """Of outputs that differ, as ONNX's reference evaluator has them."""
    reference = ReferenceEvaluator(layer.model).run(None, layer.feeds)
    error, of_peer = (difference(found, reference) for found in (outputs, peers))
    if error <= layer.tolerance:
        return f"{PEER} is wrong: it differs from ONNX's reference evaluator by {of_peer:.0e}, minitvm by {error:.0e}"
    return f"wrong: differs by {difference(outputs, peers):.0e}"


def _peer(model: bytes, threads: int, target: str) -> Any:
    ort = narrow.peer(PEER, target)
    options = ort.SessionOptions()
    options.log_severity_level = 3  # it warns in every run where it computes another shape than the model declares
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


# --- what was chosen ------------------------------------------------------------------------------------------


def _choices(session: minitvm.InferenceSession) -> list[dict[str, Any]]:
    """One entry a kernel, one a host call."""
    library = session.libraries[-1]
    kernels = [choice(library.report, symbol) for symbol in library.report.groups]
    hosts = [{"kernel": str(call), "chosen": "Python", "layout": "", "declined": []} for call in session.host_calls]
    return kernels + hosts


def choice(report: BuildReport, symbol: str) -> dict[str, Any]:
    """What makes a kernel: template or nests, whether there are vector loops, layouts, and why templates declined."""
    found = report.kernel(symbol)
    ops = [call.op for call in calls(found.group.body) if isinstance(call.op, Op)]
    words = [getattr(op, name) for op in ops for name in ("data_layout", "layout", "dst_layout") if hasattr(op, name)]
    vector = "" if found.template.startswith("template") else f", {loop_summary(found.loops)}"
    return {
        "kernel": symbol,
        "chosen": found.template + vector,
        "layout": " ".join(dict.fromkeys(map(str, words))),
        "declined": list(dict.fromkeys(str(d) for d in found.decisions if not d.taken)),
    }


def loop_summary(kernel: Kernel) -> str:
    """``vectors of 16`` by the widest vector loop, or ``scalar``; and how many stages have memory of their own."""
    stmts = list(walk_stmts(kernel.body))
    vectors = [s.extent for s in stmts if isinstance(s, For) and s.kind is LoopKind.VECTORIZED]
    kept = sum(isinstance(s, Alloc) and s.buffer.scope != "local" for s in stmts)
    width = f"vectors of {max(e.value for e in vectors if isinstance(e, Const))}" if vectors else "scalar"
    return f"{width}, {kept} kept" if kept else width


# --- the sweep ------------------------------------------------------------------------------------------------


def sweep(
    layers: Iterable[Layer], settings: Settings, on_layer: Callable[[dict[str, Any]], None] = lambda found: None
) -> dict[str, Any]:
    """Every layer; the result is what ``layers.json`` holds."""
    measured = []
    start = time.perf_counter()
    for layer in layers:
        measured.append(measure(layer, settings))
        on_layer(measured[-1])
    return {
        "date": datetime.date.today().isoformat(),
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        "versions": versions(["minitvm", PEER]),
        "settings": {**asdict(settings), "levels": list(settings.levels)},
        "seconds": time.perf_counter() - start,
        "kept": narrow.said(settings.target),
        "call_us": _call_overhead(settings.target),
        "layers": measured,
    }


def _call_overhead(target: str) -> dict[str, float]:
    """Microseconds of a run of next to nothing."""
    model, feeds = mlp().SerializeToString(), mlp_feeds()
    session, peer = minitvm.InferenceSession(model, target=target, num_threads=1), _peer(model, 1, target)
    runs = {"minitvm": session.run, PEER: peer.run}
    return {name: microseconds(lambda run=run: run(None, feeds)) for name, run in runs.items()}


def drawn(count: int, seed: int, settings: Settings) -> dict[str, Any]:
    """:func:`sweep` of layers drawn, in a process of its own: a peer can be kept to one target in each."""
    given = json.dumps([count, seed, asdict(settings)])
    return worker.process("benchmarks.layers", [given], {})


if __name__ == "__main__":
    _count, _seed, _settings = json.loads(sys.argv[1])
    print(json.dumps(sweep(draw_layers(wanted_layers(_count, []), _seed), Settings(**_settings))))
