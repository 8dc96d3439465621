"""Control flow that depends on data, checks of values while a model runs, and marks that compute nothing.

Control flow is calls whose bodies are functions and whose captured values are arguments.  A check is a kernel that
looks; the executor raises after the run:

    %flag = control.out_of_range(%data, %indices, axes=[0])
    take(%data, control.after(%indices, %flag), axis=0)

Kernels themselves clamp positions, so that no input makes them touch memory that is not their own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from minitvm import config
from minitvm.errors import InputError
from minitvm.ir.dims import Dim, anonymous, differ
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Constant, Expr, Function, Var
from minitvm.ir.loop import Binary, Buffer, LoopExpr, Stage, as_index, const, select
from minitvm.ir.op import Fusion, Op, compute, max_over
from minitvm.ir.ops._shape import normalize_axis, require_kind
from minitvm.ir.relayout import Placement, Site, elementwise
from minitvm.ir.types import DType, FuncType, Shape, TensorType, TupleType, Type, accepts, as_shape, bound, common
from minitvm.ir.visitor import children, post_order, substitute

_most_trips: ContextVar[int | None] = ContextVar("most_trips", default=None)


@contextmanager
def few_trips(most: int) -> Iterator[None]:
    """Within it the reference of a loop raises :class:`InputError` after ``most`` trips."""
    token = _most_trips.set(most)
    try:
        yield
    finally:
        _most_trips.reset(token)


def most_trips() -> int | None:
    """The number of trips that a loop may have, as :func:`few_trips` or ``MINITVM_MAX_TRIPS`` says."""
    return _most_trips.get() or config.read_int("MINITVM_MAX_TRIPS") or None


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


class If(Op, name="control.if", fusion=Fusion.OPAQUE, hosted=True, takes_stored=True):
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
        """``call(branch, *values)`` computes a branch."""
        return call(self.then_branch if condition.item() else self.else_branch, *captured)


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


class Loop(Op, name="control.loop", fusion=Fusion.OPAQUE, hosted=True, takes_stored=True):
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
    rows: tuple[tuple[int, ...], ...] = ()
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

    def run(
        self, call: Callable[..., Any], trip_count: np.ndarray, condition: np.ndarray, *values: Any
    ) -> tuple[Any, ...]:
        """``call(body, *values)`` computes an iteration."""
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


class OutOfRange(Op, name="control.out_of_range", fusion=Fusion.OPAQUE, takes_stored=True):
    """The index that lies furthest outside of the dimension that it selects from; 0 if none does.

    data: (...), indices: (...) signed integers -> (), the worst index i as ``2 * i``, or ``-2 * i - 1`` where it is
    negative (``runtime.checks.from_zigzag``); with ``by_row`` (n, ...) -> (n,), so that threads can share many.

    One of the ``axes`` of data goes for all indices, several for the rows of indices.  An index is in [-extent,
    extent); with ``lengths`` it is a number of elements, in [0, extent].

    Run on the host (constants, unknown shapes) it raises :class:`InputError` at once.
    """

    axes: tuple[int, ...]
    lengths: bool = False
    by_row: bool = False

    def infer(self, data: TensorType, indices: TensorType) -> TensorType:
        require_kind(self, indices, "i", "indices")
        for axis in self.axes:
            normalize_axis(self, axis, data.rank)
        if len(self.axes) != 1 and (not indices.rank or differ(indices.shape[0], len(self.axes))):
            raise self.reject(f"{len(self.axes)} axes need as many rows of indices, not {indices}")
        if self.by_row and (len(self.axes) != 1 or not indices.rank):
            raise self.reject(f"by_row needs rows and one axis, not {indices} and axes {list(self.axes)}")
        return TensorType(indices.shape[: self.by_row], "uint64")

    def _limits(self, shape: Shape) -> list[tuple[int, int]]:
        """The lowest index of each axis, and the first that is too high."""
        extents: list[Any] = [shape[axis] for axis in self.axes]
        return [(0, n + 1) if self.lengths else (-n, n) for n in extents]

    def message(self, data: TensorType) -> str:
        """What is wrong, with ``{}`` for the index."""
        axes = ", ".join(str(axis % data.rank) for axis in self.axes)
        return f"{'length' if self.lengths else 'index'} {{}} is outside of dimension {axes} of {data}"

    def first_outside(self, shape: Shape, indices: np.ndarray) -> int | None:
        """An index that is out of range in a tensor of that shape."""
        rows = indices[None] if len(self.axes) == 1 else indices
        for row, (low, high) in zip(rows, self._limits(shape), strict=True):
            wrong = row[(row < low) | (row >= high)]
            if wrong.size:
                return int(wrong.flat[0])
        return None

    def reference(self, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
        wrong = self.first_outside(data.shape, indices)
        if wrong is not None:
            raise InputError(self.message(TensorType(data.shape, data.dtype.name)).format(wrong))
        return np.zeros(indices.shape[: self.by_row], np.uint64)

    def compute(self, data: Buffer, indices: Buffer) -> Stage:
        limits = self._limits(data.shape)

        def code(*i: LoopExpr) -> LoopExpr:
            index = indices[i].astype("int64")
            (low, high), *others = reversed(limits)
            least, end = as_index(low), as_index(high)
            for row, (low, high) in zip(reversed(range(len(others))), others, strict=True):
                least, end = select(i[0].equal(row), low, least), select(i[0].equal(row), high, end)
            return select((least <= index) & (index < end), const(0, "uint64"), _zigzag(index))

        if self.by_row:
            return compute(indices.shape[:1], lambda row: max_over(indices.shape[1:], lambda *i: code(row, *i)))
        return compute((), lambda: max_over(indices.shape, code))


def _zigzag(index: LoopExpr) -> LoopExpr:
    doubled = Binary("shl", index.astype("uint64"), const(1, "uint64"))
    return Binary("xor", doubled, select(index < 0, const(2**64 - 1, "uint64"), const(0, "uint64")))


class After(Op, name="control.after", fusion=Fusion.INJECTIVE):
    """``value`` itself, once ``flag`` is known: what a check is tied to the graph with.  Nothing is computed."""

    def infer(self, value: TensorType, flag: TensorType) -> TensorType:
        return value

    def reference(self, value: np.ndarray, flag: np.ndarray) -> np.ndarray:
        return value

    def compute(self, value: Buffer, flag: Buffer) -> Stage:
        return compute(value.shape, lambda *i: value[i])


class StopFusion(Op, name="annotation.stop_fusion", fusion=Fusion.OPAQUE, takes_stored=True):
    """``x`` itself, but FuseOps does not fuse across it.  x: any shape and dtype -> the same.  FuseOps removes it."""

    def infer(self, x: TensorType) -> TensorType:
        return x

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x

    def relayout(self, site: Site) -> Placement:
        return elementwise(site)
