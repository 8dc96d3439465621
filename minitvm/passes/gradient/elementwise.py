"""Gradients of element-wise operators: the chain rule, then sums over what was broadcast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from minitvm.ir import builder as ir
from minitvm.ir.expr import Call, Expr
from minitvm.passes.gradient.rules import number, of_each, register_gradient, summed_to


def _where(condition: Expr, adjoint: Expr) -> Expr:
    """The adjoint where a condition holds, elsewhere 0."""
    return ir.where(condition, adjoint, number(0, adjoint))


def _square(x: Expr) -> Expr:
    return x * x


# --- of one argument: ``y`` is the call, which is its own result -------------------------------------------------

of_each("negative", lambda y, d: -d)
of_each("abs", lambda y, d: d * ir.sign(y.args[0]))
of_each("exp", lambda y, d: d * y)
of_each("expm1", lambda y, d: d * (y + 1))
of_each("log", lambda y, d: d / y.args[0])
of_each("log2", lambda y, d: d / (y.args[0] * math.log(2)))
of_each("log1p", lambda y, d: d / (y.args[0] + 1))
of_each("sqrt", lambda y, d: d * 0.5 / y)
of_each("rsqrt", lambda y, d: d * -0.5 * y / y.args[0])
of_each("sigmoid", lambda y, d: d * y * (1 - y))
of_each("tanh", lambda y, d: d * (1 - _square(y)))
of_each("erf", lambda y, d: d * (2 / math.sqrt(math.pi)) * ir.exp(-_square(y.args[0])))
of_each("sin", lambda y, d: d * ir.cos(y.args[0]))
of_each("cos", lambda y, d: -d * ir.sin(y.args[0]))
of_each("tan", lambda y, d: d * (1 + _square(y)))
of_each("asin", lambda y, d: d * ir.rsqrt(1 - _square(y.args[0])))
of_each("acos", lambda y, d: -d * ir.rsqrt(1 - _square(y.args[0])))
of_each("atan", lambda y, d: d / (1 + _square(y.args[0])))
of_each("sinh", lambda y, d: d * ir.cosh(y.args[0]))
of_each("cosh", lambda y, d: d * ir.sinh(y.args[0]))
of_each("asinh", lambda y, d: d * ir.rsqrt(_square(y.args[0]) + 1))
of_each("acosh", lambda y, d: d * ir.rsqrt(_square(y.args[0]) - 1))
of_each("atanh", lambda y, d: d / (1 - _square(y.args[0])))
of_each("copy annotation.stop_fusion", lambda y, d: d)
of_each("cast", lambda y, d: ir.cast(d, dtype=y.args[0].dtype))
of_each("nn.relu", lambda y, d: _where(ir.greater(y.args[0], number(0, y)), d))
of_each("nn.leaky_relu", lambda y, d: ir.where(ir.less(y.args[0], number(0, y)), d * y.op.alpha, d))
of_each("floor ceil round trunc sign zeros_like ones_like", lambda y, d: None)
"""Steps: their slope is 0 wherever there is one."""


@register_gradient("clip")
def _clip(y: Call, d: Expr) -> Sequence[Expr | None]:
    """Nothing where the value was cut off; at the bounds themselves it counts, as in Relay."""
    op: Any = y.op
    x = y.args[0]
    above, below = ir.greater_equal(x, number(op.a_min, x)), ir.less_equal(x, number(op.a_max, x))
    return [_where(ir.logical_and(above, below), d)]


@register_gradient("nn.prelu")
def _prelu(y: Call, d: Expr) -> Sequence[Expr | None]:
    x, alpha = y.args
    op: Any = y.op
    axis = op.axis % len(x.shape)
    slopes = ir.expand_dims(alpha, axis=1, num_newaxis=len(x.shape) - 1 - axis) if axis < len(x.shape) - 1 else alpha
    negative = ir.less(x, number(0, x))
    return [ir.where(negative, d * slopes, d), ir.sum(_where(negative, d * x), axis=(axis,), exclude=True)]


# --- of two arguments, which may be broadcast ---------------------------------------------------------------------


def _of_both(y: Call, left: Expr, right: Expr) -> Sequence[Expr | None]:
    return [summed_to(d, arg.tensor_type) for d, arg in zip((left, right), y.args, strict=True)]


register_gradient("add", lambda y, d: _of_both(y, d, d))
register_gradient("subtract", lambda y, d: _of_both(y, d, -d))
register_gradient("multiply", lambda y, d: _of_both(y, d * y.args[1], d * y.args[0]))


@register_gradient("divide")
def _divide(y: Call, d: Expr) -> Sequence[Expr | None]:
    share = d / y.args[1]
    return _of_both(y, share, -share * y)


@register_gradient("power")
def _power(y: Call, d: Expr) -> Sequence[Expr | None]:
    """``base ** exponent``: of a base of 0 the exponent gets nothing, whose logarithm has no end."""
    base, exponent = y.args
    safe = ir.where(ir.greater(base, number(0, base)), base, number(1, base))
    return _of_both(y, d * exponent * ir.power(base, exponent - 1), d * y * ir.log(safe))


def _chosen(y: Call, d: Expr, left: Expr) -> Sequence[Expr | None]:
    """Those of a maximum or minimum: to the one that was taken, of equal ones half to each."""
    half = ir.where(ir.equal(*y.args), d * 0.5, number(0, d))
    right = ir.logical_not(ir.logical_or(left, ir.equal(*y.args)))
    return _of_both(y, _where(left, d) + half, _where(right, d) + half)


register_gradient("maximum", lambda y, d: _chosen(y, d, ir.greater(*y.args)))
register_gradient("minimum", lambda y, d: _chosen(y, d, ir.less(*y.args)))
register_gradient("mod", lambda y, d: _of_both(y, d, -d * ir.trunc(y.args[0] / y.args[1])))
register_gradient("floor_mod", lambda y, d: _of_both(y, d, -d * ir.floor(y.args[0] / y.args[1])))
register_gradient("floor_divide", lambda y, d: [None, None])


@register_gradient("where")
def _of_where(y: Call, d: Expr) -> Sequence[Expr | None]:
    condition, x, other = y.args
    zero = number(0, d)
    return [
        None,
        summed_to(ir.where(condition, d, zero), x.tensor_type),
        summed_to(ir.where(condition, zero, d), other.tensor_type),
    ]
