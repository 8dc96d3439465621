"""ONNX control flow: a branch whose condition is known is taken at import, others become functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx

from minitvm.doors import door, left_out
from minitvm.errors import FrontendError, TypeInferenceError
from minitvm.frontend.onnx.check import outer_names
from minitvm.frontend.onnx.elsewhere import bags
from minitvm.frontend.onnx.lists import appended, appended_unlike, joined_lists, named, split_again, with_lists
from minitvm.frontend.onnx.model import describe_value
from minitvm.frontend.onnx.node import OnnxNode, emit, normalize_axis, place_of, rank
from minitvm.frontend.onnx.registry import onnx_op
from minitvm.frontend.onnx.shape_values import shape_value
from minitvm.ir.builder import call_op
from minitvm.ir.dims import (
    Dim,
    SymbolicDim,
    are_counted_on,
    facts,
    forget_since,
    is_anonymous,
    is_equal,
    larger,
    measure,
    measuring,
)
from minitvm.ir.expr import Call, Constant, Expr, Function, Tuple, Var
from minitvm.ir.types import TensorType, TupleType, Type, alike, as_shape, common, leaves, tensor_fields
from minitvm.ir.visitor import children, post_order, rebuild, substitute

Captured: TypeAlias = tuple[Expr, dict[Expr, Var]]
"""A body, and its variable for each value that it takes from outside."""
Measured: TypeAlias = Mapping[str, Expr]
"""What computes the sizes that a body's data decide, by symbol."""
Body: TypeAlias = tuple[list[Var], Expr, dict[Expr, Var], Measured]
"""The body of a loop: its own parameters, its results, what it takes from outside, what it measures."""

LONGEST_STACK = 1 << 24
"""Trips of a loop that ends by itself: more are taken for a loop that its condition ends."""

BRANCHES = ("then_branch", "else_branch")


@onnx_op("If", since=1)
def if_(node: OnnxNode) -> list[Expr]:
    """A call of ``control.if``, whose branches take what they use from outside as arguments.

    A branch that does not fit the shapes of the model's inputs raises when it is taken, not while importing.  Where
    sizes decide between branches whose results differ in shape, the one is taken that they decide for.
    """
    condition, before = node.known(0), facts()
    if condition is not None:
        return _inlined(node, condition)
    by_sizes = _by_sizes(node)
    forget_since(before)
    found = [_branch(node, name) for name in BRANCHES]
    misfits = [one for one in found if isinstance(one, TypeInferenceError)]
    bodies = [one for one in found if not isinstance(one, TypeInferenceError)]
    if by_sizes is not None and (misfits or not alike(*(body.type for body, _ in bodies))):
        forget_since(before)
        return _inlined(node, _by_sizes(node))
    if are_counted_on() and not misfits and _ranks_differ(*(_fields(body) for body, _ in bodies)):
        return _by_choice(node)
    if len(misfits) == 2 or (misfits and _reads_symbols(node, BRANCHES[found.index(misfits[0])])):
        raise misfits[0]
    types = tensor_fields(bodies[0][0].type) if misfits else ()
    branches = [_failing(node, one, types) if isinstance(one, TypeInferenceError) else one for one in found]
    captured = list(dict.fromkeys(outer for _, taken in branches for outer in taken))
    then, orelse = (_over(body, taken, captured) for body, taken in branches)
    return list(map(named, _results(call_op("control.if", node[0], *captured, then_branch=then, else_branch=orelse))))


def _by_sizes(node: OnnxNode) -> np.ndarray | None:
    """The condition where it follows from sizes, as those of the first run have it."""
    return shape_value(node[0], node.known_values) if are_counted_on() else None


def _ranks_differ(one: Sequence[Type], other: Sequence[Type]) -> bool:
    pairs = zip(one, other, strict=False)
    return any(isinstance(a, TensorType) and isinstance(b, TensorType) and a.rank != b.rank for a, b in pairs)


def _by_choice(node: OnnxNode) -> list[Expr]:
    """The branch that a run's data decide for, which is measured as sizes are: the other one is another library's."""
    asked = emit("cast", emit("reshape", node[0], newshape=()), dtype="int64")
    chosen = measure(lambda: asked, (node[0], "choice"))
    taken = _inlined(node, np.asarray(not is_equal(chosen, 0)))
    return [emit("control.after", value, emit("extent", size=chosen)) for value in taken]


