"""Passes that no pipeline runs: text in, text out, and numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.errors import PassError
from minitvm.ir.evaluate import evaluate
from minitvm.ir.structural import structural_equal
from minitvm.passes import FuseOps
from minitvm.passes.manager import PassContext
from minitvm.passes.on_request import DefuseOps, DynamicToStatic, FastMath, FoldExplicitPadding, RemoveUnusedFunctions
from minitvm.testing import check_rewrite, check_unchanged

IMAGE = "%x: Tensor[(1, 2, 6, 6), float32]"
WEIGHT = "%w: Tensor[(3, 2, 3, 3), float32]"
PADDED = "nn.pad(%x, 0f, pad_width=[[0, 0], [0, 0], [1, 2], [0, 1]])"


def main(params: str, body: str) -> str:
    return f"def @main({params}) {{ {body} }}"


def test_defuse_ops_takes_fusion_back() -> None:
    module = relay.parse(
        main(
            f"{IMAGE}, {WEIGHT}",
            "%0 = split(nn.relu(nn.conv2d(%x, %w)), indices_or_sections=3, axis=1); add(exp(%0.0), %0.1)",
        )
    )
    with PassContext(opt_level=3):
        fused = FuseOps()(module)
    assert not structural_equal(fused, module) and structural_equal(DefuseOps()(fused), module)
    check_unchanged(DefuseOps(), module)
    assert relay.transform.DefuseOps is DefuseOps


def test_remove_unused_functions() -> None:
    text = "def @main(%x: float32) { @f(%x) } def @f(%x: float32) { @g(%x) }"
    text += "def @g(%x: float32) { exp(%x) } def @h(%x: float32) { %x }"
    module = relay.parse(text)
    assert [*RemoveUnusedFunctions()(module).functions] == ["main", "f", "g"]
    assert [*RemoveUnusedFunctions(["h", "g"])(module).functions] == ["g", "h"]
    assert RemoveUnusedFunctions(["main", "h"])(module) is module
    with pytest.raises(PassError, match="the module has no function 'mian'"):
        RemoveUnusedFunctions(["mian"])(module)


@pytest.mark.parametrize(
    ("layer", "folded"),
    [
        ("nn.conv2d({}, %w)", "nn.conv2d(%x, %w, padding=[1, 0, 2, 1])"),
        (
            "nn.conv2d({}, %w, padding=[1, 1, 0, 0], strides=[2, 1])",
            "nn.conv2d(%x, %w, padding=[2, 1, 2, 1], strides=[2, 1])",
        ),
        (
            "nn.avg_pool2d({}, pool_size=[2, 2])",
            "nn.avg_pool2d(%x, pool_size=[2, 2], padding=[1, 0, 2, 1], count_include_pad=True)",
        ),
        (
            "nn.avg_pool2d({}, pool_size=[2, 2], padding=[0, 1, 0, 1], count_include_pad=True)",
            "nn.avg_pool2d(%x, pool_size=[2, 2], padding=[1, 1, 2, 2], count_include_pad=True)",
        ),
    ],
)  # fmt: skip
def test_fold_explicit_padding(layer: str, folded: str) -> None:
    params = f"{IMAGE}, {WEIGHT}" if "%w" in layer else IMAGE
    check_rewrite(FoldExplicitPadding(), main(params, layer.format(PADDED)), main(params, folded))


def test_fold_padding_of_maxima_and_other_layouts() -> None:
    lowest = relay.const(-math.inf, "float32")
    x = relay.var("x", shape=(1, 6, 6, 2))
    pad = relay.nn.pad(x, ((0, 0), (1, 1), (0, 2), (0, 0)), lowest)
    pool = relay.nn.max_pool2d(pad, pool_size=(2, 2), strides=(2, 2), layout="NHWC")
    found = FoldExplicitPadding()(relay.Function([x], pool))
    wanted = relay.nn.max_pool2d(x, pool_size=(2, 2), strides=(2, 2), layout="NHWC", padding=(1, 0, 1, 2))
    assert structural_equal(found.main, relay.Function([x], wanted))
    image = np.random.default_rng(0).normal(size=(1, 6, 6, 2)).astype("float32")
    np.testing.assert_array_equal(evaluate(found, image), evaluate(relay.Function([x], pool), image))


@pytest.mark.parametrize(
    "body",
    [
        "nn.max_pool2d(" + PADDED + ", pool_size=[2, 2])",  # a zero may win
        "nn.avg_pool2d(" + PADDED + ", pool_size=[2, 2], padding=[1, 1, 1, 1])",
        "nn.avg_pool2d(" + PADDED + ", pool_size=[2, 2], strides=[2, 2], ceil_mode=True)",
        "nn.conv2d(nn.pad(%x, 1f, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]]), %w)",
        "nn.conv2d(nn.pad(%x, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]], pad_mode=\"edge\"), %w)",
        "nn.conv2d(nn.pad(%x, 0f, pad_width=[[1, 0], [0, 0], [1, 1], [1, 1]]), %w)",
    ],
)  # fmt: skip
def test_padding_that_stays(body: str) -> None:
    check_unchanged(FoldExplicitPadding(), main(f"{IMAGE}, {WEIGHT}", body))


@pytest.mark.parametrize(
    ("name", "low", "high", "relative", "absolute"),
    [("exp", -87, 88, 4e-7, 0), ("tanh", -30, 30, 0, 4e-7), ("erf", -9, 9, 0, 6e-7), ("nn.softmax", -40, 40, 0, 4e-7)],
)
def test_fast_math_is_as_near_as_it_says(name: str, low: float, high: float, relative: float, absolute: float) -> None:
    x = relay.var("x", shape=(64, 257))
    module = minitvm.IRModule.from_expr(relay.op.get(name)(x))
    fast = FastMath()(module)
    assert f"{name}(" not in fast.astext() or name == "exp"
    values = np.linspace(low, high, 64 * 257).astype("float32").reshape(64, 257)
    exact = evaluate(module, values.astype("float64").astype("float32"))
    for found in (evaluate(fast, values), minitvm.build(fast).run({"x": values})[0]):
        np.testing.assert_allclose(found, exact, rtol=relative, atol=absolute)


def test_fast_exp_stays_finite_and_other_dtypes_stay() -> None:
    x = relay.var("x", shape=(3,))
    fast = FastMath()(minitvm.IRModule.from_expr(relay.exp(x)))
    assert "exp(" not in fast.astext()
    ends = evaluate(fast, np.array([-1000, 0, 1000], "float32"))
    assert 0 <= ends[0] < 1e-37 and ends[1] == 1 and np.isfinite(ends[2])
    check_unchanged(FastMath(), main("%x: Tensor[(3,), float64]", "exp(%x)"))


def test_dynamic_to_static() -> None:
    params = "%x: Tensor[(2, 6), float32], %y: Tensor[(3, 4), float32]"
    check_rewrite(
        DynamicToStatic(),
        main(params, "add(reshape_like(%x, %y), ones_like(%y))"),
        main(params, "add(reshape(%x, newshape=[3, 4]), ones(shape=[3, 4]))"),
    )
    found = DynamicToStatic()(
        relay.parse(main(params, 'cast(multiply(shape_of(%x), ndarray_size(%y)), dtype="float32")'))
    )
    np.testing.assert_array_equal(evaluate(found, *(np.zeros(s, "float32") for s in ((2, 6), (3, 4)))), [24, 72])
    assert "shape_of" not in found.astext() and "ndarray_size" not in found.astext()


def test_shapes_that_a_run_decides_stay() -> None:
    check_unchanged(DynamicToStatic(), main("%x: Tensor[(n, 6), float32]", "shape_of(%x)"))
