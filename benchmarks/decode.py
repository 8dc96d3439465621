"""A decoder token by token: prompts, then steps behind a cache that grows by one or lies in place, beside other
runtimes, and beside a loop that only reads as many bytes as a step has weights.

Each runtime has a process; they take turns of :data:`TURN` steps with a pause before each, as idle threads spin for a
while.  All are given the same tokens, and their logits are compared.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import minitvm
from benchmarks.decoders import Decoder
from benchmarks.memory import peak_megabytes
from benchmarks.runtimes import OPENERS, absent, onnxruntime_session
from minitvm.codegen.llvm.compile import compile_object, host
from minitvm.codegen.llvm.peak import read_text
from minitvm.generation import Buffers
from minitvm.ir.arrays import aligned
from minitvm.runtime.native import NativeCode

FORMS = {"32 bits": Decoder(), "4 bits, accuracy 0": Decoder(bits=4), "4 bits, accuracy 4": Decoder(bits=4, accuracy=4)}
READING = "reading"
"""The loop, among the runtimes."""
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
    share: float = 1.0
    """Of the time of a step, what a loop takes that reads the weights."""
    note: str = ""

    def __str__(self) -> str:
        who = f"{self.form:20} {self.runtime:12} {self.threads} thread{'s' * (self.threads > 1)}"
        step = f"step {self.median:7.2f} ms (best {self.best:.2f}, slowest {self.slowest:.2f}), {self.rate:4.1f} GB/s"
        if self.runtime == READING:
            return f"{who:43} {'':19} {step}"
        prompt = f"prompt {self.prompt:7.1f} ms"
        return f"{who:43} {prompt}, {step}, {self.share:4.0%} of reading; peak {self.peak:.0f} MB{self.note}"


def decodings(threads: Sequence[int] = (1, 2), prompt: int = 128, room: int = 0) -> Iterator[Decoding]:
    """Of all forms, behind prompts of so many tokens; with ``room``, caches are memory for so many places, changed in
    place, which OpenVINO has no call for.  Raises ``ValueError`` where ONNX Runtime does not agree."""
    missing = absent()
    peers = [name for name in ("onnxruntime", "openvino") if name not in missing and not (room and name == "openvino")]
    with tempfile.TemporaryDirectory() as folder:
        for form, decoder in FORMS.items():
            path = Path(folder) / "decoder.onnx"
            onnx.save(decoder.model(), path)
            for count in threads:
                found = _side_by_side(path, form, ["minitvm", *peers, READING], count, prompt, room)
                yield from _compared([replace(one, form=form, threads=count) for one in found])


def _compared(found: list[Decoding]) -> Iterator[Decoding]:
    """With what the loop that reads says of them, and what is wrong."""
    mine, *peers, reading = found
    for one in (mine, *peers):
        far = np.abs(np.subtract(one.sums, mine.sums)).max()
        agrees = np.allclose(one.sums, mine.sums, rtol=1e-2, atol=1e-2 * float(np.abs(mine.sums).max()))
        if not agrees and one.runtime == "onnxruntime":
            raise ValueError(f"{one.form}: logits differ by {far:.3g}")
        yield replace(one, share=reading.median / one.median, note="" if agrees else f"; logits differ by {far:.3g}")
    yield reading


def _side_by_side(path: Path, form: str, runtimes: Sequence[str], *numbers: int) -> list[Decoding]:
    command = [sys.executable, "-m", "benchmarks.decode", str(path), form]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([*command, runtime, *map(str, numbers)], **pipes) for runtime in runtimes]
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


class Reading:
    """Reads as many bytes as a step has weights."""

    def __init__(self, decoder: Decoder, threads: int) -> None:
        cpu = host()
        code = NativeCode([compile_object(read_text(cpu), cpu)], ["peak_read"])
        read = code.function("peak_read", None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        vectors = decoder.weights // threads // cpu.vector_bytes // 8 * 8  # so many are read at a time
        parts = [aligned(np.ones(vectors * cpu.vector_bytes // 4, np.float32)) for _ in range(threads)]
        self._parts = [partial(read, part.ctypes.data, vectors, 1) for part in parts]
        self._held, self._pool = (code, parts), ThreadPoolExecutor(threads)

    def prompt(self, tokens: np.ndarray) -> tuple[float, np.ndarray]:
        return self.step(tokens)

    def step(self, tokens: np.ndarray) -> tuple[float, np.ndarray]:
        """Milliseconds, and nothing."""
        first, *others = self._parts
        start = time.perf_counter()
        jobs = [self._pool.submit(part) for part in others]
        first()
        for job in jobs:
            job.result()
        return 1e3 * (time.perf_counter() - start), np.zeros(1)


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


def _cache(decoder: Decoder, runtime: str, path: str, threads: int, room: int) -> Growing | InPlace | Reading:
    if runtime == READING:
        return Reading(decoder, threads)
    return InPlace(decoder, runtime, path, threads, room) if room else Growing(decoder, runtime, path, threads)


def main(path: str, form: str, runtime: str, threads: int, prompt: int, room: int) -> None:
    """One process: a prompt at the first line of its input, some steps at each that follows."""
    decoder, random = FORMS[form], np.random.default_rng(0)
    cache = _cache(decoder, runtime, path, threads, room)
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
