"""How operators carry layouts (Relay's ``FInferCorrectLayout``): an open table, one short rule per kind of operator.

A rule is asked only where an argument is held in a new layout.  It answers with a :class:`Placement`, or with
:class:`Declined` and the reason; operators without a rule get their arguments back as they were.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.layout import Layout
from minitvm.ir.op import OPS, Fusion, Op
from minitvm.ir.ops._shape import normalize_axes
from minitvm.ir.types import TensorType, TupleType
from minitvm.passes.layout.moves import RULES, Carry, Move, Placement, Rule, Site, calling, layout_rule


def rule_for(call: Call) -> Rule:
    """The rule of a call's operator; elementwise and plain broadcasting operators need not be listed."""
    op = call.op
    assert isinstance(op, Op)
    if op.name in RULES:
        return RULES[op.name]
    if op.fusion is Fusion.ELEMWISE and len(call.args) == 1 and "axis" not in op.attributes():
        return elementwise
    if op.fusion is Fusion.BROADCAST and not op.attributes():
        return broadcast
    return lambda site: Declined(f"{site.op.name} has no layout rule")


@layout_rule("annotation.stop_fusion")
def elementwise(site: Site) -> Placement | Declined:
    """Works on any layout."""
    return Placement((site.data,), site.data, calling(site.op))


# ---- several operands -------------------------------------------------------------------------------------------


def broadcast(site: Site) -> Placement | Declined:
    """All operands follow the first one that has moved and is as large as the result where it is split."""
    result = site.call.tensor_type
    leader = next((m for i, m in enumerate(site.carries) if _leads(m, site.type(i), result)), None)
    if leader is None:
        return Declined("no moved operand has the result's rank and channels")
    assert isinstance(leader, Move)
    wishes = tuple(_follow(site.type(i), leader) for i in range(len(site.carries)))
    return Placement(wishes, leader, calling(site.op))


def _leads(move: Carry, operand: TensorType, result: TensorType) -> bool:
    if not isinstance(move, Move) or operand.rank != result.rank:
        return False
    places = [move.old.index(axis) for axis in move.blocks]
    return all(operand.shape[d] == result.shape[d] for d in places)


def _follow(operand: TensorType, leader: Move) -> Move | None:
    """How an operand must be held next to ``leader``; an axis along which it is broadcast gets blocks of 1."""
    if operand.rank == 0:
        return None
    extents = dict(zip(reversed(leader.old.primal), reversed(operand.static_shape)))  # noqa: B905
    return Move(leader.old, _ones(leader.new, "".join(a for a in leader.blocks if extents.get(a, 1) == 1)))


def _vector(move: Move, axis: int) -> Move:
    """A vector along ``axis`` beside data held as ``move``: every other axis has extent 1."""
    return Move(move.old, move.new, at=axis % move.old.rank)


@layout_rule("nn.bias_add")
def bias_add(site: Site) -> Placement | Declined:
    """With the channels in blocks, the bias is an operand of a broadcasting add."""
    axis: int = site.op.axis  # type: ignore[attr-defined]
    if not site.data.blocks:
        return Placement((site.data, None), site.data, calling(site.op.with_attributes(axis=site.data.index(axis))))
    return Placement((site.data, _vector(site.data, axis)), site.data, calling(OPS["add"]()))


@layout_rule("nn.prelu")
def prelu(site: Site) -> Placement | Declined:
    """With the channels in blocks, ``max(x, 0) + alpha * min(x, 0)`` with alpha broadcast."""
    axis: int = site.op.axis  # type: ignore[attr-defined]
    if not site.data.blocks:
        return Placement((site.data, None), site.data, calling(site.op.with_attributes(axis=site.data.index(axis))))
    if site.type(1).size == 1:
        return Declined("one slope for all channels")

    def build(args: Sequence[Expr]) -> Expr:
        x, alpha = args
        zero = Constant(np.zeros((), x.dtype))
        negative = Call(OPS["multiply"](), (alpha, Call(OPS["minimum"](), (x, zero))))
        return Call(OPS["add"](), (Call(OPS["maximum"](), (x, zero)), negative))

    return Placement((site.data, _vector(site.data, axis)), site.data, build)


