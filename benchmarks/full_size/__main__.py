"""``python -m benchmarks.full_size``: builds the networks (PyTorch is needed), measures them beside the peers."""

from __future__ import annotations

import pathlib
from typing import Any

import click

from benchmarks.asked import mean, ratio
from benchmarks.runtimes import installed
from benchmarks.turns import Job, run_job

FOLDER = "full_size"
LONGEST = 300.0
"""Seconds that a network may take."""


@click.group()
def main() -> None:
    """Twenty networks at the sizes that they are used at, beside other runtimes."""


@main.command()
@click.option("--folder", default=FOLDER, type=click.Path(path_type=pathlib.Path), show_default=True)
@click.argument("names", nargs=-1)
def build(folder: pathlib.Path, names: tuple[str, ...]) -> None:
    """Export the networks, or those named, that the folder lacks."""
    from benchmarks.full_size import networks  # an extra: pip install '.[models]'

    networks.build(folder, names, click.echo)


@main.command()
@click.option("--folder", default=FOLDER, type=click.Path(path_type=pathlib.Path), show_default=True)
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1))
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1), help="Turns of each runtime.")
@click.option("--target", default="llvm", show_default=True, help="As minitvm.build has it.")
@click.argument("names", nargs=-1)
def measure(folder: pathlib.Path, threads: int, rounds: int, target: str, names: tuple[str, ...]) -> None:
    """Times of runs in turns: the fastest peer's over minitvm's, the median of the rounds'."""
    ratios = []
    for path in sorted(folder.glob("*.onnx")):
        if not names or path.stem in names:
            found = run_job(Job(str(path), [threads], target, installed(), rounds, LONGEST), {}, 3 * LONGEST)
            times = found["runs"][0]["times"] if "runs" in found else {}
            ratios.append(ratio(times))
            click.echo(f"{path.stem:30} {ratios[-1]:5.2f}   {_milliseconds(times)}{_problems(found)}")
    if ratios:
        click.echo(f"\n{len(ratios)} networks: geometric mean {mean(ratios):.3f}, least {min(ratios):.2f}")


def _milliseconds(times: dict[str, Any]) -> str:
    return ", ".join(f"{name} {kinds['steady']['median']:.2f} ms" for name, kinds in times.items())


def _problems(found: dict[str, Any]) -> str:
    said = [f"{name}: {what}" for name, what in found.get("problems", {}).items()]
    return "".join(f"; {text}" for text in [*said, *([found["problem"]] if "problem" in found else [])])


if __name__ == "__main__":
    main()
