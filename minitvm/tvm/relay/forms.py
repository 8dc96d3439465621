"""Relay's names for what our nodes, types and modules have: attributes and methods that are put on their classes here,
and classes that make our nodes of Relay's arguments: ``relay.Var("x", relay.TensorType((3,)))`` is a
:class:`minitvm.ir.expr.Var`, and an instance of ``relay.Var``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from minitvm.errors import IRError, TypeInferenceError
from minitvm.ir import builder, types
from minitvm.ir import expr as nodes
from minitvm.ir.attributes import complete, waiting
from minitvm.ir.dims import SymbolicDim
from minitvm.ir.op import OPS, Op
from minitvm.runtime.ndarray import NDArray
from minitvm.scopes.nodes import Apply, Global, applied, free_vars
from minitvm.tvm.error import NotOfferedError


class Form(type):
    """The class of Relay's classes that make our nodes: what is an instance of ours is one of Relay's."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.__bases__[0])

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.__bases__[0])


# --- values ---------------------------------------------------------------------------------------------------


def number(value: Any) -> Any:
    """Python's number for one of TVM's (``tir.IntImm``), an array of one element, or one of numpy's."""
    value = getattr(value, "value", value)
    value = value.numpy() if isinstance(value, NDArray) else value
    return value.item() if isinstance(value, (np.generic, np.ndarray)) and value.size == 1 else value


def shape_of(given: Any) -> types.Shape:
    """A shape from what Relay's scripts write: numbers, ``tir.IntImm``, ``te.var``, ``relay.Any()``, or an array."""
    value = getattr(given, "value", given)
    if isinstance(value, (NDArray, np.ndarray)):
        return types.as_shape(np.asarray(value).tolist())
    if isinstance(value, (list, tuple)) and any(hasattr(d, "value") or isinstance(d, np.ndarray) for d in value):
        return types.as_shape([number(d) for d in value])
    return types.as_shape(value)


def type_of(given: Any) -> types.Type | None:
    """A type, or the dtype of a scalar."""
    return types.TensorType((), given) if isinstance(given, str) else given


class _TensorType(types.TensorType, metaclass=Form):
    """Makes a tensor's type: ``TensorType(shape, dtype="float32")``."""

    def __new__(cls, shape: Any, dtype: str = "float32") -> Any:
        return types.TensorType(shape_of(shape), dtype)


class _TupleType(types.TupleType, metaclass=Form):
    """Makes a tuple's type of any sequence: ``TupleType(fields)``."""

    def __new__(cls, fields: Iterable[Any]) -> Any:
        return types.TupleType(_types(fields))


class _FuncType(types.FuncType, metaclass=Form):
    """Makes a function's type: ``FuncType(arg_types, ret_type)``, without type parameters and constraints."""

    def __new__(
        cls, arg_types: Iterable[Any], ret_type: Any, type_params: Any = None, type_constraints: Any = None
    ) -> Any:
        no_type_params(type_params or type_constraints)
        return types.FuncType(_types(arg_types), ret_type)


