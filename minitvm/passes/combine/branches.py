"""The engine of CombineParallelConv2D, -Dense and -BatchMatmul: parallel calls of one input become one larger call.

A branch is a call and the chain of element-wise and broadcast calls behind it, each the only user of the one before.
Branches that read the same value and agree are computed together, chain included as far as all agree; each branch's
result is then a part of the combined one.

Operands other than the shared input must not depend on a branch: what is combined would otherwise need itself.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from minitvm.errors import ConfigError
from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined, decide, name_of
from minitvm.ir.expr import Call, Constant, Expr, Function, span_scope
from minitvm.ir.op import Op
from minitvm.ir.ops.nn_dense import BiasAdd
from minitvm.ir.visitor import as_function, calls, children, post_order, rebuild, span_of, users


class Combiner(ABC):
    """What differs between the operators."""

    @abstractmethod
    def key(self, call: Call) -> Hashable | None:
        """Calls with equal keys combine where their first operand is the same node; ``None``: never."""

    @abstractmethod
    def combine(self, calls: Sequence[Call]) -> Expr:
        """One call that computes them all."""

    @abstractmethod
    def follower(self, op: Op, calls: Sequence[Call]) -> Op | None:
        """What a follower's operator becomes on the combined value of ``calls``; ``None`` where it cannot follow."""

    @abstractmethod
    def operand(self, op: Op, calls: Sequence[Call], operands: Sequence[Expr]) -> Expr | None:
        """The operand of a combined follower, from those of the branches; ``None`` where they do not combine."""

    @abstractmethod
    def parts(self, combined: Expr, calls: Sequence[Call]) -> list[Expr]:
        """The branches' results."""


def checked_branches(min_branches: int) -> int:
    """``min_branches``; :class:`ConfigError` where fewer than two branches could combine."""
    if min_branches < 2:
        raise ConfigError(f"min_num_branches is {min_branches}", hint="two branches are the least that can combine")
    return min_branches


@dataclass(frozen=True)
class Step:
    """A call of a branch's chain: the call, and the operand position that the chain comes in by."""

    call: Call
    position: int


def combine_parallel(function: Function, combiner: Combiner, min_branches: int) -> Function:
    """``function`` with its parallel branches combined; itself where there are none."""
    groups = _groups(function, combiner, min_branches)
    if not groups:
        return function
    return _Combining(function, combiner, groups).run(min_branches)


def _groups(function: Function, combiner: Combiner, min_branches: int) -> list[list[Call]]:
    found: dict[Hashable, list[Call]] = {}
    for call in calls(function):
        key = combiner.key(call) if isinstance(call.op, Op) else None
        if key is not None:
            found.setdefault((call.args[0], key), []).append(call)
    for few in (group for group in found.values() if 1 < len(group) < min_branches):
        decide("CombineParallel", few[0], Declined(f"{len(few)} branches of one input, not {min_branches}"))
    return [group for group in found.values() if len(group) >= min_branches]


class _Combining:
    def __init__(self, function: Function, combiner: Combiner, groups: list[list[Call]]) -> None:
        self.function = function
        self.combiner = combiner
        self.groups = groups
        self.users = users(function)
        self.dependent = _dependents(function, {call for group in groups for call in group})
        self.replacement: dict[Expr, Expr] = {}

    def run(self, min_branches: int) -> Function:
        for group in self.groups:
            free = [call for call in group if not self.dependent.intersection(call.args[1:])]
            if len(free) < min_branches:
                few = f"only {len(free)} of {len(group)} branches do without the others' results"
                decide("CombineParallel", group[0], Declined(few))
            else:
                with span_scope(span_of(*free)):
                    decide("CombineParallel", name_of(free[0]), f"{len(free)} calls of one input become one")
                    self._combine(free)
        return as_function(redirect(self.function, self.replacement)) if self.replacement else self.function

    def _combine(self, calls: list[Call]) -> None:
        combined, current = self.combiner.combine(calls), calls
        while (steps := self._next(current)) is not None:
            follower = self._follow(combined, current, steps)
            if follower is None:
                break
            combined, current = follower, [step.call for step in steps]
        for call, part in zip(current, self.combiner.parts(combined, current), strict=True):
            self.replacement[call] = part

    def _next(self, calls: Sequence[Call]) -> list[Step] | None:
        """The calls that follow, where each branch has one and they are alike."""
        steps = [self._step(call) for call in calls]
        found = [step for step in steps if step is not None]
        if len(found) < len(steps) or len({step.call for step in found}) < len(steps):
            return None
        alike = {(type(s.call.op), s.call.op, s.position, len(s.call.args)) for s in found}
        return found if len(alike) == 1 else None

    def _step(self, call: Call) -> Step | None:
        """The only user of a call, where it can be part of the chain."""
        readers = self.users.get(call, [])
        user = readers[0] if len(readers) == 1 else None
        if not isinstance(user, Call) or not _keeps_positions(user) or user.checked_type is None:
            return None
        if user.tensor_type.shape != call.shape or not all(arg.type.is_static for arg in user.args):
            return None
        others = [arg for arg in user.args if arg is not call]
        if self.dependent.intersection(others):
            return None
        return Step(user, user.args.index(call))

    def _follow(self, combined: Expr, current: Sequence[Call], steps: Sequence[Step]) -> Expr | None:
        """The steps as one call behind ``combined``."""
        first = steps[0]
        old = first.call.op
        assert isinstance(old, Op)
        op = self.combiner.follower(old, current)
        if op is None:
            return None
        operands: list[Expr] = []
        for position in range(len(first.call.args)):
            given = [step.call.args[position] for step in steps]
            operand = combined if position == first.position else _operand(self.combiner, old, current, given)
            if operand is None:
                return None
            operands.append(operand)
        return Call(op, operands)


