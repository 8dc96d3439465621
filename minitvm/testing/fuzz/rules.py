"""What is no defect: refusals for a stated reason, and elements of results that ONNX leaves open (``open_ends``).

A rule is a function of a node as a walk sees it.  It says how far each element of the node's results may lie elsewhere:
0 where ONNX decides, infinity where it leaves the element open.  It broadcasts with the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from minitvm.testing.fuzz.walk import Array, Seen

REFUSALS = (
    r"minitvm needs it while importing",
    r"cannot be compared",
    r"^the model has operators that minitvm cannot import",
    r"is not supported",
    r"are not supported",
    r"there is no element to choose",
    r"^Resize: \S.* has nothing to fill",
    r"^nn\.conv\w+: (the window spans|padding=\S.* removes all)",
)
"""Messages that name a known limit.  Of windows larger than the image ONNX says that there are none, ONNX Runtime
refuses convolutions without a pixel, in the dtypes that it has.  Of no elements it chooses the first."""

SINGLE = {
    "Attention": "its scale is a float32 attribute in ONNX's definition",
    "Gelu": "its constants are float32 in ONNX's definition",
    "com.microsoft.FastGelu": "its constants are float32 in ONNX Runtime",
    "HardSwish": "its slope is a float32 attribute in ONNX's definition",
    "GroupNormalization": "its statistics are float32 (stash_type)",
    "LayerNormalization": "as GroupNormalization",
    "RMSNormalization": "as GroupNormalization",
    "Resize": "scales and coordinates are float32",
}
"""Operators whose results in float64 have the digits of float32."""


Spread = Callable[[Seen], "Array | float"]
"""How far each element may lie elsewhere."""


class Rule(NamedTuple):
    why: str
    better: str
    """The peer that knows better: its answer stands, where it has one."""
    spread: Spread


RULES: dict[str, list[Rule]] = {}
"""By operator, whatever its domain."""


def rule(why: str, operators: str, better: str = "") -> Callable[[Spread], Spread]:
    """Registers a rule for operators, by its reason."""

    def register(spread: Spread) -> Spread:
        for name in operators.split():
            RULES.setdefault(name, []).append(Rule(why, better, spread))
        return spread

    return register


def spread(s: Seen, answered: Sequence[str], whys: list[str]) -> Array | float:
    """How far the results of a node may lie elsewhere by all rules; adds the reasons to ``whys``.

    ``answered``: the peers that have an answer."""
    total: Array | float = 0.0
    for each in RULES.get(s.node.op_type, ()):
        found = 0.0 if each.better in answered else each.spread(s)
        if np.any(found):
            whys.append(f"{s.node.op_type}: {each.why}")
            total = np.maximum(total, found)
    return total


# --- what rules ask -------------------------------------------------------------------------------------------


def opened(elements: Any) -> Array:
    return np.where(elements, np.inf, 0.0)


def wide(a: Array) -> Array:
    return a.astype(np.float64)


def magnitudes(a: Array) -> Array:
    """Magnitudes in double; 0 for what is not finite."""
    return np.asarray(np.nan_to_num(np.abs(wide(a)), nan=0.0, posinf=0.0))


def is_float(s: Seen) -> bool:
    return s.first.dtype.kind == "f"


def fits(found: Array, dtype: np.dtype[Any], margin: float = 1.0) -> Array:
    """Doubles that lie within an integer dtype, or less than ``margin`` beside it."""
    info = np.iinfo(dtype)
    return np.asarray((found > float(info.min) - margin) & (found < float(info.max) + margin))


def limit(a: Array) -> float:
    """The largest number in which sums of a dtype are kept."""
    if a.dtype.kind in "iu":
        return float(np.iinfo(a.dtype).max)
    return float(np.finfo(np.float64 if a.dtype == np.float64 else np.float32).max)


def axes_of(s: Seen) -> list[int]:
    axes = s.operand(1)
    return list(s.attributes.get("axes", [] if axes is None else axes.tolist()))


def along(scale: Array, s: Seen) -> Array:
    """The scale of every element: one for all, one for each place along an axis, or one for each block of places."""
    axis = s.attributes.get("axis", 1) % max(s.first.ndim, 1)
    if scale.size == 1:
        return scale.reshape(())
    if scale.ndim == s.first.ndim and scale.shape != s.first.shape:
        blocks = np.repeat(scale, s.attributes["block_size"], axis)
        return np.asarray(np.take(blocks, range(s.first.shape[axis]), axis))
    return scale if scale.ndim == s.first.ndim > 1 else scale.reshape(-1, *[1] * (s.first.ndim - 1 - axis))


def padded_same(s: Seen, kernel: Sequence[int]) -> list[tuple[int, ...]]:
    """Pixels, span of the window and stride of every axis, where the padding is SAME."""
    strides, dilations = (s.attributes.get(name, [1] * len(kernel)) for name in ("strides", "dilations"))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    is_same = s.attributes.get("auto_pad", b"").startswith(b"SAME")
    return list(zip(s.first.shape[2:], spans, strides, strict=True)) if is_same else []
