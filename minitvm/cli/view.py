"""``minitvm view``."""

from __future__ import annotations

import shlex
import sys
import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from minitvm.cli import building, common
from minitvm.cli.common import say
from minitvm.cli.options import PAGE, PATH, Command, OnnxModel, command, is_page, option
from minitvm.cli.profile import measured
from minitvm.driver import backend_for
from minitvm.errors import InputError, no_file
from minitvm.lab.ordering import reordered
from minitvm.lab.profiling import Profile
from minitvm.lab.user_files import passes_of
from minitvm.passes.manager import PassContext
from minitvm.runtime.library import Library
from minitvm.target import Target
from minitvm.viewer import write_document
from minitvm.viewer.beside import beside as compared
from minitvm.viewer.document import document_of
from minitvm.viewer.page import document_in

_ARGUMENTS = "minitvm.arguments"


class _Remembering(Command):
    """Keeps what it was called with: ``--serve`` builds by calling the command again."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = [*args]
        return super().parse_args(ctx, args)


@command(cls=_Remembering)
@click.argument("model", type=PATH, cls=OnnxModel, pages=True)
@option("-o", "--output", type=PATH, excludes=("--serve",), help="File to write (.html, .json); else MODEL's, .html.")
@building.inputs
@option("--run/--no-run", default=True, excludes=(PAGE,), help="Run the model, for measured times and threads.")
@option("-n", "--repeats", type=click.IntRange(1), default=10, excludes=("--no-run", PAGE), help="Counted runs.")
@building.seed()
@option("--pass", "passes", type=PATH, multiple=True, excludes=(PAGE,), help="Python file of passes to run first.")
@option("--without", multiple=True, excludes=(PAGE,), metavar="PASS", help="Leave a pass out.  Repeatable.")
@option("--order", excludes=(PAGE,), metavar="A,B,C", help="These passes in this order, in the places that they have.")
@option("--beside", metavar="HOW", help="Another build to compare with: options that differ ('-O 1'), or a saved page.")
@option("--serve", is_flag=True, excludes=(PAGE,), help="Show it in a browser, again whenever a file changes.")
@option("--port", type=click.IntRange(0, 65535), default=8124, needs="--serve", help="Its port; 0: any.")
@option("--watch", type=PATH, multiple=True, needs="--serve", help="A file to watch beside MODEL.  Repeatable.")
@building.compiles()
def view(
    model: Path, output: Path | None, beside: str | None, serve: bool, port: int, watch: tuple[Path, ...], **how: Any
) -> None:
    """Write one HTML file that shows what minitvm did to MODEL (.onnx), and why: every pass with what it changed, the
    graph with its fused groups, each kernel as loops, LLVM IR, assembly and CUDA C with lines linked, times beside the
    roofline, memory and threads. The file needs no server and no network.

    --beside HOW compares with another build: kernels that changed, times, bytes, and passes that did something else.
    HOW are options of this command that differ, or a page (.html, .json) of another time or version; MODEL may be a
    page, too.
    --pass FILE runs passes and rules of a Python file first: its list "passes", or all that it defines.
    --serve shows the page at http://127.0.0.1:PORT, and makes it again when MODEL, a file of --pass or --watch, or a
    source of minitvm's own passes changes; errors of a pass that is being edited stand in the page.

    \b
    Examples:
      minitvm view resnet18.onnx
      minitvm view bert.onnx --shape ids:1x128 -o bert.html --no-run
      minitvm view resnet18.onnx --beside "-O 1 --without AlterOpLayout"
      minitvm view new.html --beside old.html -o both.html
      minitvm view resnet18.onnx --serve --pass my_pass.py
    """
    saved = _saved(beside)
    read = (*how["passes"], *([saved] if saved else []))
    if serve:
        _serve(model, port, (*read, *watch))
        return
    usual = model.with_name(f"{model.stem}-beside.html") if is_page(model) else common.beside(model, ".html")
    path = common.output(output or usual, model, how["inputs"], *read)
    document = document_in(model) if is_page(model) else _document(model, **how)
    if beside is not None:
        document["beside"] = compared(document, document_in(saved) if saved else _other(beside), beside)
    write_document(document, path)
    say(f"{path}: {len(document['kernels'])} kernels, {path.stat().st_size / 1e6:.2f} MB; open it in a browser")


def _document(
    model: Path,
    chosen: building.Chosen,
    inputs: Path | None,
    run: bool,
    repeats: int,
    seed: int,
    passes: Sequence[Path],
    without: Sequence[str],
    order: str | None,
) -> dict[str, Any]:
    """What the page shows of a build that is made here."""
    own = [step for file in passes for step in passes_of(file)]
    level, target = chosen.opt_level, Target.parse(chosen.target)
    with PassContext(level, disabled_pass=without, config=PassContext.current().config):
        pipeline = reordered(order.split(","), level, backend_for(target, chosen.threads)) if order else None
        library, feeds = chosen.opened(model, inputs, trace=True, passes=own, choose=True, pipeline=pipeline)
    assert library.report is not None
    profile = _profile(chosen, library, feeds, seed, model.name, repeats) if run else None
    return document_of(library.report, model.stem, profile)


def _saved(beside: str | None) -> Path | None:
    """The page that ``--beside`` names, if it names one."""
    if beside is None or beside.lstrip().startswith("-"):
        return None
    if not Path(beside).is_file():
        raise InputError(no_file(Path(beside)), hint="--beside takes a page, or options, such as --beside='-O 1'")
    return Path(beside)


def _other(how: str) -> dict[str, Any]:
    """The document of this command with more options, which is called once more."""
    context = click.get_current_context()
    words = shlex.split(how)
    for word in words:
        if word.partition("=")[0] in ("-o", "--output", "--serve", "--beside", "--port", "--watch"):
            raise click.UsageError(f"--beside {how!r}: {word} does not say how to build", context)
    if is_page(context.params["model"]):
        raise click.UsageError(f"--beside {how!r}: a page is beside another one, not beside a build", context)
    with tempfile.TemporaryDirectory() as folder, common.stdout.capture():
        path = Path(folder) / "other.json"
        given = _without(context.meta[_ARGUMENTS], _HERE)
        context.command.main([*given, *words, "-o", str(path)], context.command_path, standalone_mode=False)
        return document_in(path)


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


_HERE = {"--beside": 1, "-o": 1, "--output": 1}
"""Options that are no part of how a build is made, and how many words follow them."""


def _for_builds(arguments: list[str]) -> list[str]:
    """What the builds are called with: they serve and watch nothing."""
    return _without(arguments, {"--watch": 1, "--port": 1, "--serve": 0})


def _without(arguments: list[str], options: Mapping[str, int]) -> list[str]:
    found, rest = [], iter(arguments)
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if name not in options:
            found.append(argument)
        elif not equals:
            for _ in range(options[name]):
                next(rest)
    return found
