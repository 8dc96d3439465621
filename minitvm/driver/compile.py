"""``build``: all stages from a module to a library, in one place; a module as a Python function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from minitvm import config
from minitvm.codegen.backend import Backend, backend_of
from minitvm.codegen.batch import batch_of
from minitvm.codegen.problem import RECORDS, TEMPLATES, Problem
from minitvm.doors import door, left_out
from minitvm.driver.kernels import KernelCode, KernelCompiler, Progress, Timings, kernel_cache
from minitvm.driver.program import (
    Program,
    announce,
    group_metadata,
    host_calls_of,
    read_program,
    with_library_calls,
    without_kernels,
)
from minitvm.driver.report import BuildReport, KernelReport, Recorder, with_names
from minitvm.errors import CompilerError, ConfigError, stage
from minitvm.ir.arrays import shared, trim
from minitvm.ir.budget import COST, compiling, current
from minitvm.ir.decision import Declined, decide, decisions
from minitvm.ir.dims import Dim, Fact, facts_of
from minitvm.ir.expr import Call, Function, Module, Var, as_graph, describe_call
from minitvm.ir.op import Op
from minitvm.ir.ops.checks import StopFusion
from minitvm.ir.types import symbols
from minitvm.ir.visitor import calls, held_functions
from minitvm.passes.instrument import PassInstrument
from minitvm.passes.manager import PassContext, closest
from minitvm.passes.pipeline import SCHEDULES, Plan, Sequential, context_for, default_pipeline, optimize
from minitvm.passes.places import LibraryOf, Predict, Slower
from minitvm.passes.redundancy import bind_captured
from minitvm.runtime.graph import Artifact, Host
from minitvm.runtime.hosts import branch_functions
from minitvm.runtime.instance import Instance
from minitvm.runtime.library import Library
from minitvm.runtime.memory import plan_memory, require_addressable, spread_limit, unplanned
from minitvm.runtime.places import with_once
from minitvm.target import Target

WORTH_TRIMMING = 1 << 22
"""Bytes of weights from which what passes and code generation leave free in the heap is given back."""


@stage("compiling the model")
def build(
    module: Module | Function,
    target: str | Target | None = None,
    params: Mapping[str, Any] | None = None,
    opt_level: int | None = None,
    *,
    num_threads: int | None = None,
    strict: bool = False,
    on_progress: Progress | None = None,
    trace: bool = False,
    passes: Sequence[Any] = (),
    pipeline: Sequence[Any] | Sequential | None = None,
) -> Library:
    """Compile a module, for the ``Target`` that was entered or the CPU where none is given.

    ``params`` become constants, so that passes may fold them.  ``opt_level`` is the current ``PassContext``'s unless
    given.  ``num_threads`` is what kernels are scheduled for; a library may run on another number.  What cannot
    become a kernel runs in Python, with one warning; ``strict`` refuses instead.  ``trace`` keeps the module
    before and after every pass in ``library.report``.

    ``passes`` run first: passes, rules, functions from module to module.  ``pipeline`` is run in place of the default
    one; names in it are passes of that, as they are for the target: ``["SimplifyInference", my_pass, "FuseOps"]``.
    Levels, ``disabled_pass`` and ``required_pass`` are as everywhere; ``PassContext().before("FuseOps", my_pass)``
    places single passes.

    Raises :class:`TargetError`, :class:`CompilerError`, and what passes raise.
    """
    _check_arguments(module, params)
    given = as_graph(module)
    backend, params, plan = backend_for(target, num_threads), dict(params or {}), Plan.of(passes, pipeline)
    how: dict[str, Any] = {"strict": strict, "on_progress": on_progress, "trace": trace}
    return build_consuming(given, params, backend, opt_level, plan=plan, **how)


def _check_arguments(module: object, params: object) -> None:
    if not isinstance(module, (Module, Function)):
        raise ConfigError(
            f"build takes a Module or a Function, not a {type(module).__name__}",
            hint="minitvm.compile(model) for ONNX models; Module.from_expr(body) for an expression",
        )
    if not isinstance(params, (Mapping, type(None))):
        raise ConfigError(f"params is a {type(params).__name__}, not a dictionary of arrays by name")


@compiling()
def build_consuming(
    given: Module,
    params: dict[str, Any],
    backend: Backend,
    opt_level: int | None = None,
    *,
    strict: bool = False,
    on_progress: Progress | None = None,
    trace: bool = False,
    plan: Plan | None = None,
) -> Library:
    """The same as :func:`build`, but empties ``params``, so that weights can be freed as soon as passes have replaced
    them."""
    _allow_for(params)
    cache, timings = kernel_cache(config.cache_dir()), Timings()
    schedules = PassContext.current().option(SCHEDULES.name)
    require_own(backend.machine.name)
    compiler = KernelCompiler(backend, cache, timings, on_progress, schedules)
    with timings.stage("passes"), decisions() as log:
        recorder = Recorder(log, trace)
        named = with_names(given) if trace else given
        main = optimize_for(backend, named, params, opt_level, recorder, plan).main
    report = BuildReport(timings, compiler, recorder.steps)
    if trace:
        report.module = given.with_function("main", main)
    program = read_program(main)
    del main  # so that weights are not held twice while they are aligned
    is_large = sum(array.nbytes for array in program.params.values()) > WORTH_TRIMMING
    if is_large:
        trim()
    with decisions() as report.placement:
        report.artifact = artifact = _compile(program, report, facts_of())
    if is_large:
        trim()
    _require_used(compiler, schedules, report)
    report.cache_hits, report.cache_misses = cache.hits, cache.misses
    cache.trim_where_due()
    announce(artifact.host_calls, strict)
    report.log()
    return Library(artifact, ir_mod=given, report=report)


@door
def require_own(machine: str) -> None:
    """:class:`ConfigError` where the records that the present context names are for other machines."""
    if PassContext.current().option(RECORDS.name):
        raise left_out("tuning")


def _require_used(compiler: KernelCompiler, schedules: Mapping[str, Any], report: BuildReport) -> None:
    """:class:`ConfigError` where an override, or a schedule of one's own, is of no kernel of the build."""
    for chosen in compiler.overrides:
        chosen.require_used(report.groups)
    for name in schedules.keys() - report.groups.keys():
        raise ConfigError(f"{SCHEDULES.name}: there is no kernel {name!r}", hint=closest(name, sorted(report.groups)))


