"""The rules: which elements of one node's results ONNX leaves open, or a peer computes otherwise, and why."""

import numpy as np

from tests.fuzz.freedom import (
    SINGLE,
    along,
    axes_of,
    fits,
    is_float,
    limit,
    magnitudes,
    opened,
    padded_same,
    rule,
    wide,
)
from tests.fuzz.references.images import given_scales, undecided
from tests.fuzz.walk import Array, Seen

# --- integers -------------------------------------------------------------------------------------------------


@rule("integer division by zero, or of the least integer by -1", "Div Mod")
def _division(s: Seen) -> Array | float:
    by = s.operand(1)
    if by is None or by.dtype.kind not in "iu":
        return 0.0
    least = (s.first == np.iinfo(s.first.dtype).min) & (by.dtype.kind == "i")
    return opened((by == 0) | (least & (by.astype(np.int64) == -1)))


@rule("a cast of what does not fit", "Cast CastLike")
def _cast(s: Seen) -> Array | float:
    return opened(~fits(wide(s.first), s.y.dtype)) if is_float(s) and s.y.dtype.kind in "iu" else 0.0


@rule("a shift by as many bits as there are, or more", "BitShift")
def _shift(s: Seen) -> Array | float:
    by = s.operand(1)
    return 0.0 if by is None else opened(by >= 8 * by.dtype.itemsize)


@rule("an integer power that is infinite, or does not fit", "Pow")
def _power(s: Seen) -> Array | float:
    """Peers compute integer powers in double."""
    exponent = s.operand(1)
    if exponent is None or s.y.dtype.kind == "f":
        return 0.0
    found = np.power(wide(s.first), wide(exponent))
    rounded = np.where(np.abs(found) < 2.0**53, 0.0, np.abs(found) * 2.0**-50)
    return np.where(fits(found, s.y.dtype, 0.0) | (found == np.iinfo(s.y.dtype).min), rounded, np.inf)


@rule("NaN as an integer, or a quotient that fits none", "QuantizeLinear")
def _quotient(s: Seen) -> Array | float:
    """NaN; and what an integer of 32 bits does not hold, of integers, of float16 and by blocks: peers convert it before
    it saturates."""
    converts = s.first.dtype != np.float32 or bool(s.attributes.get("block_size"))
    nan = np.isnan(s.first) if is_float(s) else False
    return np.asarray(np.maximum(opened(nan), _large_quotient(s) if converts else 0.0))


@rule("ONNX's reference converts before it saturates", "QuantizeLinear", "onnxruntime")
def _large_quotient(s: Seen) -> Array | float:
    scale = s.operand(1)
    return 0.0 if scale is None else opened(~(np.abs(wide(s.first) / along(wide(scale), s)) < 2.0**31))


@rule("a range that is infinite, or whose scale is a denormal", "DynamicQuantizeLinear DynamicQuantizeMatMul")
def _range(s: Seen) -> Array | float:
    size, least = np.max(np.abs(s.first), initial=0.0), 255 * float(np.finfo(np.float32).tiny)
    return 0.0 if np.isfinite(size) and not 0 < size < least else np.inf


@rule("a number that is cast to an integer first, or does not fit one", "OneHotEncoder")
def _category(s: Seen) -> Array | float:
    """ONNX's reference compares it as it is."""
    x = wide(s.first)[..., None]
    return opened((x != np.trunc(x)) | ~fits(x, np.dtype("int64")))


@rule("the largest, or the largest magnitude", "Normalizer")
def _largest(s: Seen) -> Array | float:
    """ONNX says max(x), its reference takes magnitudes; NaN and infinities make either."""
    of_any = s.attributes.get("norm", b"MAX") in (b"MAX", "MAX")
    return np.inf if of_any or not np.isfinite(s.first).all() else 0.0


@rule("ONNX Runtime's table of exponentials rounds down", "QLinearSoftmax")
def _table(s: Seen) -> Array | float:
    """It grows with the integers: a scale below 0 makes the least the largest."""
    scale = s.operand(1)
    return 1.0 if scale is None or (scale > 0).all() else np.inf


@rule("a scale of 0", "QLinearAveragePool QLinearGlobalAveragePool QLinearLeakyRelu QLinearSigmoid")
def _divided_by_nothing(s: Seen) -> Array | float:
    scale = s.operand(3)
    return 0.0 if scale is None else opened(scale == 0)


