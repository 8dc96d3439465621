"""``minitvm info``."""

from __future__ import annotations

import importlib.metadata
import pathlib
import platform
from collections import Counter

import click

from minitvm import config
from minitvm.cli.console import stdout, table
from minitvm.cli.options import PATH, SUFFIX
from minitvm.codegen.backend import backend_of
from minitvm.frontend import describe_onnx, supported_operators
from minitvm.runtime.library import load
from minitvm.target import Target


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
        ("threads", str(machine.threads)),
        ("kernel cache", str(cache) if cache else "off"),
        ("ONNX operators", str(len(supported_operators()))),
        *variables,
    ]


def _library(path: pathlib.Path) -> list[tuple[str, str]]:
    library = load(path)
    graph = library.graph
    inputs = [(graph.nodes[i].name, graph.nodes[i].types[0]) for i in graph.arg_nodes]
    return [
        *(("input", f"{name}: {type_}") for name, type_ in inputs if name not in library.params),
        *(("output", str(graph.type_of(head))) for head in graph.heads),
        ("origin", str(library.origin)),
        ("target", f"{library.target}, {library.artifact.cpu.name}, {library.threads} threads"),
        ("parameters", f"{sum(array.size for array in library.params.values()):,}"),
        ("kernels", str(len(library.function_metadata))),
        ("predicted", f"{library.artifact.work_seconds * 1e3:.3f} ms on one thread"),
        ("memory", str(library.plan)),
        *(("in Python", str(call)) for call in library.host_calls),
    ]


def _model(path: pathlib.Path) -> list[tuple[str, str]]:
    description = describe_onnx(path)
    rows = [("input", f"{v.name}: {v.type} {list(v.shape)}") for v in description.inputs]
    rows += [("output", f"{v.name}: {v.type} {list(v.shape)}") for v in description.outputs]
    counts = Counter(description.operators).most_common()
    listing = ", ".join(f"{name} {count}" for name, count in counts)
    return [*rows, ("opset", str(description.opset)), ("parameters", f"{description.parameters:,}"), ("nodes", listing)]
