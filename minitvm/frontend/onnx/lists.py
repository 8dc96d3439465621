"""Lists to which each trip of a loop appends a tensor, as TorchScript writes them: stacked as scanned values are.

rows = SequenceEmpty(); rows = Loop(..., rows) { SequenceInsert(rows, row) }; ConcatFromSequence(rows)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from minitvm.frontend.onnx.node import emit
from minitvm.frontend.onnx.scope import Scope
from minitvm.frontend.onnx.shape_values import element
from minitvm.frontend.onnx.tensor import integers
from minitvm.ir.dims import Dim, anonymous, are_counted_on, is_anonymous, is_measured, measure
from minitvm.ir.expr import Call, Constant, Expr, Tuple, Var
from minitvm.ir.ops.more.sequence import SequenceInsert, SequenceOf, SequenceSplit
from minitvm.ir.types import TensorType, is_numeric
from minitvm.ir.visitor import children, post_order


def appended(params: Sequence[Var], body: Expr, first: Sequence[Expr]) -> dict[int, Expr]:
    """The tensors of one shape that every trip appends to lists, by the numbers of these among the carried values."""
    return {number: row for number, row in _appended(params, body, first).items() if _is_alike(row)}


def _appended(params: Sequence[Var], body: Expr, first: Sequence[Expr]) -> dict[int, Expr]:
    """The tensors that every trip appends to lists that have no values at first, and at which nobody else looks."""
    fields = body.fields[1:] if isinstance(body, Tuple) else ()
    uses = Counter(child for node in post_order(body) for child in children(node))
    found: dict[int, Expr] = {}
    for number, (param, start, after) in enumerate(zip(params, first, fields, strict=False)):
        is_empty = isinstance(start, Call) and isinstance(start.op, SequenceOf) and not start.args
        if is_empty and isinstance(after, Call) and isinstance(after.op, SequenceInsert):
            is_alone = uses[param] == uses[after] == 1
            if after.args[0] is param and len(after.args) == 2 and is_alone and is_numeric(after.args[1].type):
                found[number] = after.args[1]
    return found


def _is_alike(row: Expr) -> bool:
    """True if a tensor is of one shape in all trips."""
    return not any(map(_differs, row.tensor_type.shape))


def _differs(dim: Dim) -> bool:
    return is_anonymous(dim) or is_measured(dim)


def appended_unlike(params: Sequence[Var], body: Expr, first: Sequence[Expr]) -> dict[int, tuple[Expr, int]]:
    """The tensors that every trip appends to lists that have no values at first, and the one axis along which these
    are of lengths of their own, by the numbers of the lists among the carried values."""
    if not are_counted_on():
        return {}
    rows = ((number, row) for number, row in _appended(params, body, first).items() if not _is_alike(row))
    axes = {number: (row, [a for a, d in enumerate(row.tensor_type.shape) if _differs(d)]) for number, row in rows}
    return {number: (row, found[0]) for number, (row, found) in axes.items() if len(found) == 1}


def joined_lists(
    unlike: Mapping[int, tuple[Expr, int]], params: Sequence[Var], first: Sequence[Expr], body: Expr
) -> tuple[list[Var], list[Expr], Expr]:
    """A loop that carries, in place of lists, the tensors in these one behind the other, and scans their lengths: its
    parameters, what it carries at first, its body."""
    given, start, fields = list(params), list(first), list(body.fields) if isinstance(body, Tuple) else []
    for number, (row, axis) in unlike.items():
        type_, shape = row.tensor_type, row.tensor_type.shape
        before = Var(f"joined{number}", type_.with_shape((*shape[:axis], anonymous(), *shape[axis + 1 :])))
        given[2 + number] = before
        nothing = Constant(np.zeros((), type_.dtype))
        start[number] = emit("broadcast_to", nothing, shape=(*shape[:axis], 0, *shape[axis + 1 :]))
        fields[1 + number] = emit("concatenate", [named(before), row], axis=axis)
        fields.append(element(emit("shape_of", row, dtype="int64"), axis))
    return given, start, Tuple(fields)


def split_again(results: Sequence[Expr], unlike: Mapping[int, tuple[Expr, int]]) -> list[Expr]:
    """The results of such a loop, with lists."""
    found = list(results[: len(results) - len(unlike)])
    for (number, (_, axis)), lengths in zip(unlike.items(), results[len(found) :], strict=True):
        found[number] = emit("sequence.split", found[number], lengths, axis=axis, keep=True)
    return found


def with_lists(results: Sequence[Expr], lists: Mapping[int, Expr], carried: int) -> list[Expr]:
    """The results of a loop in their order: at first those that are ``carried`` but for lists, whose stacks come at the
    end."""
    count = len(results) - len(lists)
    stacks, others = dict(zip(lists, results[count:], strict=True)), iter(results[:count])
    first = [_as_list(stacks[i]) if i in stacks else next(others) for i in range(carried)]
    return list(map(named, [*first, *others]))


def named(value: Expr) -> Expr:
    """A value with a name for each dimension that the data decide, where a run measures them."""
    type_ = value.type
    if not are_counted_on() or not isinstance(type_, TensorType) or not is_numeric(type_):
        return value
    if not any(map(is_anonymous, type_.shape)):
        return value
    shape = emit("shape_of", value, dtype="int64")
    parts = [partial(element, shape, axis) for axis in range(type_.rank)]
    named_ = [measure(parts[i], (value, i)) if is_anonymous(d) else d for i, d in enumerate(type_.shape)]
    return emit("control.sized", value, extents=tuple(named_))


def _as_list(stack: Expr) -> Expr:
    return emit("sequence.split", stack, integers(1), axis=0, keep=False)


def remade(sequence: Expr, scope: Scope) -> Expr:
    """A list; one from outside of a body made again inside, of the tensors that it consists of."""
    outer = next((given for given, inner in scope.captured.items() if inner is sequence), None)
    if outer is None or scope.parent is None:
        return sequence
    made = remade(outer, scope.parent)
    if not isinstance(made, Call) or not isinstance(made.op, (SequenceOf, SequenceSplit)):
        return sequence
    parts = [a if isinstance(a, Constant) else _captured(a, scope) for a in made.args]
    return Call(made.op, parts, span=made.span)


def _captured(value: Expr, scope: Scope) -> Var:
    return scope.captured.setdefault(value, Var(f"part{len(scope.captured)}", value.type))


def stack_of(sequence: Expr) -> Expr | None:
    """What a list is the rows of."""
    op = sequence.op if isinstance(sequence, Call) else None
    if not isinstance(op, SequenceSplit) or op.keep or op.axis or not isinstance(sequence, Call):
        return None
    return named(sequence.args[0]) if is_numeric(sequence.args[0].type) else None


def joined(stack: Expr, axis: int, stacks: bool) -> Expr:
    """The rows one after the other along an axis, or along a new one."""
    rank = stack.tensor_type.rank
    order = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
    moved = emit("transpose", stack, axes=tuple(order)) if axis else stack
    if stacks:
        return moved
    shape = moved.tensor_type.shape
    merged = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
    return emit("reshape", moved, newshape=merged, allowzero=True)
