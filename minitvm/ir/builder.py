"""Building graphs as one writes Relay: ``var``, ``const``, ``nn.conv2d(...)``, ``nn.batch_norm(...)[0]``.

Every operator class yields one function, named as the operator: ``nn.relu`` here is ``builder.nn.relu``.
Tensor arguments come first, by position or by the name that ``infer`` gives them; attributes follow by name, or by
position in the order of the operator's fields (which is Relay's): ``reshape(x, (1, -1))``.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

import minitvm.ir.ops  # noqa: F401  (registers the operators)
from minitvm.errors import TypeInferenceError, did_you_mean
from minitvm.ir.attributes import Attribute, attributes_of, format_attribute
from minitvm.ir.expr import Call, Constant, Expr, Function, Tuple, Var
from minitvm.ir.op import OPS, Op, signature
from minitvm.ir.types import DTYPES, Span, TensorType, Type, as_shape
from minitvm.ir.visitor import free_vars
from minitvm.ir.written import as_dtype


def var(
    name: str, type_: Type | None = None, shape: Sequence[int | str | None] | None = None, dtype: str = "float32"
) -> Var:
    """A variable: ``var("x", TensorType((1, 3)))``, ``var("x", shape=("n", 3))``, or without a type.

    :class:`TypeInferenceError` for a name that is no text, and for what is no type, shape or dtype.
    """
    if not isinstance(name, str):
        raise TypeInferenceError(f"{name!r} is no variable's name", hint='var("x", shape=(1, 3))')
    if shape is None and isinstance(type_, (list, tuple, str, int)):
        given = "shape=(1, 3), dtype=" if isinstance(type_, str) else "shape="
        hint = f"var({json.dumps(name)}, {given}{type_!r})"
        raise TypeInferenceError(f"variable %{name}: {type_!r} is no type", hint=hint)
    if shape is None and dtype != "float32":
        raise TypeInferenceError(f"variable %{name}: a dtype without a shape", hint="shape=() is that of a number")
    if shape is None:
        return Var(name, type_)
    if type_ is not None:
        raise TypeInferenceError(f"variable %{name} has a type and a shape", hint="give one of them")
    return Var(name, TensorType(as_shape(shape), dtype))


def const(value: Any, dtype: str | None = None, name: str | None = None) -> Constant:
    """A constant; Python floats are float32 and integers int32 unless ``dtype`` says otherwise, as in Relay."""
    dtype = None if dtype is None else as_dtype(dtype)
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
    least, most = found.required, len(args) if found.variadic else len(found.names)
    count = next((i for i, a in enumerate(args) if i >= most or (i >= least and _is_attribute(a))), len(args))
    count = len(args) if any(isinstance(a, Expr) for a in args[count:]) else count  # too many, which the call says
    operands = [_as_expr(a) for a in args[:count]]
    keywords.update(_by_position(op, args[count:], keywords))
    for name in found.names[len(operands) :]:
        if name not in keywords:
            break
        operands.append(_as_expr(keywords.pop(name)))
    return Call(op.of(keywords), operands, span=span)


def _is_attribute(value: Any) -> bool:
    """True if a value that may be an optional tensor is none."""
    plain = isinstance(value, (list, tuple)) and not any(isinstance(v, Expr) for v in value)
    return plain or value is None or isinstance(value, str)


def _by_position(op: type[Op], values: Sequence[Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Attributes that were given without their names."""
    names = list(attributes_of(op))
    if len(values) > len(names):
        expected = f"arguments: {', '.join(signature(op).names) or 'none'}; attributes: {', '.join(names) or 'none'}"
        raise TypeInferenceError(f"{op.name}: {len(values) - len(names)} values too many", hint=expected)
    for name in names[: len(values)]:
        if name in keywords:
            raise TypeInferenceError(f"{op.name}: attribute {name!r} is given twice, by position and by name")
    return dict(zip(names, values, strict=False))


