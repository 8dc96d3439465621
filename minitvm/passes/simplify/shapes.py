"""Rules of SimplifyExpr about shapes: reshapes, transposes, layouts, fills, operators "like" another tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.op import Op
from minitvm.ir.ops.broadcast import BinaryOp, BroadcastTo, BroadcastToLike
from minitvm.ir.ops.elemwise import Copy, Full, FullLike, Ones, OnesLike, Zeros, ZerosLike
from minitvm.ir.ops.slicing import Concatenate
from minitvm.ir.ops.transform import BatchFlatten, LayoutTransform, Reshape, ReshapeLike, Transpose
from minitvm.ir.pattern import call, tuple_of, value
from minitvm.ir.types import TensorType
from minitvm.passes.rule import Replacement, rule

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


RULES = (
    concretize_fill_like,
    concretize_full_like,
    concretize_reshape_like,
    concretize_broadcast_to_like,
    drop_reshape_to_same,
    merge_reshapes,
    drop_reshape_and_back,
    drop_transpose_of_nothing,
    merge_transposes,
    drop_layout_transform_to_same,
    merge_layout_transforms,
    merge_transpose_into_layout_transform,
    merge_layout_transform_into_transpose,
    scalar_of_filled,
    drop_copy,
    drop_concatenate_of_one,
)
