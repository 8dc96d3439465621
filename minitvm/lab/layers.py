"""Layers with windows, drawn so that image, weight and attributes go together: layouts, groups, dilation, padding.

Extents coincide often (as many rows as channels, as many filters as inputs): what mistakes one axis for another is
typed right only there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from minitvm.ir.op import Op
from minitvm.ir.ops.nn_conv import FilterBank
from minitvm.ir.ops.nn_pool import Pool

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """Attributes, and the shapes of operands: of an image, and of weights where there are any."""

    attributes: dict[str, Any]
    shapes: tuple[Shape, ...]
    taps: Shape


def drawn(rng: random.Random, kind: type[Op], sibling: Layer | None) -> Layer | None:
    """A layer of this kind, mostly like its ``sibling``; ``None`` for other operators."""
    if not issubclass(kind, (FilterBank, Pool)):
        return None
    if sibling is not None and rng.random() < 0.85:
        return _beside(rng, sibling)
    return _bank(rng, kind) if issubclass(kind, FilterBank) else _pool(rng, kind)


def _beside(rng: random.Random, one: Layer) -> Layer:
    """The same, or but for the sides that are padded, the strides, or the distance of taps, with results as large."""
    if rng.random() < 0.5:
        return one
    name = rng.choice(("padding", "padding", "dilation", "strides"))
    values = list(one.attributes[name])
    if name == "dilation":
        return Layer(one.attributes | _dilated(one, [rng.choice((1, 2)) for _ in values]), one.shapes, one.taps)
    rng.shuffle(values)
    return Layer(one.attributes | {name: tuple(values)}, one.shapes, one.taps)


def _dilated(one: Layer, dilation: list[int]) -> dict[str, Shape]:
    """Other distances, and as much more padding as they reach further."""
    rank, ends = len(dilation), list(one.attributes["padding"])
    for axis, (old, new) in enumerate(zip(one.attributes["dilation"], dilation, strict=True)):
        more = (one.taps[axis] - 1) * (new - old)
        before = max(-ends[axis], more // 2)
        ends[axis] += before
        ends[axis + rank] = max(0, ends[axis + rank] + more - before)
    return {"dilation": tuple(dilation), "padding": tuple(ends)}


def _bank(rng: random.Random, kind: type[FilterBank]) -> Layer:
    rank = len(kind.spatial)
    of_inputs = kind.filters == "OI"
    groups, few = rng.choice((1, 1, 2)), _few(rng)
    per_group, filters = rng.choice(few[:3]), rng.choice(few[:3])
    windows = _windows(rng, rank, few)
    inputs = per_group * groups
    weight = {"O": filters * (groups if of_inputs else 1), "I": per_group if of_inputs else inputs}
    image = {"N": rng.choice((1, 2)), "C": inputs, **dict(zip(kind.spatial, _image(rng, rank, few), strict=True))}
    weight |= dict(zip(kind.spatial, windows["taps"], strict=True))
    layouts = _order(rng, "NC" + kind.spatial), _order(rng, kind.filters + kind.spatial)
    attributes: dict[str, Any] = {name: windows[name] for name in ("strides", "dilation", "padding")} | {
        "groups": groups
    }
    attributes |= {"data_layout": layouts[0], "kernel_layout": layouts[1]}
    attributes |= {"out_layout": _order(rng, "NC" + kind.spatial) if rng.random() < 0.2 else ""}
    attributes |= {"channels": None, "kernel_size": windows["taps"] if rng.random() < 0.3 else None}
    shapes = tuple(image[a] for a in layouts[0]), tuple(weight[a] for a in layouts[1])
    return Layer(attributes, shapes, windows["taps"])


def _pool(rng: random.Random, kind: type[Pool]) -> Layer:
    rank, few = len(kind.spatial), _few(rng)
    windows = _windows(rng, rank, few)
    layout = _order(rng, "NC" + kind.spatial)
    sizes = (rng.choice((1, 2)), rng.choice(few), *(n + rng.choice((0, 1, 2)) for n in _image(rng, rank, few)))
    image = dict(zip("NC" + kind.spatial, sizes, strict=True))
    padding = tuple(min(p, t - 1) for p, t in zip(windows["padding"], windows["taps"] * 2, strict=True))
    attributes: dict[str, Any] = {name: windows[name] for name in ("strides", "dilation")}
    attributes |= {"pool_size": windows["taps"], "layout": layout}
    attributes |= {"padding": padding if rng.random() < 0.5 else (0,) * 2 * rank}
    return Layer(attributes, (tuple(image[a] for a in layout),), windows["taps"])


def _few(rng: random.Random) -> Shape:
    """The extents to choose from: a few, or one alone."""
    return (rng.choice((2, 3)),) * 5 if rng.random() < 0.4 else (1, 2, 3, 1, 4)


def _image(rng: random.Random, rank: int, few: Shape) -> list[int]:
    return [rng.choice(few) for _ in range(rank)]


def _windows(rng: random.Random, rank: int, few: Shape) -> dict[str, Shape]:
    taps = tuple(rng.choice((1, 2, 2, 3, 4) if rng.random() < 0.6 else few) for _ in range(rank))
    some = [rng.choice((1, 2, 2, 3)) for _ in range(rank)]
    return {
        "taps": taps,
        "strides": tuple(some) if rng.random() < 0.3 else (some[0] if rng.random() < 0.5 else 1,) * rank,
        "dilation": tuple(rng.choice((1, 1, 1, 2)) for _ in range(rank)),
        "padding": tuple(rng.randint(0, n) for n in (*taps, *taps)),
    }


def _order(rng: random.Random, axes: str) -> str:
    """The layout by default mostly; the one with channels (or filters) last; any."""
    how = rng.random()
    if how < 0.55:
        return axes
    if how < 0.85:
        return axes[0] + axes[2:] + axes[1] if axes[0] == "N" else axes[2:] + axes[1] + axes[0]
    return "".join(rng.sample(axes, len(axes)))
