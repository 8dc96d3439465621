"""``minitvm compile``."""

from __future__ import annotations

import pathlib
import time

import click

from minitvm.cli import options
from minitvm.cli.console import say


@click.command("compile")
@options.model
@click.option("-o", "--output", type=options.PATH, help="File to write; MODEL with .mtvm by default.")
@options.compiles
@click.option("--sign", type=options.PATH, help="Private Ed25519 key (PEM) to sign the library with.")
@click.option("--strict", is_flag=True, help="Refuse models with operators that would run in Python.")
def compile_command(
    model: pathlib.Path, output: pathlib.Path | None, chosen: options.Chosen, sign: pathlib.Path | None, strict: bool
) -> None:
    """Compile MODEL (.onnx) to a library: one file with object code, graph and parameters.

    The library loads in milliseconds, on any machine with this CPU or a newer one of its kind, and needs no compiler.

    \b
    Examples:
      minitvm compile resnet18.onnx
      minitvm compile detector.onnx -o detector.mtvm --shape image:1x3x480x640
      minitvm compile resnet18.onnx --sign key.pem
    """
    start = time.perf_counter()
    library = chosen.library(model, strict=strict)
    path = output or model.with_suffix(options.SUFFIX)
    library.save(path, sign)
    seconds = time.perf_counter() - start
    kernels = len(library.function_metadata)
    say(f"{path}: {kernels} kernels, {size(path.stat().st_size)}, {seconds:.1f} s")
    for call in library.host_calls:
        say(f"  in Python: {call}")


def size(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:.0f} kB"
