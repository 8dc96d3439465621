"""From compute rules to one expression per output: composing, inlining, deciding what to keep in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from types import MappingProxyType

from minitvm.errors import IRError, user_code
from minitvm.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem
from minitvm.ir.loop import (
    CHEAP,
    Binary,
    Buffer,
    Const,
    Intrin,
    Kernel,
    Load,
    LoopExpr,
    LoopVar,
    Reduce,
    Stage,
    Stmt,
    const,
    dependency_order,
    map_expr,
    rebuild_expr,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.loop.affine import Affine, affine, loads
from minitvm.ir.node import describe_call
from minitvm.ir.op import Op, compute_of
from minitvm.ir.types import TensorType, symbols, tensor_fields
from minitvm.ir.visitor import calls, post_order, sizes_of, span_of

Value = Buffer | tuple["Value", ...]


def compose(
    function: Function, placed: Mapping[Call, tuple[Buffer, ...]] = MappingProxyType({})
) -> tuple[list[Buffer], dict[Expr, Value]]:
    """One buffer per tensor among the parameters, in order, tuples flattened; and every node of the function as stages
    over them, each operator by its compute rule.

    Calls in ``placed`` are not composed: their results are the given buffers (a template writes them).
    """
    buffers: list[Buffer] = []
    values: dict[Expr, Value] = {}
    for param in function.params:
        fields = tuple(Buffer(param.name, t.extents, t.dtype) for t in tensor_fields(param.type))
        values[param] = fields[0] if isinstance(param.type, TensorType) else fields
        buffers += fields
    for node in post_order(function.body):
        if node not in values:
            values[node] = _value(node, values, placed)
    return buffers, values


def _value(node: Expr, values: Mapping[Expr, Value], placed: Mapping[Call, tuple[Buffer, ...]]) -> Value:
    if isinstance(node, Constant):
        return _literal(node)
    if isinstance(node, Tuple):
        return tuple(values[field] for field in node.fields)
    if isinstance(node, TupleGetItem):
        source = values[node.tuple]
        assert isinstance(source, tuple)
        return source[node.index]
    assert isinstance(node, Call) and isinstance(node.op, Op), node
    results = placed[node] if node in placed else _computed(node, node.op, values)
    return results[0] if isinstance(node.type, TensorType) else results


def _computed(call: Call, op: Op, values: Mapping[Expr, Value]) -> tuple[Buffer, ...]:
    """The operator's compute rule, whose results are held against the types that ``infer`` found."""
    with user_code(type(op), f"compute of {op.name}", partial(describe_call, call)):
        results = compute_of(op, *(values[a] for a in call.args))  # type: ignore[arg-type]
    expected = tensor_fields(call.type)
    if symbols(call.type):  # what broadcasting leaves open, types count on
        results = tuple(replace(r, shape=t.extents) for r, t in zip(results, expected, strict=True))
    found = tuple(TensorType(r.shape, r.dtype) if isinstance(r, Buffer) else r for r in results)
    if found != expected:
        raise IRError(
            f"{op.name}: compute's result is {', '.join(map(str, found))}, but infer says "
            f"{', '.join(map(str, expected))}",
            where=describe_call(call),
        )
    return results


def _literal(constant: Constant) -> Stage:
    """A scalar constant inside a group: a literal in the code."""
    assert constant.value.ndim == 0, "only scalars are fused as literals"
    dtype = constant.value.dtype.name
    return Stage("literal", (), dtype, axes=(), value=const(constant.value.item(), dtype))


def flatten(value: Value) -> list[Buffer]:
    if isinstance(value, tuple):
        return [buffer for field in value for buffer in flatten(field)]
    return [value]


@dataclass(frozen=True)
class Output:
    """One result of the group: ``buffer[axes] = value``."""

    buffer: Buffer
    axes: tuple[LoopVar, ...]
    value: LoopExpr


