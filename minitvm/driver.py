"""``build``: all stages from a module to a library, in one place."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from minitvm import config
from minitvm.codegen.llvm.compile import Cpu, cpu_of, machine_model
from minitvm.codegen.lower import Lowering, lowering
from minitvm.errors import CompilerError, ConfigError, InputError, PassError, TargetError
from minitvm.ir.expr import Function, Module
from minitvm.ir.loop import Kernel
from minitvm.ir.types import TensorType, Type
from minitvm.kernels import KernelCode, KernelCompiler, NotLowered, Timings
from minitvm.passes.bind_captured import bind_captured
from minitvm.passes.instrument import PassInfo, PassInstrument
from minitvm.passes.manager import PassContext
from minitvm.passes.pipeline import bind_params, default_pipeline
from minitvm.runtime.cache import KernelCache
from minitvm.runtime.checks import listing
from minitvm.runtime.control import HostFunction, branch_functions
from minitvm.runtime.cpu_tag import tag_of
from minitvm.runtime.document import document_of
from minitvm.runtime.entry import entry_text
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.graph import HOST, Program, read_program, without_kernels
from minitvm.runtime.library import Contents, HostCall, Library
from minitvm.runtime.memory import plan_memory, require_addressable
from minitvm.runtime.metadata import group_metadata
from minitvm.runtime.ndarray import CUDA_HINT, CUDA_NOT_YET, Device, NDArray, aligned, cpu
from minitvm.runtime.seal import seal_text
from minitvm.runtime.team import resolve_threads
from minitvm.target import MachineModel, Target

Progress = Callable[[int, int, str], None]
"""``on_progress(done, total, name)`` after every kernel."""


class HostCallWarning(UserWarning):
    """Part of a model runs in Python instead of in compiled kernels."""


@dataclass(frozen=True)
class PassStep:
    """One run of a pass, with the module before and after it."""

    name: str
    before: Module
    after: Module


class Recorder(PassInstrument):
    """Keeps the module before and after every pass, for ``minitvm show``."""

    def __init__(self) -> None:
        self.steps: list[PassStep] = []
        self._open: list[Module] = []

    def run_before_pass(self, module: Module, info: PassInfo) -> None:
        self._open.append(module)

    def run_after_pass(self, module: Module, info: PassInfo) -> None:
        self.steps.append(PassStep(info.name, self._open.pop(), module))


@dataclass
class BuildReport:
    """What a build did: seconds by stage, and every kernel's stages, made again on demand."""

    timings: Timings
    compiler: KernelCompiler
    groups: dict[str, Function] = field(default_factory=dict)
    steps: list[PassStep] = field(default_factory=list)
    module: Module | None = None
    """The module after all passes; kept, as ``steps`` are, where the build was asked to ``trace``."""
    cache_hits: int = 0
    cache_misses: int = 0
    undecided: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By kernel, the results that could not be shown to be stored whole, and why."""

    @property
    def seconds(self) -> dict[str, float]:
        return dict(self.timings.seconds)

    def group(self, symbol: str) -> Function:
        """A kernel's group; :class:`CompilerError` where there is no such kernel."""
        if symbol not in self.groups:
            raise CompilerError(f"there is no kernel {symbol!r}", hint=f"kernels: {', '.join(self.groups)}")
        return self.groups[symbol]

    def lowering(self, symbol: str) -> Lowering:
        """What made the kernel's loops, and which templates declined."""
        return lowering(self.group(symbol), symbol, self.compiler.machine)

    def scheduled(self, symbol: str) -> Kernel:
        """The kernel's loops before legalization."""
        return self.compiler.scheduled(symbol, self.group(symbol))

    def kernel(self, symbol: str) -> Kernel:
        """The kernel's loops as they are emitted."""
        return self.compiler.kernel(symbol, self.group(symbol))

    def llvm_ir(self, symbol: str) -> str:
        return self.compiler.llvm_ir(symbol, self.group(symbol))

    def assembly(self, symbol: str) -> str:
        return self.compiler.assembly(symbol, self.group(symbol))


@dataclass(frozen=True)
class Options:
    """What :func:`build_options` has checked."""

    target: Target
    cpu: Cpu
    machine: MachineModel
    threads: int
    on_progress: Progress | None


def build(
    module: Module | Function,
    target: str | Target = "llvm",
    params: Mapping[str, Any] | None = None,
    opt_level: int | None = None,
    *,
    num_threads: int | None = None,
    strict: bool = False,
    on_progress: Progress | None = None,
    trace: bool = False,
) -> Library:
    """Compile a module.

    ``params`` become constants, so that passes may fold them.  ``opt_level`` is the current ``PassContext``'s unless
    given.  ``num_threads`` is what kernels are scheduled for; a library may run on another number.  What cannot
    become a kernel runs in Python, with one warning; ``strict`` refuses instead.  ``trace`` keeps the module
    before and after every pass in ``library.report``.

    Raises :class:`TargetError`, :class:`CompilerError`, and what passes raise.
    """
    _check_arguments(module, params)
    given = Module(module) if isinstance(module, Function) else module
    options = build_options(target, num_threads, on_progress)
    return build_consuming(given, dict(params or {}), options, opt_level, strict=strict, trace=trace)


