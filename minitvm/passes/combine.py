"""CombineParallelConv2D, -Dense and -BatchMatmul: parallel calls of one input become one larger call.

A branch is a call and the chain of element-wise and broadcast calls behind it, each the only user of the one before.
Branches that read the same value and agree are computed together, chain included as far as all agree; each branch's
result is then a part of the combined one.

Operands other than the shared input must not depend on a branch: what is combined would otherwise need itself.
"""

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minitvm.errors import ConfigError
from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined, decide, name_of
from minitvm.ir.dims import are_counted_on, product
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, span_scope
from minitvm.ir.op import Op
from minitvm.ir.ops.elemwise import Add
from minitvm.ir.ops.nn_conv import Conv2d
from minitvm.ir.ops.nn_dense import BatchMatmul, BiasAdd, Dense
from minitvm.ir.ops.quantize_blocks import DequantizeBlocks
from minitvm.ir.types import is_named
from minitvm.ir.visitor import as_function, calls, children, post_order, rebuild, span_of, users
from minitvm.passes.bound import SAME_PRODUCTS
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.places import Asked, in_pipeline
from minitvm.passes.sink_cast import is_cast_of_weights

# --- how the branches lie in the combined value ---------------------------------------------------------------


@dataclass(frozen=True)
class SideBySide:
    """One after another along an axis of the result, which may have other extents; followers keep the shape."""

    axis: int
    rank: int
    repeat: bool = False
    """Whether operands with one element along that axis are repeated for their branch."""

    def follower(self, op: Op) -> Op | None:
        """What a follower's operator becomes on the combined value; ``None`` where it cannot follow."""
        return None if isinstance(op, BiasAdd) and op.axis % self.rank != self.axis else op

    def operand(self, op: Op, calls: Sequence[Call], operands: Sequence[Expr]) -> Expr | None:
        """The operand of a combined follower, from those of the branches; ``None`` where they do not combine."""
        if isinstance(op, BiasAdd):
            return ir.concatenate(list(operands), axis=0)
        behind = self.rank - self.axis  # the axis and those behind it
        wide = [self._along(o, c.shape[-behind], behind) for o, c in zip(operands, calls, strict=True)]
        full = [w for w in wide if w is not None]
        if len(full) < len(wide) or len({_shape_but_at(o, -behind) for o in full}) > 1:
            shared = all(o is operands[0] for o in operands)  # one element along the axis: it follows without it
            return operands[0] if shared else None
        return ir.concatenate(full, axis=full[0].tensor_type.rank - behind)

    def _along(self, operand: Expr, extent: int, behind: int) -> Expr | None:
        """The operand with ``extent`` elements along the axis; ``None`` where it has one, or no such axis."""
        shape = operand.shape
        if len(shape) >= behind and shape[-behind] == extent:
            return operand
        if not self.repeat:
            return None
        missing = max(0, behind - len(shape))
        whole = ir.expand_dims(operand, axis=0, num_newaxis=missing) if missing else operand
        return ir.repeat(whole, repeats=extent, axis=len(whole.shape) - behind)

    def parts(self, combined: Expr, calls: Sequence[Call]) -> list[Expr]:
        """The branches' results."""
        sizes, found = [call.shape[self.axis] for call in calls], list[Expr]()
        for call, start, size in zip(calls, itertools.accumulate(sizes, initial=0), sizes, strict=False):
            with span_scope(call.span):
                where = {"begin": (start,), "end": (size,), "axes": (self.axis,)}
                found.append(ir.strided_slice(combined, **where, slice_mode="size"))
        return found


def _shape_but_at(operand: Expr, axis: int) -> Hashable:
    """The type, the extent along ``axis`` aside."""
    shape: list[object] = list(operand.shape)
    shape[axis] = None
    return (*shape, operand.dtype)


