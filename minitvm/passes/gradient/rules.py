"""An operator's gradient: a function of a call and of the result's adjoint, registered under the operator's name."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, overload

from minitvm.errors import PassError, is_again, is_own, place_of
from minitvm.ir import builder as ir
from minitvm.ir.dims import Dim, differ
from minitvm.ir.expr import Call, Expr
from minitvm.ir.ops.transform import Reshape
from minitvm.ir.types import TensorType

Rule: TypeAlias = Callable[[Any, Any], Sequence[Expr | None]]
"""From a call, and what the loss gains by each element of its result, to the same of its arguments; ``None`` where
nothing depends on one.  Of a call with several results the second argument is a tuple of expressions."""

AnyRule = TypeVar("AnyRule", bound=Rule)

GRADIENTS: dict[str, Rule] = {}
"""By the operator's name."""

_FAMILIES = ("elementwise", "reductions", "moves", "indexing", "products", "windows", "norms")


@overload
def register_gradient(op_name: str, fgradient: None = None, level: int = 10) -> Callable[[AnyRule], AnyRule]: ...
@overload
def register_gradient(op_name: str, fgradient: AnyRule, level: int = 10) -> AnyRule: ...
def register_gradient(op_name: str, fgradient: Any = None, level: int = 10) -> Any:
    """Registers an operator's gradient: a function of the call and its adjoint, or without one a decorator.

    ``@register_gradient("nn.relu")`` over ``def relu(call, adjoint): return [...]``: an expression for each argument,
    of its type, or ``None``.  ``level`` is Relay's and means nothing: the last one that is registered counts.
    Raises :class:`PassError` where somebody takes the place of one of minitvm's own.
    """
    if fgradient is None:
        return functools.partial(register_gradient, op_name, level=level)
    old = rule_of(op_name) if not is_own(fgradient) else GRADIENTS.get(op_name)
    if old is not None and is_own(old) and not is_again(old, fgradient):
        raise PassError(f"{op_name} has a gradient in {place_of(old)} already")
    GRADIENTS[op_name] = fgradient
    return fgradient


def rule_of(op_name: str) -> Rule | None:
    """The gradient of an operator; ``None`` where it has none."""
    _load()
    return GRADIENTS.get(op_name)


@functools.cache
def _load() -> None:
    """minitvm's own, which are imported when the first one is asked for."""
    for family in _FAMILIES:
        importlib.import_module(f"{__package__}.{family}")


def of_each(names: str, rule: Callable[[Any, Any], Expr | None]) -> None:
    """Registers a rule of operators of one argument: ``rule(call, adjoint)`` is what the argument gets."""
    for name in names.split():
        register_gradient(name, lambda call, adjoint: [rule(call, adjoint)])


def summed_to(adjoint: Expr, type_: TensorType) -> Expr:
    """What an argument of ``type_`` gets that was broadcast to the shape of ``adjoint``: the sum over its copies."""
    have, want = adjoint.tensor_type.shape, type_.shape
    fresh = len(have) - len(want)
    axes = [*range(fresh)]
    axes += [d for d, n in enumerate(want, fresh) if isinstance(n, int) and n == 1 and differ(have[d], 1)]
    if axes:
        adjoint = ir.sum(adjoint, axis=tuple(axes), keepdims=True)
    return ir.squeeze(adjoint, axis=tuple(range(fresh))) if fresh else adjoint


def number(value: float, like: Expr) -> Expr:
    """A constant of the dtype of another expression."""
    return ir.const(value, like.dtype)


def in_shape(data: Expr, shape: Sequence[Dim]) -> Expr:
    """``data`` in another shape, whose zeros are extents."""
    return data if data.tensor_type.shape == tuple(shape) else Call(Reshape.to(tuple(shape)), (data,))


def reshaped(data: Expr, like: Expr) -> Expr:
    """``data`` in the shape of another expression."""
    return in_shape(data, like.tensor_type.shape)
