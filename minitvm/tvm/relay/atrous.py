"""FlattenAtrousConv: a convolution of the pixels of each place of a block is a dilated one of the whole image."""

from __future__ import annotations

import numpy as np

from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Constant, Expr, Function, Module
from minitvm.ir.layout import Layout
from minitvm.ir.op import Op
from minitvm.ir.ops.elemwise import CastTo, Subtract
from minitvm.ir.ops.nn_conv import Convolution
from minitvm.ir.ops.nn_pad import Pad
from minitvm.ir.ops.slicing import StridedSlice
from minitvm.ir.ops.transform import Reshape, Transpose
from minitvm.ir.visitor import as_function, rewrite, use_counts
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.redundancy import fold_constant_expr
from minitvm.tvm.relay.composed import rank_of
from minitvm.tvm.relay.composed_nn import batch_to_space_nd, space_to_batch_nd

Pairs = list[tuple[int, int]]
APART, JOINED = (Reshape, Transpose, Reshape, Pad), (StridedSlice, Reshape, Transpose, Reshape)
"""What ``space_to_batch_nd`` and ``batch_to_space_nd`` are made of, from their results on."""


class FlattenAtrousConv(FunctionPass):
    """``batch_to_space_nd(conv(space_to_batch_nd(x)))`` becomes a convolution of ``x`` with as much more dilation.

    Any convolution of plain layouts, block and padding, also of integers less their zero point; Relay's is of NHWC
    images and takes them for padded to keep their size.
    """

    needs = (StridedSlice,)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        uses = use_counts(function)

        def visit(old: Expr, new: Expr) -> Expr:
            joined, was = _chain(new, JOINED), _chain(old, JOINED)
            if joined is None or was is None or not _is_convolution(joined[-1].args[0]):
                return new
            shared = any(uses[node] > 1 for node in (*was[1:], was[-1].args[0]))
            found = Declined("the convolution is used elsewhere") if shared else _flat(joined)
            decide("FlattenAtrousConv", new, found if isinstance(found, Declined) else "becomes a dilated convolution")
            return new if isinstance(found, Declined) else found

        return as_function(rewrite(function, visit))


def _chain(expr: Expr, kinds: tuple[type[Op], ...]) -> list[Call] | None:
    """The calls of these operators, each the first argument of the one before."""
    calls: list[Call] = []
    for kind in kinds:
        if not isinstance(expr, Call) or not isinstance(expr.op, kind) or not expr.tensor_type.is_static:
            return None
        calls.append(expr)
        expr = expr.args[0]
    return calls


def _is_convolution(expr: Expr) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, Convolution)


def _is_made_as(calls: list[Call], made: Expr, kinds: tuple[type[Op], ...]) -> bool:
    """True if calls are of the operators that ``made`` is of."""
    wanted = _chain(made, kinds)
    return wanted is not None and [one.op for one in calls] == [one.op for one in wanted]


def _flat(joined: list[Call]) -> Expr | Declined:
    """The dilated convolution, or why there is none."""
    conv = joined[-1].args[0]
    assert isinstance(conv, Call) and isinstance(conv.op, Convolution)
    centring, images = _centring(conv.args[0])
    apart = _chain(images, APART)
    if apart is None:
        return Declined("its images are not the places of blocks")
    blocks, padding = _blocks(apart)
    if not blocks or _crops(joined, blocks) is None:
        return Declined("it does not take apart and put together the same blocks")
    padded = apart[-1].args[1] if len(apart[-1].args) > 1 else Constant(np.zeros((), images.dtype))
    if not _is_zero(_centred(padded, centring)):
        return Declined("it pads with something other than 0")
    found = _dilated(conv.op, blocks, padding, _crops(joined, blocks) or [])
    if isinstance(found, Declined):
        return found
    return Call(found, (_centred(apart[-1].args[0], centring), *conv.args[1:]), span=conv.span)


