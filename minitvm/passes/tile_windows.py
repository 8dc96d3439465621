"""TileWindows: windows over sizes that only a run knows slide over tiles, which are images of known size."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from minitvm.ir.dims import Dim, SymbolicDim, ceil_divide, falls_short, sampled
from minitvm.ir.expr import Call, Constant, Expr, Function, Module
from minitvm.ir.op import Op, identity_of
from minitvm.ir.ops._shape import dilated
from minitvm.ir.ops.checks import StopFusion
from minitvm.ir.ops.elemwise import Add, CastTo, Maximum, Minimum
from minitvm.ir.ops.nn_conv import Conv2d
from minitvm.ir.ops.nn_conv_transpose import ConvTranspose
from minitvm.ir.ops.nn_dense import BatchMatmul, BiasAdd
from minitvm.ir.ops.nn_pool import AvgPool, MaxPool
from minitvm.ir.ops.nn_tiles import ExtractTiles, MergeTiles
from minitvm.ir.ops.slicing import StridedSlice
from minitvm.ir.ops.tensor import Extent, Iota
from minitvm.ir.ops.transform import Reshape
from minitvm.ir.types import TensorType, is_named
from minitvm.ir.visitor import as_function, calls, rewrite
from minitvm.passes.alter_op_layout import AlterOpLayout
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.places import in_pipeline
from minitvm.passes.simplify_expr import SEARCH

LONGEST = {1: 256, 2: 32}
"""Results along an axis of a tile, by how many axes are cut."""
WINDOWS = (Conv2d, ConvTranspose, MaxPool, AvgPool)


@in_pipeline(before="CanonicalizeCast", kind="llvm", given="layouts")
@in_pipeline(after="AlterOpLayout", kind="llvm")  # what has stayed in NCHW
@dataclass(repr=False, eq=False)
class TileWindows(FunctionPass, opt_level=0):
    """Convolutions and pools of open height or width read tiles with a halo, and work on each as on an image of its
    own; what is element by element, and convolutions of one tap, stay among the tiles.  Convolutions over blocks of
    channels need no tiles, unless they are Winograd's.

    Tiles are as large as divides the sizes of the first run.  Results that hang over the image are computed and left
    out: they read what lies beyond it, which is padding.
    """

    layouts: AlterOpLayout | None = None
    """The pass behind, in whose layouts some convolutions slide over images as they are."""
    needs = WINDOWS
    only_open = True

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        if not any(slides_over_tiles(call) for call in calls(function.body)):
            return function

        def visit(old: Expr, new: Expr) -> Expr:
            if not isinstance(new, Call) or not isinstance(new.op, Op):
                return new
            op = new.op
            if slides_over_tiles(new):
                if self.layouts is not None and not isinstance(op, ConvTranspose) and self._stays(new, self.layouts):
                    return new
                return _of_tiles_as_they_are(new) or _as_product(new) or _over_tiles(new)
            return _biased_product(new) or _among_tiles(new, new.op)

        return as_function(rewrite(function, visit))

    def _stays(self, call: Call, layouts: AlterOpLayout) -> bool:
        """True if only layouts decide: of a pool, which needs no tiles where channels are in blocks."""
        op = call.op
        return not isinstance(op, Conv2d) or layouts.slides_over_pixels(call, _tiled(call, op).args[0])


def slides_over_tiles(call: Call) -> bool:
    """True if it is a window over open pixels that the pass takes: of images in NCHW, of sizes that have names."""
    op = call.op
    if not isinstance(op, WINDOWS) or op.spatial != "HW" or not _is_open(call.tensor_type.shape[2:]):
        return False
    if not is_named(call.args[0].type):
        return False
    if isinstance(op, (Conv2d, ConvTranspose)):
        return op.data_layout == "NCHW" and isinstance(call.args[0].tensor_type.shape[1], int)
    return op.layout == "NCHW" and (isinstance(op, MaxPool) or {*op.dilation} == {1})


def _is_open(extents: tuple[Dim, ...]) -> bool:
    return any(isinstance(extent, SymbolicDim) for extent in extents)


def _over_tiles(call: Call) -> Expr:
    op = call.op
    if isinstance(op, ConvTranspose):
        return _transposed(call, op)
    assert isinstance(op, (Conv2d, MaxPool, AvgPool))
    if not isinstance(op, AvgPool) or not _counts_differ(call, op):
        return _tiled(call, op)
    means = _tiled(call, op.with_attributes(count_include_pad=True))
    taps = Constant(np.asarray(math.prod(op.pool_size), call.dtype))
    return means * taps / (_counted(call, op, 0) * _counted(call, op, 1))


def _counts_differ(call: Call, op: AvgPool) -> bool:
    """True if windows divide by other numbers than that of their taps: where padding does not count, or where one
    hangs over the end, as over an image that is smaller."""
    if op.ceil_mode or (any(op.padding) and not op.count_include_pad):
        return True
    places = zip(call.args[0].tensor_type.shape[2:], op.padding[:2], op.padding[2:], op.pool_size, strict=True)
    return any(falls_short(extent + before + after, taps) for extent, before, after, taps in places)


def _counted(call: Call, op: AvgPool, axis: int) -> Expr:
    """How many pixels, and places of padding that counts, each window meets along an axis: (height, 1) or
    (1, width)."""
    extent, result = (node.tensor_type.shape[2 + axis] for node in (call.args[0], call))
    before, after = (op.padding[axis + side] * op.count_include_pad for side in (0, 2))
    first = Call(Iota(result), ()) * op.strides[axis] - op.padding[axis]
    last = Call(Minimum(), (first + op.pool_size[axis], Call(Extent(extent + after), ())))
    met = last - Call(Maximum(), (first, Constant(np.asarray(-before))))
    shape = (result, 1) if axis == 0 else (1, result)
    return Call(CastTo(call.dtype), (Call(Reshape(shape), (met,)),))


@dataclass(frozen=True)
class _Cut:
    """How an axis of results is cut: into ``count`` tiles of ``length``."""

    count: Dim
    length: int

    @staticmethod
    def of(extent: Dim, longest: int) -> _Cut:
        """As few tiles as possible, of one size, where the extent is that of the first run."""
        if isinstance(extent, int):
            return _Cut(1, extent)
        known = sampled(extent)
        length = -(-known // -(-known // longest)) if known else longest
        return _Cut(ceil_divide(extent, length), length)


def _cuts(extents: tuple[Dim, ...]) -> list[_Cut]:
    longest = LONGEST[sum(isinstance(extent, SymbolicDim) for extent in extents)]
    return [_Cut.of(extent, longest) for extent in extents]


def _tiled(call: Call, op: Conv2d | MaxPool | AvgPool) -> Call:
    """The call over tiles of its image, put together."""
    data, size = call.args[0], call.tensor_type.shape[2:]
    taps = call.args[1].tensor_type.static_shape[2:] if isinstance(op, Conv2d) else op.pool_size
    cuts = _cuts(size)
    runs = tuple((cut.length - 1) * stride + 1 for cut, stride in zip(cuts, op.strides, strict=True))
    apart = tuple(map(min, op.dilation, runs))  # taps further apart than that leave out what lies between them
    gaps = tuple(map(operator.sub, op.dilation, apart))
    spans = tuple(run - 1 + dilated(k, d) for run, k, d in zip(runs, taps, apart, strict=True))
    steps = tuple(cut.length * stride for cut, stride in zip(cuts, op.strides, strict=True))
    counts = tuple(cut.count for cut in cuts)
    fill = float(identity_of("max", data.tensor_type.dtype).value) if isinstance(op, MaxPool) else 0.0
    after = op.padding[2:] if isinstance(op, Conv2d) else ()
    whole = Call(StopFusion(), (data,), span=data.span) if _is_reshaped(data) else data
    images = Call(ExtractTiles(spans, steps, op.padding[:2], counts, fill, runs, gaps, after), (whole,), span=call.span)
    plain = op.with_attributes(padding=(0, 0, 0, 0), dilation=apart)
    made = Call(plain, (images, *call.args[1:]), span=call.span)
    return Call(MergeTiles(size, data.tensor_type.shape[0], counts), (made,), span=call.span)


def _is_reshaped(data: Expr) -> bool:
    """True of what is element by element behind a reshape, as group norms are: tiles would divide by open sizes for
    each pixel, and compute those of a halo again."""
    pending, seen = [data], 0
    while pending and seen < SEARCH:
        node = pending.pop()
        seen += 1
        if not isinstance(node, Call) or not isinstance(node.op, Op):
            continue
        if isinstance(node.op, Reshape):
            return True
        if node.op.keeps_positions(len(node.args)):
            pending += [arg for arg in node.args if arg.type == data.type]
    return False


def _transposed(call: Call, op: ConvTranspose) -> Expr:
    """A transposed convolution over tiles of its image, with the pixels around each that reach into its results; behind
    the last, strides that are longer than the window leave output padding."""
    data, size = call.args[0], call.tensor_type.shape[2:]
    taps = call.args[1].tensor_type.static_shape[2:]
    cuts = _cuts(tuple(ceil_divide(extent, stride) for extent, stride in zip(size, op.strides, strict=True)))
    spans = [dilated(k, d) for k, d in zip(taps, op.dilation, strict=True)]
    pads = list(op.padding[:2])
    reach = [-(-max(span - 1, pad) // s) for span, pad, s in zip(spans, pads, op.strides, strict=True)]
    pixels = tuple(cut.length + 2 * more for cut, more in zip(cuts, reach, strict=True))
    lengths, counts = tuple(cut.length for cut in cuts), tuple(cut.count for cut in cuts)
    images = Call(ExtractTiles(pixels, lengths, tuple(reach), counts), (data,), span=call.span)
    begin = tuple(more * s + pad for more, s, pad in zip(reach, op.strides, pads, strict=True))
    end = tuple(b + length * s for b, length, s in zip(begin, lengths, op.strides, strict=True))
    made = [(count - 1) * s + span for count, s, span in zip(pixels, op.strides, spans, strict=True)]
    behind = tuple(max(0, e - m) for e, m in zip(end, made, strict=True))
    plain = op.with_attributes(padding=(0, 0, 0, 0), output_padding=behind)
    whole = Call(plain, (images, *call.args[1:]), span=call.span)
    part = Call(StridedSlice(begin, end, axes=(2, 3)), (whole,), span=call.span)
    return Call(MergeTiles(size, data.tensor_type.shape[0], counts), (part,), span=call.span)


def _is_merged(expr: Expr) -> TypeGuard[Call]:
    return isinstance(expr, Call) and isinstance(expr.op, MergeTiles)


def _of_tiles_as_they_are(call: Call) -> Expr | None:
    """A convolution of single pixels, which needs no halo."""
    data, op = call.args[0], call.op
    if not _is_merged(data) or not _is_of_pixels(call):
        return None
    return Call(data.op, (Call(op, (data.args[0], *call.args[1:]), span=call.span),), span=data.span)


def _is_of_pixels(call: Call) -> bool:
    op = call.op
    if not isinstance(op, Conv2d) or any(op.padding):
        return False
    return {*op.strides, *call.args[1].tensor_type.static_shape[2:]} == {1}


def _as_product(call: Call) -> Expr | None:
    """A convolution of single pixels that no layout takes: for each image a product, whose columns are its pixels."""
    op, data = call.op, call.args[0]
    if not isinstance(op, Conv2d) or not _is_of_pixels(call) or op.groups != 1 or call.dtype != data.tensor_type.dtype:
        return None
    weight = call.args[1]
    n, c, h, w = data.tensor_type.shape
    rows = Call(Reshape((n, c, h * w)), (data,), span=call.span)
    filters = Call(Reshape((1, *weight.tensor_type.shape[:2])), (weight,), span=call.span)
    product = Call(BatchMatmul(transpose_b=False), (filters, rows), span=call.span)
    return Call(Reshape(call.tensor_type.shape), (product,), span=call.span)


def _biased_product(call: Call) -> Expr | None:
    """The bias before pixels are rows and columns again, so that it is added where the sums are."""
    apart = call.args[0] if isinstance(call.op, BiasAdd) and call.op.axis == 1 else None
    if not isinstance(apart, Call) or not isinstance(apart.op, Reshape) or apart.tensor_type.rank != 4:
        return None
    product = apart.args[0]
    if not isinstance(product, Call) or not isinstance(product.op, BatchMatmul):
        return None
    bias = Call(Reshape((product.tensor_type.shape[1], 1)), (call.args[1],), span=call.span)
    return Call(apart.op, (Call(Add(), (product, bias), span=call.span),), span=apart.span)


def _among_tiles(call: Call, op: Op) -> Expr:
    """An operator of single elements whose operands are tiles, put together alike, or the same for all pixels."""
    leader = next((arg for arg in call.args if _is_merged(arg)), None)
    if leader is None or not isinstance(call.type, TensorType) or call.type.shape != leader.tensor_type.shape:
        return call
    if isinstance(op, BiasAdd) and op.axis == 1 and isinstance(call.args[1], Constant):
        return Call(leader.op, (Call(op, (leader.args[0], call.args[1]), span=call.span),), span=leader.span)
    if not op.keeps_positions(len(call.args)):
        return call
    operands: list[Expr] = []
    for arg in call.args:
        if _is_merged(arg) and arg.op == leader.op:
            operands.append(arg.args[0])
        elif isinstance(arg, Constant) and _is_of_channels(arg.tensor_type):
            operands.append(arg)
        else:
            return call
    return Call(leader.op, (Call(op, operands, span=call.span),), span=leader.span)


def _is_of_channels(type_: TensorType) -> bool:
    """True if it is the same for all images and pixels."""
    own = (1,) * (4 - type_.rank) + type_.shape
    return (own[0], *own[2:]) == (1, 1, 1)