def _inlined(node: OnnxNode, condition: Any) -> list[Expr]:
    """The branch that is taken for certain."""
    importer, scope = node.control
    if condition.size != 1:
        raise node.fail(f"its condition has {condition.size} elements; expected one")
    return list(importer.inline(node.require(BRANCHES[0] if condition.reshape(-1)[0] else BRANCHES[1]), scope))


def _branch(node: OnnxNode, name: str) -> Captured | TypeInferenceError:
    importer, scope = node.control
    try:
        with measuring() as measured:
            body, taken = importer.function(node.require(name), scope, [])
        return closed(body, taken, importer.known, measured)
    except TypeInferenceError as error:
        return error


def _reads_symbols(node: OnnxNode, name: str) -> bool:
    """True if a branch takes something of dimensions that have names from outside: with numbers it may fit."""
    importer, scope = node.control
    found = [scope.lookup(name, importer.known) for name in outer_names(node.require(name))]
    types = [
        type_ for expr in found if expr is not None for type_ in leaves(expr.type) if isinstance(type_, TensorType)
    ]
    return any(isinstance(d, SymbolicDim) for type_ in types for d in type_.shape)


def _failing(node: OnnxNode, error: TypeInferenceError, types: Sequence[TensorType]) -> Captured:
    """A body that raises, with the types of one that fits."""
    message = f"{place_of(node.proto)} takes a branch that the shapes of the inputs rule out: {error.message}"
    shapes = tuple(tuple(d if isinstance(d, int) else None for d in t.shape) for t in types)
    dtypes = tuple(t.dtype for t in types)
    return call_op("control.fail", message=message, shapes=shapes, dtypes=dtypes), {}


def _over(body: Expr, taken: dict[Expr, Var], captured: list[Expr]) -> Function:
    """The function of a branch over the values that either branch takes from outside."""
    params = [taken[outer] if outer in taken else _unused(outer, i) for i, outer in enumerate(captured)]
    return Function(params, body)


def _unused(outer: Expr, position: int) -> Var:
    return Var(outer.name if isinstance(outer, Var) else f"unused{position}", outer.type)


def _results(call: Expr) -> list[Expr]:
    return list(call) if isinstance(call.type, TupleType) else [call]


@door
def staged_body(body: Expr, measured: Measured) -> Expr:
    """What a branch or a trip computes, cut where its data decide sizes."""
    if measured:
        raise left_out("what follows from sizes that the data decide")
    return body


def closed(body: Expr, taken: dict[Expr, Var], known: dict[Expr, np.ndarray], measured: Measured) -> Captured:
    """A body without what weights alone say, in stages for the sizes that it measures."""
    together, taken = hoist_weights(Tuple([body, *measured.values()]), taken, known)
    assert isinstance(together, Tuple)
    body, *sizes = together.fields
    return staged_body(body, dict(zip(measured, sizes, strict=True))), taken


def hoist_weights(body: Expr, taken: dict[Expr, Var], known: dict[Expr, np.ndarray]) -> tuple[Expr, dict[Expr, Var]]:
    """What a body computes from weights alone (a transpose, a slice) moves outside, where it is folded once.

    Returns the new body, and which outer expression each of its variables for values from outside stands for.
    """
    outside: dict[Expr, Expr] = {inner: outer for outer, inner in taken.items() if outer in known}
    for node in post_order(body):
        operands = [child for child in children(node) if not isinstance(child, Constant)]
        if isinstance(node, Call) and operands and all(child in outside for child in operands):
            outside[node] = rebuild(node, [outside.get(child, child) for child in children(node)])
    last = {c for node in post_order(body) if node not in outside for c in (*children(node), body) if c in outside}
    moved: list[Expr] = [node for node in post_order(body) if node in last and isinstance(node, Call)]
    fresh: dict[Expr, Expr] = {node: Var(f"hoisted{i}", node.type) for i, node in enumerate(moved)}
    body = substitute(body, fresh)
    used = set(post_order(body))
    kept = {outer: inner for outer, inner in taken.items() if inner in used}
    return body, {**kept, **{outside[inner]: var for inner, var in fresh.items() if isinstance(var, Var)}}


