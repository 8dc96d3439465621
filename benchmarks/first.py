"""A runtime's first result in a process of its own: nothing is imported that the runtime does not need."""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

import numpy as np


def first(runtime: str, path: str, threads: int, tree: str = "") -> dict[str, Any]:
    """CPU seconds of the process up to the first result, and of those what came before the runtime.

    The inputs lie beside the model.  ``tree``: where another minitvm is.
    """
    before = _cpu()
    if tree:
        sys.path.insert(0, tree)
    session = _session(runtime, path, threads)
    with np.load(path.removesuffix(".onnx") + ".npz") as saved:
        feeds = {name: saved[f"arr_{i}"] for i, name in enumerate(json.loads(str(saved["names"])))}
    results = session.run(None, feeds)
    seconds = _cpu()
    sums = [float(np.abs(np.asarray(result, np.float64)).sum()) for result in results]
    return {"seconds": seconds, "before": before, "sums": sums}


def _session(runtime: str, path: str, threads: int) -> Any:
    if runtime == "minitvm":
        import minitvm

        return minitvm.InferenceSession(path, num_threads=threads)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _cpu() -> float:
    """Of all threads, of Python's start too, and of processes that were started."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    print(json.dumps(first(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])))
