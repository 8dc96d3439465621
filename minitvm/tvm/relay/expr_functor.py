"""Relay's visitors: classes with a method for each kind of node.  Every node is visited once."""

from __future__ import annotations

from typing import Any

from minitvm.errors import IRError
from minitvm.ir.expr import Call, Constant, Expr, Function, GlobalVar, Tuple, TupleGetItem, Var
from minitvm.ir.visitor import rebuild
from minitvm.scopes.names import keep_declared
from minitvm.scopes.nodes import Apply, Global, If, Let, applied
from minitvm.scopes.normal import is_choice, opened

_METHODS = {
    Var: "visit_var",
    Constant: "visit_constant",
    Call: "visit_call",
    Tuple: "visit_tuple",
    TupleGetItem: "visit_tuple_getitem",
    Function: "visit_function",
    Let: "visit_let",
    If: "visit_if",
    Apply: "visit_call",
    Global: "visit_global_var",
}


class NoVisitError(IRError, NotImplementedError):
    """A visitor has no method for a kind of node."""


def _method(node: Any) -> str:
    """The method for a kind of node; a function's name by itself has that of one in an expression."""
    return "visit_global_var" if isinstance(node, GlobalVar) else _METHODS[type(node)]


class ExprFunctor:
    """``visit(node)`` calls the node's method, and keeps what it gives."""

    def __init__(self) -> None:
        self.memo_map: dict[Expr, Any] = {}

    def visit(self, expr: Expr) -> Any:
        memo = self.__dict__.setdefault("memo_map", {})
        if expr not in memo:
            asks = isinstance(expr, Call) and is_choice(expr) and "visit_if" in _own_names(type(self))
            memo[expr] = self.visit_if(opened(expr)) if asks else getattr(self, _method(expr))(expr)
        return memo[expr]

    def visit_op(self, op: Any) -> Any:
        """What a call applies: an operator with its attributes."""
        return op

    def _undefined(self, expr: Any) -> Any:
        raise NoVisitError(f"{type(self).__name__} has no {_method(expr)}", hint="define it, or use ExprVisitor")

    visit_var = visit_constant = visit_call = visit_tuple = visit_tuple_getitem = visit_function = _undefined
    visit_let = visit_if = visit_global_var = _undefined


def _own_names(kind: type) -> set[str]:
    """What a class and those above it define, minitvm's left out."""
    return {name for one in kind.__mro__ if not one.__module__.startswith("minitvm.") for name in vars(one)}


class ExprVisitor(ExprFunctor):
    """Visits all nodes below one; override what you want to look at, and call ``super()`` to go on."""

    def visit_call(self, call: Any) -> Any:
        self.visit(call.op) if isinstance(call.op, Expr) else self.visit_op(call.op)
        for arg in call.args:
            self.visit(arg)

    def visit_tuple(self, tup: Tuple) -> Any:
        for field in tup.fields:
            self.visit(field)

    def visit_tuple_getitem(self, item: TupleGetItem) -> Any:
        self.visit(item.tuple)

    def visit_function(self, function: Function) -> Any:
        for param in function.params:
            self.visit(param)
        self.visit(function.body)

    def visit_let(self, let: Let) -> Any:
        for part in let.parts:
            self.visit(part)

    def visit_if(self, choice: If) -> Any:
        for part in choice.parts:
            self.visit(part)

    def visit_var(self, var: Var) -> Any: ...

    def visit_constant(self, constant: Constant) -> Any: ...

    def visit_global_var(self, name: Global) -> Any: ...


class ExprMutator(ExprFunctor):
    """Rebuilds what is below a node; override what shall become something else.  What has not changed stays."""

    def visit_call(self, call: Any) -> Any:
        op = self.visit(call.op) if isinstance(call.op, Expr) else self.visit_op(call.op)
        args = [self.visit(arg) for arg in call.args]
        if isinstance(call, Apply):
            return rebuild(call, (op, *args))
        if isinstance(op, Expr):
            return rebuild(call, args) if op is call.op else applied(op, args, call.span)
        return rebuild(call, args) if op is call.op else Call(op, args, span=call.span)

    def visit_tuple(self, tup: Tuple) -> Any:
        return rebuild(tup, [self.visit(field) for field in tup.fields])

    def visit_tuple_getitem(self, item: TupleGetItem) -> Any:
        return rebuild(item, [self.visit(item.tuple)])

    def visit_function(self, function: Function) -> Any:
        made = rebuild(function, [*map(self.visit, function.params), self.visit(function.body)])
        keep_declared(function, made)
        return made

    def visit_let(self, let: Let) -> Any:
        return rebuild(let, [self.visit(part) for part in let.parts])

    def visit_if(self, choice: If) -> Any:
        return rebuild(choice, [self.visit(part) for part in choice.parts])

    def visit_global_var(self, name: Global) -> Any:
        return name

    def visit_var(self, var: Var) -> Any:
        return var

    def visit_constant(self, constant: Constant) -> Any:
        return constant
