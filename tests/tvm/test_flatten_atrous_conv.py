"""FlattenAtrousConv: graphs, numbers, and what stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minitvm import relay
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Expr, Function
from minitvm.ir.structural import structural_equal
from minitvm.tvm.relay.atrous import FlattenAtrousConv

nn: Any = relay.nn

SHAPES = {"NHWC": (2, 6, 8, 4), "NCHW": (2, 4, 6, 8), "NWC": (2, 8, 4), "NDHWC": (1, 4, 4, 4, 2)}
KERNELS = {"NHWC": "HWIO", "NCHW": "OIHW", "NWC": "WIO", "NDHWC": "DHWIO"}
WEIGHTS = {"HWIO": (3, 3, 4, 5), "OIHW": (5, 4, 3, 3), "WIO": (3, 4, 5), "DHWIO": (3, 3, 3, 2, 5)}


def atrous(layout: str, blocks: Any, pads: Any, crops: Any, value: float = 0, **conv: Any) -> Function:
    """A function of what is put together again of the convolution of what is taken apart."""
    x, w = relay.var("x", shape=SHAPES[layout]), relay.var("w", shape=WEIGHTS[KERNELS[layout]])
    apart = nn.space_to_batch_nd(x, blocks, pads, value)
    return relay.Function([x, w], nn.batch_to_space_nd(convolved(apart, w, layout, **conv), blocks, crops))


def convolved(x: Expr, w: Expr, layout: str, **how: Any) -> Any:
    rank = len(layout) - 2
    made = getattr(nn, f"conv{rank}d")
    given = {"kernel_size": (3,) * rank, "channels": 5, "data_layout": layout, "kernel_layout": KERNELS[layout]}
    return made(x, w, **given | how)


def fed(function: Function) -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.integers(-4, 5, p.tensor_type.static_shape).astype(p.dtype) for p in function.params]


@pytest.mark.parametrize(
    ("layout", "blocks", "pads", "crops", "conv", "padding", "dilation"),
    [
        ("NHWC", (2, 2), ((2, 2), (2, 2)), ((0, 0), (0, 0)), {}, (2, 2, 2, 2), (2, 2)),
        ("NHWC", (4, 4), ((4, 6), (4, 4)), ((0, 2), (0, 0)), {}, (4, 4, 4, 4), (4, 4)),
        ("NHWC", (2, 4), ((1, 1), (4, 8)), ((0, 1), (2, 0)), {"padding": (1, 1)}, (3, 6, 2, 12), (2, 4)),
        ("NHWC", (3, 2), ((3, 6), (2, 2)), ((1, 2), (0, 1)), {"dilation": (1, 2), "padding": 1}, (5, 4, 7, 3), (3, 4)),
        ("NHWC", (2,), ((2, 2),), ((0, 0),), {"padding": (0, 1)}, (2, 1, 2, 1), (2, 1)),
        ("NCHW", (1, 3, 2), ((0, 0), (3, 3), (2, 2)), ((0, 0), (0, 1), (1, 0)), {}, (3, 1, 2, 2), (3, 2)),
        ("NWC", (2,), ((3, 5),), ((1, 1),), {}, (2, 4), (2,)),
        ("NDHWC", (2, 1, 2), ((2, 2), (1, 1), (2, 2)), ((0, 0),) * 3, {}, (2, 1, 2, 2, 1, 2), (2, 1, 2)),
    ],
)  # fmt: skip
def test_one_convolution(
    layout: str, blocks: Any, pads: Any, crops: Any, conv: dict[str, Any], padding: Any, dilation: Any
) -> None:
    function = atrous(layout, blocks, pads, crops, **conv)
    found = FlattenAtrousConv()(function)
    x, w = function.params
    wanted = relay.Function([x, w], convolved(x, w, layout, padding=padding, dilation=dilation))
    assert structural_equal(found.main, wanted), found
    np.testing.assert_array_equal(evaluate(found, *fed(function)), evaluate(function, *fed(function)))


def test_several_and_what_is_round_them() -> None:
    x, w = relay.var("x", shape=(1, 8, 8, 4)), relay.var("w", shape=(3, 3, 4, 4))

    def layer(y: Expr) -> Any:
        apart = nn.space_to_batch_nd(y, (2, 2), ((2, 2), (2, 2)), 0)
        return nn.batch_to_space_nd(convolved(apart, w, "NHWC", channels=4), (2, 2), ((0, 0), (0, 0)))

    def flat(y: Expr) -> Any:
        return convolved(y, w, "NHWC", channels=4, padding=(2, 2), dilation=(2, 2))

    function = relay.Function([x, w], relay.exp(layer(nn.relu(layer(x)))))
    found = FlattenAtrousConv()(function)
    assert structural_equal(found.main, relay.Function([x, w], relay.exp(flat(nn.relu(flat(x))))))


def _between(x: Expr, w: Expr) -> Any:
    apart = nn.relu(nn.space_to_batch_nd(x, (2, 2), ((2, 2), (2, 2)), 0))
    return nn.batch_to_space_nd(convolved(apart, w, "NHWC"), (2, 2), ((0, 0), (0, 0)))


def _behind(x: Expr, w: Expr) -> Any:
    apart = nn.space_to_batch_nd(x, (2, 2), ((2, 2), (2, 2)), 0)
    return nn.batch_to_space_nd(nn.relu(convolved(apart, w, "NHWC")), (2, 2), ((0, 0), (0, 0)))


def _other_blocks(x: Expr, w: Expr) -> Any:
    apart = nn.space_to_batch_nd(x, (4, 2), ((4, 6), (2, 2)), 0)
    return nn.batch_to_space_nd(convolved(apart, w, "NHWC"), (2, 4), ((0, 0), (0, 0)))


def _used_twice(x: Expr, w: Expr) -> Any:
    conv = convolved(nn.space_to_batch_nd(x, (2, 2), ((2, 2), (2, 2)), 0), w, "NHWC")
    return relay.Tuple([nn.batch_to_space_nd(conv, (2, 2), ((0, 0), (0, 0))), conv])


def _never_apart(x: Expr, w: Expr) -> Any:
    many = relay.concatenate([x, x], axis=0)
    return nn.batch_to_space_nd(convolved(many, w, "NHWC"), (2, 2), ((0, 0), (0, 0)))


def _never_joined(x: Expr, w: Expr) -> Any:
    return convolved(nn.space_to_batch_nd(x, (2, 2), ((2, 2), (2, 2)), 0), w, "NHWC")


@pytest.mark.parametrize("make", [_between, _behind, _other_blocks, _used_twice, _never_apart, _never_joined])
def test_what_stays(make: Callable[[Expr, Expr], Expr]) -> None:
    x, w = relay.var("x", shape=SHAPES["NHWC"]), relay.var("w", shape=WEIGHTS["HWIO"])
    function = relay.Function([x, w], make(x, w))
    assert structural_equal(FlattenAtrousConv()(function).main, function)


@pytest.mark.parametrize(
    ("layout", "blocks", "pads", "crops", "how"),
    [
        ("NHWC", (2, 2), ((2, 2), (2, 2)), ((0, 0), (0, 0)), {"value": 1.0}),
        ("NHWC", (2, 2), ((2, 2), (2, 2)), ((0, 0), (0, 0)), {"strides": (2, 1)}),
        ("NHWC", (2, 2), ((0, 0), (2, 2)), ((1, 0), (0, 0)), {}),  # cuts off more than it pads
        ("NCHW", (2, 2), ((0, 0), (2, 2)), ((0, 0), (0, 0)), {"groups": 2, "channels": 4}),  # blocks of channels
    ],
)  # fmt: skip
def test_attributes_that_forbid_it(layout: str, blocks: Any, pads: Any, crops: Any, how: dict[str, Any]) -> None:
    if "groups" in how:
        x, w = relay.var("x", shape=(2, 4, 6, 8)), relay.var("w", shape=(4, 1, 3, 3))
        apart = nn.space_to_batch_nd(x, blocks, pads, 0)
        function = relay.Function([x, w], nn.batch_to_space_nd(convolved(apart, w, layout, **how), blocks, crops))
    else:
        function = atrous(layout, blocks, pads, crops, **how)
    assert structural_equal(FlattenAtrousConv()(function).main, function)


@pytest.mark.parametrize(("zero", "padded", "folds"), [(0, 0, True), (3, 3, True), (3, 0, False), (0, 3, False)])
def test_quantized_convolutions(zero: int, padded: int, folds: bool) -> None:
    """What is padded must be the zero point."""
    x, w = relay.var("x", shape=SHAPES["NHWC"], dtype="int8"), relay.var("w", shape=WEIGHTS["HWIO"], dtype="int8")
    qnn: Any = relay.qnn

    def conv(data: Any, **how: Any) -> Any:
        zeros, scale = [relay.const(n, "int32") for n in (zero, 1)], relay.const(0.5)
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO", "kernel_size": (3, 3), "channels": 5}
        return qnn.op.conv2d(data, w, *zeros, scale, scale, **layouts, **how)

    apart = nn.space_to_batch_nd(x, (2, 4), ((2, 2), (4, 4)), padded)
    function = relay.Function([x, w], nn.batch_to_space_nd(conv(apart), (2, 4), ((0, 0), (0, 0))))
    found = FlattenAtrousConv()(function)
    flat = relay.Function([x, w], conv(x, padding=(2, 4), dilation=(2, 4)))
    assert structural_equal(found.main, flat if folds else function), found
    np.testing.assert_array_equal(evaluate(found, *fed(function)), evaluate(function, *fed(function)))
