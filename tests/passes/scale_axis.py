"""Modules with scales along an axis, and what FoldScaleAxis makes of them."""

from __future__ import annotations

import numpy as np
from rewriting import outline, random_array, run

from minitvm.ir.decision import decisions
from minitvm.ir.expr import Constant, Expr, Function, Module
from minitvm.ir.parser import parse_module
from minitvm.ir.visitor import post_order, substitute
from minitvm.passes.canonicalize import InferType
from minitvm.passes.fold_scale_axis import BackwardFoldScaleAxis, ForwardFoldScaleAxis
from minitvm.passes.manager import FunctionPass
from minitvm.passes.redundancy import bind_params

POSITIVE = np.abs(random_array((8,), 7)) + 0.25
MIXED = np.where(np.arange(8) % 3 == 0, -POSITIVE, POSITIVE)
WITH_ZERO = np.where(np.arange(8) == 5, 0, POSITIVE).astype("float32")

X = "%x: Tensor[(2, 8, 6, 6), float32]"
W = "%w: Tensor[(8, 8, 3, 3), float32]"
CONV = "nn.conv2d({}, %w, padding=[1, 1, 1, 1])"

Arrays = dict[str, np.ndarray]


def scales(vector: np.ndarray) -> Arrays:
    """The same scale in the shapes that broadcast along the channels of NCHW, NHWC, NCHW4c and of a matrix."""
    return {
        "s": vector.reshape(8, 1, 1),
        "row": vector,
        "blocked": vector.reshape(1, 2, 1, 1, 4),
        "volume": vector.reshape(8, 1, 1, 1),
        "line": vector.reshape(1, 8, 1),
        "channels": vector.reshape(1, 8, 1, 1),
        "pixel": random_array((1, 1, 6, 6), 3),
        "all": random_array((2, 8, 6, 6), 3),
        "b": random_array((8, 1, 1), 9),
        "bias": random_array((8,), 9),
    }


def module_of(body: str, vector: np.ndarray = POSITIVE, params: str = f"{X}, {W}") -> Module:
    """Weights are constants, as in every model."""
    module = parse_module(f"def @main({params}) {{ {body} }}", scales(vector))
    weights = {
        p.name: random_array(p.tensor_type.static_shape, 4).astype(p.dtype) for p in module.main.params if p.name == "w"
    }
    return InferType()(Module({"main": bind_params(module.main, weights)}))


def after(step: FunctionPass, body: str, vector: np.ndarray = POSITIVE, params: str = f"{X}, {W}") -> list[str]:
    """The calls after the pass, weights that it scaled as ``w*``; numbers are checked, and that the input is left
    alone."""
    module = module_of(body, vector, params)
    weights = [c.value for c in post_order(module.main.body) if isinstance(c, Constant) and c.name == "w"]
    found = run(step, module)
    scaled = {c: Constant(c.value, "w*") for c in post_order(found.main.body) if is_scaled(c, weights)}
    return outline(Module({"main": Function(found.main.params, substitute(found.main.body, scaled))})).splitlines()


def is_scaled(node: Expr, weights: list[np.ndarray]) -> bool:
    return isinstance(node, Constant) and node.name == "w" and not any(node.value is w for w in weights)


def forward(body: str, vector: np.ndarray = POSITIVE, params: str = f"{X}, {W}") -> list[str]:
    return after(ForwardFoldScaleAxis(), body, vector, params)


def backward(body: str, vector: np.ndarray = POSITIVE, params: str = f"{X}, {W}") -> list[str]:
    return after(BackwardFoldScaleAxis(), body, vector, params)


def stays(step: FunctionPass, body: str, reason: str, vector: np.ndarray = POSITIVE, params: str = f"{X}, {W}") -> None:
    """Nothing is folded, the same module comes back, and the pass says why."""
    module = module_of(body, vector, params)
    with decisions() as log:
        assert step(module) is module
    assert [d.reason for d in log if not d.taken] == [reason]