_made: dict[str, Any] = {}
"""Builders by the operator's name; each remembers the class that it is of, which may be defined again."""


def _builder_of(op: type[Op]) -> Any:
    found = _made.get(op.name)
    if found is None or found.op is not op:
        found = _made[op.name] = _new_builder(op)
    return found


def _new_builder(op: type[Op]) -> Any:
    """The function that ``help`` describes: arguments and attributes in its signature, what each may be in its text."""

    def build(*args: Any, **attributes: Any) -> Call:
        return _build(op, args, dict(attributes))

    build.__name__ = build.__qualname__ = op.name.rpartition(".")[2]
    build.__doc__ = described(op)
    vars(build).update(__signature__=_call_signature(op), op=op)
    return build


def described(op: type[Op]) -> str:
    """The words of an operator class and those it is derived from, which say what attributes mean; then what each
    attribute may be, and what it is by default."""
    classes = [c for c in op.__mro__ if issubclass(c, Op) and c is not Op]
    words = [inspect.cleandoc(c.__doc__) for c in classes if c.__doc__ and not c.__doc__.startswith(f"{c.__name__}(")]
    lines = [f"    {a.name}: {a.kind.expected}{_default_text(op, a)}" for a in attributes_of(op).values()]
    return "\n\n".join([*words, *(["\n".join(["Attributes:", *lines])] if lines else [])])


def _default_text(op: type[Op], attribute: Attribute) -> str:
    return "" if attribute.required else f" (default {format_attribute(default_of(op, attribute.name))})"


def default_of(op: type[Op], name: str) -> Any:
    """What an attribute is where nobody says; ``dataclasses.MISSING``: it has to be said."""
    (found,) = (f for f in dataclasses.fields(op) if f.name == name)
    return found.default if found.default_factory is dataclasses.MISSING else found.default_factory()


def _call_signature(op: type[Op]) -> inspect.Signature:
    found, kinds = signature(op), inspect.Parameter
    made = [
        kinds(name, kinds.POSITIONAL_OR_KEYWORD, default=kinds.empty if n < found.required else None)
        for n, name in enumerate(found.names)
    ]
    made += [kinds("more", kinds.VAR_POSITIONAL)] if found.variadic else []
    for attribute in attributes_of(op).values():
        default = kinds.empty if attribute.required else default_of(op, attribute.name)
        made.append(kinds(attribute.name, kinds.KEYWORD_ONLY, default=default))
    return inspect.Signature(made)


class _Namespace:
    """``nn``: a function for each operator below the name, made when it is asked for."""

    def __init__(self, name: str, ops: dict[str, type[Op]]) -> None:
        self._name, self._ops = name, ops

    def __getattr__(self, name: str) -> Any:
        if name not in self._ops:
            hint = did_you_mean(name, self._ops, str)
            raise AttributeError(f"there is no operator {self._name}.{name}" + (f"; {hint}" if hint else ""))
        return _builder_of(self._ops[name])

    def __dir__(self) -> list[str]:
        return sorted(self._ops)

    def __repr__(self) -> str:
        return f"<operators {self._name}.*: {', '.join(sorted(self._ops))}>"


class Builder(Protocol):
    """``nn`` is a namespace, ``nn.relu`` a function: one type for both, since operators are found by name."""

    def __call__(self, *args: Any, **attributes: Any) -> Call: ...

    def __getattr__(self, name: str) -> Builder: ...


def __getattr__(name: str) -> Builder:
    """``add`` is a function, ``nn`` a namespace of them; operators defined later (a user's own) are found too."""
    inner = {full.removeprefix(f"{name}."): op for full, op in OPS.items() if full.startswith(f"{name}.")}
    if name not in OPS and not inner:
        raise AttributeError(f"minitvm.ir.builder has no operator {name!r}")
    found: Any = _Namespace(name, inner)
    builder: Builder = _builder_of(OPS[name]) if name in OPS else found
    return builder
