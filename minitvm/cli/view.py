"""``minitvm view``."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path

import click
import numpy as np

from minitvm.cli import building, common
from minitvm.cli.common import say
from minitvm.cli.options import PATH, Command, command, option
from minitvm.cli.profile import measured
from minitvm.errors import InputError, no_file
from minitvm.lab.profiling import Profile
from minitvm.lab.user_files import passes_of
from minitvm.runtime.library import Library

_ARGUMENTS = "minitvm.arguments"


class _Remembering(Command):
    """Keeps what it was called with: ``--serve`` builds by calling the command again."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = [*args]
        return super().parse_args(ctx, args)


@command(cls=_Remembering)
@building.onnx_model
@option("-o", "--output", type=PATH, excludes=("--serve",), help="File to write; MODEL with .html by default.")
@building.inputs
@option("--run/--no-run", default=True, help="Run the model, for measured times and threads.")
@option("-n", "--repeats", type=click.IntRange(1), default=10, excludes=("--no-run",), help="Runs that are counted.")
@building.seed()
@option("--pass", "passes", type=PATH, multiple=True, help="Python file of passes or rules to run first.")
@option("--serve", is_flag=True, help="Show it in a browser, again whenever a file changes.")
@option("--port", type=click.IntRange(0, 65535), default=8124, needs="--serve", help="Its port; 0: any.")
@option("--watch", type=PATH, multiple=True, needs="--serve", help="A file to watch beside MODEL.  Repeatable.")
@building.compiles()
def view(
    model: Path,
    output: Path | None,
    inputs: Path | None,
    run: bool,
    repeats: int,
    seed: int,
    passes: tuple[Path, ...],
    serve: bool,
    port: int,
    watch: tuple[Path, ...],
    chosen: building.Chosen,
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
    if serve:
        _serve(model, port, (*passes, *watch))
        return
    path = common.output(output or common.beside(model, ".html"), model, inputs, *passes)
    own = [step for file in passes for step in passes_of(file)]
    library, feeds = chosen.opened(model, inputs, trace=True, passes=own, choose=True)
    assert library.report is not None
    profile = _profile(chosen, library, feeds, seed, model.name, repeats) if run else None
    library.report.view(path, model.stem, profile)
    say(f"{path}: {len(library.report.groups)} kernels, {path.stat().st_size / 1e6:.2f} MB; open it in a browser")


def _profile(
    chosen: building.Chosen, library: Library, feeds: dict[str, np.ndarray] | None, seed: int, name: str, repeats: int
) -> Profile | None:
    """The profile of a run; ``None`` where the model does not take random inputs."""
    try:
        return measured(*chosen.executor(library, feeds, seed), name, repeats)
    except InputError as error:
        if feeds is not None:
            raise
        say(f"not measured, as random inputs do not fit: {error.message}; -i FILE gives others")
        return None


def _serve(model: Path, port: int, watch: tuple[Path, ...]) -> None:
    from minitvm.viewer.serve import Builder, Server, own_passes

    for file in (model, *watch):
        if not file.is_file():
            raise InputError(no_file(file), hint="--serve builds again when its files change")
    arguments = _for_builds(click.get_current_context().meta[_ARGUMENTS])
    builder = Builder([sys.executable, "-m", "minitvm", "view", *arguments])
    with Server(builder, [model, *watch, *own_passes()], port) as server:
        say(f"{server.address}  (Ctrl-C ends it)")
        webbrowser.open(server.address)
        server.run()


def _for_builds(arguments: list[str]) -> list[str]:
    """What the builds are called with: they serve and watch nothing."""
    found, rest = [], iter(arguments)
    for argument in rest:
        if argument in ("--watch", "--port"):
            next(rest)
        elif argument != "--serve" and not argument.startswith(("--watch=", "--port=")):
            found.append(argument)
    return found
