"""The command line: ``minitvm demo | compile | tune | run | bench | show | info``."""

import sys
import warnings

import click

from minitvm.cli.common import stderr
from minitvm.cli.demo import demo
from minitvm.cli.run import bench, compile_command, run, tune
from minitvm.cli.show import info, show
from minitvm.config import version
from minitvm.errors import MiniTVMError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
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
      minitvm show model.onnx               read what each pass and each kernel became

    \b
    Every command explains itself: minitvm COMMAND --help.
    Environment variables (threads, kernel cache, checks): docs/environment.md.
    """


for command in (demo, compile_command, tune, run, bench, show, info):
    cli.add_command(command)


def _complain(text: str) -> None:
    """Text on stderr: wrapped between words on a terminal, never in a file."""
    stderr.print(text, markup=False, highlight=False, soft_wrap=not stderr.is_terminal)


def _warn(message: Warning | str) -> None:
    stderr.print("[yellow]warning:[/] ", end="")
    _complain(str(message))


def main() -> None:
    """The console script: errors a user can mend are printed, without a traceback; exit status 1."""
    warnings.showwarning = lambda message, *_: _warn(message)
    try:
        cli(prog_name="minitvm")
    except MiniTVMError as error:
        stderr.print("[bold red]error:[/] ", end="")
        _complain(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
