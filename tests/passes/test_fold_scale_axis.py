"""FoldScaleAxis, forward and backward.  The cases are Relay's (test_pass_fold_scale_axis), by the same names.

Left out: test_fold_fwd_let_fail (dataflow has no let here).  The text shows where a scale went; the numbers of every
case are compared as well, since a wrong axis changes them and not the text.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from rewriting import assert_same_numbers, outline, random_array, run, stayed
from scale_axis import CONV, MIXED, POSITIVE, WITH_ZERO, W, X, backward, forward, module_of, scales, stays

from minitvm.frontend.files import File
from minitvm.ir import arrays
from minitvm.ir.decision import decisions
from minitvm.ir.expr import Constant, Module
from minitvm.ir.ops.elemwise import Multiply
from minitvm.ir.parser import parse_module
from minitvm.ir.visitor import calls, post_order
from minitvm.passes.canonicalize import SimplifyInference
from minitvm.passes.fold_scale_axis import BackwardFoldScaleAxis, ForwardFoldScaleAxis
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.pipeline import Sequential
from minitvm.passes.redundancy import FoldConstant, bind_params
from minitvm.passes.scales import applied
from minitvm.testing import resnet

# ---- forward ----------------------------------------------------------------------------------------------------


def test_fold_fwd_simple() -> None:
    body = f"""
    %0 = multiply(%x, meta["s"]); %1 = nn.relu(%0); %2 = add(%1, meta["b"]);
    {CONV.format("%2")}
    """
    assert forward(body) == ["0 = nn.relu(x)", "1 = add(0, b)", "2 = nn.conv2d(1, w*)", "2"]


def test_fold_fwd_of_constant_weights_is_done_at_once() -> None:
    text = 'def @main(%x: Tensor[(2, 8, 6, 6), float32]) { nn.conv2d(multiply(%x, meta["s"]), meta["w"]) }'
    weights = random_array((4, 8, 3, 3))
    module = run(ForwardFoldScaleAxis(), text, scales(POSITIVE) | {"w": weights})
    (conv,) = calls(module.main.body)
    folded = conv.args[1]
    assert isinstance(folded, Constant) and folded.name == "w"
    np.testing.assert_array_equal(folded.value, weights * POSITIVE[None, :, None, None])


def test_weights_in_a_file_leave_memory_when_they_are_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, values = tmp_path / "weights", random_array((4, 8, 3, 3))
    path.write_bytes(values.tobytes())
    mapped = File(path).array("float32", values.shape, 0)
    let_go = Mock(wraps=arrays.let_go)
    monkeypatch.setattr("minitvm.passes.scales.let_go", let_go)
    found = applied(Multiply(), Constant(mapped, "w"), np.float32(2))
    assert isinstance(found, Constant) and [call.args[0] is mapped for call in let_go.mock_calls] == [True]
    np.testing.assert_array_equal(found.value, 2 * values)


@pytest.mark.parametrize("step", [ForwardFoldScaleAxis(), BackwardFoldScaleAxis()])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_scaled_weights_keep_their_dtype(step: FunctionPass, dtype: str) -> None:
    layer = 'nn.conv2d({}, meta["w"])'
    scaled = (
        layer.format('multiply(%x, meta["s"])')
        if "Forward" in step.info.name
        else (f'multiply({layer.format("%x")}, meta["s"])')
    )
    arrays = {"s": scales(POSITIVE)["s"].astype(dtype), "w": random_array((8, 8, 3, 3)).astype(dtype)}
    module = run(step, f"def @main(%x: Tensor[(2, 8, 6, 6), {dtype}]) {{ {scaled} }}", arrays)
    (conv,) = calls(module.main.body)
    assert [a.dtype for a in conv.args] == [dtype, dtype]


def test_fold_fwd_dual_path() -> None:
    body = f"""
    %0 = multiply(meta["s"], %x); %1 = nn.relu(%0); %2 = subtract(%1, meta["b"]);
    add({CONV.format("%2")}, {CONV.format("%1")})
    """
    found = forward(body)
    assert found[:2] == ["0 = nn.relu(x)", "1 = subtract(0, b)"] and "multiply(x" not in str(found)


def test_fold_fwd_fail() -> None:
    """One user that does not take the scale keeps it."""
    body = f"""
    %0 = multiply(%x, meta["s"]); %1 = nn.relu(%0);
    add({CONV.format("%1")}, exp(%1))
    """
    stays(ForwardFoldScaleAxis(), body, "exp does not let a scale through")


def test_fold_fwd_residual_fail() -> None:
    body = f'%0 = multiply(%x, meta["s"]); %1 = nn.leaky_relu(%0); add({CONV.format("%1")}, %1)'
    stays(ForwardFoldScaleAxis(), body, "it is a result of the function")


def test_fold_fwd_result_fail() -> None:
    stays(
        ForwardFoldScaleAxis(),
        f'%0 = multiply(%x, meta["s"]); ({CONV.format("%0")}, %0)',
        "it is used as a tuple's field",
    )


@pytest.mark.parametrize("rectifier", ["nn.relu(%0)", "nn.leaky_relu(%0, alpha=0.1)", 'nn.prelu(%0, meta["bias"])'])
def test_fold_fwd_relu_fail(rectifier: str) -> None:
    body = f'%0 = multiply(%x, meta["s"]); %1 = {rectifier}; {CONV.format("%1")}'
    assert len(forward(body)) == 3, "a positive scale passes"
    stays(ForwardFoldScaleAxis(), body, "the scale is not positive everywhere, and a rectifier lies after it", MIXED)
    stays(
        ForwardFoldScaleAxis(), body, "the scale is not positive everywhere, and a rectifier lies after it", WITH_ZERO
    )


def test_fold_fwd_negative_scale() -> None:
    """Without a rectifier the sign does not matter."""
    assert forward(f"{CONV.format('multiply(%x, meta[' + chr(34) + 's' + chr(34) + '])')}", MIXED) == [
        "0 = nn.conv2d(x, w*)",
        "0",
    ]


def test_zero_before_an_addition_stays() -> None:
    """Relay divides the bias by the scale: 0 would make it infinite, and infinity times 0 is NaN."""
    body = f'%0 = multiply(%x, meta["s"]); %1 = add(%0, meta["b"]); {CONV.format("%1")}'
    reason = "the scale is zero (or nearly) somewhere, and a sum after it would be divided by it"
    stays(ForwardFoldScaleAxis(), body, reason, WITH_ZERO)
    stays(ForwardFoldScaleAxis(), body, reason, np.where(WITH_ZERO == 0, 1e-38, WITH_ZERO).astype("float32"))
    assert len(forward(body, MIXED)) == 3


def test_zero_without_an_addition_is_folded() -> None:
    assert len(forward(f'%0 = multiply(%x, meta["s"]); {CONV.format("%0")}', WITH_ZERO)) == 2


def test_fold_fwd_dense() -> None:
    params = "%x: Tensor[(3, 8), float32], %w: Tensor[(5, 8), float32]"
    body = 'nn.dense(nn.relu(multiply(%x, meta["row"])), %w)'
    assert forward(body, POSITIVE, params) == ["0 = nn.relu(x)", "1 = nn.dense(0, w*)", "1"]


def test_fold_fwd_conv3d() -> None:
    params = "%x: Tensor[(1, 8, 4, 5, 6), float32], %w: Tensor[(3, 8, 2, 3, 3), float32]"
    assert len(forward('nn.conv3d(multiply(%x, meta["volume"]), %w)', MIXED, params)) == 2


def test_fold_fwd_bias_add() -> None:
    body = f'%0 = multiply(%x, meta["s"]); %1 = nn.bias_add(%0, meta["bias"]); {CONV.format("%1")}'
    assert forward(body) == ["0 = nn.bias_add(x, bias)", "1 = nn.conv2d(0, w*)", "1"]


def test_zero_before_a_bias_stays() -> None:
    body = f'%0 = multiply(%x, meta["s"]); %1 = nn.bias_add(%0, meta["bias"]); {CONV.format("%1")}'
    reason = "the scale is zero (or nearly) somewhere, and a sum after it would be divided by it"
    stays(ForwardFoldScaleAxis(), body, reason, WITH_ZERO)


@pytest.mark.parametrize(
    ("value", "bias", "axis"),
    [('multiply(%x, meta["s"])', "const([1, 2, 3, 4, 5, 6], float32)", 3), ("%x", 'multiply(%v, meta["row"])', 1)],
)
def test_a_bias_along_another_axis_or_a_scaled_bias_stays(value: str, bias: str, axis: int) -> None:
    body = f"%0 = nn.bias_add({value}, {bias}, axis={axis}); {CONV.format('%0')}"
    reason = "the bias lies along another axis than the scale"
    stays(ForwardFoldScaleAxis(), body, reason, params=f"{X}, {W}, %v: Tensor[(8,), float32]")


def test_a_scale_that_widens_its_operand_stays() -> None:
    """The multiplication repeats one channel eight times; without it the shapes do not fit."""
    params = "%x: Tensor[(2, 1, 6, 6), float32], %w: Tensor[(8, 8, 3, 3), float32]"
    text = f'def @main({params}) {{ %0 = multiply(%x, meta["s"]); {CONV.format("%0")} }}'
    forward_only = parse_module(text, scales(POSITIVE))
    with decisions() as log:
        assert ForwardFoldScaleAxis()(forward_only) is forward_only
    params = "%x: Tensor[(2, 8, 6, 6), float32], %w: Tensor[(1, 8, 3, 3), float32]"
    text = f'def @main({params}) {{ multiply({CONV.format("%x")}, meta["s"]) }}'
    backward_only = parse_module(text, scales(POSITIVE))
    with decisions() as log_back:
        assert BackwardFoldScaleAxis()(backward_only) is backward_only
    assert log == log_back == []


def test_two_scales_in_a_row() -> None:
    body = f'%0 = multiply(%x, meta["s"]); %1 = multiply(%0, meta["b"]); {CONV.format("%1")}'
    assert forward(body) == ["0 = nn.conv2d(x, w*)", "0"]


@pytest.mark.parametrize("scale", ['meta["pixel"]', 'meta["all"]'])
def test_a_scale_along_other_axes_stays(scale: str) -> None:
    body = f"{CONV.format(f'multiply(%x, {scale})')}"
    stays(ForwardFoldScaleAxis(), body, "the scale does not lie along the channels")


def test_a_scale_along_an_axis_of_fewer_dimensions_stays() -> None:
    """What a sum broadcasts has its channels elsewhere: dimension 1 of (8, 8, 8) is no channel of (1, 8, 8, 8)."""
    params = "%x: Tensor[(8, 8, 8), float32], %w: Tensor[(8, 8, 3, 3), float32]"
    body = 'nn.conv2d(add(multiply(%x, meta["line"]), meta["channels"]), %w)'
    stays(ForwardFoldScaleAxis(), body, "the other operand of add is not a vector along the scale", params=params)


@pytest.mark.parametrize("other", ["%y", 'meta["pixel"]'])
def test_fold_fwd_beside_more_than_a_vector_fail(other: str) -> None:
    """It would be divided at every run."""
    body = f'%0 = multiply(%x, meta["s"]); %1 = add(%0, {other}); {CONV.format("%1")}'
    reason = "the other operand of add is not a vector along the scale"
    stays(ForwardFoldScaleAxis(), body, reason, params=f"{X}, {W}, {X.replace('x', 'y', 1)}")


def test_a_scaled_slope_stays() -> None:
    body = f'%0 = nn.prelu(%x, multiply(%v, meta["row"])); {CONV.format("%0")}'
    stays(ForwardFoldScaleAxis(), body, "nn.prelu uses it as a slope", params=f"{X}, {W}, %v: Tensor[(8,), float32]")


@pytest.mark.parametrize("batch", ["?", "n"])
def test_a_batch_of_any_size(batch: str) -> None:
    params = f"%x: Tensor[({batch}, 8, 6, 6), float32], {W}"
    assert len(forward(f'%0 = multiply(%x, meta["s"]); {CONV.format("%0")}', MIXED, params)) == 2
    assert len(backward(f'%0 = {CONV.format("%x")}; multiply(%0, meta["s"])', MIXED, params)) == 2


def test_users_that_want_different_axes() -> None:
    params = "%x: Tensor[(2, 8, 8, 8), float32], %w: Tensor[(8, 8, 3, 3), float32]"
    body = """
    %0 = multiply(%x, 2f);
    add(nn.conv2d(%0, %w), nn.conv2d(%0, %w, data_layout="NHWC", out_layout="NCHW"))
    """
    module = module_of(body, params=params)
    with decisions() as log:
        assert ForwardFoldScaleAxis()(module) is module
    assert stayed(log) == ["multiply: its users want the scale along different axes"]


def test_a_scale_from_the_data_stays() -> None:
    """Squeeze and excitation: folding it would scale the weights at every run."""
    body = """
    %0 = sigmoid(mean(%x, axis=[2, 3], keepdims=True)); %1 = multiply(%x, %0);
    nn.conv2d(%1, %w)
    """
    for step in (ForwardFoldScaleAxis(), BackwardFoldScaleAxis()):
        module = parse_module(f"def @main(%x: Tensor[(1, 8, 6, 6), float32], {W}) {{ {body} }}")
        with decisions() as log:
            assert step(module) is module
        assert log == []


def test_squeeze_and_excitation_block_passes_through() -> None:
    """The block's own scale folds into what computes it, and nothing else changes (apache/tvm#17151)."""
    body = f"""
    %0 = multiply({CONV.format("%x")}, meta["s"]); %1 = nn.relu(%0);
    %2 = sigmoid(nn.conv2d(nn.global_avg_pool2d(%1), %w, padding=[1, 1, 1, 1]));
    %3 = multiply(%1, %2); {CONV.format("%3")}
    """
    found = backward(body)
    assert found[0] == "0 = nn.conv2d(x, w*)" and len(found) == 8
    assert forward(body) == outline(module_of(body)).splitlines()


