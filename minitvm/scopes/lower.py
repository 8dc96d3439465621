"""Graphs of what has scopes, for a build: variables become what they stand for, calls of functions what these compute,
a function that calls itself at its end a native loop.

The program is run on nodes in place of numbers.  A choice whose condition is known takes its branch, so that recursion
over a number that is known ends by itself; any other recursion must be a loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from minitvm.errors import IRError, TypeInferenceError
from minitvm.ir.evaluate import folded, unfoldable
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var
from minitvm.ir.loop import dependency_order
from minitvm.ir.parser import choice
from minitvm.ir.types import FuncType, TensorType, Type, accepts
from minitvm.ir.visitor import rebuild, simplify_projection
from minitvm.scopes.check import check_module
from minitvm.scopes.infer import infer_module
from minitvm.scopes.loops import Again, Fork, Leaf, Tree, loop_of
from minitvm.scopes.names import named
from minitvm.scopes.nodes import Apply, Global, If, Let, is_plain_module

MOST_CALLS = 60
"""Calls inside each other that are put in place of themselves; a function that is called deeper is made a loop."""
SMALL = 64
"""Elements of a result that is computed at once where all operands are known."""


def as_graph(module: Module) -> Module:
    """The module as a build takes it: itself where it has no scopes, else one whose ``main`` is a graph.

    :class:`IRError` where scopes are wrong, and for recursion that is no loop.
    """
    if is_plain_module(module):
        return module
    check_module(module)
    return Module({"main": _Lowering(infer_module(named(module))).main()})


class Frame:
    """What variables stand for, and what nodes have become, inside of another frame."""

    def __init__(self, outer: Frame | None = None) -> None:
        self.outer = outer
        self.known: dict[Expr, Value] = {}

    def find(self, node: Expr) -> Value | None:
        frame: Frame | None = self
        while frame is not None:
            if node in frame.known:
                return frame.known[node]
            frame = frame.outer
        return None


@dataclass(frozen=True, eq=False)
class Closure:
    """A function, and what the variables around it stand for."""

    function: Function
    frame: Frame
    name: str

    def same(self, other: Value) -> bool:
        return isinstance(other, Closure) and other.function is self.function and other.frame is self.frame


@dataclass(frozen=True, eq=False)
class Chosen:
    """One of two values that are no tensors, by a condition."""

    condition: Expr
    then: Value
    orelse: Value


@dataclass(frozen=True, eq=False)
class Fields:
    """A tuple with functions in it."""

    values: tuple[Value, ...]


Value: TypeAlias = "Expr | Closure | Chosen | Fields"


class _Recursion(Exception):
    """A function calls itself where nobody knows whether it ends."""

    def __init__(self, closure: Closure) -> None:
        self.closure = closure


class _Lowering:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.globals: dict[str, Closure] = {}
        self.called: list[tuple[Closure, int]] = []
        """Calls that are under way, each with the choices that were open when it began."""
        self.open_choices = 0
        self.heads: list[Closure] = []
        self.tails: list[Closure] = []

    def main(self) -> Function:
        function = self.module.main
        for param in function.params:
            if isinstance(param.checked_type, FuncType):
                raise IRError(f"@main: %{param.name} is a function, which nobody can give", hint="call it in main")
        try:
            with self.calling(Closure(function, Frame(), "@main")):
                body = self.expr(self.value(function.body, Frame()), "@main")
        except _Recursion as found:
            raise _no_loop(found.closure) from None
        return Function(function.params, body, function.attrs, span=function.span)

    # --- values ---------------------------------------------------------------------------------------------

    def value(self, expr: Expr, frame: Frame) -> Value:
        expr = self.bound(expr, frame)
        for node in dependency_order((expr,), lambda n: () if frame.find(n) is not None else _operands(n)):
            if frame.find(node) is None:
                frame.known[node] = self.step(node, frame)
        found = frame.find(expr)
        assert found is not None
        return found

    def bound(self, expr: Expr, frame: Frame, is_last: bool = False) -> Expr:
        """The body behind ``let``, whose variables are known afterwards; what comes last, the value of a ``let`` that
        gives just that."""
        while isinstance(expr, Let):
            if is_last and expr.body is expr.var and not isinstance(expr.value, Function):
                expr = expr.value
                continue
            if isinstance(expr.value, Function):
                frame.known[expr.var] = Closure(expr.value, frame, f"%{expr.var.name}")
            else:
                frame.known[expr.var] = self.value(expr.value, frame)
            expr = expr.body
        return expr

    def step(self, node: Expr, frame: Frame) -> Value:
        """A node whose operands are known."""
        if isinstance(node, Let):
            return self.value(node, Frame(frame))
        if isinstance(node, Global):
            return self.named(node.name_hint)
        if isinstance(node, Function):
            return node if node.is_primitive else Closure(node, frame, node.attrs.get("name", "an inner function"))
        if isinstance(node, If):
            return self.chosen(node, frame)
        if isinstance(node, Apply) or (isinstance(node, Call) and _is_inner(node.op)):
            function, args = self.callee(node, frame)
            return self.call(function, args)
        return self.plain(node, frame)

    def callee(self, node: Apply | Call, frame: Frame) -> tuple[Value, list[Value]]:
        op: Any = node.op
        function = Closure(op, frame, "an inner function") if isinstance(node, Call) else self.known(op, frame)
        return function, [self.known(arg, frame) for arg in node.args]

    def known(self, node: Expr, frame: Frame) -> Value:
        found = frame.find(node)
        return self.value(node, frame) if found is None else found

    def named(self, name: str) -> Closure:
        if name not in self.module:
            raise IRError(f"@{name} is called, and the module has no such function")
        return self.globals.setdefault(name, Closure(self.module[name], Frame(), f"@{name}"))

    def plain(self, node: Expr, frame: Frame) -> Value:
        """A node that passes know; one of a tuple may hold functions."""
        if isinstance(node, (Var, Constant)):
            return node
        values = [self.known(child, frame) for child in _operands(node)]
        if isinstance(node, Tuple) and not all(isinstance(v, Expr) for v in values):
            return Fields(tuple(values))
        if isinstance(node, TupleGetItem):
            return self.field(values[0], node)
        made = rebuild(node, [self.expr(v, _name_of(node)) for v in values])
        small = isinstance(made, Call) and all(isinstance(arg, Constant) for arg in made.args) and _is_small(made)
        return folded(made) if small and isinstance(made, Call) and unfoldable(made) is None else made

    def field(self, value: Value, node: TupleGetItem) -> Value:
        if isinstance(value, Fields):
            return value.values[node.index]
        if isinstance(value, Chosen):
            return self.join(value.condition, self.field(value.then, node), self.field(value.orelse, node))
        return simplify_projection(rebuild(node, (self.expr(value, "a tuple's field"),)))

    def expr(self, value: Value, where: str) -> Expr:
        """A value that must be a tensor or a tuple of some."""
        if isinstance(value, Expr):
            return value
        raise IRError(f"a function stands where {where} takes a tensor", hint="functions can be called and passed on")

    # --- choices --------------------------------------------------------------------------------------------

    @contextmanager
    def choosing(self) -> Iterator[None]:
        self.open_choices += 1
        try:
            yield
        finally:
            self.open_choices -= 1

    def chosen(self, node: If, frame: Frame) -> Value:
        condition = self.expr(self.known(node.cond, frame), "a condition")
        if isinstance(condition, Constant):
            return self.value(node.true_branch if condition.value.item() else node.false_branch, Frame(frame))
        with self.choosing():
            then, orelse = (self.value(branch, Frame(frame)) for branch in node.parts[1:])
        return self.join(condition, then, orelse)

    def join(self, condition: Expr, then: Value, orelse: Value) -> Value:
        if then is orelse or (isinstance(then, Closure) and then.same(orelse)):
            return then
        if isinstance(then, Expr) and isinstance(orelse, Expr):
            return choice(condition, then, orelse)
        return Chosen(condition, then, orelse)

    # --- calls ----------------------------------------------------------------------------------------------

    @contextmanager
    def calling(self, closure: Closure) -> Iterator[None]:
        self.called.append((closure, self.open_choices))
        try:
            yield
        finally:
            self.called.pop()

    def call(self, function: Value, args: Sequence[Value]) -> Value:
        if isinstance(function, Chosen):
            with self.choosing():
                then, orelse = (self.call(one, args) for one in (function.then, function.orelse))
            return self.join(function.condition, then, orelse)
        if not isinstance(function, Closure):
            raise IRError("what is called is no function that the module has", hint="bind it with a Let, or name it")
        if any(function.same(head) for head in self.heads):
            raise _Recursion(function)
        for under_way, choices in self.called:
            if function.same(under_way) and (self.open_choices > choices or len(self.called) > MOST_CALLS):
                raise _Recursion(function)
        if len(self.called) > 2 * MOST_CALLS:
            raise _no_end(function)
        return self.entered(function, args)

    def entered(self, function: Closure, args: Sequence[Value]) -> Value:
        """The body in place of the call; a loop where that calls itself."""
        try:
            with self.calling(function):
                return self.value(function.function.body, self.inside(function, args))
        except _Recursion as found:
            around = any(found.closure.same(one) for one, _ in self.called)
            if not found.closure.same(function) or around or any(found.closure.same(one) for one in self.heads):
                raise
        return self.loop(function, args)

    def inside(self, function: Closure, args: Sequence[Value]) -> Frame:
        params = function.function.params
        if len(params) != len(args):
            raise TypeInferenceError(f"{function.name} takes {len(params)} arguments, {len(args)} given")
        frame = Frame(function.frame)
        for param, arg in zip(params, args, strict=True):
            frame.known[param] = arg
            given = arg.checked_type if isinstance(arg, Expr) else None
            if given is not None and param.checked_type is not None and not accepts(param.checked_type, given):
                raise TypeInferenceError(f"{function.name}: %{param.name} is {param.type}, the argument is {given}")
        return frame

    def loop(self, function: Closure, args: Sequence[Value]) -> Expr:
        """A function that calls itself at its end."""
        given = [self.expr(arg, f"{function.name}, which calls itself,") for arg in args]
        types: list[Type] = [
            param.checked_type or arg.type for param, arg in zip(function.function.params, given, strict=True)
        ]
        carried = [Var(p.name, type_) for p, type_ in zip(function.function.params, types, strict=True)]
        outer, self.called = self.called, []
        self.heads.append(function)
        try:
            tree = self.tail(function.function.body, self.inside(function, carried))
        except _Recursion as found:
            if not found.closure.same(function):
                raise
            raise _no_loop(function) from None
        finally:
            self.called = outer
            self.heads.pop()
        return loop_of(function.name, tree, carried, given)

    def tail(self, expr: Expr, frame: Frame) -> Tree:
        """What the body of a loop's function comes to: a value, another round, or one of two such."""
        expr = self.bound(expr, frame, is_last=True)
        if isinstance(expr, If):
            condition = self.expr(self.known(expr.cond, frame), "a condition")
            if isinstance(condition, Constant):
                return self.tail(expr.true_branch if condition.value.item() else expr.false_branch, Frame(frame))
            with self.choosing():
                return Fork(condition, *(self.tail(branch, Frame(frame)) for branch in expr.parts[1:]))
        if isinstance(expr, Apply) or (isinstance(expr, Call) and _is_inner(expr.op)):
            for child in _operands(expr):
                self.known(child, frame)
            return self.tail_call(*self.callee(expr, frame))
        return Leaf(self.expr(self.value(expr, frame), "a result"))

    def tail_call(self, function: Value, args: list[Value]) -> Tree:
        if isinstance(function, Closure) and function.same(self.heads[-1]):
            return Again([self.expr(arg, f"{function.name}, which calls itself,") for arg in args])
        if not isinstance(function, Closure) or any(function.same(one) for one in self.tails):
            return Leaf(self.expr(self.call(function, args), "a result"))
        self.tails.append(function)
        try:
            return self.tail(function.function.body, self.inside(function, args))
        finally:
            self.tails.pop()


