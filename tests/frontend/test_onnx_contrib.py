"""The operators of ONNX Runtime's own domain, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_build import build, run, value

RNG = np.random.default_rng(13)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


X = floats(2, 3, 4)
HALVES = np.linspace(-8, 8, 2 * 3 * 4).reshape(X.shape).astype(np.float16)
CASES = [
    ("Gelu", [X], 1, {}),
    ("BiasGelu", [X, floats(4)], 1, {}),
    ("FastGelu", [X], 1, {}),
    ("FastGelu", [X, floats(4)], 1, {}),
    ("QuickGelu", [X], 1, {}),
    ("QuickGelu", [X], 1, {"alpha": 1.5}),
    ("FusedMatMul", [X, floats(2, 5, 4)], 1, {"transB": 1, "alpha": 0.5}),
    ("FusedMatMul", [X, floats(3, 5)], 1, {"transA": 1}),
    ("FusedMatMul", [300 * HALVES, 300 * HALVES[0]], 1, {"transB": 1, "alpha": 0.1}),
    ("FastGelu", [HALVES], 1, {}),
    ("FastGelu", [HALVES, HALVES[0, 0]], 1, {}),
    ("SkipLayerNormalization", [X, floats(2, 3, 4), floats(4)], 1, {}),
    ("SkipLayerNormalization", [X, floats(2, 3, 4), floats(4), floats(4), floats(4)], 4, {"epsilon": 1e-3}),
    ("SkipLayerNormalization", [5000 * HALVES, 5000 * HALVES, HALVES[0, 0]], 1, {}),
]


@pytest.mark.parametrize(("op", "inputs", "outputs", "attributes"), CASES)
def test_as_onnx_runtime(op: str, inputs: list[np.ndarray], outputs: int, attributes: dict[str, Any]) -> None:
    runtime = pytest.importorskip("onnxruntime")
    feeds = {f"x{i}": array for i, array in enumerate(inputs)}
    names = [f"y{i}" if i in (0, 3) else "" for i in range(outputs)]
    node = onnx.helper.make_node(op, list(feeds), names, domain="com.microsoft", **attributes)
    model = build([node], [value(n, a) for n, a in feeds.items()], [n for n in names if n])
    for output in model.graph.output:
        output.type.tensor_type.elem_type = model.graph.input[0].type.tensor_type.elem_type
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for mine, theirs in zip(run(model, feeds), session.run(None, feeds), strict=True):
        half = theirs.dtype == np.float16
        np.testing.assert_allclose(mine, theirs, rtol=1e-3 if half else 1e-4, atol=1e-6 if half else 1e-5, strict=True)


@pytest.mark.parametrize("op", ["Gelu", "BiasGelu", "FastGelu", "QuickGelu"])
def test_small_results_of_float16(op: str) -> None:
    """1 plus what is almost -1 has no digits in float16."""
    x, bias = np.linspace(-4.5, 4, 18, dtype=np.float16).reshape(1, 18), np.full(18, 0.125, np.float16)
    feeds = {"x": x, "bias": bias} if "B" in op else {"x": x}
    node = onnx.helper.make_node(op, list(feeds), ["y"], domain="com.microsoft")
    model = build([node], [value(n, a) for n, a in feeds.items()], ["y"])
    (found,) = run(model, feeds)
    wide = {n: a.astype(np.float64) for n, a in feeds.items()}
    (exact,) = run(build([node], [value(n, a) for n, a in wide.items()], ["y"]), wide)
    np.testing.assert_allclose(found, exact, rtol=3e-3, atol=6e-8)
