"""From a fused group to one kernel: a template for its anchor, or nests from compute rules; neighbours fused in.

A template writes plain loops for one operator over placeholder buffers. Fusing is two substitutions in them: loads of
an input become the expression that the prologue computes, and the store of the result becomes the epilogue's stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import minitvm.codegen.templates  # noqa: F401  (registers the templates)
from minitvm.codegen.default_schedule import stage_nest
from minitvm.codegen.group import scheduled
from minitvm.codegen.loops import with_memory
from minitvm.codegen.problem import TEMPLATES, Problem, Template
from minitvm.codegen.stages import Inliner, Output, compose, flatten, outputs_of, parameter_buffers, stage_order
from minitvm.errors import CompilerError, UserCodeError, user_code
from minitvm.ir.decision import Decision, Declined, decide, decision, decisions, record
from minitvm.ir.expr import Call, Function, span_scope
from minitvm.ir.loop import (
    Barrier,
    Buffer,
    Kernel,
    Load,
    LoopExpr,
    LoopVar,
    Reduce,
    Stmt,
    Store,
    map_expr,
    map_stmt,
    seq,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.node import describe_call
from minitvm.ir.op import Op
from minitvm.ir.types import tensor_fields
from minitvm.ir.visitor import calls, span_of
from minitvm.passes.manager import PassContext
from minitvm.passes.rule import Exactness
from minitvm.target import MachineModel

DEFAULT = "default nests"


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
    inside, refusals = calls(function.body), list[Decision]()
    spans = span_of(*inside)
    with span_scope(spans):
        for anchor in inside:
            for maker in _templates(kind, anchor):
                found = _lower_with(maker, anchor, function, name, machine)
                if isinstance(found, Lowering):
                    return found
                refusals.append(decision(title_of(maker), anchor, found))
                record(refusals[-1])
        for call in inside:
            if isinstance(call.op, Op) and not call.op.has_compute():
                raise CompilerError(
                    f"{call.op.name} has no compute rule and no template for {kind} that accepts it",
                    where=[str(refusal) for refusal in refusals],
                )
        decide(DEFAULT, name, "write the loops", spans)
        return Lowering(scheduled(function, name, machine), DEFAULT)


def _approximate() -> Sequence[str]:
    """What may change results within a bound: names of rules and templates."""
    found: Sequence[str] = PassContext.current().option("minitvm.allow_approximate")
    return found


def title_of(maker: type[Template]) -> str:
    return f"template {maker.__module__.rpartition('.')[2]}.{maker.__name__}"


def _templates(kind: str, anchor: Call) -> list[type[Template]]:
    """What may lower a call; nothing has to run fast to compute no elements, or to sum none."""
    if not isinstance(anchor.op, Op):
        return []
    empty = any(0 in t.static_shape for node in (anchor, *anchor.args) for t in tensor_fields(node.type))
    return [] if empty and anchor.op.has_compute() else TEMPLATES.find(kind, anchor.op)


# --- around a template ----------------------------------------------------------------------------------------


def _lower_with(
    maker: type[Template], anchor: Call, function: Function, name: str, machine: MachineModel
) -> Lowering | Declined:
    """The template's loops with what stands around its call in the group."""
    title, params, problem = title_of(maker), parameter_buffers(function), Problem.of(anchor)
    values = compose(function, params, {anchor: problem.outputs})
    prologues = [buffer for arg in anchor.args for buffer in flatten(values[arg])]
    if maker.exactness is Exactness.APPROXIMATE and maker.__name__ not in _approximate():
        return Declined(f"approximate, and minitvm.allow_approximate does not name {maker.__name__}")
    if any(_has_reduction(buffer) for buffer in prologues):
        return Declined("its input is a reduction, which would be recomputed for every element")
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
    if _fits_epilogue(outputs, problem.outputs):
        body = fuse_epilogue(body, problem.outputs, outputs)
    else:
        decide(title, anchor, Declined("what follows in its loops: it does not read each result at its own place only"))
        body = _cut(body, problem.outputs, outputs, machine)
    body = fuse_prologue(body, dict(zip(problem.inputs, prologues, strict=True)))
    buffers, spans = (*params, *(o.buffer for o in outputs)), span_of(*calls(function.body))
    return Lowering(Kernel(name, buffers, body, results=len(outputs), spans=spans), title, template=template)


def _has_reduction(buffer: Buffer) -> bool:
    return any(isinstance(n, Reduce) for s in stage_order([buffer]) for n in walk_exprs(s.value))


def _fits_epilogue(outputs: Sequence[Output], results: Sequence[Buffer]) -> bool:
    """True where every output reads the template's results at its own index only, and does not reduce them."""
    if len(results) > 1:
        return all(isinstance(o.value, Load) and o.value.buffer in results for o in outputs)
    for output in outputs:
        nodes = list(walk_exprs(output.value))
        if any(isinstance(node, Reduce) for node in nodes):
            return False
        reads = [node for node in nodes if isinstance(node, Load) and node.buffer in results]
        if not reads or not all(_at_own_index(node, output.axes) for node in reads):
            return False
    return True


def _at_own_index(load: Load, axes: Sequence[LoopVar]) -> bool:
    """True where element ``axes`` is read; a dimension of extent 1 has one element, however it is spelled."""
    if len(load.index) != len(axes):
        return False
    pairs = zip(load.index, axes, load.buffer.shape, strict=True)
    return all(index == axis or extent == 1 for index, axis, extent in pairs)


def fuse_epilogue(body: Stmt, results: Sequence[Buffer], outputs: Sequence[Output]) -> Stmt:
    """Every store of a result becomes the stores of the outputs that are computed from it."""

    def to_outputs(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.buffer in results:
            return seq(*(_epilogue_store(stmt, o) for o in outputs if _reads(o.value, stmt.buffer)))
        return stmt

    return map_stmt(body, on_stmt=to_outputs)


def _reads(value: LoopExpr, buffer: Buffer) -> bool:
    return any(isinstance(node, Load) and node.buffer is buffer for node in walk_exprs(value))


def _epilogue_store(stmt: Store, output: Output) -> Store:
    def visit(node: LoopExpr) -> LoopExpr:
        if isinstance(node, Load) and node.buffer is stmt.buffer:
            return stmt.value
        return node

    moved = substitute_vars(output.value, dict(zip(output.axes, stmt.index, strict=True)))
    return Store(output.buffer, stmt.index, map_expr(moved, visit))


def fuse_prologue(body: Stmt, inputs: dict[Buffer, Buffer]) -> Stmt:
    """Loads of the template's inputs become loads of the parameters, or what the prologue computes."""
    inliner = Inliner()

    def visit(node: LoopExpr) -> LoopExpr:
        if isinstance(node, Load) and node.buffer in inputs:
            return inliner.inline(Load(inputs[node.buffer], node.index))
        return node

    return map_stmt(body, on_expr=lambda e: map_expr(e, visit))


def _cut(body: Stmt, results: Sequence[Buffer], outputs: Sequence[Output], machine: MachineModel) -> Stmt:
    """The template's result goes to memory; what follows it is computed after a barrier."""
    nests = [stage_nest(o.buffer, o.axes, o.value, machine) for o in outputs]
    return with_memory(results, seq(body, Barrier(), *nests))
