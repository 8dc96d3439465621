"""Cases of operators that read between pixels, and of what windows leave behind."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minitvm.ir.ops.more.sampling import PADDINGS
from operator_cases.accuracy import Accuracy
from operator_cases.case import Case, case, generator, summed
from operator_cases.draw import Draw


def _between(draw: Draw, shape: Sequence[int], extent: int) -> np.ndarray:
    """Places inside and outside of an extent, away from where rounding decides which pixel is meant."""
    rng = np.random.default_rng(draw.integer(0, 1 << 16))
    return rng.integers(-4, extent + 4, shape) + rng.choice((0.15, 0.3, 0.65, 0.85), shape)


@generator("image.grid_sample")
def grid_sample(name: str, draw: Draw, dtype: str) -> Case:
    rank = draw.integer(1, 3)
    data = (draw.size(3), draw.size(5), *(draw.size(9) for _ in range(rank)))
    out = draw.sizes(draw.integer(1, 3), 64)
    method, align, pixels = draw.choice(("linear", "nearest", "cubic")), draw.flag(), draw.flag()
    columns = []
    for extent in reversed(data[2:]):
        x = _between(draw, (data[0], *out), extent)
        ends = (0, max(extent - 1, 1)) if align else (-0.5, extent)
        columns.append(x if pixels else 2 * (x - ends[0]) / ends[1] - 1)
    grid = np.stack(columns, -1).astype("float32" if dtype == "float16" else dtype)
    options = {"method": method, "padding_mode": draw.choice(PADDINGS), "align_corners": align, "pixels": pixels}
    made = case(name, draw.array(data, dtype, special="none"), grid, **options)

    def magnitude() -> np.ndarray:
        return np.full(made.reference()[0].shape, 4 * np.abs(made.args[0].astype("float64")).max(initial=0))

    terms = 24 + 8 * sum(n + 4 for n in data[2:])
    return Case(made.op, made.args, Accuracy(ulps=1, terms=terms, magnitude=magnitude))


@generator("nn.col2im")
def col2im(name: str, draw: Draw, dtype: str) -> Case:
    rank = draw.integer(1, 3)
    taps, strides, dilation = ([draw.integer(1, 3) for _ in range(rank)] for _ in range(3))
    counts = [draw.integer(1, 5) for _ in range(rank)]
    spans = [(k - 1) * d + 1 + (c - 1) * s for k, d, c, s in zip(taps, dilation, counts, strides, strict=True)]
    before = [draw.integer(0, min(2, n - 1)) for n in spans]
    after = [draw.integer(0, min(2, n - 1 - b)) for n, b in zip(spans, before, strict=True)]
    size, pads = [n - b - a for n, b, a in zip(spans, before, after, strict=True)], before + after
    x = draw.array((draw.size(2), draw.size(3) * math.prod(taps), math.prod(counts)), dtype, special="none")
    options = {"size": size, "kernel_size": taps, "strides": strides, "dilation": dilation, "padding": pads}
    return summed(name, x, terms=math.prod(taps) + 2, **options)


@generator("vision.roi_pool")
def roi_pool(name: str, draw: Draw, dtype: str) -> Case:
    """Corners on quarters of pixels, exact at any scale that is a power of two."""
    n, c, h, w = (draw.size(limit) for limit in (3, 4, 9, 9))
    batch = draw.array((draw.size(5), 1), dtype, 0, n - 1, "none").round()
    corners = (draw.array((len(batch), 4), dtype, -3, 9, "none") * 4).round() / 4
    size, scale = (draw.integer(1, 4), draw.choice((1, 2, 4))), draw.choice((0.5, 1.0))
    rois = np.concatenate([batch, corners], 1).astype(dtype)
    return case(name, draw.array((n, c, h, w), dtype, special="none"), rois, size=size, spatial_scale=scale)


@generator("vision.roi_align")
def roi_align(name: str, draw: Draw, dtype: str) -> Case:
    n, c, h, w = (draw.size(limit) for limit in (3, 4, 9, 9))
    regions = draw.size(5)
    ends = [np.sort(_between(draw, (regions, 2), extent), -1) for extent in (w, h)]
    rois = np.stack([ends[0][:, 0], ends[1][:, 0], ends[0][:, 1], ends[1][:, 1]], -1).astype(dtype)
    batch = draw.array((regions,), draw.signed_dtype(), 0, n - 1, "none")
    x = draw.array((n, c, h, w), dtype, special="none")
    options = {"size": (draw.integer(1, 3), draw.integer(1, 3)), "sample_ratio": draw.integer(0, 3)}
    options |= {"mode": draw.choice(("avg", "max")), "half_pixel": draw.flag()}
    made = case(name, x, rois, batch, spatial_scale=1.0, **options)

    def magnitude() -> np.ndarray:
        return np.full(made.reference()[0].shape, np.abs(made.args[0].astype("float64")).max(initial=0))

    return Case(made.op, made.args, Accuracy(ulps=1, terms=400, magnitude=magnitude))
