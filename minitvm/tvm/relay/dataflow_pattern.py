"""Relay's pattern language, over ``minitvm.ir.pattern``: ``is_op("nn.conv2d")(wildcard(), is_constant())``.

A pattern object that stands twice must match the same node.  ``node_map[pattern]`` is the list of what it matched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from minitvm.errors import IRError, PassError, did_you_mean
from minitvm.ir import pattern as p
from minitvm.ir.expr import Call, Expr, Function, Module, Tuple, TupleGetItem, Var
from minitvm.ir.node import merge_spans
from minitvm.ir.op import OPS, Op
from minitvm.ir.structural import structural_equal
from minitvm.ir.types import TensorType, Type, accepts
from minitvm.ir.visitor import children, post_order, rebuild_over, substitute, use_counts
from minitvm.ir.visitor import rewrite as rewrite_nodes
from minitvm.scopes.nodes import If, Let
from minitvm.tvm import lacking
from minitvm.tvm.error import NoSuchNameError
from minitvm.tvm.relay.operators import signatures
from minitvm.tvm.relay.scoped import ScopedPattern

_numbers = count()
MOST_ROUNDS, MOST_GROWTH = 100, 1000
"""Of rewriting until nothing changes: rounds, and nodes more than there were at first."""


class DFPattern:
    """A pattern; ``ours`` is what matches."""

    def __init__(self, build: Callable[[str], p.Pattern]) -> None:
        self.name = f"p{next(_numbers)}"
        self.ours = build(self.name)
        self.parts: tuple[DFPattern, ...] = ()
        self.ops: tuple[str, ...] = ()
        self.holds: tuple[Callable[[Expr], bool], ...] = ()

    def of(self, *parts: DFPattern) -> DFPattern:
        self.parts = parts
        return self

    def __call__(self, *args: DFPattern | None) -> DFPattern:
        """A call of the operators that this stands for (of any, where it stands for none) with such arguments; ``None``
        alone stands for any number of them."""
        given = [arg for arg in args if arg is not None]
        if len(given) < len(args) != 1:
            raise PassError("None among the arguments of a pattern", hint="wildcard(); None alone is any arguments")
        ops, operands, holds, free = self.ops, tuple(arg.ours for arg in given), self.holds, len(given) < len(args)
        return DFPattern(lambda name: _CallOf(name, ops=ops, args=operands, callee=holds, free=free)).of(*given)

    def __or__(self, other: DFPattern) -> DFPattern:
        found = DFPattern(lambda name: p.either(self.ours, other.ours, name=name)).of(self, other)
        found.ops = self.ops + other.ops
        return found

    def __add__(self, other: DFPattern) -> DFPattern:
        return is_op("add")(self, other)

    def __sub__(self, other: DFPattern) -> DFPattern:
        return is_op("subtract")(self, other)

    def __mul__(self, other: DFPattern) -> DFPattern:
        return is_op("multiply")(self, other)

    def __truediv__(self, other: DFPattern) -> DFPattern:
        return is_op("divide")(self, other)

    def where(self, holds: Callable[[Expr], bool]) -> DFPattern:
        """This one, of nodes for which something holds."""
        found = DFPattern(lambda name: replace(p.either(self.ours, name=name), where=holds)).of(self)
        found.ops, found.holds = self.ops, (*self.holds, holds)
        return found

    def has_attr(self, attrs: Mapping[str, Any]) -> DFPattern:
        """The pattern for calls whose attributes (of functions whose attributes) have these values."""
        if self.ops:  # of an operator, for the calls of it
            raise IRError("has_attr stands behind the call", hint='is_op("nn.conv2d")(x, w).has_attr({...})')
        return self.where(lambda node: _has_attributes(node, attrs))

    def has_type(self, type_: Type) -> DFPattern:
        return self.where(lambda node: node.checked_type is not None and accepts(type_, node.checked_type))

    def has_dtype(self, dtype: str) -> DFPattern:
        return self.where(lambda node: isinstance(node.checked_type, TensorType) and node.dtype == dtype)

    def has_shape(self, shape: Sequence[int]) -> DFPattern:
        return self.where(lambda node: isinstance(node.checked_type, TensorType) and node.shape == tuple(shape))

    def optional(self, wrap: Callable[[DFPattern], DFPattern]) -> DFPattern:
        """This, or ``wrap(this)``."""
        return wrap(self) | self

    def dominates(self, parent: DFPattern, path: DFPattern | None = None) -> DFPattern:
        """``dominates(parent, path, self)``."""
        return dominates(parent, path or wildcard(), self)

    def match(self, expr: Expr) -> bool:
        return p.match(self.ours, expr) is not None

    def matched(self, expr: Expr) -> dict[DFPattern, list[Expr]] | None:
        """What each part of the pattern matched, or ``None``."""
        found = p.match(self.ours, expr)
        if found is None:
            return None
        return {part: [found[part.name]] for part in self.all_parts() if found.get(part.name) is not None}

    def all_parts(self) -> Iterator[DFPattern]:
        yield self
        for part in self.parts:
            yield from part.all_parts()

    def rewrite(self, callback: DFPatternCallback, expr: Expr) -> Expr:
        return rewrite(callback, expr)

    def partition(
        self, expr: Expr, attrs: Mapping[str, Any] | None = None, check: Callable[[Expr], bool] = lambda _: True
    ) -> Expr:
        """What matches, outermost first, becomes calls of functions marked ``PartitionedFromPattern``."""
        return _Partition(self, dict(attrs or {}), check, use_counts(expr)).of(expr)


# --- matchers that ``ir.pattern`` has not -----------------------------------------------------------------------


ANYTHING = p.value()


@dataclass(frozen=True, eq=False)
class _CallOf(p.Pattern):
    """A call of one of ``ops``, or of any operator."""

    ops: tuple[str, ...] = ()
    args: tuple[p.Pattern, ...] = ()
    callee: tuple[Callable[[Expr], bool], ...] = ()
    """What holds of the function that is called; of an operator, which is no expression, none of it does."""
    free: bool = False
    """True where there may be any arguments."""
    kind = Call

    def parts(self) -> tuple[p.Pattern, ...]:
        return self.args

    def accepts_kind(self, expr: Expr) -> bool:
        if not isinstance(expr, Call) or (not self.free and len(expr.args) != len(self.args)):
            return False
        if isinstance(expr.op, Op):
            return not self.callee and (not self.ops or expr.op.name in self.ops)
        return bool(self.callee) and not self.ops and all(holds(expr.op) for holds in self.callee)

    def accepts(self, expr: Expr) -> bool:
        return self.accepts_kind(expr)

    def orders(self, expr: Expr) -> Iterator[tuple[tuple[p.Pattern, ...], tuple[Expr, ...]]]:
        assert isinstance(expr, Call)
        yield self.args, () if self.free else expr.args
        if not self.free and isinstance(expr.op, Op) and expr.op.commutative and len(expr.args) == 2:
            yield self.args, expr.args[::-1]


@dataclass(frozen=True, eq=False)
class _Dominated(p.Pattern):
    """``child``, from which every way up to ``parent`` leads over ``path`` alone."""

    child: p.Pattern = ANYTHING
    path: p.Pattern = ANYTHING
    parent: p.Pattern = ANYTHING

    def parts(self) -> tuple[p.Pattern, ...]:
        return self.child, self.parent

    def matches(self, expr: Expr, captures: p.Captures, uses: p.Uses) -> Iterator[p.Captures]:
        for found in self.child.matches(expr, captures, uses):
            above = found if self.name is None else {**found, self.name: expr}
            for node in self._parents(expr, uses):
                yield from self.parent.matches(node, above, uses)

    def _parents(self, expr: Expr, uses: p.Uses) -> list[Expr]:
        """The one node that the way up ends at; none where ways end at several, or leave the path."""
        found: dict[Expr, None] = {}
        pending = [*children(expr)]
        while pending:
            node = pending.pop()
            if any(True for _ in self.parent.matches(node, {}, uses)):
                found[node] = None
            elif any(True for _ in self.path.matches(node, {}, uses)):
                pending.extend(children(node))
        return list(found) if len(found) == 1 else []


# --- patterns ---------------------------------------------------------------------------------------------------


def wildcard() -> DFPattern:
    """A pattern for anything."""
    return DFPattern(p.value)


def is_op(op_name: str) -> DFPattern:
    """An operator; called with patterns, a call of it.  :class:`NoSuchNameError` for a name that no operator has."""
    if op_name not in OPS and op_name not in signatures():
        raise NoSuchNameError(f"there is no operator {op_name!r}", hint=did_you_mean(op_name, OPS, str))
    found = DFPattern(lambda name: p.value(name, lambda _: False))
    found.ops = (op_name,)
    return found


def is_constant() -> DFPattern:
    return DFPattern(p.const)


def is_var(name: str = "") -> DFPattern:
    """A variable, of that name where one is given."""
    return DFPattern(lambda own: p.value(own, lambda node: isinstance(node, Var) and name in ("", node.name)))


def is_expr(expr: Expr) -> DFPattern:
    """An expression of this structure."""
    return DFPattern(lambda name: p.value(name, lambda node: structural_equal(node, expr)))


def is_tuple(fields: Sequence[DFPattern] | None = None) -> DFPattern:
    """A tuple of such fields, or any."""
    if fields is None:
        return DFPattern(lambda name: p.value(name, lambda node: isinstance(node, Tuple)))
    return DFPattern(lambda name: p.tuple_of(*(field.ours for field in fields), name=name)).of(*fields)


def is_tuple_get_item(tuple_value: DFPattern, index: int | None = None) -> DFPattern:
    return DFPattern(lambda name: p.get_item(tuple_value.ours, index, name)).of(tuple_value)


def is_let(var: DFPattern, value: DFPattern, body: DFPattern) -> DFPattern:
    """A ``let`` of such a variable, value and body."""
    return _of_parts(Let, var, value, body)


def is_if(cond: DFPattern, true_branch: DFPattern, false_branch: DFPattern) -> DFPattern:
    """A choice of such a condition and branches, which are over what they use, not functions of it."""
    return _of_parts(If, cond, true_branch, false_branch)


def _of_parts(kind: type[Expr], *given: DFPattern) -> DFPattern:
    return DFPattern(lambda name: ScopedPattern(name, of=tuple(one.ours for one in given), node=kind)).of(*given)


def dominates(parent: DFPattern, path: DFPattern, child: DFPattern) -> DFPattern:
    """``child`` below ``parent``, with nothing but ``path`` between them on the ways that lead there."""
    made = DFPattern(lambda name: _Dominated(name, child=child.ours, path=path.ours, parent=parent.ours))
    return made.of(child, parent)


def has_attr(attrs: Mapping[str, Any], pattern: DFPattern | None = None) -> DFPattern:
    return (pattern or wildcard()).has_attr(attrs)


def has_type(type_: Type, pattern: DFPattern | None = None) -> DFPattern:
    return (pattern or wildcard()).has_type(type_)


def has_dtype(dtype: str, pattern: DFPattern | None = None) -> DFPattern:
    return (pattern or wildcard()).has_dtype(dtype)


def has_shape(shape: Sequence[int], pattern: DFPattern | None = None) -> DFPattern:
    return (pattern or wildcard()).has_shape(shape)


def _has_attributes(node: Expr, attrs: Mapping[str, Any]) -> bool:
    def plain(value: Any) -> Any:
        return tuple(map(plain, value)) if isinstance(value, (list, tuple)) else value

    if isinstance(node, Function):
        return all(node.attrs.get(name) == value for name, value in attrs.items())
    found = node.op if isinstance(node, Call) else None
    return all(hasattr(found, name) and plain(getattr(found, name)) == plain(value) for name, value in attrs.items())


# --- rewriting --------------------------------------------------------------------------------------------------


class DFPatternCallback:
    """Subclass it: set ``self.pattern``, and say in ``callback`` what a match becomes."""

    pattern: DFPattern

    def __init__(self, require_type: bool = False, rewrite_once: bool = False) -> None:
        """Types are always known; ``rewrite_once`` goes over the graph once, not until nothing changes."""
        self.require_type, self.rewrite_once = require_type, rewrite_once

    def callback(self, pre: Expr, post: Expr, node_map: Mapping[DFPattern, list[Expr]]) -> Expr:
        """``pre`` is what matched, ``post`` the same over rewritten operands."""
        raise NotImplementedError(type(self).__name__)

    def rewrite(self, expr: Expr) -> Expr:
        return rewrite(self, expr)


def rewrite(callbacks: DFPatternCallback | Sequence[DFPatternCallback], expr: Expr, mod: Module | None = None) -> Expr:
    """``expr`` after the callbacks, one after another until none of them changes anything; :class:`PassError` where
    they never stop."""
    order = [callbacks] if isinstance(callbacks, DFPatternCallback) else list(callbacks)
    most = len(post_order(expr)) + MOST_GROWTH
    for _ in range(MOST_ROUNDS):
        before = expr
        for callback in order:
            expr = rewrite_nodes(expr, partial(_replaced, callback))
        order = [callback for callback in order if not callback.rewrite_once]
        if not order or expr is before or structural_equal(expr, before):
            return expr
        if len(post_order(expr)) > most:
            break
    raise _endless(order[0])


def _endless(callback: DFPatternCallback) -> PassError:
    return PassError(
        f"{type(callback).__name__} does not come to an end: it matches what it makes itself",
        hint="rewrite_once=True goes over the graph once",
    )


def _replaced(callback: DFPatternCallback, old: Expr, new: Expr) -> Expr:
    found = callback.pattern.matched(new)
    return new if found is None else callback.callback(old, new, found)


# --- partitioning -----------------------------------------------------------------------------------------------


@dataclass
class _Partition:
    pattern: DFPattern
    attrs: dict[str, Any]
    check: Callable[[Expr], bool]
    uses: Mapping[Expr, int]

    def of(self, root: Expr) -> Expr:
        groups = self._groups(root)
        done: dict[Expr, Expr] = {}
        for node in post_order(root):
            new = rebuild_over(node, done)
            done[node] = self._call(groups[node], node, done) if node in groups else new
        return done[root]

    def _groups(self, root: Expr) -> dict[Expr, set[Expr]]:
        """The nodes inside each match, by its outermost."""
        groups: dict[Expr, set[Expr]] = {}
        taken: set[Expr] = set()
        for node in reversed(post_order(root)):
            found = None if node in taken else self.pattern.matched(node)
            matched = {n for nodes in (found or {}).values() for n in nodes}
            inside: set[Expr] = {n for n in matched if isinstance(n, (Call, Tuple, TupleGetItem))}
            inside -= self._outside(found or {})
            if found is None or inside & taken or not self._is_closed(node, inside) or not self.check(node):
                continue
            groups[node] = inside
            taken |= inside
        return groups

    def _outside(self, found: Mapping[DFPattern, list[Expr]]) -> set[Expr]:
        """What wildcards matched: arguments, whatever they are."""
        leaves = [part for part in found if not part.parts and not part.ops]
        return {node for part in leaves for node in found[part]}

    def _is_closed(self, root: Expr, inside: set[Expr]) -> bool:
        """True if nothing but the match reads what is inside of it."""
        within = [child for node in inside for child in children(node)]
        return all(node is root or within.count(node) == self.uses[node] for node in inside)

    def _call(self, inside: set[Expr], root: Expr, done: Mapping[Expr, Expr]) -> Call:
        order = [node for node in post_order(root) if node in inside]
        below = dict.fromkeys(child for node in order for child in children(node) if child not in inside)
        arguments = [node for node in below if not self.pattern_constant(node)]
        params: dict[Expr, Expr] = {n: Var(f"FunctionVar_0_{i}", n.checked_type) for i, n in enumerate(arguments)}
        names = "".join(f"{node.op.name}_" for node in order if isinstance(node, Call) and isinstance(node.op, Op))
        variables = [param for param in params.values() if isinstance(param, Var)]
        body = substitute(root, params)
        made = Function(variables, body, {"PartitionedFromPattern": names, **self.attrs}, span=merge_spans(root.span))
        return Call(made, [done[node] for node in arguments], span=root.span)

    @staticmethod
    def pattern_constant(node: Expr) -> bool:
        """Constants stay inside."""
        return p.match(p.const(), node) is not None


def __getattr__(name: str) -> Any:
    return lacking.attribute("relay.dataflow_pattern", name)
