"""What a first process takes, of which nothing is in the kernel cache: CPU seconds to a model's first result.

A fresh process for each, with an empty cache; its bytecode is there, as after an installation.  Another tree of minitvm
takes turns with this one, so that what else the machine does falls on both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.cases import make
from benchmarks.open_models import inputs
from benchmarks.worker import process, save_feeds

ASKED: Mapping[str, float] = {"yolo11n": 4, "hifigan": 3, "hifigan_full": 3, "swin_t": 2.5, "smollm": 1.5, "rt_detr": 5}
"""At most, by the first word of a file's name."""
ONE = "one_conv"
"""A model of one convolution: imports, mostly."""
CLOSE = 1e-3


@dataclass(frozen=True)
class Cold:
    """CPU seconds of the process, least of all tries; ``before``: Python and numpy; ``other``: another tree."""

    model: str
    seconds: float
    before: float
    other: float | None = None

    @property
    def asked(self) -> float | None:
        return ASKED.get(self.model.partition(".")[0])

    def __str__(self) -> str:
        asked = "" if self.asked is None else f", asked {self.asked:g}"
        other = "" if self.other is None else f"; the other tree {self.other:.2f}: {self.seconds / self.other:.2f} x"
        return f"{self.model:24} {self.seconds:.2f} s (Python and numpy {self.before:.2f}){asked}{other}"


def measured(models: Sequence[str], tries: int = 3, against: Path | None = None) -> Iterator[Cold]:
    """Raises ``RuntimeError`` where a process fails, ``ValueError`` where the trees' results differ."""
    with tempfile.TemporaryDirectory() as bytecode:
        for name in models:
            with tempfile.TemporaryDirectory() as folder:
                yield _cold(_model(name, Path(folder)), tries, against, bytecode)


def mean(found: Sequence[Cold]) -> str:
    """The trees' geometric mean, where there are two."""
    ratios = [one.seconds / one.other for one in found if one.other is not None]
    total = f"{sum(one.seconds for one in found):.1f} s in all"
    return f"{total}; geometric mean {np.exp(np.mean(np.log(ratios))):.2f} x the other tree's" if ratios else total


def _cold(path: Path, tries: int, against: Path | None, bytecode: str) -> Cold:
    trees = [None, *filter(None, [against])]
    found: list[list[Any]] = [[] for _ in trees]
    for _ in range(tries + 1):  # the first writes bytecode and is not counted
        for tree, results in zip(trees, found, strict=True):
            results.append(_first(path, tree, f"{bytecode}/{tree is None}"))
    mine, *other = (results[1:] for results in found)
    for one in other:
        for a, b in zip(mine[0]["sums"], one[0]["sums"], strict=True):
            if abs(a - b) > CLOSE * max(1.0, abs(a)):
                raise ValueError(f"{path.name}: results add up to {a}, those of {against} to {b}")
    least = [min(one["seconds"] for one in results) for results in (mine, *other)]
    return Cold(path.stem, least[0], min(one["before"] for one in mine), *least[1:])


def _first(path: Path, tree: Path | None, bytecode: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        variables = {"MINITVM_CACHE_DIR": cache, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
        arguments = ["minitvm", str(path), "1", *([] if tree is None else [str(tree)])]
        found = process("benchmarks.first", arguments, variables)
    if "problem" in found:
        raise RuntimeError(f"minitvm could not run {path.name}:\n{found['problem']}")
    return found


def _model(name: str, folder: Path) -> Path:
    """The file with its inputs beside it."""
    if name == ONE:
        return _one(folder / f"{ONE}.onnx")
    path = make(name, folder).path
    model = onnx.load(path, load_external_data=False)
    if any(entry.key == inputs.KEY for entry in model.metadata_props):
        drawn, sizes = inputs.read(model)
        save_feeds(path, inputs.feeds(drawn, next(inputs.runs(sizes))))
    return path


def _one(path: Path) -> Path:
    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(rng.normal(size=(16, 3, 3, 3)).astype(np.float32), "w")
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    x, y = (onnx.helper.make_tensor_value_info(n, 1, [1, c, 32, 32]) for n, c in (("x", 3), ("y", 16)))
    graph = onnx.helper.make_graph([node], ONE, [x], [y], [weight])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    save_feeds(path, {"x": rng.normal(size=(1, 3, 32, 32)).astype(np.float32)})
    return path
