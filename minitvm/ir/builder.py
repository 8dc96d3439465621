"""Building graphs as one writes Relay: ``var``, ``const``, ``nn.conv2d(...)``, ``nn.batch_norm(...)[0]``.

Every operator class yields one function, named as the operator: ``nn.relu`` here is ``builder.nn.relu``.
Tensor arguments come first, by position or by the name that ``infer`` gives them; attributes follow by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

import minitvm.ir.ops  # noqa: F401  (registers the operators)
from minitvm.errors import TypeInferenceError, did_you_mean
from minitvm.ir.expr import Call, Constant, Expr, Function, Tuple, Var
from minitvm.ir.op import OPS, Op, signature
from minitvm.ir.types import DTYPES, Span, TensorType, Type, as_shape
from minitvm.ir.visitor import free_vars


def var(
    name: str, type_: Type | None = None, shape: Sequence[int | str | None] | None = None, dtype: str = "float32"
) -> Var:
    """A variable: ``var("x", TensorType((1, 3)))``, ``var("x", shape=("n", 3))``, or without a type."""
    if type_ is None and shape is not None:
        if not isinstance(shape, (Sequence, np.ndarray)):
            raise TypeInferenceError(f"variable %{name}: {shape!r} is no shape", hint="a shape is a tuple: (1, 3)")
        type_ = TensorType(as_shape(shape), dtype)
    return Var(name, type_)


def const(value: Any, dtype: str | None = None, name: str | None = None) -> Constant:
    """A constant; Python floats are float32 and integers int32 unless ``dtype`` says otherwise, as in Relay."""
    if dtype is None and not isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        dtype = {"f": "float32", "i": "int32"}.get(array.dtype.kind, array.dtype.name)
        if dtype not in DTYPES:
            raise TypeInferenceError(
                f"a {type(value).__name__} is no tensor", hint="constants are numbers, booleans and arrays of them"
            )
    return Constant(np.asarray(value, dtype), name)


def function(body: Expr, params: Sequence[Var] | None = None) -> Function:
    """A function of ``body`` over ``params``, its free variables by default."""
    return Function(free_vars(body) if params is None else params, body)


def call_op(name: str, *args: Any, span: Span | None = None, **attributes: Any) -> Call:
    """Call the operator of that name: ``call_op("nn.conv2d", x, w, padding=(1, 1))``."""
    if name not in OPS:
        raise TypeInferenceError(f"there is no operator {name!r}", hint=did_you_mean(name, OPS, str))
    return _build(OPS[name], args, attributes, span)


def _as_expr(value: Any) -> Expr:
    if isinstance(value, Expr):
        return value
    if isinstance(value, (list, tuple)):
        return Tuple([_as_expr(v) for v in value])
    return const(value)


def _build(op: type[Op], args: Sequence[Any], keywords: dict[str, Any], span: Span | None = None) -> Call:
    found = signature(op)
    operands = [_as_expr(a) for a in args]
    for name in found.names[len(operands) :]:
        if name not in keywords:
            break
        operands.append(_as_expr(keywords.pop(name)))
    return Call(op.of(keywords), operands, span=span)


def _builder_of(op: type[Op]) -> Any:
    def build(*args: Any, **attributes: Any) -> Call:
        return _build(op, args, dict(attributes))

    build.__name__ = build.__qualname__ = op.name.rpartition(".")[2]
    build.__doc__ = op.__doc__
    return build


class Builder(Protocol):
    """``nn`` is a namespace, ``nn.relu`` a function: one type for both, since operators are found by name."""

    def __call__(self, *args: Any, **attributes: Any) -> Call: ...

    def __getattr__(self, name: str) -> Builder: ...


def __getattr__(name: str) -> Builder:
    """``add`` is a function, ``nn`` a namespace of them; operators defined later (a user's own) are found too."""
    inner = {full.removeprefix(f"{name}."): op for full, op in OPS.items() if full.startswith(f"{name}.")}
    if name not in OPS and not inner:
        raise AttributeError(f"minitvm.ir.builder has no operator {name!r}")
    found: Any = SimpleNamespace(**{short: _builder_of(op) for short, op in inner.items()})
    builder: Builder = _builder_of(OPS[name]) if name in OPS else found
    return builder
