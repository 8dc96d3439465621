"""Host calls: what has no kernel runs in Python between the native segments, through the operator's ``reference``.

``if`` and ``loop`` are host calls whose branches are libraries of their own: native where all of their shapes are known
(``control.py``), else only the decision is Python's.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import minitvm.ir.ops  # noqa: F401  (registers the operators)
from minitvm.errors import InputError, origin
from minitvm.ir.dims import Dim, SymbolicDim, number, symbol
from minitvm.ir.evaluate import as_value, evaluate
from minitvm.ir.expr import Call, Function, Var
from minitvm.ir.op import Op
from minitvm.ir.ops.bodies import OverFunctions
from minitvm.ir.types import FuncType, Type, bound, flatten, leaves, nest
from minitvm.ir.visitor import calls, held_functions, sizes_of
from minitvm.runtime.instance import HostRun, Instance


def branch_functions(function: Function) -> dict[str, Function]:
    """The branches of a control-flow call, by attribute name; none for other functions."""
    body = function.body
    return held_functions(body) if isinstance(body, Call) and isinstance(body.op, Op) else {}


def is_open_control(function: Function) -> bool:
    """True if a host call is a choice or a loop over sizes that have names."""
    op = function.body.op if isinstance(function.body, Call) else None
    return isinstance(op, OverFunctions) and bool(sizes_of(function))


def numbered(function: Function, values: Mapping[str, int]) -> Function:
    """A call of control flow where symbols are numbers; of its bodies the types alone."""
    dims: dict[SymbolicDim, Dim] = {symbol(name): value for name, value in values.items()}

    def known(value: Any) -> Any:
        if isinstance(value, Function):
            inside = value.type
            assert isinstance(inside, FuncType)
            params = tuple(bound(param, dims) for param in inside.params)
            return type_only(FuncType(params, bound(inside.result, dims)))
        if isinstance(value, tuple):
            return tuple(map(known, value))
        return number(value, values) if isinstance(value, SymbolicDim) else value

    call = function.body
    assert isinstance(call, Call) and isinstance(call.op, Op)
    op = call.op.with_attributes(**{name: known(value) for name, value in call.op.attributes().items()})
    params = [Var(param.name, bound(param.type, dims)) for param in function.params]
    return Function(params, Call(op, params, span=call.span), function.attrs, span=function.span)


def operators_of(function: Function) -> str:
    """The operators that run in a host call."""
    return ", ".join(c.op.title for c in calls(function.body) if isinstance(c.op, Op))


def bind(function: Function, branches: Mapping[str, Instance]) -> HostRun:
    """A host call: values in, values out, flattened as in the graph.

    ``function`` is the call over its parameters (or the calls of a group that has no kernel).  ``branches`` run the
    compiled functions of a control-flow operator, by attribute name; without them they are evaluated.
    """
    run = _runner(function, branches)
    params, result = [param.type for param in function.params], function.ret_type

    def call(values: list[Any]) -> list[Any]:
        given = iter(values)
        try:
            return [as_value(v) for v in flatten(result, run(*[nest(type_, given) for type_ in params]))]
        except (ValueError, MemoryError) as error:
            raise _failed(function, error) from error

    return call


def _failed(function: Function, error: Exception) -> InputError:
    """What values cause that fit their types: scanned values of several shapes, more of them than memory."""
    where = [origin(function.span)] if function.span else []
    return InputError(f"{operators_of(function)} fails for these inputs: {error or type(error).__name__}", where=where)


def _runner(function: Function, instances: Mapping[str, Instance]) -> Callable[..., Any]:
    op = function.body.op if isinstance(function.body, Call) else None
    if not instances or not isinstance(op, OverFunctions):
        return partial(evaluate, function)
    branches = {f: _Branch(f, instances[name]) for name, f in branch_functions(function).items()}

    def run(*values: Any) -> Any:
        for branch in branches.values():
            branch.given.clear()
        return op.run(lambda f, *given: branches[f].run(given), *values)

    return run


class _Branch:
    """A branch with an instance of its own to run it."""

    def __init__(self, function: Function, instance: Instance) -> None:
        self.function = function
        self.instance = instance
        self.given: dict[int, Any] = {}
        """The values that the parameters have, by number: what a loop captures is set once for all iterations."""
        names = iter(n for n in instance.input_names if n not in instance.params)
        self.inputs = [[next(names) for _ in leaves(p.type)] for p in self.function.params]

    def run(self, values: Sequence[Any]) -> Any:
        for position, value in enumerate(values):
            if self.given.get(position) is not value:
                arrays = flatten(self.function.params[position].type, value)
                for name, array in zip(self.inputs[position], arrays, strict=True):
                    self.instance.assign(name, as_value(array))
                self.given[position] = value
        self.instance.run()
        self.instance.settle()
        return nest(self.function.ret_type, (self.instance.result(h) for h in self.instance.graph.heads))


def type_only(type_: Type) -> Function:
    """A function of that type whose body is an unbound variable: it can be asked for its types, not run."""
    assert isinstance(type_, FuncType)
    return Function([Var(f"a{i}", p) for i, p in enumerate(type_.params)], Var("result", type_.result))