# ---- layouts and groups, both directions ------------------------------------------------------------------------

LAYOUTS = {
    "NHWC": ("(2, 6, 6, 8)", "(3, 3, 8, 8)", "row", 'nn.conv2d({}, %w, data_layout="NHWC", kernel_layout="HWIO")'),
    "OHWI": ("(2, 6, 6, 8)", "(8, 3, 3, 8)", "row", 'nn.conv2d({}, %w, data_layout="NHWC", kernel_layout="OHWI")'),
    "NCHW4c": (
        "(1, 2, 6, 6, 4)",
        "(2, 2, 3, 3, 4, 4)",
        "blocked",
        'nn.contrib_conv2d_NCHWc({}, %w, data_layout="NCHW4c", kernel_layout="OIHW4i4o", out_layout="NCHW4c")',
    ),
    "depthwise": ("(2, 8, 6, 6)", "(8, 1, 3, 3)", "s", "nn.conv2d({}, %w, groups=8)"),
    "depthwise, two filters": ("(2, 4, 6, 6)", "(8, 1, 3, 3)", "s", "nn.conv2d({}, %w, groups=4)"),
    "depthwise NCHW4c": (
        "(1, 2, 6, 6, 4)",
        "(2, 1, 3, 3, 1, 4)",
        "blocked",
        "nn.contrib_depthwise_conv2d_NCHWc({}, %w, groups=8, "
        'data_layout="NCHW4c", kernel_layout="OIHW1i4o", out_layout="NCHW4c")',
    ),
    "groups": ("(2, 8, 6, 6)", "(8, 4, 3, 3)", "s", "nn.conv2d({}, %w, groups=2)"),
}


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "depthwise, two filters"])
def test_forward_in_every_layout(layout: str) -> None:
    x, w, scale, conv = LAYOUTS[layout]
    params = f"%x: Tensor[{x}, float32], %w: Tensor[{w}, float32]"
    found = forward(conv.format(f'nn.relu(multiply(%x, meta["{scale}"]))'), POSITIVE, params)
    assert found[0] == "0 = nn.relu(x)" and found[1].endswith("(0, w*)") and len(found) == 3