def _check_arguments(module: object, params: object) -> None:
    if not isinstance(module, (Module, Function)):
        raise ConfigError(
            f"build takes a Module or a Function, not a {type(module).__name__}",
            hint="minitvm.compile(model) for ONNX models; Module.from_expr(body) for an expression",
        )
    if not isinstance(params, (Mapping, type(None))):
        raise ConfigError(f"params is a {type(params).__name__}, not a dictionary of arrays by name")


def build_consuming(
    given: Module,
    params: dict[str, Any],
    options: Options,
    opt_level: int | None = None,
    *,
    strict: bool = False,
    trace: bool = False,
) -> Library:
    """As :func:`build`, but empties ``params``, so that weights can be freed as soon as passes have replaced them."""
    timings = Timings()
    recorder = Recorder() if trace else None
    with timings.stage("passes"):
        main = optimize(given, options.machine, params, opt_level, recorder).main
    cache = KernelCache(config.cache_dir())
    report = BuildReport(timings, KernelCompiler(options.machine, options.cpu, cache, timings))
    if recorder is not None:
        report.steps, report.module = recorder.steps, given.with_function("main", main)
    program = read_program(main)
    del main  # so that weights are not held twice while they are aligned
    contents = _compile(program, options, report)
    report.cache_hits, report.cache_misses = cache.hits, cache.misses
    if cache.misses:
        cache.trim()
    _announce(contents.host_calls, strict)
    return Library(contents, ir_mod=given, report=report)


def build_options(target: str | Target, num_threads: int | None, on_progress: Progress | None) -> Options:
    parsed = Target.parse(target)
    if parsed.kind != "llvm":
        raise TargetError(CUDA_NOT_YET, where=[f"target: {parsed}"], hint=CUDA_HINT)
    threads = resolve_threads(num_threads)
    if on_progress is not None and not callable(on_progress):
        raise ConfigError(f"on_progress is a {type(on_progress).__name__}, not a function of (done, total, name)")
    cpu = cpu_of(parsed)
    return Options(parsed, cpu, machine_model(cpu, threads), threads, on_progress)


def optimize(
    module: Module,
    machine: MachineModel,
    params: dict[str, Any] | None = None,
    opt_level: int | None = None,
    recorder: PassInstrument | None = None,
) -> Module:
    """The module after the default pipeline, under the current ``PassContext``.

    ``params`` are bound, and taken out of the dictionary: nothing here holds a weight that the passes have replaced.
    """
    taken = params if params is not None else {}
    arrays = {name: np.asarray(taken.pop(name)) for name in list(taken)}
    box = [module.with_function("main", bind_captured(bind_params(module.main, arrays)))]
    del arrays
    with _context(opt_level, recorder):
        return default_pipeline(machine).consume(box)


def _context(opt_level: int | None, recorder: PassInstrument | None) -> PassContext:
    """The current ``PassContext``, with another level and one more instrument where given."""
    outer = PassContext.current()
    if "FuseOps" in outer.disabled_pass:
        raise PassError(
            "FuseOps cuts the graph into kernels: a build cannot do without it",
            hint="at opt_level=0 every operator is a kernel of its own",
        )
    return PassContext(
        opt_level=outer.opt_level if opt_level is None else opt_level,
        required_pass=outer.required_pass,
        disabled_pass=outer.disabled_pass,
        instruments=[*outer.given_instruments, *([recorder] if recorder else [])],
        config=outer.config,
    )


def _compile(program: Program, options: Options, report: BuildReport) -> Contents:
    """Code generation for one function after the passes; branches of control flow become libraries of their own.
    Takes the arrays out of ``program.params``."""
    require_addressable(program.graph)
    kernels, refused = _compile_kernels(program.groups, report.compiler, options.on_progress)
    program = without_kernels(program, refused)
    report.groups.update(program.groups)
    report.undecided.update({symbol: code.undecided for symbol, code in kernels.items() if code.undecided})
    with report.timings.stage("memory plan"):
        workspaces = {
            i: kernels[node.func].workspace(options.threads)
            for i, node in enumerate(program.graph.nodes)
            if node.is_kernel
        }
        plan = plan_memory(program.graph, workspaces)
    hosts = {name: HostFunction(f, _branches(f, options, report)) for name, f in program.hosts.items()}
    contents = Contents(
        graph=program.graph,
        plan=plan,
        params={name: aligned(program.params.pop(name)) for name in list(program.params)},
        objects={symbol: code.image for symbol, code in kernels.items()},
        metadata={s: {**group_metadata(g), **_workspace(kernels[s])} for s, g in program.groups.items()},
        target=str(options.target),
        cpu=tag_of(options.cpu),
        threads=options.threads,
        hosts=hosts,
        host_calls=_host_calls(program, hosts, refused),
    )
    text = entry_text(program.graph, plan, workspaces, options.machine.features) + seal_text(document_of(contents))
    return replace(contents, entry=report.compiler.object_of(text))


