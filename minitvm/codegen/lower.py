"""From a fused group to one kernel: a template for its anchor, or nests from compute rules; neighbours fused in.

A template writes plain loops for one operator over placeholder buffers. Fusing is two substitutions in them: loads of
an input become the expression that the prologue computes, and the store of the result becomes the epilogue's stores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import minitvm.codegen.templates  # noqa: F401  (registers the templates)
from minitvm.codegen.default_schedule import stage_nest
from minitvm.codegen.loops import in_parallel, nested, redirect, redirect_loads, with_memory
from minitvm.codegen.problem import TEMPLATES, Problem, Statements, Template
from minitvm.codegen.stages import Inliner, Output, collapse, compose, flatten, outputs_of, stage_order, stages_to_keep
from minitvm.codegen.walks import Walk
from minitvm.errors import CompilerError, UserCodeError, user_code
from minitvm.ir.decision import Decision, Declined, Exactness, decide, decision, decisions, record
from minitvm.ir.expr import Call, Function, span_scope
from minitvm.ir.loop import (
    Barrier,
    Binary,
    Buffer,
    Kernel,
    Load,
    LoopExpr,
    LoopVar,
    Reduce,
    Select,
    Stmt,
    Store,
    map_expr,
    map_stmt,
    seq,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.loop.affine import affine, depends_on, loads, vectorizes
from minitvm.ir.node import describe_call
from minitvm.ir.op import Op, outer_reductions
from minitvm.ir.ops.nn_dense import MatrixProduct
from minitvm.ir.types import tensor_fields
from minitvm.ir.visitor import calls, sizes_of, span_of
from minitvm.passes.manager import PassContext
from minitvm.target import MachineModel

DEFAULT = "default nests"

_SHORTEST = 4
"""Columns of a window, below which it is not worth a row in memory; one less where windows are apart and stick out:
those at the edges would be computed one by one."""
_STACK_BYTES = 16 * 1024  # larger row buffers live in the workspace, one per thread


@dataclass(frozen=True)
class Lowering:
    """A fused group's kernel, what made it (a template, or the default nests), and why others did not."""

    kernel: Kernel
    chosen: str
    decisions: tuple[Decision, ...] = ()
    template: Template | None = None


def lower(function: Function, name: str, machine: MachineModel, kind: str = "llvm") -> Kernel:
    """One kernel for a fused group.

    Raises :class:`CompilerError` where an operator has neither a template that accepts it nor a compute rule.
    """
    return _lower(function, name, machine, kind).kernel


def lowering(function: Function, name: str, machine: MachineModel, kind: str = "llvm") -> Lowering:
    """As :func:`lower`, with what was chosen and what declined."""
    with decisions() as log:
        found = _lower(function, name, machine, kind)
    return replace(found, decisions=tuple(log))


def _lower(function: Function, name: str, machine: MachineModel, kind: str) -> Lowering:
    inside, refusals, sizes = calls(function.body), list[Decision](), sizes_of(function)
    spans = span_of(*inside)
    with span_scope(spans):
        for anchor in inside:
            for maker in _templates(kind, anchor):
                found = _lower_with(maker, anchor, function, name, machine)
                if isinstance(found, Lowering):
                    return found
                refusals.append(decision(title_of(maker), anchor, found))
                record(refusals[-1])
        if sizes and refusals and not any(isinstance(call.op, MatrixProduct) for call in inside):
            raise CompilerError("plain loops would be slow", where=[str(refusal) for refusal in refusals])
        for call in inside:
            if isinstance(call.op, Op) and not call.op.has_compute():
                raise CompilerError(
                    f"{call.op.name} has no compute rule and no template for {kind} that accepts it",
                    where=[str(refusal) for refusal in refusals],
                )
        decide(DEFAULT, name, "write the loops", spans)
        return Lowering(scheduled(function, name, machine), DEFAULT)


def title_of(maker: type[Template]) -> str:
    return f"template {maker.__module__.rpartition('.')[2]}.{maker.__name__}"


def _templates(kind: str, anchor: Call) -> list[type[Template]]:
    """What may lower a call; nothing has to run fast to compute no elements, or to sum none."""
    if not isinstance(anchor.op, Op):
        return []
    empty = any(0 in t.shape for node in (anchor, *anchor.args) for t in tensor_fields(node.type))
    return [] if empty and anchor.op.has_compute() else TEMPLATES.find(kind, anchor.op)


