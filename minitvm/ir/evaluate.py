"""Running a graph through the operators' ``reference``: the numpy oracle, constant folding, the host call.

Every result is held against the type that ``infer`` found, so a wrong rule is named where it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from minitvm.errors import InputError, IRError, MiniTVMError, blame
from minitvm.ir.arrays import lasting, let_go, remembered
from minitvm.ir.budget import COST, NAME, TooCostly, current, meter, metered
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var, as_graph, describe_call
from minitvm.ir.op import Op
from minitvm.ir.structural import node_key
from minitvm.ir.types import (
    DTYPES,
    AnyTensor,
    MapType,
    SequenceType,
    Span,
    TensorType,
    TupleType,
    Type,
    is_numeric,
    numpy_dtype,
    symbols,
    tensor_fields,
    type_of,
)
from minitvm.ir.visitor import post_order

Value: TypeAlias = Any
"""An array, a list of them (a sequence), ``None`` (an optional without a value), or a tuple of values."""
How: TypeAlias = Callable[..., Value]


def evaluate(target: Function | Module, *arrays: Any, how: How | None = None) -> Value:
    """The result of a function, or of a module's ``main``: an array or a tuple of them.

    ``how`` gives each call's value, from it and its arguments', in place of :func:`evaluate_call`.  Raises
    :class:`InputError` where the arrays do not fit the parameters, :class:`IRError` where an operator has no reference,
    its reference fails, or its result is not of the inferred type.
    """
    function = as_graph(target).main
    values = _bind(function, arrays)
    for _ in _run(function, values, how or evaluate_call):
        pass
    return values[function.body]


def evaluate_calls(function: Function, *arrays: Any) -> Iterator[tuple[Call, Value]]:
    """Each call of the function with its value, operands before users."""
    return _run(function, _bind(function, arrays), evaluate_call)


def _bind(function: Function, arrays: tuple[Any, ...]) -> dict[Expr, Value]:
    """The parameters' values; arrays are checked, not copied."""
    if len(arrays) != len(function.params):
        names = ", ".join(p.name for p in function.params)
        raise InputError(f"{len(function.params)} inputs are expected ({names}), {len(arrays)} given")
    values: dict[Expr, Value] = {}
    for param, given in zip(function.params, arrays, strict=True):
        value = as_value(given)
        if param.checked_type is not None and not fits(value, param.checked_type):
            raise InputError(f"input {param.name!r} is {_describe(value)}; expected {param.checked_type}")
        values[param] = value
    return values


def _run(function: Function, values: dict[Expr, Value], how: How) -> Iterator[tuple[Call, Value]]:
    counting = meter()
    for node in post_order(function.body):
        if node in values:
            continue
        if counting is not None and isinstance(node, Call):
            counting.count(*_price(node))
        values[node] = _value_of(node, values, how)
        if counting is not None and isinstance(node, Call) and not node.type.is_static:
            counting.count(0, _nbytes(values[node]))
        if isinstance(node, Call):
            yield node, values[node]


def _price(call: Call) -> tuple[float, float]:
    """Operations of a call, and bytes of its result, as far as its type says."""
    if isinstance(call.op, Function) or not call.type.is_static:
        return 0, 0
    args = [t for arg in call.args for t in tensor_fields(arg.type)]
    results = tensor_fields(call.type)
    return call.op.flops(args, results) if all(t.is_static for t in args) else 0, sum(t.nbytes for t in results)


def _nbytes(value: Value) -> int:
    if isinstance(value, (tuple, list)):
        return sum(map(_nbytes, value))
    return value.nbytes if isinstance(value, np.ndarray) else 0


def _value_of(node: Expr, values: dict[Expr, Value], how: How) -> Value:
    if isinstance(node, Call):
        return how(node, *(values[arg] for arg in node.args))
    if isinstance(node, Constant):
        return node.value
    if isinstance(node, Tuple):
        return tuple(values[field] for field in node.fields)
    if isinstance(node, TupleGetItem):
        return values[node.tuple][node.index]
    if isinstance(node, Var):
        raise IRError(f"variable %{node.name} is not a parameter of the function")
    raise IRError(f"a {type(node).__name__} has no value; only a call of it does")


def evaluate_call(call: Call, *arguments: Value) -> Value:
    """One call's value from its arguments', checked against the call's type."""
    if isinstance(call.op, Function):
        return evaluate(call.op, *arguments)
    value = _apply(call, call.op, arguments)
    if call.checked_type is not None and not fits(value, call.checked_type):
        raise IRError(
            f"{call.op.name}: the reference's result is {_describe(value)}, but infer says {call.checked_type}",
            where=describe_call(call),
        )
    return value


def _apply(call: Call, op: Op, arguments: tuple[Value, ...]) -> Value:
    if not op.has_reference():
        raise IRError(f"{op.name}: has no reference, so it cannot be evaluated", where=describe_call(call))
    try:
        with np.errstate(all="ignore"):
            value = op.reference(*arguments)
    except MiniTVMError as error:
        error.where = error.where or tuple(describe_call(call))
        raise
    except (ValueError, IndexError, ArithmeticError, MemoryError) as error:
        raise IRError(f"{op.name}: the reference failed: {error}", where=describe_call(call)) from error
    except Exception as error:
        blame(error, type(op), f"reference of {op.name}", partial(describe_call, call))
    return as_value(value)


