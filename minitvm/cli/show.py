"""``minitvm show``: any stage of a model's compilation, as text."""

from __future__ import annotations

import pathlib

import click

from minitvm.cli import options
from minitvm.cli.console import say
from minitvm.codegen.backend import stages
from minitvm.driver import BuildReport, PassStep
from minitvm.errors import ConfigError
from minitvm.passes.manager import closest

_STAGES = ("graph", "plain", "loops", *stages())


@click.command()
@options.model
@click.option("--after", metavar="PASS", help="The graph after the (last run of the) pass; 'list' names the passes.")
@click.option("--before", metavar="PASS", help="The graph before the (first run of the) pass.")
@click.option("--stage", type=click.Choice(_STAGES), default="graph", show_default=True, help="What to print.")
@click.option("--kernel", metavar="NAME", help="One kernel only; 'list' names them with nodes and templates.")
@click.option("--why", metavar="NODE", help="What was decided about a node of the model, or a kernel; '*' for all.")
@click.option("--constants", is_flag=True, help="Name large constants instead of leaving them out.")
@options.compiles
def show(
    model: pathlib.Path,
    after: str | None,
    before: str | None,
    stage: str,
    kernel: str | None,
    why: str | None,
    constants: bool,
    chosen: options.Chosen,
) -> None:
    """Print MODEL (.onnx) at one stage of its way: the graph, or kernels as loops (plain: before any
    schedule), LLVM IR, assembly or CUDA C.

    Without options: the graph after all passes, every fused group a local function.

    \b
    Examples:
      minitvm show resnet18.onnx --after list
      minitvm show resnet18.onnx --after FoldScaleAxis
      minitvm show resnet18.onnx --kernel list
      minitvm show resnet18.onnx --stage loops --kernel fused_nn_conv2d_add_nn_relu
      minitvm show resnet18.onnx --why resnetv15_conv0_fwd
    """
    if model.suffix == options.SUFFIX:
        raise ConfigError("a library keeps its code, not the way to it", hint="show the .onnx file it was made from")
    library = chosen.library(model, trace=True)
    report = library.report
    assert report is not None
    if after == "list" or before == "list":
        _list_passes(report)
    elif kernel == "list":
        _list_kernels(report)
    elif why:
        _why(report, why)
    elif after or before:
        step = _step(report, after or before or "", first=after is None)
        say((step.after if after else step.before).astext(show_meta_data=constants))
    elif stage == "graph" and kernel is None:
        assert report.module is not None
        say(report.module.astext(show_meta_data=constants))
    else:
        for name in [kernel] if kernel else list(report.groups):
            say(_kernel(report, name, stage))


def _kernel(report: BuildReport, name: str, stage: str) -> str:
    found = report.kernel(name)
    return str(found.group) if stage == "graph" else found.text(stage)


def _why(report: BuildReport, name: str) -> None:
    for stage, decided in report.why(name).items():
        say("\n  ".join([stage, *map(str, decided)]))


def _list_passes(report: BuildReport) -> None:
    for step in report.steps:
        say(f"{step.name}{'' if step.after is not step.before else '  (unchanged)'}")


def _list_kernels(report: BuildReport) -> None:
    for name, nodes in report.nodes.items():
        kernel = report.kernel(name)
        say(f"{name}  {', '.join(nodes)}  ({kernel.template}), {kernel.cost}")


def _step(report: BuildReport, name: str, first: bool) -> PassStep:
    found = [step for step in report.steps if step.name == name]
    if not found:
        known = dict.fromkeys(step.name for step in report.steps)
        raise ConfigError(f"no pass {name!r} ran", hint=closest(name, list(known)))
    return found[0 if first else -1]
