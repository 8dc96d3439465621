"""Patterns of Relay's language as objects, and what they match.

A match is a dictionary: by pattern, the nodes that it matched.  A pattern object that stands twice matches one node.
Matching backtracks, so it finds what Relay's greedy search finds, and more where an alternative is ambiguous.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

from minitvm.errors import PassError
from minitvm.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from minitvm.ir.op import Op
from minitvm.ir.structural import structural_equal
from minitvm.ir.types import Type
from minitvm.scopes.nodes import Apply, If, Let
from minitvm.scopes.normal import is_choice, opened
from minitvm.tvm.relay.op import OpName
from minitvm.tvm.relay.reach import Reach

Found: TypeAlias = "dict[DFPattern, tuple[Any, ...]]"
COMMUTATIVE = ("add", "multiply")


class DFPattern:
    """A pattern.  Called with patterns it is a call of what it stands for; ``a | b`` is either."""

    def parts(self) -> tuple[DFPattern, ...]:
        """The patterns that it is made of, in the order of Relay's walk."""
        return ()

    def ways(self, node: Any, found: Found, reach: Reach) -> Iterator[Found]:
        """The matches of a node, this pattern not entered yet."""
        raise NotImplementedError(type(self).__name__)

    def matches(self, node: Any, found: Found, reach: Reach) -> Iterator[Found]:
        """The matches of a node that agree with what was found."""
        if self in found:
            if is_same(found[self][0], node):
                yield found
            return
        for new in self.ways(node, found, reach):
            yield {**new, self: (*new.get(self, ()), node)}

    def find(self, expr: Any, reach: Reach | None = None) -> Found | None:
        """The first match of an expression; ``None`` where there is none."""
        return next(self.matches(expr, {}, reach or Reach(expr)), None)

    def match(self, expr: Any) -> bool:
        return self.find(expr) is not None

    def every_part(self) -> list[DFPattern]:
        """All patterns below this one and itself, once, parts first."""
        order: list[DFPattern] = []
        seen: set[DFPattern] = {self}
        stack = [(self, iter(self.parts()))]
        while stack:
            pattern, rest = stack[-1]
            below = next((part for part in rest if part not in seen), None)
            if below is None:
                order.append(pattern)
                stack.pop()
            else:
                seen.add(below)
                stack.append((below, iter(below.parts())))
        return order

    def __call__(self, *args: DFPattern | None) -> CallPattern:
        """A call with such arguments; ``None`` alone stands for any number of them."""
        given = [arg for arg in args if arg is not None]
        if len(given) < len(args) != 1:
            raise PassError("None among the arguments of a pattern", hint="wildcard(); None alone is any arguments")
        return CallPattern(self, given if len(given) == len(args) else None)

    def __or__(self, other: DFPattern) -> AltPattern:
        return AltPattern(self, other)

    def __add__(self, other: DFPattern) -> CallPattern:
        return _operator("add")(self, other)

    def __sub__(self, other: DFPattern) -> CallPattern:
        return _operator("subtract")(self, other)

    def __mul__(self, other: DFPattern) -> CallPattern:
        return _operator("multiply")(self, other)

    def __truediv__(self, other: DFPattern) -> CallPattern:
        return _operator("divide")(self, other)

    def has_attr(self, attrs: Mapping[str, Any]) -> DFPattern:
        """This one, where the operator, the call's operator or the function has such attributes."""
        found: DFPattern = _in("pattern_facts").AttrPattern(self, attrs)
        return found

    def has_type(self, ttype: Type) -> DFPattern:
        """This one, of a type."""
        found: DFPattern = _in("pattern_facts").TypePattern(self, ttype)
        return found

    def has_dtype(self, dtype: str) -> DFPattern:
        """This one, of a dtype."""
        found: DFPattern = _in("pattern_facts").DataTypePattern(self, dtype)
        return found

    def has_shape(self, shape: Sequence[int]) -> DFPattern:
        """This one, of a shape."""
        found: DFPattern = _in("pattern_facts").ShapePattern(self, shape)
        return found

    def optional(self, option_constructor: Callable[[DFPattern], DFPattern]) -> DFPattern:
        """``option_constructor(this)``, or this."""
        return self | option_constructor(self)

    def partition(
        self, expr: Expr, attrs: Mapping[str, Any] | None = None, check: Callable[[Expr], bool] = lambda _: True
    ) -> Expr:
        """What matches, outermost first, becomes calls of functions marked ``PartitionedFromPattern``."""
        found: Expr = _in("pattern_groups").partitioned(self, expr, attrs or {}, check)
        return found

    def rewrite(self, callback: Any, expr: Expr) -> Expr:
        """``expr`` after a callback."""
        found: Expr = callback.rewrite(expr)
        return found

    def dominates(self, parent: DFPattern, path: DFPattern | None = None) -> DominatorPattern:
        """``dominates(parent, path, self)``."""
        return DominatorPattern(parent, path or WildcardPattern(), self)


