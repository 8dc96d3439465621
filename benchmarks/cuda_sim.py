"""Whole models on the simulated GPU, held against ONNX Runtime: how far off, in which order of threads, how slow."""

from __future__ import annotations

import pathlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

import minitvm
from benchmarks.cases import FOLDER, stored
from benchmarks.onnx_models import NETWORKS
from minitvm.driver import HostCallWarning
from minitvm.passes import PassContext
from simulated_gpu.device import simulated_target

Arrays = dict[str, np.ndarray]
Outputs = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Outcome:
    """``error``: largest difference, relative to the largest value expected of the same output."""

    model: str
    order: str
    error: float
    host_calls: tuple[str, ...]
    seconds: float


def models() -> dict[str, Callable[[], tuple[onnx.ModelProto | str, Arrays, list[np.ndarray]]]]:
    """By name: a model, a feed, and what ONNX Runtime gives for it."""
    stored = {p.stem: partial(_stored, p) for p in sorted(FOLDER.glob("*.onnx"))}
    made = {name: partial(_made, name) for name in NETWORKS}
    return {**stored, **made}


def _stored(path: pathlib.Path) -> tuple[str, Arrays, list[np.ndarray]]:
    feed, expected = stored(path)
    return str(path), feed, expected or []


def _made(name: str) -> tuple[onnx.ModelProto, Arrays, list[np.ndarray]]:
    import onnxruntime

    model = NETWORKS[name].build()
    rng = np.random.default_rng(0)
    feed = {i.name: _random(i, rng) for i in model.graph.input}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return model, feed, session.run(None, feed)


def _random(value: onnx.ValueInfoProto, rng: np.random.Generator) -> np.ndarray:
    type_ = value.type.tensor_type
    shape = [d.dim_value for d in type_.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(type_.elem_type)
    return rng.normal(size=shape).astype(dtype) if dtype.kind == "f" else rng.integers(0, 100, shape).astype(dtype)


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest expected value; infinite for NaN."""
    if found.shape != expected.shape or not np.array_equal(np.isnan(found), np.isnan(expected)):
        return float("inf")
    wide = expected.astype(np.float64)
    return float(np.nanmax(np.abs(found - wide), initial=0) / max(np.nanmax(np.abs(wide), initial=0), 1e-30))


PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    "float32": {},
    "tf32": {"cuda.allow_tf32": True},
    "split": {"cuda.split_tf32": True},
    "float16": {"minitvm.mixed_precision": "float16"},
}
"""Options of passes that float32 models are compiled with."""


def outcome(
    name: str, order: str = "forward", arch: str = "sm_90", seed: int = 0, precision: str = "float32"
) -> Outcome:
    """One model, one feed."""
    model, feed, expected = models()[name]()
    start = time.process_time()
    with simulated_target(), warnings.catch_warnings(), PassContext(config=PRECISIONS[precision]):
        warnings.simplefilter("ignore", HostCallWarning)
        target = f"simulated -arch={arch} -order={order} -seed={seed}"
        session = minitvm.InferenceSession(model, target=target)
        found = session.run(None, feed)
    largest = max(error(have, want) for have, want in zip(found, expected, strict=True))
    calls = tuple(dict.fromkeys(call.op for call in session.host_calls))
    return Outcome(name, order, largest, calls, time.process_time() - start)


def outcomes(names: list[str], orders: list[str], arch: str, precision: str = "float32") -> Iterator[Outcome]:
    for name in names:
        for order in orders:
            yield outcome(name, order, arch, precision=precision)


def show(found: list[Outcome], console: Console) -> None:
    table = Table("model", "order", "largest relative error", "host calls", "CPU s", title="simulated CUDA")
    for o in found:
        table.add_row(o.model, o.order, f"{o.error:.1e}", ", ".join(o.host_calls) or "none", f"{o.seconds:.1f}")
    console.print(table)
