"""Making what fails smaller while it still fails: one search, and the steps that make functions smaller.

The search is greedy (delta debugging: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input",
2002): the first smaller candidate that still fails is the next one to make smaller, until no step finds any.  The
fuzzer shrinks ONNX graphs with it, ``check`` modules.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from minitvm.errors import MiniTVMError
from minitvm.ir.attributes import attributes_of
from minitvm.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from minitvm.ir.op import Op
from minitvm.ir.structural import structural_digest
from minitvm.ir.text import is_inline
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import as_function, calls, children, free_vars, post_order, rewrite, substitute, users

State = TypeVar("State")
Found = TypeVar("Found")

NO_CANDIDATE = (MiniTVMError, ValueError, TypeError, KeyError, IndexError, AssertionError, AttributeError)
"""What steps and judges raise for a candidate that means nothing."""


class Search(Generic[State, Found]):
    """The smallest failing state so far, what was found of it, and what was tried.

    ``judge`` says what it finds of a state that still fails, ``None`` of one that does not (any more, in this way);
    ``key`` is equal for states that need not be judged twice, ``None`` for what is no state.
    """

    def __init__(
        self,
        best: State,
        found: Found,
        judge: Callable[[State], Found | None],
        key: Callable[[State], Hashable | None],
        seconds: float,
    ) -> None:
        self.best, self.found = best, found
        self.tried = 0
        self._judge, self._key = judge, key
        self._deadline = time.monotonic() + seconds
        self._known: set[Hashable] = set()

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def run(self, steps: Sequence[Callable[[State], Iterator[State]]]) -> State:
        """Every step as long as it helps, and all of them again as long as one does."""
        before = None
        while before is not self.best and not self.is_over:
            before = self.best
            for step in steps:
                while self._improves(step):
                    pass
        return self.best

    def _improves(self, step: Callable[[State], Iterator[State]]) -> bool:
        for smaller in step(self.best):
            if self.is_over:
                return False
            found = self._verdict(smaller)
            if found is not None:
                self.best, self.found = smaller, found
                return True
        return False

    def _verdict(self, state: State) -> Found | None:
        key = self._key(state)
        if key is None or key in self._known:
            return None
        self._known.add(key)
        self.tried += 1
        return self._judge(state)


# --- functions ------------------------------------------------------------------------------------------------

Step = Callable[[Function], Iterator[Callable[[], Function]]]
"""From a function to what makes smaller ones of it; they are made one at a time, and may not be possible."""


def minify(
    function: Function, found: Found, judge: Callable[[Function], Found | None], seconds: float
) -> tuple[Function, Found]:
    """The smallest function whose failure ``judge`` still recognises, and what it says of it."""

    def careful(candidate: Function) -> Found | None:
        try:
            return judge(candidate) if calls(candidate.body) else None
        except NO_CANDIDATE:
            return None

    search = Search(function, found, careful, structural_digest, seconds)
    search.run([_lazily(step) for step in STEPS])
    return search.best, search.found


def _lazily(step: Step) -> Callable[[Function], Iterator[Function]]:
    """The step's candidates, as far as they can be made at all."""

    def candidates(function: Function) -> Iterator[Function]:
        for make in step(function):
            with suppress(*NO_CANDIDATE):
                yield make()

    return candidates


def size(function: Function) -> int:
    """The number of calls, those inside of groups one by one."""
    return sum(size(call.op) if isinstance(call.op, Function) else 1 for call in calls(function.body))


def _prefixes(function: Function) -> Iterator[Callable[[], Function]]:
    """The first half of the calls, three quarters, ..., all but one."""
    order = calls(function.body)
    for cut in _halvings(len(order)):
        yield partial(part_of, function, order[: len(order) - cut])


def _suffixes(function: Function) -> Iterator[Callable[[], Function]]:
    """The last half of the calls over inputs, three quarters, ..., all but one."""
    order = calls(function.body)
    for cut in _halvings(len(order)):
        yield partial(part_of, function, order[cut:])


def _halvings(count: int) -> Iterator[int]:
    while count > 1:
        count //= 2
        yield count


def part_of(function: Function, kept: Sequence[Call]) -> Function:
    """What some of the calls compute, over inputs in the place of all others.

    Its results are the values that others, or nobody, read.
    """
    inside, reads = set(kept), users(function)
    ends = [c for c in kept if not set(_calls_reading(c, reads)) & inside or set(_calls_reading(c, reads)) - inside]
    cut = [read for c in calls(Tuple(ends)) if c not in inside for read in _read_of(c, reads)]
    return over_inputs(function, ends[0] if len(ends) == 1 else Tuple(ends), cut)


def _read_of(call: Call, reads: Mapping[Expr, list[Expr]]) -> list[Expr]:
    """What users read of a call: itself, or fields of its tuple."""
    found = reads.get(call, [])
    return list(dict.fromkeys(found)) if found and all(isinstance(u, TupleGetItem) for u in found) else [call]


def _calls_reading(node: Expr, reads: Mapping[Expr, list[Expr]]) -> Iterator[Expr]:
    """The calls that read a value, through tuples and their fields; the function itself where it is a result."""
    for user in reads.get(node, ()):
        if isinstance(user, (Call, Function)):
            yield user
        else:
            yield from _calls_reading(user, reads)


def over_inputs(function: Function, body: Expr, cut: Sequence[Expr]) -> Function:
    """``body`` with new inputs in the place of some of its nodes."""
    taken = {p.name for p in function.params}
    names = (name for name in (f"v{i}" for i in range(len(taken) + len(cut) + 1)) if name not in taken)
    replaced: dict[Expr, Expr] = {node: Var(name, node.type) for node, name in zip(cut, names, strict=False)}
    new = substitute(body, replaced)
    return Function(_in_order(function, free_vars(new)), new, function.attrs)


