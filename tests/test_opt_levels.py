"""Whatever the optimization level, a model computes the same: to 1e-5 of the largest output, at levels 0 to 3."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import model_zoo
import numpy as np
import pytest
from small_workloads import compiled, evaluated, sample, small, with_scores

import minitvm
from minitvm import InferenceSession
from minitvm.testing import densenet

LEVELS = (0, 1, 2, 3)
WORKLOADS = (
    "mlp",
    "resnet18",
    "mobilenet_v1",
    "mobilenet_v2",
    "vgg11",
    "squeezenet",
    "densenet121",
    "inception_v3",
    "transformer",
)
ALL_LEVELS = ("mlp", "resnet18", "mobilenet_v2", "transformer")
"""Of the others, what lies between the lowest and the highest is made of the same layers."""
MODELS = (
    "mtcnn_pnet",
    *(pytest.param(name, marks=pytest.mark.more) for name in ("mtcnn_onet", "all_minilm_l6_v2_int8w")),
    "blazeface_back_256",
)
SHIPPED = Path(minitvm.__file__).parent / "demo_data" / "efficientnet_lite0.onnx"


def assert_levels_agree(
    run: Callable[[int], Sequence[np.ndarray]], levels: Sequence[int] = LEVELS
) -> Sequence[np.ndarray]:
    """Every two levels; returns the results of the last."""
    results = {level: run(level) for level in levels}
    for (low, a), (high, b) in itertools.combinations(results.items(), 2):
        for output, (x, y) in enumerate(zip(a, b, strict=True)):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            assert model_zoo.error(x, y) <= 1e-5, f"output {output} at levels {low} and {high}"
    return results[levels[-1]]


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(densenet._SPEC, 121, (64, 32, (3, 3, 3, 3)))  # each of its 58 layers is two kernels more
    plain, params = small(name)
    module = with_scores(plain)
    data = sample(module)
    found = assert_levels_agree(
        lambda level: compiled(module, params, data, level), LEVELS if name in ALL_LEVELS else (0, 3)
    )
    for have, want in zip(found, evaluated(module, params, data), strict=True):
        assert model_zoo.error(have, want) <= 1e-5, "numpy says otherwise"


def test_shipped_model() -> None:
    image = np.random.default_rng(3).uniform(-1, 1, (1, 3, 224, 224)).astype(np.float32)
    assert_levels_agree(lambda level: _session(SHIPPED, level).run(None, {"image": image}), (0, 3))


@pytest.mark.models
@pytest.mark.skipif(not model_zoo.NAMES, reason=model_zoo.ABSENT)
@pytest.mark.parametrize("name", MODELS)
def test_pretrained_model(name: str) -> None:
    """What lies between the two is compared in networks that are made here, and by ``minitvm check --levels``."""
    given, _ = next(iter(model_zoo.feeds(name)))
    assert_levels_agree(lambda level: _session(model_zoo.FOLDER / f"{name}.onnx", level).run(None, given), (0, 3))


def _session(path: Path, level: int) -> InferenceSession:
    return InferenceSession(path, num_threads=2, opt_level=level, strict=True)
