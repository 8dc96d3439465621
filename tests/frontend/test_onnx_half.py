"""float16 through operators that square, sum or scale: nothing overflows on the way to a result that fits."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_build import one_node
from onnx_oracle import compiled

from minitvm.session import InferenceSession

SHAPES = [(2, 4, 5, 3), (1, 2, 1, 17), (3, 6, 2, 1)]
EPSILON = 1e-5


def _standardized(x: np.ndarray, axes: tuple[int, ...], epsilon: float = EPSILON) -> np.ndarray:
    wide = x.astype(np.float64)
    return np.asarray((wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + epsilon))


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "op", ["MeanVarianceNormalization", "InstanceNormalization", "GroupNormalization", "LayerNormalization"]
)
def test_statistics_of_large_numbers(op: str, shape: tuple[int, ...], level: int) -> None:
    """256 squared is infinite in float16."""
    x = (np.random.default_rng(3).standard_normal(shape) * 5000).astype(np.float16)
    ones, zeros = (np.full(shape[-1] if op == "LayerNormalization" else shape[1], v, np.float16) for v in (1, 0))
    if op == "MeanVarianceNormalization":
        model, expected = one_node(op, x, axes=[0, 2, 3]), _standardized(x, (0, 2, 3))
    else:
        given = {"num_groups": 2} if op == "GroupNormalization" else {}
        model = one_node(op, x, constants={1: ones, 2: zeros}, opset=22, **given)
        rows = x.reshape(shape[0], 2, -1) if op == "GroupNormalization" else x
        axes = {"InstanceNormalization": (2, 3), "GroupNormalization": (2,)}.get(op, (3,))
        expected = _standardized(rows, axes).reshape(shape)
    (found,) = InferenceSession(model, opt_level=level).run(None, {"x0": x})
    np.testing.assert_allclose(found, expected.astype(np.float16), atol=4e-3)


@pytest.mark.parametrize("p", [1, 2])
def test_norms_of_large_numbers(p: int) -> None:
    x = (np.random.default_rng(4).standard_normal((3, 40)) * 3000).astype(np.float16)
    (found,) = compiled(one_node("LpNormalization", x, p=p), {"x0": x})
    wide = x.astype(np.float64)
    np.testing.assert_allclose(found, wide / np.linalg.norm(wide, p, -1, keepdims=True), rtol=2e-3, atol=1e-4)


def test_rms_normalization_scales_before_it_rounds() -> None:
    """What is scaled by infinity is infinite, however small it is."""
    x, scale = np.float16([[6e-8, -6e-8, 4, 4]]), np.float16([np.inf, 3e4, 1, 1])
    (found,) = compiled(one_node("RMSNormalization", x, constants={1: scale}, opset=23), {"x0": x})
    root = np.sqrt(np.square(x.astype(np.float64)).mean() + EPSILON)
    expected = (x.astype(np.float64) / root * scale.astype(np.float64)).astype(np.float16)
    np.testing.assert_allclose(found, expected, rtol=1e-3)