# --- around a template ----------------------------------------------------------------------------------------


def _lower_with(
    maker: type[Template], anchor: Call, function: Function, name: str, machine: MachineModel
) -> Lowering | Declined:
    """The template's loops with what stands around its call in the group."""
    title, problem = title_of(maker), Problem.of(anchor)
    params, values = compose(function, {anchor: problem.outputs})
    prologues = [buffer for arg in anchor.args for buffer in flatten(values[arg])]
    allowed = PassContext.current().option("minitvm.allow_approximate")
    if maker.exactness is Exactness.APPROXIMATE and maker.__name__ not in allowed:
        return Declined(f"approximate, and minitvm.allow_approximate does not name {maker.__name__}")
    if any(isinstance(node, Reduce) for stage in stage_order(prologues) for node in walk_exprs(stage.value)):
        return Declined("its input is a reduction, which would be recomputed for every element")
    if sizes_of(function) and not maker.symbolic:
        return Declined("its loops are made for numbers")
    with user_code(maker, title, partial(describe_call, anchor)):
        template = maker(problem, machine)
        kernel = template.kernel()
    if isinstance(kernel, Declined):
        return kernel
    body = kernel.body
    if not isinstance(body, Stmt):
        raise UserCodeError(
            f"loops of {title} returned {body!r}", where=describe_call(anchor), hint="they are a statement: a Stmt"
        )
    template.explain(title, anchor)
    outputs = outputs_of(function, values)
    if maker is Statements:
        body = _in_order(body, problem.outputs, outputs, machine)
    elif _fits_epilogue(outputs, problem.outputs):
        body = fuse_epilogue(body, problem.outputs, outputs)
    else:
        decide(title, anchor, Declined("what follows in its loops: it does not read each result at its own place only"))
        body = _cut(body, problem.outputs, outputs, machine)
    body = fuse_prologue(body, dict(zip(problem.inputs, prologues, strict=True)))
    buffers, spans = (*params, *(o.buffer for o in outputs)), span_of(*calls(function.body))
    kernel = Kernel(name, buffers, body, len(outputs), spans, sizes_of(function))
    return Lowering(kernel, title, template=template)


def _in_order(body: Stmt, results: Sequence[Buffer], outputs: Sequence[Output], machine: MachineModel) -> Stmt:
    """Statements, which may read what they wrote, on the group's results; what is none of them is memory."""
    if not all(isinstance(o.value, Load) and _at_own_index(o.value, o.axes) for o in outputs):
        return _cut(body, results, outputs, machine)
    targets = {o.value.buffer: o.buffer for o in outputs if isinstance(o.value, Load)}
    return with_memory([b for b in results if b not in targets], redirect(body, targets))


def _fits_epilogue(outputs: Sequence[Output], results: Sequence[Buffer]) -> bool:
    """True where every output reads the template's results at its own index only, and does not reduce them."""
    if len(results) > 1:
        return all(isinstance(o.value, Load) and o.value.buffer in results for o in outputs)

    def fits(output: Output) -> bool:
        reads = [load for load in loads(output.value) if load.buffer in results]
        at_own = all(_at_own_index(load, output.axes) for load in reads)
        return bool(reads) and at_own and not outer_reductions(output.value)

    return all(map(fits, outputs))


def _at_own_index(load: Load, axes: Sequence[LoopVar]) -> bool:
    """True where element ``axes`` is read; a dimension of extent 1 has one element, however it is spelled."""
    if len(load.index) != len(axes):
        return False
    pairs = zip(load.index, axes, load.buffer.shape, strict=True)
    return all(index == axis or extent == 1 for index, axis, extent in pairs)


def fuse_epilogue(body: Stmt, results: Sequence[Buffer], outputs: Sequence[Output]) -> Stmt:
    """Every store of a result becomes the stores of the outputs that are computed from it."""

    def to_outputs(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, Store) or stmt.buffer not in results:
            return stmt

        def visit(node: LoopExpr) -> LoopExpr:
            return stmt.value if isinstance(node, Load) and node.buffer is stmt.buffer else node

        def stored(output: Output) -> Store:
            moved = substitute_vars(output.value, dict(zip(output.axes, stmt.index, strict=True)))
            return Store(output.buffer, stmt.index, map_expr(moved, visit))

        return seq(*(stored(o) for o in outputs if any(load.buffer is stmt.buffer for load in loads(o.value))))

    return map_stmt(body, on_stmt=to_outputs)


