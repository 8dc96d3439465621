"""Control flow that depends on data: calls whose bodies are functions and whose captured values are arguments."""

from collections.abc import Callable
from typing import Any

import numpy as np

from minitvm.errors import InputError
from minitvm.ir.dims import Dim, anonymous, differ
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Constant, Expr, Function, Var
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops.bodies import Choice, OverFunctions, most_trips
from minitvm.ir.types import DType, FuncType, TensorType, TupleType, Type, accepts, as_shape, bound, common
from minitvm.ir.visitor import children, post_order, substitute


def too_many_trips(most: int) -> InputError:
    message = f"{Loop.name}: more than {most:,} trips"
    return InputError(message, hint="MINITVM_MAX_TRIPS is how many a loop may have; 0 is no limit")


def _signature(op: Op, part: str, function: Function) -> FuncType:
    if not isinstance(function.checked_type, FuncType):
        raise op.reject(f"{part} has no type yet", hint="give its parameters types")
    return function.checked_type


def _check_scalar(op: Op, argument: str, type_: Type, dtype: str) -> None:
    one = isinstance(type_, TensorType) and not any(differ(d, 1) for d in type_.shape) and type_.dtype == dtype
    if not one:
        raise op.reject(f"{argument} is {type_}; expected a single {dtype}")


def _check_arguments(op: Op, part: str, params: tuple[Type, ...], given: tuple[Type, ...]) -> None:
    if len(params) != len(given):
        raise op.reject(f"{part} takes {len(params)} values, {len(given)} given")
    for position, (param, type_) in enumerate(zip(params, given, strict=True)):
        if not accepts(param, type_):
            raise op.reject(f"value {position} of {part} is {type_}, its parameter {param}")


def _common(op: Op, a: Type, b: Type) -> Type:
    """The type of a value that is of either type."""
    found = common(a, b)
    if found is None:
        raise op.reject(f"results differ in dtype or rank: {a} and {b}")
    return found


class If(Choice, name="control.if", fusion=Fusion.OPAQUE, hosted=True, takes_stored=True):
    """One of two functions, called with the captured values.

    condition: one bool (true: ``then_branch``, false: ``else_branch``), captured: what both take -> what both return;
    dimensions that differ are anonymous.
    """

    then_branch: Function
    else_branch: Function

    def infer(self, condition: TensorType, *captured: Type) -> Type:
        _check_scalar(self, "condition", condition, "bool")
        then = _signature(self, "then_branch", self.then_branch)
        orelse = _signature(self, "else_branch", self.else_branch)
        _check_arguments(self, "then_branch", then.params, captured)
        _check_arguments(self, "else_branch", orelse.params, captured)
        return _common(self, then.result, orelse.result)

    def reference(self, condition: np.ndarray, *captured: Any) -> Any:
        return self.run(evaluate, condition, *captured)

    def run(self, call: Callable[..., Any], condition: np.ndarray, *captured: Any) -> Any:
        return call(self.chosen(bool(condition.item())), *captured)

    def chosen(self, condition: bool) -> Function:
        return self.then_branch if condition else self.else_branch


def choice(condition: Expr, then: Expr, orelse: Expr) -> Call:
    """A call of :class:`If`: its branches compute these expressions.

    What only one branch needs is computed in it; what both share, and variables, are captured.
    """
    used = _captured(then, orelse)
    names = [node.name if isinstance(node, Var) else f"v{i}" for i, node in enumerate(used)]
    inside: dict[Expr, Expr] = {node: Var(name, node.type) for node, name in zip(used, names, strict=True)}
    params = [param for param in inside.values() if isinstance(param, Var)]
    branches = [Function(params, substitute(branch, inside)) for branch in (then, orelse)]
    return Call(If(*branches), [condition, *used])


def _captured(then: Expr, orelse: Expr) -> list[Expr]:
    """Variables that either uses, and the outermost nodes that both do."""
    orders = [post_order(then), post_order(orelse)]
    shared = {node for node in orders[0] if not isinstance(node, (Var, Constant))}.intersection(orders[1])
    found: dict[Expr, None] = {}
    for root in (then, orelse):
        pending = [root]
        while pending:
            node = pending.pop()
            if isinstance(node, Var) or node in shared:
                found[node] = None
            elif not isinstance(node, Function):
                pending.extend(reversed(children(node)))
    return list(found)


