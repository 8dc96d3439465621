"""``minitvm show``: any stage of a model's compilation, as text; ``minitvm info``."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from minitvm import config
from minitvm.cli import building
from minitvm.cli.common import say, stdout, table
from minitvm.cli.options import PATH, SUFFIX, command, option
from minitvm.codegen.backend import backend_of, stages
from minitvm.driver import BuildReport, KernelReport, PassStep
from minitvm.frontend import describe_onnx, supported_operators
from minitvm.lab.differences import difference
from minitvm.models import why_specialised
from minitvm.runtime.cache import KernelCache
from minitvm.runtime.graph import CpuTag
from minitvm.runtime.library import load
from minitvm.target import Target

_STAGES = ("graph", "plain", "loops", *stages())
_KERNELS = ("--stage", "--kernel")


@command()
@building.model
@option("--stage", type=click.Choice(_STAGES), excludes=("--kernel list",), help="What to print; 'graph' unless given.")
@option("--kernel", metavar="NAME", help="One kernel only; 'list' names them with nodes and templates.")
@option(
    "--after",
    metavar="PASS",
    excludes=_KERNELS,
    help="Graph after a pass, its last run (PASS#2: its second); 'list' names all.",
)
@option(
    "--before",
    metavar="PASS",
    excludes=("--after", *_KERNELS),
    help="Graph before a pass, its first run (PASS#2: its second).",
)
@option(
    "--diff",
    metavar="PASS",
    excludes=("--after", "--before", *_KERNELS),
    help="What a pass changed: calls that went and came, aligned.",
)
@option(
    "--why",
    metavar="NODE",
    excludes=("--after", "--before", "--diff", *_KERNELS),
    help="What was decided about a node of the model, or a kernel; '*' for all.",
)
@option(
    "--schedule",
    metavar="KERNEL",
    excludes=("--after", "--before", "--diff", "--why", *_KERNELS),
    help="The steps that make a kernel's loops of plain ones, a line each.",
)
@option(
    "--constants",
    is_flag=True,
    excludes=(
        "--after list",
        "--before list",
        "--diff",
        "--why",
        "--schedule",
        "--kernel",
        f"--stage {'|'.join(_STAGES[1:])}",
    ),
    help="Name large constants instead of leaving them out.",
)
@building.compiles()
def show(model: Path, chosen: building.Chosen, **asked: Any) -> None:
    """Print MODEL (.onnx) at one stage of its way: the graph, or kernels as loops (plain: before any
    schedule), LLVM IR, assembly or CUDA C.

    Without options: the graph after all passes, every fused group a local function.

    \b
    Examples:
      minitvm show resnet18.onnx --after list
      minitvm show resnet18.onnx --after FoldScaleAxis
      minitvm show resnet18.onnx --diff FoldConstant#2
      minitvm show resnet18.onnx --kernel list
      minitvm show resnet18.onnx --stage loops --kernel fused_nn_conv2d_add_nn_relu
      minitvm show resnet18.onnx --why resnetv15_conv0_fwd
      minitvm show decoder.onnx --schedule fused_tensor_scatter
    """
    building.require_model(model)
    report = chosen.library(model, trace=True).report
    assert report is not None
    for text in _texts(report, **asked):
        say(text)


def _texts(
    report: BuildReport,
    after: str | None,
    before: str | None,
    diff: str | None,
    stage: str | None,
    kernel: str | None,
    why: str | None,
    schedule: str | None,
    constants: bool,
) -> Iterator[str]:
    if "list" in (after, before):
        yield from (f"{s.name}{'' if s.after is not s.before else '  (unchanged)'}" for s in report.steps)
    elif kernel == "list":
        yield from (_line(report.kernel(name), nodes) for name, nodes in report.nodes.items())
    elif why is not None:
        yield from ("\n  ".join([by, *map(str, decided)]) for by, decided in report.why(why).items())
    elif schedule is not None:
        yield str(report.kernel(schedule).steps)
    elif after is not None:
        yield report.runs(after)[-1].after.astext(show_meta_data=constants)
    elif before is not None:
        yield report.runs(before)[0].before.astext(show_meta_data=constants)
    elif diff is not None:
        yield "\n\n".join(map(difference, _changed(report.runs(diff))))
    elif stage in (None, "graph") and kernel is None:
        assert report.module is not None
        yield report.module.astext(show_meta_data=constants)
    else:
        kernels = map(report.kernel, report.groups if kernel is None else [kernel])
        yield from (str(k.group) if stage in (None, "graph") else k.text(stage) for k in kernels)


def _line(kernel: KernelReport, nodes: Sequence[str]) -> str:
    how = f"({kernel.template}), {kernel.cost}, {kernel.seconds * 1e6:.1f} us predicted"
    return f"{kernel.symbol}  {', '.join(nodes)}  {how}"


def _changed(steps: list[PassStep]) -> list[PassStep]:
    """Those that changed something; one where none did, so that this is said."""
    return [step for step in steps if step.after is not step.before] or steps[:1]


@command()
@click.argument("model", type=PATH, required=False)
def info(model: Path | None) -> None:
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
    cache = KernelCache(config.cache_dir())
    unused = f" (not used: {cache.refusal})" if cache.refusal else ""
    packages = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("numpy", "llvmlite", "onnx"))
    variables = [(v.name, f"{config.read(v.name) or '(empty)'}: {v.meaning}") for v in config.VARIABLES.values()]
    return [
        ("minitvm", config.version()),
        ("Python", f"{platform.python_version()}, {packages}"),
        ("CPU", f"{cpu.name} ({cpu.triple})"),
        ("vectors", f"{machine.vector_registers} registers of {machine.vector_bytes} bytes"),
        ("caches", _caches(cpu)),
        ("threads", str(machine.threads)),
        ("kernel cache", f"{cache.folder}{unused}" if cache.folder else "off"),
        ("ONNX operators", str(len(supported_operators()))),
        *variables,
    ]


def _caches(cpu: CpuTag) -> str:
    return ", ".join(f"L{n} {nbytes // 1024:,} KiB" for n, nbytes in enumerate(cpu.caches, 1))


def _library(path: Path) -> list[tuple[str, str]]:
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
        *((("memory", str(library.plan)),) if not library.artifact.is_open else ()),
        *(("for", text) for text in library.serves if library.artifact.is_open or library.others),
        *(("in Python", str(call)) for call in library.host_calls),
    ]


def _model(path: Path) -> list[tuple[str, str]]:
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