class Inliner:
    """Replaces loads of stages by their definitions, all but those that are kept in memory.

    Equal expressions are one object, so what is defined once is shared, which is how emitters see common parts.
    """

    def __init__(self, kept: Collection[Buffer] = ()) -> None:
        self._kept = kept
        self._done: dict[LoopExpr, LoopExpr] = {}

    def inline(self, root: LoopExpr) -> LoopExpr:
        """Operands first; with a stack of its own, as groups are hundreds of operators deep."""
        stack = [root]
        while stack:
            node = stack[-1]
            waiting = [child for child in node.operands if child not in self._done]
            if not waiting:
                found = rebuild_expr(node, [self._done[child] for child in node.operands])
                meaning = self._definition(found)
                if meaning is None or meaning in self._done:
                    self._done[node] = found if meaning is None else self._done[meaning]
                    stack.pop()
                else:
                    waiting = [meaning]
            stack += waiting
        return self._done[root]

    def _definition(self, node: LoopExpr) -> LoopExpr | None:
        """What a load of a stage stands for."""
        if not isinstance(node, Load) or not isinstance(node.buffer, Stage) or node.buffer in self._kept:
            return None
        return substitute_vars(node.buffer.value, dict(zip(node.buffer.axes, node.index, strict=True)))


def outputs_of(function: Function, values: Mapping[Expr, Value], kept: Collection[Buffer] = ()) -> list[Output]:
    """The group's results with everything inlined but what is ``kept``."""
    inliner = Inliner(kept)
    found: list[Output] = []
    for position, buffer in enumerate(flatten(values[function.body])):
        if isinstance(buffer, Stage):
            axes, value = buffer.axes, inliner.inline(buffer.value)
        else:
            axes = tuple(LoopVar("ijklmnopq"[d]) for d in range(len(buffer.shape)))
            value = Load(buffer, axes)
        found.append(Output(Buffer(f"out{position}", buffer.shape, buffer.dtype), axes, value))
    return found


def stage_order(outputs: Sequence[Buffer]) -> list[Stage]:
    """Every stage that the outputs are made from, producers first."""

    def read(buffer: Buffer) -> list[Buffer]:
        return [load.buffer for load in loads(buffer.value)] if isinstance(buffer, Stage) else []

    return [buffer for buffer in dependency_order(outputs, read) if isinstance(buffer, Stage)]


def stages_to_keep(order: Sequence[Stage], outputs: Sequence[Buffer]) -> list[Stage]:
    """The stages that get memory of their own; all others are recomputed where they are read.

    Outputs are kept when other stages read them.  A reduction (also one that is inlined into an elementwise stage)
    is kept unless it has one reader that reads each of its elements once.  A costly elementwise stage is kept when
    it is read more than once, or what is made of it by a reduction and by another stage; and one whose compute rule
    says so.
    """
    readers: dict[Buffer, list[tuple[Stage, Load]]] = {}
    for stage in order:
        for load in loads(stage.value):
            readers.setdefault(load.buffer, []).append((stage, load))
    kept: list[Stage] = []
    reducing, costly = set[Buffer](), set[Buffer]()
    for stage in order:
        inlined = {load.buffer for load in loads(stage.value)} - set(kept)
        if inlined & costly or any(isinstance(n, Intrin) and n.name not in CHEAP for n in walk_exprs(stage.value)):
            costly.add(stage)
        if inlined & reducing or any(isinstance(node, Reduce) for node in walk_exprs(stage.value)):
            reducing.add(stage)
        found = readers.get(stage, [])
        if _must_keep(stage, found, stage in outputs, stage in reducing) or (stage in costly and _is_reduced(found)):
            kept.append(stage)
    return kept


def _must_keep(stage: Stage, readers: Sequence[tuple[Stage, Load]], is_output: bool, reduces: bool) -> bool:
    if stage.kept or not readers:
        return stage.kept
    if reduces:
        return is_output or len(readers) > 1 or not _reads_each_once(stage, *readers[0])
    return len(readers) > 1 and any(isinstance(n, Intrin) and n.name not in CHEAP for n in walk_exprs(stage.value))


def _is_reduced(readers: Sequence[tuple[Stage, Load]]) -> bool:
    """Whether several stages read it, one of which is a reduction."""
    stages = {stage for stage, _ in readers}
    return len(stages) > 1 and any(isinstance(n, Reduce) for stage in stages for n in walk_exprs(stage.value))


def _reads_each_once(stage: Stage, reader: Stage, load: Load) -> bool:
    inside = any(load is n for r in walk_exprs(reader.value) if isinstance(r, Reduce) for n in walk_exprs(r.value))
    used = [i for i in load.index if isinstance(i, LoopVar)]
    return not inside and len(set(used)) == len(reader.axes) and len(used) == len(load.index)