def fuse_prologue(body: Stmt, inputs: dict[Buffer, Buffer]) -> Stmt:
    """Loads of the template's inputs become loads of the parameters, or what the prologue computes."""
    inliner = Inliner()
    return map_stmt(body, on_expr=lambda e: inliner.inline(redirect_loads(e, inputs)))


def _cut(body: Stmt, results: Sequence[Buffer], outputs: Sequence[Output], machine: MachineModel) -> Stmt:
    """The template's result goes to memory; what follows it is computed after a barrier."""
    return with_memory(results, seq(body, Barrier(), *(stage_nest(out, machine) for out in outputs)))


# --- from compute rules alone: in plain loops, which schedules start from, or by default schedules -------------------


@dataclass(frozen=True)
class _Group:
    """Parameters, the stages that are kept in memory, each over memory of the ones before it, and the results."""

    params: tuple[Buffer, ...]
    stages: tuple[Output, ...]
    outputs: tuple[Output, ...]

    @staticmethod
    def of(function: Function) -> _Group:
        params, values = compose(function)
        results = flatten(values[function.body])
        kept = stages_to_keep(stage_order(results), results)
        inliner = Inliner(kept)
        stages = [Output(stage, stage.axes, inliner.inline(stage.value)) for stage in kept]
        return _Group(tuple(params), tuple(stages), tuple(outputs_of(function, values, kept)))

    @property
    def nests(self) -> tuple[Output, ...]:
        return (*self.stages, *self.outputs)

    def kernel(self, function: Function, name: str, body: Stmt) -> Kernel:
        results = tuple(out.buffer for out in self.outputs)
        spans = span_of(*calls(function.body))
        return Kernel(name, (*self.params, *results), body, len(results), spans, sizes_of(function))


def plain(function: Function, name: str) -> Kernel:
    """One nest for each stage that is kept, one for each result, element by element: nothing is scheduled."""

    def elements(out: Output) -> Stmt:
        walk = Walk.over(out)
        return nested(walk.loops, walk.element())

    group = _Group.of(function)
    return group.kernel(function, name, _at_root(group, elements))


def scheduled(function: Function, name: str, machine: MachineModel) -> Kernel:
    """By default schedules: all stages row by row, or else one nest after the other."""
    group = _Group.of(function)
    if not group.stages and len(group.outputs) == 1:
        params, out = collapse(group.params, group.outputs[0])
        return _Group(params, (), (out,)).kernel(function, name, _single(out, machine))
    body = _by_rows(group, machine)
    decide("schedule", name, body if isinstance(body, Declined) else "row by row, rows in parallel")
    if isinstance(body, Declined):
        body = _at_root(group, partial(stage_nest, machine=machine))
    return group.kernel(function, name, body)


def _single(out: Output, machine: MachineModel) -> Stmt:
    """One nest, or two for every row where windows are separable."""
    found = _separated(out)
    body = None if found is None else _by_rows(_Group((), found[:1], found[1:]), machine)
    if body is None or isinstance(body, Declined):
        return stage_nest(out, machine)
    decide("schedule", out.buffer.name, "windows first down the rows, then along each row")
    return body


def _at_root(group: _Group, nest: Callable[[Output], Stmt]) -> Stmt:
    """One nest after the other, intermediate results in memory that all threads see."""
    first, *others = map(nest, group.nests)
    body = seq(first, *(part for other in others for part in (Barrier(), other)))
    memory = {s.buffer: Buffer(s.buffer.name, s.buffer.shape, s.buffer.dtype, "global") for s in group.stages}
    return with_memory(memory.values(), redirect(body, memory))


# --- row by row: softmax, normalizations and their like, rows in parallel, no barrier ------------------------------


