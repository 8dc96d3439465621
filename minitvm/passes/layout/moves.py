"""The vocabulary of the layout passes: moves from one layout to another, what a rule is asked and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Expr
from minitvm.ir.layout import Layout
from minitvm.ir.op import Op
from minitvm.ir.types import Dim, TensorType


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

    @property
    def renames(self) -> bool:
        """True where ``new`` only orders the dimensions of ``old`` differently."""
        return not self.blocks and self.old.compatible(self.new)

    def axis(self, index: int) -> str:
        """The name of a dimension of the original tensor, counted from either end."""
        return self.old.axes[index].name

    def index(self, index: int) -> int:
        """Where dimension ``index`` of the original tensor is now (its outer part, where it is split)."""
        return self.new.index(self.axis(index))


Carry: TypeAlias = "Move | tuple[Carry, ...] | None"
"""How a value is held: moved, as it was (``None``), or field by field."""

Build: TypeAlias = Callable[[Sequence[Expr]], Expr]


@dataclass(frozen=True, slots=True)
class Placement:
    """A call in another layout: how it wants its arguments, how its result is held, and how to build it."""

    args: tuple[Carry, ...]
    result: Carry
    build: Build


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
        """How the first argument is held, where it is one tensor that has moved."""
        found = self.carries[0]
        assert isinstance(found, Move), f"{self.op} has no moved first argument"
        return found


Rule: TypeAlias = Callable[[Site], "Placement | Declined"]

RULES: dict[str, Rule] = {}
"""How each operator carries layouts, by operator name; a user's operator adds its own with :func:`layout_rule`."""


def layout_rule(*op_names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_names, rule))
        return rule

    return register


def calling(op: Op) -> Build:
    """Build a plain call of ``op``."""
    return lambda args: Call(op, args)


def storage_order(layout: Layout, extents: Mapping[str, Dim]) -> list[tuple[str, int]]:
    """How elements lie in memory: axes from slow to fast, extents of 1 left out, neighbours of one axis joined.
    Two layouts of equal order hold the same bytes."""
    order: list[tuple[str, int]] = []
    for axis, extent in zip(layout.axes, layout.shape_of(extents), strict=True):
        assert extent is not None, "layouts are changed where shapes are known"
        if order and order[-1][0] == axis.primal:
            order[-1] = (axis.primal, order[-1][1] * extent)
        elif extent != 1:
            order.append((axis.primal, extent))
    return order
