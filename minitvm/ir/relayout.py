"""How operators work on tensors in other layouts (Relay's ``FInferCorrectLayout``): what ``Op.relayout`` is asked.

It is asked only where an argument is held in a new layout, and answers with a :class:`Placement`, or with
:class:`Declined` and the reason: then its arguments come as they were.  Element-wise operators follow by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from minitvm.ir.decision import Declined
from minitvm.ir.dims import Undecided
from minitvm.ir.expr import Call, Expr
from minitvm.ir.layout import Layout
from minitvm.ir.op import Fusion, Op
from minitvm.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Move:
    """A value that the original program holds as ``old`` and the new one as ``new``.

    As a wish for an operand of lower rank: its dimensions are those of ``old`` from ``at`` on (by default the last
    ones, as in broadcasting); the others are added with extent 1.
    """

    old: Layout
    new: Layout
    at: int | None = None

    @staticmethod
    def of(old: str, new: str) -> Move:
        return Move(Layout(old), Layout(new))

    def __str__(self) -> str:
        return f"{self.old} -> {self.new}"

    @property
    def blocks(self) -> dict[str, int]:
        """The axes that ``new`` splits, and into blocks of which size."""
        return {axis: self.new.factor(axis) for axis in self.new.primal if axis.lower() in self.new}

    def divides(self, shape: tuple[int, ...]) -> bool:
        """True if a tensor of this shape consists of whole blocks."""
        return all(shape[self.old.index(axis)] % size == 0 for axis, size in self.blocks.items() if size > 1)

    def axis(self, index: int) -> str:
        """The name of a dimension of the original tensor, counted from either end."""
        return self.old.axes[index].name

    def index(self, index: int) -> int:
        """The place where dimension ``index`` of the original tensor is now (its outer part, where it is split)."""
        return self.new.index(self.axis(index))

    def places(self, letters: str) -> tuple[int, ...]:
        """The dimensions of the new tensor that belong to some axes."""
        return tuple(d for d, axis in enumerate(self.new.axes) if axis.primal in letters)

    def without(self, letters: str) -> Move:
        """The same of a tensor that lacks some axes."""
        return Move(self.old.without(letters), self.new.without(letters))


Carry: TypeAlias = "Move | tuple[Carry, ...] | None"
"""How a value is held: moved, as it was (``None``), or field by field."""

Build: TypeAlias = Callable[[Sequence[Expr]], Expr]


@dataclass(frozen=True, slots=True)
class Placement:
    """A call in another layout: how it wants its arguments, how its result is held, and how to build it."""

    args: tuple[Carry, ...]
    result: Carry
    build: Build
    what: str = ""
    """In words, where the result's layout does not say it."""


@dataclass(frozen=True, slots=True)
class Site:
    """A call as a rule sees it: original types, and how the new program holds the arguments."""

    call: Call
    op: Op
    carries: tuple[Carry, ...]

    def type(self, index: int) -> TensorType:
        """The original type of an argument that is a tensor."""
        return self.call.args[index].tensor_type

    @property
    def data(self) -> Move:
        """The layout in which the first argument is held, where it is one tensor that has moved."""
        found = self.carries[0]
        assert isinstance(found, Move), f"{self.op} has no moved first argument"
        return found


def calling(op: Op) -> Build:
    """Build a plain call of ``op``."""
    return lambda args: Call(op, args)


def following(site: Site) -> Placement | Declined:
    """What the operator itself says, or what its fusion pattern does; what it cannot decide it declines."""
    op = site.op
    if any(map(_was_blocked, site.carries)) and not _knows_blocks(site):
        return Declined("the original is held in blocks, which it takes for axes of its own")
    try:
        answer: Placement | Declined | None = op.relayout(site)
    except Undecided as error:
        return Declined(str(error))
    if answer is not None:
        return answer
    if op.fusion is Fusion.ELEMWISE and len(site.carries) == 1 and "axis" not in op.attributes():
        return elementwise(site)
    if op.fusion is Fusion.BROADCAST and not op.attributes():
        return broadcast(site)
    return Declined(f"{op.name} has no layout rule")


