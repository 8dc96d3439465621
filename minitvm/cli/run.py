"""``minitvm run``."""

from __future__ import annotations

import pathlib
from dataclasses import replace
from typing import Any

import click
import numpy as np

from minitvm.cli import options
from minitvm.cli.console import stdout, table
from minitvm.frontend import describe_onnx
from minitvm.runtime.debug import GraphModuleDebug
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.library import Library
from minitvm.runtime.ndarray import cpu
from minitvm.runtime.timing import timed


@click.command()
@options.model
@click.option("-i", "--inputs", type=options.PATH, help="An .npz with an array per input.")
@click.option("-o", "--outputs", type=options.PATH, help="An .npz to write the results to.")
@click.option("--seed", default=0, show_default=True, help="Seed of random inputs, where no file is given.")
@click.option("--top", type=click.IntRange(1), help="Print the N largest values of every result, with their indices.")
@click.option("--profile", is_flag=True, help="Run kernel by kernel and print a table of their times.")
@click.option("--trace", type=options.PATH, help="With --profile: folder for graph.json and trace.json.")
@options.compiles
@options.trusted_keys
def run(
    model: pathlib.Path,
    inputs: pathlib.Path | None,
    outputs: pathlib.Path | None,
    seed: int,
    top: int | None,
    profile: bool,
    trace: pathlib.Path | None,
    chosen: options.Chosen,
) -> None:
    """Run MODEL (.onnx, or a library made by 'minitvm compile') once and describe the results.

    \b
    Examples:
      minitvm run resnet18.onnx --top 5
      minitvm run resnet18.mtvm -i inputs.npz -o outputs.npz
      minitvm run bert.onnx --shape ids:1x128 --profile
    """
    feeds = options.read_npz(inputs) if inputs else None
    if feeds is not None and not chosen.shapes and model.suffix != options.SUFFIX:
        chosen = replace(chosen, shapes=_shapes_of(model, feeds))
    library = chosen.library(model, feeds=feeds)
    if profile:
        module: GraphModule = GraphModuleDebug(
            library["debug_create"]("default", cpu(0)), [cpu(0)], library.graph_json, dump_root=trace
        )
    else:
        module = GraphModule(library["default"](cpu(0), chosen.threads))
    if feeds is None:
        feeds = options.random_inputs(module, seed)
    elif model.suffix != options.SUFFIX:
        constant = {v.name for v in describe_onnx(model).inputs} - set(module.get_input_info()[0])
        feeds = {name: array for name, array in feeds.items() if name not in constant}
    [seconds] = timed(lambda: module.run(feeds))
    results = _results(module, library)
    _describe(results, top)
    stdout.print(f"first run: {seconds * 1e3:.2f} ms")
    if outputs is not None:
        np.savez(outputs, **results)


def _shapes_of(model: pathlib.Path, feeds: dict[str, np.ndarray]) -> dict[str, list[int]]:
    """Open dimensions take the arrays' sizes."""
    open_inputs = [v.name for v in describe_onnx(model).inputs if not all(isinstance(d, int) for d in v.shape)]
    return {name: list(feeds[name].shape) for name in open_inputs if name in feeds}


def _results(module: GraphModule, library: Library) -> dict[str, Any]:
    return {f"output{i}": module.get_output(i).numpy() for i in range(module.get_num_outputs())}


def _describe(results: dict[str, np.ndarray], top: int | None) -> None:
    rows = table("result", "shape", "dtype", "smallest", "mean", "largest")
    for name, array in results.items():
        figures = [f"{f(array):.6g}" if array.size else "-" for f in (np.min, np.mean, np.max)]
        rows.add_row(name, str(array.shape), str(array.dtype), *figures)
    stdout.print(rows)
    for name, array in results.items() if top else ():
        flat = array.ravel()
        for index in np.argsort(-flat, kind="stable")[:top]:
            where = tuple(int(i) for i in np.unravel_index(index, array.shape))
            stdout.print(f"  {name}{list(where)} = {flat[index]:.6g}")