@layout_rule("qnn.quantize", "qnn.dequantize")
def quantize(site: Site) -> Placement | Declined:
    """Scale and zero point for all channels, or for each along an axis that is not split."""
    if not isinstance(site.carries[0], Move):
        return Declined("its first argument has not moved")
    wishes = (site.data, *(None for _ in site.carries[1:]))
    if all(site.type(i).rank == 0 for i in range(1, len(site.carries))):
        return Placement(wishes, site.data, calling(site.op))
    axis: int = site.op.axis  # type: ignore[attr-defined]
    if site.data.axis(axis) in site.data.blocks:
        return Declined(f"its scales lie along {site.data.axis(axis)}, which is split")
    return Placement(wishes, site.data, calling(site.op.with_attributes(axis=site.data.index(axis))))


@layout_rule("nn.batch_norm")
def batch_norm(site: Site) -> Placement | Declined:
    axis: int = site.op.axis  # type: ignore[attr-defined]
    if not isinstance(site.carries[0], Move) or site.data.blocks:
        return Declined("batch_norm needs its channels on one axis")
    op = site.op.with_attributes(axis=site.data.index(axis))
    rest = (None,) * (len(site.carries) - 1)
    return Placement((site.data, *rest), (site.data, None, None), calling(op))


@layout_rule("concatenate")
def concatenate(site: Site) -> Placement | Declined:
    """All operands follow the first that has moved and whose blocks divide each of them."""
    carries, data = site.carries[0], site.call.args[0].type
    assert isinstance(data, TupleType) and isinstance(carries, tuple)
    leaders = [m for m in carries if isinstance(m, Move)]
    shapes = [field.static_shape for field in data.fields if isinstance(field, TensorType)]
    leader = next((m for m in leaders if all(_divides(m, shape) for shape in shapes)), None)
    if leader is None:
        return Declined(f"blocks of {leaders[0].new} do not divide every operand")
    op = site.op.with_attributes(axis=leader.index(site.op.axis))  # type: ignore[attr-defined]
    return Placement(((leader,) * len(shapes),), leader, calling(op))


def _divides(move: Move, shape: tuple[int, ...]) -> bool:
    return all(shape[move.old.index(axis)] % size == 0 for axis, size in move.blocks.items())


# ---- cutting ----------------------------------------------------------------------------------------------------


