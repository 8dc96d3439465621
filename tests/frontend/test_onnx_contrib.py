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
CASES = [
    ("Gelu", [X], 1, {}),
    ("BiasGelu", [X, floats(4)], 1, {}),
    ("FastGelu", [X], 1, {}),
    ("FastGelu", [X, floats(4)], 1, {}),
    ("QuickGelu", [X], 1, {}),
    ("QuickGelu", [X], 1, {"alpha": 1.5}),
    ("FusedMatMul", [X, floats(2, 5, 4)], 1, {"transB": 1, "alpha": 0.5}),
    ("FusedMatMul", [X, floats(3, 5)], 1, {"transA": 1}),
    ("SkipLayerNormalization", [X, floats(2, 3, 4), floats(4)], 1, {}),
    ("SkipLayerNormalization", [X, floats(2, 3, 4), floats(4), floats(4), floats(4)], 4, {"epsilon": 1e-3}),
]


@pytest.mark.parametrize(("op", "inputs", "outputs", "attributes"), CASES)
def test_as_onnx_runtime(op: str, inputs: list[np.ndarray], outputs: int, attributes: dict[str, Any]) -> None:
    runtime = pytest.importorskip("onnxruntime")
    feeds = {f"x{i}": array for i, array in enumerate(inputs)}
    names = [f"y{i}" if i in (0, 3) else "" for i in range(outputs)]
    node = onnx.helper.make_node(op, list(feeds), names, domain="com.microsoft", **attributes)
    model = build([node], [value(n, a) for n, a in feeds.items()], [n for n in names if n])
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for mine, theirs in zip(run(model, feeds), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5, strict=True)
