"""What is no defect: refusals for a stated reason, and elements of results that ONNX leaves open.

A rule is a function of a node as a walk sees it.  It says how far each element of the node's results may lie elsewhere:
0 where ONNX decides, infinity where it leaves the element open.  It broadcasts with the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from minitvm.testing.fuzz.references.sampling import given_scales, undecided
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


class Rule(NamedTuple):
    why: str
    better: str
    """The peer that knows better: its answer stands, where it has one."""
    spread: Callable[[Seen], Array | float]


RULES: dict[str, list[Rule]] = {}
"""By operator, whatever its domain."""


def _rule(why: str, operators: str, better: str = "") -> Callable[[Any], Any]:
    def register(spread: Callable[[Seen], Array | float]) -> Callable[[Seen], Array | float]:
        for name in operators.split():
            RULES.setdefault(name, []).append(Rule(why, better, spread))
        return spread

    return register


def spread(s: Seen, answered: Sequence[str], whys: list[str]) -> Array | float:
    """How far the results of a node may lie elsewhere by all rules; adds the reasons to ``whys``.

    ``answered``: the peers that have an answer."""
    total: Array | float = 0.0
    for rule in RULES.get(s.node.op_type, ()):
        found = 0.0 if rule.better in answered else rule.spread(s)
        if np.any(found):
            whys.append(f"{s.node.op_type}: {rule.why}")
            total = np.maximum(total, found)
    return total


# --- what rules ask -------------------------------------------------------------------------------------------


def _open(elements: Any) -> Array:
    return np.where(elements, np.inf, 0.0)


def _wide(a: Array) -> Array:
    return a.astype(np.float64)


def _sizes(a: Array) -> Array:
    """Magnitudes in double; 0 for what is not finite."""
    return np.asarray(np.nan_to_num(np.abs(_wide(a)), nan=0.0, posinf=0.0))


def _is_float(s: Seen) -> bool:
    return s.first.dtype.kind == "f"


def _fits(found: Array, dtype: np.dtype[Any], margin: float = 1.0) -> Array:
    """Doubles that lie within an integer dtype, or less than ``margin`` beside it."""
    info = np.iinfo(dtype)
    return np.asarray((found > float(info.min) - margin) & (found < float(info.max) + margin))


def _limit(a: Array) -> float:
    """The largest number in which sums of a dtype are kept."""
    if a.dtype.kind in "iu":
        return float(np.iinfo(a.dtype).max)
    return float(np.finfo(np.float64 if a.dtype == np.float64 else np.float32).max)


def _axes(s: Seen) -> list[int]:
    axes = s.operand(1)
    return list(s.attributes.get("axes", [] if axes is None else axes.tolist()))


def _along(scale: Array, s: Seen) -> Array:
    """The scale of every element: one for all, one for each place along an axis, or one for each block of places."""
    axis = s.attributes.get("axis", 1) % max(s.first.ndim, 1)
    if scale.size == 1:
        return scale.reshape(())
    if scale.ndim == s.first.ndim and scale.shape != s.first.shape:
        wide = np.repeat(scale, s.attributes["block_size"], axis)
        return np.asarray(np.take(wide, range(s.first.shape[axis]), axis))
    return scale if scale.ndim == s.first.ndim > 1 else scale.reshape(-1, *[1] * (s.first.ndim - 1 - axis))


def _same(s: Seen, kernel: Sequence[int]) -> list[tuple[int, ...]]:
    """Pixels, span of the window and stride of every axis, where the padding is SAME."""
    strides, dilations = (s.attributes.get(name, [1] * len(kernel)) for name in ("strides", "dilations"))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    is_same = s.attributes.get("auto_pad", b"").startswith(b"SAME")
    return list(zip(s.first.shape[2:], spans, strides, strict=True)) if is_same else []


# --- integers -------------------------------------------------------------------------------------------------


@_rule("integer division by zero, or of the least integer by -1", "Div Mod")
def _division(s: Seen) -> Array | float:
    by = s.operand(1)
    if by is None or by.dtype.kind not in "iu":
        return 0.0
    least = (s.first == np.iinfo(s.first.dtype).min) & (by.dtype.kind == "i")
    return _open((by == 0) | (least & (by.astype(np.int64) == -1)))


@_rule("a cast of what does not fit", "Cast CastLike")
def _cast(s: Seen) -> Array | float:
    return _open(~_fits(_wide(s.first), s.y.dtype)) if _is_float(s) and s.y.dtype.kind in "iu" else 0.0


@_rule("a shift by as many bits as there are, or more", "BitShift")
def _shift(s: Seen) -> Array | float:
    by = s.operand(1)
    return 0.0 if by is None else _open(by >= 8 * by.dtype.itemsize)


@_rule("an integer power that is infinite, or does not fit", "Pow")
def _power(s: Seen) -> Array | float:
    """Peers compute integer powers in double."""
    exponent = s.operand(1)
    if exponent is None or s.y.dtype.kind == "f":
        return 0.0
    found = np.power(_wide(s.first), _wide(exponent))
    rounded = np.where(np.abs(found) < 2.0**53, 0.0, np.abs(found) * 2.0**-50)
    return np.where(_fits(found, s.y.dtype, 0.0) | (found == np.iinfo(s.y.dtype).min), rounded, np.inf)


@_rule("NaN as an integer, or a quotient that fits none", "QuantizeLinear")
def _quotient(s: Seen) -> Array | float:
    """NaN; and what an integer of 32 bits does not hold, of integers, of float16 and by blocks: peers convert it before
    it saturates."""
    converts = s.first.dtype != np.float32 or bool(s.attributes.get("block_size"))
    nan = np.isnan(s.first) if _is_float(s) else False
    return np.asarray(np.maximum(_open(nan), _large_quotient(s) if converts else 0.0))


@_rule("ONNX's reference converts before it saturates", "QuantizeLinear", "onnxruntime")
def _large_quotient(s: Seen) -> Array | float:
    scale = s.operand(1)
    return 0.0 if scale is None else _open(~(np.abs(_wide(s.first) / _along(_wide(scale), s)) < 2.0**31))


@_rule("a range that is infinite", "DynamicQuantizeLinear")
def _range(s: Seen) -> Array | float:
    return 0.0 if np.isfinite(s.first).all() else np.inf


@_rule("ONNX Runtime's table of exponentials rounds down", "QLinearSoftmax")
def _table(s: Seen) -> Array | float:
    """It grows with the integers: a scale below 0 makes the least the largest."""
    scale = s.operand(1)
    return 1.0 if scale is None or (scale > 0).all() else np.inf


@_rule("a difference that does not fit, or integers that double does not hold", "Shrink")
def _shrunk(s: Seen) -> Array | float:
    """Peers wrap what does not fit."""
    if _is_float(s):
        return 0.0
    wide, bias, limit = _wide(s.first), s.attributes.get("bias", 0.0), s.attributes.get("lambd", 0.5)
    moved = wide - np.sign(wide) * bias
    return _open(((np.abs(wide) > limit) & ~_fits(moved, s.first.dtype)) | (np.abs(wide) > 2.0**53))


@_rule("a multiple of integers that is none", "Gemm", "onnxruntime")
def _scaled_integers(s: Seen) -> Array | float:
    """It is computed in double, and negative numbers are cast to unsigned ones."""
    factors = [s.attributes.get(name, 1.0) for name in ("alpha", "beta")]
    if _is_float(s) or s.first.size == 0:
        return 0.0
    if s.first.dtype.kind == "u" and min(factors) < 0:
        return np.inf
    if all(float(factor).is_integer() for factor in factors):
        return 0.0
    return _open(np.abs(s.of(*[_sizes] * 3)) > min(_limit(s.first), 2.0**53))


@_rule("a logarithm that is an integer", "ReduceLogSum ReduceLogSumExp")
def _logarithm(s: Seen) -> Array | float:
    """Rounded to an integer somewhere; of a sum that is not positive, or has wrapped."""
    if _is_float(s):
        return 0.0
    if s.first.size == 0 or (np.abs(_wide(s.first)) > 2.0**53).any():
        return np.inf
    small = (s.first > 0).all() and float(_wide(s.first).sum()) < _limit(s.first)
    return 1.0 if small or s.node.op_type == "ReduceLogSumExp" else np.inf


_REDUCTIONS = "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum"


@_rule("ONNX Runtime over nothing", f"{_REDUCTIONS} QLinearConv", "onnx")
def _nothing(s: Seen) -> Array | float:
    """It keeps the last axes of a reduction, and does not write a sum over no channels."""
    return np.inf if s.first.size == 0 and (s.node.op_type == "QLinearConv" or min(_axes(s), default=0) < 0) else 0.0


# --- what overflows, vanishes or is infinite ------------------------------------------------------------------


@_rule("a product of infinity and what may vanish or overflow first", "ReduceProd")
def _ordered_product(s: Seen) -> Array | float:
    """Rows with infinity and no zero whose small factors vanish together, and rows with a zero and no infinity whose
    large ones overflow: NaN in one order, and not in another."""
    if not _is_float(s):
        return 0.0
    over = tuple(_axes(s)) or (() if s.attributes.get("noop_with_empty_axes") else None)
    keeps, size = bool(s.attributes.get("keepdims", 1)), np.abs(s.first.astype(np.longdouble))
    usual = np.isfinite(size) & (size > 0)
    low, high = (np.where(usual, limit(size, 1), 1).prod(over, keepdims=keeps) for limit in (np.minimum, np.maximum))
    infinite, zero = ((size == v).any(over, keepdims=keeps) for v in (np.inf, 0))
    info = np.finfo(s.first.dtype)
    return _open((infinite & (low < float(info.tiny))) | (zero & (high > float(info.max))))


@_rule("infinity among three factors or more", "Einsum")
def _contracted(s: Seen) -> Array | float:
    """Which two are multiplied first is open; elements with infinity among their factors are NaN in one order, and
    infinite in another."""
    if len(s.x) < 3 or not _is_float(s):
        return 0.0
    return _open(s.of(*[lambda a: np.where(np.isinf(a), 2.0**100, 1.0)] * len(s.x)) > 2.0**60)


@_rule("products that overflow or vanish", "Conv ConvTranspose Einsum FusedMatMul Gemm MatMul")
def _products(s: Seen) -> Array | float:
    """Sums of finite products that overflow in one order of summation, or before a small alpha, and not in another;
    what vanishes has either sign.  Integers wrap."""
    if not _is_float(s) or s.first.size == 0:
        return 0.0
    least, info = min(abs(s.attributes.get("alpha", 1.0)), 1.0), np.finfo(s.y.dtype)
    total = np.abs(s.of(*[_sizes] * 3))
    vanishes = (total > 0) & (total < float(info.tiny))
    return np.where(vanishes, float(info.smallest_subnormal), _open(total > least * _limit(s.first)))


@_rule("products that overflow", "BatchNormalization")
def _shifted(s: Seen) -> Array | float:
    """Mean and bias may be one number, and products overflow apart."""
    scale, _, mean, var = (np.asarray(a, np.float64).reshape(-1, *[1] * (s.first.ndim - 2)) for a in s.x[1:5])
    factor = scale / np.sqrt(var + s.attributes.get("epsilon", 1e-5))
    return _open(np.maximum(np.abs(_wide(s.first) * factor), np.abs(mean * factor)) > _limit(s.first))


_SUMS = "AveragePool CumSum GlobalAveragePool Mean ReduceL1 ReduceMean ReduceSum ReduceSumSquare"


@_rule("sums that overflow", _SUMS)
def _sums(s: Seen) -> Array | float:
    """As products; ONNX Runtime's sums of integers saturate.  A mean of no integers is any."""
    op, whole = s.node.op_type, not _is_float(s)
    if s.first.size == 0:
        return np.inf if "Mean" in op and whole else 0.0
    total = np.abs(s.of(*[_sizes] * (len(s.x) if op == "Mean" else 1)))
    if "Pool" in op or "Mean" in op:
        total = total * s.first.size / max(s.y.size, 1)
    limit = min(_limit(s.first), 2.0**53) if "Mean" in op and whole else _limit(s.first)
    return _open(total > limit)


