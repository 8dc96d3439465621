"""``python -m tests.quantize.photographs``: EfficientNet-Lite0 quantized, on the demo's photographs.

For each way to calibrate: how many of the five photographs keep their likeliest class, how many of the five likeliest
classes of each stay, and the cosine between the results and those in floats.  Calibrated on the photographs themselves.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import numpy as np

import minitvm
from minitvm import relay
from minitvm.cli import demo
from minitvm.frontend import from_onnx
from minitvm.ir.expr import Module

WAYS: dict[str, dict[str, Any]] = {
    "global_scale=8, power2": {},
    "percentile, max": {"calibrate_mode": "percentile", "weight_scale": "max"},
    "kl_divergence, power2": {"calibrate_mode": "kl_divergence"},
    "kl_divergence, max": {"calibrate_mode": "kl_divergence", "weight_scale": "max"},
}


def pictures() -> list[np.ndarray]:
    return [demo._included(name) for name in demo._PHOTOGRAPHS]


def network() -> tuple[Module, dict[str, Any]]:
    with resources.as_file(demo._DATA / demo._MODEL) as path:
        return from_onnx(path, {"image": (1, 3, 224, 224)})


def results(module: Module, params: Any) -> np.ndarray:
    """The network's results, a row for each photograph."""
    library = minitvm.build(module, "llvm", params)
    return np.concatenate([library.run({"image": picture})[0] for picture in pictures()])


def kept(plain: np.ndarray, found: np.ndarray) -> tuple[int, int, list[float]]:
    """First classes that are the same, classes among the first five, and cosines."""
    best, others = (np.argsort(-rows, axis=1)[:, :5] for rows in (plain, found))
    cosines = (plain * found).sum(1) / np.linalg.norm(plain, axis=1) / np.linalg.norm(found, axis=1)
    shared = sum(len({*a} & {*b}) for a, b in zip(best.tolist(), others.tolist(), strict=True))
    return int((best[:, 0] == others[:, 0]).sum()), shared, [round(float(c), 3) for c in cosines]


def quantized(module: Module, params: Any, **options: Any) -> Module:
    with relay.quantize.qconfig(**options):
        made: Module = relay.quantize.quantize(module, params, [{"image": picture} for picture in pictures()])
    return made


def main() -> None:
    """Prints the table."""
    module, params = network()
    plain = results(module, params)
    print("| calibrated by | first class kept, of 5 | of the first five, of 25 | cosine |\n|---|---|---|---|")
    for name, options in WAYS.items():
        print("| {} | {} | {} | {} |".format(name, *kept(plain, results(quantized(module, params, **options), {}))))


if __name__ == "__main__":
    main()
