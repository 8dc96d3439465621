"""FoldScaleAxis, backward.  The cases are Relay's (test_pass_fold_scale_axis), by the same names."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import check_unchanged, random_array, run
from scale_axis import CONV, MIXED, POSITIVE, WITH_ZERO, W, X, backward, module_of, scales, stays

from minitvm.ir.decision import decisions
from minitvm.ir.expr import Constant
from minitvm.ir.visitor import calls
from minitvm.passes.fold_scale_axis import BackwardFoldScaleAxis, ForwardFoldScaleAxis

# ---- backward ---------------------------------------------------------------------------------------------------


def test_fold_bwd_simple() -> None:
    body = f'%0 = {CONV.format("%x")}; %1 = add(%0, meta["b"]); %2 = nn.relu(%1); multiply(%2, meta["s"])'
    assert backward(body) == ["0 = nn.conv2d(x, w*)", "1 = add(0, b)", "2 = nn.relu(1)", "2"]


def test_fold_bwd_simple_constant() -> None:
    """Weights and bias that are constants are scaled at once."""
    text = """
    def @main(%x: Tensor[(2, 8, 6, 6), float32]) {
      multiply(meta["s"], subtract(nn.conv2d(%x, meta["w"]), meta["b"]))
    }
    """
    weights = random_array((8, 8, 3, 3))
    module = run(BackwardFoldScaleAxis(), text, scales(MIXED) | {"w": weights})
    conv, minus = calls(module.main.body)
    assert isinstance(conv.args[1], Constant) and isinstance(minus.args[1], Constant)
    np.testing.assert_array_equal(conv.args[1].value, weights * MIXED[:, None, None, None])


def test_fold_bwd_computed_bias() -> None:
    body = f'multiply(add({CONV.format("%x")}, %c), meta["s"])'
    found = backward(body, MIXED, f"{X}, {W}, %c: Tensor[(8, 1, 1), float32]")
    assert found == ["0 = nn.conv2d(x, w*)", "1 = multiply(c, const)", "2 = add(0, 1)", "2"]


def test_fold_bwd_rectified_bias() -> None:
    """A vector that a rectifier makes is scaled, not searched for a layer."""
    body = f'multiply(add({CONV.format("%x")}, nn.relu(%c)), meta["s"])'
    found = backward(body, POSITIVE, f"{X}, {W}, %c: Tensor[(8, 1, 1), float32]")
    assert found[:3] == ["0 = nn.conv2d(x, w*)", "1 = nn.relu(c)", "2 = multiply(1, const)"]


def test_fold_bwd_dual_path() -> None:
    """Both operands of an addition end in layers: each takes the scale."""
    body = f"""
    %0 = nn.relu({CONV.format("%x")}); %1 = nn.relu({CONV.format("%x")});
    multiply(add(%0, %1), meta["s"])
    """
    found = backward(body)
    assert found[-1] == "4" and found[-2] == "4 = add(1, 3)" and str(found).count("(x, w*)") == 2


def test_fold_bwd_dual_consumer() -> None:
    """Two scales, one after another, each with a layer before it."""
    body = f"""
    %0 = multiply({CONV.format("%x")}, meta["s"]); %1 = nn.relu(%0);
    multiply({CONV.format("%1")}, meta["s"])
    """
    found = backward(body)
    assert [line for line in found if "multiply" in line] == []


def test_two_scales_after_a_layer() -> None:
    body = f'multiply(add(multiply({CONV.format("%x")}, meta["s"]), meta["b"]), meta["s"])'
    assert backward(body) == ["0 = nn.conv2d(x, w*)", "1 = add(0, b)", "1"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (f'%0 = {CONV.format("%x")}; add(multiply(%0, meta["s"]), %0)', "nn.conv2d has other users"),
        (f'%0 = add({CONV.format("%x")}, meta["b"]); add(multiply(%0, meta["s"]), nn.relu(%0))', "add has other users"),
        (
            f'multiply(add({CONV.format("%x")}, %x), meta["s"])',
            "the other operand of a sum is neither a layer's result nor a vector along the scale",
        ),
        (f'multiply(tanh({CONV.format("%x")}), meta["s"])', "before it lies tanh, which does not let a scale through"),
        ('multiply(add(%x, meta["b"]), meta["s"])', "before it lies a sum without a convolution or dense layer"),
        ('multiply(%x, meta["s"])', "before it lies a value, which is no convolution or dense layer"),
        (f'multiply({CONV.format("%x")}, meta["pixel"])', "the scale does not lie along the channels"),
        (
            f'multiply(nn.bias_add({CONV.format("%x")}, const([1, 2, 3, 4, 5, 6], float32), axis=3), meta["s"])',
            "the bias lies along another axis than the scale",
        ),
    ],
)
def test_fold_bwd_fail(body: str, reason: str) -> None:
    stays(BackwardFoldScaleAxis(), body, reason)


@pytest.mark.parametrize("vector", [MIXED, WITH_ZERO])
@pytest.mark.parametrize("rectifier", ["relu", "leaky_relu"])
def test_fold_bwd_relu_fail(rectifier: str, vector: np.ndarray) -> None:
    body = f'multiply(nn.{rectifier}({CONV.format("%x")}), meta["s"])'
    reason = f"the scale is not positive everywhere, and nn.{rectifier} lies before it"
    stays(BackwardFoldScaleAxis(), body, reason, vector)


def test_fold_bwd_negative_scale() -> None:
    assert backward(f'multiply({CONV.format("%x")}, meta["s"])', MIXED) == ["0 = nn.conv2d(x, w*)", "0"]


def test_fold_bwd_scalar() -> None:
    assert len(backward(f"multiply({CONV.format('%x')}, 0.125f)")) == 2


def test_fold_bwd_dense() -> None:
    params = "%x: Tensor[(3, 5), float32], %w: Tensor[(8, 5), float32]"
    body = 'multiply(nn.relu(nn.dense(%x, %w)), meta["row"])'
    assert backward(body, POSITIVE, params) == ["0 = nn.dense(x, w*)", "1 = nn.relu(0)", "1"]


def test_fold_bwd_bias_add() -> None:
    body = f'multiply(nn.bias_add({CONV.format("%x")}, meta["bias"]), meta["s"])'
    assert backward(body, MIXED) == ["0 = nn.conv2d(x, w*)", "1 = nn.bias_add(0, bias)", "1"]


def test_fold_bwd_conv3d() -> None:
    params = "%x: Tensor[(1, 3, 4, 5, 6), float32], %w: Tensor[(8, 3, 2, 3, 3), float32]"
    assert len(backward('multiply(nn.conv3d(%x, %w), meta["volume"])', MIXED, params)) == 2


def test_integers_stay() -> None:
    params = "%x: Tensor[(1, 8, 6, 6), int8], %w: Tensor[(8, 8, 3, 3), int8]"
    body = 'multiply(nn.conv2d(%x, %w, out_dtype="float32"), meta["s"])'
    stays(BackwardFoldScaleAxis(), body, "nn.conv2d computes float32 from int8 and int8", params=params)


def test_scales_that_are_integers_stay() -> None:
    params = "%x: Tensor[(1, 8, 6, 6), int32], %w: Tensor[(8, 8, 3, 3), int32]"
    for body in ("multiply(nn.conv2d(%x, %w), 2i32)", "nn.conv2d(multiply(%x, 2i32), %w)"):
        module = module_of(body, params=params)
        with decisions() as log:
            assert BackwardFoldScaleAxis()(module) is ForwardFoldScaleAxis()(module) is module
        assert log == []


def test_a_thousand_calls_without_recursion() -> None:
    layer = "%{c} = add(%{d}, 1f); %{e} = nn.dense(%{c}, %w);"
    steps = [layer.format(c=2 * i + 1, d=2 * i, e=2 * i + 2) for i in range(600)]
    params = "%x: Tensor[(1, 4), float32], %w: Tensor[(4, 4), float32]"
    folded = BackwardFoldScaleAxis()(
        module_of(f"%0 = nn.relu(%x); {' '.join(steps)} multiply(%1200, 2f)", params=params)
    )
    assert len(calls(folded.main.body)) == 1201
    assert ForwardFoldScaleAxis()(folded) is folded


def test_a_scale_does_not_go_into_weights_that_are_no_constant() -> None:
    """They would be scaled at every run, and might leave their range: 1e-45 / 8 is 0, and infinity times 0 NaN."""
    params = "%x: Tensor[(1, 4), float32], %v: Tensor[(4, 4), float32]"
    reason = "the weights are no constant: they would be scaled at every run"
    stays(BackwardFoldScaleAxis(), "multiply(nn.dense(%x, %v), 0.125f)", reason, params=params)
    stays(ForwardFoldScaleAxis(), "nn.dense(multiply(%x, 0.125f), %v)", reason, params=params)


@pytest.mark.parametrize(("weight", "scale"), [(1e30, 1e20), (1e-30, 1e-20), (1.0, np.inf), (1e38, 4.0)])
def test_weights_that_would_leave_the_range_stay(weight: float, scale: float) -> None:
    text = 'def @main(%x: Tensor[(2, 4), float32]) { multiply(nn.dense(%x, meta["w"]), meta["s"]) }'
    constants = {"w": np.full((3, 4), weight, "float32"), "s": np.full((3,), scale, "float32")}
    with decisions() as log:
        check_unchanged(BackwardFoldScaleAxis(), text, constants=constants)
    assert [d.reason for d in log] == ["what is multiplied by the scale would overflow or underflow"]


def test_a_layer_of_no_inputs_takes_no_scale() -> None:
    text = 'def @main(%x: Tensor[(2, 0), float32]) { multiply(nn.dense(%x, meta["w"]), meta["s"]) }'
    constants = {"w": np.ones((3, 0), "float32"), "s": np.array([2, 3, 4], "float32")}
    check_unchanged(BackwardFoldScaleAxis(), text, constants=constants)


def test_one_scale_behind_a_bias_along_an_open_dimension() -> None:
    text = """def @main(%x: Tensor[(1, 1, n, n), float32], %b: Tensor[(n,), float32]) {
      %0 = nn.conv2d(%x, const([[[[1.5]]]], float32));
      multiply(nn.bias_add(%0, %b, axis=3), const([[[0.5]]], float32))
    }"""
    module = run(BackwardFoldScaleAxis(), text)
    assert "multiply" not in str(module).split("nn.bias_add")[1]
