"""``minitvm explain``."""

from __future__ import annotations

from pathlib import Path

import click

from minitvm.cli import building
from minitvm.cli.common import say
from minitvm.cli.options import command, option
from minitvm.lab.explanation import explain as explained


@command()
@building.onnx_model
@option("--kernel", metavar="KERNEL", help="Why a kernel is as it is.")
@option("--node", metavar="NODE", excludes=("--kernel",), help="What became of a node of the model.")
@option(
    "--pass",
    "pass_name",
    metavar="PASS",
    excludes=("--kernel", "--node"),
    help="What a pass did and declined; PASS#2: in its second run.",
)
@building.compiles()
def explain(model: Path, kernel: str | None, node: str | None, pass_name: str | None, chosen: building.Chosen) -> None:
    """Say why a kernel, a node or a pass's result of MODEL (.onnx) is as it is: what was fused and what not, which
    template writes the loops and why the faster ones were declined, which layout results have, what was folded.

    One of --kernel, --node and --pass; '*' stands for anything.

    \b
    Examples:
      minitvm explain resnet18.onnx --node resnetv15_conv0_fwd
      minitvm explain resnet18.onnx --kernel 'fused_nn_dense*'
      minitvm explain resnet18.onnx --pass FoldConstant#2
    """
    if (kernel, node, pass_name) == (None, None, None):
        raise click.UsageError("give one of --kernel, --node and --pass")
    library = chosen.library(model, trace=pass_name is not None)
    say(str(explained(library, kernel=kernel, node=node, pass_name=pass_name)))
