"""``python -m benchmarks``: minitvm beside whichever of its peers are installed."""

from __future__ import annotations

import itertools
import json
import pathlib
import tempfile
import time
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import minitvm
from benchmarks import (
    cases,
    cold,
    costs,
    coverage,
    cuda_estimate,
    cuda_sim,
    decode,
    figures,
    launches,
    layers_report,
    made_models,
    memory,
    nvrtc,
    options,
    report,
    scale,
    shapes,
    start,
    tuned,
)
from benchmarks import files as traced
from benchmarks import layers as layer_sweep
from benchmarks import levels as ladder
from benchmarks import opening as openings
from benchmarks import primer as small
from benchmarks.cuda_check import constants
from benchmarks.cuda_check import figures as gpu_figures
from benchmarks.cuda_check.networks import NETWORKS as NETWORKS_TO_CHECK
from benchmarks.cuda_check.networks import SMALL
from benchmarks.cuda_check.networks import known as known_to_check
from benchmarks.cuda_check.run import SECONDS, Check
from benchmarks.cuda_check.run import Settings as CheckSettings
from benchmarks.cuda_check.sections import ALL, CALLS, SECTIONS
from benchmarks.layer_kinds import draw_layers, wanted_layers
from benchmarks.measure import Settings, benchmark
from benchmarks.onnx_models import NETWORKS, WORKLOADS
from benchmarks.runtimes import installed
from minitvm.errors import MiniTVMError


@click.group(
    invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.option(
    "--models", default=",".join((*cases.EIGHTEEN, *cases.real())), callback=options.models, help=options.MODELS
)
@click.option("--threads", default="1,2", callback=options.threads, help="Numbers of threads.")
@click.option(
    "--target", "targets", multiple=True, default=["llvm"], callback=options.target, help="Targets; give it again."
)
@click.option("--peers", default=",".join(installed()[1:]), callback=options.runtimes, help="Runtimes beside minitvm.")
@click.option("--rounds", default=15, type=click.IntRange(1), help="Turns of each runtime, if time allows.")
@click.option("--minutes", default=15.0, type=click.FloatRange(0, min_open=True), help="Time for everything.")
@click.option("--accuracy/--no-accuracy", default=True, help="Errors against float64.")
@click.option("--output", default="benchmark.json", type=options.PATH, help="Where figures go.")
@click.option("--plot", type=options.PATH, help="Where a picture goes.")
@click.pass_context
def main(
    context: click.Context, /, output: pathlib.Path, plot: pathlib.Path | None, peers: list[str], **given: Any
) -> None:
    """Time models with minitvm and its peers, side by side; print tables, write JSON and a plot.

    \b
    Examples:
      python -m benchmarks
      python -m benchmarks --target llvm --target "llvm -mcpu=haswell" --minutes 25
      python -m benchmarks --models resnet18,model.onnx --threads 1 --no-accuracy
      python -m benchmarks layers --help
    """
    if context.invoked_subcommand is not None:
        return
    result = _measured(Settings(**given, runtimes=peers))
    report.show(result, _console())
    report.write_json(result, output)
    if plot is not None:
        report.plot(result, plot)


def _measured(settings: Settings) -> dict[str, Any]:
    """The networks' times; the bar is full when the time is over, if not before."""
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=_errors) as progress:
        most = f"of at most {settings.minutes:g} minutes: "
        task, begun = progress.add_task(most, total=60 * settings.minutes), time.perf_counter()
        return benchmark(
            settings, lambda text: progress.update(task, completed=time.perf_counter() - begun, description=most + text)
        )


def _console(width: int = 140) -> Console:
    return Console(width=None if Console().is_terminal else width, highlight=False)


_errors = Console(stderr=True, highlight=False)


@main.command()
@click.option(
    "--models", default="resnet18,mobilenet_v2,bert_base_4layers_s128", callback=options.models, help=options.MODELS
)
@click.option("--peers", default=",".join(installed()[1:]), callback=options.runtimes, help="Runtimes beside minitvm.")
@click.option("--output", default="opening.json", type=options.PATH, help="Where figures go.")
def opening(models: list[str], peers: list[str], output: pathlib.Path) -> None:
    """Opening models and memory in fresh processes; and imports, a graph of thousands of calls, a small model's run."""
    result = openings.measure_opening(models, peers, _errors.print)
    openings.show_opening(result, _console())
    report.write_json(result, output)


