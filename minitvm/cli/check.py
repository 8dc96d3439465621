"""``minitvm check``: whether a model is compiled right, and who is wrong where it is not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from minitvm.cli import building, common
from minitvm.cli.common import say
from minitvm.cli.options import PATH, as_json, command, option
from minitvm.lab.check_all import PARTS, REDUCTION
from minitvm.lab.check_all import check as prove
from minitvm.lab.check_oracles import ORACLES
from minitvm.lab.check_result import Checked


@command()
@building.onnx_model
@option("--against", type=click.Choice(ORACLES), default="reference", help="Who knows the results.")
@option("--passes", is_flag=True, help="The module before and after every pass.")
@option("--kernels", is_flag=True, help="Every kernel beside its operators, on 1 to 3 threads.")
@option("--levels", is_flag=True, help="The whole model at all optimization levels.")
@option("--teams", is_flag=True, help="The whole model on 2 and 3 threads.")
@option("--use", type=PATH, help="A Python file to run first: its passes and rules are tried, too.")
@option("-o", "--output", type=PATH, help="Folder for a test file of everything that is found.")
@option(
    "--reduction",
    type=click.FloatRange(0),
    default=REDUCTION,
    help="Seconds for making one finding small; 0: not at all.",
)
@as_json
@building.compiles()
def check(
    model: Path,
    as_json: bool,
    against: str,
    use: Path | None,
    output: Path | None,
    reduction: float,
    teams: bool,
    chosen: building.Chosen,
    **parts: bool,
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
    common.output_folder(output)
    asked = [part for part, wanted in {**parts, "threads": teams}.items() if wanted]
    imported = ["import"] if against == "onnxruntime" else []
    found = prove(
        model,
        parts=[*imported, "model", *asked] if asked else PARTS,
        against=against,
        **{**chosen.of(model), "num_threads": chosen.threads or 1},
        opt_level=chosen.opt_level,
        use=use,
        output=output,
        reduction=reduction,
    )
    _say(found, model, as_json)
    sys.exit(0 if found.ok else 1)


def _say(found: Checked, model: Path, as_json: bool) -> None:
    if as_json:
        common.say_json(_form(found), model, found.ok)
    else:
        say(f"{model.name}, {found}")


def _form(found: Checked) -> dict[str, Any]:
    compared = [{"part": c.part, "what": c.what, "outcome": c.outcome.value, "said": c.said} for c in found.compared]
    findings = [
        {"part": f.part, "guilty": f.guilty, "message": f.message, "module": str(f.module), "file": f.path}
        for f in found.findings
    ]
    return {"compared": compared, "findings": findings, "seconds": found.seconds}
