"""From a fused group to one kernel: a template for its anchor, or nests from compute rules; neighbours fused in.

A template writes plain loops for one operator over placeholder buffers. Fusing is two substitutions in them: loads of
an input become the expression that the prologue computes, and the store of the result becomes the epilogue's stores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import minitvm.codegen.templates  # noqa: F401  (registers the templates)
from minitvm.codegen.batch import Batch, batch_of
from minitvm.codegen.loops import in_blocks, nested, redirect, with_memory
from minitvm.codegen.problem import TEMPLATES, Problem, Scaled, Template, override_for
from minitvm.codegen.rows import Nest, at_root, nests_of
from minitvm.codegen.stages import Group, Inliner, Output, Value, compose, flatten, outputs_of, stage_order
from minitvm.codegen.walks import Walk
from minitvm.doors import door
from minitvm.errors import CompilerError, ConfigError, UserCodeError, user_code
from minitvm.ir.decision import Decision, Declined, Exactness, decide, decision, decisions, record
from minitvm.ir.expr import Call, Expr, Function, span_scope
from minitvm.ir.loop import (
    Barrier,
    Buffer,
    Cast,
    Kernel,
    Load,
    LoopExpr,
    LoopVar,
    Reduce,
    Stage,
    Stmt,
    Store,
    map_expr,
    map_stmt,
    seq,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.loop.affine import loads
from minitvm.ir.node import describe_call
from minitvm.ir.op import Op, outer_reductions
from minitvm.ir.ops.nn_dense import MatrixProduct
from minitvm.ir.types import tensor_fields
from minitvm.ir.visitor import calls, sizes_of, span_of
from minitvm.passes.fuse_ops import BY_ROWS
from minitvm.passes.manager import PassContext
from minitvm.target import MachineModel

if TYPE_CHECKING:
    from minitvm.codegen.overrides import Override

DEFAULT = "default nests"


@dataclass(frozen=True)
class Lowering:
    """A fused group's kernel, what made it (a template, or the default nests), and why others did not."""

    kernel: Kernel
    chosen: str
    decisions: tuple[Decision, ...] = ()
    template: Template | None = None

    @property
    def cycles(self) -> float:
        """The cycles that the template predicts; 0 without one."""
        return self.template.choice.cycles if self.template is not None else 0.0


def lower(
    function: Function, name: str, machine: MachineModel, kind: str = "llvm", templates: Sequence[str] = ()
) -> Kernel:
    """One kernel for a fused group, by the schedules of a kind, and the templates of kinds (by default of that).

    Raises :class:`CompilerError` where an operator has neither a template that accepts it nor a compute rule.
    """
    return lowered(function, name, machine, kind, templates or (kind,)).kernel


def lowering(
    function: Function, name: str, machine: MachineModel, kind: str = "llvm", templates: Sequence[str] = ()
) -> Lowering:
    """The same as :func:`lower`, with what was chosen and what declined."""
    with decisions() as log:
        found = lowered(function, name, machine, kind, templates or (kind,))
    return replace(found, decisions=tuple(log))


def lowered(function: Function, name: str, machine: MachineModel, kind: str, templates: Sequence[str]) -> Lowering:
    """The same as :func:`lower`, with what was chosen; whoever listens hears what was decided."""
    inside, refusals, sizes = calls(function.body), list[Decision](), sizes_of(function)
    spans, override = span_of(*inside), override_for(name, function)
    with span_scope(spans):
        for anchor in inside:
            for maker in _templates(templates, anchor):
                if override is not None and not override.names(maker):
                    refusals.append(decision(title_of(maker), anchor, Declined("an override asks for another one")))
                    record(refusals[-1])
                    continue
                found = _lower_with(maker, anchor, function, name, machine, kind, override)
                if isinstance(found, Lowering):
                    return found
                refusals.append(decision(title_of(maker), anchor, found))
                record(refusals[-1])
        if override is not None and override.template != DEFAULT:
            _refuse(override, name, inside, refusals)
        if sizes and refusals and not any(isinstance(call.op, MatrixProduct) for call in inside):
            raise CompilerError("plain loops would be slow", where=[str(refusal) for refusal in refusals])
        for call in inside:
            if isinstance(call.op, Op) and not call.op.has_compute():
                raise CompilerError(
                    f"{call.op.name} has no compute rule and no template for {kind} that accepts it",
                    where=[str(refusal) for refusal in refusals],
                )
        decide(DEFAULT, name, "write the loops", spans)
        group = Group.of(function).collapsed
        body = in_blocks(nests_of(kind).group(group, name, machine))
        return Lowering(group.kernel(function, name, body), DEFAULT)


