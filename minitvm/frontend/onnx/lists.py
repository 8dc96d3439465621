"""Lists to which each trip of a loop appends a tensor, as TorchScript writes them: stacked as scanned values are.

rows = SequenceEmpty(); rows = Loop(..., rows) { SequenceInsert(rows, row) }; ConcatFromSequence(rows)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from minitvm.frontend.onnx.node import emit
from minitvm.frontend.onnx.scope import Scope
from minitvm.frontend.onnx.shape_values import element
from minitvm.frontend.onnx.tensor import integers
from minitvm.ir.dims import Dim, are_counted_on, is_anonymous, is_measured, measure
from minitvm.ir.expr import Call, Constant, Expr, Tuple, Var
from minitvm.ir.ops.more.sequence import SequenceInsert, SequenceOf, SequenceSplit
from minitvm.ir.types import TensorType, is_numeric
from minitvm.ir.visitor import children, post_order


def appended(params: Sequence[Var], body: Expr, first: Sequence[Expr]) -> dict[int, Expr]:
    """The tensors that every trip appends to lists, by the numbers of these among the carried values.

    A list has no values at first, all tensors are of one shape, and nobody else looks at it.
    """
    fields = body.fields[1:] if isinstance(body, Tuple) else ()
    uses = Counter(child for node in post_order(body) for child in children(node))
    found: dict[int, Expr] = {}
    for number, (param, start, after) in enumerate(zip(params, first, fields, strict=False)):
        is_empty = isinstance(start, Call) and isinstance(start.op, SequenceOf) and not start.args
        if is_empty and isinstance(after, Call) and isinstance(after.op, SequenceInsert):
            is_alone = uses[param] == uses[after] == 1
            if after.args[0] is param and len(after.args) == 2 and is_alone and _is_alike(after.args[1]):
                found[number] = after.args[1]
    return found


def _is_alike(row: Expr) -> bool:
    """True if a tensor is of one shape in all trips."""
    type_ = row.type
    return isinstance(type_, TensorType) and is_numeric(type_) and not any(map(_differs, type_.shape))


def _differs(dim: Dim) -> bool:
    return is_anonymous(dim) or is_measured(dim)


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
