"""What an exported model takes: the file itself says which sizes it is run with, so measuring needs no PyTorch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Sizes: TypeAlias = Mapping[str, Sequence[int]]
"""By open dimension what it is in one run after the other."""

_SPEC = re.compile(r"(?P<dtype>\w+)(?:(?P<how>[<=])(?P<number>\d+))?(?P<shape>( \S+)*)\Z")
KEY = "open_model"


@dataclass(frozen=True)
class Input:
    """One input: ``"float32 batch 3 height"`` is normal, ``"int64<100 batch seq"`` is drawn below 100,
    ``"int64=1 batch past+seq"`` is all ones.  A dimension is a number, a name or a sum of names."""

    dtype: str
    how: str | None
    number: int
    shape: tuple[int | str, ...]

    @classmethod
    def of(cls, text: str) -> Input:
        found = _SPEC.match(text)
        assert found is not None, text
        dims = tuple(int(d) if d.isdigit() else d for d in found["shape"].split())
        return cls(found["dtype"], found["how"], int(found["number"] or 0), dims)

    def drawn(self, sizes: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
        shape = [dim if isinstance(dim, int) else sum(sizes[name] for name in dim.split("+")) for dim in self.shape]
        if self.how == "=":
            return np.full(shape, self.number, self.dtype)
        if self.how == "<":
            return rng.integers(0, self.number, shape).astype(self.dtype)
        return rng.standard_normal(shape).astype(self.dtype)


def feeds(inputs: Mapping[str, str], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(sum(sizes.values()))
    return {name: Input.of(text).drawn(sizes, rng) for name, text in inputs.items()}


def runs(sizes: Sizes) -> Iterator[dict[str, int]]:
    """The sizes of one run after the other; short lists begin again."""
    for i in range(max(map(len, sizes.values()))):
        yield {name: values[i % len(values)] for name, values in sizes.items()}


def write(model: Any, inputs: Mapping[str, str], sizes: Sizes) -> None:
    """Keeps it in the model's metadata, for inputs that the exporter kept."""
    kept = {value.name for value in model.graph.input}
    entry = model.metadata_props.add()
    entry.key = KEY
    entry.value = json.dumps({"inputs": {n: t for n, t in inputs.items() if n in kept}, "sizes": sizes})


def read(model: Any) -> tuple[dict[str, str], Sizes]:
    (found,) = (json.loads(entry.value) for entry in model.metadata_props if entry.key == KEY)
    return found["inputs"], found["sizes"]
