# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
import numpy as np
from minitvm.errors import IRError as IRError
from minitvm.errors import TypeInferenceError as TypeInferenceError
from minitvm.ir import expr as _nodes
nodes = _nodes
from minitvm.ir.dims import Dim as Dim
from minitvm.ir.dims import anonymous as anonymous
from minitvm.ir.expr import Expr as Expr
from minitvm.ir.types import TensorType as TensorType
from minitvm.ir.types import Type as Type
from minitvm.ir.types import accepts as accepts
from minitvm.ir.visitor import substitute as substitute
from minitvm.scopes import nodes as _scopes
scopes = _scopes
from minitvm.scopes.nodes import Let as Let
from minitvm.scopes.nodes import conditional as conditional
from minitvm.scopes.nodes import declared as declared
from minitvm.scopes.normal import is_choice as is_choice
from minitvm.tvm.relay import scoped as scoped
from minitvm.tvm.relay.forms import Call as Call
from minitvm.tvm.relay.forms import Constant as Constant
from minitvm.tvm.relay.forms import Form as Form
from minitvm.tvm.relay.forms import GlobalVar as GlobalVar
from minitvm.tvm.relay.forms import Tuple as Tuple
from minitvm.tvm.relay.forms import TupleGetItem as TupleGetItem
from minitvm.tvm.relay.forms import Var as Var
from minitvm.tvm.relay.forms import attributes as attributes
from minitvm.tvm.relay.forms import const as const
from minitvm.tvm.relay.forms import no_type_params as no_type_params
from minitvm.tvm.relay.forms import type_of as type_of
from minitvm.tvm.relay.forms import var as var
RelayExpr = Expr
TupleWrapper = Expr
def Any() -> Dim:
    """A dimension of any extent."""
    ...
def scalar_type(dtype: str) -> TensorType:
    """The type of a single number."""
    ...
from minitvm.ir.expr import Function as Function
If = scopes.If
def bind(expr: Expr, binds: Mapping[Var, typing.Any]) -> Expr:
    """``expr`` with expressions for some of its variables; of a function, without these parameters."""
    ...
class ScopeBuilder:
    """Relay's: ``let`` names a value, ``if_scope`` and ``else_scope`` hold branches, ``ret`` says what comes out."""

    def __init__(self) -> None:
        ...

    def let(self, variable: Var | str | tuple[str, Type], value: typing.Any) -> Expr:
        """The variable, which stands for the value in what the scope gives."""
        ...

    def type_of(self, expr: typing.Any) -> Type | None:
        """The type of an expression, as far as it is known."""
        ...

    def ret(self, value: Expr) -> None:
        """What the innermost scope gives."""
        ...

    @contextmanager
    def if_scope(self, cond: Expr) -> Iterator[None]:
        ...

    @contextmanager
    def else_scope(self) -> Iterator[None]:
        ...

    @contextmanager
    def _scope(self) -> Iterator[Callable[[], Expr | None]]:
        ...

    def _closed(self, result: Expr | None, bound: list[tuple[Var, Expr]]) -> Expr | None:
        ...

    def get(self) -> Expr:
        """The result of all."""
        ...
