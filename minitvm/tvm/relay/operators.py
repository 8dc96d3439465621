"""Operators as Relay's functions: with the names, order and defaults of their parameters in v0.14 (``signatures.txt``).

Relay's parameters become ours by their names; where they mean something else, or Relay's operator is several of ours,
``minitvm.tvm.relay.composed`` has a function.  Attributes may be expressions that are constant: a shape that is given
as ``relay.const([2, 3])``.  An attribute of ours that Relay has not is taken by its name.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minitvm.errors import MiniTVMError, TypeInferenceError, did_you_mean
from minitvm.ir import builder
from minitvm.ir.attributes import attributes_of
from minitvm.ir.dims import SymbolicDim
from minitvm.ir.expr import Constant, Expr, Tuple, Var
from minitvm.ir.op import OPS, Op, signature
from minitvm.ir.visitor import free_vars
from minitvm.passes.redundancy import fold_constant_expr
from minitvm.runtime.ndarray import NDArray
from minitvm.tvm import lacking
from minitvm.tvm.error import NoSuchNameError, NotOfferedError
from minitvm.tvm.instead import why
from minitvm.tvm.relay.forms import const, number

NAMES = {"qnn.op.": "qnn."}
"""How operators' names begin that are below another name here."""


@functools.cache
def signatures() -> dict[str, inspect.Signature]:
    """Relay's functions by name: what they take, and what it is where nobody says."""
    text = Path(__file__).with_name("signatures.txt").read_text(encoding="utf-8")
    return {line.partition("(")[0]: _signature(line[line.index("(") :]) for line in text.splitlines()}


def _signature(parameters: str) -> inspect.Signature:
    [made] = ast.parse(f"def f{parameters}: ...").body
    assert isinstance(made, ast.FunctionDef)
    names, defaults = [a.arg for a in made.args.args], [ast.literal_eval(d) for d in made.args.defaults]
    padded = [inspect.Parameter.empty] * (len(names) - len(defaults)) + defaults
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(n, kind, default=d) for n, d in zip(names, padded, strict=True)])


@functools.cache
def _composed() -> Mapping[str, Callable[..., Any]]:
    for rest in ("composed_nn", "composed_qnn", "composed_more", "composed_sparse", "composed_bits", "composed_random"):
        importlib.import_module(f"minitvm.tvm.relay.{rest}")
    found: Mapping[str, Callable[..., Any]] = importlib.import_module("minitvm.tvm.relay.composed").COMPOSED
    return found


def our_name(name: str) -> str:
    """The name of our operator for a function of Relay's."""
    return next((ours + name.removeprefix(theirs) for theirs, ours in NAMES.items() if name.startswith(theirs)), name)


def is_offered(name: str) -> bool:
    """True if a function of Relay's is here."""
    return name in _composed() or our_name(name) in OPS


def function(name: str) -> Any:
    """An operator as a function: Relay's, or one of ours that Relay has not; :class:`NoSuchNameError` for neither."""
    if name in signatures():
        return _functions(name)
    ours = our_name(name)
    if ours in OPS:
        return builder._builder_of(OPS[ours])
    if any(known.startswith(f"{name}.") for known in (*signatures(), *OPS)):
        return Namespace(name)
    if why(f"relay.{name}"):
        return lacking.attribute("relay", name)
    hint = did_you_mean(name, [*filter(is_offered, signatures()), *OPS], str)
    raise NoSuchNameError(f"there is no relay.{name}", hint=hint)


class Namespace:
    """``relay.nn``: what is below a name, made when it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return function(f"{self._name}.{name}")

    def __dir__(self) -> list[str]:
        found = (*filter(is_offered, signatures()), *OPS)
        return sorted({n.removeprefix(f"{self._name}.").partition(".")[0] for n in found if self._in(n)})

    def _in(self, name: str) -> bool:
        return name.startswith(f"{self._name}.")

    def __repr__(self) -> str:
        return f"<operators {self._name}.*: {', '.join(dir(self))}>"


@functools.cache
def _functions(name: str) -> Callable[..., Any]:
    """Relay's function of that name; one that is not here says so when it is called."""
    expected, usage = signatures()[name], f"relay.{name}{signatures()[name]}"

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return _made(name, expected, args, kwargs)
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            if isinstance(error, MiniTVMError):
                raise
            raise TypeInferenceError(f"{name}: its arguments do not fit: {error}", hint=usage) from error

    call.__name__ = call.__qualname__ = name.rpartition(".")[2]
    op = OPS.get(our_name(name))
    call.__doc__ = _composed()[name].__doc__ if name in _composed() else builder.described(op) if op else None
    vars(call).update(__signature__=expected, op=op)
    return call


