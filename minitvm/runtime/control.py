"""Host calls: what has no kernel runs in Python between the native segments, through the operator's ``reference``.

``if`` and ``loop`` are host calls whose branches are libraries of their own, so that only the decision is Python's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Function
from minitvm.ir.op import Op
from minitvm.ir.ops.control import If, Loop
from minitvm.ir.types import TensorType, TupleType, Type
from minitvm.ir.visitor import calls

if TYPE_CHECKING:
    from minitvm.runtime.library import Library


def nest(type_: Type, arrays: list[np.ndarray]) -> Any:
    """The arrays, taken from the front of the list, in the structure of a type."""
    if isinstance(type_, TupleType):
        return tuple(nest(field, arrays) for field in type_.fields)
    return arrays.pop(0)


def flatten(type_: Type, value: Any) -> list[np.ndarray]:
    """The arrays of a value of that type in order."""
    if isinstance(type_, TupleType):
        return [a for field, v in zip(type_.fields, value, strict=True) for a in flatten(field, v)]
    return [np.asarray(value)]


HostRun: TypeAlias = Callable[[list[np.ndarray]], list[np.ndarray]]


def branch_functions(function: Function) -> dict[str, Function]:
    """The branches of a control-flow call, by attribute name; none for other functions."""
    if not isinstance(function.body, Call) or not isinstance(function.body.op, (If, Loop)):
        return {}
    return {n: f for n, f in function.body.op.attributes().items() if isinstance(f, Function)}


class HostFunction:
    """One host call: arrays in, arrays out, flattened as in the graph.

    ``function`` is the call over its parameters (or the calls of a group that has no kernel).  ``branches`` are the
    compiled functions of a control-flow operator by attribute name.
    """

    def __init__(self, function: Function, branches: Mapping[str, Library] | None = None) -> None:
        self.function = function
        self.branches = dict(branches or {})

    @property
    def name(self) -> str:
        """The operators that run here."""
        return ", ".join(c.op.name for c in calls(self.function.body) if isinstance(c.op, Op))

    def bind(self, num_threads: int) -> HostRun:
        """The call with modules of its own for its branches."""
        run = self._runner(num_threads)
        params, result = [param.type for param in self.function.params], self.function.ret_type

        def call(arrays: list[np.ndarray]) -> list[np.ndarray]:
            flat = list(arrays)
            return flatten(result, run(*[nest(type_, flat) for type_ in params]))

        return call

    def _runner(self, num_threads: int) -> Callable[..., Any]:
        op = self.function.body.op if isinstance(self.function.body, Call) else None
        if isinstance(op, If) and self.branches:
            return _if_runner(self, num_threads)
        if isinstance(op, Loop) and self.branches:
            return _loop_runner(self, op, num_threads)
        return partial(evaluate, self.function)


def _branch(host: HostFunction, name: str, num_threads: int) -> Callable[..., Any]:
    """A branch as a function of values; one module runs it each time."""
    function = branch_functions(host.function)[name]
    params = [param.type for param in function.params]
    instance = host.branches[name]["default"](None, num_threads)
    inputs = [n for n in instance.input_names if n not in instance.library.params]

    def run(*values: Any) -> Any:
        arrays = [a for type_, v in zip(params, values, strict=True) for a in flatten(type_, v)]
        for label, array in zip(inputs, arrays, strict=True):
            instance.assign(label, array)
        instance.run()
        return nest(function.ret_type, [instance.value(head).copy() for head in instance.graph.heads])

    return run


def _if_runner(host: HostFunction, num_threads: int) -> Callable[..., Any]:
    then, orelse = (_branch(host, name, num_threads) for name in ("then_branch", "else_branch"))
    return lambda condition, *captured: (then if condition.item() else orelse)(*captured)


def _loop_runner(host: HostFunction, op: Loop, num_threads: int) -> Callable[..., Any]:
    """As the operator's reference, with a compiled body."""
    body = _branch(host, "body", num_threads)
    count = op.num_carried

    def run(trip_count: np.ndarray, condition: np.ndarray, *values: Any) -> tuple[Any, ...]:
        carried, captured = values[:count], values[count:]
        going, limit = condition.item(), trip_count.item()
        steps: list[tuple[np.ndarray, ...]] = []
        while len(steps) < limit and going:
            results = body(np.int64(len(steps)), np.bool_(going), *carried, *captured)
            going, carried = results[0].item(), results[1 : 1 + count]
            steps.append(results[1 + count :])
        return (*carried, *_stack(host.function.ret_type, count, steps))

    return run


def _stack(result: Type, carried: int, steps: list[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    """Each scanned value of all iterations along a new first dimension; of none, empty arrays."""
    assert isinstance(result, TupleType)
    if steps:
        return [np.stack(values) for values in zip(*steps, strict=True)]
    empty = [t for t in result.fields[carried:] if isinstance(t, TensorType)]
    return [np.zeros((0, *(d or 0 for d in t.shape[1:])), t.dtype) for t in empty]