def as_value(given: Any) -> Value:
    """An array; a tuple of values, a sequence (a list), a map and an optional that has none are themselves."""
    if isinstance(given, tuple):
        return tuple(map(as_value, given))
    return given if given is None or isinstance(given, (list, dict)) else np.asarray(given)


def fits(value: Value, type_: Type) -> bool:
    """True if a value is of a type; a dimension that is known only at run time fits any extent."""
    if not isinstance(type_, TensorType):
        return _holds(value, type_)
    if not isinstance(value, np.ndarray) or value.dtype != numpy_dtype(type_.dtype) or value.ndim != type_.rank:
        return False
    return all(want == have or not isinstance(want, int) for have, want in zip(value.shape, type_.shape, strict=True))


def _holds(value: Value, type_: Type) -> bool:
    """True if a value is of a type that is no tensor's."""
    match type_:
        case TupleType(fields):
            return isinstance(value, tuple) and len(value) == len(fields) and all(map(fits, value, fields))
        case SequenceType(optional=True):
            return value is None or fits(value, type_.element)
        case SequenceType():
            return isinstance(value, list) and all(fits(v, type_.element) for v in value)
        case MapType():
            return isinstance(value, dict)
        case AnyTensor():
            return isinstance(value, np.ndarray) and value.dtype == numpy_dtype(type_.dtype) and not type_.none
    return False


def _describe(value: Value) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_describe, value))})"
    known = isinstance(value, np.ndarray) and value.dtype.name in DTYPES
    return str(type_of(value)) if known else f"a {type(value).__name__} of dtype {getattr(value, 'dtype', None)}"


# --- constant folding -----------------------------------------------------------------------------------------

NOT_CONSTANT = Declined("an argument is not constant")


def constant_value(expr: Expr) -> Value | None:
    """The array of a constant, the arrays of a tuple of constants; ``None`` for anything else."""
    if isinstance(expr, Constant):
        return expr.value
    if not isinstance(expr, Tuple):
        return None
    fields = tuple(map(constant_value, expr.fields))
    return None if any(f is None for f in fields) else fields


def unfoldable(call: Call) -> Declined | None:
    """The reason why a call has no value before the model runs, or none that compiling has the budget for."""
    if isinstance(call.op, Function) or any(constant_value(arg) is None for arg in call.args):
        return NOT_CONSTANT
    if symbols(call.type) or call.op.symbols:
        return Declined("its shape is known only when the model runs")
    if call.op.stateful:
        return Declined("it gives other results every time")
    if call.checked_type is not None and not is_numeric(call.checked_type):
        return Declined(f"only Python holds a {call.checked_type}")
    return _too_costly(call) if call.op.has_reference() else Declined("it has no reference")


def _too_costly(call: Call) -> Declined | None:
    operations, nbytes = _price(call)
    steps, budget = (operations + nbytes) / COST, current()
    if call in budget.refused:
        return Declined(f"it was tried, and takes more than {NAME} has")
    return (budget.refusal("steps", steps) if steps > 1 else None) or budget.refusal("bytes", _growth(call))


def _growth(call: Call) -> int:
    """By how many bytes the result is larger than the operands; nothing that is worth counting of small ones."""
    if not call.type.is_static:
        return 0
    operands = sum(t.nbytes for arg in call.args for t in tensor_fields(arg.type) if t.is_static)
    grown = sum(t.nbytes for t in tensor_fields(call.type)) - operands
    return grown if grown > COST else 0


def folded(call: Call, name: str | None = None) -> Expr:
    """The value of a call that is not :func:`unfoldable`: a constant of that name, or a tuple of them.

    The call itself where that turns out to take more than compiling has the budget for, which of loops nobody knows.
    """
    values, budget = [constant_value(arg) for arg in call.args], current()
    try:
        with metered():
            found = remembered(node_key(call), values, lambda: _computed(call, values))
    except TooCostly:
        budget.refused.add(call)
        return call
    budget.spend("bytes", _growth(call))
    return _constant(found, name, call.span)


def _computed(call: Call, values: Sequence[Value | None]) -> Value:
    """A call's value; what its operands have in files leaves memory before the value is copied to where it lasts."""
    counting = meter()
    if counting is not None:
        counting.count(*_price(call))
    found = evaluate_call(call, *values)
    for argument in post_order(*call.args):
        if isinstance(argument, Constant):
            let_go(argument.value)
    return lasting(found) if isinstance(found, np.ndarray) else found


def _constant(value: Value, name: str | None, span: Span) -> Expr:
    if isinstance(value, tuple):
        return Tuple([_constant(v, name, span) for v in value], span=span)
    return Constant(lasting(value), name, span=span)