def _in_order(function: Function, found: Sequence[Var]) -> list[Var]:
    """The function's own parameters first, in their order."""
    own = [p for p in function.params if p in found]
    return [*own, *(v for v in found if v not in own)]


def _outputs(function: Function) -> Iterator[Callable[[], Function]]:
    """One of the results; all but one."""
    if isinstance(function.body, Tuple) and function.body.fields:
        fields = function.body.fields
        for field in fields:
            yield partial(over_inputs, function, field, ())
        for i in range(len(fields)) if len(fields) > 2 else ():
            yield partial(over_inputs, function, Tuple([*fields[:i], *fields[i + 1 :]]), ())


def _calls_less(function: Function) -> Iterator[Callable[[], Function]]:
    """One call as an input; or as one of its operands that has its type."""
    for call in reversed(calls(function.body)):
        if call is not function.body:
            yield partial(over_inputs, function, function.body, [call])
        for operand in call.args:
            if operand.checked_type == call.checked_type:
                yield partial(over_inputs, function, substitute(function.body, {call: operand}), ())


def _constants(function: Function) -> Iterator[Callable[[], Function]]:
    """A constant as an input; as a scalar; of simple numbers."""
    found = [node for node in post_order(function.body) if isinstance(node, Constant)]
    for constant in found:
        if not is_inline(constant):
            yield partial(over_inputs, function, function.body, [constant])
    for constant in found:
        for value in _simpler(constant.value) if not is_inline(constant) else ():
            if not np.array_equal(value, constant.value, equal_nan=value.dtype.kind == "f"):
                simpler = substitute(function.body, {constant: Constant(value, constant.name)})
                yield partial(over_inputs, function, simpler, ())


def _simpler(value: np.ndarray) -> Iterator[np.ndarray]:
    yield np.ones_like(value)
    if value.dtype.kind in "iuf":
        yield (np.arange(value.size).reshape(value.shape) % 7 - 3 * (value.dtype.kind != "u")).astype(value.dtype)


def _sizes(function: Function) -> Iterator[Callable[[], Function]]:
    """One extent becomes a smaller one: everywhere, with attributes that name it and without; or of one input."""
    leaves = [n for n in post_order(function) if isinstance(n, (Var, Constant)) and _extents(n)]
    extents = sorted({s for node in leaves for s in _extents(node) if s > 1}, reverse=True)
    for extent in extents:
        for less in dict.fromkeys((1, 2, extent // 2, extent - 1)):
            if 0 < less < extent:
                yield partial(_resized, function, dict.fromkeys(leaves), extent, less, True)
                yield partial(_resized, function, dict.fromkeys(leaves), extent, less, False)
    for node in leaves:
        for axis, extent in enumerate(_extents(node)):
            for less in dict.fromkeys((1, extent // 2, extent - 1)):
                if 0 < less < extent:
                    yield partial(_resized, function, {node: axis}, extent, less, False)


def _extents(node: Expr) -> tuple[int, ...]:
    type_ = node.checked_type
    return type_.static_shape if isinstance(type_, TensorType) and type_.is_static else ()


def _resized(function: Function, where: Mapping[Expr, int | None], extent: int, less: int, named: bool) -> Function:
    """Inputs and constants with ``less`` in the place of ``extent``: along an axis, or (``None``) all that have it.

    Calls are typed anew; ``named``: attributes that are the extent change with it.
    """

    def visit(old: Expr, new: Expr) -> Expr:
        if old in where:
            return _cropped(new, where[old], extent, less)
        if isinstance(new, Call) and isinstance(new.op, Op) and named:
            known = attributes_of(type(new.op))
            changed = {n: _replaced(v, extent, less) for n, v in vars(new.op).items() if n in known}
            op = new.op.with_attributes(**changed)
            return Call(op, new.args, span=new.span) if op != new.op else new
        return new

    return as_function(rewrite(function, visit))


def _replaced(value: Any, extent: int, less: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_replaced(v, extent, less) for v in value)
    return less if isinstance(value, int) and not isinstance(value, bool) and value == extent else value


def _cropped(node: Expr, axis: int | None, extent: int, less: int) -> Expr:
    shape = _extents(node)
    new = tuple(less if s == extent and axis in (None, i) else s for i, s in enumerate(shape))
    if new == shape:
        return node
    if isinstance(node, Constant):
        return Constant(node.value[tuple(map(slice, new))], node.name, span=node.span)
    assert isinstance(node, Var)
    return Var(node.name, node.tensor_type.with_shape(new), span=node.span)


def _attributes(function: Function) -> Iterator[Callable[[], Function]]:
    """An attribute as it is where nobody gives it."""
    for call in calls(function.body):
        for field in dataclasses.fields(call.op) if isinstance(call.op, Op) else ():
            default = field.default
            if default is dataclasses.MISSING or getattr(call.op, field.name) == default:
                continue
            yield partial(_with_operator, function, call, field.name, default)


def _with_operator(function: Function, call: Call, name: str, value: Any) -> Function:
    assert isinstance(call.op, Op)
    simpler = Call(call.op.with_attributes(**{name: value}), call.args, span=call.span)
    return over_inputs(function, substitute(function.body, {call: simpler}), ())


def _unused(function: Function) -> Iterator[Callable[[], Function]]:
    """Without the parameters that nobody reads."""
    read = {child for node in post_order(function.body) for child in (node, *children(node))}
    kept = [p for p in function.params if p in read]
    if len(kept) < len(function.params):
        yield partial(Function, kept, function.body, function.attrs)


STEPS: tuple[Step, ...] = (_prefixes, _suffixes, _outputs, _unused, _calls_less, _constants, _sizes, _attributes)
"""What takes most away first."""
