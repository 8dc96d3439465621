"""Host calls as JSON, for the library file: the operator, its attributes, the types of its arguments.

Of a branch only the type is kept: its code is a library of its own in the same file.
"""

from __future__ import annotations

from typing import Any

import minitvm.ir.ops  # noqa: F401  (registers the operators)
from minitvm.errors import LibraryError, TypeInferenceError
from minitvm.ir.expr import Call, Function, Module, Var
from minitvm.ir.op import OPS, Op
from minitvm.ir.parser import parse_module
from minitvm.ir.text import print_module
from minitvm.ir.types import FuncType, TensorType, TupleType, Type

_PLAIN = (bool, int, float, str, type(None))


def type_to_json(type_: Type) -> Any:
    if isinstance(type_, TensorType):
        return {"shape": list(type_.sizes), "dtype": type_.dtype}
    if isinstance(type_, TupleType):
        return [type_to_json(field) for field in type_.fields]
    return {"params": [type_to_json(p) for p in type_.params], "result": type_to_json(type_.result)}


def type_from_json(form: Any) -> Type:
    if isinstance(form, list):
        return TupleType(tuple(type_from_json(f) for f in form))
    if "params" in form:
        return FuncType(tuple(type_from_json(p) for p in form["params"]), type_from_json(form["result"]))
    return TensorType(tuple(form["shape"]), form["dtype"])


def _value_to_json(value: Any, what: str) -> Any:
    if isinstance(value, Function):
        return {"function": type_to_json(value.type)}
    if isinstance(value, (tuple, list)):
        return [_value_to_json(v, what) for v in value]
    if isinstance(value, _PLAIN):
        return value
    raise LibraryError(f"host call {what} cannot be saved: an attribute is a {type(value).__name__}")


def _value_from_json(form: Any) -> Any:
    return _type_only(type_from_json(form["function"])) if isinstance(form, dict) else form


def _type_only(type_: Type) -> Function:
    """A function of that type whose body is an unbound variable: it can be asked for its types, not run."""
    assert isinstance(type_, FuncType)
    return Function([Var(f"a{i}", p) for i, p in enumerate(type_.params)], Var("result", type_.result))


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
        "params": [type_to_json(p.type) for p in function.params],
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
    params = [Var(f"a{i}", type_from_json(t)) for i, t in enumerate(form["params"])]
    return Function(params, Call(op, params, span=span), span=span)
