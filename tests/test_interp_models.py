"""Every kernel of the testing workloads' layers runs in the loop interpreter and gives what numpy gives.

Most networks here are the workloads' own blocks with few channels on small images: interpreting all of ResNet takes
minutes.
"""

from __future__ import annotations

from collections.abc import Iterator

import model_zoo
import numpy as np
import pytest
from small_workloads import small

from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.spell import SPELLINGS
from minitvm.codegen.lower import lower
from minitvm.codegen.simplify import simplify
from minitvm.driver import optimize
from minitvm.driver.kernels import group_text
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Expr, Function, Module
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.ir.visitor import calls
from minitvm.target import MachineModel
from minitvm.testing import create_workload, densenet, inception, init, mobilenet, resnet, squeezenet, transformer
from minitvm.testing.layers import avg_pool, classifier, conv2d, conv_bias, dense, max_pool, relu

MACHINE = MachineModel(vector_bytes=32, vector_registers=16, threads=2)


def image(channels: int, size: int) -> Expr:
    return var("data", shape=(1, channels, size, size))


def _resnet() -> Expr:
    x = resnet._stem(image(3, 40), 8, 40)
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


def optimized(module: Module, params: dict[str, np.ndarray], level: int) -> Function:
    return optimize(module, MACHINE, params, level).main


def groups(main: Function) -> list[Function]:
    """The fused groups of an optimized ``main`` that differ, but for those that move no data."""
    found = {group_text(c.op): c.op for c in calls(main.body) if isinstance(c.op, Function)}
    return [group for group in found.values() if not group.attrs.get("reshape_only")]


def arguments(group: Function, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Random arrays; positive, so that square roots have values (variances are parameters at levels below 2)."""
    for param in group.params:
        type_ = param.tensor_type
        yield rng.uniform(0.1, 1.0, type_.static_shape).astype(type_.dtype)


def check_group(group: Function, level: int) -> None:
    name = str(group.attrs["name"])
    kernel = legalize(simplify(lower(group, name, MACHINE)), SPELLINGS)
    verify_kernel(kernel)
    given = [a - 0.5 * (level > 1) for a in arguments(group, np.random.default_rng(len(name)))]
    given = [a.astype(p.tensor_type.dtype) for a, p in zip(given, group.params, strict=True)]
    expected = evaluate(group, *given)
    shaped = [a.reshape(b.shape) for a, b in zip(given, kernel.inputs, strict=True)]
    found = run_kernel(kernel, *shaped, check_races=True)
    for have, want in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert have.dtype == want.dtype
        assert model_zoo.error(have.reshape(want.shape), want) <= 1e-5, f"{name}\n{kernel}"


@pytest.mark.parametrize("level", [0, 1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_kernel(name: str, level: int) -> None:
    net = NETWORKS[name]()
    module, params = create_workload(net if isinstance(net, Function) else function(net), init.trained)
    found = groups(optimized(module, params, level))
    assert len(found) >= 4
    for group in found:
        check_group(group, level)


@pytest.mark.parametrize("name", ["mlp", "mobilenet_v2", "squeezenet", "transformer"])
def test_every_kernel_of_a_whole_network(name: str) -> None:
    """The small variants whose kernels have few enough iterations."""
    for group in groups(optimized(*small(name), level=3)):
        check_group(group, 3)