def _refuse(override: Override, name: str, inside: Sequence[Call], refusals: Sequence[Decision]) -> None:
    """:class:`ConfigError`: no template makes what is asked for."""
    what = f"template {override.template}" if override.template else f"a template with {override.config!r}"
    raise ConfigError(
        f"override: {name} cannot be made by {what}",
        where=[str(refusal) for refusal in refusals] or [f"{describe_call(call)[0]}: it has none" for call in inside],
        hint="what each template says stands above; report.kernel(name).candidates are the ways of the one taken",
    )


def _as_stored(buffer: Buffer, params: Sequence[Buffer]) -> tuple[bool, str]:
    """Whether a template's input is in memory, cast at most, and the narrowest dtype that its elements are of."""
    if not isinstance(buffer, Stage) or not isinstance(buffer.value, Cast) or not buffer.value.keeps_all:
        return buffer in params, buffer.dtype
    value = buffer.value.value
    return isinstance(value, Load) and value.buffer in params and _at_own_index(value, buffer.axes), value.dtype


@door
def scaled_of(anchor: Call, values: Mapping[Expr, Value]) -> tuple[Scaled | None, dict[Buffer, Buffer]]:
    """The parts of weights in blocks along the depth, and what computes each of them; of all others nothing."""
    return None, {}


def not_allowed(maker: type[Template]) -> Declined | None:
    """The refusal of a template that approximates, where nobody named it."""
    allowed = PassContext.current().option("minitvm.allow_approximate")
    if maker.exactness is not Exactness.APPROXIMATE or maker.__name__ in allowed:
        return None
    return Declined(f"approximate, and minitvm.allow_approximate does not name {maker.__name__}")


def predicted(call: Call, machine: MachineModel, templates: Sequence[str] = ("llvm",)) -> float | Declined:
    """The cycles of what a template (of kinds) would make of a call by itself, or why none would."""
    refusal = Declined("it has no template")
    for maker in _templates(templates, call):
        template = maker(Problem.of(call), machine)
        found = not_allowed(maker) or template.refusal()
        if found is None:
            return template.choice.cycles
        refusal = found
    return refusal


def title_of(maker: type[Template]) -> str:
    return f"template {maker.__module__.rpartition('.')[2]}.{maker.__name__}"


def _templates(kinds: Sequence[str], anchor: Call) -> list[type[Template]]:
    """What may lower a call; nothing has to run fast to compute no elements, or to sum none."""
    if not isinstance(anchor.op, Op):
        return []
    empty = any(0 in t.shape for node in (anchor, *anchor.args) for t in tensor_fields(node.type))
    return [] if empty and anchor.op.has_compute() else TEMPLATES.find(kinds, anchor.op)


# --- around a template ----------------------------------------------------------------------------------------


