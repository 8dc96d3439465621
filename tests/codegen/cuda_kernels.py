"""Kernels that the CUDA tests share: small fused groups and templates, lowered and simplified."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from minitvm.codegen.lower import lower
from minitvm.codegen.simplify import simplify
from minitvm.ir.builder import call_op, const, function, var
from minitvm.ir.expr import Expr, Function
from minitvm.ir.loop import Kernel
from minitvm.target import MachineModel

MACHINE = MachineModel(vector_bytes=32, vector_registers=16, threads=2)


def group(build: Callable[..., Expr], *shapes: tuple[int, ...], dtype: str = "float32") -> Function:
    """A function of one parameter per shape."""
    params = [var(f"p{i}", shape=s, dtype=dtype) for i, s in enumerate(shapes)]
    return function(build(*params), params)


def blocked(name: str, x: Expr, w: Expr, **attributes: object) -> Expr:
    layouts = {"data_layout": "NCHW8c", "out_layout": "NCHW8c", "padding": (1, 1, 1, 1), "kernel_size": (3, 3)}
    return call_op(name, x, w, **{**layouts, **attributes})


def conv(x: Expr, w: Expr, b: Expr) -> Expr:
    product = blocked("nn.contrib_conv2d_NCHWc", x, w, channels=16, kernel_layout="OIHW8i8o")
    return call_op("nn.relu", product + b)


def depthwise(x: Expr, w: Expr) -> Expr:
    return blocked(
        "nn.contrib_depthwise_conv2d_NCHWc", x, w, channels=16, groups=16, kernel_layout="OIHW1i8o", strides=(2, 2)
    )


def chain(x: Expr, y: Expr) -> Expr:
    """Deeper than Python's stack would allow a recursive walk."""
    value = x
    for _ in range(200):
        value = call_op("minimum", value, y) + x
    return value


GROUPS: dict[str, Function] = {
    "elementwise": group(lambda x, b: call_op("tanh", x + b) * const(0.5), (2, 3, 5, 9), (3, 1, 1)),
    "chain": group(chain, (3, 11), (3, 11)),
    "half": group(lambda x, y: call_op("exp", x) * y, (4, 33), (4, 33), dtype="float16"),
    "reduction": group(lambda x: call_op("sum", x * x, axis=(1,)), (7, 50)),
    "columns": group(lambda x: call_op("max", x, axis=(0,)), (5, 40)),
    "softmax": group(lambda x: call_op("nn.softmax", x), (6, 37)),
    "layer_norm": group(lambda x, g, b: call_op("nn.layer_norm", x, g, b), (5, 40), (40,), (40,)),
    "matmul": group(lambda a, b: call_op("nn.relu", call_op("nn.matmul", a, b, transpose_b=True)), (40, 20), (27, 20)),
    "conv": group(conv, (1, 2, 6, 7, 8), (2, 2, 3, 3, 8, 8), (1, 2, 1, 1, 8)),
    "depthwise": group(depthwise, (1, 2, 9, 8, 8), (2, 1, 3, 3, 1, 8)),
    "pool": group(
        lambda x: call_op("nn.max_pool2d", x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)), (1, 4, 9, 11)
    ),
    "lstm": group(lambda xw, r, h, c: call_op("nn.lstm", xw, r, h, c)[0], (3, 2, 36), (36, 9), (2, 9), (2, 9)),
    "transpose": group(lambda x: call_op("transpose", x, axes=(0, 2, 1)), (2, 9, 17)),
}


def kernel_of(name: str) -> Kernel:
    return simplify(lower(GROUPS[name], name, MACHINE))


def inputs_of(kernel: Kernel, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=b.shape).astype(b.dtype) for b in kernel.inputs]
