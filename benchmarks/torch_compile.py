"""``python -m benchmarks torch``: ``torch.compile`` with minitvm as its back end, with inductor, and plain PyTorch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from benchmarks.torch_networks import NETWORKS
from benchmarks.turns import PAUSE
from minitvm.torch import backend

TOLERANCE = 1e-4
"""Of the largest element."""


@dataclass(frozen=True)
class Row:
    """One network: medians in seconds, and how long the first run took, which compiles; the error of minitvm."""

    network: str
    threads: int
    seconds: dict[str, float]
    first: dict[str, float]
    error: float


def rows(threads: int, rounds: int, names: list[str]) -> Iterator[Row]:
    """Batch 1, in turns; who comes first in a round changes.  ``recurrent`` is not among the names: TorchDynamo leaves
    recurrent layers to PyTorch."""
    torch.set_num_threads(threads)
    for name in names:
        torch.manual_seed(0)
        torch._dynamo.reset()
        network, draw = NETWORKS[name](True)
        x = draw(1)
        with torch.inference_mode():
            yield _timed(name, threads, rounds, network, x)


def _timed(name: str, threads: int, rounds: int, network: torch.nn.Module, x: torch.Tensor) -> Row:
    ways: dict[str, Callable[[torch.Tensor], object]] = {
        "minitvm": torch.compile(network, backend=backend),
        "inductor": torch.compile(network),
        "eager": network,
    }
    first = {way: _seconds(call, x) for way, call in ways.items()}
    found: dict[str, list[float]] = {way: [] for way in ways}
    order = list(ways)
    for _ in range(rounds):
        order.append(order.pop(0))
        for way in order:
            time.sleep(PAUSE)  # the others' worker threads come to rest
            _seconds(ways[way], x)
            found[way] += [_seconds(ways[way], x) for _ in range(3)]
    pairs = zip(_leaves(ways["minitvm"](x)), _leaves(network(x)), strict=True)
    error = max(float((have - want).abs().max() / want.abs().max()) for have, want in pairs)
    return Row(name, threads, {way: statistics.median(times) for way, times in found.items()}, first, error)


def _leaves(value: object) -> list[torch.Tensor]:
    return torch.utils._pytree.tree_leaves(value)


def _seconds(call: Callable[[torch.Tensor], object], x: torch.Tensor) -> float:
    start = time.perf_counter()
    call(x)
    return time.perf_counter() - start