def test_forward_into_a_depthwise_layer_with_two_filters_a_channel() -> None:
    params = "%x: Tensor[(2, 4, 6, 6), float32], %w: Tensor[(8, 1, 3, 3), float32]"
    body = "nn.conv2d(multiply(%x, const([[[2.0]], [[-3.0]], [[0.5]], [[7.0]]], float32)), %w, groups=4)"
    assert forward(body, POSITIVE, params) == ["0 = nn.conv2d(x, w*)", "0"]


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_backward_in_every_layout(layout: str) -> None:
    x, w, scale, conv = LAYOUTS[layout]
    params = f"%x: Tensor[{x}, float32], %w: Tensor[{w}, float32]"
    found = backward(f'multiply({conv.format("%x")}, meta["{scale}"])', MIXED, params)
    assert found[0].endswith("(x, w*)") and len(found) == 2


# ---- a whole network --------------------------------------------------------------------------------------------


def arrays_of(module: Module) -> int:
    return sum(isinstance(node, Constant) and node.value.ndim > 0 for node in post_order(module.main.body))


@pytest.mark.parametrize(("negative", "left"), [(False, 43), (True, 51)])
def test_batch_norms_of_resnet_18_disappear(negative: bool, left: int) -> None:
    """Of the parameters of the v2 graph 43 stay; more where a negative gamma stands before a rectifier."""
    module, shapes = resnet.get_workload(num_layers=18, image_shape=(3, 40, 40), num_classes=10)
    params = {name: _statistics(name, value, negative) for name, value in shapes.items()}
    bound = Module(bind_params(module.main, params))
    before = FoldConstant()(SimplifyInference()(bound))
    folding = Sequential((BackwardFoldScaleAxis(), ForwardFoldScaleAxis(), FoldConstant()))
    with PassContext(opt_level=2):
        assert folding(before) is before, "it is a pass of level 3"
    with PassContext(opt_level=3):
        after = folding(before)
    assert_same_numbers(before, after)
    assert (arrays_of(before), arrays_of(after)) == (61, left)


def _statistics(name: str, value: np.ndarray, negative: bool) -> np.ndarray:
    """Non-trivial batch norms: gamma and variance away from 1, mean and beta away from 0."""
    found = random_array(value.shape, len(name))
    if name.endswith("var") or (name.endswith("gamma") and not negative):
        return np.abs(found) + np.float32(0.5)
    return found * np.float32(0.2) if value.ndim == 1 else np.asarray(value)