@rule("the sign of 0 among zeros", "GlobalMaxPool Max MaxPool Min ReduceMax ReduceMin")
def _signs(s: Seen) -> Array | float:
    """The larger one of 0 and -0 is either."""
    if not is_float(s):
        return 0.0
    zeros = [np.signbit(a[a == 0]) for a in s.x if a is not None and a.dtype.kind == "f"]
    signs = np.unique(np.concatenate(zeros))
    return np.where(s.y == 0, float(np.finfo(s.y.dtype).smallest_subnormal), 0.0) if len(signs) > 1 else 0.0


@rule("a difference that does not fit, or integers that double does not hold", "Shrink")
def _shrunk(s: Seen) -> Array | float:
    """Peers wrap what does not fit."""
    if is_float(s):
        return 0.0
    x, bias, least = wide(s.first), s.attributes.get("bias", 0.0), s.attributes.get("lambd", 0.5)
    moved = x - np.sign(x) * bias
    return opened(((np.abs(x) > least) & ~fits(moved, s.first.dtype)) | (np.abs(x) > 2.0**53))


@rule("a multiple of integers that is none", "Gemm", "onnxruntime")
def _scaled_integers(s: Seen) -> Array | float:
    """It is computed in double, and negative numbers are cast to unsigned ones."""
    factors = [s.attributes.get(name, 1.0) for name in ("alpha", "beta")]
    if is_float(s) or s.first.size == 0:
        return 0.0
    if s.first.dtype.kind == "u" and min(factors) < 0:
        return np.inf
    if all(float(factor).is_integer() for factor in factors):
        return 0.0
    return opened(np.abs(s.of(*[magnitudes] * 3)) > min(limit(s.first), 2.0**53))


@rule("a logarithm that is an integer", "ReduceLogSum ReduceLogSumExp")
def _logarithm(s: Seen) -> Array | float:
    """Rounded to an integer somewhere; of a sum that is not positive, or has wrapped."""
    if is_float(s):
        return 0.0
    if s.first.size == 0 or (np.abs(wide(s.first)) > 2.0**53).any():
        return np.inf
    small = (s.first > 0).all() and float(wide(s.first).sum()) < limit(s.first)
    return 1.0 if small or s.node.op_type == "ReduceLogSumExp" else np.inf


_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)


@rule("ONNX Runtime keeps the last axes of a reduction of nothing", _REDUCTIONS, "onnx")
def _nothing(s: Seen) -> Array | float:
    return np.inf if s.first.size == 0 and min(axes_of(s), default=0) < 0 else 0.0


_QUANTIZED = "DynamicQuantizeMatMul MatMulInteger MatMulIntegerToFloat QGemm QLinearConv QLinearMatMul"


@rule("ONNX Runtime does not write quantized sums of nothing", _QUANTIZED, "onnx")
def _unwritten(s: Seen) -> Array | float:
    return np.inf if s.first.size == 0 else 0.0


@rule("NaN as the larger or the less of two in a scatter", "ScatterElements ScatterND")
def _scattered_nan(s: Seen) -> Array | float:
    """ONNX Runtime keeps the one that was there, minitvm and numpy have NaN."""
    updates = s.operand(2)
    if s.attributes.get("reduction") not in (b"min", b"max", "min", "max") or not is_float(s) or updates is None:
        return 0.0
    return np.inf if np.isnan(s.first).any() or np.isnan(updates).any() else 0.0


# --- what overflows, vanishes or is infinite ------------------------------------------------------------------


@rule("a product of infinity and what may vanish or overflow first", "ReduceProd")
def _ordered_product(s: Seen) -> Array | float:
    """Rows with infinity and no zero whose small factors vanish together, and rows with a zero and no infinity whose
    large ones overflow: NaN in one order, and not in another."""
    if not is_float(s):
        return 0.0
    over = tuple(axes_of(s)) or (() if s.attributes.get("noop_with_empty_axes") else None)
    keeps, size = bool(s.attributes.get("keepdims", 1)), np.abs(s.first.astype(np.longdouble))
    usual = np.isfinite(size) & (size > 0)
    low, high = (np.where(usual, cut(size, 1), 1).prod(over, keepdims=keeps) for cut in (np.minimum, np.maximum))
    infinite, zero = ((size == v).any(over, keepdims=keeps) for v in (np.inf, 0))
    info = np.finfo(s.first.dtype)
    return opened((infinite & (low < float(info.tiny))) | (zero & (high > float(info.max))))


