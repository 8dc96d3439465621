"""``minitvm demo``: photographs, an ImageNet model, and what the compiler did to it."""

from __future__ import annotations

import time
from importlib import resources
from pathlib import Path

import click
import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from minitvm.cli import building
from minitvm.cli.common import compiling, stdout, table
from minitvm.cli.options import PATH, command
from minitvm.driver import build
from minitvm.errors import InputError
from minitvm.frontend import from_onnx
from minitvm.passes import PassContext, PassLog
from minitvm.runtime.devices import cpu
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.library import Library
from minitvm.runtime.timing import timed

_DATA = resources.files("minitvm") / "demo_data"
_MODEL = "efficientnet_lite0.onnx"
_PHOTOGRAPHS = ("chelsea.png", "coffee.png", "astronaut.png", "rocket.jpg", "flower.jpg")
_RESIZED, _CROPPED = 256, 224


@command()
@click.argument("photographs", type=PATH, nargs=-1)
@building.opt_level
@building.threads()
def demo(photographs: tuple[Path, ...], opt_level: int, threads: int) -> None:
    """Classify PHOTOGRAPHS (by default five that are included) with EfficientNet-Lite0.

    Prints the five likeliest of ImageNet's 1000 classes for each, the time of every stage, and which passes changed
    the graph. The model and the photographs are part of the package; minitvm/demo_data/ATTRIBUTION.md says whose
    they are.

    \b
    Examples:
      minitvm demo
      minitvm demo my_cat.jpg
    """
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    with resources.as_file(_DATA / _MODEL) as path:
        module, params = from_onnx(path, {"image": (1, 3, _CROPPED, _CROPPED)})
    seconds["import"] = time.perf_counter() - start
    log = PassLog()
    with compiling("compiling EfficientNet-Lite0") as on_progress, PassContext(opt_level, instruments=[log]):
        library = build(module, "llvm", params, num_threads=threads or None, on_progress=on_progress)
    executor = GraphModule(library["default"](cpu(0), threads or None))
    labels = (_DATA / "imagenet_labels.txt").read_text(encoding="utf-8").splitlines()
    pictures = [(p.name, load_photograph(p)) for p in photographs] or [(name, _included(name)) for name in _PHOTOGRAPHS]
    runs = [_classify(executor, name, image, labels) for name, image in pictures]
    _print_stages(seconds, library, runs)
    _print_passes(log)


def load_photograph(path: Path) -> np.ndarray:
    """An image file as the model's input; :class:`InputError` where it is not one."""
    try:
        with Image.open(path) as image:
            return preprocess(image)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", hint="give the path of a photograph (PNG, JPEG, ...)") from None
    except (UnidentifiedImageError, OSError) as error:
        raise InputError(f"{path} is not an image that can be read: {error}", hint="PNG and JPEG are fine") from None


def _included(name: str) -> np.ndarray:
    with resources.as_file(_DATA / name) as path:
        return load_photograph(path)


def preprocess(image: Image.Image) -> np.ndarray:
    """The short side to 256 (bicubic), the centre 224 x 224, ``(pixel - 127) / 128``: (1, 3, 224, 224) float32, RGB."""
    rgb = as_seen(image)
    scale = _RESIZED / min(rgb.size)
    resized = rgb.resize((round(rgb.width * scale), round(rgb.height * scale)), Image.Resampling.BICUBIC)
    left, top = (resized.width - _CROPPED) // 2, (resized.height - _CROPPED) // 2
    cropped = resized.crop((left, top, left + _CROPPED, top + _CROPPED))
    pixels = (np.asarray(cropped, np.float32) - 127) / 128
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[np.newaxis])


def as_seen(image: Image.Image) -> Image.Image:
    """A picture in RGB, 8 bits a channel, as viewers show it: turned as its camera says (EXIF), 16 bits scaled to 8."""
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # one channel of 16 bits, or of 32 that hold 16: convert() cuts them off at 255
        values = np.clip(np.asarray(upright, np.int64), 0, 0xFFFF)
        upright = Image.fromarray(((values * 255 + 0x7FFF) // 0xFFFF).astype(np.uint8))
    return upright.convert("RGB")


def _classify(executor: GraphModule, name: str, image: np.ndarray, labels: list[str]) -> float:
    """Print one photograph's classes; the seconds that the model ran, the better of two runs."""
    seconds = min(timed(lambda: executor.run(image=image), 2))
    logits = executor.get_output(0).numpy()[0].astype(np.float64)
    probabilities = np.exp(logits - logits.max())
    probabilities /= probabilities.sum()
    stdout.print(f"[bold]{name}[/]  {seconds * 1e3:.1f} ms", markup=True)
    for index in np.argsort(-probabilities)[:5]:
        stdout.print(f"  {probabilities[index]:6.1%}  {labels[index]}")
    return seconds


def _print_stages(seconds: dict[str, float], library: Library, runs: list[float]) -> None:
    assert library.report is not None
    rows = table("stage", "seconds", title="compiling")
    for stage, value in {**seconds, **library.report.seconds}.items():
        rows.add_row(stage, f"{value:.3f}")
    stdout.print()
    stdout.print(rows)
    stdout.print("(stages of several kernels overlap)\n")
    kernels = len(library.function_metadata)
    cached = min(library.report.cache_hits, kernels)  # the hits count the graph's own entry too
    stdout.print(f"{kernels} kernels ({cached} from the cache); best run {min(runs) * 1e3:.1f} ms")


def _print_passes(log: PassLog) -> None:
    """What each pass did to the graph, in one line each; those that did nothing in one line together."""
    rows = table("pass", "ms", "operator calls", title="passes that changed the graph")
    single = [record for record in log.records if record.name not in ("FoldScaleAxis", "default_pipeline")]
    for record in single:
        if record.changed:
            before, after = record.calls_before, record.calls_after
            change = f"{before} -> {after}" if before != after else f"{before}, others"
            rows.add_row(record.name, f"{record.seconds * 1e3:.1f}", change)
    stdout.print()
    stdout.print(rows)
    changed = {record.name for record in single if record.changed}
    idle = dict.fromkeys(record.name for record in single if record.name not in changed)
    stdout.print(f"nothing to do for: {', '.join(idle)}")