def _made(name: str, expected: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not is_offered(name):
        near = why(f"relay.{name}") or did_you_mean(name, [*filter(is_offered, signatures())], str)
        raise NotOfferedError(f"minitvm has no relay.{name}", hint=near or "docs/add-an-operator.md adds one")
    given, more = _bound(name, expected, args, kwargs)
    if name in _composed():
        return _composed()[name](**given, **more)
    return _called(OPS[our_name(name)], name, given, more)


def _bound(
    name: str, expected: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was given for each of Relay's parameters, or its default; and attributes of ours that Relay has not."""
    op = OPS.get(our_name(name))
    own = {*attributes_of(op), *signature(op).names} if op else set()
    more = {key: value for key, value in kwargs.items() if key in own and key not in expected.parameters}
    try:
        bound = expected.bind(*args, **{key: value for key, value in kwargs.items() if key not in more})
    except TypeError as error:
        raise TypeInferenceError(f"{name}: {error}", hint=f"relay.{name}{expected}") from None
    bound.apply_defaults()
    return dict(bound.arguments), more


def _called(op: type[Op], name: str, given: dict[str, Any], more: dict[str, Any]) -> Expr:
    """A call of our operator, whose arguments and attributes have the names of Relay's parameters."""
    tensors, attributes = signature(op).names, attributes_of(op)
    known = {**given, **more}
    for other in [n for n in given if n not in tensors and n not in attributes]:
        default = signatures()[name].parameters[other].default
        value = known.pop(other)
        if value is not default and value != default:
            raise NotOfferedError(f"minitvm's {op.name} has no {other}", hint=f"it has {', '.join(attributes)}")
    how: dict[str, Any] = {n: plain(value) for n, value in known.items() if n not in tensors}
    how |= {n: tensor(value) for n, value in known.items() if n in tensors and value is not None}
    return builder.call_op(op.name, **how)


# --- values -----------------------------------------------------------------------------------------------------


def tensor(value: Any) -> Expr:
    """An expression; numbers and arrays as constants, lists as tuples."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (list, tuple)):
        return Tuple([tensor(one) for one in value])
    return const(value, str(value.dtype) if isinstance(value, np.ndarray) else None)


def plain(value: Any) -> Any:
    """An attribute's value as Python's: of arrays, numbers of TVM's, and expressions that are constant."""
    if isinstance(value, Expr):
        return _known(value)
    if isinstance(value, (np.ndarray, NDArray)):
        return plain(np.asarray(value).tolist())
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value))
    return value if isinstance(value, SymbolicDim) else _short(number(value))


def _short(value: Any) -> Any:
    """A number; one of float32's by its shortest name, as the text has it: 1e-05, not 9.999999747378752e-06."""
    if type(value) is not float or not abs(value) < np.finfo("float32").max:
        return value
    narrow = np.float32(value)
    return float(str(narrow)) if value == narrow else value


def _known(expr: Expr) -> Any:
    """The value of an expression that is constant."""
    if isinstance(expr, Tuple):
        return tuple(map(_known, expr.fields))
    found = fold_constant_expr(expr) if not isinstance(expr, Var) else expr
    if not isinstance(found, Constant):
        names = ", ".join(f"%{v.name}" for v in free_vars(expr))
        wrong = (
            f"an attribute that only a run knows: it depends on {names}" if names else "an attribute that is computed"
        )
        raise TypeInferenceError(wrong, hint="give a number, a tuple, or an expression of constants")
    return plain(found.value)
