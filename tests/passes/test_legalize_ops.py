"""Legalize: transposed convolutions as convolutions; not to be confused with the legalization of kernels."""

from __future__ import annotations

import numpy as np
import pytest

from minitvm.ir.builder import call_op, const, function, var
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Function, Module
from minitvm.ir.visitor import calls
from minitvm.passes import Legalize
from minitvm.testing.checks import check_unchanged

RNG = np.random.default_rng(3)


def enlarge(
    kernel: int, stride: int, padding: tuple[int, ...], output_padding: int = 0, **attributes: object
) -> Function:
    x = var("x", shape=(2, 3, 5, 4))
    weight = const(RNG.normal(size=(3, 4 // int(attributes.get("groups", 1)), kernel, kernel)).astype("float32"))
    conv = call_op(
        "nn.conv2d_transpose",
        x,
        weight,
        strides=(stride, stride),
        padding=padding,
        output_padding=(output_padding, output_padding),
        **attributes,
    )
    return function(conv, [x])


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "output_padding"),
    [
        (2, 2, (0, 0, 0, 0), 0),
        (4, 2, (1, 1, 1, 1), 1),
        (4, 2, (2, 1, 2, 0), 0),
        (3, 3, (0, 0, 0, 0), 2),
        (6, 2, (1, 3, 2, 0), 1),
    ],
)
def test_phases_are_one_convolution(kernel: int, stride: int, padding: tuple[int, ...], output_padding: int) -> None:
    before = enlarge(kernel, stride, padding, output_padding)
    after = Legalize()(Module(before)).main
    assert [c.op.name for c in calls(after)][-3:] == ["nn.conv2d", "nn.depth_to_space", "strided_slice"]
    image = RNG.normal(size=(2, 3, 5, 4)).astype("float32")
    want, have = evaluate(before, image), evaluate(after, image)
    assert have.shape == want.shape
    np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


def test_kept_with_stride_one() -> None:
    check_unchanged(Legalize(), Module(enlarge(3, 1, (1, 1, 1, 1))))


@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (5, 2), (1, 2), (4, 3)])
def test_kept_where_phases_have_different_numbers_of_taps(kernel: int, stride: int) -> None:
    check_unchanged(Legalize(), Module(enlarge(kernel, stride, (0, 0, 0, 0))))


def test_kept_with_dilation() -> None:
    check_unchanged(Legalize(), Module(enlarge(2, 2, (0, 0, 0, 0), dilation=(2, 2))))


@pytest.mark.parametrize(
    ("data", "weight", "attributes"),
    [
        ((1, 4, 3, 3), (4, 1, 2, 2), {"strides": (2, 2), "groups": 2}),
        ((1, 4, 3, 3), (4, 1, 2, 2), {"strides": (2, 1)}),
        ((1, 4, 3, 3), (4, 1, 3, 2), {"strides": (2, 2)}),
        ((1, 4, 3, 3), (4, 1, 2, 3), {"strides": (2, 2)}),
        ((1, 3, 3, 4), (4, 1, 2, 2), {"strides": (2, 2), "data_layout": "NHWC"}),
        ((1, 4, 3, 3), (1, 4, 2, 2), {"strides": (2, 2), "kernel_layout": "OIHW"}),
    ],
)
def test_kept_with_groups_uneven_strides_or_taps_and_other_layouts(
    data: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, object]
) -> None:
    x, w = var("x", shape=data), const(np.ones(weight, "float32"))
    check_unchanged(Legalize(), Module(function(call_op("nn.conv2d_transpose", x, w, **attributes), [x])))


def test_kept_where_the_weight_is_not_a_constant() -> None:
    x, w = var("x", shape=(1, 3, 5, 4)), var("w", shape=(3, 4, 2, 2))
    check_unchanged(Legalize(), Module(function(call_op("nn.conv2d_transpose", x, w, strides=(2, 2)), [x, w])))
