"""Inputs for a model of which nobody gave any."""

from __future__ import annotations

from typing import Any

import numpy as np

from minitvm.ir.types import Leaf, MapType, SequenceType, is_numeric
from minitvm.runtime.executor import GraphModule


def random_inputs(module: GraphModule, seed: int) -> dict[str, Any]:
    """A value for every input: normal floats, zeros and ones for integers and booleans, no text, one of a sequence."""
    rng = np.random.default_rng(seed)

    def one(type_: Leaf) -> Any:
        if isinstance(type_, SequenceType):
            return one(type_.element) if type_.optional else [one(type_.element)]
        if isinstance(type_, MapType):
            return {}
        sizes = [1 if d is None else d for d in type_.sizes]
        if type_.dtype.startswith("float"):
            return np.asarray(rng.normal(size=sizes), type_.dtype)
        return np.asarray(rng.integers(0, 2, size=sizes), type_.dtype) if is_numeric(type_) else np.full(sizes, "")

    return {name: one(type_) for name, type_ in module.input_types().items()}
