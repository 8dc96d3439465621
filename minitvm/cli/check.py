"""``minitvm check``: whether a model is compiled right, and who is wrong where it is not."""

from __future__ import annotations

import pathlib
import sys

import click

from minitvm.cli import common
from minitvm.cli.common import PATH, say
from minitvm.errors import UnknownValueError
from minitvm.lab.check_all import PARTS, REDUCTION
from minitvm.lab.check_all import check as prove
from minitvm.lab.check_oracles import ORACLES


@click.command()
@common.model
@click.option(
    "--against", type=click.Choice(ORACLES), default="reference", show_default=True, help="Who knows the results."
)
@click.option("--passes", is_flag=True, help="The module before and after every pass.")
@click.option("--kernels", is_flag=True, help="Every kernel beside its operators, on 1 to 3 threads.")
@click.option("--levels", is_flag=True, help="The whole model at all optimization levels.")
@click.option("--teams", is_flag=True, help="The whole model on 2 and 3 threads.")
@click.option("--use", type=PATH, help="A Python file to run first: its passes and rules are tried, too.")
@click.option("-o", "--output", type=PATH, help="Folder for a test file of everything that is found.")
@click.option(
    "--reduction", default=REDUCTION, show_default=True, help="Seconds for making one finding small; 0: not at all."
)
@common.compiles
def check(
    model: pathlib.Path,
    against: str,
    passes: bool,
    kernels: bool,
    levels: bool,
    teams: bool,
    use: pathlib.Path | None,
    output: pathlib.Path | None,
    reduction: float,
    chosen: common.Chosen,
) -> None:
    """Compare MODEL (.onnx), compiled, with what its operators mean, on inputs that tell operators apart: small, huge,
    zeros, NaN, infinity, the ends of every integer's range.

    Whatever differs is traced to a pass and a rule, or to a kernel, and cut down to the smallest module that shows
    it.  Without --passes, --kernels, --levels or --teams: all of them.  The exit status is 1 where something differs.

    \b
    Examples:
      minitvm check resnet18.onnx
      minitvm check resnet18.onnx --kernels --target 'llvm -mcpu=skylake-avx512'
      minitvm check resnet18.onnx --against onnxruntime --levels
      minitvm check resnet18.onnx --use my_passes.py -o found
    """
    common.require_model(model)
    asked = {"passes": passes, "kernels": kernels, "levels": levels, "threads": teams}
    imported = ["import"] if against == "onnxruntime" else []
    parts = [*imported, "model", *(part for part, wanted in asked.items() if wanted)] if any(asked.values()) else PARTS
    try:
        found = prove(
            model,
            parts=parts,
            against=against,
            shape_dict=common.completed(model, chosen.shapes),
            value_dict=common.as_declared(model, chosen.values),
            use=use,
            output=output,
            reduction=reduction,
            target=chosen.target,
            opt_level=chosen.opt_level,
            num_threads=chosen.threads or 1,
        )
    except UnknownValueError as error:
        raise common._with_option(error) from None
    say(f"{model.name}, {found}")
    sys.exit(0 if found.ok else 1)
