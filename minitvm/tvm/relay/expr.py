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
from minitvm.ir.types import TensorType, Type, accepts
from minitvm.ir.visitor import substitute
from minitvm.scopes import nodes as scopes
from minitvm.scopes.nodes import Let, conditional, declared
from minitvm.scopes.normal import is_choice
from minitvm.tvm.relay import scoped  # puts its forms on nodes
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
        if ret_type is not None and body.checked_type is None:
            declared[made] = ret_type
        return made


class _Choices(Form):
    """What is compiled as a choice is one, too."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, scopes.If) or (isinstance(value, nodes.Call) and is_choice(value))


class _If(scopes.If, metaclass=_Choices):
    """Makes a choice, ``If(condition, a, b)``: of graphs a call of ``control.if``, whose branches are functions."""

    def __new__(cls, cond: Expr, true_branch: Expr, false_branch: Expr, span: typing.Any = None) -> typing.Any:
        return conditional(cond, true_branch, false_branch)


if typing.TYPE_CHECKING:
    If = scopes.If
else:
    If = _If


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
    """Relay's: ``let`` names a value, ``if_scope`` and ``else_scope`` hold branches, ``ret`` says what comes out."""

    def __init__(self) -> None:
        self._results: list[Expr | None] = [None]
        self._bound: list[list[tuple[Var, Expr]]] = [[]]
        self._open: list[tuple[Expr, Expr | None]] = []

    def let(self, variable: Var | str | tuple[str, Type], value: typing.Any) -> Expr:
        """The variable, which stands for the value in what the scope gives."""
        given = value if isinstance(value, Expr) else const(value)
        if not isinstance(variable, nodes.Var):
            name, type_ = (variable, given.checked_type) if isinstance(variable, str) else variable
            variable = nodes.Var(name, type_of(type_))
        self._bound[-1].append((variable, given))
        return variable

    def type_of(self, expr: typing.Any) -> Type | None:
        """The type of an expression, as far as it is known."""
        found: Type | None = expr.checked_type
        return found

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
        self._bound.append([])
        found: list[Expr | None] = []
        yield lambda: found[0]
        found.append(self._closed(self._results.pop(), self._bound.pop()))

    def _closed(self, result: Expr | None, bound: list[tuple[Var, Expr]]) -> Expr | None:
        for variable, value in reversed(bound) if result is not None else ():
            result = Let(variable, value, typing.cast("Expr", result))
        return result

    def get(self) -> Expr:
        """The result of all."""
        if self._results[0] is None or self._open:
            raise IRError("the scope has no result", hint="ret(value), or an else_scope behind the if_scope")
        return typing.cast("Expr", self._closed(self._results[0], self._bound[0]))
