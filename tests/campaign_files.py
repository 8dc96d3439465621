"""Many damaged and forged files through ``load``, ``compile`` and ``run``, in processes of their own.

    python tests/campaign_files.py --libraries 20000 --models 5000 --seed 1

Everything but a ``MiniTVMError`` or a result is a finding: a crash, a process that works on one file for more than
10 seconds of CPU time or takes more than 2 GB, any other exception, a damaged library that gives another result,
weights from outside of the model's folder.  ``--only model 17`` repeats one; the exit status is their number.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import pickle
import queue
import random
import select
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

LIMIT_SECONDS, LIMIT_BYTES, LIMIT_WALL = 10.0, 2 << 30, 300.0
JOBS_A_PROCESS = 250
_MOST_ELEMENTS = 1 << 20

# --- the worker: one file after the other, and what came of each ------------------------------------------------


class Worker:
    """Makes a damaged file from a seed and a number, and uses it."""

    def __init__(self, folder: pathlib.Path, seed: str) -> None:
        with (folder / "bases").open("rb") as file:
            self.libraries, self.own, self.package = pickle.load(file)
        self.seed = seed
        self.inside = folder / "inside"
        self.results: dict[int, Any] = {}

    def act(self, kind: str, number: int) -> tuple[str, str]:
        rng = random.Random(f"{self.seed} {kind} {number}")
        return self.library(rng) if kind == "library" else self.model(rng)

    def library(self, rng: random.Random) -> tuple[str, str]:
        from damaged_libraries import damaged

        which, damage, data = damaged(self.libraries, rng)
        path = self.inside / f"{os.getpid()}.mtvm"
        path.write_bytes(data)
        return _outcome(damage, lambda: self._used_library(path, which, damage))

    def _used_library(self, path: pathlib.Path, which: int, damage: str) -> str:
        found = run_library(path)
        if which not in self.results:
            path.write_bytes(self.libraries[which])
            self.results[which] = run_library(path)
        same = pickle.dumps(found) == pickle.dumps(self.results[which])
        return "ran" if same or damage in ("change_parameters", "change_members", "join") else "another result"

    def model(self, rng: random.Random) -> tuple[str, str]:
        from damaged_models import damaged

        made = damaged(self.own if rng.random() < 0.4 else self.package, rng)
        path = self.inside / f"{os.getpid()}.onnx"
        path.write_bytes(made.data)
        return _outcome(made.damage, lambda: used_model(path))


def _outcome(damage: str, act: Any) -> tuple[str, str]:
    import minitvm
    from minitvm.errors import StageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return act(), damage
    except minitvm.MiniTVMError as error:
        return "uncaught" if type(error) is StageError else "refused", f"{damage}: {error}"
    except BaseException as error:
        import traceback

        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error)[:200]} ({pathlib.Path(last.filename).name}:{last.lineno})"
        return "uncaught", f"{damage}: {text}"


def run_library(path: pathlib.Path) -> list[Any]:
    import minitvm

    results = session_results(path)
    library = minitvm.load(path)
    for one in (library, *library.others):
        if one.artifact.is_open:
            continue
        module = minitvm.GraphModule(one["default"](minitvm.cpu(), 1))
        shapes, dtypes = module.get_input_info()
        module.run({name: _array(shape, dtypes[name]) for name, shape in shapes.items()})
        results += module.outputs()
    return results


def session_results(path: pathlib.Path) -> list[Any]:
    """What a session makes of a library, for all that it is for, and of what it saves."""
    import minitvm

    session = minitvm.InferenceSession(path, num_threads=1)
    assert session.get_inputs() and session.get_outputs() and session.get_modelmeta()
    session.save(path.with_suffix(".again"))
    results = []
    for library in session.libraries:
        for one in (library, *library.others):
            shapes = {n: [d if isinstance(d, int) else 2 for d in t.shape] for n, t in one.artifact.inputs.items()}
            feeds = {name: _array(shape, one.artifact.inputs[name].dtype) for name, shape in shapes.items()}
            results += session.run(None, {**feeds, **one.artifact.values})
    return results


def used_model(path: pathlib.Path) -> str:
    import onnx
    from damaged_models import leaves_the_folder

    import minitvm

    session = minitvm.InferenceSession(path, num_threads=1)
    feeds = {}
    for given in session._engine.description.inputs:
        shape = [d if isinstance(d, int) else 2 for d in given.shape]
        feeds[given.name] = _array(shape, given.dtype or "float32")
    session.run(None, feeds)
    outside = leaves_the_folder(onnx.ModelProto.FromString(path.read_bytes()), path.parent)
    return "weights from outside" if outside else "ran"


def _array(shape: Any, dtype: str) -> Any:
    import math

    import numpy as np

    size = math.prod(shape)
    if size > _MOST_ELEMENTS:  # too small for the model: an error that says so
        return np.zeros((1,), dtype)
    values = np.random.default_rng(size % 1000).integers(0, 3, size)
    return values.astype(dtype).reshape(shape)


def work(folder: pathlib.Path, seed: str) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))
    worker = Worker(folder, seed)
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        kind, number = line.split()
        print(json.dumps(worker.act(kind, int(number))), file=answers, flush=True)


# --- the parent: hands out numbers, watches time ------------------------------------------------------------------


@dataclass
class Tally:
    """What came of the files, by kind."""

    counts: dict[str, collections.Counter[str]] = field(
        default_factory=lambda: collections.defaultdict(collections.Counter)
    )
    findings: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def add(self, kind: str, number: int, outcome: str, what: str, seconds: float) -> None:
        self.counts[kind][outcome] += 1
        self.slowest = max(self.slowest, seconds)
        if outcome not in ("ran", "refused"):
            self.findings.append(f"{kind} {number}: {outcome}: {what}")

    def __str__(self) -> str:
        lines = [f"{k}: {sum(c.values())} files: {_listed(c)}" for k, c in sorted(self.counts.items())]
        return "\n".join([*lines, f"slowest: {self.slowest:.1f} s of CPU time; findings: {len(self.findings)}"])


def _listed(counter: collections.Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common())


class Process:
    """A worker's process, started again after a crash, a hang, or enough files."""

    def __init__(self, folder: pathlib.Path, seed: str) -> None:
        self.command = [sys.executable, __file__, "--worker", str(folder), "--seed", seed]
        self.process: subprocess.Popen[str] | None = None
        self.jobs = 0

    def act(self, kind: str, number: int) -> tuple[str, str, float]:
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            self.jobs = 0
        process, before, start = self.process, self._cpu(), time.monotonic()
        _pipe(process.stdin).write(f"{kind} {number}\n")
        _pipe(process.stdin).flush()
        while not select.select([process.stdout], [], [], 0.2)[0]:
            seconds, wall = self._cpu() - before, time.monotonic() - start
            if seconds > LIMIT_SECONDS or wall > LIMIT_WALL:
                self.stop()
                return "hang", f"{seconds:.1f} s of CPU time, {wall:.1f} s", seconds
        return self._answer(process, before)

    def _answer(self, process: subprocess.Popen[str], before: float) -> tuple[str, str, float]:
        line = _pipe(process.stdout).readline()
        if not line:
            status = process.wait()
            self.stop()
            return "crash", f"exit status {status}", 0.0
        seconds = self._cpu() - before
        self.jobs += 1
        if self.jobs >= JOBS_A_PROCESS:
            self.stop()
        outcome, what = json.loads(line)
        return outcome, what, seconds

    def _cpu(self) -> float:
        """Seconds of CPU time; imports count as the first file's, generously."""
        assert self.process is not None
        try:
            fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                _pipe(pipe).close()
            self.process = None


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def campaign(
    jobs: Iterator[tuple[str, int]], seed: str, workers: int, models: bool, say: Any = lambda text: None
) -> Tally:
    """All files, by so many processes at once."""
    tally, waiting, lock = Tally(), queue.SimpleQueue[tuple[str, int]](), threading.Lock()
    for job in jobs:
        waiting.put(job)

    def serve(folder: pathlib.Path) -> None:
        process = Process(folder, seed)
        while not waiting.empty():
            try:
                kind, number = waiting.get_nowait()
            except queue.Empty:
                break
            outcome, what, seconds = process.act(kind, number)
            with lock:
                known = len(tally.findings)
                tally.add(kind, number, outcome, what, seconds)
                for finding in tally.findings[known:]:
                    say(finding)
        process.stop()

    with tempfile.TemporaryDirectory(prefix="campaign-") as name:
        prepare(pathlib.Path(name), models)
        threads = [threading.Thread(target=serve, args=(pathlib.Path(name),)) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return tally


# --- the good files -----------------------------------------------------------------------------------------------


def prepare(folder: pathlib.Path, models: bool) -> None:
    """The good files, and what lies beside a model: weights, a folder, a pipe, links to the outside and in circles."""
    import damaged_models

    inside = folder / "inside"
    inside.mkdir()
    weights = bytes(4 * (8 * 4 + 4))
    for path in (inside / damaged_models.WEIGHTS, folder / "outside.bin"):
        path.write_bytes(weights)
    (inside / "folder").mkdir()
    (inside / "link.bin").symlink_to("../outside.bin")
    (inside / "loop.bin").symlink_to("loop.bin")
    os.mkfifo(inside / "pipe")
    own = damaged_models.own_models()
    package = damaged_models.package_models() if models else own
    with (folder / "bases").open("wb") as file:
        pickle.dump((good_libraries(), own, package), file)


def good_libraries() -> list[bytes]:
    """Libraries of the models of ``damaged_models``, one with an If inside of a Loop; one that holds several."""
    import damaged_models

    import minitvm
    from minitvm.frontend import describe_onnx
    from minitvm.runtime import archive

    made = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for data in [d for d in damaged_models.own_models() if b"weights.bin" not in d]:
            shapes = {v.name: [d if isinstance(d, int) else 2 for d in v.shape] for v in describe_onnx(data).inputs}
            made.append(minitvm.compile(data, shape_dict=shapes, num_threads=2))
    several = dataclasses.replace(made[0].artifact, others=(made[1].artifact, made[0].artifact))
    libraries = [archive.to_bytes(artifact) for artifact in (*(library.artifact for library in made), several)]
    return [*libraries, saved_by_a_session()]


_BY_VALUE = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 16] x, int64[2] s) => (float[n, 3] y, float z) <
 float[16, 16] w = {%s}, int64[3] i = {3, 1, 0}> {
 a = MatMul(x, w) b = Gather <axis = 1> (a, i) y = Softmax(b) z = Reshape(y, s)
}"""


def saved_by_a_session() -> bytes:
    """For some shapes and values of an input, with what the model says of itself."""
    import numpy as np
    from onnx import parser

    import minitvm

    weights = ", ".join(map(str, np.random.default_rng(0).standard_normal(256).round(3)))
    session = minitvm.InferenceSession(parser.parse_model(_BY_VALUE % weights), num_threads=1, symbolic=False)
    for rows in (2, 4):
        session.run(None, {"x": np.ones((rows, 16), "f"), "s": np.array([3, rows])})
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "saved.mtvm"
        session.save(path)
        return path.read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", type=int, default=0)
    parser.add_argument("--models", type=int, default=0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs=2, metavar=("KIND", "NUMBER"), help="one file: library 17")
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        work(given.worker, given.seed)
        return 0
    jobs = [("library", n) for n in range(given.libraries)] + [("model", n) for n in range(given.models)]
    if given.only:
        jobs = [(given.only[0], int(given.only[1]))]
    start = time.monotonic()
    models = any(kind == "model" for kind, _ in jobs)
    tally = campaign(iter(jobs), given.seed, given.workers, models, lambda text: print(text, flush=True))
    print(f"{tally}\nseed {given.seed}, {time.monotonic() - start:.0f} s")
    return len(tally.findings)


if __name__ == "__main__":
    sys.exit(min(main(), 100))
