"""Gradients of products and of what stands behind them: two products each, with one operand turned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minitvm.ir import builder as ir
from minitvm.ir.expr import Call, Expr
from minitvm.passes.gradient.rules import register_gradient, summed_to


def _of_products(y: Call, *adjoints: Expr) -> Sequence[Expr | None]:
    """Each in the shape and dtype of its argument: batches may be broadcast, products wider than their operands."""
    fit = (summed_to(d, arg.tensor_type) for d, arg in zip(adjoints, y.args, strict=True))
    return [d if d.dtype == arg.dtype else ir.cast(d, dtype=arg.dtype) for d, arg in zip(fit, y.args, strict=True)]


@register_gradient("nn.dense")
def _dense(y: Call, d: Expr) -> Sequence[Expr | None]:
    data, weight = (_as_wide(arg, d) for arg in y.args)
    return _of_products(y, ir.nn.matmul(d, weight), ir.nn.matmul(d, data, transpose_a=True))


def _as_wide(arg: Expr, d: Expr) -> Expr:
    return arg if arg.dtype == d.dtype else ir.cast(arg, dtype=d.dtype)


def _matmul(y: Call, d: Expr) -> Sequence[Expr | None]:
    """Of ``A @ B``: ``d @ B.T`` and ``A.T @ d``; of an operand that came turned, its transpose."""
    op: Any = y.op
    a, b = (_as_wide(arg, d) for arg in y.args)

    def product(lhs: Expr, rhs: Expr, turn_lhs: bool, turn_rhs: bool) -> Expr:
        return ir.call_op(op.name, lhs, rhs, transpose_a=turn_lhs, transpose_b=turn_rhs)

    of_a = product(b, d, op.transpose_b, True) if op.transpose_a else product(d, b, False, not op.transpose_b)
    of_b = product(d, a, True, op.transpose_a) if op.transpose_b else product(a, d, not op.transpose_a, False)
    return _of_products(y, of_a, of_b)


register_gradient("nn.matmul", _matmul)
register_gradient("nn.batch_matmul", _matmul)


@register_gradient("nn.bias_add")
def _bias_add(y: Call, d: Expr) -> Sequence[Expr | None]:
    op: Any = y.op
    return [d, ir.sum(d, axis=(op.axis,), exclude=True)]