def _was_blocked(carry: Carry) -> bool:
    if isinstance(carry, tuple):
        return any(map(_was_blocked, carry))
    return carry is not None and any(axis.block for axis in carry.old.axes)


def _knows_blocks(site: Site) -> bool:
    """True of an operator that sees single elements, or the layout of its operand; others count axes of the original,
    of which two may be one axis of the moved tensor."""
    if {"layout", "src_layout"} & site.op.attributes().keys():
        return True
    alike = {argument.type for argument in site.call.args} == {site.call.type}
    return alike and site.op.fusion in (Fusion.ELEMWISE, Fusion.BROADCAST) and not site.op.attributes()


def data_moved(site: Site, op: Op) -> Placement:
    """``op`` on the first argument as it is held, and others as they were."""
    return Placement((site.data, *(None for _ in site.carries[1:])), site.data, calling(op))


def elementwise(site: Site) -> Placement:
    """Works on any layout."""
    return Placement((site.data,), site.data, calling(site.op))


def broadcast(site: Site) -> Placement | Declined:
    """All operands follow the first one that has moved and is as large as the result where it is split."""
    result = site.call.tensor_type
    leader = next((m for i, m in enumerate(site.carries) if _leads(m, site.type(i), result)), None)
    if leader is None:
        return Declined("no moved operand has the result's rank and channels")
    assert isinstance(leader, Move)
    arguments = tuple(beside(site.type(i), leader) for i in range(len(site.carries)))
    return Placement(arguments, leader, calling(site.op))


def _leads(move: Carry, operand: TensorType, result: TensorType) -> bool:
    if not isinstance(move, Move) or operand.rank != result.rank:
        return False
    places = [move.old.index(axis) for axis in move.blocks]
    return all(operand.shape[d] == result.shape[d] for d in places)


def beside(operand: TensorType, leader: Move) -> Move | None:
    """The way in which an operand must be held next to ``leader``; an axis along which it is broadcast gets blocks of
    1."""
    if operand.rank == 0:
        return None
    extents = dict(zip(reversed(leader.old.primal), reversed(operand.shape), strict=False))
    return Move(leader.old, with_ones(leader.new, "".join(a for a in leader.blocks if extents.get(a, 1) == 1)))


def with_ones(layout: Layout, letters: str) -> Layout:
    """``layout`` with blocks of 1 along some axes, which have extent 1."""
    return Layout("".join(f"1{a.name}" if a.block and a.primal in letters else str(a) for a in layout.axes))


def vector_along(move: Move, axis: int) -> Move:
    """A vector along ``axis`` beside data held as ``move``: every other axis has extent 1, and so have its blocks."""
    others = "".join(letter for letter in move.blocks if letter != move.axis(axis))
    return Move(move.old, with_ones(move.new, others), at=axis % move.old.rank)


def along_axis(site: Site, axis: int, what: str) -> Placement | Declined:
    """The placement of an operator with an attribute ``axis``: wherever that is now, unless it is split; others as they
    were."""
    if not isinstance(site.carries[0], Move):
        return Declined("its first argument has not moved")
    if site.data.axis(axis) in site.data.blocks:
        return Declined(f"{what} {site.data.axis(axis)}, which is split")
    return data_moved(site, site.op.with_attributes(axis=site.data.index(axis)))


def whole_planes(site: Site, layout: str, spatial: str) -> Placement | Declined:
    """The placement of an operator with a ``layout`` of its own that works on whole planes: any with its spatial axes
    unsplit."""
    move = site.data
    if str(move.old) != layout:
        return Declined(f"its layout is {layout}, the argument is held as {move}")
    if set(spatial) & move.blocks.keys():
        return Declined("the planes are split")
    return data_moved(site, site.op.with_attributes(layout=str(move.new)))


def same_tensor(args: Sequence[Expr]) -> Expr:
    """The tensor stays, only what the original calls it changes."""
    return args[0]
