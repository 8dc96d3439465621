"""ConvertLayout where convolutions are in blocks of channels already: what follows is right, or as before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.ir.decision import decisions
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Expr, Function, Module
from minitvm.passes.convert_layout import ConvertLayout
from minitvm.testing import resnet

SHAPE = (1, 4, 3, 3, 4)
WANTED = (["NCHW", "OIHW"], ["NHWC", "HWIO"], ["NCHW2c", "OIHW2i2o"], ["NCHW8c", "OIHW8i8o"])


def vector(name: str, size: int = 4) -> Expr:
    return relay.var(name, shape=(size,))


FOLLOWERS: dict[str, Callable[[Expr, int], Expr]] = {
    "softmax": lambda x, axis: relay.nn.softmax(x, axis=axis),
    "log_softmax": lambda x, axis: relay.nn.log_softmax(x, axis=axis),
    "lrn": lambda x, axis: relay.nn.lrn(x, size=3, axis=axis),
    "sum": lambda x, axis: relay.sum(x, axis=[axis]),
    "mean": lambda x, axis: relay.mean(x, axis=[axis], keepdims=True),
    "argmax": lambda x, axis: relay.argmax(x, axis=axis),
    "slice": lambda x, axis: relay.strided_slice(x, begin=[1], end=[3], axes=[axis]),
    "split": lambda x, axis: relay.split(x, [1], axis=axis)[0],
    "concatenate": lambda x, axis: relay.concatenate([x, x], axis=axis),
    "bias_add": lambda x, axis: relay.nn.bias_add(x, vector("b", SHAPE[axis]), axis=axis),
    "prelu": lambda x, axis: relay.nn.prelu(x, vector("a", SHAPE[axis]), axis=axis),
    "batch_norm": lambda x, axis: relay.nn.batch_norm(x, *(vector(n, SHAPE[axis]) for n in "gbmv"), axis=axis)[0],
    "cumsum": lambda x, axis: relay.cumsum(x, axis=axis),
    "take": lambda x, axis: relay.take(x, relay.const(np.array([0, 2])), axis=axis),
    "reverse": lambda x, axis: relay.reverse(x, axis=axis),
    "expand_dims": lambda x, axis: relay.expand_dims(x, axis=axis),
    "pad": lambda x, axis: relay.nn.pad(x, pad_width=[(int(d == axis), 0) for d in range(5)]),
    "add along": lambda x, axis: x + relay.var("z", shape=tuple(n if d == axis else 1 for d, n in enumerate(SHAPE))),
    "add of fewer dimensions": lambda x, axis: x + relay.var("z", shape=SHAPE[axis:]),
    "add of as many": lambda x, axis: x + relay.var("z", shape=SHAPE),
    "transpose": lambda x, axis: relay.transpose(x, axes=(axis, *(d for d in range(5) if d != axis))),
    "relu": lambda x, axis: relay.nn.relu(x),
    "max_pool": lambda x, axis: relay.nn.max_pool2d(x, pool_size=(2, 2), layout="NCHW4c"),
}


def behind_a_convolution(follower: Callable[[Expr, int], Expr], axis: int) -> Module:
    x, w = relay.var("x", shape=SHAPE), relay.var("w", shape=(4, 4, 1, 1, 4, 4))
    conv = relay.nn.conv2d(x, w, channels=16, kernel_size=(1, 1), data_layout="NCHW4c", kernel_layout="OIHW4i4o")
    body = follower(conv, axis)
    return minitvm.IRModule.from_expr(Function(relay.analysis.free_vars(body), body))


@pytest.mark.parametrize("axis", range(1, 5))
@pytest.mark.parametrize("name", FOLLOWERS)
def test_what_follows_a_blocked_convolution_computes_the_same(name: str, axis: int) -> None:
    module = behind_a_convolution(FOLLOWERS[name], axis)
    rng = np.random.default_rng(0)
    arguments = [rng.uniform(0.5, 1.5, p.tensor_type.extents).astype(np.float32) for p in module.main.params]
    expected = evaluate(module.main, *arguments)
    for wanted in WANTED:
        found = evaluate(ConvertLayout({"nn.conv2d": wanted})(module).main, *arguments)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=str(wanted))


@pytest.mark.parametrize("block", [4, 16])
def test_a_convolution_whose_channels_are_no_blocks_stays_alone(block: int) -> None:
    """The stem of three channels; all others move."""
    module, _ = resnet.get_workload(num_layers=18, image_shape=(3, 32, 32), num_classes=10)
    with decisions() as made:
        out = ConvertLayout({"nn.conv2d": [f"NCHW{block}c", f"OIHW{block}i{block}o"]})(module)
    text = str(out)
    assert text.count(f'data_layout="NCHW{block}c"') == text.count("nn.conv2d(") - 1
    assert any(f"blocks of {block} do not divide" in str(decision) for decision in made)