def _types(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given


def no_type_params(given: Any) -> None:
    """:class:`IRError` where a function is given any."""
    if given:
        raise IRError("functions have no type parameters", hint="give the parameters types, or leave them open")


# --- nodes ----------------------------------------------------------------------------------------------------


def var(
    name_hint: str, type_annotation: Any = None, shape: Any = None, dtype: str = "float32", span: Any = None
) -> nodes.Var:
    """A variable: ``var("x", TensorType((1, 3)))``, ``var("x", shape=(1, 3), dtype="int8")``, ``var("n", "int32")`` a
    scalar, ``var("x")`` without a type.  A ``dtype`` is a shape's.  :class:`TypeInferenceError` for type and shape."""
    if isinstance(type_annotation, str) and shape is None:
        type_annotation, shape, dtype = None, (), type_annotation
    sizes: Any = None if shape is None else shape_of(shape)
    made = builder.var(name_hint, type_annotation, sizes, "float32" if sizes is None else dtype)
    return made if _span(span) is None else nodes.Var(made.name, made.checked_type, _span(span))


def _span(given: Any) -> types.Span | None:
    """The names of a model's nodes; what else TVM calls a span says nothing here."""
    return given if isinstance(given, tuple) else None


class SourceName(str):
    """The name of what a node was made of, a file or a model's node."""

    __slots__ = ()
    name = property(str)


def Span(source_name: str, line: int = 0, end_line: int = 0, column: int = 0, end_column: int = 0) -> types.Span:
    """The origin of a node, which is a name here."""
    return (str(source_name),)


class _Var(nodes.Var, metaclass=Form):
    """Makes a variable: ``Var(name_hint, type_annotation=None)``."""

    def __new__(cls, name_hint: str, type_annotation: Any = None, span: Any = None) -> Any:
        return nodes.Var(name_hint, type_annotation, _span(span))


NARROWER: dict[str, str] = {}
"""What numpy's dtypes become in constants without a dtype: for scripts of TVM's, ``float64`` is ``float32``."""


def const(value: Any, dtype: str | None = None, span: Any = None, name: str | None = None) -> nodes.Constant:
    """A constant of a number, numbers in lists, or an array; Python's integers are int32, floats float32."""
    if isinstance(value, NDArray):
        value = value.numpy()
    elif dtype is None and isinstance(value, (np.ndarray, np.generic)):
        dtype = NARROWER.get(value.dtype.name)
    if isinstance(value, float) or not isinstance(value, (np.ndarray, np.generic)):  # np.float64 is a float, as in TVM
        value = [number(v) for v in value] if isinstance(value, (list, tuple)) else number(value)
    try:
        found = builder.const(float(value) if type(value) is np.float64 else value, dtype, name)
    except (TypeError, ValueError, OverflowError) as error:
        hint = "constants are numbers, booleans and arrays of them"
        raise TypeInferenceError(f"{value!r} is no tensor of {dtype or 'numbers'}: {error}", hint=hint) from error
    return found


class _Constant(nodes.Constant, metaclass=Form):
    """Makes a constant of an array: ``Constant(data)``."""

    def __new__(cls, data: Any, span: Any = None) -> Any:
        return const(np.asarray(data.numpy() if isinstance(data, NDArray) else data))


class _Tuple(nodes.Tuple, metaclass=Form):
    """Makes a tuple: ``Tuple(fields)``."""

    def __new__(cls, fields: Sequence[nodes.Expr], span: Any = None) -> Any:
        return nodes.Tuple(fields, _span(span))


class _TupleGetItem(nodes.TupleGetItem, metaclass=Form):
    """Takes a field of a tuple: ``TupleGetItem(tuple_value, index)``."""

    def __new__(cls, tuple_value: nodes.Expr, index: int, span: Any = None) -> Any:
        (value,) = _operands((tuple_value,))
        return nodes.TupleGetItem(value, number(index), _span(span))


class CallForm(Form):
    """Calls of values that are functions are calls, too."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (nodes.Call, Apply))


class _Call(nodes.Call, metaclass=CallForm):
    """Makes a call, ``Call(op, args, attrs=None)``: of an operator (by name with its attributes), of a function, of
    the name of one, or of a value that is a function."""

    def __new__(
        cls, op: Any, args: Sequence[nodes.Expr], attrs: Any = None, type_args: Any = None, span: Any = None
    ) -> Any:
        called = _callee(op, attrs)
        if isinstance(called, nodes.Expr) and isinstance(called.checked_type, (types.FuncType, type(None))):
            return applied(called, _operands(args), _span(span))
        return nodes.Call(called, _operands(args), _span(span))


def _callee(op: Any, attrs: Any) -> Any:
    if isinstance(op, GlobalVar):
        return op.called()
    if isinstance(op, Op) or not hasattr(op, "name") or op.name not in OPS:
        return op
    return OPS[op.name].of(dict(attrs or {}))


def _operands(args: Sequence[Any]) -> list[nodes.Expr]:
    wrong = [one for one in args if not isinstance(one, nodes.Expr)]
    if wrong:
        raise IRError(f"arguments are expressions, not {type(wrong[0]).__name__}", hint="relay.const(value)")
    return list(args)


class _GlobalVars(type):
    """A name that stands in an expression is one, too."""

    def __instancecheck__(cls, value: object) -> bool:
        return type.__instancecheck__(cls, value) or isinstance(value, Global)


class GlobalVar(nodes.GlobalVar, metaclass=_GlobalVars):
    """The name of a function of a module, which can be called, also by that function itself."""

    function: nodes.Function | None = None

    def called(self) -> nodes.Expr:
        """The function; its name where no module has one by it yet."""
        return Global(self) if self.function is None else self.function

    def __call__(self, *args: nodes.Expr) -> nodes.Expr:
        return applied(self.called(), _operands(args))


if TYPE_CHECKING:  # for which they are our classes
    TensorType = types.TensorType
    TupleType = types.TupleType
    FuncType = types.FuncType
    Var = nodes.Var
    Constant = nodes.Constant
    Tuple = nodes.Tuple
    TupleGetItem = nodes.TupleGetItem
    Call = nodes.Call
else:
    TensorType, TupleType, FuncType = _TensorType, _TupleType, _FuncType
    Var, Constant, Tuple, TupleGetItem, Call = _Var, _Constant, _Tuple, _TupleGetItem, _Call


# --- functions and modules ------------------------------------------------------------------------------------


def attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of functions as Python's values."""
    return {str(name): number(value) for name, value in given.items()}


def with_attr(function: nodes.Function, attr_key_or_dict: str | Mapping[str, Any], attr_value: Any = None) -> Any:
    """The function with an attribute more, or with all of a dictionary."""
    more = attr_key_or_dict if isinstance(attr_key_or_dict, Mapping) else {attr_key_or_dict: attr_value}
    return nodes.Function(function.params, function.body, {**function.attrs, **attributes(more)}, function.span)


def without_attr(function: nodes.Function, attr_key: str) -> nodes.Function:
    """The function without an attribute."""
    kept = {name: value for name, value in function.attrs.items() if name != attr_key}
    return nodes.Function(function.params, function.body, kept, function.span)


def overwrite(module: nodes.Module, name: Any, function: Any) -> None:
    """``module[name] = function``, in place: an expression is a function of its free variables."""
    if not isinstance(function, nodes.Expr):
        raise IRError(f"a module is made of functions, not of a {type(function).__name__}")
    made = _function_of(function)
    if isinstance(name, GlobalVar):
        name.function = made
    key = name if isinstance(name, nodes.GlobalVar) else GlobalVar(name)
    _put(module, {**module.functions, key: made})


def _put(module: nodes.Module, functions: dict[Any, nodes.Function]) -> None:
    object.__setattr__(module, "functions", MappingProxyType(functions))


def update(module: nodes.Module, other: nodes.Module | Mapping[Any, Any]) -> None:
    """Takes over all functions of another module."""
    for name, function in (other.functions if isinstance(other, nodes.Module) else other).items():
        overwrite(module, name, function)


def remove(module: nodes.Module, name: str) -> None:
    """Removes a function."""
    module[name]
    _put(module, {key: function for key, function in module.functions.items() if key != name})


def global_var(module: nodes.Module, name: str) -> GlobalVar:
    """A function's name, which can be called; :class:`IRError` where there is no such function."""
    found = GlobalVar(name)
    found.function = module[name]
    return found


def from_expr(expr: Any, functions: Mapping[Any, Any] | None = None, type_defs: Any = None) -> nodes.Module:
    """A module whose ``main`` is an expression over its free variables, beside other functions."""
    if isinstance(expr, nodes.Module):
        return expr
    made = _function_of(*_operands((expr,)))
    module = nodes.Module({str(made.attrs.get("global_symbol", "main")): made})
    update(module, functions or {})
    return module


def _function_of(expr: nodes.Expr) -> nodes.Function:
    """A function; an expression as one of its free variables."""
    return expr if isinstance(expr, nodes.Function) else nodes.Function(free_vars(expr), expr)


def _not_offered(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotOfferedError(f"minitvm's modules have no {name}", hint="there are tensors and tuples only")

    return refuse


def astype(expr: nodes.Expr, dtype: str) -> nodes.Expr:
    """Casts to another dtype."""
    return builder.call_op("cast", expr, dtype=str(dtype))


def fields_of(expr: nodes.Expr) -> Iterator[nodes.Expr]:
    """The fields of a tuple; of a call without a type yet, as many results as its operator has."""
    count = getattr(expr.op, "outputs", 0) if isinstance(expr, nodes.Call) and expr.checked_type is None else 0
    return (nodes.TupleGetItem(expr, i) for i in range(count)) if count else _fields(expr)


_fields = nodes.Expr.__iter__


def _compared(name: str) -> Callable[[Any, Any], nodes.Expr]:
    return lambda expr, other: builder.call_op(name, expr, other)


def same_as(this: object, other: object) -> bool:
    """True if both are one object."""
    return this is other


def _names_of(op: Op) -> list[str]:
    return list(op.attributes())


def _value_of(op: Op, name: str) -> Any:
    return op.attributes()[name]


_FORMS: dict[type, dict[str, Any]] = {
    nodes.Expr: {
        "__iter__": fields_of,
        "astuple": lambda node: node,
        "astype": astype,
        "same_as": same_as,
        "__call__": lambda function, *args: applied(function, _operands(args)),
        "__lt__": _compared("less"),
        "__gt__": _compared("greater"),
        "__le__": _compared("less_equal"),
        "__ge__": _compared("greater_equal"),
    },
    nodes.GlobalVar: {"name_hint": property(str)},
    nodes.Var: {
        "name_hint": property(lambda node: node.name),
        "type_annotation": property(lambda node: node.checked_type),
    },
    nodes.Constant: {"data": property(lambda node: NDArray(node.value))},
    nodes.TupleGetItem: {"tuple_value": property(lambda node: node.tuple)},
    nodes.Call: {"type_args": property(lambda node: [a.checked_type for a in node.args])},
    nodes.Function: {"with_attr": with_attr, "with_attrs": with_attr, "without_attr": without_attr},
    nodes.Module: {
        "update": update,
        "update_func": overwrite,
        "_add": lambda module, name, function, update=False: overwrite(module, name, function),
        "remove": remove,
        "get_global_var": global_var,
        "get_global_vars": lambda module: [global_var(module, name) for name in module.functions],
        "functions_items": lambda module: list(module.functions.items()),
        "from_expr": staticmethod(from_expr),
        **{
            name: _not_offered(name)
            for name in ("import_from_std", "get_type", "get_global_type_var", "get_global_type_vars", "with_attr")
        },
    },
    types.TensorType: {"concrete_shape": property(lambda type_: type_.static_shape)},
    types.FuncType: {
        "arg_types": property(lambda type_: type_.params),
        "ret_type": property(lambda type_: type_.result),
        **dict.fromkeys(("type_params", "type_constraints"), property(lambda _: ())),
    },
    Op: {"keys": _names_of, "__getitem__": _value_of},
}
"""By class, what is put on it."""

for _op in [*waiting]:  # an attribute without a default would take what is put on all operators for one
    complete(_op)
for _class, _names in _FORMS.items():
    for _attribute, _form in _names.items():
        setattr(_class, _attribute, _form)
