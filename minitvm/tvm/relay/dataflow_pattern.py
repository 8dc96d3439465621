"""Relay's pattern language: ``is_op("nn.conv2d")(wildcard(), is_constant())``.

A pattern object that stands twice must match the same node.  ``node_map[pattern]`` is the list of what it matched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minitvm.errors import PassError, did_you_mean
from minitvm.ir.expr import Expr, Module
from minitvm.ir.op import OPS
from minitvm.ir.structural import structural_equal
from minitvm.ir.types import Type
from minitvm.ir.visitor import post_order
from minitvm.passes import InferType
from minitvm.tvm import lacking
from minitvm.tvm.error import NoSuchNameError
from minitvm.tvm.relay.op import OpName
from minitvm.tvm.relay.operators import signatures
from minitvm.tvm.relay.pattern_facts import AttrPattern, DataTypePattern, ShapePattern, TypePattern
from minitvm.tvm.relay.pattern_groups import Groups, partitioned
from minitvm.tvm.relay.patterns import (
    AltPattern,
    CallPattern,
    ConstantPattern,
    DFPattern,
    DominatorPattern,
    ExprPattern,
    FunctionPattern,
    IfPattern,
    LetPattern,
    TupleGetItemPattern,
    TuplePattern,
    VarPattern,
    WildcardPattern,
)

__all__ = ["AltPattern", "AttrPattern", "CallPattern", "ConstantPattern", "DFPattern", "DFPatternCallback"]
__all__ += ["DataTypePattern", "DominatorPattern", "ExprPattern", "FunctionPattern", "IfPattern", "LetPattern"]
__all__ += ["ShapePattern", "TupleGetItemPattern", "TuplePattern", "TypePattern", "VarPattern", "WildcardPattern"]
__all__ += ["dominates", "has_attr", "has_dtype", "has_shape", "has_type", "is_constant", "is_expr", "is_if", "is_let"]
__all__ += ["is_op", "is_tuple", "is_tuple_get_item", "is_var", "match", "partition", "rewrite", "wildcard"]

MOST_ROUNDS, MOST_GROWTH = 100, 1000
"""Of rewriting until nothing changes: rounds, and nodes more than there were at first."""


# --- patterns ---------------------------------------------------------------------------------------------------


def wildcard() -> WildcardPattern:
    """A pattern for anything."""
    return WildcardPattern()


def is_op(op_name: str) -> ExprPattern:
    """An operator; called with patterns, a call of it.  :class:`NoSuchNameError` for a name that no operator has."""
    if op_name not in OPS and op_name not in signatures():
        raise NoSuchNameError(f"there is no operator {op_name!r}", hint=did_you_mean(op_name, OPS, str))
    return ExprPattern(OpName(op_name))


def is_constant() -> ConstantPattern:
    return ConstantPattern()


def is_var(name: str = "") -> VarPattern:
    """A variable, of that name where one is given."""
    return VarPattern(name)


def is_expr(expr: Expr) -> ExprPattern:
    """An expression of this structure."""
    return ExprPattern(expr)


def is_tuple(fields: Sequence[DFPattern] | None = None) -> TuplePattern:
    """A tuple of such fields, or any."""
    return TuplePattern(fields)


def is_tuple_get_item(tuple_value: DFPattern, index: int | None = None) -> TupleGetItemPattern:
    """A field of a tuple, any where no index is given."""
    return TupleGetItemPattern(tuple_value, index)


def is_let(var: DFPattern, value: DFPattern, body: DFPattern) -> LetPattern:
    """A ``let`` of such a variable, value and body."""
    return LetPattern(var, value, body)


def is_if(cond: DFPattern, true_branch: DFPattern, false_branch: DFPattern) -> IfPattern:
    """A choice of such a condition and branches, which are over what they use, not functions of it."""
    return IfPattern(cond, true_branch, false_branch)


def dominates(parent: DFPattern, path: DFPattern, child: DFPattern) -> DominatorPattern:
    """``child`` below ``parent``, with nothing but ``path`` between them on the ways that lead there."""
    return DominatorPattern(parent, path, child)


def has_attr(attrs: Mapping[str, Any], pattern: DFPattern | None = None) -> AttrPattern:
    """What has such attributes."""
    return AttrPattern(pattern or wildcard(), attrs)


def has_type(ttype: Type, pattern: DFPattern | None = None) -> TypePattern:
    """What has that type."""
    return TypePattern(pattern or wildcard(), ttype)


def has_dtype(dtype: str, pattern: DFPattern | None = None) -> DataTypePattern:
    """What has that dtype."""
    return DataTypePattern(pattern or wildcard(), dtype)


def has_shape(shape: Sequence[int], pattern: DFPattern | None = None) -> ShapePattern:
    """What has that shape."""
    return ShapePattern(pattern or wildcard(), shape)


def match(pattern: DFPattern, expr: Expr) -> bool:
    """True if a pattern matches an expression."""
    return pattern.match(expr)


def partition(
    pattern: DFPattern,
    expr: Expr,
    attrs: Mapping[str, Any] | None = None,
    check: Callable[[Expr], bool] = lambda _: True,
) -> Expr:
    """What matches, outermost first, becomes calls of functions marked ``PartitionedFromPattern``."""
    return partitioned(pattern, expr, attrs or {}, check)


# --- rewriting --------------------------------------------------------------------------------------------------


class DFPatternCallback:
    """Subclass it: set ``self.pattern``, and say in ``callback`` what a match becomes."""

    pattern: DFPattern

    def __init__(self, require_type: bool = False, rewrite_once: bool = False) -> None:
        """``require_type`` has types inferred before each round; ``rewrite_once`` ends with the first round that
        changes something."""
        self.require_type, self.rewrite_once = require_type, rewrite_once

    def callback(self, pre: Expr, post: Expr, node_map: Mapping[DFPattern, list[Expr]]) -> Expr:
        """``pre`` is what matched, ``post`` the same over rewritten operands."""
        raise NotImplementedError(type(self).__name__)

    def rewrite(self, expr: Expr) -> Expr:
        """``expr`` after this callback."""
        return rewrite(self, expr)


def rewrite(callbacks: DFPatternCallback | Sequence[DFPatternCallback], expr: Expr, mod: Module | None = None) -> Expr:
    """``expr`` after the callbacks, one after another until none of them changes anything; :class:`PassError` where
    they never stop.

    As in Relay a match is left alone where an outer one has taken a part of it, and where something outside of it
    reads what is inside.
    """
    order = [callbacks] if isinstance(callbacks, DFPatternCallback) else list(callbacks)
    most = len(post_order(expr)) + MOST_GROWTH
    for _ in range(MOST_ROUNDS):
        before = expr
        for callback in [*order]:
            old, expr = expr, _rewritten(callback, expr, mod)
            if callback.rewrite_once and not (expr is old or structural_equal(expr, old)):
                order.remove(callback)
        if not order or expr is before or structural_equal(expr, before):
            return expr
        if len(post_order(expr)) > most:
            break
    raise _endless(order[0])


def _rewritten(callback: DFPatternCallback, expr: Expr, mod: Module | None) -> Expr:
    typed = _typed(expr, mod) if callback.require_type else expr
    return Groups(callback.pattern, typed).rewritten(callback.callback)


def _typed(expr: Expr, mod: Module | None) -> Expr:
    if expr.checked_type is not None:
        return expr
    module = InferType()(Module({**(mod.functions if mod else {}), **Module.from_expr(expr).functions}))
    return module.main if expr is Module.from_expr(expr).main else module.main.body


def _endless(callback: DFPatternCallback) -> PassError:
    return PassError(
        f"{type(callback).__name__} does not come to an end: it matches what it makes itself",
        hint="rewrite_once=True goes over the graph once",
    )


def __getattr__(name: str) -> Any:
    return lacking.attribute("relay.dataflow_pattern", name)
