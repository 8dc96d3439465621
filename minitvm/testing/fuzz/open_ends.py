"""What is no defect: refusals for a stated reason, and elements of results that ONNX leaves open."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minitvm.testing.fuzz.case import Case
from minitvm.testing.fuzz.open_products import along, contracted, ordered_product
from minitvm.testing.fuzz.references.sampling import given_scales, undecided
from minitvm.testing.fuzz.seen import Array, Rule, Seen, in_double, opened

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

DISTRUSTED = {
    "AffineGrid": (99, "it steps over a single pixel as its definition does not"),
    "SoftmaxCrossEntropyLoss": (99, "large logits overflow"),
}
"""Operators that ONNX's reference gets wrong up to an opset, and how: its answers do not count there."""

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


def distrusted(case: Case) -> bool:
    """Whether ONNX's reference is no oracle for a case."""
    newest = {name: until for name, (until, _) in DISTRUSTED.items()}
    return any(case.opset <= newest.get(name, 0) for name in case.operators)


def _division(s: Seen) -> Array | float:
    a, b = s.first, s.x[1]
    if b is None or b.dtype.kind not in "iu":
        return 0.0
    least = a == np.iinfo(a.dtype).min if a.dtype.kind == "i" else np.zeros_like(a, bool)
    return opened((b == 0) | (least & (b.astype(np.int64) == -1)))


def _cast(s: Seen) -> Array | float:
    if s.first.dtype.kind != "f" or s.y.dtype.kind not in "iu":
        return 0.0
    info, wide = np.iinfo(s.y.dtype), s.first.astype(np.float64)
    return opened(~((wide > info.min - 1.0) & (wide < info.max + 1.0)))


def _shift(s: Seen) -> Array | float:
    return 0.0 if s.x[1] is None else opened(s.x[1] >= 8 * s.x[1].dtype.itemsize)


def _power(s: Seen) -> Array | float:
    """Peers compute integer powers in double."""
    if s.x[1] is None or s.y.dtype.kind == "f":
        return 0.0
    info = np.iinfo(s.y.dtype)
    found = np.power(s.first.astype(np.float64), s.x[1].astype(np.float64))
    fits = (found > float(info.min) - 1) & (found < float(info.max))
    return np.where(fits, np.where(np.abs(found) < 2.0**53, 0.0, np.abs(found) * 2.0**-50), np.inf)


def _quotient(s: Seen) -> Array | float:
    """NaN; and what an integer of 32 bits does not hold, of integers, of float16 and by blocks: peers convert it before
    it saturates."""
    converts = s.first.dtype != np.float32 or bool(s.attributes.get("block_size"))
    nan = np.isnan(s.first) if s.first.dtype.kind == "f" else False
    return np.asarray(np.maximum(opened(nan), _large_quotient(s) if converts else 0.0))


def _large_quotient(s: Seen) -> Array | float:
    if s.x[1] is None:
        return 0.0
    return opened(~(np.abs(s.first.astype(np.float64) / along(s.x[1].astype(np.float64), s)) < 2.0**31))


def _range(s: Seen) -> Array | float:
    return 0.0 if np.isfinite(s.first).all() else np.inf


def _table(s: Seen) -> Array | float:
    """It grows with the integers: a scale below 0 makes the least the largest."""
    return 1.0 if s.x[1] is None or (s.x[1] > 0).all() else np.inf


def _single_pixel(s: Seen) -> Array | float:
    """Its step is 2 / 0 in ONNX's definition, which ONNX Runtime computes where it has no kernel: in float16."""
    alone = s.x[1] is not None and 1 in s.x[1][2:] and bool(s.attributes.get("align_corners"))
    return np.inf if alone and s.first.dtype == np.float16 else 0.0


def _limit(a: Array) -> float:
    """The largest number in which sums of a dtype are kept."""
    if a.dtype.kind in "iu":
        return float(np.iinfo(a.dtype).max)
    return float(np.finfo(np.float64 if a.dtype == np.float64 else np.float32).max)