def _workspace(code: KernelCode) -> dict[str, int]:
    return {"workspace": code.fixed, "workspace_per_thread": code.per_thread}


def _compile_kernels(
    groups: Mapping[str, Function], compiler: KernelCompiler, on_progress: Progress | None
) -> tuple[dict[str, KernelCode], dict[str, str]]:
    """Every group's kernel, a few at a time (LLVM leaves the interpreter's lock alone); and why others have none."""
    found: dict[str, KernelCode] = {}
    refused: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        jobs: dict[Future[KernelCode], str] = {pool.submit(compiler.compile, s, g): s for s, g in groups.items()}
        try:
            for done, job in enumerate(as_completed(jobs), 1):
                symbol = jobs[job]
                try:
                    found[symbol] = job.result()
                except NotLowered as error:
                    refused[symbol] = str(error)
                if on_progress is not None:
                    on_progress(done, len(jobs), symbol)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {symbol: found[symbol] for symbol in groups if symbol in found}, refused


# --- host calls -----------------------------------------------------------------------------------------------


def _branches(function: Function, options: Options, report: BuildReport) -> dict[str, Library]:
    """The functions among a host call's attributes, compiled."""
    return {name: Library(_compile(read_program(f), options, report)) for name, f in branch_functions(function).items()}


def _host_calls(
    program: Program, hosts: Mapping[str, HostFunction], refused: Mapping[str, str]
) -> tuple[HostCall, ...]:
    """The host calls of a program and, after each, those inside its branches."""
    found: list[HostCall] = []
    for node in program.graph.nodes:
        if node.func == HOST:
            host = hosts[node.name]
            reason = refused.get(str(host.function.attrs.get("symbol"))) or _reason(host.function)
            found.append(HostCall(host.name, reason, node.name, node.spans))
            for branch in host.branches.values():
                found.extend(branch.host_calls)
    return tuple(found)


def _reason(function: Function) -> str:
    """Why a call stayed outside of the kernels."""
    types: list[Type] = [function.ret_type, *(p.type for p in function.params)]
    if branch_functions(function):
        return "control flow that depends on data; its branches are compiled"
    if not all(t.is_static for t in types):
        return "a shape that is known only when the model runs"
    return "no compute rule"


def _announce(found: tuple[HostCall, ...], strict: bool) -> None:
    """Warn of host calls once, or refuse them."""
    if not found:
        return
    lines = list(dict.fromkeys(str(call) for call in found))
    shown = [*lines[:8], *([f"... and {len(lines) - 8} more"] if len(lines) > 8 else [])]
    what = f"{len(found)} operator{'s' if len(found) > 1 else ''}"
    if strict:
        message = f"{what} would run in Python instead of in kernels"
        raise CompilerError(message, where=shown, hint="build with strict=False to allow it")
    message = f"{what} run{'s' if len(found) == 1 else ''} in Python instead of in kernels"
    warnings.warn(
        "\n  | ".join([message, *shown]) + "\n  = hint: library.host_calls lists them",
        HostCallWarning,
        stacklevel=4,
    )


# --- as a function --------------------------------------------------------------------------------------------


class FunctionExecutor:
    """``create_executor("graph", module, device, target).evaluate()``: a module as a Python function."""

    def __init__(
        self, module: Module, device: Device, target: str | Target, params: Mapping[str, Any] | None = None
    ) -> None:
        self.module, self.device, self.target, self.params = module, device, target, params

    def evaluate(self, what: Module | Function | None = None) -> Callable[..., Any]:
        """A function of the parameters of ``main`` (of ``what``, where given), by position, then by name.

        It returns an NDArray, or a list of them for a tuple.
        """
        chosen = self.module if what is None else Module(what) if isinstance(what, Function) else what
        library = build(chosen, self.target, self.params)
        names = [p.name for p in chosen.main.params if p.name not in (self.params or {})]
        module = GraphModule(library["default"](self.device))

        def call(*arrays: Any, **named: Any) -> Any:
            if len(arrays) > len(names):
                raise InputError(f"{len(arrays)} inputs given, the function takes {len(names)}: {listing(names)}")
            by_position = dict(zip(names, arrays, strict=False))
            for name in by_position.keys() & named:
                raise InputError(f"input {name!r} is given twice, by position and by name")
            module.run({**by_position, **named})
            found: list[NDArray] = [module.get_output(i) for i in range(module.get_num_outputs())]
            return found[0] if isinstance(chosen.main.ret_type, TensorType) else found

        return call


def create_executor(
    kind: str = "graph",
    mod: Module | Function | None = None,
    device: Device | None = None,
    target: str | Target = "llvm",
    params: Mapping[str, Any] | None = None,
) -> FunctionExecutor:
    """TVM's function-style executor.  Only ``graph`` exists; :class:`ConfigError` names any other kind."""
    if kind != "graph":
        raise ConfigError(f"there is no executor {kind!r}", hint="the one executor is 'graph'")
    if mod is None:
        raise ConfigError("create_executor needs a module")
    return FunctionExecutor(Module(mod) if isinstance(mod, Function) else mod, device or cpu(), target, params)
