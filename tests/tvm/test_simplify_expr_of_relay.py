"""SimplifyExpr: what each rule of v0.14's makes, with fast math, as Relay always has it; and what stays here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minitvm import relay
from minitvm.ir import builder as ir
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Expr, Function
from minitvm.ir.structural import structural_equal
from minitvm.ir.visitor import free_vars
from minitvm.passes import SimplifyExpr
from minitvm.passes.manager import PassContext

R: Any = relay
SHAPE = (2, 3, 4, 4)
X, Y = relay.var("x", shape=SHAPE), relay.var("y", shape=SHAPE)
WHOLE, BYTES = relay.var("i", shape=(3, 7), dtype="int32"), relay.var("q", shape=(3, 7), dtype="int8")


def c(value: float, dtype: str = "float32") -> Any:
    return relay.const(value, dtype)


def real() -> Any:
    return R.qnn.op.dequantize(BYTES, c(0.5), c(3, "int32"))


RULES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "SimplifyReshape": (lambda: R.reshape(R.reverse_reshape(X, (6, 16)), (3, 32)), lambda: R.reshape(X, (3, 32))),
    "SimplifyTranspose": (
        lambda: R.transpose(R.transpose(X, (0, 2, 3, 1)), (3, 0, 1, 2)),
        lambda: R.transpose(X, (1, 0, 2, 3)),
    ),
    "SimplifyTranspose and a layout": (
        lambda: R.layout_transform(R.transpose(X, (0, 2, 3, 1)), "NHWC", "NCHW3c"),
        lambda: R.layout_transform(X, "NCHW", "NCHW3c"),
    ),
    "SimplifyNoOpTranspose": (lambda: R.transpose(X, (0, 1, 2, 3)), lambda: X),
    "SimplifySameCast": (lambda: R.cast(X, "float32"), lambda: X),
    "SimplifyConsecutiveCast": (lambda: R.cast(R.cast(WHOLE, "int64"), "int8"), lambda: R.cast(WHOLE, "int8")),
    "SimplifyClipAndConsecutiveCast": (
        lambda: R.cast(R.cast(R.cast(R.clip(WHOLE, 0, 127), "uint8"), "int8"), "int32"),
        lambda: R.clip(WHOLE, 0, 127),
    ),
    "SimplifyClip": (lambda: R.clip(R.cast(WHOLE, "uint8"), 0, 255), lambda: R.cast(WHOLE, "uint8")),
    "FullElementwise": (lambda: R.full_like(X, c(2.0)) - X, lambda: c(2.0) - X),
    "ConcretizeZerosLike": (lambda: R.zeros_like(X), lambda: R.zeros(SHAPE, "float32")),
    "ConcretizeFullLike": (lambda: R.full_like(X, c(2.0)), lambda: ir.full(c(2.0), shape=SHAPE)),
    "ConcretizeReshapeLike": (
        lambda: R.reshape_like(X, R.reshape(Y, (6, 16))) * R.reshape(Y, (6, 16)),
        lambda: R.reshape(X, (6, 16)) * R.reshape(Y, (6, 16)),
    ),
    "ConcretizeBroadcastToLike": (
        lambda: R.broadcast_to_like(R.sum(X, axis=(0,)), Y) * Y,
        lambda: R.broadcast_to(R.sum(X, axis=(0,)), SHAPE) * Y,
    ),
    "EliminateIdentity": (lambda: (X + c(0.0)) * R.ones_like(X) / c(1.0) - R.zeros(SHAPE, "float32"), lambda: X),
    "SwitchAddMultiply": (lambda: (X + c(2.0)) * c(3.0), lambda: X * c(3.0) + c(6.0)),
    "SimplifyAdjacentMultiplyOrAdd": (lambda: c(3.0) + (c(2.0) + X), lambda: X + c(5.0)),
    "SimplifyAdd": (lambda: X + X, lambda: X * c(2.0)),
    "SimplifyRSqrt": (lambda: c(3.0) / R.sqrt(X), lambda: c(3.0) * R.rsqrt(X)),
    "SimplifyDQArgMax": (lambda: R.argmax(real(), axis=1), lambda: R.argmax(BYTES, axis=1)),
    "SimplifyDQArgMin": (lambda: R.argmin(real(), axis=1), lambda: R.argmin(BYTES, axis=1)),
    "SimplifyDQArgSort": (lambda: R.argsort(real(), axis=1), lambda: R.argsort(BYTES, axis=1)),
    "SimplifyBinomial": (lambda: X * X + c(3.0) * X * Y + c(2.0) * Y * Y, lambda: (X + Y * c(2.0)) * (X + Y)),
}

STAYS: dict[str, Callable[[], Any]] = {
    "a cast that rounds": lambda: R.cast(R.cast(R.clip(X, 0.0, 255.0), "uint8"), "float32"),
    "a cast that loses bits": lambda: R.cast(R.cast(WHOLE, "int8"), "int32"),
    "a clip that does not fit": lambda: R.cast(R.cast(R.clip(WHOLE, 0, 128), "int8"), "int32"),
    "a scale below zero": lambda: R.argmax(R.qnn.op.dequantize(BYTES, c(-0.5), c(3, "int32")), axis=1),
    "a fill that gives the shape": lambda: R.sum(X, axis=(0,)) - R.full(c(2.0), SHAPE, "float32"),
    "no real factors": lambda: X * X + X * Y + Y * Y,
}


def simplified(expr: Any) -> tuple[Function, Function]:
    function = Function(free_vars(expr), expr)
    with PassContext(opt_level=2, config={"minitvm.allow_fast_math": True}):
        return function, SimplifyExpr()(function).main


def fed(params: Any) -> list[Any]:
    rng = np.random.default_rng(5)
    return [rng.integers(1, 9, p.tensor_type.static_shape).astype(p.dtype) for p in params]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_of_relay(name: str) -> None:
    function, found = simplified(RULES[name][0]())
    wanted: Expr = RULES[name][1]()
    assert structural_equal(found, Function(function.params, wanted)), found
    feeds = fed(function.params)
    np.testing.assert_allclose(evaluate(found, *feeds), evaluate(function, *feeds), rtol=1e-6)


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name: str) -> None:
    function, found = simplified(STAYS[name]())
    assert structural_equal(found, function), found
