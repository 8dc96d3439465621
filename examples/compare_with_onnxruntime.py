"""The same model in two runtimes, results and times: python examples/compare_with_onnxruntime.py [model.onnx]."""

import sys
import time
from importlib import resources

import numpy as np
import onnxruntime

import minitvm

ROUNDS = 10


def main() -> None:
    included = resources.files("minitvm") / "demo_data" / "efficientnet_lite0.onnx"
    path = sys.argv[1] if len(sys.argv) > 1 else str(included)
    sessions = {
        "onnxruntime": onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]),
        "minitvm": minitvm.InferenceSession(path),
    }
    rng = np.random.default_rng(0)
    feeds = {
        value.name: rng.normal(size=[d if isinstance(d, int) else 1 for d in value.shape]).astype("float32")
        for value in sessions["minitvm"].get_inputs()
    }
    expected, found = (session.run(None, feeds) for session in sessions.values())
    for want, have in zip(expected, found, strict=True):
        print(f"largest difference {np.abs(want - have).max():.2g} of {np.abs(want).max():.3g}")

    times: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(ROUNDS):  # in turns, so that both see the same machine
        for name, session in sessions.items():
            start = time.perf_counter()
            session.run(None, feeds)
            times[name].append(time.perf_counter() - start)
    for name, seconds in times.items():
        print(f"{name:12} median {1e3 * np.median(seconds):.2f} ms, best {1e3 * min(seconds):.2f} ms")


if __name__ == "__main__":
    main()
