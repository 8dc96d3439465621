"""SimplifyExpr: local algebra, applied until nothing changes; and SinkReshape.

Exact rules act at every level, reassociating ones, which state a bound, at level 2 and above, unbounded ones there
under ``minitvm.allow_fast_math`` (Relay applies all of them at level 0 already, and changes floats by it).
"""

import itertools
import sys
from collections.abc import Sequence

import numpy as np

from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.op import Op
from minitvm.ir.ops.elemwise import BinaryOp, Copy
from minitvm.ir.ops.nn_dense import BatchMatmul, Dense, Matmul
from minitvm.ir.ops.slicing import Concatenate
from minitvm.ir.ops.tensor import BroadcastTo, BroadcastToLike, Full, FullLike, Ones, OnesLike, Zeros, ZerosLike
from minitvm.ir.ops.transform import BatchFlatten, LayoutTransform, Reshape, ReshapeLike, Transpose
from minitvm.ir.pattern import call, tuple_of, value
from minitvm.ir.types import TensorType, is_named
from minitvm.passes import arithmetic
from minitvm.passes.canonicalize import drop_taps_in_padding
from minitvm.passes.rule import Replacement, RulePass, rule, rules_in

FILLS = (Zeros, Full, BroadcastTo)
NOT_STATIC = Declined("the shape is known only when the model runs")


def reshaped(x: Expr, type_: TensorType) -> Expr:
    """``x`` in the shape of ``type_``, all of whose sizes are numbers or have names; ``x`` itself where it has it."""
    if x.checked_type == type_:
        return x
    return ir.reshape(x, newshape=type_.extents, allowzero=0 in type_.extents)


@rule(call((ZerosLike, OnesLike), value("x"), name="like"))
def concretize_fill_like(like: Call, x: Expr) -> Replacement:
    if not is_named(like.type):
        return NOT_STATIC
    filled = Zeros if isinstance(like.op, ZerosLike) else Ones
    return Call(filled(like.shape, like.dtype), ())


@rule(call(FullLike, value("x"), value("fill"), name="like"))
def concretize_full_like(like: Call, x: Expr, fill: Expr) -> Replacement:
    return ir.full(fill, shape=like.shape) if is_named(like.type) else NOT_STATIC


@rule(call(ReshapeLike, value("x"), value("other"), name="like"))
def concretize_reshape_like(like: Call, x: Expr, other: Expr) -> Replacement:
    return reshaped(x, like.tensor_type) if is_named(like.type) else NOT_STATIC


@rule(call(BroadcastToLike, value("x"), value("other"), name="like"))
def concretize_broadcast_to_like(like: Call, x: Expr, other: Expr) -> Replacement:
    if not is_named(like.type):
        return NOT_STATIC
    return x if x.checked_type == like.type else ir.broadcast_to(x, shape=like.shape)


@rule(call((Reshape, BatchFlatten), value("x"), name="outer"))
def drop_reshape_to_same(outer: Call, x: Expr) -> Replacement:
    if not is_named(outer.type):
        return NOT_STATIC
    return x if x.checked_type == outer.type else Declined("it changes the shape")


def _is_view(call: Call) -> bool:
    return isinstance(call.op, Op) and call.op.view


@rule(call((Reshape, BatchFlatten), call(Op, name="inner", where=_is_view), name="outer"))
def merge_reshapes(outer: Call, inner: Call) -> Replacement:
    if inner.args[0].dtype != inner.dtype:
        return Declined("its bytes are of another dtype there")
    return reshaped(inner.args[0], outer.tensor_type) if is_named(outer.type) else NOT_STATIC


@rule(call(Op, call(Reshape, name="inner"), name="outer", where=_is_view))
def drop_reshape_and_back(outer: Call, inner: Call) -> Replacement:
    """A reshape that ``squeeze`` or ``expand_dims`` undoes."""
    same = is_named(outer.type) and inner.args[0].checked_type == outer.type
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


@rule(call(_PRODUCTS, value("lhs"), call(Transpose, value("rhs"), name="transposed"), name="product"))
def transpose_inside_product(product: Call, lhs: Expr, transposed: Call, rhs: Expr) -> Replacement:
    """The right operand."""
    return _product(product, lhs, rhs, flip_b=True) if _exchanges_the_last_two(transposed) else _NOT_MATRICES


@rule(call(_PRODUCTS, call(Transpose, value("lhs"), name="transposed"), value("rhs"), name="product"))
def transpose_left_inside_product(product: Call, transposed: Call, lhs: Expr, rhs: Expr) -> Replacement:
    """The left operand, unless that would keep constant weights from being packed."""
    if isinstance(rhs, Constant):
        return Declined("constant weights are packed where the left operand comes row by row")
    return _product(product, lhs, rhs, flip_a=True) if _exchanges_the_last_two(transposed) else _NOT_MATRICES


