"""Building graphs as one writes Relay: ``var``, ``const``, ``nn.conv2d(...)``, ``nn.batch_norm(...)[0]``.

Every operator class yields one function, named as the operator: ``nn.relu`` here is ``builder.nn.relu``.
Tensor arguments come first, by position or by the name that ``infer`` gives them; attributes follow by name.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

import minitvm.ir.ops  # noqa: F401  (registers the operators)
from minitvm.errors import TypeInferenceError
from minitvm.ir.expr import Call, Constant, Expr, Function, Tuple, Var
from minitvm.ir.op import OPS, Op, signature
from minitvm.ir.types import DTYPES, Span, TensorType, Type
from minitvm.ir.visitor import free_vars


def var(name: str, type_: Type | None = None, shape: Sequence[int | None] | None = None, dtype: str = "float32") -> Var:
    """A variable: ``var("x", TensorType((1, 3)))``, ``var("x", shape=(1, 3))``, or without a type."""
    if type_ is None and shape is not None:
        if not isinstance(shape, (Sequence, np.ndarray)):
            raise TypeInferenceError(f"variable %{name}: {shape!r} is no shape", hint="a shape is a tuple: (1, 3)")
        type_ = TensorType(tuple(shape), dtype)
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
        near = difflib.get_close_matches(name, OPS, n=1)
        raise TypeInferenceError(f"there is no operator {name!r}", hint=f"did you mean {near[0]}?" if near else None)
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
    return Call(_with_attributes(op, keywords), operands, span=span)


_known_parameters: dict[type[Op], Mapping[str, inspect.Parameter]] = {}


def _parameters(op: type[Op]) -> Mapping[str, inspect.Parameter]:
    """An operator class's attributes, read off its constructor once."""
    if op not in _known_parameters:
        _known_parameters[op] = inspect.signature(op).parameters
    return _known_parameters[op]


def _with_attributes(op: type[Op], keywords: dict[str, Any]) -> Op:
    """The operator with its attributes; says which is unknown, missing or of a wrong kind."""
    known = _parameters(op)
    usage = f"arguments: {', '.join(signature(op).names) or 'none'}; attributes: {', '.join(known) or 'none'}"
    for name in keywords:
        if name not in known:
            raise TypeInferenceError(f"{op.name}: unknown attribute {name!r}", hint=usage)
    missing = [n for n, p in known.items() if p.default is inspect.Parameter.empty and n not in keywords]
    if missing:
        raise TypeInferenceError(f"{op.name}: attribute {missing[0]!r} is missing", hint=usage)
    try:
        return _checked(op(**keywords))
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{k}={v!r}" for k, v in keywords.items())
        raise TypeInferenceError(f"{op.name}: cannot use the attributes {given}: {error}", hint=usage) from error


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int, np.integer), "a whole number"),
    "float": ((int, float, np.integer, np.floating), "a number"),
    "bool": ((int, np.bool_), "True or False"),
    "str": ((str,), "text"),
    "tuple[int, ...]": ((tuple,), "whole numbers"),
}
"""What an attribute may be, by its annotation; other annotations are the operator's own business."""


def _checked(op: Op) -> Op:
    """``op``, where its attributes are of the kinds that their annotations say; else ``TypeError``."""
    for attribute in dataclasses.fields(op):  # type: ignore[arg-type]
        declared = str(attribute.type)
        kind, value = _KINDS.get(declared.removesuffix(" | None")), getattr(op, attribute.name)
        if kind is None or isinstance(value, kind[0]) or (value is None and declared.endswith(" | None")):
            continue
        raise TypeError(f"{attribute.name} is a {type(value).__name__}, not {kind[1]}")
    return op


def _builder_of(op: type[Op]) -> Callable[..., Call]:
    def build(*args: Any, **attributes: Any) -> Call:
        return _build(op, args, dict(attributes))

    build.__name__ = build.__qualname__ = op.name.rpartition(".")[2]
    build.__doc__ = op.__doc__
    return build


def __getattr__(name: str) -> Any:
    """``add`` is a function, ``nn`` a namespace of them; operators defined later (a user's own) are found too."""
    if name in OPS:
        return _builder_of(OPS[name])
    inner = {full.removeprefix(f"{name}."): op for full, op in OPS.items() if full.startswith(f"{name}.")}
    if inner:
        return SimpleNamespace(**{short: _builder_of(op) for short, op in inner.items()})
    raise AttributeError(f"minitvm.ir.builder has no operator {name!r}")