def _of_magnitudes(s: Seen, operands: int) -> Array:
    """The node in double, of its first operands' magnitudes: the sum of its terms' magnitudes."""
    summed = dict.fromkeys(s.node.input[:operands])
    return np.asarray(
        np.abs(in_double(s, {n: lambda a: np.nan_to_num(np.abs(a), nan=0.0, posinf=0.0) for n in summed}))
    )


def _products(s: Seen) -> Array | float:
    """Sums of finite products that overflow in one order of summation, or before a small alpha, and not in another;
    what vanishes has either sign.  Integers wrap."""
    if s.first.dtype.kind != "f" or s.first.size == 0:
        return 0.0
    least, info = min(abs(s.attributes.get("alpha", 1.0)), 1.0), np.finfo(s.y.dtype)
    total = _of_magnitudes(s, 3)
    vanishes = (total > 0) & (total < float(info.tiny))
    return np.where(vanishes, float(info.smallest_subnormal), opened(total > least * _limit(s.first)))


def _shifted(s: Seen) -> Array | float:
    """Mean and bias may be one number, and products overflow apart."""
    scale, _, mean, var = (np.asarray(a, np.float64).reshape(-1, *[1] * (s.first.ndim - 2)) for a in s.x[1:5])
    factor = scale / np.sqrt(var + s.attributes.get("epsilon", 1e-5))
    largest = np.maximum(np.abs(s.first.astype(np.float64) * factor), np.abs(mean * factor))
    return opened(largest > _limit(s.first))


def _same(s: Seen, kernel: Sequence[int]) -> list[tuple[int, ...]]:
    """Pixels, span of the window and stride of every axis, where the padding is SAME."""
    strides, dilations = (s.attributes.get(name, [1] * len(kernel)) for name in ("strides", "dilations"))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    is_same = s.attributes.get("auto_pad", b"").startswith(b"SAME")
    return list(zip(s.first.shape[2:], spans, strides, strict=True)) if is_same else []