@_rule("powers that overflow or vanish", "GlobalLpPool LpPool ReduceL2")
def _powers(s: Seen) -> Array | float:
    if s.first.size == 0:
        return 0.0
    p, largest = s.attributes.get("p", 2), np.abs(s.of(_sizes))
    least = float(np.finfo(s.first.dtype).tiny) if _is_float(s) else 0.0
    return np.asarray(np.maximum(_open(largest**p > _limit(s.first)), (s.first.size * least) ** (1 / p)))


@_rule("products that overflow", "Attention")
def _scores(s: Seen) -> Array | float:
    q, k = (float(_sizes(a).max(initial=0.0)) for a in s.x[:2] if a is not None)
    return np.inf if q * k * s.first.shape[-1] > _limit(s.first) else 0.0


_CENTRED = (
    "GroupNormalization InstanceNormalization LayerNormalization MeanVarianceNormalization SkipLayerNormalization"
)


@_rule("squares that do not fit the dtype", f"{_CENTRED} RMSNormalization LpNormalization")
def _squares(s: Seen) -> Array | float:
    """Sums of squares that overflow, or vanish; ``rows`` of a result have one sum."""
    total = np.square(_sizes(s.first))
    if s.y.shape == s.first.shape and s.first.ndim:
        by_axis = s.node.op_type in ("LayerNormalization", "RMSNormalization", "LpNormalization")
        first = s.attributes.get("axis", -1) % s.first.ndim if by_axis else 1
        total = total.sum(tuple(range(first, s.first.ndim)) or None, keepdims=True)
    else:
        total = total.sum()
    least = float(np.finfo(s.first.dtype).tiny) if _is_float(s) else 0.0
    return _open((total * 4 > _limit(s.first)) | ((total > 0) & (total < least)))


