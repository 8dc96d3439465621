"""``minitvm info``."""

from __future__ import annotations

import importlib.metadata
import pathlib
import platform
from collections import Counter

import click
from rich.table import Table

from minitvm import config
from minitvm.cli.console import stdout
from minitvm.codegen.llvm.compile import host, machine_model
from minitvm.frontend import describe_onnx, supported_operators
from minitvm.runtime.team import resolve_threads


@click.command()
@click.argument("model", type=click.Path(path_type=pathlib.Path), required=False)
def info(model: pathlib.Path | None) -> None:
    """Describe this installation, or MODEL (.onnx): inputs, outputs, operators.

    \b
    Examples:
      minitvm info
      minitvm info resnet18.onnx
    """
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in _installation() if model is None else _model(model):
        table.add_row(*row)
    stdout.print(table)


def _installation() -> list[tuple[str, str]]:
    cpu = host()
    machine = machine_model(cpu, 1)
    cache = config.cache_dir()
    packages = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("numpy", "llvmlite", "onnx"))
    variables = [(v.name, f"{config.read(v.name) or '(empty)'}: {v.meaning}") for v in config.VARIABLES.values()]
    return [
        ("minitvm", config.version()),
        ("Python", f"{platform.python_version()}, {packages}"),
        ("CPU", f"{cpu.name} ({cpu.triple})"),
        ("vectors", f"{machine.vector_registers} registers of {machine.vector_bytes} bytes"),
        ("threads", str(resolve_threads(None))),
        ("kernel cache", str(cache) if cache else "off"),
        ("ONNX operators", str(len(supported_operators()))),
        *variables,
    ]


def _model(path: pathlib.Path) -> list[tuple[str, str]]:
    description = describe_onnx(path)
    rows = [("input", f"{v.name}: {v.type} {list(v.shape)}") for v in description.inputs]
    rows += [("output", f"{v.name}: {v.type} {list(v.shape)}") for v in description.outputs]
    counts = Counter(description.operators).most_common()
    listing = ", ".join(f"{name} {count}" for name, count in counts)
    return [*rows, ("opset", str(description.opset)), ("parameters", f"{description.parameters:,}"), ("nodes", listing)]
