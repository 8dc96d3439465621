"""A decoder token by token: prompts, then steps behind a cache that grows by one, beside onnxruntime.

Each runtime has a process; they take turns of :data:`TURN` steps with a pause before each, as idle threads spin for a
while.  Both are given the same tokens, and their logits are compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.decoders import Decoder
from benchmarks.memory import peak_megabytes
from benchmarks.runtimes import OPENERS

FORMS = {"32 bits": Decoder(), "4 bits, accuracy 0": Decoder(bits=4), "4 bits, accuracy 4": Decoder(bits=4, accuracy=4)}
RUNTIMES = ("minitvm", "onnxruntime")
PROMPT, STEPS, TURN, PAUSE = 128, 96, 8, 0.1


@dataclass(frozen=True)
class Decoding:
    """Milliseconds of prompts of :data:`PROMPT` tokens and of steps; the best and the median step, the slowest after
    the first; megabytes at the end."""

    form: str
    runtime: str
    threads: int
    prompt: float
    best: float
    median: float
    slowest: float
    peak: float
    rate: float
    """GB/s of weights, at the median."""
    sums: tuple[float, ...] = ()
    """Of the logits of each step."""

    def __str__(self) -> str:
        who = f"{self.form:20} {self.runtime:12} {self.threads} thread{'s' * (self.threads > 1)}"
        step = f"step {self.median:7.2f} ms (best {self.best:.2f}, slowest {self.slowest:.2f}), {self.rate:4.1f} GB/s"
        return f"{who:43} prompt {self.prompt:7.1f} ms, {step}; peak {self.peak:.0f} MB"


def decodings(threads: Sequence[int] = (1, 2)) -> Iterator[Decoding]:
    """Of all forms; raises ``ValueError`` where the runtimes do not agree."""
    with tempfile.TemporaryDirectory() as folder:
        for form, decoder in FORMS.items():
            path = Path(folder) / "decoder.onnx"
            onnx.save(decoder.model(), path)
            for count in threads:
                found = [replace(one, form=form, threads=count) for one in _side_by_side(path, form, count)]
                mine, theirs = (np.array(one.sums) for one in found)
                if not np.allclose(mine, theirs, rtol=1e-2, atol=1e-2 * float(np.abs(theirs).max())):
                    raise ValueError(f"{form}: logits differ by {np.abs(mine - theirs).max():.3g}")
                yield from found


def _side_by_side(path: Path, form: str, threads: int) -> list[Decoding]:
    command = [sys.executable, "-m", "benchmarks.decode", str(path), form, str(threads)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([*command, runtime], **pipes) for runtime in RUNTIMES]
    answers = dict.fromkeys(range(len(workers)), "")
    for turn in range(STEPS // TURN + 1):
        for k, worker in enumerate(workers):
            time.sleep(PAUSE)
            assert worker.stdin is not None and worker.stdout is not None
            print("go", file=worker.stdin, flush=True)
            answers[k] = worker.stdout.readline()
        assert all(answers.values()), f"a runtime ended in turn {turn}"
    for worker in workers:
        worker.communicate()
    return [Decoding(**json.loads(answer)) for answer in answers.values()]


def main(path: str, form: str, threads: int, runtime: str) -> None:
    """One process: a prompt at the first line of its input, some steps at each that follows."""
    decoder, run, random = FORMS[form], OPENERS[runtime](path, threads), np.random.default_rng(0)
    names = list(decoder.empty())

    def taken(tokens: np.ndarray, past: dict[str, np.ndarray]) -> tuple[float, list[np.ndarray]]:
        feeds = decoder.feeds(tokens, past)
        start = time.perf_counter()
        results = list(run(feeds))
        return 1e3 * (time.perf_counter() - start), results

    tokens = random.integers(0, decoder.vocabulary, (1, PROMPT + STEPS))
    prompts, steps, sums = list[float](), list[float](), list[float]()
    past: dict[str, np.ndarray] = {}
    for line in sys.stdin:
        assert line
        for _ in range(4 if not past else 0):
            spent, (_, *caches) = taken(tokens[:, :PROMPT], decoder.empty())
            prompts.append(spent)
        for _ in range(TURN if past else 0):
            at = PROMPT + len(steps)
            spent, (logits, *caches) = taken(tokens[:, at : at + 1], past)
            steps.append(spent)
            sums.append(float(np.sqrt(np.square(logits).sum())))
            past = dict(zip(names, caches, strict=True))
        past = past or dict(zip(names, caches, strict=True))
        warm = steps[1:] or [0.0]
        median = float(np.median(warm))
        rate = decoder.weights / (median or 1.0) / 1e6
        found = Decoding(
            "", runtime, 0, min(prompts), min(warm), median, max(warm), peak_megabytes(), rate, tuple(sums)
        )
        print(json.dumps(vars(found)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