@onnx_op("Loop", since=1)
def loop(node: OnnxNode) -> list[Expr]:
    """``control.loop``.  A carried value whose shape changes gets unknown dimensions: found by repetition.

    A body that does not fit the shapes of the model's inputs raises when there is a trip, not while importing.
    """
    added = bags(node)
    if added is not None:
        return [added]
    importer, _ = node.control
    graph = node.require("body")
    first = [node[i] for i in range(2, len(node.inputs))]
    trips = node.get(0) or Constant(np.asarray(np.iinfo(np.int64).max))
    going = node.get(1) or Constant(np.asarray(True))
    try:
        params, body, taken, measured = _body(node, graph, first)
    except TypeInferenceError as error:
        if _runs(trips, going):
            raise
        params = _loop_params(node, graph, [value.type for value in first])
        (body, taken), measured = _never(node, error, graph, params), {}
    lists, unlike = appended(params[2:], body, first), appended_unlike(params[2:], body, first)
    with measuring() as more:
        params, start, body = joined_lists(unlike, params, first, body)
    params, carried, body = _without(lists, params, start, body)
    measured = {**measured, **more}
    body, taken = closed(body, taken, importer.known, measured)
    scanned = _tensors(body, 1 + len(carried))
    said = [*graph.output[1 + len(first) :], *(onnx.ValueInfoProto() for _ in (*unlike, *lists))]
    rows = _rows(node, scanned, said)
    if _stops(trips, going):
        return split_again(with_lists([*carried, *_nothing(rows, scanned)], lists, len(first)), unlike)
    function, known = Function([*params, *taken.values()], body), _known_trips(node, trips, going, params[1], body)
    values = [trips, going, *carried, *taken]
    found = call_op("control.loop", *values, body=function, num_carried=len(carried), trips=known, rows=rows)
    return split_again(with_lists(_results(found), lists, len(first)), unlike)


def _without(
    lists: Mapping[int, Expr], params: list[Var], first: list[Expr], body: Expr
) -> tuple[list[Var], list[Expr], Expr]:
    """A loop in which what trips append to lists is scanned: its parameters, what it carries at first, its body."""
    if not lists:
        return params, first, body
    kept = [i for i in range(len(first)) if i not in lists]
    fields = list(body.fields) if isinstance(body, Tuple) else []
    after = [fields[0], *(fields[1 + i] for i in kept), *fields[1 + len(first) :], *lists.values()]
    return [*params[:2], *(params[2 + i] for i in kept)], [first[i] for i in kept], Tuple(after)


def _body(node: OnnxNode, graph: onnx.GraphProto, first: list[Expr]) -> Body:
    importer, scope = node.control

    def made(types: Sequence[Type]) -> Body:
        params = _loop_params(node, graph, types)
        with measuring() as measured:
            body, taken = importer.function(graph, scope, _as_declared(graph, params))
        return params, body, taken, measured

    return _settled(node, [value.name for value in graph.input[2:]], first, 1, made)


def _settled(
    node: OnnxNode, names: Sequence[str], first: Sequence[Expr], skip: int, made: Callable[[Sequence[Type]], Body]
) -> Body:
    """The body for types of the carried values that hold before and after every trip: found by repetition, from those
    of the ``first`` values on.  Their next values are the body's results behind the first ``skip``."""
    types, before = [value.type for value in first], facts()
    while True:
        forget_since(before)  # what was counted on for types that do not hold
        found = made(types)
        after = _fields(found[1])[skip : skip + len(types)]
        joined = [_joined(node, *one) for one in zip(names, types, after, strict=True)]
        if all(map(alike, joined, types)):
            return found
        types = joined


def _never(node: OnnxNode, error: TypeInferenceError, graph: onnx.GraphProto, params: list[Var]) -> Captured:
    """A body that raises, of the types that it has where there is no trip; ``error`` where these are not declared."""
    failing, taken = _failing(node, error, [TensorType((), "bool"), *_declared(graph.output[len(params) - 1 :], error)])
    condition, *rows = _results(failing)
    return Tuple([condition, *params[2:], *rows]), taken


