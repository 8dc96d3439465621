"""What the benchmark runs: its networks, real models with their inputs and expected outputs, or any file."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from benchmarks import worker
from benchmarks.onnx_models import NETWORKS
from benchmarks.runtimes import Feeds, random_feeds

FOLDER = pathlib.Path(os.environ.get("MINITVM_SHARED", pathlib.Path(__file__).parents[2] / "shared")) / "models"
"""Where real models lie: ``NAME.onnx`` with ``NAME.npz``, whose keys are ``in0.INPUT`` and ``out0.OUTPUT``."""

EIGHTEEN = tuple(name for name in NETWORKS if name != "bert_base_4layers_s128")
"""The networks that means are of."""


def real() -> list[str]:
    """Names of the real models that are here."""
    return [path.stem for path in sorted(FOLDER.glob("*.onnx"))]


def found(name: str) -> str | None:
    """A network's name, or the path of a real model or of any file; ``None`` where there is no such thing."""
    here = FOLDER / f"{name}.onnx"
    return name if name in NETWORKS or pathlib.Path(name).is_file() else str(here) if here.is_file() else None


@dataclass(frozen=True)
class Case:
    """A model's file with its inputs beside it; ``expected``: outputs that came with it."""

    name: str
    path: pathlib.Path
    gflop: float | None
    feeds: Feeds
    expected: Sequence[np.ndarray] | None = None


def make(name: str, folder: pathlib.Path) -> Case:
    """A network built in ``folder``; or a file, with its own inputs where they lie beside it."""
    path = folder / f"{pathlib.Path(name).stem}.onnx"
    feeds: Feeds
    feeds, expected = {}, None
    if name in NETWORKS:
        onnx.save(NETWORKS[name].build(), path)
    else:
        path.symlink_to(pathlib.Path(name).resolve())
        feeds, expected = stored(pathlib.Path(name))
    feeds = feeds or random_feeds(path)
    worker.save_feeds(path, feeds)
    return Case(path.stem, path, NETWORKS[name].gflop if name in NETWORKS else None, feeds, expected)


def stored(path: pathlib.Path) -> tuple[dict[str, np.ndarray], list[np.ndarray] | None]:
    """The first inputs that lie beside a model, and its outputs for them; nothing where nothing does."""
    beside = path.with_suffix(".npz")
    if not beside.is_file():
        return {}, None
    names = [o.name for o in onnx.load(path, load_external_data=False).graph.output]
    with np.load(beside) as arrays:
        feed = {key[4:]: arrays[key] for key in arrays.files if key.startswith("in0.")}
        return feed, [arrays[f"out0.{name}"] for name in names] if feed else None
