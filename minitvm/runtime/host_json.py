"""Host calls in a library file: the operator, its attributes, the types of its arguments; of a branch only the type, as
its code is a library of its own."""

from typing import Any

import minitvm.ir.ops  # noqa: F401  (registers the operators)
from minitvm.errors import LibraryError, TypeInferenceError
from minitvm.ir.dims import SymbolicDim
from minitvm.ir.expr import Call, Function, Module, Var
from minitvm.ir.op import OPS, Op
from minitvm.ir.parser import parse_module
from minitvm.ir.reader import Reader
from minitvm.ir.text import print_module
from minitvm.ir.types import Type
from minitvm.runtime.graph_json import dim_of
from minitvm.runtime.hosts import type_only

_PLAIN = (bool, int, float, str, type(None))


def _value_to_json(value: Any, what: str) -> Any:
    if isinstance(value, Function):
        return {"function": str(value.type)}
    if isinstance(value, (tuple, list)):
        return [_value_to_json(v, what) for v in value]
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, SymbolicDim) and not value.is_anonymous:
        return {"dim": str(value)}
    raise LibraryError(f"host call {what} cannot be saved: an attribute is a {type(value).__name__}")


def _value_from_json(form: Any) -> Any:
    if not isinstance(form, dict):
        return form
    return dim_of(form["dim"]) if "dim" in form else type_only(_type(form["function"]))


def _type(text: str) -> Type:
    return Reader(text, None).type()


def host_to_json(function: Function) -> dict[str, Any]:
    """A host call; ``unsaved`` says why there is no other form, where its attributes are not plain values."""
    try:
        return _host_form(function)
    except LibraryError as error:
        return {"unsaved": error.message}


def _host_form(function: Function) -> dict[str, Any]:
    call = function.body
    if not isinstance(call, Call) or not isinstance(call.op, Op) or tuple(call.args) != tuple(function.params):
        return {"text": print_module(Module(Function(function.params, function.body))), "span": list(function.span)}
    return {
        "op": call.op.name,
        "attributes": {name: _value_to_json(value, call.op.name) for name, value in call.op.attributes().items()},
        "params": [str(p.type) for p in function.params],
        "span": list(function.span),
    }


def host_from_json(form: dict[str, Any]) -> Function:
    """The call over its parameters."""
    span = tuple(form["span"])
    if "text" in form:
        main = parse_module(form["text"]).main
        return Function(main.params, main.body, span=span)
    if form["op"] not in OPS:
        raise LibraryError(
            f"the library calls operator {form['op']!r}, which is not defined here",
            hint="import the module that defines it before loading the library",
        )
    attributes = {name: _value_from_json(v) for name, v in form["attributes"].items()}
    try:
        op = OPS[form["op"]].of(attributes)
    except TypeInferenceError as error:
        raise LibraryError(
            f"the library calls operator {form['op']!r}, which is defined otherwise here: {error.message}",
            hint="compile the model again with this version of minitvm",
        ) from error
    params = [Var(f"a{i}", _type(t)) for i, t in enumerate(form["params"])]
    return Function(params, Call(op, params, span=span), span=span)