def _declared(values: Sequence[onnx.ValueInfoProto], error: TypeInferenceError) -> list[TensorType]:
    """The types that a body says its results have; ``error`` where it does not say."""
    described = [describe_value(value) for value in values]
    if not all(value.dtype and value.has_rank for value in described):
        raise error
    shapes = [[dim if isinstance(dim, int) else None for dim in value.shape] for value in described]
    return [TensorType(as_shape(shape), value.dtype) for shape, value in zip(shapes, described, strict=True)]


def _rows(
    node: OnnxNode, found: Sequence[TensorType], declared: Sequence[onnx.ValueInfoProto]
) -> tuple[tuple[Dim, ...], ...]:
    """The shapes that scanned values would have had: the body's, where that is open the one that the model declares,
    whose names are sizes of the model's inputs."""
    return tuple(_row(node, *one) for one in zip(found, declared, strict=True))


def _nothing(rows: Sequence[tuple[Dim, ...]], types: Sequence[TensorType]) -> list[Expr]:
    """What no trip scans."""
    zeros = [Constant(np.zeros((), type_.dtype)) for type_ in types]
    return [emit("broadcast_to", zero, shape=(0, *row)) for zero, row in zip(zeros, rows, strict=True)]


def _row(node: OnnxNode, found: TensorType, declared: onnx.ValueInfoProto) -> tuple[Dim, ...]:
    sizes, said = node.control[0].sizes, describe_value(declared).shape
    said = said if len(said) == found.rank else (None,) * found.rank
    dims = (sizes.get(s, s) if is_anonymous(d) else d for d, s in zip(found.shape, said, strict=True))
    return tuple(d if isinstance(d, (int, SymbolicDim)) else 0 for d in dims)


def _fields(body: Expr) -> Sequence[Type]:
    """The types of its results."""
    return body.type.fields if isinstance(body.type, TupleType) else (body.type,)


def _tensors(body: Expr, first: int) -> list[TensorType]:
    """Those of its results from the ``first`` on, which are stacked."""
    found = [type_ for type_ in _fields(body)[first:] if isinstance(type_, TensorType)]
    if len(found) < len(_fields(body)) - first:
        raise FrontendError(f"only tensors can be scanned, not all of {body.type}")
    return found


def _runs(trips: Expr, going: Expr) -> bool:
    """True if there is a trip for certain."""
    return all(isinstance(expr, Constant) and expr.value.item() > 0 for expr in (trips, going))


def _stops(trips: Expr, going: Expr) -> bool:
    """True if there is none for certain."""
    return any(isinstance(expr, Constant) and expr.value.item() <= 0 for expr in (trips, going))


def _known_trips(node: OnnxNode, trips: Expr, going: Expr, condition: Var, body: Expr) -> Dim | None:
    """How many trips there are, where their number is known and no condition ends them sooner."""
    kept = body.fields[0] if isinstance(body, Tuple) else None
    stays = kept is condition or (isinstance(kept, Constant) and bool(kept.value.all()))
    if not stays or not isinstance(going, Constant) or not going.value.all():
        return None
    if isinstance(trips, Constant):
        limit = trips.value.item()
        return max(limit, 0) if limit <= LONGEST_STACK else None
    found = shape_value(trips, node.known_values) if are_counted_on() else None
    return None if found is None else larger(0, found.item())


def _loop_params(node: OnnxNode, graph: onnx.GraphProto, types: Sequence[Type]) -> list[Var]:
    """The body's own parameters: the iteration, the condition, and the carried values."""
    if len(graph.input) != 2 + len(types):
        raise node.fail(f"its body takes {len(graph.input)} inputs; expected 2 and the {len(types)} carried values")
    head = (TensorType((), "int64"), TensorType((), "bool"))
    return [Var(value.name, type_) for value, type_ in zip(graph.input, (*head, *types), strict=True)]


def _as_declared(graph: onnx.GraphProto, params: list[Var]) -> list[Expr]:
    """The parameters as the body sees them: ONNX lets it declare the iteration and the condition as vectors of one."""
    head = zip(graph.input, params[:2], strict=False)
    seen = [emit("reshape", p, newshape=(1,)) if len(v.type.tensor_type.shape.dim) == 1 else p for v, p in head]
    return [*seen, *map(named, params[2:])]


