"""SimplifyExpr: local algebra, applied until nothing changes.

Exact rules act at every level, reassociating ones at level 2 and above, approximate ones where
``minitvm.allow_approximate`` names them (Relay applies all of them at level 0 already, and changes floats by it).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.op import Op
from minitvm.ir.ops.broadcast import BinaryOp, BroadcastTo, BroadcastToLike
from minitvm.ir.ops.elemwise import Copy, Full, FullLike, Ones, OnesLike, Zeros, ZerosLike
from minitvm.ir.ops.nn_conv import Conv1d, Conv2d, Conv3d, Convolution
from minitvm.ir.ops.nn_dense import BatchMatmul, Dense, Matmul
from minitvm.ir.ops.slicing import Concatenate
from minitvm.ir.ops.transform import BatchFlatten, LayoutTransform, Reshape, ReshapeLike, Transpose
from minitvm.ir.pattern import call, const, tuple_of, value
from minitvm.ir.types import TensorType
from minitvm.passes import arithmetic
from minitvm.passes.rule import Replacement, RulePass, rule, rules_in

FILLS = (Zeros, Full, BroadcastTo)
NOT_STATIC = Declined("the shape is known only when the model runs")


def reshaped(x: Expr, type_: TensorType) -> Expr:
    """``x`` in the shape of ``type_``, which is static; ``x`` itself where it has it."""
    if x.checked_type == type_:
        return x
    return ir.reshape(x, newshape=type_.static_shape, allowzero=0 in type_.static_shape)


@rule(call((ZerosLike, OnesLike), value("x"), name="like"))
def concretize_fill_like(like: Call, x: Expr) -> Replacement:
    if not like.type.is_static:
        return NOT_STATIC
    filled = Zeros if isinstance(like.op, ZerosLike) else Ones
    return Call(filled(like.shape, like.dtype), ())


@rule(call(FullLike, value("x"), value("fill"), name="like"))
def concretize_full_like(like: Call, x: Expr, fill: Expr) -> Replacement:
    return ir.full(fill, shape=like.shape) if like.type.is_static else NOT_STATIC


@rule(call(ReshapeLike, value("x"), value("other"), name="like"))
def concretize_reshape_like(like: Call, x: Expr, other: Expr) -> Replacement:
    return reshaped(x, like.tensor_type) if like.type.is_static else NOT_STATIC


@rule(call(BroadcastToLike, value("x"), value("other"), name="like"))
def concretize_broadcast_to_like(like: Call, x: Expr, other: Expr) -> Replacement:
    if not like.type.is_static:
        return NOT_STATIC
    return x if x.checked_type == like.type else ir.broadcast_to(x, shape=like.shape)


@rule(call((Reshape, BatchFlatten), value("x"), name="outer"))
def drop_reshape_to_same(outer: Call, x: Expr) -> Replacement:
    if not outer.type.is_static:
        return NOT_STATIC
    return x if x.checked_type == outer.type else Declined("it changes the shape")


def _is_view(call: Call) -> bool:
    return isinstance(call.op, Op) and call.op.view


@rule(call((Reshape, BatchFlatten), call(Op, name="inner", where=_is_view), name="outer"))
def merge_reshapes(outer: Call, inner: Call) -> Replacement:
    return reshaped(inner.args[0], outer.tensor_type) if outer.type.is_static else NOT_STATIC


@rule(call(Op, call(Reshape, name="inner"), name="outer", where=_is_view))
def drop_reshape_and_back(outer: Call, inner: Call) -> Replacement:
    """A reshape that ``squeeze`` or ``expand_dims`` undoes."""
    same = outer.type.is_static and inner.args[0].checked_type == outer.type
    return inner.args[0] if same else Declined("together they change the shape")


def _permutation(transpose: Call) -> tuple[int, ...]:
    assert isinstance(transpose.op, Transpose)
    return transpose.op.order(transpose.tensor_type.rank)


def _transposed(x: Expr, axes: Sequence[int]) -> Expr:
    return x if tuple(axes) == tuple(range(len(axes))) else ir.transpose(x, axes=tuple(axes))


@rule(call(Transpose, value("x"), name="outer"))
def drop_transpose_of_nothing(outer: Call, x: Expr) -> Replacement:
    axes = _permutation(outer)
    return x if axes == tuple(range(len(axes))) else Declined("it moves axes")


@rule(call(Transpose, call(Transpose, value("x"), name="inner"), name="outer"))
def merge_transposes(outer: Call, inner: Call, x: Expr) -> Expr:
    first = _permutation(inner)
    return _transposed(x, [first[a] for a in _permutation(outer)])


def _layouts(transform: Call) -> tuple[str, str]:
    assert isinstance(transform.op, LayoutTransform)
    return transform.op.src_layout, transform.op.dst_layout


@rule(call(LayoutTransform, value("x"), name="outer"))
def drop_layout_transform_to_same(outer: Call, x: Expr) -> Replacement:
    source, target = _layouts(outer)
    return x if source == target else Declined(f"{source} becomes {target}")


@rule(call(LayoutTransform, call(LayoutTransform, value("x"), name="inner"), name="outer"))
def merge_layout_transforms(outer: Call, inner: Call, x: Expr) -> Replacement:
    (source, middle), (again, target) = _layouts(inner), _layouts(outer)
    if middle != again:
        return Declined(f"the first ends in {middle}, the second starts from {again}")
    return x if source == target else ir.layout_transform(x, src_layout=source, dst_layout=target)


def _is_plain(layout: str) -> bool:
    """One letter an axis, no blocks."""
    return layout.isalpha() and layout.isupper()


@rule(call(LayoutTransform, call(Transpose, value("x"), name="inner"), name="outer"))
def merge_transpose_into_layout_transform(outer: Call, inner: Call, x: Expr) -> Replacement:
    """The transpose's input has a layout too: the transform starts from there."""
    source, target = _layouts(outer)
    if not _is_plain(source):
        return Declined(f"{source} is blocked")
    axes = _permutation(inner)
    before = "".join(source[axes.index(d)] for d in range(len(axes)))
    return x if before == target else ir.layout_transform(x, src_layout=before, dst_layout=target)


