"""``python -m benchmarks.open_models``: builds the models (PyTorch is needed), measures them, says what came of it."""

from __future__ import annotations

import json
import pathlib
from dataclasses import asdict

import click

from benchmarks.open_models import measure as measuring
from benchmarks.open_models import own as own_kernels

_FOLDER = click.option(
    "--folder",
    default="open_models",
    type=click.Path(path_type=pathlib.Path),
    show_default=True,
    help="Where the models are.",
)
_NAMES = click.argument("names", nargs=-1)


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Which models with open dimensions are compiled once for all sizes, and why others not."""
    if context.invoked_subcommand is None:
        context.invoke(build)
        context.invoke(measure)


@main.command()
@_FOLDER
@_NAMES
def build(folder: pathlib.Path, names: tuple[str, ...]) -> None:
    """Export the models, or those named, that the folder lacks; large ones where they are named."""
    from benchmarks.open_models import exporting, large, models  # an extra: pip install '.[models]'

    exporting.build({**models.MODELS, **large.LARGE} if names else models.MODELS, folder, names, click.echo)


@main.command()
@_FOLDER
@click.option("--output", type=click.Path(path_type=pathlib.Path), help="Where figures go, as JSON.")
@_NAMES
def measure(folder: pathlib.Path, output: pathlib.Path | None, names: tuple[str, ...]) -> None:
    """Run all models of the folder, or those whose names begin so, beside onnxruntime."""
    found = measuring.measure(folder, names, click.echo)
    click.echo(f"\n{measuring.summary(found)}")
    if output is not None:
        output.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n", encoding="utf-8")


@main.command()
@_FOLDER
@click.option("--elsewhere", is_flag=True, help="Compile as the file's first sizes are, not those that are measured.")
@click.option("--parts", default=0, show_default=True, help="So many parts of each network that lose most time.")
@_NAMES
def own(folder: pathlib.Path, elsewhere: bool, parts: int, names: tuple[str, ...]) -> None:
    """Kernels for all sizes beside a size's own, of some twenty networks or those named in full."""
    found = []
    for name in names or own_kernels.NETWORKS:
        found.append(own_kernels.compared(folder / f"{name}.onnx", not elsewhere))
        click.echo("\n".join(filter(None, (own_kernels.line(found[-1]), own_kernels.slowest(found[-1], parts)))))
    click.echo(f"\n{own_kernels.summary(found)}")


if __name__ == "__main__":
    main()
