"""The testing workloads' layers run on the loop interpreter (``target="interp"``); each kernel gives what numpy gives.

Most networks here are the workloads' own blocks with few channels on small images: interpreting all of ResNet takes
minutes.
"""

from __future__ import annotations

import model_zoo
import numpy as np
import pytest
from small_workloads import small

from minitvm.driver import build
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Expr, Function, Module
from minitvm.runtime.debug import GraphModuleDebug
from minitvm.testing import create_workload, densenet, inception, init, mobilenet, resnet, squeezenet, transformer
from minitvm.testing.layers import avg_pool, classifier, conv2d, conv_bias, dense, max_pool, relu


def image(channels: int, size: int) -> Expr:
    return var("data", shape=(1, channels, size, size))


def _resnet() -> Expr:
    x = resnet._stem(image(3, 33), 8, 33)
    x = resnet._unit(x, "a", 8, 1, True, False)
    x = resnet._unit(x, "b", 16, 2, False, False)
    return classifier(resnet._unit(x, "c", 32, 2, False, True), "fc", 5)


def _mobilenet_v1() -> Expr:
    x = mobilenet._separable(image(8, 9), "a", 8, 16, 1)
    return classifier(mobilenet._separable(x, "b", 16, 24, 2), "fc", 5)


def _mobilenet_v2() -> Expr:
    x = mobilenet._inverted_residual(image(8, 8), "a", 8, 8, 2, 1)
    x = mobilenet._inverted_residual(x, "b", 8, 16, 2, 2)
    return classifier(x, "fc", 5)


def _vgg() -> Expr:
    x = max_pool(relu(conv_bias(image(3, 8), "conv", 8, (3, 3), padding=(1, 1))), 2, 2)
    return call_op("nn.softmax", dense(relu(dense(call_op("nn.batch_flatten", x), "fc6", 24)), "fc7", 5))


def _squeezenet() -> Expr:
    x = max_pool(relu(conv_bias(image(3, 19), "conv1", 16, (7, 7), strides=(2, 2))), 3, 2)
    x = call_op("nn.dropout", squeezenet._fire(x, "fire", 4, 8))[0]
    return call_op("nn.softmax", call_op("nn.batch_flatten", call_op("nn.global_avg_pool2d", x)))


def _densenet() -> Expr:
    x = densenet._layer(densenet._layer(image(8, 6), "a", 4), "b", 4)
    return classifier(avg_pool(densenet._norm_relu_conv(x, "t", 8, 1), 2, 2), "fc", 5)


def _inception() -> Expr:
    x = inception._conv(image(3, 9), "a", 8, 3, stride=2)
    left, right = inception._conv(x, "b", 8, 1, 7), inception._conv(x, "c", 8, 7, 1)
    pooled = inception._conv(avg_pool(x, 3, 1, 1), "d", 8, 1)
    return call_op("concatenate", [left, right, pooled, conv2d(x, "e", 8, (5, 5), padding=(2, 2))], axis=1)


def _transformer() -> Expr:
    return transformer.get_net(sequence_length=6, num_layers=1, hidden_size=16, num_heads=2)


NETWORKS = {
    "resnet": _resnet,
    "mobilenet_v1": _mobilenet_v1,
    "mobilenet_v2": _mobilenet_v2,
    "vgg": _vgg,
    "squeezenet": _squeezenet,
    "densenet": _densenet,
    "inception": _inception,
    "transformer": _transformer,
}


def check(module: Module, params: dict[str, np.ndarray], level: int) -> int:
    """Runs a model on the interpreter, each kernel against its operators on what it was given; how many there are."""
    library = build(module, "interp", params, opt_level=level)
    debug = GraphModuleDebug(library["debug_create"]("default"))
    rng = np.random.default_rng(level)
    shapes, dtypes = debug.get_input_info()
    debug.run_quietly({name: rng.normal(size=shape).astype(dtypes[name]) for name, shape in shapes.items()})
    kernels = [(i, node) for i, node in enumerate(library.graph.nodes) if node.is_kernel]
    for index, node in kernels:
        given = [debug.debug_get_output(*entry).numpy() for entry in node.inputs]
        expected = evaluate(library.report.groups[node.func], *given)
        for i, want in enumerate(expected if isinstance(expected, tuple) else (expected,)):
            have = debug.debug_get_output(index, i).numpy()
            assert have.dtype == want.dtype
            assert model_zoo.error(have, want) <= 1e-5, f"{node.func}\n{library.report.kernel(node.func).legalized}"
    return len(kernels)


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter itself sees memory that nobody wrote."""
    monkeypatch.setenv("MINITVM_POISON", "0")


@pytest.mark.parametrize("level", [0, pytest.param(1, marks=pytest.mark.more), 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_kernel(name: str, level: int) -> None:
    net = NETWORKS[name]()
    assert check(*create_workload(net if isinstance(net, Function) else function(net), init.trained), level) >= 4


@pytest.mark.parametrize("name", ["mlp", "mobilenet_v2", "transformer"])
def test_a_whole_network(name: str) -> None:
    """The small variants whose kernels have few enough iterations."""
    assert check(*small(name), level=3) >= 4