@_rule("infinity times an alpha of 0", "FusedMatMul Gemm")
def _times_nothing(s: Seen) -> Array | float:
    """BLAS does not multiply where alpha is 0: what is not finite vanishes."""
    a, b = s.x[:2]
    if s.attributes.get("alpha", 1.0) != 0 or not _is_float(s) or a is None or b is None:
        return 0.0
    largest = [float(np.abs(_wide(v)).max(initial=0.0)) for v in (a, b)]
    fits = largest[0] * largest[1] * max(a.size, 1) < _limit(a)
    return 0.0 if fits and all(v is None or np.isfinite(v).all() for v in s.x) else np.inf


@_rule("infinity less infinity", "SoftmaxCrossEntropyLoss")
def _infinite_logits(s: Seen) -> Array | float:
    return _open(np.isposinf(s.first).any())


@_rule("padding times infinity", "Conv ConvTranspose")
def _infinite_weights(s: Seen) -> Array | float:
    """Whether the padding is multiplied, too."""
    weights = s.operand(1)
    return 0.0 if weights is None or weights.dtype.kind != "f" or np.isfinite(weights).all() else np.inf


@_rule("a recurrence over what is not finite", "GRU LSTM RNN")
def _steps(s: Seen) -> Array | float:
    """Batches whose operands are not finite; all, where weights are not."""
    if s.first.size == 0:
        return np.inf
    bad = [a is not None and a.dtype.kind == "f" and not (np.abs(_wide(a)) < 1e30).all() for a in s.x]
    if not any(bad):
        return 0.0
    return np.inf if any(bad[1:]) else _open(~(np.abs(_wide(s.first)) < 1e30).all((0, 2)))[:, None]