def _lower_with(
    maker: type[Template],
    anchor: Call,
    function: Function,
    name: str,
    machine: MachineModel,
    kind: str,
    override: Override | None = None,
) -> Lowering | Declined:
    """The template's loops with what stands around its call in the group."""
    title, problem = title_of(maker), Problem.of(anchor)
    params, values = compose(function, {anchor: problem.outputs})
    prologues = [buffer for arg in anchor.args for buffer in flatten(values[arg])]
    given, narrow = zip(*(_as_stored(buffer, params) for buffer in prologues), strict=True) if prologues else ((), ())
    scaled, parts = scaled_of(anchor, values) if maker.takes_scaled else (None, {})
    by_rows = BY_ROWS in function.attrs
    problem = replace(problem, as_given=all(given), narrow=narrow, by_rows=by_rows, scaled=scaled)
    if (refusal := not_allowed(maker)) is not None:
        return refusal
    if any(isinstance(node, Reduce) for stage in stage_order(prologues) for node in walk_exprs(stage.value)):
        return Declined("its input is a reduction, which would be recomputed for every element")
    batch = None if problem.is_static else batch_of(problem, maker)
    if isinstance(batch, Declined):
        return batch
    loops = _template_loops(maker, title, anchor, problem, batch, machine, override)
    if isinstance(loops, Declined):
        return loops
    template, body = loops
    template.explain(title, anchor)
    outputs = outputs_of(function, values)

    def nest(out: Output) -> Stmt:
        return nests_of(kind).one(out, machine)

    body = _with_results(template, title, anchor, body, problem.outputs, outputs, nest)
    body = in_blocks(fuse_prologue(body, dict(zip(problem.inputs, prologues, strict=True)) | parts))
    buffers, spans = (*params, *(o.buffer for o in outputs)), span_of(*calls(function.body))
    kernel = Kernel(name, buffers, body, len(outputs), spans, sizes_of(function))
    return Lowering(kernel, title, template=template)


def _template_loops(
    maker: type[Template],
    title: str,
    anchor: Call,
    problem: Problem,
    batch: Batch | None,
    machine: MachineModel,
    override: Override | None,
) -> tuple[Template, Stmt] | Declined:
    """The template and its loops, without what stands around its call."""
    with user_code(maker, title, partial(describe_call, anchor)):
        template = maker(problem if batch is None else batch.one, machine)
        kernel = template.kernel() if override is None else override.loops(template)
    if isinstance(kernel, Declined):
        return kernel
    if not isinstance(kernel, Kernel):
        raise UserCodeError(f"{title} returned {kernel!r}", where=describe_call(anchor), hint="a Kernel, or Declined")
    body = kernel.body
    if not isinstance(body, Stmt):
        raise UserCodeError(
            f"loops of {title} returned {body!r}", where=describe_call(anchor), hint="they are a statement: a Stmt"
        )
    whole = body if batch is None else batch.loops(body)
    return whole if isinstance(whole, Declined) else (template, whole)


def _with_results(
    template: Template,
    title: str,
    anchor: Call,
    body: Stmt,
    results: Sequence[Buffer],
    outputs: Sequence[Output],
    nest: Callable[[Output], Stmt],
) -> Stmt:
    """The template's loops followed by what the group computes from their results."""
    if template.refers_to_results:
        return _in_order(body, results, outputs, nest)
    if _fits_epilogue(outputs, results):
        return fuse_epilogue(body, results, outputs)
    decide(title, anchor, Declined("what follows in its loops: it does not read each result at its own place only"))
    return _cut(body, results, outputs, nest)


def _in_order(body: Stmt, results: Sequence[Buffer], outputs: Sequence[Output], nest: Nest) -> Stmt:
    """Loops that name the results as more than where they store, on the group's; what is none of them is memory."""
    if not all(isinstance(o.value, Load) and _at_own_index(o.value, o.axes) for o in outputs):
        return _cut(body, results, outputs, nest)
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
    return map_stmt(redirect(body, inputs), on_expr=Inliner().inline)


def _cut(body: Stmt, results: Sequence[Buffer], outputs: Sequence[Output], nest: Nest) -> Stmt:
    """The template's result goes to memory; what follows it is computed after a barrier."""
    return with_memory(results, seq(body, Barrier(), *map(nest, outputs)))


# --- from compute rules alone: in plain loops, which schedules start from, or by default schedules -------------------


def plain(function: Function, name: str) -> Kernel:
    """One nest for each stage that is kept, one for each result, element by element: nothing is scheduled."""

    def elements(out: Output) -> Stmt:
        walk = Walk.over(out)
        return nested(walk.loops, walk.element())

    group = Group.of(function)
    return group.kernel(function, name, at_root(group, elements))
