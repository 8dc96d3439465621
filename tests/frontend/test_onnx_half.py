"""float16: what is added, squared or scaled inside of one operator need not fit it, only the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_build import one_node
from onnx_oracle import check_same, compiled

import minitvm
from minitvm.session import InferenceSession

RNG = np.random.default_rng(23)
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


@pytest.mark.parametrize("op", ["ReduceL2", "ReduceLogSum", "ReduceSumSquare"])
def test_sums_that_float16_does_not_hold(op: str) -> None:
    """ONNX Runtime has no such kernels."""
    x = np.float16([[300, 400, 500], [60000, 50000, 1], [0.001, 0.002, 0.003]])
    model = one_node(op, x, opset=13, axes=[1], keepdims=0)
    wide = x.astype("float64")
    total = (wide if op == "ReduceLogSum" else wide * wide).sum(1)
    exact = {"ReduceL2": np.sqrt, "ReduceLogSum": np.log, "ReduceSumSquare": np.asarray}[op](total)
    with np.errstate(over="ignore"):
        check_same(compiled(model, {"x0": x}), [exact.astype("float16")], rtol=1e-3, atol=6e-8)


@pytest.mark.parametrize(("alpha", "beta"), [(0.01, 1.0), (0.005, 0.5), (0.001, 0.0)])
def test_gemm_scales_what_float16_does_not_hold(alpha: float, beta: float) -> None:
    a, b = (1000 * RNG.standard_normal(s).astype("float16") for s in ((3, 4), (4, 5)))
    c = (1000 * RNG.standard_normal((3, 5))).astype("float16")
    exact = alpha * (a.astype("float64") @ b.astype("float64")) + beta * c
    assert np.abs(exact / alpha).max() > 65504
    with np.errstate(over="ignore"):
        expected = exact.astype("float16")
    model = one_node("Gemm", a, b, c, alpha=alpha, beta=beta)
    check_same(compiled(model, {"x0": a, "x1": b, "x2": c}), [expected], rtol=1e-3)


BIASED: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, dict[str, Any]]] = {
    "Conv": ((1, 8, 6, 6), (16, 8, 3, 3), 72, {}),
    "ConvTranspose": ((1, 8, 4, 4), (8, 16, 4, 4), 32, {"strides": [2, 2]}),
    "Gemm": ((5, 8), (8, 16), 8, {}),
}
"""Shapes of data and weights, terms in a sum (away from the edge), attributes."""


@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
@pytest.mark.parametrize("op", BIASED)
def test_a_bias_is_added_before_sums_are_rounded(op: str, opt_level: int) -> None:
    data_shape, weight_shape, terms, attributes = BIASED[op]
    x, w, bias = np.full(data_shape, 100.0), np.full(weight_shape, -1000.0 / terms), np.full(16, 60000.0)
    feeds = {"x0": x.astype("float16")}
    constants = {1: w.astype("float16"), 2: bias.astype("float16")}
    wide = one_node(op, x, constants={1: w, 2: bias}, **attributes)
    (exact,) = ReferenceEvaluator(wide).run(None, {"x0": x})
    assert exact.min() - 60000 < -70000 < exact.min()
    model = one_node(op, feeds["x0"], constants=constants, **attributes)
    check_same(InferenceSession(model, opt_level=opt_level).run(None, feeds), [exact.astype("float16")], rtol=1e-3)


@pytest.mark.parametrize("opt_level", [2, 3])
def test_half_precision_with_a_bias_takes_a_template(opt_level: int) -> None:
    for op, (data_shape, weight_shape, _, attributes) in BIASED.items():
        x, w, bias = (RNG.standard_normal(s).astype("float16") for s in (data_shape, weight_shape, (16,)))
        model = one_node(op, x, constants={1: w, 2: bias}, **attributes)
        report = minitvm.compile(model, opt_level=opt_level).report
        chosen = [report.kernel(symbol).template for symbol in report.groups]
        assert any(name.startswith("template") for name in chosen), (op, chosen)


@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
def test_batch_normalization_overflows_only_in_its_result(opt_level: int) -> None:
    x = np.float16([[[60000, -60000]], [[50000, 1]]])
    scale, bias, mean, var = (np.float16([v]) for v in (2.0, 1000.0, 30000.0, 0.5))
    model = one_node("BatchNormalization", x, constants={1: scale, 2: -40000 + bias, 3: mean, 4: var})
    wide = x.astype("float64")
    with np.errstate(over="ignore"):
        expected = ((wide - 30000) / np.sqrt(0.5 + 1e-5) * 2 - 39000).astype("float16")
    assert np.isfinite(expected).any()
    found = InferenceSession(model, opt_level=opt_level).run(None, {"x0": x})
    check_same(found, [expected], rtol=1e-3)