@main.command("figures")
@click.option(
    "--sections", default=",".join(figures.SECTIONS), callback=options.of([*figures.SECTIONS]), help="What to do."
)
@click.option(
    "--target", "targets", multiple=True, default=["llvm"], callback=options.target, help="Targets; give it again."
)
@click.option("--minutes", default=15.0, type=click.FloatRange(0, min_open=True), help="Time for the networks.")
@click.option("--output", default="figures.json", type=options.PATH, help="Where figures go; what is in it stays.")
@click.option("--write", is_flag=True, help="Put them into docs/benchmark.md.")
def figures_asked(
    sections: list[str], targets: tuple[str, ...], minutes: float, output: pathlib.Path, write: bool
) -> None:
    """Every figure that is asked for: networks, 300 layers, threads, threads in company, compile time, memory.

    Sections are kept in the file as they are measured; those left out are taken from it.

    \b
    Examples:
      python -m benchmarks figures --target llvm --target "llvm -mcpu=haswell" --minutes 25
      python -m benchmarks figures --sections compile,memory
    """
    plan = figures.Plan(targets, minutes)
    with Progress(TextColumn("{task.description}"), TimeElapsedColumn(), console=_errors, transient=True) as progress:
        task = progress.add_task("", total=None)
        result = figures.measure_figures(plan, sections, output, lambda text: progress.update(task, description=text))
    figures.show_all(result, _console(160))
    if write:
        figures.write(result)


@main.command()
@click.option("--count", default=300, type=click.IntRange(1), help="How many layers.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Other layers for another seed.")
@click.option("--threads", default=1, type=click.IntRange(1), help="Threads of both runtimes.")
@click.option("--levels", default="2,3", callback=options.levels, help="Optimization levels.")
@click.option("--only", default="", callback=options.kinds, help="Kinds, or single layers by name: conv,dense/3.")
@click.option("--target", default="llvm", help="Target of minitvm, such as 'llvm -mcpu=haswell'.")
@click.option("--rounds", default=12, type=click.IntRange(1), help="Turns of each runtime.")
@click.option("--output", default="layers.json", type=options.PATH, help="Where figures go.")
def layers(
    count: int,
    seed: int,
    threads: int,
    levels: list[int],
    only: list[str],
    target: str,
    rounds: int,
    output: pathlib.Path,
) -> None:
    """Time random single layers beside onnxruntime; print ratios by kind and the worst with what was chosen for them.

    \b
    Examples:
      python -m benchmarks layers
      python -m benchmarks layers --only conv,depthwise --count 40 --levels 3
      python -m benchmarks layers --only conv/17,dense/3
    """
    wanted = wanted_layers(count, only)
    settings = layer_sweep.Settings(levels, threads, rounds, target)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("layers", total=len(wanted))
        result = layer_sweep.sweep(
            draw_layers(wanted, seed),
            settings,
            lambda found: progress.update(task, advance=1, description=found["name"].ljust(18)),
        )
    result["settings"]["seed"] = seed
    layers_report.show_layers(result, _console())
    report.write_json(result, output)


@main.command()
@click.option("--models", default=",".join(WORKLOADS), callback=options.models, help=options.MODELS)
@click.option("--threads", default=1, type=click.IntRange(1), help="Threads of every level.")
@click.option("--rounds", default=5, type=click.IntRange(1), help="Turns of each level.")
@click.option("--output", default="levels.json", type=options.PATH, help="Where figures go.")
def levels(models: list[str], threads: int, rounds: int, output: pathlib.Path) -> None:
    """Time models at optimization levels 0 to 3, side by side.

    \b
    Examples:
      python -m benchmarks levels
      python -m benchmarks levels --models resnet18 --threads 2
    """
    result = ladder.measure_levels(models, threads, rounds)
    ladder.show_levels(result, _console())
    report.write_json({"models": result}, output)


