"""The engine of AlterOpLayout and ConvertLayout: move calls to other layouts, and tensors only where they must.

A *proposal* names calls that should run in another layout.  Every other call is asked, through ``Op.relayout``,
whether it can work on what its producers now hold; if not, it gets its arguments back as they were.  A tensor is
moved once per wanted layout, whoever wants it.  Results of the function are as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial

from minitvm.errors import PassError, user_code
from minitvm.ir.decision import Declined, decide, name_of
from minitvm.ir.dims import Dim
from minitvm.ir.expr import Call, Expr, Function, Tuple, TupleGetItem, span_scope
from minitvm.ir.layout import Layout
from minitvm.ir.node import describe_call
from minitvm.ir.op import Op
from minitvm.ir.ops.transform import ExpandDims, LayoutTransform, Reshape
from minitvm.ir.relayout import Carry, Move, Placement, Site, following
from minitvm.ir.types import TensorType, tensor_fields
from minitvm.ir.visitor import as_function, children, post_order, rebuild, simplify_projection

Propose = Callable[[Site], "Placement | Declined | None"]
"""A call's new layout, or why it has none; ``None`` where the operator is not one's concern."""


@dataclass(frozen=True, slots=True)
class Value:
    """What stands for a node of the original graph, and how it is held."""

    expr: Expr
    carry: Carry


@dataclass
class LayoutRewriter:
    by: str
    """The pass that decisions are made for."""
    propose: Propose
    values: dict[Expr, Value] = field(default_factory=dict)
    moved: dict[tuple[Expr, Layout, Layout], Expr] = field(default_factory=dict)
    expanded: dict[tuple[Expr, Layout, int | None], Expr] = field(default_factory=dict)

    def run(self, function: Function) -> Function:
        """``function`` with the same meaning, parameters and result; itself where nothing was proposed."""
        for node in post_order(function.body):
            with span_scope(node.span):
                self.values[node] = self._visit(node)
        return as_function(rebuild(function, (*function.params, self._as(self.values[function.body], None))))

    def _visit(self, node: Expr) -> Value:
        if isinstance(node, Call):
            return self._visit_call(node)
        below = [self.values[child] for child in children(node)]
        if isinstance(node, TupleGetItem):
            (source,) = below
            carry = source.carry[node.index] if isinstance(source.carry, tuple) else None
            return Value(simplify_projection(rebuild(node, [source.expr])), carry)
        return Value(rebuild(node, [v.expr for v in below]), tuple(v.carry for v in below) if below else None)

    def _visit_call(self, call: Call) -> Value:
        placement = self._placement(call)
        if placement is None:
            return Value(rebuild(call, [self._as(self.values[arg], None) for arg in children(call)]), None)
        operands = [self._as(self.values[a], want) for a, want in zip(call.args, placement.args, strict=True)]
        with user_code(placement.build, f"layout rule of {name_of(call)}", partial(describe_call, call)):
            result = placement.build(operands)
        _check(call, result, placement.result)
        return Value(result, placement.result)

    def _placement(self, call: Call) -> Placement | None:
        if not isinstance(call.op, Op) or not _is_static(call):
            return None
        site = Site(call, call.op, tuple(self.values[arg].carry for arg in call.args))
        answer = self.propose(site)
        if not isinstance(answer, Placement) and any(_is_moved(c) for c in site.carries):
            with user_code(type(call.op), f"layout rule of {name_of(call)}", partial(describe_call, call)):
                own = following(site)
            answer = answer if isinstance(own, Declined) and answer is not None else own
        if isinstance(answer, Placement):
            decide(self.by, call, f"its result is held as {_describe(answer.result)}")
            return answer
        if answer is not None:
            decide(self.by, call, answer)
        return None

    def _as(self, value: Value, want: Carry) -> Expr:
        """The value held as wanted; a tuple field by field."""
        if isinstance(want, tuple) or isinstance(value.carry, tuple):
            return self._tuple_as(value, want)
        return self._tensor_as(value.expr, value.carry, want)

    def _tuple_as(self, value: Value, want: Carry) -> Expr:
        count = len(want) if isinstance(want, tuple) else len(value.carry)  # type: ignore[arg-type]
        have, wish = (c if isinstance(c, tuple) else (None,) * count for c in (value.carry, want))
        if have == wish or not any(map(_is_moved, (*have, *wish))):
            return value.expr
        fields = value.expr.fields if isinstance(value.expr, Tuple) else tuple(value.expr)
        parts = [self._as(Value(f, h), w) for f, h, w in zip(fields, have, wish, strict=True)]
        return rebuild(value.expr, parts) if isinstance(value.expr, Tuple) else Tuple(parts)

    def _tensor_as(self, expr: Expr, have: Move | None, want: Move | None) -> Expr:
        if have is not None and want is not None and have.old == want.old:
            return self._move(expr, have.new, want.new)
        if have is not None:
            expr = self._move(expr, have.new, have.old)
        return expr if want is None else self._move(self._expand(expr, want), want.old, want.new)

    def _expand(self, expr: Expr, want: Move) -> Expr:
        """``expr`` with the dimensions of ``want.old`` that it lacks, of extent 1."""
        rank, missing = len(expr.shape), want.old.rank - len(expr.shape)
        if missing == 0:
            return expr
        key = (expr, want.old, want.at)
        if key not in self.expanded:
            before = missing if want.at is None else want.at
            new = Call(ExpandDims(0, before), (expr,)) if before else expr
            if missing > before:
                new = Call(ExpandDims(before + rank, missing - before), (new,))
            self.expanded[key] = new
        return self.expanded[key]

    def _move(self, expr: Expr, src: Layout, dst: Layout) -> Expr:
        if src == dst:
            return expr
        key = (expr, src, dst)
        if key not in self.moved:
            self.moved[key] = Call(_transform(expr.shape, src, dst), (expr,), span=expr.span or None)
        return self.moved[key]


@lru_cache(maxsize=1 << 12)
def _transform(shape: tuple[int, ...], src: Layout, dst: Layout) -> Op:
    """The operator that moves a tensor; a reshape where the bytes stay where they are."""
    extents = src.primal_shape(shape)
    if storage_order(src, extents) == storage_order(dst, extents):
        return Reshape(TensorType(dst.shape_of(extents)).static_shape)
    return LayoutTransform(str(src), str(dst))


def _describe(carry: Carry) -> str:
    if isinstance(carry, tuple):
        return ", ".join(map(_describe, carry))
    return "it was" if carry is None else str(carry.new)


def _is_moved(carry: Carry) -> bool:
    return any(map(_is_moved, carry)) if isinstance(carry, tuple) else carry is not None


def _is_static(call: Call) -> bool:
    return call.type.is_static and all(arg.type.is_static for arg in call.args)


def _check(call: Call, result: Expr, carry: Carry) -> None:
    """A rule that builds another tensor than it says is a bug in the rule; say so here, not ten calls later."""
    parts = carry if isinstance(carry, tuple) else (carry,)
    for before, after, move in zip(tensor_fields(call.type), tensor_fields(result.type), parts, strict=True):
        expected = before
        if isinstance(move, Move):
            expected = TensorType(move.new.shape_from(move.old, before.shape), before.dtype)
        if after != expected:
            message = f"the layout rule of {name_of(call)} built {after} instead of {expected}"
            raise PassError(message, where=describe_call(call))


def storage_order(layout: Layout, extents: Mapping[str, Dim]) -> list[tuple[str, int]]:
    """How elements lie in memory: axes from slow to fast, extents of 1 left out, neighbours of one axis joined.
    Two layouts of equal order hold the same bytes."""
    order: list[tuple[str, int]] = []
    for axis, extent in zip(layout.axes, layout.shape_of(extents), strict=True):
        assert isinstance(extent, int), "layouts are changed where shapes are known"
        if order and order[-1][0] == axis.primal:
            order[-1] = (axis.primal, order[-1][1] * extent)
        elif extent != 1:
            order.append((axis.primal, extent))
    return order
