"""Cases of pools, padding, resizing, and of moving pixels to channels and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minitvm.ir.layout import Layout
from minitvm.ir.ops.image import COORDINATES, METHODS, ROUNDINGS
from minitvm.ir.ops.nn_pad import PAD_MODES
from operator_cases.accuracy import BITS, Accuracy
from operator_cases.case import Case, case, generator, summed
from operator_cases.draw import Draw
from operator_cases.products import window

_POOL_LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC", "NCHW8c", "NCHW4c", "NCHW16c"), 3: ("NCDHW", "NDHWC")}
_AXES = {1: "W", 2: "HW", 3: "DHW"}


def _image(draw: Draw, layout: str, pixels: dict[str, int], least: int = 0) -> tuple[int, ...]:
    """The shape of an image in a layout."""
    batch, channels = draw.sizes(2, max(1, 1024 // math.prod(pixels.values())), least)
    extents = {"N": batch, "C": channels * Layout(layout).factor("C"), **pixels}
    return Layout(layout).shape_of(extents)  # type: ignore[return-value]


@generator(*(f"nn.{kind}_pool{d}d" for kind in ("max", "avg") for d in (1, 2, 3)))
def pool(name: str, draw: Draw, dtype: str) -> Case:
    rank = int(name[-2])
    shape = window(draw, rank)
    layout = draw.choice(_POOL_LAYOUTS[rank])
    x = _image(draw, layout, dict(zip(_AXES[rank], shape.pixels, strict=True)))
    attributes: dict[str, Any] = {
        "pool_size": shape.taps,
        "layout": layout,
        "ceil_mode": draw.flag(),
        **shape.attributes,
    }
    if "max" in name:
        return case(name, draw.array(x, dtype, -99, 99, "all"), **attributes)
    attributes["count_include_pad"] = draw.flag()
    return summed(name, draw.array(x, dtype), terms=math.prod(shape.taps) + 2, **attributes)


@generator(*(f"nn.max_pool{d}d_positions" for d in (1, 2, 3)))
def positions(name: str, draw: Draw, dtype: str) -> Case:
    """Of few different values, so that the first of equal ones is asked for; no window is all padding."""
    rank = int(name[len("nn.max_pool")])
    shape = window(draw, rank)
    padding = [min(p, k - 1) for p, k in zip(shape.attributes["padding"], shape.taps * 2, strict=True)]
    x = _image(draw, _POOL_LAYOUTS[rank][0], dict(zip(_AXES[rank], shape.pixels, strict=True)))
    options = {**shape.attributes, "padding": padding, "dilation": [1] * rank}
    return case(name, draw.array(x, dtype, 0, 3, "all"), pool_size=shape.taps, **options)


@generator("nn.global_max_pool2d", "nn.global_avg_pool2d")
def global_pool(name: str, draw: Draw, dtype: str) -> Case:
    layout = draw.choice(_POOL_LAYOUTS[2])
    h, w = draw.sizes(2, 512, least=1)
    x = _image(draw, layout, {"H": h, "W": w})
    if "max" in name:
        return case(name, draw.array(x, dtype, -99, 99, "all"), layout=layout)
    return summed(name, draw.array(x, dtype), terms=h * w + 2, layout=layout)


def _most(mode: str, extent: int) -> int:
    """How far an extent can be padded: borders are repeated where there is one, mirrored where it is long enough."""
    return {"constant": 5, "edge": 5 if extent else 0, "reflect": max(0, min(5, extent - 1))}[mode]


@generator("nn.pad")
def pad(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4, 512)
    mode = draw.choice(PAD_MODES)
    width = [tuple(draw.integer(0, _most(mode, n)) if draw.flag() else 0 for _ in range(2)) for n in shape]
    value = [draw.array(draw.choice(((), (1,))), dtype, special="all")] if draw.flag() else []
    x = draw.array(shape, dtype, -99, 99, "all")
    return case(name, x, *value, pad_width=width, pad_mode=mode, accuracy=BITS)


@generator("nn.extract_tiles")
def extract_tiles(name: str, draw: Draw, dtype: str) -> Case:
    form = {key: tuple(draw.integer(low, high) for _ in range(2)) for key, low, high in _TILES}
    form["after"] = draw.choice(((), (0, 1), (2, 0)))
    x = draw.array(draw.sizes(4, 512), dtype, -99, 99, "all")
    return case(name, x, **form, fill=draw.choice((0.0, 1.5)) if dtype.startswith("float") else 0.0, accuracy=BITS)


_TILES = (("tile", 1, 6), ("steps", 1, 5), ("before", 0, 3), ("counts", 1, 3), ("runs", 1, 3), ("gaps", 0, 3))


@generator("nn.merge_tiles")
def merge_tiles(name: str, draw: Draw, dtype: str) -> Case:
    counts, tile = ([draw.integer(1, 4) for _ in range(2)] for _ in range(2))
    batch, channels = draw.integer(0, 2), draw.integer(1, 5)
    size = [draw.integer(0, count * extent) for count, extent in zip(counts, tile, strict=True)]
    x = draw.array((batch * counts[0] * counts[1], channels, *tile), dtype, -99, 99, "all")
    return case(name, x, size=tuple(size), batch=batch, counts=tuple(counts), accuracy=BITS)


@generator("nn.depth_to_space", "nn.space_to_depth")
def shuffle(name: str, draw: Draw, dtype: str) -> Case:
    b, layout = draw.integer(1, 3), draw.choice(("NCHW", "NHWC"))
    n, c, h, w = draw.sizes(4, 512)
    deep = name == "nn.depth_to_space"
    extents = {"N": n, "C": c * b * b, "H": h, "W": w} if deep else {"N": n, "C": c, "H": h * b, "W": w * b}
    mode: dict[str, Any] = {"mode": draw.choice(("DCR", "CRD"))} if deep else {}
    x = draw.array(Layout(layout).shape_of(extents), dtype, special="all")  # type: ignore[arg-type]
    return case(name, x, block_size=b, layout=layout, accuracy=BITS, **mode)


def _interpolated(made: Case) -> Case:
    """Weights of a cubic kernel add up to less than 2 in absolute value, along each axis."""

    def magnitude() -> np.ndarray:
        x = made.args[0]
        finite = np.abs(x[np.isfinite(x)].astype("float64"))
        return np.full(made.reference()[0].shape, 4 * finite.max(initial=0))

    return Case(made.op, made.args, Accuracy(ulps=1, terms=24, magnitude=magnitude))


@generator("image.resize2d")
def resize(name: str, draw: Draw, dtype: str) -> Case:
    method = draw.choice(METHODS) if dtype.startswith("float") else "nearest_neighbor"
    layout = draw.choice(_POOL_LAYOUTS[2])
    h, w = draw.sizes(2, 128, least=1)
    size = draw.sizes(2, 256, least=1)
    stretch = draw.choice((1.0, 1.1, 0.95))
    scales = [s / n * stretch for s, n in zip(size, (h, w), strict=True)] if draw.flag(4) else []
    special = "none" if method != "nearest_neighbor" else "all"  # 0 * inf depends on which taps are looked at
    x = draw.array(_image(draw, layout, {"H": h, "W": w}), dtype, special=special)
    attributes: dict[str, Any] = {"size": size, "layout": layout, "method": method, "scales": scales}
    attributes["coordinate_transformation_mode"] = draw.choice(COORDINATES)
    attributes["rounding_method"] = draw.choice(ROUNDINGS)
    attributes["cubic_alpha"] = draw.choice((-0.5, -0.75))
    made = case(name, x, **attributes)
    return made if method == "nearest_neighbor" else _interpolated(made)


@generator("nn.upsampling")
def upsampling(name: str, draw: Draw, dtype: str) -> Case:
    methods = ("nearest_neighbor", "bilinear", "bicubic")
    method = draw.choice(methods) if dtype.startswith("float") else methods[0]
    layout = draw.choice(_POOL_LAYOUTS[2])
    h, w = draw.sizes(2, 64, least=1)
    scales: dict[str, Any] = {"scale_h": draw.choice((2.0, 1.0, 3.0, 1.5)), "scale_w": draw.choice((2.0, 1.0, 2.5))}
    x = draw.array(_image(draw, layout, {"H": h, "W": w}), dtype, special="none")
    made = case(name, x, method=method, layout=layout, align_corners=draw.flag(), **scales)
    return made if method == "nearest_neighbor" else _interpolated(made)