def _cropped(s: Seen) -> Array | float:
    """The result has as many pixels as strides fit, so kernels smaller than strides would pad less than nothing."""
    axes = _same(s, s.attributes["kernel_shape"])
    return np.inf if any((-(-n // t) - 1) * t + span - n < -1 for n, span, t in axes) else 0.0


def _stretched(s: Seen) -> Array | float:
    """ONNX's result of SAME has as many pixels as the image times the strides; ONNX Runtime's has no pixels that
    no tap reaches."""
    return np.inf if s.x[1] is not None and any(span < t for _, span, t in _same(s, s.x[1].shape[2:])) else 0.0


def _times_nothing(s: Seen) -> Array | float:
    """BLAS does not multiply where alpha is 0: what is not finite vanishes."""
    if s.attributes.get("alpha", 1.0) != 0 or s.first.dtype.kind != "f" or s.x[1] is None:
        return 0.0
    largest = [float(np.abs(a.astype(np.float64)).max(initial=0.0)) for a in (s.first, s.x[1])]
    fits = largest[0] * largest[1] * max(s.first.size, 1) < _limit(s.first)
    return 0.0 if fits and all(a is None or np.isfinite(a).all() for a in s.x) else np.inf


def _kept_axes(s: Seen) -> Array | float:
    axes = s.attributes.get("axes", [] if s.x[1] is None else s.x[1].tolist())
    return np.inf if s.first.size == 0 and min(axes, default=0) < 0 else 0.0


def _no_channels(s: Seen) -> Array | float:
    return np.inf if 0 in s.first.shape[1:2] else 0.0


def _wide_integers(s: Seen) -> Array | float:
    wide = (s.first.dtype.kind in "iu") & (np.abs(s.first.astype(np.float64)) > 2.0**53)
    return opened(wide if s.y.shape == s.first.shape else wide.any())


def _infinite_weights(s: Seen) -> Array | float:
    """Whether the padding is multiplied, too."""
    return 0.0 if s.x[1] is None or s.x[1].dtype.kind != "f" or np.isfinite(s.x[1]).all() else np.inf


def _sums(s: Seen) -> Array | float:
    """As products; ONNX Runtime's sums of integers saturate.  A mean of no integers is any."""
    op = s.node.op_type
    if s.first.size == 0:
        return np.inf if "Mean" in op and s.first.dtype.kind in "iu" else 0.0
    total = _of_magnitudes(s, len(s.node.input) if op == "Mean" else 1)
    if "Pool" in op or "Mean" in op:
        total = total * s.first.size / max(s.y.size, 1)
    limit = min(_limit(s.first), 2.0**53) if "Mean" in op and s.first.dtype.kind in "iu" else _limit(s.first)
    return opened((total**2 if op == "ReduceL2" else total) > limit)


def _scaled_integers(s: Seen) -> Array | float:
    """Multiples that are no integers are computed in double, and negative numbers cast to unsigned ones."""
    factors = [s.attributes.get(name, 1.0) for name in ("alpha", "beta")]
    if s.first.dtype.kind == "f" or s.first.size == 0:
        return 0.0
    if s.first.dtype.kind == "u" and min(factors) < 0:
        return np.inf
    if all(float(factor).is_integer() for factor in factors):
        return 0.0
    return opened(_of_magnitudes(s, 3) > min(_limit(s.first), 2.0**53))


def _gelu(s: Seen) -> Array | float:
    """1 plus what is close to -1 has the rounding of 1."""
    x = s.first.astype(np.float64) + (0.0 if s.x[1] is None else s.x[1].astype(np.float64))
    return np.asarray(np.nan_to_num(2 * np.abs(x) * float(np.finfo(s.first.dtype).eps), posinf=0.0))


def _shrunk(s: Seen) -> Array | float:
    """Peers wrap what does not fit."""
    if s.first.dtype.kind == "f":
        return 0.0
    wide, bias, limit = s.first.astype(np.float64), s.attributes.get("bias", 0.0), s.attributes.get("lambd", 0.5)
    info, moved = np.iinfo(s.first.dtype), wide - np.sign(wide) * bias
    return opened((np.abs(wide) > limit) & ((moved <= float(info.min) - 1) | (moved >= float(info.max) + 1)))


def _no_variance(s: Seen) -> Array | float:
    """What is left is a rounding over a rounding."""
    axes = tuple(s.attributes.get("axes", (0, 2, 3)))
    x = s.first.astype(np.float64)
    rounding = 4 * np.finfo(s.first.dtype).eps * np.abs(x).max(axes, keepdims=True, initial=0.0)
    return opened(np.broadcast_to(x.std(axes, keepdims=True) <= rounding, x.shape))


def _centred(s: Seen) -> Array | float:
    """What is left of numbers without their mean has the mean's rounding, which ``stash_type`` says."""
    op, given = s.node.op_type, s.attributes
    eps = np.finfo(np.float32 if op in SINGLE else s.first.dtype).eps
    if s.first.size == 0 or s.first.dtype.kind != "f":
        return 0.0
    x = s.first.astype(np.float64)
    if op == "SkipLayerNormalization":
        x = x + sum(a.astype(np.float64) for a in (s.x[1], *s.x[4:5]) if a is not None)
    rows = x.reshape(len(x), given["num_groups"], -1) if op == "GroupNormalization" else x
    first = {"GroupNormalization": 2, "InstanceNormalization": 2}.get(op, given.get("axis", -1) % rows.ndim)
    axes = tuple(range(first, rows.ndim)) if op != "MeanVarianceNormalization" else tuple(given.get("axes", (0, 2, 3)))
    size = np.abs(rows).max(axes, keepdims=True)
    error = 4 * max(eps, np.finfo(s.first.dtype).eps) * size
    error = error / np.sqrt(rows.var(axes, keepdims=True) + given.get("epsilon", 1e-12))
    scale = max(
        (float(np.nanmax(np.abs(a), initial=0)) for a in s.x[1:3] if a is not None and a.ndim == 1), default=1.0
    )
    return np.nan_to_num(np.broadcast_to(error, rows.shape).reshape(x.shape) * scale, posinf=0.0)


def _logarithm(s: Seen) -> Array | float:
    """Of integers, rounded to an integer somewhere; of a sum that is not positive, or has wrapped."""
    if s.first.dtype.kind not in "iu":
        return 0.0
    if s.first.size == 0 or (np.abs(s.first.astype(np.float64)) > 2.0**53).any():
        return np.inf
    if s.node.op_type == "ReduceLogSumExp":
        return 1.0
    small = (s.first > 0).all() and float(s.first.astype(np.float64).sum()) < _limit(s.first)
    return 1.0 if small else np.inf


def _squares(s: Seen) -> Array | float:
    """Sums of squares that overflow, or vanish; ``rows`` of a result have one sum."""
    wide = np.nan_to_num(np.abs(s.first.astype(np.float64)), nan=0.0, posinf=0.0)
    with np.errstate(all="ignore"):
        total = np.square(wide)
        if s.y.shape == s.first.shape and s.first.ndim:
            axis = s.attributes.get("axis", -1) if "channels" not in s.attributes else 1
            norm = s.node.op_type in ("LayerNormalization", "RMSNormalization", "LpNormalization")
            axes = tuple(range(axis % s.first.ndim, s.first.ndim)) if norm else tuple(range(1, s.first.ndim))
            total = np.broadcast_to(total.sum(axes or None, keepdims=True), s.y.shape)
        else:
            total = total.sum()
    least = float(np.finfo(s.first.dtype).tiny) if s.first.dtype.kind == "f" else 0.0
    return opened((total * 4 > _limit(s.first)) | ((total > 0) & (total < least)))


def _steps(s: Seen) -> Array | float:
    """Batches whose operands are not finite; all, where weights are not."""
    if s.first.size == 0:
        return np.inf
    bad = [a is not None and a.dtype.kind == "f" and not (np.abs(a.astype(np.float64)) < 1e30).all() for a in s.x]
    if not any(bad):
        return 0.0
    if any(bad[1:]) or s.attributes.get("layout"):
        return np.inf
    return opened(~(np.abs(s.first.astype(np.float64)) < 1e30).all((0, 2)))[:, None]


def _sizes(s: Seen) -> Array | float:
    scales = given_scales(s.x, s.first.ndim)
    if scales is None:
        return 0.0
    exact = np.floor(np.array(s.first.shape) * scales.astype(np.float64))
    return 0.0 if (np.floor(np.array(s.first.shape, np.float32) * scales) == exact).all() else np.inf


def _resampled(s: Seen) -> Array | float:
    """Coordinates are float32; an interpolation of integers, in double, may be rounded or truncated."""
    if 0 in s.y.shape or 0 in s.first.shape:
        return 0.0
    scales = given_scales(s.x, s.first.ndim)
    found = opened(undecided(s.first, s.y.shape, scales, s.attributes, s.opset))
    if s.attributes.get("mode", b"nearest") == b"nearest":
        return found
    values = s.first[np.isfinite(s.first)].astype(np.float64)
    steep = float(np.ptp(values)) if values.size else 0.0
    error = 2 * float(np.finfo(np.float32).eps) * max(*s.first.shape, *s.y.shape) * steep
    if s.first.dtype.kind != "f":
        error += 1 + 2.0**-50 * float(np.abs(values).max(initial=0.0))
        found = np.maximum(found, _outside(s))
    return np.asarray(np.maximum(found, error))


def _outside(s: Seen) -> Array:
    """Integers that peers wrap around."""
    exact, info = in_double(s, {s.node.input[0]: np.asarray}), np.iinfo(s.first.dtype)
    rounding = 1 + 2.0**-50 * np.abs(exact)
    return opened((exact < float(info.min) + rounding) | (exact > float(info.max) - rounding))


_SUMS = "AveragePool CumSum GlobalAveragePool Mean ReduceL1 ReduceL2 ReduceMean ReduceSum ReduceSumSquare"
_CENTRED = (
    "GroupNormalization InstanceNormalization LayerNormalization MeanVarianceNormalization SkipLayerNormalization"
)
_REDUCTIONS = "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum"
_TABLE: tuple[tuple[str, str, Rule, str], ...] = (
    ("integer division by zero, or of the least integer by -1", "", _division, "Div Mod"),
    ("a cast of what does not fit", "", _cast, "Cast CastLike"),
    ("a shift by as many bits as there are, or more", "", _shift, "BitShift"),
    ("an integer power that is infinite, or does not fit", "", _power, "Pow"),
    ("NaN as an integer, or a quotient that fits none", "", _quotient, "QuantizeLinear"),
    ("a product of infinity and what may vanish or overflow first", "", ordered_product, "ReduceProd"),
    ("infinity among three factors or more", "", contracted, "Einsum"),
    ("a range that is infinite", "", _range, "DynamicQuantizeLinear"),
    ("ONNX Runtime's table of exponentials rounds down", "", _table, "QLinearSoftmax"),
    ("a single pixel from corner to corner", "", _single_pixel, "AffineGrid"),
    ("products that overflow or vanish", "", _products, "Conv ConvTranspose Einsum FusedMatMul Gemm MatMul"),
    ("products that overflow", "", _shifted, "BatchNormalization"),
    ("padding that is less than nothing", "", _cropped, "AveragePool LpPool MaxPool"),
    ("infinity times an alpha of 0", "", _times_nothing, "FusedMatMul Gemm"),
    ("ONNX Runtime does not write a sum over no channels", "onnx", _no_channels, "QLinearConv"),
    ("integers that double does not hold", "", _wide_integers, "Shrink"),
    ("infinity less infinity", "", lambda s: opened(np.isposinf(s.first).any()), "SoftmaxCrossEntropyLoss"),
    ("padding times infinity", "", _infinite_weights, "Conv ConvTranspose"),
    ("ONNX Runtime keeps the last axes of nothing", "onnx", _kept_axes, _REDUCTIONS),
    ("sums that overflow", "", _sums, _SUMS),
    ("a multiple of integers that is none", "onnxruntime", _scaled_integers, "Gemm"),
    ("the rounding of a mean", "", _centred, _CENTRED),
    ("a deviation of nothing", "", _no_variance, "MeanVarianceNormalization"),
    ("the rounding of 1", "", _gelu, "BiasGelu FastGelu Gelu"),
    ("a difference that does not fit", "", _shrunk, "Shrink"),
    ("ONNX's reference converts before it saturates", "onnxruntime", _large_quotient, "QuantizeLinear"),
    ("kernels smaller than the strides", "", _stretched, "ConvTranspose"),
    ("a logarithm that is an integer", "", _logarithm, "ReduceLogSum ReduceLogSumExp"),
    ("squares that do not fit the dtype", "", _squares, f"{_CENTRED} RMSNormalization LpNormalization"),
    ("a recurrence over what is not finite", "", _steps, "GRU LSTM RNN"),
    ("a window whose ends are roundings of 0", "", lambda s: 2.0**-21, "BlackmanWindow HammingWindow HannWindow"),
    ("a size that float32 rounds up", "onnxruntime", _sizes, "Resize Upsample"),
    ("a coordinate between two pixels, infinity times 0, or a rounding", "", _resampled, "Resize Upsample"),
)
"""Why, the peer that knows better (its answer stands, where it has one), the rule, and its operators."""
RULES: dict[str, list[tuple[str, str, Rule]]] = {}
for _why, _better, _rule, _names in _TABLE:
    for _name in _names.split():
        RULES.setdefault(_name, []).append((_why, _better, _rule))
