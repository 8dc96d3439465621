"""The kinds of layers, how many of each a sweep has, and the layers themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks import layer_others as others
from benchmarks import layer_products as products
from benchmarks.layer_draw import Layer, Maker, draw_layer


@dataclass(frozen=True)
class Kind:
    maker: Maker
    weight: int
    """Its share of a sweep."""


KINDS: Mapping[str, Kind] = {
    "conv": Kind(products.conv, 44),
    "depthwise": Kind(products.depthwise, 14),
    "grouped": Kind(products.grouped, 6),
    "conv1d": Kind(products.conv1d, 10),
    "transposed": Kind(products.transposed, 8),
    "dense": Kind(products.dense, 30),
    "matmul": Kind(products.matmul, 24),
    "lstm": Kind(products.lstm, 6),
    "gru": Kind(products.gru, 4),
    "pool": Kind(others.pool, 14),
    "global_pool": Kind(others.global_pool, 6),
    "softmax": Kind(others.softmax, 14),
    "layer_norm": Kind(others.layer_norm, 10),
    "instance_norm": Kind(others.instance_norm, 8),
    "reduction": Kind(others.reduction, 18),
    "elementwise": Kind(others.elementwise, 18),
    "activation": Kind(others.activation, 16),
    "transpose": Kind(others.transpose, 10),
    "concat": Kind(others.concat, 6),
    "split": Kind(others.split, 5),
    "slice": Kind(others.slices, 6),
    "pad": Kind(others.pad, 5),
    "resize": Kind(others.resize, 8),
    "gather": Kind(others.gather, 5),
    "argmax": Kind(others.argmax, 5),
    "cumsum": Kind(others.cumsum, 3),
    "quantize": Kind(others.quantize, 7),
}


def shares(count: int, names: Sequence[str]) -> dict[str, int]:
    """How many layers of each kind, ``count`` in all, by weight; the largest remainders are rounded up."""
    total = sum(KINDS[name].weight for name in names)
    exact = {name: count * KINDS[name].weight / total for name in names}
    found = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(names, key=lambda name: found[name] - exact[name])
    for name in by_remainder[: count - sum(found.values())]:
        found[name] += 1
    return found


def wanted_layers(count: int, only: Sequence[str]) -> list[tuple[str, int]]:
    """Kinds and numbers: the layers that ``only`` names (``conv/17``), and ``count`` of its kinds; of all if empty."""
    single = [(name, int(number)) for name, _, number in (word.partition("/") for word in only) if number]
    kinds = [word for word in only if "/" not in word] or ([] if single else list(KINDS))
    return [*single, *((name, i) for name, share in shares(count if kinds else 0, kinds).items() for i in range(share))]


def draw_layers(wanted: Sequence[tuple[str, int]], seed: int) -> Iterator[Layer]:
    """The layers, one after the other.  A layer depends on its name and the seed alone."""
    for name, number in wanted:
        yield draw_layer(name, number, KINDS[name].maker, (seed, list(KINDS).index(name)))