@dataclass(frozen=True)
class Stacked:
    """The entries of a batch, a dimension of its own in front of a matrix."""

    def follower(self, op: Op) -> Op | None:
        if isinstance(op, BiasAdd):
            return Add() if op.axis % 2 == 1 else None
        return op

    def operand(self, op: Op, calls: Sequence[Call], operands: Sequence[Expr]) -> Expr | None:
        if len({o.checked_type for o in operands}) > 1:
            return None
        missing = 2 - operands[0].tensor_type.rank
        wide = [ir.expand_dims(o, axis=0, num_newaxis=missing) if missing else o for o in operands]
        return ir.stack(wide, axis=0)

    def parts(self, combined: Expr, calls: Sequence[Call]) -> list[Expr]:
        entries = ir.split(combined, indices_or_sections=len(calls), axis=0)
        found = list[Expr]()
        for call, entry in zip(calls, entries, strict=True):
            with span_scope(call.span):
                found.append(ir.squeeze(entry, axis=(0,)))
        return found


# --- the engine -----------------------------------------------------------------------------------------------

Key = Callable[[Call], Hashable | None]
"""Calls with equal keys combine where their first operand is the same node; ``None``: never."""
Combine = Callable[[Sequence[Call]], tuple[Expr, SideBySide | Stacked]]
"""One call that computes them all, and how they lie in its result."""


def combine_parallel(function: Function, key: Key, combine: Combine, min_branches: int) -> Function:
    """``function`` with its parallel branches combined; itself where there are none."""
    found: dict[Hashable, list[Call]] = {}
    for call in calls(function):
        kind = key(call)
        if kind is not None and 0 not in call.tensor_type.shape:
            found.setdefault((call.args[0], kind), []).append(call)
    for few in (group for group in found.values() if 1 < len(group) < min_branches):
        decide("CombineParallel", few[0], Declined(f"{len(few)} branches of one input, not {min_branches}"))
    groups = [group for group in found.values() if len(group) >= min_branches]
    return _Combining(function, combine, groups).run(min_branches)


class Step(NamedTuple):
    """A call of a branch's chain, and the operand position that the chain comes in by."""

    call: Call
    position: int


class _Combining:
    def __init__(self, function: Function, combine: Combine, groups: list[list[Call]]) -> None:
        self.function = function
        self.combine = combine
        self.groups = groups
        self.users = users(function)
        self.dependent: set[Expr] = {call for group in groups for call in group}
        """The branches, and all nodes that need one of them."""
        for node in post_order(function.body):
            if self.dependent.intersection(children(node)):
                self.dependent.add(node)
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

    def _combine(self, current: Sequence[Call]) -> None:
        combined, layout = self.combine(current)
        while (steps := self._next(current)) is not None:
            with span_scope(span_of(*(step.call for step in steps))):
                follower = _follow(layout, combined, current, steps)
            if follower is None:
                break
            combined, current = follower, [step.call for step in steps]
        self.replacement.update(zip(current, layout.parts(combined, current), strict=True))

    def _next(self, calls: Sequence[Call]) -> list[Step] | None:
        """The calls that follow, where each branch has one and they are alike."""
        found = [step for step in map(self._step, calls) if step is not None]
        alike = {(type(s.call.op), s.call.op, s.position, len(s.call.args)) for s in found}
        return found if len(found) == len(calls) and len(alike) == 1 else None

    def _step(self, call: Call) -> Step | None:
        """The only user of a call, where it can be part of the chain."""
        readers = self.users.get(call, [])
        user = readers[0] if len(readers) == 1 else None
        if not isinstance(user, Call) or not _keeps_positions(user):
            return None
        if user.tensor_type.shape != call.shape or not all(arg is call or arg.type.is_static for arg in user.args):
            return None
        if self.dependent.intersection(arg for arg in user.args if arg is not call):
            return None
        return Step(user, user.args.index(call))


