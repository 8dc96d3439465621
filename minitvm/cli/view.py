"""``minitvm view``."""

from __future__ import annotations

import pathlib
import sys
import webbrowser
from typing import Any

import click

from minitvm.cli import common
from minitvm.cli.common import say
from minitvm.errors import ConfigError
from minitvm.lab.inputs import random_inputs
from minitvm.lab.profiling import Profile, profile_module
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.library import Library
from minitvm.viewer.own_passes import passes_of

_ARGUMENTS = "minitvm.arguments"


class _Remembering(click.Command):
    """Keeps what it was called with: ``--serve`` builds by calling the command again."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = [*args]
        return super().parse_args(ctx, args)


@click.command(cls=_Remembering)
@common.model
@click.option("-o", "--output", type=common.PATH, help="File to write; MODEL with .html by default.")
@click.option("-i", "--inputs", type=common.PATH, help="An .npz with an array per input; random ones by default.")
@click.option("--run/--no-run", default=True, show_default=True, help="Run the model, for measured times and threads.")
@click.option("-n", "--repeats", type=click.IntRange(1), default=10, show_default=True, help="Runs that are counted.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random inputs.")
@click.option("--pass", "passes", type=common.PATH, multiple=True, help="Python file of passes or rules to run first.")
@click.option("--serve/--no-serve", default=False, help="Show it in a browser, again whenever a file changes.")
@click.option("--port", type=click.IntRange(0, 65535), default=8124, show_default=True, help="With --serve; 0: any.")
@click.option("--watch", type=common.PATH, multiple=True, help="With --serve: a file to watch beside MODEL; repeat.")
@common.compiles
def view(
    model: pathlib.Path,
    output: pathlib.Path | None,
    inputs: pathlib.Path | None,
    run: bool,
    repeats: int,
    seed: int,
    passes: tuple[pathlib.Path, ...],
    serve: bool,
    port: int,
    watch: tuple[pathlib.Path, ...],
    chosen: common.Chosen,
) -> None:
    """Write one HTML file that shows what minitvm did to MODEL (.onnx), and why: every pass with what it changed, the
    graph with its fused groups, each kernel as loops, LLVM IR, assembly and CUDA C with lines linked, times beside the
    roofline, memory and threads. The file needs no server and no network.

    --pass FILE runs passes and rules of a Python file first: its list "passes", or all that it defines.
    --serve shows the page at http://127.0.0.1:PORT, and makes it again when MODEL, a file of --pass or --watch, or a
    source of minitvm's own passes changes; errors of a pass that is being edited stand in the page.

    \b
    Examples:
      minitvm view resnet18.onnx
      minitvm view bert.onnx --shape ids:1x128 -o bert.html --no-run
      minitvm view resnet18.onnx --serve --pass my_pass.py
    """
    common.require_model(model)
    if watch and not serve:
        raise ConfigError("--watch says what --serve looks at", hint="add --serve")
    path = common.output(output or model.with_suffix(".html"), model, inputs, *passes)
    if serve:
        _serve(model, port, (*passes, *watch))
        return
    feeds = common.read_npz(inputs) if inputs else None
    library = chosen.for_feeds(model, feeds).library(model, trace=True, feeds=feeds, passes=_passes(passes))
    assert library.report is not None
    profile = _profile(library, feeds, chosen, model.name, repeats, seed) if run else None
    library.report.view(path, model.stem, profile)
    say(f"{path}: {len(library.report.groups)} kernels, {path.stat().st_size / 1e6:.2f} MB; open it in a browser")


def _passes(paths: tuple[pathlib.Path, ...]) -> list[Any]:
    return [step for path in paths for step in passes_of(path)]


def _profile(library: Library, feeds: Any, chosen: common.Chosen, title: str, repeats: int, seed: int) -> Profile:
    module = GraphModule(library["default"](library.device(0), chosen.threads))
    if feeds is None:
        given = random_inputs(module, seed)
    else:
        values = library.artifact.values
        given = common.gathered({n: a for n, a in feeds.items() if n not in values}, module.input_types())
    with common.compiling("measuring") as progress:
        return profile_module(module, given, title, repeats, 3, progress)


def _serve(model: pathlib.Path, port: int, watch: tuple[pathlib.Path, ...]) -> None:
    from minitvm.viewer.serve import Builder, Server, own_passes

    arguments = click.get_current_context().meta[_ARGUMENTS]
    builder = Builder([sys.executable, "-m", "minitvm", "view", *_without_watch(arguments), "--no-serve"])
    with Server(builder, [model, *watch, *own_passes()], port) as server:
        say(f"{server.address}  (Ctrl-C ends it)")
        webbrowser.open(server.address)
        server.run()


def _without_watch(arguments: list[str]) -> list[str]:
    """What the builds are called with: they watch nothing."""
    found, rest = [], iter(arguments)
    for argument in rest:
        if argument == "--watch":
            next(rest)
        elif not argument.startswith("--watch="):
            found.append(argument)
    return found