@dataclass(frozen=True)
class Group:
    """Parameters, the stages that are kept in memory, each over memory of the ones before it, and the results."""

    params: tuple[Buffer, ...]
    stages: tuple[Output, ...]
    outputs: tuple[Output, ...]

    @staticmethod
    def of(function: Function) -> Group:
        params, values = compose(function)
        results = flatten(values[function.body])
        kept = stages_to_keep(stage_order(results), results)
        inliner = Inliner(kept)
        stages = [Output(stage, stage.axes, inliner.inline(stage.value)) for stage in kept]
        return Group(tuple(params), tuple(stages), tuple(outputs_of(function, values, kept)))

    @property
    def collapsed(self) -> Group:
        """Over as few dimensions as possible, where there are results alone, of one rank."""
        if self.stages or len({len(out.axes) for out in self.outputs}) > 1:
            return self
        params, outputs = collapse(self.params, self.outputs)
        return Group(params, (), outputs)

    @property
    def nests(self) -> tuple[Output, ...]:
        return (*self.stages, *self.outputs)

    def kernel(self, function: Function, name: str, body: Stmt) -> Kernel:
        results = tuple(out.buffer for out in self.outputs)
        spans = span_of(*calls(function.body))
        return Kernel(name, (*self.params, *results), body, len(results), spans, sizes_of(function))


# --- dimensions that every access walks through together are merged, so that inner loops get long ------------------

Axes = tuple[tuple[LoopVar, int], ...]


@dataclass(frozen=True)
class _Elements:
    """The values of results of one rank over their axes; reshaped parameters by what they were."""

    axes: tuple[Axes, ...]
    values: tuple[LoopExpr, ...]
    params: tuple[Buffer, ...]


def collapse(params: Sequence[Buffer], outs: Sequence[Output]) -> tuple[tuple[Buffer, ...], tuple[Output, ...]]:
    """The same element functions over as few dimensions as possible, of the results and of their reductions.

    Two neighbouring axes become one where every load has neither, or both, one right after the other: the inner one as
    an index of its own, the outer one as that or moved by something.  ``x[i, j, k] + b[k]`` joins ``i`` and ``j``, and
    so does ``select(i < 3, x[i, j], y[i - 3, j])``.  What several results have in common stays: rows are made together.
    Dimensions of one element go.
    """
    axes = tuple(tuple(zip(out.axes, out.buffer.shape, strict=True)) for out in outs)
    found = _without_ones(_Elements(axes, tuple(out.value for out in outs), tuple(params)))
    while (simpler := _simpler(found)) is not None:
        found = simpler
    collapsed = zip(outs, found.axes, found.values, strict=True)
    return found.params, tuple(
        Output(_reshaped(out.buffer, [n for _, n in axes]), tuple(var for var, _ in axes), value)
        for out, axes, value in collapsed
    )


def _without_ones(given: _Elements) -> _Elements:
    ones = {var for column in zip(*given.axes, strict=True) if all(n == 1 for _, n in column) for var, _ in column}
    known: dict[LoopVar, LoopExpr] = {var: Const(0) for var in ones}
    squeezed: dict[Buffer, Buffer] = {}

    def visit(node: LoopExpr) -> LoopExpr:
        if isinstance(node, Reduce):
            return _reduced_without_ones(node)
        if not isinstance(node, Load) or 1 not in node.buffer.shape:
            return node
        index = tuple(i for i, n in zip(node.index, node.buffer.shape, strict=True) if n != 1)
        smaller = _reshaped(node.buffer, [n for n in node.buffer.shape if n != 1])
        return Load(squeezed.setdefault(node.buffer, smaller), index)

    values = tuple(map_expr(substitute_vars(value, known), visit) for value in given.values)
    left = tuple(tuple(axis for axis in axes if axis[0] not in ones) for axes in given.axes)
    return _Elements(left, values, tuple(squeezed.get(p, p) for p in given.params))


def _reduced_without_ones(node: Reduce) -> Reduce:
    """Over the axes that have more than one element, so that the last of them is the innermost loop."""
    longer = tuple(axis for axis in node.axes if axis[1] != 1)
    if longer in (node.axes, ()):
        return node
    ones: dict[LoopVar, LoopExpr] = {var: Const(0) for var, n in node.axes if n == 1}
    return Reduce(node.kind, longer, substitute_vars(node.value, ones))