def _by_rows(group: _Group, machine: MachineModel) -> Stmt | Declined:
    """All stages of one row after the other."""
    rank = _common_rank(group)
    if rank == 0:
        return Declined("row by row: the stages share no leading axes at which they read each other unchanged")
    rows = {out.buffer: _row_buffer(out.buffer, rank) for out in group.nests}
    results = {rows[out.buffer]: out.buffer for out in group.outputs}

    def row(*at: LoopExpr) -> Stmt:
        nests = [stage_nest(_row(out, rows, at), machine, parallel=False) for out in group.nests]
        body = with_memory([rows[s.buffer] for s in group.stages], seq(*nests))
        return redirect(body, results, lambda index: (*at, *index))

    return in_parallel(group.outputs[0].buffer.shape[:rank], row, name="row")


def _common_rank(group: _Group) -> int:
    """How many leading axes all stages have in common, and read each other at unchanged."""
    kept = {s.buffer for s in group.stages}
    first, *others = (o.buffer.shape for o in group.nests)
    rank = next(d for d in range(len(first), -1, -1) if all(other[:d] == first[:d] for other in others))
    for output in group.nests:
        for load in loads(output.value):
            while load.buffer in kept and load.index[:rank] != output.axes[:rank]:
                rank -= 1
    scalars = all(len(o.axes) == rank > 0 and o.buffer.shape[-1] != 1 for o in group.nests)
    return rank - 1 if scalars and all(vectorizes(o.value, o.axes[-1]) for o in group.nests) else rank


def _row_buffer(buffer: Buffer, rank: int) -> Buffer:
    row = Buffer(buffer.name, buffer.shape[rank:], buffer.dtype)
    return replace(row, scope="local" if row.fits(_STACK_BYTES) else "shared")


def _row(out: Output, rows: Mapping[Buffer, Buffer], at: tuple[LoopExpr, ...]) -> Output:
    """One row of a stage or a result, over rows of the others."""
    rank = len(at)
    value = substitute_vars(out.value, dict(zip(out.axes[:rank], at, strict=True)))
    return Output(rows[out.buffer], out.axes[rank:], redirect_loads(value, rows, lambda index: index[rank:]))


# --- windows over rows and columns: first down the rows, for every column once, then along each row -----------------
# A maximum over 7 x 7 elements is one over 7 of those over 7; neighbouring windows share the inner ones.


def _separated(out: Output) -> tuple[Output, Output] | None:
    """What is reduced down the rows as a stage of its own, and the result with a reduction of that along a row.

    ``None`` where it is no reduction over a window of two axes or more, that moves along the last axis.
    """
    found, axes, shape = outer_reductions(out.value), out.axes, out.buffer.shape
    if not axes or 0 in shape or len(found) != 1 or len(found[0].axes) == 1 or outer_reductions(found[0].value):
        return None
    reduce, step = found[0], _step(found[0], axes[-1])
    if not step or not isinstance(shape[-1], int):
        return None
    *rows, (tap, taps) = reduce.axes
    sticks_out = any(isinstance(node, Select) for node in walk_exprs(reduce.value))
    if taps < _SHORTEST - (step > 1 and sticks_out):
        return None
    column, columns = LoopVar("column"), (shape[-1] - 1) * step + taps
    element = map_expr(substitute_vars(reduce.value, {tap: column - axes[-1] * step}), _cancelled)
    if depends_on(element, axes[-1]):
        return None
    down = Reduce(reduce.kind, tuple(rows), element)
    stage = Buffer("down", (*shape[:-1], columns), down.dtype)
    along = Reduce(reduce.kind, ((tap, taps),), Load(stage, (*axes[:-1], axes[-1] * step + tap)))
    value = map_expr(out.value, lambda node: along if node is reduce else node)
    return Output(stage, (*axes[:-1], column), down), Output(out.buffer, axes, value)


def _cancelled(node: LoopExpr) -> LoopExpr:
    """A sum of indices with every variable in it once, or not at all."""
    is_sum = isinstance(node, Binary) and node.op in ("add", "sub") and node.dtype == "int64"
    return affine(node).to_expr() if is_sum else node


def _step(reduce: Reduce, last: LoopVar) -> int:
    """Columns from one window to the next; 0 where the last axis moves no window."""
    forms = [affine(index).terms for load in loads(reduce.value) for index in load.index]
    steps = {form.get(last, 0) for form in forms if form.get(reduce.axes[-1][0]) == 1}
    return steps.pop() if len(steps) == 1 else 0