def _follow(
    layout: SideBySide | Stacked, combined: Expr, current: Sequence[Call], steps: Sequence[Step]
) -> Expr | None:
    """The steps as one call behind ``combined``."""
    call, chained = steps[0]
    assert isinstance(call.op, Op)
    op, operands = layout.follower(call.op), []
    if op is None:
        return None
    for position in range(len(call.args)):
        given = [step.call.args[position] for step in steps]
        same = given[0] if not isinstance(op, BiasAdd) and _same_scalar(given) else None  # a bias is not broadcast
        operand = combined if position == chained else same or layout.operand(call.op, current, given)
        if operand is None:
            return None
        operands.append(operand)
    return Call(op, operands)


def _keeps_positions(call: Call) -> bool:
    """True if each element of the result comes from the same place in the operands."""
    op = call.op
    return isinstance(op, BiasAdd) or (isinstance(op, Op) and op.keeps_positions(len(call.args)))


def _same_scalar(operands: Sequence[Expr]) -> bool:
    """True if all are one node of one element, or equal scalar constants."""
    first = operands[0]
    if all(o is first for o in operands):
        return product(first.tensor_type.shape) == 1
    scalars = [o.value for o in operands if isinstance(o, Constant) and not o.value.ndim]
    return len(scalars) == len(operands) and all(np.array_equal(value, scalars[0]) for value in scalars)


def redirect(root: Expr, replacement: dict[Expr, Expr]) -> Expr:
    """``root`` with nodes replaced, inside of the replacements too (which must not need what they replace)."""

    def below(node: Expr) -> tuple[Expr, ...]:
        return (replacement[node],) if node in replacement else children(node)

    done: dict[Expr, Expr] = {}
    for node in post_order(root, operands=below):
        new = [done[child] for child in below(node)]
        done[node] = new[0] if node in replacement else rebuild(node, new)
    return done[root]


def checked_branches(min_branches: int) -> int:
    """``min_branches``; :class:`ConfigError` where fewer than two branches could combine."""
    if min_branches < 2:
        raise ConfigError(f"min_num_branches is {min_branches}", hint="two branches are the least that can combine")
    return min_branches


# --- the operators --------------------------------------------------------------------------------------------


class CombineParallelConv2D(FunctionPass, opt_level=3, bound=SAME_PRODUCTS):
    """Combine at least ``min_num_branches`` convolutions of one input that differ in their filters only.

    They must agree in strides, padding, dilation, kernel extent, layouts and dtypes, and have one group.
    Element-wise and broadcast calls behind them are combined as far as all branches agree; results are slices.
    """

    needs = (Conv2d,)

    def __init__(self, min_num_branches: int = 3) -> None:
        self.at_least = checked_branches(min_num_branches)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return combine_parallel(function, _conv_key, _wide_conv, self.at_least)


def _conv_key(call: Call) -> Hashable | None:
    op = call.op
    if not isinstance(op, Conv2d) or op.groups != 1 or not is_named(call.type):
        return None
    if not (op.kernel_layout.isalpha() and (op.out_layout or op.data_layout).isalpha()):
        return None
    weight = call.args[1].tensor_type
    taps = tuple(n for n, axis in zip(weight.shape, op.kernel_layout, strict=True) if axis != "O")
    return (op.with_attributes(channels=None, kernel_size=None), taps, weight.dtype)


def _wide_conv(calls: Sequence[Call]) -> tuple[Expr, SideBySide]:
    op: Any = calls[0].op
    combined = _with_all_weights(calls, op.kernel_layout.index("O"), "channels")
    return combined, SideBySide((op.out_layout or op.data_layout).index("C"), 4)


def _with_all_weights(calls: Sequence[Call], axis: int, count: str = "") -> Call:
    """The first call with the weights of all; the attribute ``count``, where it says how many, says so again."""
    weight = _side_by_side([call.args[1] for call in calls], axis)
    op: Any = calls[0].op
    counted = count and getattr(op, count) is not None
    return Call(op.with_attributes(**{count: weight.shape[axis]}) if counted else op, [calls[0].args[0], weight])


