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
from minitvm.ir.parser import choice as choice
from minitvm.ir.types import TensorType as TensorType
from minitvm.ir.types import Type as Type
from minitvm.ir.types import accepts as accepts
from minitvm.ir.visitor import substitute as substitute
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
class If(Expr):
    """``If(condition, a, b)``: a call of ``control.if``, whose branches are functions of what they use."""

    def __init__(self, cond: Expr, true_branch: Expr, false_branch: Expr) -> None:
        ...
class Let(Expr):
    """``Let(variable, value, body)``: the body with the value for the variable.  Graphs share nodes, so nothing is
    computed twice; and there is no node of that kind for passes to know."""

    def __init__(self, variable: Var, value: Expr, body: Expr) -> None:
        ...
def bind(expr: Expr, binds: Mapping[Var, typing.Any]) -> Expr:
    """``expr`` with expressions for some of its variables; of a function, without these parameters."""
    ...
class ScopeBuilder:
    """Relay's: ``let`` names a value, ``if_scope`` and ``else_scope`` hold branches, ``ret`` says what comes out.

    A value has a name already, the Python variable's; so ``let`` gives it back as it is.
    """

    def __init__(self) -> None:
        ...

    def let(self, variable: Var | str | tuple[str, Type], value: typing.Any) -> Expr:
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

    def get(self) -> Expr:
        """The result of all."""
        ...