def _operands(node: Any) -> tuple[Expr, ...]:
    """What must be known before a node is."""
    if isinstance(node, If):
        return (node.cond,)
    if isinstance(node, Apply):
        return node.parts
    if isinstance(node, Call):
        return node.args
    if isinstance(node, Tuple):
        return node.fields
    return (node.tuple,) if isinstance(node, TupleGetItem) else ()


def _is_inner(op: Any) -> bool:
    return isinstance(op, Function) and not op.is_primitive


def _name_of(node: Expr) -> str:
    return str(getattr(getattr(node, "op", None), "name", f"a {type(node).__name__}"))


def _is_small(call: Call) -> bool:
    type_ = call.checked_type
    return isinstance(type_, TensorType) and type_.is_static and type_.size <= SMALL


def _no_loop(function: Closure) -> IRError:
    return IRError(
        f"{function.name} calls itself, and is no loop: more is computed from what that call gives",
        where=[f"a function of {', '.join(f'%{p.name}: {p.checked_type}' for p in function.function.params)}"],
        hint="make the call the last thing that the function does, and carry what it computes as a parameter; or give"
        " it numbers that are known: create_executor('debug', mod) does",
    )


def _no_end(function: Closure) -> IRError:
    return IRError(
        f"{function.name} calls itself without end: nothing chooses between another call and a result",
        where=[f"a function of {', '.join(f'%{p.name}: {p.checked_type}' for p in function.function.params)}"],
        hint="an If whose other branch is a result ends it",
    )