def _in(file: str) -> Any:
    """A file beside, which needs patterns."""
    return importlib.import_module(f"minitvm.tvm.relay.{file}")


def is_same(a: Any, b: Any) -> bool:
    """True for one node; operators are the same by name."""
    names = [one.name for one in (a, b) if isinstance(one, (Op, OpName))]
    return a is b or (len(names) == 2 and names[0] == names[1])


class ExprPattern(DFPattern):
    """An expression of this structure, or an operator."""

    def __init__(self, expr: Any) -> None:
        self.expr = expr

    def ways(self, node: Any, found: Found, reach: Reach) -> Iterator[Found]:
        whole = isinstance(self.expr, Expr) and isinstance(node, Expr)
        if structural_equal(self.expr, node) if whole else is_same(self.expr, node):
            yield found

    def __repr__(self) -> str:
        named = isinstance(self.expr, OpName)
        return f"ExprPattern({f'Op({self.expr.name})' if named else self.expr})"


class VarPattern(DFPattern):
    """A variable, of that name where one is given."""

    def __init__(self, name_hint: str = "") -> None:
        self.name = name_hint

    def ways(self, node: Any, found: Found, reach: Reach) -> Iterator[Found]:
        if isinstance(node, Var) and self.name in ("", node.name):
            yield found

    def __repr__(self) -> str:
        return f"VarPattern({self.name})"


class ConstantPattern(DFPattern):
    """Matches any constant."""

    def ways(self, node: Any, found: Found, reach: Reach) -> Iterator[Found]:
        if isinstance(node, Constant):
            yield found

    def __repr__(self) -> str:
        return "ConstantPattern()"


class WildcardPattern(DFPattern):
    """Anything; or what it was redirected to, by which a pattern holds itself."""

    to: DFPattern | None = None

    def parts(self) -> tuple[DFPattern, ...]:
        return () if self.to is None else (self.to,)

    def redirect_to(self, pat: DFPattern) -> None:
        """Stands for another pattern from now on, which may be one that this is a part of."""
        self.to = pat

    def ways(self, node: Any, found: Found, reach: Reach) -> Iterator[Found]:
        return iter((found,)) if self.to is None else self.to.matches(node, found, reach)

    def __repr__(self) -> str:
        return "*"


class CallPattern(DFPattern):
    """A call of what ``op`` matches; ``args`` of ``None`` are any."""

    def __init__(self, op: DFPattern, args: Sequence[DFPattern] | None) -> None:
        self.op, self.args = op, None if args is None else [*args]

    def parts(self) -> tuple[DFPattern, ...]:
        return self.op, *(self.args or ())

    @cached_property
    def named(self) -> str:
        """The operator's name; none where other than an operator is called."""
        return self.op.expr.name if isinstance(self.op, ExprPattern) and isinstance(self.op.expr, OpName) else ""

    def ways(self, node: Any, found: Found, reach: Reach) -> Iterator[Found]:
        if not isinstance(node, (Call, Apply)) or is_choice(node):
            return
        for below in self.op.matches(node.op, found, reach):
            if self.args is None:
                yield below
                continue
            yield from in_turn(self.args, node.args, below, reach)
            if self.named in COMMUTATIVE:
                yield from in_turn(self.args[::-1], node.args, below, reach)
        for other in self._associated(node):
            yield from other.ways(node, found, reach)

    def _associated(self, node: Call | Apply) -> Iterator[CallPattern]:
        """``a * b / c`` as ``a * (b / c)``, and the other way round."""
        called = getattr(node.op, "name", "")
        if {self.named, called} != {"multiply", "divide"} or self.args is None:
            return
        inner = [arg for arg in node.args if isinstance(arg, Call) and getattr(arg.op, "name", "") == self.named]
        for i, arg in enumerate(self.args if inner else ()):
            if not isinstance(arg, CallPattern) or arg.named != called or arg.args is None:
                continue
            if self.named == "multiply":
                yield CallPattern(arg.op, [CallPattern(self.op, [arg.args[0], self.args[1 - i]]), arg.args[1]])
            elif i == 0:
                for a, b in (arg.args, arg.args[::-1]):
                    yield CallPattern(arg.op, [b, CallPattern(self.op, [a, self.args[1]])])

    def __repr__(self) -> str:
        return f"CallPatternNode({self.op}, {self.args})"


def in_turn(patterns: Sequence[DFPattern], nodes: Sequence[Any], found: Found, reach: Reach) -> Iterator[Found]:
    """The matches of nodes by as many patterns, one after another."""
    if len(patterns) != len(nodes):
        return
    if not patterns:
        yield found
        return
    for first in patterns[0].matches(nodes[0], found, reach):
        yield from in_turn(patterns[1:], nodes[1:], first, reach)


