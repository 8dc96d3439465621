"""Elements that ONNX leaves open because of the order in which products and quotients are rounded."""

from __future__ import annotations

import numpy as np

from minitvm.testing.fuzz.seen import Array, Seen, in_double, opened


def ordered_product(s: Seen) -> Array | float:
    """Rows with infinity and no zero whose small factors vanish together, and rows with a zero and no infinity whose
    large ones overflow: NaN in one order, and not in another."""
    if s.first.dtype.kind != "f":
        return 0.0
    axes = s.attributes.get("axes", [] if s.x[1] is None else s.x[1].tolist())
    over = tuple(axes) or (() if s.attributes.get("noop_with_empty_axes") else None)
    keeps, size = bool(s.attributes.get("keepdims", 1)), np.abs(s.first.astype(np.longdouble))
    usual = np.isfinite(size) & (size > 0)
    low, high = (np.where(usual, limit(size, 1), 1).prod(over, keepdims=keeps) for limit in (np.minimum, np.maximum))
    infinite, zero = ((size == v).any(over, keepdims=keeps) for v in (np.inf, 0))
    info = np.finfo(s.first.dtype)
    vanishes, overflows = low < float(info.tiny), high > float(info.max)
    return opened((infinite & vanishes) | (zero & overflows))


def contracted(s: Seen) -> Array | float:
    """Of three operands or more, which two are multiplied first is open; elements with infinity among their factors
    are NaN in one order, and infinite in another."""
    if len(s.node.input) < 3 or s.first.dtype.kind != "f":
        return 0.0
    factors = in_double(s, dict.fromkeys(s.node.input, lambda a: np.where(np.isinf(a), 2.0**100, 1.0)))
    return opened(factors > 2.0**60)


def along(scale: Array, s: Seen) -> Array:
    """The scale of every element: one for all, one for each place along an axis, or one for each block of places."""
    axis = s.attributes.get("axis", 1) % max(s.first.ndim, 1)
    if scale.size == 1:
        return scale.reshape(())
    if scale.ndim == s.first.ndim and scale.shape != s.first.shape:
        wide = np.repeat(scale, s.attributes["block_size"], axis)
        return np.asarray(np.take(wide, range(s.first.shape[axis]), axis))
    return scale if scale.ndim == s.first.ndim > 1 else scale.reshape(-1, *[1] * (s.first.ndim - 1 - axis))
