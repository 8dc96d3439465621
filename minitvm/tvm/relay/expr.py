"""Relay's ``expr``: our nodes, and Relay's constructors of what we have no nodes of its kind for."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from minitvm.errors import IRError, TypeInferenceError
from minitvm.ir import expr as nodes
from minitvm.ir.dims import Dim, anonymous
from minitvm.ir.expr import Expr
from minitvm.ir.parser import choice
from minitvm.ir.types import TensorType, Type, accepts
from minitvm.ir.visitor import substitute
from minitvm.tvm.relay.forms import (
    Call,
    Constant,
    Form,
    GlobalVar,
    Tuple,
    TupleGetItem,
    Var,
    attributes,
    const,
    no_type_params,
    type_of,
    var,
)

RelayExpr = Expr
TupleWrapper = Expr
"""What an operator of several results gives; every expression of a tuple's type can be indexed and unpacked."""


def Any() -> Dim:
    """A dimension of any extent."""
    return anonymous()


def scalar_type(dtype: str) -> TensorType:
    """The type of a single number."""
    return TensorType((), dtype)


class Function(nodes.Function, metaclass=Form):
    """Our :class:`minitvm.ir.expr.Function`, made of Relay's arguments in Relay's order."""

    def __new__(
        cls,
        params: Sequence[Var],
        body: Expr,
        ret_type: Type | str | None = None,
        type_params: Sequence[Type] | None = None,
        attrs: Mapping[str, typing.Any] | None = None,
        span: typing.Any = None,
    ) -> typing.Any:
        no_type_params(type_params)
        made, ret_type = nodes.Function(params, body, attributes(attrs or {}), span), type_of(ret_type)
        if ret_type is not None and body.checked_type is not None and not accepts(ret_type, body.checked_type):
            raise TypeInferenceError(f"the function is declared as {ret_type}, its body is {body.checked_type}")
        return made


class If:
    """``If(condition, a, b)``: a call of ``control.if``, whose branches are functions of what they use."""

    def __new__(cls, cond: Expr, true_branch: Expr, false_branch: Expr) -> typing.Any:
        return choice(cond, true_branch, false_branch)


class Let:
    """``Let(variable, value, body)``: the body with the value for the variable.  Graphs share nodes, so nothing is
    computed twice; and there is no node of that kind for passes to know."""

    def __new__(cls, variable: Var, value: Expr, body: Expr) -> typing.Any:
        return bind(body, {variable: value})


def bind(expr: Expr, binds: Mapping[Var, typing.Any]) -> Expr:
    """``expr`` with expressions for some of its variables; of a function, without these parameters."""
    replaced: dict[Expr, Expr] = {old: new if isinstance(new, Expr) else const(new) for old, new in binds.items()}
    for old, new in replaced.items():
        if old.checked_type and new.checked_type and not accepts(old.checked_type, new.checked_type):
            raise TypeInferenceError(f"variable %{getattr(old, 'name', '?')} is {old.type}, its value {new.type}")
    if not isinstance(expr, nodes.Function):
        return substitute(expr, replaced)
    params = [param for param in expr.params if param not in replaced]
    return nodes.Function(params, substitute(expr.body, replaced), expr.attrs, span=expr.span)


class ScopeBuilder:
    """Relay's: ``let`` names a value, ``if_scope`` and ``else_scope`` hold branches, ``ret`` says what comes out.

    A value has a name already, the Python variable's; so ``let`` gives it back as it is.
    """

    def __init__(self) -> None:
        self._results: list[Expr | None] = [None]
        self._open: list[tuple[Expr, Expr | None]] = []

    def let(self, variable: Var | str | tuple[str, Type], value: typing.Any) -> Expr:
        return value if isinstance(value, Expr) else const(value)

    def ret(self, value: Expr) -> None:
        """What the innermost scope gives."""
        if self._results[-1] is not None:
            raise IRError("the scope has a result already", hint="one ret for each scope")
        self._results[-1] = value

    @contextmanager
    def if_scope(self, cond: Expr) -> Iterator[None]:
        with self._scope() as result:
            yield
        self._open.append((cond, result()))

    @contextmanager
    def else_scope(self) -> Iterator[None]:
        if not self._open:
            raise IRError("an else_scope without an if_scope before it")
        with self._scope() as result:
            yield
        cond, then = self._open.pop()
        orelse = result()
        if then is None or orelse is None:
            raise IRError("a branch has no result", hint="call ret(value) in both")
        self.ret(If(cond, then, orelse))

    @contextmanager
    def _scope(self) -> Iterator[Callable[[], Expr | None]]:
        self._results.append(None)
        found: list[Expr | None] = []
        yield lambda: found[0]
        found.append(self._results.pop())

    def get(self) -> Expr:
        """The result of all."""
        if self._results[0] is None or self._open:
            raise IRError("the scope has no result", hint="ret(value), or an else_scope behind the if_scope")
        return self._results[0]