def _exchanges_the_last_two(transposed: Call) -> bool:
    assert isinstance(transposed.op, Transpose)
    rank = transposed.tensor_type.rank
    return transposed.op.order(rank) == (*range(rank - 2), rank - 1, rank - 2)


def _product(product: Call, lhs: Expr, rhs: Expr, flip_a: bool = False, flip_b: bool = False) -> Expr:
    """``product`` of other operands, of which one lies the other way round."""
    op = product.op
    if isinstance(op, Dense):
        return Call(Matmul(transpose_a=flip_a, transpose_b=not flip_b, out_dtype=op.out_dtype), (lhs, rhs))
    assert isinstance(op, (Matmul, BatchMatmul))
    flipped = op.with_attributes(transpose_a=op.transpose_a != flip_a, transpose_b=op.transpose_b != flip_b)
    return Call(flipped, (lhs, rhs))


class SimplifyExpr(RulePass, opt_level=0):
    """All rules about shapes, products, windows, casts and arithmetic."""

    rules = (*rules_in(sys.modules[__name__], arithmetic), drop_taps_in_padding)


class SimplifyExprPostAlterOp(RulePass, opt_level=0):
    """What AlterOpLayout may have left: identities, reshapes, layouts and casts that cancel, two biases in a row."""

    rules = (
        arithmetic.drop_added_zero,
        arithmetic.drop_added_float_zero,
        arithmetic.drop_zero_added_to_sum,
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


# --- reshapes behind products: rules of SinkReshape alone ----------------------------------------------------------

SEARCH = 32
"""Element-wise calls between a reshape and its product that are looked through, at most."""

NO_PRODUCT = Declined("no matrix product to fuse with")


def _is_elementwise(expr: Expr) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.keeps_positions(len(expr.args))


def follows_product(expr: Expr) -> bool:
    """True if an expression is a matrix product, or element-wise work on one of its own shape."""
    pending, seen = [expr], 0
    while pending and seen < SEARCH:
        node = pending.pop()
        seen += 1
        if isinstance(node, Call) and isinstance(node.op, _PRODUCTS):
            return True
        if isinstance(node, Call) and _is_elementwise(node):
            pending.extend(arg for arg in node.args if arg.type == expr.type)
    return False


_RESHAPED = call(Reshape, value("x"), name="shape")


@rule(call(Op, _RESHAPED, name="work", where=_is_elementwise))
def sink_below_unary(work: Call, shape: Call, x: Expr) -> Replacement:
    """``f(reshape(x))`` is ``reshape(f(x))``."""
    if not is_named(work.type) or not is_named(x.type) or not follows_product(x):
        return NO_PRODUCT
    return reshaped(Call(work.op, (x,)), work.tensor_type)


@rule(call(BinaryOp, _RESHAPED, value("other"), name="work", commutative=True))
def sink_below_binary(work: Call, shape: Call, x: Expr, other: Expr) -> Replacement:
    """``f(reshape(x), y)`` is ``reshape(f(x, y'))``, whichever operand the reshape is."""
    operand = _operand(work, shape, x, other)
    if isinstance(operand, Declined):
        return operand
    return reshaped(Call(work.op, [x if arg is shape else operand for arg in work.args]), work.tensor_type)


def _operand(work: Call, shape: Call, x: Expr, other: Expr) -> Expr | Declined:
    """The other operand as it stands beside ``x`` instead of beside ``reshape(x)``."""
    if not all(is_named(e.type) for e in (work, x, other)) or not follows_product(x):
        return NO_PRODUCT
    if work.shape != shape.shape:
        return Declined("the other operand gives the result its shape")
    if other.shape == shape.shape:
        return reshaped(other, other.tensor_type.with_shape(x.shape))
    behind = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(x.shape[::-1], shape.shape[::-1], strict=False))
    extra = len(other.shape) - len(list(behind))  # dimensions before those that the reshape keeps
    if extra <= 0:
        return other
    if any(extent != 1 for extent in other.shape[:extra]):
        return Declined(f"{other.type} varies along axes that the reshape changes")
    return reshaped(other, other.tensor_type.with_shape(other.shape[extra:]))


class SinkReshape(RulePass, opt_level=2):
    """Element-wise work behind a matrix product is done before the reshape that follows the product.

    A transformer's layers are products of matrices, so an importer writes ``reshape(dense(reshape(x)))`` and the bias
    and the activation come after.  A reshape is free between kernels, but no kernel fuses through it; once it has sunk
    below the bias and the activation they are one kernel with the product, and two reshapes meet and vanish.
    """

    rules = (sink_below_unary, sink_below_binary, drop_reshape_to_same, merge_reshapes)
