"""Gradients of softmax and of normalizations: of most, those of the arithmetic that they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minitvm.errors import PassError
from minitvm.ir import builder as ir
from minitvm.ir.expr import Call, Expr
from minitvm.passes.canonicalize import as_arithmetic
from minitvm.passes.gradient.reverse import through
from minitvm.passes.gradient.rules import in_shape, of_each, register_gradient


@register_gradient("nn.softmax")
def _softmax(y: Call, d: Expr) -> Sequence[Expr | None]:
    op: Any = y.op
    return [y * (d - ir.sum(d * y, axis=(op.axis,), keepdims=True))]


@register_gradient("nn.log_softmax")
def _log_softmax(y: Call, d: Expr) -> Sequence[Expr | None]:
    op: Any = y.op
    return [d - ir.exp(y) * ir.sum(d, axis=(op.axis,), keepdims=True)]


def _by_its_arithmetic(y: Call, d: Expr) -> Sequence[Expr | None]:
    return through(lambda *args: as_arithmetic(y.over(args), ()), y, d)


for _name in ("nn.layer_norm", "nn.instance_norm", "nn.group_norm", "nn.l2_normalize"):
    register_gradient(_name, _by_its_arithmetic)


@register_gradient("nn.batch_norm")
def _batch_norm(y: Call, d: tuple[Expr, ...]) -> Sequence[Expr | None]:
    """As it computes: with the statistics that it is given, which pass through."""
    found = through(lambda *args: as_arithmetic(y.over(args)[0], ()), y, d[0])
    assert len(found) == 5
    statistics = (ir.add(a, b) if a is not None else b for a, b in zip(found[3:], d[1:], strict=True))
    return [*found[:3], *statistics]


of_each("nn.dropout", lambda y, d: d[0])
"""It lets everything pass, as in inference."""


@register_gradient("nn.lrn")
def _lrn(y: Call, d: Expr) -> Sequence[Expr | None]:
    op: Any = y.op

    def definition(x: Expr) -> Expr:
        axis, before = op.axis % len(x.shape), (op.size - 1) // 2
        widths = [(0, 0)] * len(x.shape)
        widths[axis] = (before, op.size - 1 - before)
        squares = ir.nn.pad(x * x, pad_width=tuple(widths))
        extent = x.shape[axis]
        total = _total([ir.strided_slice(squares, (k,), (k + extent,), axes=(axis,)) for k in range(op.size)])
        return x / ir.power(total * (op.alpha / op.size) + op.bias, ir.const(op.beta, x.dtype))

    return through(definition, y, d)


def _total(terms: Sequence[Expr]) -> Expr:
    found, *others = terms
    for one in others:
        found = found + one
    return found


@register_gradient("nn.attention")
def _attention(y: Call, d: Expr) -> Sequence[Expr | None]:
    """Heads in front, two products with a softmax between them."""
    op: Any = y.op
    if op.empty_rows != "nan":
        raise PassError("attention whose empty rows are zeros has no gradient")

    def definition(query: Expr, key: Expr, value: Expr, mask: Expr | None = None) -> Expr:
        batch, length, heads, _ = query.shape

        def matrices(data: Expr) -> Expr:
            """(batch, length, heads, size) -> (batch * heads, length, size)."""
            turned = ir.transpose(data, axes=(0, 2, 1, 3))
            return in_shape(turned, (batch * heads, *turned.shape[2:]))

        product = ir.nn.batch_matmul(matrices(query), matrices(key)) * op.scale
        scores = in_shape(product, (batch, heads, length, key.shape[1]))
        if mask is not None:
            fill = ir.const(op.fill, scores.dtype)
            scores = ir.where(mask, scores, fill) if mask.dtype == "bool" else scores + mask
        weights = in_shape(ir.nn.softmax(scores, axis=-1), product.shape)
        found = ir.nn.batch_matmul(weights, matrices(value), transpose_b=False)
        return ir.transpose(in_shape(found, (batch, heads, *found.shape[1:])), axes=(0, 2, 1, 3))

    return through(definition, y, d)