def _allow_for(params: Mapping[str, Any]) -> None:
    """Weights are folded into others of about their size, some passes after the other."""
    nbytes = sum(getattr(value, "nbytes", 0) for value in params.values())
    current().allow("bytes", 4 * nbytes)
    current().allow("steps", 20 * nbytes / COST)


def backend_for(target: str | Target | None, num_threads: int | None) -> Backend:
    """What compiles for a target; :class:`TargetError` where there is no such machine."""
    return backend_of(Target.parse(target or Target.current() or "llvm"), config.resolve_threads(num_threads))


@door
def slides_over_tiles(call: Call) -> bool:
    """True if a window over open sizes becomes one over tiles of known size."""
    return False


def require_symbolic(function: Function, backend: Backend) -> None:
    """:class:`CompilerError` where an operator's loops are made for numbers, as can be seen before a build."""
    for call in calls(function.body):
        for body in held_functions(call).values():
            require_symbolic(body, backend)
        if isinstance(call.op, Op) and call.op.hosted:
            continue
        if symbols(call.type, *(arg.type for arg in call.args)) and isinstance(call.op, Op):
            if backend.schedules == "llvm" and slides_over_tiles(call):
                continue  # they slide over tiles
            fixed = call.op.fixed_from
            if fixed is not None and not all(isinstance(d, int) for d in call.tensor_type.shape[fixed:]):
                raise CompilerError("windows over sizes that only a run knows are slow", where=describe_call(call))
            if not _goes_as_far_as_symbols(call, call.op, backend):
                raise CompilerError("kernels are made for numbers only", where=describe_call(call))


def _goes_as_far_as_symbols(call: Call, op: Op, backend: Backend) -> bool:
    templates = TEMPLATES.find(backend.templates, op)
    if not templates:
        return op.has_compute() or isinstance(op, StopFusion)  # which FuseOps takes out
    return not all(isinstance(batch_of(Problem.of(call), template), Declined) for template in templates)


def optimize_for(
    backend: Backend,
    module: Module,
    params: dict[str, Any],
    opt_level: int | None = None,
    recorder: PassInstrument | None = None,
    plan: Plan | None = None,
) -> Module:
    """The same as :func:`optimize`, with all that the passes may ask of a back end."""
    return optimize(module, backend.machine, params, opt_level, recorder, *_asked(backend), plan)


def run_passes(
    backend: Backend, module: Module, opt_level: int | None, recorder: PassInstrument | None, plan: Plan | None
) -> Module:
    """The same as :func:`optimize_for`, but what comes out need not be kernels: ``recorder`` may leave passes out."""
    box = [module.with_function("main", bind_captured(module.main))]
    with context_for(opt_level, recorder) as context:
        return (plan or Plan()).steps(pipeline_for(backend), context).consume(box)


def pipeline_for(backend: Backend) -> Sequential:
    """The default pipeline for a target, under the current ``PassContext``."""
    return default_pipeline(backend.machine, *_asked(backend))