@layout_rule("split")
def split(site: Site) -> Placement | Declined:
    """Cuts along a split axis must fall between blocks."""
    move, result = site.data, site.call.type
    assert isinstance(result, TupleType)
    axis: int = site.op.axis  # type: ignore[attr-defined]
    size = move.blocks.get(move.axis(axis), 1)
    cuts: int | tuple[int, ...] = site.op.indices_or_sections  # type: ignore[attr-defined]
    if any(field.static_shape[axis] % size for field in result.fields):  # type: ignore[union-attr]
        return Declined(f"a cut along {move.axis(axis)} falls inside a block of {size}")
    blocks = cuts if isinstance(cuts, int) else tuple(c // size for c in cuts)
    op = site.op.with_attributes(axis=move.index(axis), indices_or_sections=blocks)
    return Placement((move,), (move,) * len(result.fields), calling(op))


@layout_rule("strided_slice")
def strided_slice(site: Site) -> Placement | Declined:
    """Along a split axis, whole blocks, one after another."""
    move, shape = site.data, site.type(0).static_shape
    begin, end, stride = ([], [], [])  # type: tuple[list[int], list[int], list[int]]
    for d, kept in enumerate(_kept(site.op, site.type(0))):
        size = move.blocks.get(move.axis(d), 1)
        if size > 1 and (kept.step != 1 or kept.start % size or len(kept) % size):
            return Declined(f"a slice along {move.axis(d)} does not consist of whole blocks of {size}")
        begin.append(kept.start // size)
        end.append(_end(kept, shape[d]) // size if kept.step > 0 else kept.start - len(kept) * -kept.step)
        stride.append(kept.step)
    if min(stride) < 0:
        return Declined("a slice runs backwards")
    places = tuple(move.index(d) for d in range(len(shape)))
    op = site.op.with_attributes(
        begin=tuple(begin), end=tuple(end), strides=tuple(stride), axes=places, slice_mode="end"
    )
    return Placement((move,), move, calling(op))


def _end(kept: range, extent: int) -> int:
    return min(kept.start + len(kept) * kept.step, extent) if len(kept) else kept.start


def _kept(op: Op, data: TensorType) -> list[range]:
    """The indices that a strided_slice keeps along each axis."""
    slices: dict[int, slice] = op._slices(data.rank)  # type: ignore[attr-defined]
    return [range(*slices.get(d, slice(None)).indices(extent)) for d, extent in enumerate(data.static_shape)]


# ---- windows, images, padding -----------------------------------------------------------------------------------


@layout_rule(
    "nn.max_pool2d",
    "nn.avg_pool2d",
    "nn.global_max_pool2d",
    "nn.global_avg_pool2d",
    "nn.adaptive_max_pool2d",
    "nn.adaptive_avg_pool2d",
    "image.resize2d",
    "nn.upsampling",
)
def spatial(site: Site) -> Placement | Declined:
    """Operators with a ``layout`` of their own that work on whole planes: any layout with H and W unsplit."""
    layout: str = site.op.layout  # type: ignore[attr-defined]
    move = site.data
    if str(move.old) != layout:
        return Declined(f"its layout is {layout}, the argument is held as {move}")
    if {"H", "W"} & move.blocks.keys():
        return Declined("the planes are split")
    wish = (move, *(None for _ in site.carries[1:]))
    return Placement(wish, move, calling(site.op.with_attributes(layout=str(move.new))))


@layout_rule("nn.pad")
def pad(site: Site) -> Placement | Declined:
    """Axes that are not padded may be split."""
    move = site.data
    widths: tuple[tuple[int, int], ...] = site.op.pad_width  # type: ignore[attr-defined]
    by_axis = dict(zip(move.old.primal, widths, strict=True))
    split_and_padded = [a for a in move.blocks if any(by_axis[a])]
    if split_and_padded:
        return Declined(f"{split_and_padded[0]} is padded and split into blocks")
    op = site.op.with_attributes(pad_width=tuple(by_axis.get(a.name, (0, 0)) for a in move.new.axes))
    return Placement((move, *(None for _ in site.carries[1:])), move, calling(op))


# ---- reductions, softmax ----------------------------------------------------------------------------------------


@layout_rule("sum", "mean", "max", "min", "prod", "all", "any", "variance")
def reduce(site: Site) -> Placement | Declined:
    """Reduces the same axes; over a split one, both its parts.  A second argument (variance's mean) follows."""
    if not isinstance(site.carries[0], Move):
        return Declined("its first argument has not moved")
    move, rank = site.data, site.type(0).rank
    wishes = (move, *(_follow(site.type(i), move) for i in range(1, len(site.carries))))
    letters = "".join(move.axis(d) for d in site.op.axes(rank))  # type: ignore[attr-defined]
    places = tuple(d for d, axis in enumerate(move.new.axes) if axis.primal in letters)
    build = calling(site.op.with_attributes(axis=places, exclude=False))
    if len(letters) == rank:
        return Placement(wishes, None, build) if not site.op.keepdims else Declined("nothing but ones is left")  # type: ignore[attr-defined]
    if site.op.keepdims:  # type: ignore[attr-defined]
        return Placement(wishes, Move(move.old, _ones(move.new, letters)), build)
    return Placement(wishes, Move(move.old.without(letters), move.new.without(letters)), build)


def _ones(layout: Layout, letters: str) -> Layout:
    """``layout`` with blocks of 1 along some axes, which have extent 1."""
    return Layout("".join(f"1{a.name}" if a.block and a.primal in letters else str(a) for a in layout.axes))


@layout_rule("nn.softmax", "nn.log_softmax")
def softmax(site: Site) -> Placement | Declined:
    axis: int = site.op.axis  # type: ignore[attr-defined]
    if site.data.axis(axis) in site.data.blocks:
        return Declined(f"it runs over {site.data.axis(axis)}, which is split")
    return Placement((site.data,), site.data, calling(site.op.with_attributes(axis=site.data.index(axis))))


@layout_rule("nn.lrn")
def lrn(site: Site) -> Placement | Declined:
    if site.data.blocks:
        return Declined("its window runs over channels, which are split")
    axis = site.data.index(site.op.axis)  # type: ignore[attr-defined]
    return Placement((site.data,), site.data, calling(site.op.with_attributes(axis=axis)))


# ---- moving dimensions: the tensor stays, only what the original calls it changes -------------------------------


def _same_tensor(args: Sequence[Expr]) -> Expr:
    return args[0]


@layout_rule("transpose")
def transpose(site: Site) -> Placement | Declined:
    """Disappears: whoever needs the transposed tensor makes it from the moved one in one step."""
    move = site.data
    order = site.op.axes or tuple(reversed(range(move.old.rank)))  # type: ignore[attr-defined]
    renamed = Layout("".join(move.axis(d) for d in order))
    return Placement((move,), Move(renamed, move.new), _same_tensor)


@layout_rule("layout_transform")
def layout_transform(site: Site) -> Placement | Declined:
    """Disappears as ``transpose`` does."""
    if site.op.src_layout != str(site.data.old):  # type: ignore[attr-defined]
        return Declined("it reads another layout")
    target = Layout(site.op.dst_layout)  # type: ignore[attr-defined]
    return Placement((site.data,), Move(target, site.data.new), _same_tensor)


@layout_rule("squeeze")
def squeeze(site: Site) -> Placement | Declined:
    """Drops the same axes of extent 1 (a split one has a block of 1)."""
    move, shape = site.data, site.type(0).static_shape
    given = site.op.axis  # type: ignore[attr-defined]
    dropped = (
        [d for d, n in enumerate(shape) if n == 1] if given is None else normalize_axes(site.op, given, len(shape))
    )
    letters = "".join(move.axis(d) for d in dropped)
    if len(letters) == move.old.rank:
        return Declined("nothing is left")
    places = tuple(d for d, axis in enumerate(move.new.axes) if axis.primal in letters)
    op = site.op.with_attributes(axis=places)
    return Placement((move,), Move(move.old.without(letters), move.new.without(letters)), calling(op))


FRESH_AXES = "NCHWDABEFGJKLMPQ"


@layout_rule("expand_dims")
def expand_dims(site: Site) -> Placement | Declined:
    """One new axis, in front of the same axis as before; the letter that NCHW lacks, so that images fit together."""
    move = site.data
    if site.op.num_newaxis != 1:  # type: ignore[attr-defined]
        return Declined("it adds several axes")
    at = site.op.axis % (move.old.rank + 1)  # type: ignore[attr-defined]
    fresh = next(letter for letter in FRESH_AXES if letter not in move.old)
    last = next((d for d, a in enumerate(move.new.axes) if a.block), move.new.rank)
    place = move.index(at) if at < move.old.rank else last
    old, new = ([str(a) for a in layout.axes] for layout in (move.old, move.new))
    old.insert(at, fresh)
    new.insert(place, fresh)
    return Placement((move,), Move.of("".join(old), "".join(new)), calling(site.op.with_attributes(axis=place)))
