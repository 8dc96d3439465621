"""Choices and loops over open sizes: one library, whose bodies are bound with what is around them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import minitvm
from tests.drawn_control import checked

CHOSEN = """
<ir_version: 9, opset_import: ["" : 18]>
chosen (float[n, t, 4] x) => (float[n, t, 4] y) <float zero = {0.0}, int64 three = {3}, bool yes = {1}> {
  total = ReduceSum <keepdims = 0> (x)
  asked = Greater (total, zero)
  z = If (asked) <
    then_branch = high () => (float[n, t, 4] a) { mean = ReduceMean <keepdims = 1> (x)  a = Sub (x, mean) },
    else_branch = low () => (float[n, t, 4] b) {
      b = Loop (three, yes, x) <body = trip (int64 i, bool on, float[n, t, 4] s) => (bool next, float[n, t, 4] after) {
        after = Tanh (s)  next = Identity (on)
      }>
    }>
  y = Relu (z)
}
"""


@pytest.mark.parametrize("seed", [1, 2, 3, 5, 14, 25, 33])
def test_drawn_control_flow_is_compiled_once_and_agrees_with_onnxruntime(seed: int) -> None:
    problem, libraries, python = checked(seed)
    assert (problem, libraries, python) == ("", 1, [])


def _wanted(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.maximum(x - x.mean() if x.sum() > 0 else np.tanh(np.tanh(np.tanh(x))), 0)
    return found


def test_a_saved_library_of_control_flow_is_for_all_sizes(tmp_path: Path) -> None:
    session = minitvm.InferenceSession(onnx.parser.parse_model(CHOSEN).SerializeToString(), num_threads=1)
    x = np.random.default_rng(0).uniform(-1, 1, (2, 3, 4)).astype("float32")
    session.run(None, {"x": x})
    session.save(tmp_path / "chosen.mtvm")
    loaded = minitvm.load(tmp_path / "chosen.mtvm")
    for shape in ((1, 5, 4), (3, 1, 4), (0, 2, 4)):
        x = np.random.default_rng(1).uniform(-1, 1, shape).astype("float32")
        for given in (np.abs(x), -np.abs(x)):
            np.testing.assert_allclose(loaded.run({"x": given})[0], _wanted(given), rtol=1e-5, atol=1e-6)
