"""The command line, one module for each group of commands; what is not called is not imported."""

import importlib
import io
import os
import pathlib
import signal
import sys
import warnings
from typing import Any, NoReturn

import click

from minitvm.config import version
from minitvm.errors import MiniTVMError, did_you_mean, stage

COMMANDS = {
    "demo": ("demo:demo", "Classify photographs with a model that is included."),
    "compile": ("run:compile_command", "Compile a model to a library: one file with code, graph and parameters."),
    "tune": ("run:tune", "Try ways to make a model's kernels, and write down how each did."),
    "run": ("run:run", "Run a model or a library once and describe the results."),
    "bench": ("run:bench", "Time a model, next to ONNX Runtime."),
    "profile": ("profile:profile", "Say where a run's time goes: kernels, threads, beside the machine's peak."),
    "check": ("check:check", "Prove that a model is compiled right; else, who is wrong."),
    "explain": ("explain:explain", "Say why a kernel, a node or a pass's result is as it is."),
    "show": ("show:show", "Print a model at one stage of its way: graph, loops, LLVM IR, assembly, CUDA C."),
    "lab": ("lab:lab", "Experiments: orders of passes, levels, rules and passes put to the test."),
    "view": ("view:view", "Write a page to look at: passes, graph, kernels' code, memory, threads."),
    "info": ("show:info", "Describe this installation, a model or a library."),
}
"""By name: the module here with the object in it, and what it is for in one line."""


INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""


def imported(place: str) -> click.Command:
    """The command at ``module:object`` of this room."""
    module, _, name = place.partition(":")
    found: click.Command = getattr(importlib.import_module(f"minitvm.cli.{module}"), name)
    return found


class LazyGroup(click.Group):
    """A group of commands in a table as :data:`COMMANDS`; its help imports none of them."""

    def __init__(self, *args: Any, table: dict[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.table = table

    def list_commands(self, ctx: click.Context | None) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        return imported(self.table[cmd_name][0])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """:class:`click.UsageError` where there is no such command, with the one that may be meant."""
        if args and args[0] not in self.table and not args[0].startswith("-"):
            before = ctx.command_path
            near = did_you_mean(args[0], self.table, lambda name: f"'{before} {name}'")
            if pathlib.Path(args[0]).suffix in (".onnx", ".mtvm"):
                near = f"a command stands before a model: {before} run {args[0]}"
            raise click.UsageError(f"There is no command {args[0]!r}{f'; {near}' if near else '.'}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.table[name][1]) for name in self.list_commands(ctx)])


@click.group(
    cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(version(), prog_name="minitvm")
def cli() -> None:
    """minitvm: compile ONNX models to native code, run them, and look at every stage in between.

    \b
    First steps:
      minitvm demo                          classify photographs with a model that is included
      minitvm compile model.onnx -o m.mtvm  compile once; the file loads without a compiler
      minitvm tune model.onnx               find faster kernels for this machine
      minitvm run m.mtvm -i inputs.npz      run it on arrays from a file
      minitvm bench model.onnx              time it, next to ONNX Runtime
      minitvm profile model.onnx            see where its time goes, kernel by kernel
      minitvm explain model.onnx --node N   ask what became of a node, and why
      minitvm show model.onnx               read what each pass and each kernel became
      minitvm view model.onnx               the same to look at, as one page

    \b
    Every command explains itself: minitvm COMMAND --help.
    Environment variables (threads, kernel cache, checks): docs/environment.md.
    """


def _complain(text: str, kind: str, style: str) -> None:
    """Text on stderr: wrapped between words on a terminal, never in a file."""
    from minitvm.cli.common import stderr

    stderr.quiet = stderr.quiet and kind != "error"
    stderr.print(f"[{style}]{kind}:[/] ", end="")
    stderr.print(text, markup=False, highlight=False, soft_wrap=not stderr.is_terminal)


def main() -> None:
    """The console script: errors a user can mend are printed, without a traceback; exit status 1, or 130 after Ctrl-C.

    Files that cannot be written and disks that are full are among them.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, _end)
        sys.unraisablehook = _end_anyhow
    warnings.showwarning = lambda message, *_: _complain(str(message), "warning", "yellow")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a model's names, where the terminal has not their letters
    try:
        _run()
    except MiniTVMError as error:
        _complain(str(error), "error", "bold red")
        sys.exit(1)


@stage("running the command")
def _run() -> None:
    try:
        cli(prog_name="minitvm")
    except OSError as error:
        if isinstance(error, MiniTVMError):
            raise
        where = f"{error.filename}: " if error.filename else ""
        _silence()
        _complain(f"{where}{error.strerror or error}", "error", "bold red")
        sys.exit(1)


def _end(*_: object) -> NoReturn:
    """Ctrl-C: what is open is put in order; another one ends the process at once."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(INTERRUPTED)


def _end_anyhow(lost: "sys.UnraisableHookArgs") -> None:
    """Called where Ctrl-C came in a destructor or a callback, which nothing is raised out of."""
    if lost.exc_type is SystemExit:
        signal.raise_signal(signal.SIGINT)
    sys.__unraisablehook__(lost)


def _silence() -> None:
    """What stdout still holds, and cannot take, is not tried again as the process ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
