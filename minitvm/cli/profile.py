"""``minitvm profile``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from minitvm.cli import building, common
from minitvm.cli.common import say
from minitvm.cli.options import PATH, as_json, command, option
from minitvm.lab.profiling import Profile, profile_module
from minitvm.runtime.executor import GraphModule


@command()
@building.model
@building.inputs
@option("-n", "--repeats", type=click.IntRange(1), default=20, help="Runs that are counted.")
@option("--warmup", type=click.IntRange(0), default=3, help="Runs before that are not.")
@option("--top", type=click.IntRange(1), excludes=("--json",), help="Print the N kernels that take longest.")
@option("--trace", type=PATH, help="File for the threads' timeline, as Perfetto and Chrome read it.")
@as_json
@building.seed()
@building.device
@building.compiles()
@building.trusted_keys
def profile(
    model: Path,
    inputs: Path | None,
    repeats: int,
    warmup: int,
    top: int | None,
    trace: Path | None,
    as_json: bool,
    seed: int,
    device: int,
    chosen: building.Chosen,
) -> None:
    """Say where the time of a run of MODEL (.onnx, or a compiled library) goes: a line for each kernel, the longest
    first.

    Kernels run together, on all threads, as in any run; each has a clock beside it. "us" is how much later a run is
    done with the kernel than with what came before it, the median of all counted runs; what is done once (memory,
    threads that wake) is in none of them. "predicted" is what templates are chosen by, with this machine's measured
    rates; "of peak" and "of bandwidth" are its operations and bytes a second over what the machine does at most;
    "waits" is the share of all threads' time that is spent waiting for others.

    \b
    Examples:
      minitvm profile resnet18.onnx --threads 2
      minitvm profile resnet18.mtvm --top 10 --trace trace.json
      minitvm profile bert.onnx --shape ids:1x128 --json > bert.json
    """
    if trace is not None:
        common.output(trace, model, inputs)
    library, feeds = chosen.opened(model, inputs)
    module, given = chosen.executor(library, feeds, seed, device)
    found = measured(module, given, model.name, repeats, warmup)
    if trace is not None:
        found.save_trace(trace)
    if as_json:
        common.say_json(found.form, model)
    else:
        say(found.text(top))


def measured(module: GraphModule, feeds: Mapping[str, Any], title: str, repeats: int, warmup: int = 3) -> Profile:
    """A module's profile, measured under a bar that counts runs."""
    with common.compiling("measuring") as progress:
        return profile_module(module, feeds, title, repeats, warmup, progress)