# --- roundings ------------------------------------------------------------------------------------------------


@_rule("the rounding of a mean", _CENTRED)
def _centred(s: Seen) -> Array | float:
    """What is left of numbers without their mean has the mean's rounding, which ``stash_type`` says."""
    op, given = s.node.op_type, s.attributes
    if s.first.size == 0 or not _is_float(s):
        return 0.0
    eps = max(float(np.finfo(d).eps) for d in (s.first.dtype, np.float32 if op in SINGLE else np.float64))
    x = _wide(s.first)
    if op == "SkipLayerNormalization":
        x = x + sum(_wide(a) for a in (s.x[1], *s.x[4:5]) if a is not None)
    rows = x.reshape(len(x), given["num_groups"], -1) if op == "GroupNormalization" else x
    first = {"GroupNormalization": 2, "InstanceNormalization": 2}.get(op, given.get("axis", -1) % rows.ndim)
    axes = tuple(range(first, rows.ndim)) if op != "MeanVarianceNormalization" else tuple(given.get("axes", (0, 2, 3)))
    deviation = np.sqrt(rows.var(axes, keepdims=True) + given.get("epsilon", 1e-12))
    error = 4 * eps * np.abs(rows).max(axes, keepdims=True) / deviation
    scales = [float(np.nanmax(np.abs(a), initial=0)) for a in s.x[1:3] if a is not None and a.ndim == 1]
    return np.nan_to_num(np.broadcast_to(error, rows.shape).reshape(x.shape) * max(scales, default=1.0), posinf=0.0)


