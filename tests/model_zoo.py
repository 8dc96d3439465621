"""The pretrained models beside the repository, their feeds, and how close their outputs must be.

``python tests/model_zoo.py`` prints the largest error of every model.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minitvm import InferenceSession
from minitvm.driver import HostCallWarning

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("MINITVM_SHARED", ROOT.parent / "shared"))
FOLDER = SHARED / "models"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.onnx")))
ABSENT = "pretrained models lie in ../shared/models, which is absent"

RTOL, ATOL = 1e-4, 1e-5
SELF = {
    "all_minilm_l6_v2_int8w": 2e-6,
    "blazeface_back_256": 5e-4,
    "efficientnet_lite0": 7e-6,
    "magika_standard_v3_3": 9e-7,
    "mtcnn_onet": 1e-6,
    "mtcnn_pnet": 1e-6,
    "mtcnn_rnet": 1e-6,
    "ppocrv4_det": 1e-5,
    "silero_vad": 1e-6,
}
"""How far ONNX Runtime is from itself with its optimisations off, absolute: no tolerance is tighter."""
TOP1 = {"efficientnet_lite0_int8_qdq"}
"""Quantized networks: rounding may differ, the class may not."""

Arrays = dict[str, np.ndarray]


def feeds(name: str) -> Iterator[tuple[Arrays, Arrays]]:
    """Each feed of a model with the outputs that ONNX Runtime gave for it, by name."""
    with np.load(FOLDER / f"{name}.npz") as arrays:
        stored = {key: arrays[key] for key in arrays.files}
    for number in sorted({int(key[2 : key.index(".")]) for key in stored if key.startswith("in")}):
        yield _named(stored, f"in{number}."), _named(stored, f"out{number}.")


def _named(arrays: Arrays, prefix: str) -> Arrays:
    return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}


def excess(name: str, found: np.ndarray, expected: np.ndarray) -> float:
    """The largest error as a share of what is allowed; at most 1 where the outputs are equal enough."""
    if name in TOP1:
        return 0.0 if np.array_equal(found.argmax(-1), expected.argmax(-1)) else np.inf
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(found, expected) else np.inf
    allowed = RTOL * np.abs(expected) + max(ATOL * np.abs(expected).max(initial=0), SELF.get(name, 0), 1e-30)
    return _largest(np.abs(found.astype(np.float64) - expected) / allowed)


def _largest(differences: np.ndarray) -> float:
    """The largest of some non-negative numbers; NaN is infinitely wrong."""
    return float(np.nan_to_num(differences, nan=np.inf, posinf=np.inf).max(initial=0))


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest expected value."""
    scale = np.abs(expected.astype(np.float64)).max(initial=0)
    return _largest(np.abs(found.astype(np.float64) - expected)) / max(scale, 1e-30)


@dataclass
class Result:
    """A model held against ONNX Runtime: largest error and excess over all feeds, and operators run in Python."""

    name: str
    feeds: int = 0
    error: float = 0.0
    excess: float = 0.0
    host_calls: tuple[str, ...] = ()
    """``operator: reason`` of each, without repetitions."""
    seconds: float = 0.0

    def __str__(self) -> str:
        verdict = "top-1 equal" if self.name in TOP1 and not self.excess else f"{self.excess:.3f} of allowed"
        hosts = "; ".join(self.host_calls) or "none"
        return f"{self.name:28} {self.feeds:5} {self.error:10.1e}   {verdict:18} {self.seconds:6.1f}   {hosts}"


HEADER = f"{'model':28} feeds {'max error':>10}   {'verdict':18} {'sec':>6}   host calls"


def run(name: str, num_threads: int = 2) -> Result:
    """All feeds of a model through one session."""
    result, start = Result(name), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostCallWarning)
        session = InferenceSession(FOLDER / f"{name}.onnx", num_threads=num_threads)
        for given, expected in feeds(name):
            outputs = dict(zip((o.name for o in session.get_outputs()), session.run(None, given), strict=True))
            for output, want in expected.items():
                have = outputs[output]
                assert (have.shape, have.dtype) == (want.shape, want.dtype), f"{output} of feed {result.feeds}"
                result.error = max(result.error, error(have, want))
                result.excess = max(result.excess, excess(name, have, want))
            result.feeds += 1
    result.host_calls = tuple(dict.fromkeys(f"{call.op}: {call.reason}" for call in session.host_calls))
    result.seconds = time.perf_counter() - start
    return result


def main() -> int:
    """Print the table; 1 where a model is not within its tolerance."""
    if not NAMES:
        print(ABSENT)
        return 0
    print(HEADER)
    results = []
    for name in NAMES:
        results.append(run(name))
        print(results[-1], flush=True)
    return int(any(r.excess > 1 for r in results))


if __name__ == "__main__":
    sys.exit(main())