@rule("a kernel of support vectors that overflows, or of what is not finite", "SVMRegressor")
def _overflowing_kernel(s: Seen) -> Array | float:
    return opened(~(np.abs(wide(s.first)) < 1e10).all(1, keepdims=True))


@rule("infinity among three factors or more", "Einsum")
def _contracted(s: Seen) -> Array | float:
    """Which two are multiplied first is open; elements with infinity among their factors are NaN in one order, and
    infinite in another."""
    if len(s.x) < 3 or not is_float(s):
        return 0.0
    return opened(s.of(*[lambda a: np.where(np.isinf(a), 2.0**100, 1.0)] * len(s.x)) > 2.0**60)


@rule("infinity among the samples, or a sum that is the rounding of larger ones", "DFT STFT")
def _cancelled(s: Seen) -> Array | float:
    window = s.operand(2) if s.node.op_type == "STFT" else None
    total = np.abs(wide(s.first)).sum() * (1.0 if window is None else np.abs(wide(window)).max(initial=0.0))
    return float(4 * np.finfo(s.y.dtype).eps * total) if total < limit(s.first) else np.inf


@rule("products that overflow", "BatchNormalization")
def _shifted(s: Seen) -> Array | float:
    """Mean and bias may be one number, and products overflow apart."""
    scale, _, mean, var = (np.asarray(a, np.float64).reshape(-1, *[1] * (s.first.ndim - 2)) for a in s.x[1:5])
    factor = scale / np.sqrt(var + s.attributes.get("epsilon", 1e-5))
    return opened(np.maximum(np.abs(wide(s.first) * factor), np.abs(mean * factor)) > limit(s.first))


_SUMS = "AveragePool CumSum GlobalAveragePool Mean ReduceL1 ReduceMean ReduceSum ReduceSumSquare"


@rule("sums that overflow", _SUMS)
def _sums(s: Seen) -> Array | float:
    """As products; ONNX Runtime's sums of integers saturate.  A mean of no integers is any; of no floats, too, as ONNX
    says of ReduceMean: 0 in ONNX Runtime, NaN in numpy."""
    op, whole = s.node.op_type, not is_float(s)
    if s.first.size == 0:
        return np.inf if op == "ReduceMean" or ("Mean" in op and whole) else 0.0
    total = np.abs(s.of(*[magnitudes] * (len(s.x) if op == "Mean" else 1)))
    if "Pool" in op or "Mean" in op:
        total = total * s.first.size / max(s.y.size, 1)
    most = min(limit(s.first), 2.0**53) if "Mean" in op and whole else limit(s.first)
    return opened(total > most)


@rule("a mean of nothing", "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss")
def _no_losses(s: Seen) -> Array | float:
    """As ReduceMean's, by which ONNX defines them."""
    return np.inf if s.first.size == 0 and s.attributes.get("reduction", b"mean") == b"mean" else 0.0


@rule("powers that overflow or vanish", "GlobalLpPool LpPool ReduceL2")
def _powers(s: Seen) -> Array | float:
    if s.first.size == 0:
        return 0.0
    p, largest = s.attributes.get("p", 2), np.abs(s.of(magnitudes))
    least = float(np.finfo(s.first.dtype).tiny) if is_float(s) else 0.0
    return np.asarray(np.maximum(opened(largest**p > limit(s.first)), (s.first.size * least) ** (1 / p)))


_CENTRED = (
    "GroupNormalization InstanceNormalization LayerNormalization MeanVarianceNormalization SkipLayerNormalization"
)


@rule("squares that do not fit the dtype", f"{_CENTRED} RMSNormalization LpNormalization")
def _squares(s: Seen) -> Array | float:
    """Sums of squares that overflow, or vanish; ``rows`` of a result have one sum."""
    total = np.square(magnitudes(s.first))
    if s.y.shape == s.first.shape and s.first.ndim:
        by_axis = s.node.op_type in ("LayerNormalization", "RMSNormalization", "LpNormalization")
        first = s.attributes.get("axis", -1) % s.first.ndim if by_axis else 1
        total = total.sum(tuple(range(first, s.first.ndim)) or None, keepdims=True)
    else:
        total = total.sum()
    least = float(np.finfo(s.first.dtype).tiny) if is_float(s) else 0.0
    return opened((total * 4 > limit(s.first)) | ((total > 0) & (total < least)))