@_rule("a deviation of nothing", "MeanVarianceNormalization")
def _no_variance(s: Seen) -> Array | float:
    """What is left is a rounding over a rounding."""
    axes, x = tuple(s.attributes.get("axes", (0, 2, 3))), _wide(s.first)
    rounding = 4 * np.finfo(s.first.dtype).eps * np.abs(x).max(axes, keepdims=True, initial=0.0)
    return _open(x.std(axes, keepdims=True) <= rounding)


@_rule("the rounding of 1", "BiasGelu FastGelu Gelu")
def _gelu(s: Seen) -> Array | float:
    """1 plus what is close to -1 has the rounding of 1."""
    x = sum(_wide(a) for a in s.x if a is not None)
    return np.asarray(np.nan_to_num(2 * np.abs(x) * float(np.finfo(s.first.dtype).eps), posinf=0.0))


@_rule("a window whose ends are roundings of 0", "BlackmanWindow HammingWindow HannWindow")
def _ends(s: Seen) -> Array | float:
    return 2.0**-21


# --- places ---------------------------------------------------------------------------------------------------


@_rule("a single pixel from corner to corner", "AffineGrid")
def _single_pixel(s: Seen) -> Array | float:
    """Its step is 2 / 0 in ONNX's definition, which ONNX Runtime computes where it has no kernel: in float16."""
    size = s.operand(1)
    alone = size is not None and 1 in size[2:] and bool(s.attributes.get("align_corners"))
    return np.inf if alone and s.first.dtype == np.float16 else 0.0


@_rule("padding that is less than nothing", "AveragePool LpPool MaxPool")
def _cropped(s: Seen) -> Array | float:
    """The result has as many pixels as strides fit, so kernels smaller than strides would pad less than nothing."""
    axes = _same(s, s.attributes["kernel_shape"])
    return np.inf if any((-(-n // t) - 1) * t + span - n < -1 for n, span, t in axes) else 0.0


@_rule("kernels smaller than the strides", "ConvTranspose")
def _stretched(s: Seen) -> Array | float:
    """ONNX's result of SAME has as many pixels as the image times the strides; ONNX Runtime's has no pixels that
    no tap reaches."""
    w = s.operand(1)
    return np.inf if w is not None and any(span < t for _, span, t in _same(s, w.shape[2:])) else 0.0


@_rule("a size that float32 rounds up", "Resize Upsample", "onnxruntime")
def _rounded_size(s: Seen) -> Array | float:
    scales = given_scales(s.x, s.first.ndim)
    if scales is None:
        return 0.0
    exact = np.floor(np.array(s.first.shape) * _wide(scales))
    return 0.0 if (np.floor(np.array(s.first.shape, np.float32) * scales) == exact).all() else np.inf


@_rule("a coordinate between two pixels, infinity times 0, or a rounding", "Resize Upsample")
def _resampled(s: Seen) -> Array | float:
    """Coordinates are float32; an interpolation of integers, in double, may be rounded or truncated, and wrapped."""
    if 0 in s.y.shape or 0 in s.first.shape:
        return 0.0
    found = _open(undecided(s.first, s.y.shape, given_scales(s.x, s.first.ndim), s.attributes, s.opset))
    if s.attributes.get("mode", b"nearest") == b"nearest":
        return found
    values = _wide(s.first[np.isfinite(s.first)])
    steep = float(np.ptp(values)) if values.size else 0.0
    error = 2 * float(np.finfo(np.float32).eps) * max(*s.first.shape, *s.y.shape) * steep
    if not _is_float(s):
        error += 1 + 2.0**-50 * float(np.abs(values).max(initial=0.0))
        exact = s.of(_wide)
        found = np.maximum(found, _open(~_fits(exact, s.first.dtype, -1 - 2.0**-50 * np.abs(exact))))
    return np.asarray(np.maximum(found, error))
