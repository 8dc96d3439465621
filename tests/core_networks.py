"""A few networks from ONNX to numbers, for a package of which rooms are missing; with ``--all`` all of them.

A convolutional network in blocks of channels and depthwise, a transformer's layer, both beside their operators'
meanings in numpy; the graph's text, read back where the room that reads is there; a kernel in the interpreter.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx

import minitvm
from benchmarks.graph import Graph
from minitvm.doors import is_there
from minitvm.driver import build
from minitvm.frontend import from_onnx
from minitvm.ir.evaluate import evaluate
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.structural import structural_equal
from minitvm.ir.text import print_module


def convolutions() -> onnx.ModelProto:
    g = Graph()
    x = g.node("Relu", [g.norm(g.conv("data", 3, 32, 3, 2), 32)])
    x = g.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = g.node("Relu", [g.norm(g.conv(x, 32, 32, 3), 32)])
    x = g.relu6(g.node("Add", [x, g.norm(g.conv(y, 32, 32, 1), 32)]))
    x = g.relu6(g.norm(g.conv(x, 32, 32, 3, groups=32), 32))
    pooled = g.node("AveragePool", [x], kernel_shape=[2, 2], strides=[2, 2])
    flat = g.node("Flatten", [g.node("GlobalAveragePool", [g.node("Concat", [pooled, pooled], axis=1)])])
    return g.model(g.node("Softmax", [g.gemm(flat, 64, 10)]), (1, 3, 32, 32))


def transformer() -> onnx.ModelProto:
    g, batch, length, size, heads = Graph(), 1, 8, 32, 4

    def split(x: str, *order: int) -> str:
        shape = g.weight(np.array([batch, length, heads, size // heads]))
        return g.node("Transpose", [g.node("Reshape", [g.linear(x, size, size), shape])], perm=order)

    query, key, value = split("data", 0, 2, 1, 3), split("data", 0, 2, 3, 1), split("data", 0, 2, 1, 3)
    scores = g.node("Mul", [g.node("MatMul", [query, key]), g.weight(np.float32((size // heads) ** -0.5))])
    seen = g.node("MatMul", [g.node("Softmax", [scores], axis=-1), value])
    joined = g.node("Transpose", [seen], perm=[0, 2, 1, 3])
    flat = g.node("Reshape", [joined, g.weight(np.array([batch, length, size]))])
    x = g.layer_norm(g.node("Add", ["data", g.linear(flat, size, size)]), size)
    return g.model(g.node("Add", [x, g.linear(g.gelu(g.linear(x, size, 64)), 64, size)]), (batch, length, size))


def check(model: onnx.ModelProto, expected: set[str], *targets: str) -> None:
    """The model's results are those of its operators, from kernels of which templates make these."""
    module, params = from_onnx(model)
    if is_there("ir.parser"):
        from minitvm.ir.parser import parse_module

        assert structural_equal(parse_module(print_module(module)), module)
    x = np.random.default_rng(1).standard_normal(module.main.params[0].tensor_type.static_shape).astype(np.float32)
    library = build(module, "llvm", params, 3, num_threads=1)
    made = {library.report.kernel(symbol).template for symbol in library.report.groups}
    assert expected <= {name.rpartition(".")[2] for name in made}, made
    for target in targets:
        run = minitvm.GraphModule(build(module, target, params, 3, num_threads=1)["default"](minitvm.cpu()))
        run.run(data=x)
        np.testing.assert_allclose(run.outputs()[0], evaluate(module, x, *params.values()), rtol=1e-4, atol=1e-5)


def loops_mean_the_same(model: onnx.ModelProto) -> None:
    """The first kernel's loops in the interpreter store what its operators mean."""
    module, params = from_onnx(model)
    report = build(module, "llvm", params, 3, num_threads=1).report
    symbol, group = next(iter(report.groups.items()))
    rng = np.random.default_rng(2)
    given = [rng.standard_normal(p.tensor_type.static_shape).astype(np.float32) for p in group.params]
    (found,) = run_kernel(report.compiler.kernel(symbol, group), *given)
    np.testing.assert_allclose(found, evaluate(group, *given).reshape(found.shape), rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    check(convolutions(), {"BlockedConv", "BlockedDepthwise"}, "llvm")
    if "--all" in sys.argv:
        check(transformer(), {"DensePack"}, "llvm")
        loops_mean_the_same(convolutions())
    print(minitvm.__file__)
