"""What is in a weight: how its numbers are spread, and the first of them."""

from __future__ import annotations

from typing import Any

import numpy as np

_BINS, _FIRST, _MOST = 32, 8, 65_536


def facts_of(array: np.ndarray) -> dict[str, Any]:
    """``low``, ``high``, ``mean`` of the finite numbers; ``zeros`` and ``odd`` (NaN, infinities) as shares; ``counts``
    of bins from ``low`` to ``high``; the ``first`` numbers.  Of a large array, ``looked_at`` of its ``size`` numbers,
    evenly taken.  Empty where it holds no real numbers."""
    if array.dtype.kind in "OSUc" or not array.size:
        return {}
    flat = array.reshape(-1)
    looked = flat[:: -(-flat.size // _MOST)].astype(np.float64)
    finite = looked[np.isfinite(looked)]
    largest = float(np.max(np.abs(finite), initial=0.0)) or 1.0
    scaled = finite / largest  # their differences are finite, too
    low, high = (float(scaled.min()), float(scaled.max())) if finite.size else (0.0, 0.0)
    bins = np.minimum((scaled - low) / ((high - low) or 1.0) * _BINS, _BINS - 1).astype(int)
    return {
        "low": low * largest,
        "high": high * largest,
        "mean": float(scaled.mean()) * largest if finite.size else 0.0,
        "zeros": float(np.mean(looked == 0)),
        "odd": 1.0 - finite.size / looked.size,
        "counts": np.bincount(bins, minlength=_BINS).tolist(),
        "first": [str(value) for value in flat[:_FIRST]],
        "size": flat.size,
        "looked_at": looked.size,
    }
