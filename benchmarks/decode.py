"""A decoder token by token: prompts, then steps behind a cache that grows by one or lies in place, beside onnxruntime.

Each runtime has a process; they take turns of :data:`TURN` steps with a pause before each, as idle threads spin for a
while.  Both are given the same tokens, and their logits are compared.
"""

from __future__ import annotations

import importlib
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

import minitvm
from benchmarks.decoders import Decoder
from benchmarks.memory import peak_megabytes
from benchmarks.runtimes import OPENERS, onnxruntime_session
from minitvm.generation import Buffers

FORMS = {"32 bits": Decoder(), "4 bits, accuracy 0": Decoder(bits=4), "4 bits, accuracy 4": Decoder(bits=4, accuracy=4)}
RUNTIMES = ("minitvm", "onnxruntime")
STEPS, TURN, PAUSE = 96, 8, 0.1


@dataclass(frozen=True)
class Decoding:
    """Milliseconds of prompts and of steps; the best and the median step, the slowest after
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


def decodings(threads: Sequence[int] = (1, 2), prompt: int = 128, room: int = 0) -> Iterator[Decoding]:
    """Of all forms, behind prompts of so many tokens; with ``room``, caches are memory for so many places, changed in
    place.  Raises ``ValueError`` where the runtimes do not agree."""
    with tempfile.TemporaryDirectory() as folder:
        for form, decoder in FORMS.items():
            path = Path(folder) / "decoder.onnx"
            onnx.save(decoder.model(), path)
            for count in threads:
                found = [
                    replace(one, form=form, threads=count) for one in _side_by_side(path, form, count, prompt, room)
                ]
                mine, theirs = (np.array(one.sums) for one in found)
                if not np.allclose(mine, theirs, rtol=1e-2, atol=1e-2 * float(np.abs(theirs).max())):
                    raise ValueError(f"{form}: logits differ by {np.abs(mine - theirs).max():.3g}")
                yield from found


def _side_by_side(path: Path, form: str, *numbers: int) -> list[Decoding]:
    command = [sys.executable, "-m", "benchmarks.decode", str(path), form]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([*command, runtime, *map(str, numbers)], **pipes) for runtime in RUNTIMES]
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


class Growing:
    """Caches are new arrays after every run."""

    def __init__(self, decoder: Decoder, runtime: str, path: str, threads: int) -> None:
        self._decoder, self._run = decoder, OPENERS[runtime](path, threads)

    def prompt(self, tokens: np.ndarray) -> tuple[float, np.ndarray]:
        self._past = self._decoder.empty()
        return self.step(tokens)

    def step(self, tokens: np.ndarray) -> tuple[float, np.ndarray]:
        """Milliseconds, and logits."""
        feeds = self._decoder.feeds(tokens, self._past)
        start = time.perf_counter()
        logits, *caches = self._run(feeds)
        spent = 1e3 * (time.perf_counter() - start)
        self._past = dict(zip(self._past, caches, strict=True))
        return spent, logits


class InPlace:
    """Caches are memory for ``room`` places, bound as inputs and as outputs."""

    def __init__(self, decoder: Decoder, runtime: str, path: str, threads: int, room: int) -> None:
        mine = runtime == "minitvm"
        self._session = (
            minitvm.InferenceSession(path, num_threads=threads) if mine else onnxruntime_session(path, threads)
        )
        logits, *presents = (output.name for output in self._session.get_outputs())
        empty = decoder.empty()
        new = importlib.import_module(runtime).OrtValue.ortvalue_from_shape_and_type
        outputs = dict(zip(empty, presents, strict=True))
        self._cache = Buffers(self._session, outputs, logits, empty, room=room, new_value=new)

    def prompt(self, tokens: np.ndarray) -> tuple[float, np.ndarray]:
        self._count = 0
        return self.step(tokens)

    def step(self, tokens: np.ndarray) -> tuple[float, np.ndarray]:
        """Milliseconds, and logits."""
        self._count += tokens.shape[1]
        feeds = {"input_ids": tokens, "attention_mask": np.ones((1, self._count), np.int64)}
        start = time.perf_counter()
        logits = self._cache.run(self._session, (), feeds, self._count)
        return 1e3 * (time.perf_counter() - start), logits


def main(path: str, form: str, runtime: str, threads: int, prompt: int, room: int) -> None:
    """One process: a prompt at the first line of its input, some steps at each that follows."""
    decoder, random = FORMS[form], np.random.default_rng(0)
    how = (decoder, runtime, path, threads)
    cache = InPlace(*how, room) if room else Growing(*how)
    tokens = random.integers(0, decoder.vocabulary, (1, prompt + STEPS))
    prompts, steps, sums = list[float](), list[float](), list[float]()
    for line in sys.stdin:
        assert line
        if not prompts:
            prompts += [cache.prompt(tokens[:, :prompt])[0] for _ in range(4)]
        else:
            for _ in range(TURN):
                at = prompt + len(steps)
                spent, logits = cache.step(tokens[:, at : at + 1])
                steps.append(spent)
                sums.append(float(np.sqrt(np.square(logits).sum())))
        warm = steps[1:] or [0.0]
        median = float(np.median(warm))
        rate = decoder.weights / (median or 1.0) / 1e6
        found = Decoding(
            "", runtime, 0, min(prompts), min(warm), median, max(warm), peak_megabytes(), rate, tuple(sums)
        )
        print(json.dumps(vars(found)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