def _centring(images: Expr) -> tuple[list[Call], Expr]:
    """The casts and subtractions of a number that a quantized convolution begins with, and what they begin from."""
    calls: list[Call] = []
    while isinstance(images, Call) and isinstance(images.op, (CastTo, Subtract)):
        if any(rank_of(number) for number in images.args[1:]):
            break
        calls.insert(0, images)
        images = images.args[0]
    return calls, images


def _centred(expr: Expr, calls: list[Call]) -> Expr:
    """The same done to another expression."""
    for call in calls:
        expr = Call(call.op, (expr, *call.args[1:]), span=call.span)
    return expr


def _is_zero(value: Expr) -> bool:
    found = fold_constant_expr(value)
    return isinstance(found, Constant) and not found.value.any()


def _blocks(apart: list[Call]) -> tuple[tuple[int, ...], Pairs]:
    """The blocks and the padding of a ``space_to_batch_nd``; no blocks where it is none."""
    pad, split = apart[-1], apart[-2].tensor_type.static_shape
    assert isinstance(pad.op, Pad)
    count = len(split) - pad.tensor_type.rank
    blocks, widths = split[2 : 2 * count + 1 : 2], pad.op.pad_width[1 : count + 1]
    shape = pad.tensor_type.static_shape
    if not 0 < count < len(shape) or any(n % b for n, b in zip(shape[1:], blocks, strict=False)):
        return (), []
    made = space_to_batch_nd(pad.args[0], blocks, widths, 0)
    return (blocks if _is_made_as(apart, made, APART) else ()), [(int(a), int(b)) for a, b in widths]


def _crops(joined: list[Call], blocks: tuple[int, ...]) -> Pairs | None:
    """What a ``batch_to_space_nd`` of these blocks cuts off; ``None`` where it is none."""
    cut, whole = joined[0].op, joined[1].tensor_type.static_shape
    assert isinstance(cut, StridedSlice)
    images = joined[-1].args[0]
    if images.tensor_type.static_shape[0] % joined[-2].tensor_type.static_shape[0] or len(cut.end) != len(blocks):
        return None
    crops = [(int(a), n - int(b)) for a, b, n in zip(cut.begin, cut.end, whole[1:], strict=False)]
    if joined[-1].tensor_type.static_shape[: len(blocks)] != blocks or any(end < 0 for pair in crops for end in pair):
        return None
    return crops if _is_made_as(joined, batch_to_space_nd(images, blocks, crops), JOINED) else None


def _dilated(op: Convolution, blocks: tuple[int, ...], padding: Pairs, crops: Pairs) -> Convolution | Declined:
    """The operator over the whole image: what a block has between two of its pixels lies between two taps."""
    layout = Layout(op.data_layout)
    if not str(layout).isupper() or not str(layout).isalpha() or str(layout)[0] != "N":
        return Declined(f"{layout} is blocked, or its first axis is not that of images")
    if op.out_layout not in ("", op.data_layout) or any(stride != 1 for stride in op.strides):
        return Declined("it has strides, or a result of another layout")
    along = dict(zip(str(layout)[1:], zip(blocks, padding, crops, strict=True), strict=False))
    if along.get("C", (1, (0, 0), (0, 0))) != (1, (0, 0), (0, 0)):
        return Declined("it takes channels apart, or pads them")
    axes, dims = [along.get(axis, (1, (0, 0), (0, 0))) for axis in op.spatial], len(op.spatial)
    widths = [
        op.padding[side * dims + d] * block + widths[side] - crop[side]
        for side in (0, 1)
        for d, (block, widths, crop) in enumerate(axes)
    ]
    if any(width < 0 for width in widths):
        return Declined("it cuts off more than it pads")
    dilation = tuple(n * block for n, (block, *_) in zip(op.dilation, axes, strict=True))
    return op.with_attributes(dilation=dilation, padding=tuple(widths))