def _joined(node: OnnxNode, name: str, before: Type, after: Type) -> Type:
    found = common(before, after)
    if found is None:
        raise node.fail(f"carried value {name!r} goes in as {before} and comes out as {after}")
    return found


@onnx_op("Scan", since=9)
def scan(node: OnnxNode) -> list[Expr]:
    """A loop of known length: each step takes one slice of the scanned inputs; its results are stacked."""
    states, given = _scanned(node, node.operands())
    sequences = [_ordered(node, i, value, "scan_input", len(given)) for i, value in enumerate(given)]
    last, stacked = _scan(node, states, sequences)
    return [*last, *(_unordered(node, i, value, len(stacked)) for i, value in enumerate(stacked))]


@onnx_op("Scan", since=8)
def scan_batch(node: OnnxNode) -> list[Expr]:
    """A scan for each of a batch, forwards or backwards, of the length that the first input may give."""
    states, given = _scanned(node, [node[i] for i in range(1, len(node.inputs))])
    batch, steps, *_ = given[0].shape
    lengths = [steps] * batch if node.get(0) is None else node.constant(0, "the lengths").tolist()
    backwards = node.attr("directions") or [0] * len(given)
    found: list[list[Expr]] = []
    for row, length in enumerate(lengths):
        rows = [[emit("take", v, integer(row), axis=0) for v in values] for values in (states, given)]
        pieces = [emit("strided_slice", v, begin=(0,), end=(length,)) for v in rows[1]]
        forwards = [emit("reverse", p, axis=0) if b else p for p, b in zip(pieces, backwards, strict=True)]
        last, stacked = _scan(node, rows[0], forwards)
        padding = [[(0, steps - length), *((0, 0) for _ in range(rank(v) - 1))] for v in stacked]
        found.append([*last, *(emit("nn.pad", v, 0, pad_width=p) for v, p in zip(stacked, padding, strict=True))])
    return [emit("stack", list(rows), axis=0) for rows in zip(*found, strict=True)]


def integer(value: int) -> Constant:
    return Constant(np.asarray(value))


def _scanned(node: OnnxNode, values: list[Expr]) -> tuple[list[Expr], list[Expr]]:
    """The first states, and what is scanned."""
    count = node.require("num_scan_inputs")
    if not 1 <= count <= len(values):
        raise node.fail(f"num_scan_inputs is {count}, but it has {len(values)} inputs")
    return values[: len(values) - count], values[len(values) - count :]


def _scan(node: OnnxNode, states: list[Expr], sequences: list[Expr]) -> tuple[list[Expr], list[Expr]]:
    """The last states, and what each step gives, stacked."""
    importer, scope = node.control
    graph, steps = node.require("body"), sequences[0].tensor_type.shape[0]
    head = [Var("step", TensorType((), "int64")), Var("going", TensorType((), "bool"))]
    names = [value.name for value in graph.input[: len(states)]]
    if steps == 0:
        return states, _unmade(node, list(map(Var, names, (state.type for state in states))), sequences)
    whole = [Var(f"{graph.input[len(states) + i].name}_sequence", s.type) for i, s in enumerate(sequences)]
    slices = [emit("take", sequence, head[0], axis=0, mode="clip") for sequence in whole]

    def made(types: Sequence[Type]) -> Body:
        carried = list(map(Var, names, types))
        with measuring() as measured:
            body, taken = importer.function(graph, scope, [*map(named, carried), *slices])
        return carried, body, taken, measured

    carried, body, taken, measured = _settled(node, names, states, 0, made)
    body, taken = closed(body, taken, importer.known, measured)
    results = list(body.fields) if isinstance(body, Tuple) else [body]
    function = Function([*head, *carried, *whole, *taken.values()], Tuple([head[1], *results]))
    values = [_rows_of(sequences[0]), Constant(np.asarray(True)), *states, *sequences, *taken]
    loop = call_op("control.loop", *values, body=function, num_carried=len(states), trips=_length(steps))
    found = list(map(named, _results(loop)))
    if is_anonymous(steps):
        return found[: len(states)], found[len(states) :]
    shapes = [(steps, *value.tensor_type.shape[1:]) for value in found[len(states) :]]
    stacked = zip(found[len(states) :], shapes, strict=True)
    return [*found[: len(states)]], [emit("reshape", v, newshape=shape, allowzero=True) for v, shape in stacked]