@main.command("coverage")
@click.option("--open", "opened", is_flag=True, help="Take all dimensions of inputs away, and count only.")
def onnx_coverage(opened: bool) -> None:
    """Run every backend test of the installed onnx and write docs/coverage.md; name what became worse."""
    coverage.Watched.opened = opened
    columns = TextColumn("ONNX's tests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        found = coverage.run_all(lambda done, total: progress.update(task, completed=done, total=total))
    if opened:
        counts = coverage.write_opened(found)
        Console(highlight=False).print(", ".join(f"{count:,} {kind}" for kind, count in counts.items()))
        return
    lost = coverage.worse(coverage.recorded(), found) if coverage.RECORD.exists() else []
    coverage.write(found, coverage.peers())
    passed = sum(o.kind in coverage.PASSED for o in found.values())
    Console(highlight=False).print(f"{passed:,} of {len(found):,} pass", *lost, sep="\n", soft_wrap=True)


@main.command("made")
def made_by_tools() -> None:
    """Run small networks as ONNX Runtime's tools quantize and optimize them; write docs/made-models.md."""
    pairs = [(name, tool) for tool in made_models.TOOLS for name in made_models.NETWORKS]
    found = {pair: made_models.outcome(*pair) for pair in pairs}
    made_models.PAGE.write_text(made_models.page(found), encoding="utf-8")
    click.echo(f"{sum(not o.error for o in found.values())} of {len(found)} are right")


@main.command("cuda-sim")
@click.option("--models", default="", callback=options.split, help="Names of models; all by default.")
@click.option("--orders", default="forward,reverse,random", callback=options.split, help="In which threads run.")
@click.option("--arch", default="sm_90", help="Architecture to make kernels for.")
@click.option("--precision", default="float32", type=click.Choice([*cuda_sim.PRECISIONS]), help="Of their products.")
def simulated_cuda(models: list[str], orders: list[str], arch: str, precision: str) -> None:
    """Run whole models as CUDA C on the CPU; print how far they are from onnxruntime."""
    found = []
    for one in cuda_sim.outcomes(models or list(cuda_sim.models()), orders, arch, precision):
        click.echo(f"{one.model} {one.order} {one.error:.1e} {one.seconds:.1f} s")
        found.append(one)
    cuda_sim.show(found, _console())


@main.command("cuda-estimate")
@click.option("--models", default="", callback=options.of([*NETWORKS_TO_CHECK, *SMALL]), help="Names; all by default.")
@click.option("--kernels", default=0, type=click.IntRange(0), help="Of each network, those that take longest.")
def estimated_times(models: list[str], kernels: int) -> None:
    """What networks take on a GPU as their machine code says, beside their floors.  Ratios mean something, times less.

    Needs NVRTC and nvdisasm, but no GPU; all networks take some minutes where no kernel is in the cache.
    """
    click.echo(cuda_estimate.HEAD)
    try:
        for found in cuda_estimate.estimates(models):
            click.echo(found.row())
            for name, seconds in itertools.islice(found.kernels.items(), kernels):
                click.echo(f"  {seconds * 1e6:8.1f} us {name}", err=True)
    except MiniTVMError as error:
        raise click.ClickException(str(error)) from error


@main.command("cuda-check")
@click.option("--models", default="", callback=options.of(known_to_check()), help="Names; all by default.")
@click.option("--sections", default=",".join(ALL), callback=options.of([*SECTIONS]), help="What to do.")
@click.option("--call", type=click.Choice([*CALLS]), help="The sections of one of four calls.")
@click.option("--seconds", default=SECONDS, type=click.IntRange(10), help="For all sections together.")
@click.option("--batch", default=32, type=click.IntRange(2), help="The large batch.")
@click.option("--rounds", default=12, type=click.IntRange(1), help="Turns of each way to run.")
@click.option("--out", default="cuda-check", type=options.PATH, help="The folder for all files.")
@click.option("--stand-in", is_flag=True, help="Without a GPU: small networks on a stand-in for its driver.")
@click.option("--write", is_flag=True, help="Put a GPU's figures into docs/benchmark.md.")
def check_of_gpu(
    models: list[str],
    sections: list[str],
    call: str | None,
    seconds: int,
    batch: int,
    rounds: int,
    out: pathlib.Path,
    stand_in: bool,
    write: bool,
) -> None:
    """Run everything on a GPU: correctness, speeds beside PyTorch's, every kernel beside its floor, compile times.

    Figures are written after every job; a job that fails or takes too long says so, and the others run.

    \b
    Examples:
      python -m benchmarks cuda-check
      python -m benchmarks cuda-check --call contact --out results
      python -m benchmarks cuda-check --models resnet50 --sections speed,roofline
      python -m benchmarks cuda-check --stand-in
    """
    if write and stand_in:
        raise click.UsageError("times on the stand-in are no figures: --write needs a GPU")
    say = Console(stderr=True, highlight=False).print
    settings = CheckSettings(models, CALLS[call] if call else sections, seconds, batch, rounds, stand_in)
    try:
        found = Check(settings, out, say).run()
    except MiniTVMError as error:
        raise click.ClickException(str(error)) from error
    gpu_figures.show(found, _console(160))
    with (out / "tables.txt").open("w", encoding="utf-8") as file:
        gpu_figures.show(found, Console(file=file, width=160))
    if write:
        gpu_figures.write(found)
    if wrong := gpu_figures.wrong(found):
        raise click.ClickException(f"wrong results: {', '.join(wrong)}")


@main.command("cuda-calibrate")
@click.argument("path", type=options.PATH)
@click.option("--write", is_flag=True, help="Put the figures into codegen/cuda/machine.py.")
def calibrate(path: pathlib.Path, write: bool) -> None:
    """Make the constants that templates count with of a run's calibration (cuda-check's check.json)."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        found = constants.seen_of(result)
        text, before = constants.replaced(constants.TABLE.read_text(encoding="utf-8"), result["device"]["arch"], found)
    except (OSError, ValueError, MiniTVMError) as error:
        raise click.ClickException(str(error)) from error
    for row in (("", "before", "after"), *constants.table(before, found)):
        click.echo("{:20} {:>14} {:>14}".format(*row))
    if write:
        constants.TABLE.write_text(text, encoding="utf-8")


@main.command("nvrtc")
@click.option(
    "--models", default="resnet18,bert_base_4layers_s128", callback=options.models, help="Names, or .onnx files."
)
@click.option("--archs", default="sm_80,sm_90", callback=options.split, help="Architectures.")
@click.option("--write", is_flag=True, help=f"Write {nvrtc.PAGE.name}.")
def gpu_resources(models: list[str], archs: list[str], write: bool) -> None:
    """Registers, spills, shared memory and occupancy of models' CUDA kernels, by NVRTC."""
    found = {(model, arch): list(nvrtc.model_needs(model, arch)) for model in models for arch in archs}
    for (model, arch), rows in found.items():
        nvrtc.show(f"{model}, {arch}", rows, _console(160))
    if write:
        nvrtc.PAGE.write_text(nvrtc.page(found), encoding="utf-8")


@main.command("tuned")
@click.option("--trials", default="trials.jsonl", type=options.PATH, help="File to go on with.")
@click.option("--budget", default=600.0, show_default=True, help="Seconds for a network on a GPU.")
@click.option("-n", "--most", default=4, show_default=True, help="Ways to try for a kernel.")
@click.option("--missing", is_flag=True, help="Only kernels for which no record that ships names a way.")
def tuned_records(trials: pathlib.Path, budget: float, most: int, missing: bool) -> None:
    """Tune common networks for common GPUs, and write the records that ship."""
    tuned.try_all(trials, budget, most, missing)
    print(f"{tuned.ship(trials, missing)} records")


@main.command("costs")
@click.option("--tries", default=15, type=click.IntRange(1), help="Of each loop, of which the least counts.")
@click.option("--write", type=options.PATH, help="The table's file, or a copy, whose figures are replaced.")
def cpu_figures(tries: int, write: pathlib.Path | None) -> None:
    """Measure what the cost table of CPUs says, as far as a loop by itself shows it; write the table anew."""
    found = costs.measured(tries)
    costs.show(found, _console())
    if write is not None:
        costs.write(found, write)


@main.command()
def files() -> None:
    """Name the files whose functions run for a convolution with batch norm and rectifier, and count their lines."""
    traced.show(traced.functions_by_stage(), Console(width=140, highlight=False))


@main.command()
@click.option("--models", default="resnet18", callback=options.models, help=options.MODELS)
@click.option("--tries", default=10, type=click.IntRange(1), help="Fresh processes, of which the least counts.")
def load(models: list[str], tries: int) -> None:
    """CPU seconds to import minitvm.runtime and to load saved models, each in a fresh process."""
    for name in models:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.mtvm"
            minitvm.compile(NETWORKS[name].build() if name in NETWORKS else name, num_threads=1).save(path)
            imported, loaded = scale.load_seconds(path, tries)
            megabytes = path.stat().st_size / 1e6
        click.echo(
            f"{name} ({megabytes:.0f} MB): import {imported:.3f} + load {loaded:.3f} = {imported + loaded:.3f} s"
        )


@main.command("start")
@click.option(
    "--models",
    default=f"resnet50,{start.DECODER}",
    callback=options.models_and(start.DECODER),
    help=f"{options.MODELS} Or {start.DECODER}.",
)
@click.option("--threads", default="1", callback=options.threads, help="Numbers of threads.")
@click.option("--tries", default=5, type=click.IntRange(1), help="Later processes, of each runtime.")
def first_results(models: list[str], threads: list[int], tries: int) -> None:
    """CPU seconds until a process has its first result: the first that opens a model, and later ones."""
    for found in start.starts(models, threads, tries):
        click.echo(found)


@main.command("cold")
@click.option(
    "--models", default=f"{cold.ONE},resnet50,densenet121", callback=options.models_and(cold.ONE), help=options.MODELS
)
@click.option("--tries", default=3, type=click.IntRange(1), help="Processes, of which the least counts.")
@click.option("--against", type=click.Path(exists=True, path_type=pathlib.Path), help="Another tree, in turns.")
def cold_compilations(models: list[str], tries: int, against: pathlib.Path | None) -> None:
    """CPU seconds of a process to a model's first result, its kernel cache empty."""
    found = []
    for one in cold.measured(models, tries, against):
        found.append(one)
        click.echo(one)
    click.echo(cold.mean(found))


@main.command("memory")
def memory_of_large_models() -> None:
    """Peak memory of a session over models of 300 MB (as float32) that meet five batch sizes, over the model's file."""
    for peak in memory.peaks():
        click.echo(peak)


@main.command("decode")
@click.option("--threads", default="1,2", callback=options.threads, help="Numbers of threads.")
@click.option("--prompt", default=128, type=click.IntRange(1), show_default=True, help="Tokens of the prompt.")
@click.option("--room", default=0, type=click.IntRange(0), help="Places of caches changed in place; 0: they grow.")
def decode_tokens(threads: list[int], prompt: int, room: int) -> None:
    """A decoder's prompts and steps behind a growing cache, or one that is changed in place, beside onnxruntime and
    openvino, and beside a loop that only reads as many bytes as it has weights."""
    if 0 < room < prompt + decode.STEPS:
        raise click.BadParameter(f"{room} places are less than {prompt} and {decode.STEPS} steps", param_hint="--room")
    for found in decode.decodings(threads, prompt, room):
        click.echo(found)


@main.command("shapes")
@click.option(
    "--models", default=str(cases.FOLDER / "all_minilm_l6_v2_int8w.onnx"), callback=options.models, help="Files."
)
def meet_new_shapes(models: list[str]) -> None:
    """The slowest call of a session that meets 40 new lengths of text, from one thread and from eight at once."""
    for name in models:
        for found in shapes.calls(name):
            click.echo(found)


@main.command("launches")
@click.option("--models", default="resnet18", callback=options.models, help=options.MODELS)
def python_of_launches(models: list[str]) -> None:
    """Microseconds that Python takes for a run on a GPU, on a stand-in for its driver whose kernels do nothing."""
    for name in models:
        found = launches.python_seconds(name)
        kernels = found.pop("kernels")
        ways = ", ".join(f"{way} {seconds * 1e6:.1f} us" for way, seconds in found.items())
        click.echo(f"{name} ({kernels:.0f} kernels): {ways}")


@main.command("primer")
@click.option("--rounds", default=30, type=click.IntRange(1), help="Turns of each.")
def primer_beside_the_real_one(rounds: int) -> None:
    """Time minitvm/primer.py, the compiler in one file, beside the real compiler on one thread."""
    click.echo("| network | primer | minitvm | ratio | the primer compiles in |")
    click.echo("|---|---|---|---|---|")
    for row in small.rows(rounds):
        click.echo(row)


@main.command("torch")
@click.option("--threads", default="1,2", callback=options.threads, help="Numbers of threads.")
@click.option("--rounds", default=10, type=click.IntRange(1), help="Turns of each.")
@click.option("--only", help="Networks, with commas.")
def torch_command(threads: list[int], rounds: int, only: str | None) -> None:
    """torch.compile with minitvm as its back end, beside inductor and PyTorch without a compiler, on six networks."""
    from benchmarks import torch_compile  # an extra: pip install torch onnxscript

    names = only.split(",") if only else [name for name in torch_compile.NETWORKS if name != "recurrent"]
    click.echo("| network | threads | minitvm ms | inductor ms | eager ms | inductor/minitvm | first runs s | error |")
    click.echo("|---|---|---|---|---|---|---|---|")
    for count in threads:
        for row in torch_compile.rows(count, rounds, names):
            times = " | ".join(f"{1e3 * row.seconds[way]:.2f}" for way in ("minitvm", "inductor", "eager"))
            first = ", ".join(f"{row.first[way]:.1f}" for way in ("minitvm", "inductor"))
            ratio = row.seconds["inductor"] / row.seconds["minitvm"]
            click.echo(f"| {row.network} | {count} | {times} | {ratio:.2f} | {first} | {row.error:.1e} |")


if __name__ == "__main__":
    main()
