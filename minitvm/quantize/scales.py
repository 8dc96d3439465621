"""The bounds on magnitudes that values themselves ask for.

``kl_scale`` takes the one that leaves a histogram most like itself once it has as many steps as an integer of eight
bits (S. Migacz, "8-bit inference with TensorRT", GTC 2017); ``percentile_scale`` the one below which all but one
value in a hundred thousand lie.
"""

from __future__ import annotations

import numpy as np

BINS, STEPS, PERCENTILE = 8001, 255, 0.99999


def kl_scale(values: np.ndarray) -> float:
    """The bound on magnitudes whose 255 steps keep most of what a histogram of the values says."""
    bound = float(np.abs(values).max(initial=0.0))
    if bound == 0.0:
        return 1.0
    counts, edges = np.histogram(values, bins=BINS, range=(-bound, bound))
    middle, half = BINS // 2, STEPS // 2
    best, least = bound, np.inf
    for reach in range(half, middle + 1):
        lost = _divergence(counts, middle - reach, middle + reach + 1)
        if lost < least:
            best, least = float(edges[middle + reach + 1]), lost
    return best


def _divergence(counts: np.ndarray, start: int, stop: int) -> float:
    """What is lost of a histogram that is cut to a range and has few steps: the Kullback-Leibler divergence."""
    inside = counts[start:stop].astype(np.float64)
    kept = inside.copy()
    kept[0] += counts[:start].sum()
    kept[-1] += counts[stop:].sum()
    filled, merged = kept > 0, (stop - start) // STEPS
    step = np.minimum(np.arange(stop - start) // merged, STEPS - 1)
    total = np.bincount(step, inside, STEPS)
    share = np.bincount(step, filled, STEPS)
    coarse = np.where(filled, (total / np.maximum(share, 1))[step], 0.0)
    p, q = _smoothed(kept), _smoothed(coarse)
    return np.inf if p is None or q is None else float((p * np.log(p / q)).sum())


def _smoothed(counts: np.ndarray, least: float = 1e-4) -> np.ndarray | None:
    """A distribution with no zeros: a little of what is not zero goes there.  ``None`` where that is not enough."""
    zeros = counts == 0
    taken = least * zeros.sum() / max((~zeros).sum(), 1)
    if taken >= 1.0:
        return None
    made = np.where(zeros, least, counts - taken)
    return None if (made <= 0).any() else made / made.sum()


def percentile_scale(values: np.ndarray) -> float:
    """The magnitude below which all but one value in a hundred thousand lie."""
    sizes = np.abs(values)
    place = min(int(sizes.size * PERCENTILE), sizes.size - 1)
    return float(np.partition(sizes, place)[place]) or 1.0
