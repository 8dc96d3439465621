"""One runtime opens and runs one model in a process of its own: seconds of each step, and memory."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

RUNS = 5
MEGA = 1e6

LIBRARY = "minitvm library"
"""The runtime's name for: a saved library, loaded."""


def measure(runtime: str, path: pathlib.Path, threads: int, cache: pathlib.Path | None = None) -> dict[str, Any]:
    """What :func:`work` finds in a fresh process.  ``cache``: minitvm's kernel cache folder, this process's if None."""
    variables = {"MINITVM_CACHE_DIR": str(cache)} if cache is not None else {}
    found = process("benchmarks.worker", [runtime, str(path), str(threads)], variables)
    if "problem" in found:
        raise RuntimeError(f"{runtime} could not run {path.name}:\n{found['problem']}")
    return found


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's, in which ``benchmarks`` is found."""
    root = str(pathlib.Path(__file__).resolve().parent.parent)
    paths = filter(None, (root, os.environ.get("PYTHONPATH")))
    return {**os.environ, **(variables or {}), "PYTHONPATH": os.pathsep.join(paths)}


def process(
    module: str, arguments: Sequence[str], variables: Mapping[str, str], timeout: float | None = None
) -> dict[str, Any]:
    """What a module prints last when it runs in a fresh process; or ``problem``, what went wrong."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(
            command, env=environment(variables), capture_output=True, text=True, check=False, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"took longer than {timeout:.0f} s"}
    if done.returncode:
        return {"problem": done.stderr.strip() or f"ended with {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def work(runtime: str, path: str, threads: int) -> dict[str, Any]:
    """Open, run, and report seconds and MB.

    ``baseline``: resident before the runtime is imported (interpreter, numpy, the inputs); ``peak``: the most that was
    resident until the end of the runs; ``running``: the most during the runs alone, where the system can tell.
    """
    feeds = read_feeds(path)
    baseline = _resident()
    begin = time.perf_counter()
    opener = _opener(runtime)
    start = time.perf_counter()
    run = opener(path, threads)
    opened = time.perf_counter()
    run(feeds)
    first = time.perf_counter()
    peak_open = _peak()
    _forget_peak()
    for _ in range(RUNS):
        run(feeds)
    return {
        "import_s": start - begin,
        "open_s": opened - start,
        "first_run_s": first - opened,
        "baseline_mb": baseline,
        "peak_mb": max(peak_open, _peak()),
        "running_mb": _peak(),
    }


def read_feeds(path: str) -> dict[str, np.ndarray]:
    """The inputs, as the parent saved them beside the model, so that no runtime is needed to make them."""
    with np.load(pathlib.Path(path).with_suffix(".npz")) as saved:
        return {name: saved[f"arr_{i}"] for i, name in enumerate(json.loads(str(saved["names"])))}


def read_arrays(path: str) -> list[np.ndarray]:
    with np.load(path) as saved:
        return [saved[f"arr_{i}"] for i in range(len(saved.files))]


def save_feeds(path: pathlib.Path, feeds: Mapping[str, np.ndarray]) -> None:
    """The inputs beside the model at ``path``, for :func:`work`; they may have any names, ``file`` among them."""
    np.savez(path.with_suffix(".npz"), *feeds.values(), names=np.array(json.dumps(list(feeds))))


def _opener(runtime: str) -> Callable[[str, int], Callable[[Any], Any]]:
    """The runtime's function that opens a model, all that it needs imported."""
    if runtime == LIBRARY:
        return _library_opener()
    from benchmarks.runtimes import OPENERS

    importlib.import_module("minitvm.session" if runtime == "minitvm" else runtime)
    return OPENERS[runtime]


def _library_opener() -> Callable[[str, int], Callable[[Any], Any]]:
    from minitvm.runtime.executor import GraphModule
    from minitvm.runtime.library import load

    def opener(path: str, threads: int) -> Callable[[Any], Any]:
        return _library_run(GraphModule(load(path)["default"](None, threads)))

    return opener


def _library_run(module: Any) -> Callable[[Any], Any]:

    def run(feeds: Any) -> Any:
        module.run(feeds)
        return module.outputs()

    return run


def _status(field: str) -> float:
    """A line of ``/proc/self/status`` in MB; elsewhere the process's peak."""
    status = pathlib.Path("/proc/self/status")
    if not status.exists():
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MEGA
    lines = status.read_text(encoding="ascii").splitlines()
    (kilobytes,) = (int(line.split()[1]) for line in lines if line.startswith(field + ":"))
    return kilobytes * 1024 / MEGA


def _resident() -> float:
    return _status("VmRSS")


def _peak() -> float:
    return _status("VmHWM")


def _forget_peak() -> None:
    """Let the peak start again from what is resident now (Linux; elsewhere it stays)."""
    switch = pathlib.Path("/proc/self/clear_refs")
    if switch.exists():
        switch.write_text("5", encoding="ascii")


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