def _rows_of(sequence: Expr) -> Expr:
    """How many there are, which only a run may know."""
    rows = sequence.tensor_type.shape[0]
    if isinstance(rows, int):
        return integer(rows)
    first = emit("strided_slice", emit("shape_of", sequence, dtype="int64"), begin=(0,), end=(1,))
    return emit("reshape", first, newshape=())


def _unmade(node: OnnxNode, carried: Sequence[Var], sequences: Sequence[Expr]) -> list[Expr]:
    """What the steps of a scan over nothing give."""
    (importer, scope), graph = node.control, node.require("body")
    types = [value.tensor_type.with_shape(value.shape[1:]) for value in sequences]
    gives = graph.output[len(carried) :]
    try:
        body, _ = importer.function(graph, scope, [*carried, *(Var("row", type_) for type_ in types)])
        found = _tensors(body, len(carried))
    except TypeInferenceError as error:
        found = _declared(gives, error)
    return _nothing(_rows(node, found, gives), found)


def _length(steps: Dim) -> Dim | None:
    return None if is_anonymous(steps) else steps


def _axis_and_direction(node: OnnxNode, kind: str, position: int, count: int) -> tuple[int, bool]:
    axes = node.attr(f"{kind}_axes") or [0] * count
    return axes[position], bool((node.attr(f"{kind}_directions") or [0] * count)[position])


def _ordered(node: OnnxNode, position: int, value: Expr, kind: str, count: int) -> Expr:
    """A scanned input with the scanned axis in front, the first step first."""
    axis, backwards = _axis_and_direction(node, kind, position, count)
    axis = normalize_axis(node, axis, rank(value))
    if axis:
        value = emit("transpose", value, axes=(axis, *(d for d in range(rank(value)) if d != axis)))
    return emit("reverse", value, axis=0) if backwards else value


def _unordered(node: OnnxNode, position: int, value: Expr, count: int) -> Expr:
    """Stacked results with the scanned axis where the attributes want it."""
    axis, backwards = _axis_and_direction(node, "scan_output", position, count)
    value = emit("reverse", value, axis=0) if backwards else value
    axis = normalize_axis(node, axis, rank(value))
    order = [*range(1, axis + 1), 0, *range(axis + 1, rank(value))]
    return emit("transpose", value, axes=tuple(order)) if axis else value


Step: TypeAlias = Callable[[list[Expr], Expr, list[Expr]], tuple[list[Expr], Expr]]
"""From the states, one slice of the sequence and what the step takes to the next states and what the step gives."""


def recurrence(
    step: Step, states: Sequence[Expr], sequence: Expr, taken: Sequence[Expr], reverse: bool = False
) -> tuple[list[Expr], Expr]:
    """The last states, and what the steps over the first axis of ``sequence`` gave, in its order."""
    sequence, steps = emit("reverse", sequence, axis=0) if reverse else sequence, sequence.shape[0]
    if steps == 0:  # the body is typed by a step that there is not
        sequence = emit("nn.pad", sequence, 0, pad_width=[(0, int(not d)) for d in range(rank(sequence))])
    head = [Var("step", TensorType((), "int64")), Var("going", TensorType((), "bool"))]
    given = [*states, sequence, *taken]
    params = [Var(f"value{i}", value.type) for i, value in enumerate(given)]
    count = len(states)
    element = emit("take", params[count], head[0], axis=0, mode="clip")
    after, gives = step(list(params[:count]), element, list(params[count + 1 :]))
    function = Function([*head, *params], Tuple([head[1], *after, gives]))
    start = (integer(0) if steps == 0 else _rows_of(sequence), Constant(np.asarray(True)))
    loop = call_op("control.loop", *start, *given, body=function, num_carried=count, trips=_length(steps))
    found: list[Expr] = list(loop)
    stacked = emit("reshape", found[count], newshape=(steps, *gives.tensor_type.shape), allowzero=True)
    return found[:count], emit("reverse", stacked, axis=0) if reverse else stacked