def _side_by_side(weights: Sequence[Expr], axis: int) -> Expr:
    """The weights of all; what they are stored as is put side by side, where each is cast or dequantized alike, so that
    they stay as small as they are."""
    casts = [weight for weight in weights if is_cast_of_weights(weight)]
    op = casts[0].op if casts else None
    along = isinstance(op, DequantizeBlocks) and op.axis % weights[0].tensor_type.rank == axis
    if len(casts) == len(weights) and not along and all(cast.op == op for cast in casts):
        stored = [_stored(operands, axis) for operands in zip(*(cast.args for cast in casts), strict=True)]
        operands = [operand for operand in stored if operand is not None]
        if len(operands) == len(stored):
            return Call(casts[0].op, operands, span=casts[0].span)
    return ir.concatenate(list(weights), axis=axis)


def _stored(operands: Sequence[Expr], axis: int) -> Expr | None:
    """One operand of all; scalars that differ are ``None``."""
    if _same_scalar(operands):
        return operands[0]
    return ir.concatenate(list(operands), axis=axis) if all(o.tensor_type.rank for o in operands) else None


class CombineParallelDense(FunctionPass, opt_level=3, bound=SAME_PRODUCTS):
    """Combine at least ``min_num_branches`` dense layers of one input.

    ``to_batch``: layers with weights of one shape become one ``nn.batch_matmul``.  Otherwise their weights are
    concatenated into one ``nn.dense``, whatever the units of each; that is one large product, faster on a CPU.
    """

    needs = (Dense,)

    def __init__(self, min_num_branches: int = 3, to_batch: bool = True) -> None:
        self.at_least = checked_branches(min_num_branches)
        self.to_batch = to_batch

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        combine = _batch if self.to_batch else _wide_dense
        return combine_parallel(function, self._key, combine, self.at_least)

    def _key(self, call: Call) -> Hashable | None:
        if not isinstance(call.op, Dense) or not _is_known(call):
            return None
        weight = call.args[1].tensor_type
        return (call.op.out_dtype, weight if self.to_batch else (weight.shape[1], weight.dtype))


def _is_known(call: Call) -> bool:
    """True if sizes are numbers, or names that are counted on."""
    return call.type.is_static or (are_counted_on() and is_named(call.type))


def _wide_dense(calls: Sequence[Call]) -> tuple[Expr, SideBySide]:
    return _with_all_weights(calls, 0, "units"), SideBySide(1, 2, repeat=True)


def _batch(calls: Sequence[Call]) -> tuple[Expr, Stacked]:
    op: Any = calls[0].op
    weight = ir.stack([call.args[1] for call in calls], axis=0)
    data = ir.expand_dims(calls[0].args[0], axis=0)  # a batch of 1 serves all
    return Call(BatchMatmul(out_dtype=op.out_dtype), [data, weight]), Stacked()


class CombineParallelBatchMatmul(FunctionPass, opt_level=3, bound=SAME_PRODUCTS):
    """Combine at least ``min_num_branches`` batched products of one left operand along the right one's columns.

    Products must have the right operand transposed (``transpose_b``), the left one not, and equal batches.
    """

    needs = (BatchMatmul,)

    def __init__(self, min_num_branches: int = 3) -> None:
        self.at_least = checked_branches(min_num_branches)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return combine_parallel(function, _batch_matmul_key, _wide_batch_matmul, self.at_least)


def _batch_matmul_key(call: Call) -> Hashable | None:
    op = call.op
    if not isinstance(op, BatchMatmul) or op.transpose_a or not op.transpose_b or not call.type.is_static:
        return None
    (batch, _, depth), dtype = call.args[1].shape, call.args[1].dtype
    return (op, batch, depth, dtype)


def _wide_batch_matmul(calls: Sequence[Call]) -> tuple[Expr, SideBySide]:
    return _with_all_weights(calls, 1), SideBySide(2, 3)


@in_pipeline(before="FoldConstant")
def _placed(asked: Asked) -> tuple[CombineParallelConv2D, CombineParallelDense]:
    return CombineParallelConv2D(min_num_branches=3), CombineParallelDense(3, to_batch=False)