@rule("infinity times an alpha of 0", "FusedMatMul Gemm")
def _times_nothing(s: Seen) -> Array | float:
    """BLAS does not multiply where alpha is 0: what is not finite vanishes."""
    a, b = s.x[:2]
    if s.attributes.get("alpha", 1.0) != 0 or not is_float(s) or a is None or b is None:
        return 0.0
    largest = [float(np.abs(wide(v)).max(initial=0.0)) for v in (a, b)]
    small = largest[0] * largest[1] * max(a.size, 1) < limit(a)
    return 0.0 if small and all(v is None or np.isfinite(v).all() for v in s.x) else np.inf


@rule("infinity less infinity", "SoftmaxCrossEntropyLoss")
def _infinite_logits(s: Seen) -> Array | float:
    return opened(np.isposinf(s.first).any())


@rule("padding times infinity", "Conv ConvTranspose FusedConv")
def _infinite_weights(s: Seen) -> Array | float:
    """Whether the padding is multiplied, too."""
    weights = s.operand(1)
    return 0.0 if weights is None or weights.dtype.kind != "f" or np.isfinite(weights).all() else np.inf


@rule("a recurrence over what is not finite", "GRU LSTM RNN")
def _steps(s: Seen) -> Array | float:
    """Batches whose operands are not finite; all, where weights are not, or activations without bounds overflow."""
    if s.first.size == 0 or ("activations" in s.attributes and not np.isfinite(s.y).all()):
        return np.inf
    bad = [a is not None and a.dtype.kind == "f" and not (np.abs(wide(a)) < 1e30).all() for a in s.x]
    if not any(bad):
        return 0.0
    return np.inf if any(bad[1:]) else opened(~(np.abs(wide(s.first)) < 1e30).all((0, 2)))[:, None]


# --- roundings ------------------------------------------------------------------------------------------------


@rule("the rounding of a mean", _CENTRED)
def _centred(s: Seen) -> Array | float:
    """What is left of numbers without their mean has the mean's rounding, which ``stash_type`` says."""
    op, given = s.node.op_type, s.attributes
    if s.first.size == 0 or not is_float(s):
        return 0.0
    eps = max(float(np.finfo(d).eps) for d in (s.first.dtype, np.float32 if op in SINGLE else np.float64))
    x = wide(s.first)
    if op == "SkipLayerNormalization":
        x = x + sum(wide(a) for a in (s.x[1], *s.x[4:5]) if a is not None)
    rows = x.reshape(len(x), given["num_groups"], -1) if op == "GroupNormalization" else x
    first = {"GroupNormalization": 2, "InstanceNormalization": 2}.get(op, given.get("axis", -1) % rows.ndim)
    axes = tuple(range(first, rows.ndim)) if op != "MeanVarianceNormalization" else tuple(given.get("axes", (0, 2, 3)))
    deviation = np.sqrt(rows.var(axes, keepdims=True) + given.get("epsilon", 1e-12))
    error = 4 * eps * np.abs(rows).max(axes, keepdims=True) / deviation
    scales = [float(np.nanmax(np.abs(a), initial=0)) for a in s.x[1:3] if a is not None and a.ndim == 1]
    return np.nan_to_num(np.broadcast_to(error, rows.shape).reshape(x.shape) * max(scales, default=1.0), posinf=0.0)


@rule("a deviation of nothing", "MeanVarianceNormalization")
def _no_variance(s: Seen) -> Array | float:
    """What is left is a rounding over a rounding."""
    axes, x = tuple(s.attributes.get("axes", (0, 2, 3))), wide(s.first)
    rounding = 4 * np.finfo(s.first.dtype).eps * np.abs(x).max(axes, keepdims=True, initial=0.0)
    return opened(x.std(axes, keepdims=True) <= rounding)