@rule(call(Transpose, call(LayoutTransform, value("x"), name="inner"), name="outer"))
def merge_layout_transform_into_transpose(outer: Call, inner: Call, x: Expr) -> Replacement:
    source, target = _layouts(inner)
    if not _is_plain(target):
        return Declined(f"{target} is blocked")
    after = "".join(target[a] for a in _permutation(outer))
    return x if source == after else ir.layout_transform(x, src_layout=source, dst_layout=after)


@rule(call(BinaryOp, value("x"), call(FILLS, name="fill"), name="whole", commutative=True))
def scalar_of_filled(whole: Call, x: Expr, fill: Call) -> Replacement:
    """``x + full(c)`` is ``x + c`` where x has the shape already; on either side."""
    small = _unfilled(fill)
    if small is None:
        return Declined("what it fills with is not one scalar of the same dtype")
    found = Call(whole.op, [small if arg is fill else arg for arg in whole.args])
    return found if found.checked_type == whole.checked_type else Declined("the fill gives the result its shape")


def _unfilled(fill: Call) -> Expr | None:
    """The scalar that a fill repeats."""
    if isinstance(fill.op, Zeros):
        return Constant(np.asarray(fill.op.value, fill.dtype))
    inner = fill.args[0]
    return inner if inner.tensor_type.shape == () and inner.dtype == fill.dtype else None


@rule(call(Copy, value("x")))
def drop_copy(x: Expr) -> Expr:
    return x


@rule(call(Concatenate, tuple_of(value("x"))))
def drop_concatenate_of_one(x: Expr) -> Expr:
    return x


_PRODUCTS = (Dense, Matmul, BatchMatmul)
_NOT_MATRICES = Declined("it does not exchange rows and columns only")


@rule(call(_PRODUCTS, value("lhs"), call(Transpose, value("rhs"), name="turned"), name="product"))
def transpose_inside_product(product: Call, lhs: Expr, turned: Call, rhs: Expr) -> Replacement:
    """The right operand."""
    return _product(product, lhs, rhs, flip_b=True) if _exchanges_the_last_two(turned) else _NOT_MATRICES


