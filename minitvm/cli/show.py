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
from minitvm.cli import building, common
from minitvm.cli.common import say, stdout, table
from minitvm.cli.options import PATH, SUFFIX, as_json, command, option
from minitvm.codegen.backend import backend_of, stages
from minitvm.driver import BuildReport, KernelReport, PassStep
from minitvm.frontend import describe_onnx, supported_operators
from minitvm.lab.differences import difference
from minitvm.ort.open_models import why_specialised
from minitvm.runtime.cache import KernelCache
from minitvm.runtime.library import load
from minitvm.target import Target

_STAGES = ("graph", "plain", "loops", *stages())
_KERNELS = ("--stage", "--kernel")


@command()
@building.onnx_model
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
@as_json
def info(model: Path | None, as_json: bool) -> None:
    """Describe this installation, or MODEL: inputs, outputs, operators (.onnx); origin, target, memory (.mtvm).

    \b
    Examples:
      minitvm info
      minitvm info resnet18.onnx
      minitvm info resnet18.mtvm --json
    """
    form = _installation() if model is None else _library(model) if model.suffix == SUFFIX else _model(model)
    if as_json:
        common.say_json(form, model)
        return
    shown = table()
    for name, value in form.items():
        for text in _lines(name, value):
            shown.add_row(_TITLES.get(name, name), text)
    stdout.print(shown)


_TITLES = {"inputs": "input", "outputs": "output"}
"""What stands before each of several, where that is another word."""


def _lines(name: str, value: Any) -> Iterator[str]:
    """What is shown of a value: a line, or one for each of several."""
    if name in ("inputs", "outputs", "in Python", "for"):
        yield from (f"{one['name']}: {one['type']}" if isinstance(one, dict) else str(one) for one in value)
    elif isinstance(value, dict):
        yield ", ".join(f"{key} {one}" for key, one in value.items()) or "none"
    elif name == "caches":
        yield ", ".join(f"L{n} {nbytes // 1024:,} KiB" for n, nbytes in enumerate(value, 1))
    elif name == "predicted":
        yield f"{value * 1e3:.3f} ms on one thread"
    else:
        yield f"{value:,}" if isinstance(value, int) else str(value)


def _installation() -> dict[str, Any]:
    backend = backend_of(Target.parse("llvm"), config.resolve_threads(None))
    cpu, machine = backend.made_for, backend.machine
    cache = KernelCache(config.cache_dir())
    unused = f" (not used: {cache.refusal})" if cache.refusal else ""
    packages = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("numpy", "llvmlite", "onnx"))
    variables = {v.name: f"{config.read(v.name) or '(empty)'}: {v.meaning}" for v in config.VARIABLES.values()}
    return {
        "minitvm": config.version(),
        "Python": f"{platform.python_version()}, {packages}",
        "CPU": f"{cpu.name} ({cpu.triple})",
        "vectors": f"{machine.vector_registers} registers of {machine.vector_bytes} bytes",
        "caches": cpu.caches,
        "threads": machine.threads,
        "kernel cache": f"{cache.folder}{unused}" if cache.folder else "off",
        "ONNX operators": len(supported_operators()),
        **variables,
    }


def _library(path: Path) -> dict[str, Any]:
    library = load(path)
    graph, artifact = library.graph, library.artifact
    types = {graph.nodes[i].name: graph.nodes[i].types[0] for i in graph.arg_nodes}
    results = zip(library.output_names, graph.heads, strict=True)
    found = {
        "inputs": [_typed(name, type_) for name, type_ in types.items() if name not in library.params],
        "outputs": [_typed(name, graph.type_of(head)) for name, head in results],
        "origin": library.origin,
        "target": f"{library.target}, {artifact.cpu.name}, {library.threads} threads",
        "caches": artifact.cpu.caches,
        "parameters": sum(array.size for array in library.params.values()),
        "kernels": len(library.function_metadata),
        "predicted": artifact.work_seconds,
        "memory": "" if artifact.is_open else str(library.plan),
        "for": list(library.serves) if artifact.is_open or library.others else [],
        "in Python": [str(call) for call in library.host_calls],
    }
    return {name: value for name, value in found.items() if value or isinstance(value, (int, float))}


def _typed(name: str, type_: object) -> dict[str, str]:
    return {"name": name, "type": str(type_)}


def _model(path: Path) -> dict[str, Any]:
    description = describe_onnx(path)
    inputs = [_typed(v.name, f"{v.type} {list(v.shape)}") for v in description.inputs]
    found: dict[str, Any] = {
        "inputs": inputs,
        "outputs": [_typed(v.name, f"{v.type} {list(v.shape)}") for v in description.outputs],
    }
    if not all(isinstance(dim, int) for v in description.inputs for dim in v.shape):
        why = why_specialised(path)
        found["shapes"] = "compiled once for all" if why is None else f"compiled for each: {why}"
    found |= {"opset": description.opset, "parameters": description.parameters}
    found["nodes"] = dict(Counter(description.operators).most_common())
    inner = dict(Counter(description.inner_operators).most_common())
    return {**found, **({"in sub-graphs": inner} if inner else {})}