@rule("the rounding of 1", "BiasGelu FastGelu Gelu")
def _gelu(s: Seen) -> Array | float:
    """1 plus what is close to -1 has the rounding of 1."""
    x = sum(wide(a) for a in s.x if a is not None)
    return np.asarray(np.nan_to_num(2 * np.abs(x) * float(np.finfo(s.first.dtype).eps), posinf=0.0))


@rule("a window whose ends are roundings of 0", "BlackmanWindow HammingWindow HannWindow")
def _ends(s: Seen) -> Array | float:
    return 2.0**-21


# --- places ---------------------------------------------------------------------------------------------------


@rule("a single pixel from corner to corner", "AffineGrid")
def _single_pixel(s: Seen) -> Array | float:
    """Its step is 2 / 0 in ONNX's definition, which ONNX Runtime computes where it has no kernel: in float16."""
    size = s.operand(1)
    alone = size is not None and 1 in size[2:] and bool(s.attributes.get("align_corners"))
    return np.inf if alone and s.first.dtype == np.float16 else 0.0


@rule("padding that is less than nothing", "AveragePool LpPool MaxPool")
def _cropped(s: Seen) -> Array | float:
    """The result has as many pixels as strides fit, so kernels smaller than strides would pad less than nothing."""
    axes = padded_same(s, s.attributes["kernel_shape"])
    return np.inf if any((-(-n // t) - 1) * t + span - n < -1 for n, span, t in axes) else 0.0


@rule("a sample beside infinity, or a sum that overflows", "RoiAlign")
def _beside_infinity(s: Seen) -> Array | float:
    """In the channel of the image that a region is of, in the pixels under it and next to these."""
    far = (np.abs(s.first) >= 1e30) | ~np.isfinite(s.first)
    rois, images, scale = s.operand(1), s.operand(2), s.attributes.get("spatial_scale", 1.0)
    assert rois is not None and images is not None
    found = np.zeros(s.y.shape, bool)
    for at, (box, image) in enumerate(zip(rois, images, strict=True)):
        low, high = np.floor(box[1::-1] * scale) - 2, np.ceil(box[:1:-1] * scale) + 2
        rows, columns = (
            slice(int(np.clip(min(a, b), 0, n - 1)), int(np.clip(max(a, b), 0, n - 1)) + 1)
            for a, b, n in zip(low, high, far.shape[2:], strict=True)
        )
        found[at] = far[image, :, rows, columns].any((1, 2))[:, None, None]
    return opened(found)


@rule("kernels smaller than the strides", "ConvTranspose")
def _stretched(s: Seen) -> Array | float:
    """ONNX's result of SAME has as many pixels as the image times the strides; ONNX Runtime's has no pixels that
    no tap reaches."""
    w = s.operand(1)
    return np.inf if w is not None and any(span < t for _, span, t in padded_same(s, w.shape[2:])) else 0.0


@rule("a size that float32 rounds up", "Resize Upsample", "onnxruntime")
def _rounded_size(s: Seen) -> Array | float:
    scales = given_scales(s.x, s.first.ndim)
    if scales is None:
        return 0.0
    exact = np.floor(np.array(s.first.shape) * wide(scales))
    return 0.0 if (np.floor(np.array(s.first.shape, np.float32) * scales) == exact).all() else np.inf


@rule("a coordinate between two pixels, infinity times 0, or a rounding", "Resize Upsample")
def _resampled(s: Seen) -> Array | float:
    """Coordinates are float32; an interpolation of integers, in double, may be rounded or truncated, and wrapped."""
    if 0 in s.y.shape or 0 in s.first.shape:
        return 0.0
    found = opened(undecided(s.first, s.y.shape, given_scales(s.x, s.first.ndim), s.attributes, s.opset))
    if s.attributes.get("mode", b"nearest") == b"nearest":
        return found
    values = wide(s.first[np.isfinite(s.first)])
    steep = float(np.ptp(values)) if values.size else 0.0
    error = 2 * float(np.finfo(np.float32).eps) * max(*s.first.shape, *s.y.shape) * steep
    if not is_float(s):
        error += 1 + 2.0**-50 * float(np.abs(values).max(initial=0.0))
        exact = s.of(wide)
        found = np.maximum(found, opened(~fits(exact, s.first.dtype, -1 - 2.0**-50 * np.abs(exact))))
    return np.asarray(np.maximum(found, error))