@rule(call(_PRODUCTS, call(Transpose, value("lhs"), name="turned"), value("rhs"), name="product"))
def transpose_left_inside_product(product: Call, turned: Call, lhs: Expr, rhs: Expr) -> Replacement:
    """The left operand, unless that would keep constant weights from being packed."""
    if isinstance(rhs, Constant):
        return Declined("constant weights are packed where the left operand comes row by row")
    return _product(product, lhs, rhs, flip_a=True) if _exchanges_the_last_two(turned) else _NOT_MATRICES


def _exchanges_the_last_two(turned: Call) -> bool:
    assert isinstance(turned.op, Transpose)
    rank = turned.tensor_type.rank
    return turned.op.order(rank) == (*range(rank - 2), rank - 1, rank - 2)


def _product(product: Call, lhs: Expr, rhs: Expr, flip_a: bool = False, flip_b: bool = False) -> Expr:
    """``product`` of other operands, of which one lies the other way round."""
    op = product.op
    if isinstance(op, Dense):
        return Call(Matmul(transpose_a=flip_a, transpose_b=not flip_b, out_dtype=op.out_dtype), (lhs, rhs))
    assert isinstance(op, (Matmul, BatchMatmul))
    flipped = op.with_attributes(transpose_a=op.transpose_a != flip_a, transpose_b=op.transpose_b != flip_b)
    return Call(flipped, (lhs, rhs))


@rule(call((Conv1d, Conv2d, Conv3d), value("data"), const("weight"), name="conv"), exactness="reassociating")
def drop_taps_in_padding(conv: Call, data: Expr, weight: Expr) -> Replacement:
    """A 3x3 window on a single pixel reads one tap: constant weights are cut to the taps that see the image."""
    op = conv.op
    assert isinstance(op, Convolution)
    image, kernel, out = op.layouts
    if not (data.type.is_static and conv.type.is_static):
        return Declined("the image's size is known only when the model runs")
    pads, rank = list(op.padding), len(op.spatial)
    begin, end = [0] * kernel.rank, list(weight.shape)
    for d, axis in enumerate(op.spatial):
        at = kernel.index(axis)
        taps = [t * op.dilation[d] - pads[d] for t in range(weight.shape[at])]
        extents = data.shape[image.index(axis)], conv.shape[out.index(axis)]
        seen = [t for t, first in enumerate(taps) if _sees(first, op.strides[d], *extents)] or [*range(len(taps))]
        begin[at], end[at] = seen[0], seen[-1] + 1
        pads[d] -= seen[0] * op.dilation[d]
        pads[d + rank] -= (len(taps) - end[at]) * op.dilation[d]
    if pads == list(op.padding):
        return Declined("every tap sees the image in some window")
    if min(pads) < 0:
        return Declined("windows would begin or end inside the image")
    size = tuple(end[kernel.index(axis)] - begin[kernel.index(axis)] for axis in op.spatial)
    cut = ir.call_op("strided_slice", weight, begin=tuple(begin), end=tuple(end), strides=(1,) * kernel.rank)
    return ir.call_op(op.name, data, cut, **{**op.attributes(), "padding": tuple(pads), "kernel_size": size})


def _sees(first: int, stride: int, extent: int, outputs: int) -> bool:
    """Whether a tap that is at ``first`` in window 0 is inside the image in some window."""
    window = max(0, -(first // stride))
    return window < outputs and window * stride + first < extent


class SimplifyExpr(RulePass, opt_level=0):
    """All rules about shapes, products, windows, casts and arithmetic."""

    rules = rules_in(sys.modules[__name__], arithmetic)


class SimplifyExprPostAlterOp(RulePass, opt_level=0):
    """What AlterOpLayout may have left: identities, reshapes, layouts and casts that cancel, two biases in a row."""

    rules = (
        arithmetic.drop_added_zero,
        arithmetic.drop_added_float_zero,
        arithmetic.drop_subtracted_zero,
        arithmetic.drop_multiplied_one,
        arithmetic.drop_divided_one,
        arithmetic.add_constants_of_floats,
        arithmetic.add_constants_of_integers,
        drop_reshape_to_same,
        merge_reshapes,
        drop_transpose_of_nothing,
        merge_transposes,
        drop_layout_transform_to_same,
        merge_layout_transforms,
        arithmetic.drop_cast_to_same,
        arithmetic.merge_casts,
        arithmetic.drop_clip_of_everything,
        arithmetic.drop_cast_within_clip,
        arithmetic.drop_dequantize_before_argmax,
    )
