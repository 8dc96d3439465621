"""Generators of the long tail: boxes, pixels in columns, frames of a signal, n-grams."""

import numpy as np

from tests.fuzz.case import Value
from tests.fuzz.draw import Draw, generates


@generates("NonMaxSuppression")
def non_max_suppression(d: Draw) -> list[Value]:
    """Corners on whole pixels, scores of few values: overlaps and scores that are equal."""
    batch, classes, boxes = d.size(3), d.size(3), d.size(33)
    scores = d.within((batch, classes, boxes), "float32", 0, 1, 0.2)
    limits = [d.ints([d.choice((0, 1, 3, 100))]), *(d.within((1,), "float32", 0.05, 0.6, 1.0) for _ in range(2))]
    drawn = np.random.default_rng(d.between(0, 1 << 30)).uniform(0, 4, (batch, boxes, 4)).astype("float32")
    corners = d.constant(np.round(drawn) if d.chance(0.5) else drawn, 0.8)
    return d.node([corners, scores, *(d.maybe(v, 0.8) for v in limits)], center_point_box=d.choice((None, 0, 1)))


@generates("Col2Im")
def col2im(d: Draw) -> list[Value]:
    rank = d.choice((1, 2, 2, 3))
    taps, counts = [d.between(1, 3) for _ in range(rank)], [d.between(1, 4) for _ in range(rank)]
    strides, dilations = [d.between(1, 2) for _ in range(rank)], [d.between(1, 2) for _ in range(rank)]
    image = [(k - 1) * s + 1 + (c - 1) * t for k, s, c, t in zip(taps, dilations, counts, strides, strict=True)]
    shape = (d.size(3), d.size(3) * int(np.prod(taps)), int(np.prod(counts)))
    inputs = [d.like(shape, d.dtype(0, ("float32", "float64"))), d.ints(image), d.ints(taps)]
    return d.node(inputs, strides=strides, dilations=dilations)


@generates("MaxUnpool")
def max_unpool(d: Draw) -> list[Value]:
    """Positions of all windows side by side, each somewhere in its own."""
    n, c, h, w, k = d.size(2), d.size(3), d.size(5), d.size(5), d.choice((1, 2, 3))
    rows, columns = np.indices((h, w)) * k
    moved = np.random.default_rng(d.between(0, 1 << 30)).integers(0, k, (2, n, c, h, w))
    planes = np.arange(n * c).reshape(n, c, 1, 1) * (h * k * w * k)
    at = planes + (rows + moved[0]) * (w * k) + columns + moved[1]
    x = d.like((n, c, h, w), d.dtype(0, ("float32", "float64")))
    return d.node([x, d.constant(at, 0.5)], kernel_shape=[k, k], strides=[k, k])