def _asked(backend: Backend) -> tuple[str, LibraryOf | None, Slower, Predict]:
    """What passes may ask of a back end."""
    library_of = backend.library_of if backend.target.libs else None
    return backend.schedules, library_of, backend.slower, backend.predicted


def _compile(program: Program, report: BuildReport, assumed: frozenset[Fact] = frozenset()) -> Artifact:
    """Code generation for one function after the passes; branches of control flow become libraries of their own.
    Takes the arrays out of ``program.params``."""
    require_addressable(program.graph)
    kernels, refused = report.compiler.compile_all(program.groups)
    program = without_kernels(program, refused)
    report.add_program(program.graph, program.groups, {symbol: code.undecided for symbol, code in kernels.items()})
    for symbol, group in program.groups.items():
        if kernels[symbol].is_library_call:
            decide("placement", symbol, "a library computes it, no kernel", group.span)
        if config.read_flag("MINITVM_VERIFY"):
            maker = KernelReport(symbol, group, report.compiler).template
            only = _link(_program_of(symbol, group), kernels, report)
            verify_code(symbol, group, maker, Library(only)["default"]())
    return _link(program, kernels, report, refused, assumed)


def _link(
    program: Program,
    kernels: Mapping[str, KernelCode],
    report: BuildReport,
    refused: Mapping[str, str] = MappingProxyType({}),
    assumed: frozenset[Fact] = frozenset(),
) -> Artifact:
    """The artefact of a program and its kernels.  Takes the arrays out of ``program.params``."""
    program = with_library_calls(program, [symbol for symbol in program.groups if kernels[symbol].is_library_call])
    if program.sizes:
        program = replace(program, graph=with_once(program.graph, {*program.params, *program.sizes}))
    backend, threads = report.compiler.backend, report.compiler.backend.machine.threads
    with report.timings.stage("memory plan"):
        needs = {i: kernels[n.func].workspace(threads) for i, n in enumerate(program.graph.nodes) if n.is_kernel}
        workspaces = {node: nbytes for node, nbytes in needs.items() if isinstance(nbytes, int)}
        room = spread_limit(backend.made_for, threads)
        plan = unplanned(program.graph) if program.sizes else plan_memory(program.graph, workspaces, room)
    hosts = {name: Host(f, _branches(f, report)) for name, f in program.hosts.items()}
    artifact = Artifact(
        graph=program.graph,
        plan=plan,
        params={name: shared(program.params.pop(name)) for name in list(program.params)},
        objects={symbol: kernels[symbol].image for symbol in program.groups},
        metadata={
            s: {**group_metadata(g, backend.machine, kernels[s].cycles), **_workspace(kernels[s])}
            for s, g in program.groups.items()
        },
        target=str(backend.target),
        cpu=backend.made_for,
        threads=threads,
        hosts=hosts,
        sizes=program.sizes,
        assumed=assumed,
        host_calls=host_calls_of(program, hosts, refused, str(backend.target)),
    )
    return replace(artifact, entry=backend.entry(artifact, needs, report.compiler.image_of))


def alone(symbol: str, group: Function, code: KernelCode, compiler: KernelCompiler) -> Library:
    """One kernel as a library."""
    return Library(_link(_program_of(symbol, group), {symbol: code}, BuildReport(Timings(), compiler)))


def _workspace(code: KernelCode) -> dict[str, Dim]:
    return {"workspace": code.fixed, "workspace_per_thread": code.per_thread}


def _branches(function: Function, report: BuildReport) -> dict[str, Artifact]:
    """The functions among a host call's attributes, compiled."""
    op: Any = function.body.op if isinstance(function.body, Call) else None
    measured = op.assumed_sizes if isinstance(op, Op) else ()
    assumed = facts_of(*measured[:2]) if measured else frozenset()
    return {name: _compile(read_program(f), report, assumed) for name, f in branch_functions(function).items()}


@door
def verify_code(symbol: str, group: Function, maker: str, instance: Instance) -> None:
    """Run one kernel and its operators' references on random inputs; :class:`CompilerError` where they differ."""
    raise left_out("MINITVM_VERIFY")


def _program_of(symbol: str, group: Function) -> Program:
    """The kernel alone, without the check that its result may stand for."""
    named = Function(group.params, group.body, {**group.attrs, "name": symbol}, span=group.span)
    params = [Var(p.name, p.type) for p in group.params]
    program = read_program(Function(params, Call(named, params)))
    nodes = tuple(replace(node, check="") for node in program.graph.nodes)
    return replace(program, graph=replace(program.graph, nodes=nodes))
