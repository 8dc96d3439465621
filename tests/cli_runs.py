"""A small model, and commands that are run in this process."""

from __future__ import annotations

import numpy as np
import onnx
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

from minitvm.cli import cli
from minitvm.errors import MiniTVMError


def small_model(height: int | str = 8) -> onnx.ModelProto:
    """Convolution, ReLU, pooling, dense; the batch is open."""
    rng = np.random.default_rng(7)
    shapes = {"w": (16, 3, 3, 3), "b": (16,), "fc_w": (4, 16), "fc_b": (4,)}
    weights = [numpy_helper.from_array(rng.normal(0, 0.3, s).astype("float32"), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv1", kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], "relu1"),
        helper.make_node("GlobalAveragePool", ["r"], ["g"], "pool"),
        helper.make_node("Flatten", ["g"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "fc_w", "fc_b"], ["y"], "fc", transB=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, height, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), prog_name="minitvm")


def output(*arguments: str) -> str:
    """What a command prints; it must succeed, and be silent on stderr, which is not a terminal."""
    result = invoke(*arguments)
    assert result.exception is None, result.exception
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def refusal(*arguments: str) -> str:
    """The text of the error that a command ends in."""
    result = invoke(*arguments)
    assert isinstance(result.exception, MiniTVMError), result.output
    return str(result.exception)


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]
