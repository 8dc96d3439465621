"""Inputs for a model of which nobody gave any: such as it takes, or a run of it would end early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minitvm.errors import InputError
from minitvm.ir.types import Leaf, MapType, SequenceType, TensorType, is_numeric
from minitvm.runtime.executor import GraphModule


def random_inputs(module: GraphModule, seed: int) -> dict[str, Any]:
    """A value for every input: normal floats, no text, one of a sequence.  Masks (so called) let all through; indices
    and lengths are any that the model takes; other integers are zeros and ones.

    What an index may be is tried: the model runs for each size that it may be an index into.
    """
    rng, types = np.random.default_rng(seed), module.input_types()
    drawn = {name: _mask(name, type_) if _is_mask(name, type_) else _drawn(type_, rng) for name, type_ in types.items()}
    for name, sizes in _indices(module).items():
        if name in drawn and not _is_mask(name, types[name]):
            value, largest = drawn[name], np.iinfo(drawn[name].dtype).max
            tried = (size for size in sorted(sizes, reverse=True) if size - 1 <= largest)
            most = next((n for n in tried if _takes(module, {**drawn, name: np.full_like(value, n - 1)})), 2)
            drawn[name] = np.asarray(rng.integers(0, most, size=value.shape), value.dtype)
    return drawn


def _drawn(type_: Leaf, rng: np.random.Generator) -> Any:
    if isinstance(type_, SequenceType):
        return _drawn(type_.element, rng) if type_.optional else [_drawn(type_.element, rng)]
    if isinstance(type_, MapType):
        return {}
    sizes = [1 if d is None else d for d in type_.sizes]
    if type_.dtype.startswith("float"):
        return np.asarray(rng.normal(size=sizes), type_.dtype)
    return np.asarray(rng.integers(0, 2, size=sizes), type_.dtype) if is_numeric(type_) else np.full(sizes, "")


def _is_mask(name: str, type_: Leaf) -> bool:
    return isinstance(type_, TensorType) and "mask" in name.lower() and type_.dtype.startswith(("int", "uint", "bool"))


def _mask(name: str, type_: Leaf) -> np.ndarray:
    """Ones; of what says where padding is, zeros."""
    assert isinstance(type_, TensorType)
    return np.full([1 if d is None else d for d in type_.sizes], "pad" not in name.lower(), type_.dtype)


def _indices(module: GraphModule) -> dict[str, set[int]]:
    """The inputs that a check looks at, themselves or what integers are computed of them, with the sizes that it may
    compare them to."""
    graph = module.instance.graph
    found: dict[str, set[int]] = {}

    for check in (node for node in graph.nodes if node.check):
        data, *pending = check.inputs
        sizes = {size for size in graph.nodes[data[0]].types[data[1]].sizes if size}
        seen = set(pending)
        while pending:
            number, result = pending.pop()
            node = graph.nodes[number]
            if not isinstance(type_ := node.types[result], TensorType) or not type_.dtype.startswith(("int", "uint")):
                continue
            if node.is_null:
                found.setdefault(node.name, set()).update(sizes)
            pending += [entry for entry in node.inputs if entry not in seen]
            seen.update(node.inputs)
    return found


def _takes(module: GraphModule, feeds: Mapping[str, Any]) -> bool:
    try:
        module.run(feeds)
        module.instance.settle()
    except InputError:
        return False
    return True