class Loop(OverFunctions, name="control.loop", fusion=Fusion.OPAQUE, hosted=True, takes_stored=True):
    """ONNX's Loop: ``while i < trip_count and condition: condition, *carried, *scanned = body(i, condition, ...)``.

    trip_count: one int64, condition: one bool, values: the ``num_carried`` first values of the carried variables,
    then the captured ones.  The ``body`` takes (iteration: int64 (), condition: bool (), *carried, *captured) and
    returns a tuple (condition, *carried, *scanned).  The result is the tuple of the last carried values and of
    each scanned value stacked along a new first dimension, whose extent is unknown unless all ``trips`` are made.
    A carried value whose shape changes from one iteration to the next has unknown dimensions in the body.
    ``rows`` are the shapes of scanned values where there is no trip.
    """

    body: Function
    num_carried: int
    trips: Dim | None = None
    rows: tuple[tuple[Dim, ...], ...] = ()
    """The shapes of scanned values where there is no trip and the body's type leaves them open; else those are 0."""

    def infer(self, trip_count: TensorType, condition: TensorType, *values: Type) -> TupleType:
        _check_scalar(self, "trip_count", trip_count, "int64")
        _check_scalar(self, "condition", condition, "bool")
        body = _signature(self, "body", self.body)
        head = (TensorType((), "int64"), TensorType((), "bool"))
        _check_arguments(self, "body", body.params, (*head, *values))
        kept, carried, scanned = self._results(body)
        _check_scalar(self, "the body's condition", kept, "bool")
        first, again = values[: self.num_carried], body.params[2 : 2 + self.num_carried]
        for position, (param, type_) in enumerate(zip(again, carried, strict=True)):
            if not accepts(param, type_):
                raise self.reject(
                    f"carried value {position} is {type_} after an iteration, the body's parameter {param}",
                    hint="dimensions that change between iterations must be unknown in the body's parameter",
                )
        last = tuple(_common(self, a, b) for a, b in zip(first, carried, strict=True))
        return TupleType(last + tuple(self._stacked(t) for t in scanned))

    def _results(self, body: FuncType) -> tuple[Type, tuple[Type, ...], tuple[Type, ...]]:
        """The body's results: condition, carried, scanned."""
        fields = body.result.fields if isinstance(body.result, TupleType) else ()
        if len(fields) < 1 + self.num_carried:
            raise self.reject(f"the body returns {body.result}; expected a condition and {self.num_carried} values")
        return fields[0], fields[1 : 1 + self.num_carried], fields[1 + self.num_carried :]

    def _stacked(self, type_: Type) -> TensorType:
        if not isinstance(type_, TensorType):
            raise self.reject(f"only tensors can be scanned, not {type_}")
        kept = bound(type_, {})
        assert isinstance(kept, TensorType)
        return kept.with_shape((anonymous() if self.trips is None else self.trips, *kept.shape))

    def reference(self, trip_count: np.ndarray, condition: np.ndarray, *values: Any) -> tuple[Any, ...]:
        return self.run(evaluate, trip_count, condition, *values)

    @property
    def first_captured(self) -> int:
        return 2 + self.num_carried

    def run(
        self, call: Callable[..., Any], trip_count: np.ndarray, condition: np.ndarray, *values: Any
    ) -> tuple[Any, ...]:
        carried, captured = values[: self.num_carried], values[self.num_carried :]
        going, limit, steps = condition.reshape(()), trip_count.item(), []
        iteration, most = 0, most_trips()
        while iteration < limit and going.item():
            if iteration == most:
                raise too_many_trips(iteration)
            results = call(self.body, np.int64(iteration), going, *carried, *captured)
            going, carried = results[0].reshape(()), results[1 : 1 + self.num_carried]
            steps.append(results[1 + self.num_carried :])
            iteration += 1
        return (*carried, *(self._stack(position, steps) for position in range(self._scanned())))

    def _scanned(self) -> int:
        return len(self._results(_signature(self, "body", self.body))[2])

    def _stack(self, position: int, steps: list[tuple[np.ndarray, ...]]) -> np.ndarray:
        """One scanned value of all iterations; of none, an empty array of the right rank."""
        if steps:
            return np.stack([step[position] for step in steps])
        type_ = self._results(_signature(self, "body", self.body))[2][position]
        assert isinstance(type_, TensorType)
        row = self.rows[position] if self.rows else (0,) * type_.rank
        known = (d if isinstance(d, int) else n for d, n in zip(type_.shape, row, strict=True))
        return np.zeros((0, *known), type_.dtype)


class Fail(Op, name="control.fail", fusion=Fusion.OPAQUE, hosted=True, stateful=True):
    """Never returns: running it raises :class:`InputError` with ``message``.

    Stands for a branch that the shapes of the model's inputs rule out.  Nothing -> tensors of ``shapes`` and
    ``dtypes`` (one tensor, or a tuple of several), so that the other branch decides the type.
    """

    message: str
    shapes: tuple[tuple[int | None, ...], ...]
    dtypes: tuple[DType, ...]

    def infer(self) -> Type:
        fields = tuple(TensorType(as_shape(s), dtype) for s, dtype in zip(self.shapes, self.dtypes, strict=True))
        return fields[0] if len(fields) == 1 else TupleType(fields)

    def reference(self) -> Any:
        raise InputError(self.message)
