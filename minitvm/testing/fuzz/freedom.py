"""Which elements of a graph's results ONNX leaves open: what moves when an open element inside of it moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from minitvm.testing.fuzz.case import Arrays, attributes
from minitvm.testing.fuzz.open_ends import RULES
from minitvm.testing.fuzz.seen import Seen

Array = np.ndarray
Values = Callable[[bytes], Callable[[Arrays], Arrays]]
"""From a model to every value of its graph by name."""
Told = tuple[Sequence[str], list[str]]
"""The peers that have an answer, and the reasons found so far."""

OPEN = 9
"""Evaluations with other numbers in elements that are open ..."""
NEAR = 10
"""... and with numbers as far off as elements are open to: all down, all up, and as chance has it."""


@dataclass(frozen=True)
class Freedom:
    """Bounds of every result; both infinite where an element is open, and both its value where it is decided."""

    why: str
    low: list[Array]
    high: list[Array]

    def allows(self, results: Sequence[Array]) -> list[Array]:
        """For each result, the elements within bounds."""
        return [_inside(a, low, high) for a, low, high in zip(results, self.low, self.high, strict=True)]


def _inside(a: Array, low: Array, high: Array) -> Array:
    if a.shape != low.shape:
        return np.asarray(low == -np.inf).all() & np.ones(a.shape, bool)
    wide = a.astype(np.float64)
    return np.asarray((low < high) & (np.isinf(high - low) | ((low <= wide) & (wide <= high))))


def freedom(proto: onnx.ModelProto, values: Values, answered: Sequence[str] = ()) -> Callable[[Arrays], Freedom | None]:
    """``None`` where no node of the graph has an open element."""
    names = [v.name for v in proto.graph.output]

    def run(feeds: Arrays) -> Freedom | None:
        whys: list[str] = []
        told = (answered, whys)
        base = values(proto.SerializeToString())(feeds)
        given = {**_constants(proto), **feeds, **base}
        kinds = [_varied(proto, feeds, given, k, values, told) for k in range(OPEN)]
        if not whys:
            return None
        near = [_varied(proto, feeds, given, OPEN + k, values, told) for k in range(NEAR)]
        bounds = [_bounds(given[n], [v.get(n) for v in kinds], [v.get(n) for v in near]) for n in names]
        return Freedom("; ".join(dict.fromkeys(whys)), [low for low, _ in bounds], [high for _, high in bounds])

    return run


def _constants(proto: onnx.ModelProto) -> Arrays:
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


def _bounds(base: Array, others: Sequence[Array | None], near: Sequence[Array | None]) -> tuple[Array, Array]:
    """Where an evaluation has no answer, or another shape, all is open."""
    everywhere = np.full(base.shape, np.inf)
    if any(a is None or a.shape != base.shape for a in (*others, *near)):
        return -everywhere, everywhere
    wide = [base.astype(np.float64), *(a.astype(np.float64) for a in near if a is not None)]
    low, high = np.min(wide, 0), np.max(wide, 0)
    with np.errstate(invalid="ignore"):  # an infinity less itself is no width
        width = np.nan_to_num(high - low)
    is_open = np.any([_differs(a, base) for a in others if a is not None], axis=0)
    is_open = is_open | np.any([np.isfinite(a) != np.isfinite(wide[0]) for a in wide], axis=0)
    return np.where(is_open, -np.inf, low - width), np.where(is_open, np.inf, high + width)


def _differs(a: Array, base: Array) -> Array:
    same = a == base
    return np.asarray(~(same | (np.isnan(a) & np.isnan(base))) if base.dtype.kind == "f" else ~same)


def _varied(proto: onnx.ModelProto, feeds: Arrays, given: Arrays, kind: int, values: Values, told: Told) -> Arrays:
    """Every value of the graph with open elements moved in some way: one node after the other becomes constants.
    None where an evaluation has no answer."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for turn, node in enumerate(proto.graph.node):
        spread = _spread(node, given, proto, told)
        if not np.any(spread):
            continue
        model.graph.node.remove(node)
        for name in filter(None, node.output):
            moved = _moved(given[name], spread, kind, turn)
            model.graph.initializer.append(numpy_helper.from_array(moved, name))
            given = {**given, name: moved}
        try:
            given = {**given, **values(model.SerializeToString())(feeds)}
        except Exception:  # any: peers fail in all ways
            return {}
    return given


def _spread(node: onnx.NodeProto, given: Arrays, proto: onnx.ModelProto, told: Told) -> Any:
    answered, whys = told
    if any(n and n not in given for n in (*node.input, *node.output)):
        return 0.0
    operands = [given.get(name) for name in node.input] + [None] * 3
    opset = next(i.version for i in proto.opset_import if not i.domain)
    seen = Seen(node, operands, given[node.output[0]], attributes(node), opset)
    spread: Any = 0.0
    for why, better, rule in RULES.get(node.op_type, []):
        found = 0.0 if better in answered else rule(seen)
        if np.any(found):
            whys.append(f"{node.op_type}: {why}")
            spread = np.maximum(spread, found)
    return spread


def _moved(value: Array, spread: Any, kind: int, turn: int) -> Array:
    """``kind`` up to ``OPEN`` puts anything into open elements, another thing at another node's ``turn``; else
    elements move by their spread at most."""
    try:
        wide = np.broadcast_to(spread, value.shape)
    except ValueError:  # a result of another shape than the first
        wide = np.full(value.shape, np.max(spread, initial=0.0))
    if kind < OPEN:
        return np.where(np.isinf(wide), _anything(value, (kind + 3 * turn) % OPEN), value).astype(value.dtype)
    rng = np.random.default_rng(kind)
    way = (-1.0, 1.0)[kind - OPEN] if kind < OPEN + 2 else rng.choice((-1.0, 1.0), value.shape)
    moved = value + np.where(np.isinf(wide), 0.0, wide) * way
    if value.dtype.kind == "f":
        return np.asarray(moved, value.dtype)
    info = np.iinfo(value.dtype)
    return np.asarray(np.clip(np.rint(moved), info.min, info.max)).astype(value.dtype)


def _anything(value: Array, kind: int) -> Array:
    rng, dtype = np.random.default_rng(kind), value.dtype
    if dtype.kind == "b":
        return np.asarray(rng.random(value.shape) < 0.5 if kind > 1 else kind == 1)
    if dtype.kind == "f":
        most = np.finfo(dtype).max
        numbers = (0.0, 1.0, -1.0, most, -most, np.nan, np.inf, -np.inf)
        return np.asarray(numbers[kind] if kind < len(numbers) else rng.normal(0, 10, value.shape))
    info = np.iinfo(dtype)
    if kind < 4:
        return np.asarray((0, 1, info.min, info.max)[kind], dtype)
    return rng.integers(info.min, info.max, value.shape, dtype=dtype, endpoint=True)
