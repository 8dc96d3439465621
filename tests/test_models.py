"""Pretrained models from file to outputs: every feed against what ONNX Runtime gave, and what runs in Python.

``pytest -rP tests/test_models.py`` (or ``python tests/model_zoo.py``) shows the largest error of each.
"""

from __future__ import annotations

import model_zoo
import numpy as np
import pytest

from minitvm import InferenceSession

pytestmark = [pytest.mark.models, pytest.mark.skipif(not model_zoo.NAMES, reason=model_zoo.ABSENT)]

HOST_CALLS: dict[str, tuple[str, ...]] = {}
"""Nothing runs in Python."""


@pytest.mark.parametrize("name", model_zoo.NAMES)
def test_outputs_are_onnx_runtimes(name: str) -> None:
    result = model_zoo.run(name)
    print(model_zoo.HEADER, result, sep="\n")
    assert result.feeds >= 2
    assert result.excess <= 1, str(result)
    assert result.host_calls == HOST_CALLS.get(name, ())


@pytest.mark.filterwarnings("ignore::minitvm.HostCallWarning")
@pytest.mark.parametrize("name", ["all_minilm_l6_v2_int8w", "silero_vad"])
def test_outputs_do_not_depend_on_the_number_of_threads(name: str) -> None:
    """Kernels divide loops over results, never a sum; the machine code is the same but for its schedule."""
    given, _ = next(iter(model_zoo.feeds(name)))
    one, three = (InferenceSession(model_zoo.FOLDER / f"{name}.onnx", num_threads=n).run(None, given) for n in (1, 3))
    for a, b in zip(one, three, strict=True):
        assert model_zoo.error(a, b) < 1e-5


def test_a_wrong_output_is_seen() -> None:
    """The measure itself: an error of a thousandth of the largest output is too much for a float32 model."""
    name = "efficientnet_lite0"
    expected = np.random.default_rng(0).standard_normal((1, 1000)).astype(np.float32)
    off = expected.copy()
    off[0, 17] += 1e-3 * np.abs(expected).max()
    assert model_zoo.excess(name, expected, expected) == 0
    assert model_zoo.excess(name, off, expected) > 1
    off[0, 17] = np.nan
    assert model_zoo.excess(name, off, expected) == model_zoo.error(off, expected) == np.inf
    assert model_zoo.excess("efficientnet_lite0_int8_qdq", expected + 0.1, expected) == 0
    assert model_zoo.excess("efficientnet_lite0_int8_qdq", -expected, expected) > 1