def _reshaped(buffer: Buffer, shape: Sequence[int]) -> Buffer:
    return Buffer(buffer.name, tuple(shape), buffer.dtype, buffer.scope)


def _simpler(given: _Elements) -> _Elements | None:
    """With one pair of neighbouring axes merged, of every result or of a reduction."""
    columns = list(zip(*given.axes, strict=True))
    shared = (d for d, column in enumerate(columns) if len(column) == 1 or len({n for _, n in column}) > 1)
    pairs = list(pairwise(columns))[next(shared, len(columns)) :]
    reduces = [node for value in given.values for node in walk_exprs(value) if isinstance(node, Reduce)]
    pairs += [((a,), (b,)) for node in reduces for a, b in pairwise(node.axes)]
    found = (_merged(given, outer, inner) for outer, inner in pairs)
    return next((made for made in found if made is not None), None)


def _merged(given: _Elements, outer: Axes, inner: Axes) -> _Elements | None:
    """With one axis in place of each outer and inner one, or nothing where that leaves any of them anywhere."""
    joints = [_Joint(a, b, (LoopVar(a[0].name), a[1] * b[1])) for a, b in zip(outer, inner, strict=True)]
    made: dict[tuple[Buffer, int], Buffer] = {}

    def visit(node: LoopExpr) -> LoopExpr:
        for joint in joints:
            node = joint.visit(node, made)
        return node

    values = tuple(map_expr(value, visit) for value in given.values)
    left = {node for value in values for node in walk_exprs(value)}
    new = {old: buffer for (old, _), buffer in made.items()}
    if any(var in left for var, _ in (*outer, *inner)) or len(new) < len(made):
        return None
    if any(isinstance(node, Load) and node.buffer in new for node in left):
        return None
    axes = tuple(reduce(lambda found, joint: joint.axes(found), joints, each) for each in given.axes)
    return _Elements(axes, values, tuple(new.get(p, p) for p in given.params))


@dataclass(frozen=True)
class _Joint:
    """An axis in place of two neighbouring ones."""

    outer: tuple[LoopVar, int]
    inner: tuple[LoopVar, int]
    both: tuple[LoopVar, int]

    def axes(self, given: Axes) -> Axes:
        at = next((d for d, pair in enumerate(pairwise(given)) if pair == (self.outer, self.inner)), None)
        return given if at is None else (*given[:at], self.both, *given[at + 2 :])

    def visit(self, node: LoopExpr, made: dict[tuple[Buffer, int], Buffer]) -> LoopExpr:
        match node:
            case Reduce(kind, axes, value):
                return Reduce(kind, self.axes(axes), value)
            case Load():
                return self._load(node, made)
            case Binary("lt" | "le" as op, x, y) if x.dtype == "int64":
                return self._condition(node, op, affine(Binary("sub", x, y)))
        return node

    def _load(self, node: Load, made: dict[tuple[Buffer, int], Buffer]) -> LoopExpr:
        for d, ((i, extent), last) in enumerate(pairwise(zip(node.index, node.buffer.shape, strict=True))):
            form = affine(i)
            start = self._rest(form)
            if last == self.inner and start is not None and form.terms[self.outer[0]] == 1:
                shape = (*node.buffer.shape[:d], extent * last[1], *node.buffer.shape[d + 2 :])
                buffer = made.setdefault((node.buffer, d), _reshaped(node.buffer, shape))
                return Load(buffer, (*node.index[:d], self.both[0] + start * last[1], *node.index[d + 2 :]))
        return node

    def _condition(self, node: LoopExpr, op: str, gap: Affine[LoopExpr]) -> LoopExpr:
        """``outer < n`` is ``both < n * width``, and ``n <= outer`` is ``n * width <= both``."""
        rest, (_, width), (both, _) = self._rest(gap), self.inner, self.both
        if rest is None or not isinstance(width, int):
            return node
        if gap.terms[self.outer[0]] == 1:
            return both < ((op == "le") - rest) * width
        return (rest + (op == "lt")) * width <= both

    def _rest(self, form: Affine[LoopExpr]) -> int | None:
        """What is added to the outer axis, or to what is left of it, where that is a number."""
        alone = form.terms.keys() == {self.outer[0]} and abs(form.terms[self.outer[0]]) == 1
        return form.constant if alone and (not form.constant or isinstance(self.inner[1], int)) else None