class FunctionPattern(DFPattern):
    """A function; ``params`` of ``None`` are any."""

    def __init__(self, params: Sequence[DFPattern] | None, body: DFPattern) -> None:
        self.params, self.body = None if params is None else [*params], body

    def parts(self) -> tuple[DFPattern, ...]:
        return *(self.params or ()), self.body

    def ways(self, node: Any, found: Found, reach: Reach) -> Iterator[Found]:
        if isinstance(node, Function):
            params = [found] if self.params is None else in_turn(self.params, node.params, found, reach)
            for below in params:
                yield from self.body.matches(node.body, below, reach)


class LetPattern(DFPattern):
    """A ``let`` of such a variable, value and body."""

    def __init__(self, var: DFPattern, value: DFPattern, body: DFPattern) -> None:
        self.var, self.value, self.body = var, value, body

    def parts(self) -> tuple[DFPattern, ...]:
        return self.var, self.value, self.body

    def ways(self, node: Any, found: Found, reach: Reach) -> Iterator[Found]:
        if isinstance(node, Let):
            yield from in_turn(self.parts(), node.parts, found, reach)


class IfPattern(DFPattern):
    """A choice of such a condition and branches, which are over what they use, not functions of it."""

    def __init__(self, cond: DFPattern, true_branch: DFPattern, false_branch: DFPattern) -> None:
        self.cond, self.true_branch, self.false_branch = cond, true_branch, false_branch

    def parts(self) -> tuple[DFPattern, ...]:
        return self.cond, self.true_branch, self.false_branch

    def ways(self, node: Any, found: Found, reach: Reach) -> Iterator[Found]:
        choice = opened(node) if isinstance(node, Expr) and is_choice(node) else node
        if isinstance(choice, If):
            yield from in_turn(self.parts(), choice.parts, found, reach)


class TuplePattern(DFPattern):
    """A tuple of such fields; of ``None`` any."""

    def __init__(self, fields: Sequence[DFPattern] | None) -> None:
        self.fields = None if fields is None else [*fields]

    def parts(self) -> tuple[DFPattern, ...]:
        return tuple(self.fields or ())

    def ways(self, node: Any, found: Found, reach: Reach) -> Iterator[Found]:
        if isinstance(node, Tuple):
            yield from [found] if self.fields is None else in_turn(self.fields, node.fields, found, reach)


class TupleGetItemPattern(DFPattern):
    """A field of a tuple, any where no index is given."""

    def __init__(self, tuple_value: DFPattern, index: int | None = None) -> None:
        self.tuple, self.index = tuple_value, -1 if index is None else index

    def parts(self) -> tuple[DFPattern, ...]:
        return (self.tuple,)

    def ways(self, node: Any, found: Found, reach: Reach) -> Iterator[Found]:
        if isinstance(node, TupleGetItem) and self.index in (-1, node.index):
            yield from self.tuple.matches(node.tuple, found, reach)


class AltPattern(DFPattern):
    """One of two."""

    def __init__(self, left: DFPattern, right: DFPattern) -> None:
        self.left, self.right = left, right

    def parts(self) -> tuple[DFPattern, ...]:
        return self.left, self.right

    def ways(self, node: Any, found: Found, reach: Reach) -> Iterator[Found]:
        yield from self.left.matches(node, found, reach)
        yield from self.right.matches(node, found, reach)

    def __repr__(self) -> str:
        return f"AltPattern({self.left} | {self.right})"


class DominatorPattern(DFPattern):
    """``child``, from which every way up leads over ``path`` to one ``parent``."""

    def __init__(self, parent: DFPattern, path: DFPattern, child: DFPattern) -> None:
        self.parent, self.path, self.child = parent, path, child

    def parts(self) -> tuple[DFPattern, ...]:
        return self.parent, self.path, self.child

    def ways(self, node: Any, found: Found, reach: Reach) -> Iterator[Found]:
        for below in self.child.matches(node, found, reach):
            way = self._up(node, below, reach)
            if way is not None and self.parent in way and reach.dominates(node, way[self.parent][0]):
                yield way

    def _up(self, node: Any, found: Found, reach: Reach) -> Found | None:
        """What lies above a node, by the path, up to the parent; ``None`` where a way leads elsewhere."""
        above = reach.operands(node)
        for one in above:
            parent = next(self.parent.matches(one, found, reach), None)
            if parent is not None:
                found = parent
                continue
            step = next(self.path.matches(one, {}, reach), None)  # each node of the path anew
            if step is None:
                return None
            if isinstance(one, Constant):
                continue
            merged = {**found, **{part: (*found.get(part, ()), *nodes) for part, nodes in step.items()}}
            way = self._up(one, merged, reach)
            if way is None:
                return None
            found = way
        return found if above else None


def _operator(name: str) -> ExprPattern:
    return ExprPattern(OpName(name))
