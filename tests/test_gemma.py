"""Decoders with layers that look at the last tokens alone, and keep no others: prompts and steps as ONNX Runtime's."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from gemma import Gemma

import minitvm

SMALL: dict[str, int] = {
    "layers": 3,
    "hidden": 64,
    "heads": 4,
    "groups": 2,
    "inner": 96,
    "vocabulary": 100,
    "longest": 64,
}


def rows(tokens: int, room: int, window: int) -> int:
    """How many rows of a window's cache are in use after so many tokens."""
    at_once = room - window + 1
    return tokens - at_once * max(0, -(-(tokens - room) // at_once))


@functools.cache
def opened(room: int, bits: int = 32) -> tuple[Gemma, bytes, minitvm.InferenceSession]:
    decoder = Gemma(**SMALL, bits=bits, room=room)
    model = decoder.model().SerializeToString()
    return decoder, model, minitvm.InferenceSession(model, num_threads=1)


@pytest.mark.parametrize(("room", "bits"), [(0, 32), (6, 4), (9, 32)])
def test_prompts_and_steps(room: int, bits: int) -> None:
    """Of whole caches, of one that moves with each token, and of one that moves with every fourth."""
    onnxruntime = pytest.importorskip("onnxruntime")
    decoder, model, mine = opened(room, bits)
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert len(mine.windows) == (2 if room else 0)
    tokens, count = np.random.default_rng(room).integers(0, 100, (1, 24)), 0
    pasts = [decoder.empty(), decoder.empty()]
    for length in (8, 1, 1, 3, *[1] * 9):
        new = tokens[:, count : count + length]
        count += length
        results = [s.run(None, decoder.feeds(new, past)) for s, past in zip((mine, theirs), pasts, strict=True)]
        pasts = [dict(zip(decoder.empty(), caches, strict=True)) for _, *caches in results]
        np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-3, atol=1e-4)
        for name, one in pasts[0].items():
            used = rows(count, room, decoder.window) if name in mine.windows else count
            np.testing.assert_allclose(one[:, :, :used], pasts[1][name][:, :, :used], rtol=1e-3, atol=1e-4)
    assert len(mine.libraries) == 1 and not mine.host_calls


def test_what_is_generated_with_windows_is_what_is_without() -> None:
    found = [minitvm.generate(opened(room)[2], [5, 6, 7], max_tokens=30) for room in (0, 9)]
    np.testing.assert_array_equal(*found)
