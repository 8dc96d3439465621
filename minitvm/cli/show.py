"""``minitvm show``: any stage of a model's compilation, as text; ``minitvm info``."""

from __future__ import annotations

import importlib.metadata
import pathlib
import platform
from collections import Counter
from collections.abc import Sequence

import click

from minitvm import config
from minitvm.cli import common
from minitvm.cli.common import PATH, SUFFIX, say, stdout, table
from minitvm.codegen.backend import backend_of, stages
from minitvm.driver import BuildReport, PassStep
from minitvm.errors import ConfigError
from minitvm.frontend import describe_onnx, supported_operators
from minitvm.models import why_specialised
from minitvm.passes.manager import closest
from minitvm.runtime.graph import CpuTag
from minitvm.runtime.library import load
from minitvm.target import Target

_STAGES = ("graph", "plain", "loops", *stages())


@click.command()
@common.model
@click.option("--after", metavar="PASS", help="The graph after the (last run of the) pass; 'list' names the passes.")
@click.option("--before", metavar="PASS", help="The graph before the (first run of the) pass.")
@click.option("--stage", type=click.Choice(_STAGES), default="graph", show_default=True, help="What to print.")
@click.option("--kernel", metavar="NAME", help="One kernel only; 'list' names them with nodes and templates.")
@click.option("--why", metavar="NODE", help="What was decided about a node of the model, or a kernel; '*' for all.")
@click.option("--constants", is_flag=True, help="Name large constants instead of leaving them out.")
@common.compiles
def show(
    model: pathlib.Path,
    after: str | None,
    before: str | None,
    stage: str,
    kernel: str | None,
    why: str | None,
    constants: bool,
    chosen: common.Chosen,
) -> None:
    """Print MODEL (.onnx) at one stage of its way: the graph, or kernels as loops (plain: before any
    schedule), LLVM IR, assembly or CUDA C.

    Without options: the graph after all passes, every fused group a local function.

    \b
    Examples:
      minitvm show resnet18.onnx --after list
      minitvm show resnet18.onnx --after FoldScaleAxis
      minitvm show resnet18.onnx --kernel list
      minitvm show resnet18.onnx --stage loops --kernel fused_nn_conv2d_add_nn_relu
      minitvm show resnet18.onnx --why resnetv15_conv0_fwd
    """
    if model.suffix == common.SUFFIX:
        raise ConfigError("a library keeps its code, not the way to it", hint="show the .onnx file it was made from")
    library = chosen.library(model, trace=True)
    report = library.report
    assert report is not None
    if after == "list" or before == "list":
        _list_passes(report)
    elif kernel == "list":
        _list_kernels(report)
    elif why:
        _why(report, why)
    elif after or before:
        step = _step(report, after or before or "", first=after is None)
        say((step.after if after else step.before).astext(show_meta_data=constants))
    elif stage == "graph" and kernel is None:
        assert report.module is not None
        say(report.module.astext(show_meta_data=constants))
    else:
        for name in [kernel] if kernel else list(report.groups):
            say(_kernel(report, name, stage))


def _kernel(report: BuildReport, name: str, stage: str) -> str:
    found = report.kernel(name)
    return str(found.group) if stage == "graph" else found.text(stage)


def _why(report: BuildReport, name: str) -> None:
    for stage, decided in report.why(name).items():
        say("\n  ".join([stage, *map(str, decided)]))


def _list_passes(report: BuildReport) -> None:
    for step in report.steps:
        say(f"{step.name}{'' if step.after is not step.before else '  (unchanged)'}")


def _list_kernels(report: BuildReport) -> None:
    for name, nodes in report.nodes.items():
        kernel = report.kernel(name)
        say(f"{name}  {', '.join(nodes)}  ({kernel.template}), {kernel.cost}, {kernel.seconds * 1e6:.1f} us predicted")