def _operand(combiner: Combiner, op: Op, calls: Sequence[Call], given: Sequence[Expr]) -> Expr | None:
    return given[0] if _same_scalar(given) else combiner.operand(op, calls, given)


def _dependents(function: Function, roots: set[Call]) -> set[Expr]:
    """``roots`` and all nodes that need one of them."""
    found: set[Expr] = set(roots)
    for node in post_order(function.body):
        if found.intersection(children(node)):
            found.add(node)
    return found


def _keeps_positions(call: Call) -> bool:
    """Whether each element of the result comes from the same place in the operands."""
    if not isinstance(call.op, Op) or call.op.stateful:
        return False
    return call.op.keeps_positions(len(call.args)) or isinstance(call.op, BiasAdd)


def _same_scalar(operands: Sequence[Expr]) -> bool:
    """Whether all are one node of one element, or equal scalar constants."""
    first = operands[0]
    if all(o is first for o in operands):
        return first.tensor_type.is_static and first.tensor_type.size == 1
    return all(_equal_scalars(first, o) for o in operands)


def _equal_scalars(a: Expr, b: Expr) -> bool:
    if not isinstance(a, Constant) or not isinstance(b, Constant) or a.value.ndim:
        return False
    return a.checked_type == b.checked_type and np.array_equal(a.value, b.value)


def redirect(root: Expr, replacement: dict[Expr, Expr]) -> Expr:
    """``root`` with nodes replaced, inside of the replacements too (which must not need what they replace)."""

    def below(node: Expr) -> tuple[Expr, ...]:
        return (replacement[node],) if node in replacement else children(node)

    done: dict[Expr, Expr] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        waiting = [child for child in below(node) if child not in done]
        if waiting and node not in done:
            stack.extend(reversed(waiting))
            continue
        stack.pop()
        if node not in done:
            done[node] = (
                done[replacement[node]] if node in replacement else rebuild(node, [done[c] for c in below(node)])
            )
    return done[root]


class Concatenation(Combiner):
    """Branches lie side by side along one axis of the result."""

    repeat = False
    """Whether operands with one element along that axis are repeated for their branch."""

    @abstractmethod
    def axis(self, rank: int) -> int:
        """The axis along which results of that rank lie side by side."""

    def follower(self, op: Op, calls: Sequence[Call]) -> Op | None:
        moved = isinstance(op, BiasAdd) and op.axis % calls[0].tensor_type.rank != self.axis(calls[0].tensor_type.rank)
        return None if moved else op

    def operand(self, op: Op, calls: Sequence[Call], operands: Sequence[Expr]) -> Expr | None:
        if isinstance(op, BiasAdd):
            return ir.concatenate(list(operands), axis=0)
        rank = calls[0].tensor_type.rank
        behind = rank - self.axis(rank)  # the axis and those behind it
        wide = [self._along(o, c.shape[-behind], behind) for o, c in zip(operands, calls, strict=True)]
        full = [w for w in wide if w is not None]
        if len(full) < len(wide) or not _agree_but_at(full, -behind):
            shared = all(o is operands[0] and not _has(o, behind) for o in operands)
            return operands[0] if shared else None
        return ir.concatenate(full, axis=full[0].tensor_type.rank - behind)

    def _along(self, operand: Expr, extent: int, behind: int) -> Expr | None:
        """The operand with ``extent`` elements along the axis; ``None`` where it has not that many."""
        shape = operand.shape
        if len(shape) >= behind and shape[-behind] == extent:
            return operand
        if not self.repeat or _has(operand, behind):
            return None
        missing = max(0, behind - len(shape))
        whole = ir.expand_dims(operand, axis=0, num_newaxis=missing) if missing else operand
        return ir.repeat(whole, repeats=extent, axis=len(whole.shape) - behind)

    def parts(self, combined: Expr, calls: Sequence[Call]) -> list[Expr]:
        axis = self.axis(calls[0].tensor_type.rank)
        sizes = [call.shape[axis] for call in calls]
        starts = itertools.accumulate(sizes, initial=0)
        return [
            ir.strided_slice(combined, begin=(start,), end=(size,), axes=(axis,), slice_mode="size")
            for start, size in zip(starts, sizes, strict=False)
        ]


def _has(operand: Expr, behind: int) -> bool:
    """Whether an operand differs along the axis that ``behind`` counts from the end."""
    return operand.tensor_type.rank >= behind and operand.shape[-behind] != 1


def _agree_but_at(operands: Sequence[Expr], axis: int) -> bool:
    """Whether shapes and dtypes are equal, extents along ``axis`` aside."""

    def rest(operand: Expr) -> tuple[object, ...]:
        shape = list(operand.shape)
        shape[axis] = -1
        return (*shape, operand.dtype)

    return len({rest(o) for o in operands}) == 1