def _step(report: BuildReport, name: str, first: bool) -> PassStep:
    found = [step for step in report.steps if step.name == name]
    if not found:
        known = dict.fromkeys(step.name for step in report.steps)
        raise ConfigError(f"no pass {name!r} ran", hint=closest(name, list(known)))
    return found[0 if first else -1]


@click.command()
@click.argument("model", type=PATH, required=False)
def info(model: pathlib.Path | None) -> None:
    """Describe this installation, or MODEL: inputs, outputs, operators (.onnx); origin, target, memory (.mtvm).

    \b
    Examples:
      minitvm info
      minitvm info resnet18.onnx
      minitvm info resnet18.mtvm
    """
    rows = _installation() if model is None else _library(model) if model.suffix == SUFFIX else _model(model)
    shown = table()
    for row in rows:
        shown.add_row(*row)
    stdout.print(shown)


def _installation() -> list[tuple[str, str]]:
    backend = backend_of(Target.parse("llvm"), config.resolve_threads(None))
    cpu, machine = backend.made_for, backend.machine
    cache = config.cache_dir()
    packages = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("numpy", "llvmlite", "onnx"))
    variables = [(v.name, f"{config.read(v.name) or '(empty)'}: {v.meaning}") for v in config.VARIABLES.values()]
    return [
        ("minitvm", config.version()),
        ("Python", f"{platform.python_version()}, {packages}"),
        ("CPU", f"{cpu.name} ({cpu.triple})"),
        ("vectors", f"{machine.vector_registers} registers of {machine.vector_bytes} bytes"),
        ("caches", _caches(cpu)),
        ("threads", str(machine.threads)),
        ("kernel cache", str(cache) if cache else "off"),
        ("ONNX operators", str(len(supported_operators()))),
        *variables,
    ]


def _caches(cpu: CpuTag) -> str:
    return ", ".join(f"L{n} {nbytes // 1024:,} KiB" for n, nbytes in enumerate(cpu.caches, 1))


def _library(path: pathlib.Path) -> list[tuple[str, str]]:
    library = load(path)
    graph = library.graph
    inputs = [(graph.nodes[i].name, graph.nodes[i].types[0]) for i in graph.arg_nodes]
    return [
        *(("input", f"{name}: {type_}") for name, type_ in inputs if name not in library.params),
        *(
            ("output", f"{name}: {graph.type_of(head)}")
            for name, head in zip(library.output_names, graph.heads, strict=True)
        ),
        ("origin", str(library.origin)),
        ("target", f"{library.target}, {library.artifact.cpu.name}, {library.threads} threads"),
        *((("caches", _caches(library.artifact.cpu)),) if library.artifact.cpu.caches else ()),
        ("parameters", f"{sum(array.size for array in library.params.values()):,}"),
        ("kernels", str(len(library.function_metadata))),
        ("predicted", f"{library.artifact.work_seconds * 1e3:.3f} ms on one thread"),
        *((("memory", str(library.plan)),) if not library.artifact.sizes else ()),
        *(("for", text) for text in library.serves if library.artifact.sizes or library.others),
        *(("in Python", str(call)) for call in library.host_calls),
    ]


def _model(path: pathlib.Path) -> list[tuple[str, str]]:
    description = describe_onnx(path)
    rows = [("input", f"{v.name}: {v.type} {list(v.shape)}") for v in description.inputs]
    rows += [("output", f"{v.name}: {v.type} {list(v.shape)}") for v in description.outputs]
    if not all(isinstance(dim, int) for v in description.inputs for dim in v.shape):
        why = why_specialised(path)
        rows.append(("shapes", "compiled once for all" if why is None else f"compiled for each: {why}"))
    rows += [("opset", str(description.opset)), ("parameters", f"{description.parameters:,}")]
    rows.append(("nodes", _counted(description.operators)))
    return [*rows, *([("in sub-graphs", _counted(description.inner_operators))] if description.inner_operators else ())]


def _counted(operators: Sequence[str]) -> str:
    counts = Counter(operators).most_common()
    return ", ".join([*(f"{name} {count}" for name, count in counts), *(["none"] if not counts else ())])
