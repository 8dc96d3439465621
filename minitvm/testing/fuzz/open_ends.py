"""What is no defect: refusals for a stated reason, and inputs for which ONNX leaves the result open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minitvm.testing.fuzz.case import Arrays, Case, all_nodes, attributes

REFUSALS = (
    r"minitvm needs it while importing",
    r"^the model has operators that minitvm cannot import",
    r"is not supported",
    r"are not supported",
    r"^nn\.conv\w+: (the window spans|padding=\S.* removes all)",
)
"""Messages that name a known limit.  Of windows larger than the image ONNX says that there are none, ONNX Runtime
refuses convolutions without a pixel, in the dtypes that it has."""

DISTRUSTED = {
    "AffineGrid": (99, "it steps over a single pixel as its definition does not"),
    "AveragePool": (99, "NaN does not count"),
    "Erf": (99, "it has 8 digits in double"),
    "GlobalMaxPool": (99, "images of rank 5 gain a dimension"),
    "Hardmax": (12, "it takes one axis where ONNX took all that follow"),
    "LogSoftmax": (12, "as Hardmax"),
    "Loop": (99, "scan outputs are concatenated, not stacked"),
    "MaxPool": (99, "what it pads for SAME may be negative"),
    "QLinearConv": (99, "images of one dimension gain another"),
    "Scan": (99, "as Loop"),
    "Slice": (
        99,
        "backwards from before the first element it selects nothing, where ONNX moves the start to the first",
    ),
    "SoftmaxCrossEntropyLoss": (99, "large logits overflow"),
    "Softmax": (12, "as Hardmax"),
}
"""Operators that ONNX's reference gets wrong up to an opset, and how: its answers do not count there."""

ROUGH = dict.fromkeys(("GRU", "LSTM", "RNN"), "ONNX Runtime's sigmoid and tanh of recurrent layers are right to 1e-5")
"""Operators that ONNX Runtime computes to fewer digits."""

Operands = list[np.ndarray | None]
Rule = Callable[[Operands, Mapping[str, Any]], "str | None"]
"""From a node's operands, its results after them, and its attributes."""


CANCELLING = dict.fromkeys(("Celu", "Elu", "Selu"), "ONNX Runtime subtracts 1 from an exponential")
"""Operators whose results near 0 have an absolute error there."""


def slack(case: Case) -> tuple[float, float]:
    """What multiplies the tolerance beside ONNX Runtime, and an absolute error beneath it."""
    names = set(case.operators)
    return 10.0 if names & set(ROUGH) else 1.0, 1e-6 if names & set(CANCELLING) else 0.0


def distrusted(case: Case) -> bool:
    """Whether ONNX's reference is no oracle for a case."""
    newest = {name: until for name, (until, _) in DISTRUSTED.items()}
    return any(case.opset <= newest.get(name, 0) for name in case.operators)


def _division(x: Operands, _: Mapping[str, Any]) -> str | None:
    if x[1] is None or x[1].dtype.kind not in "iu":
        return None
    return "integer division by zero, or of the least integer by -1" if np.isin(x[1], (0, -1)).any() else None


def _cast(x: Operands, _: Mapping[str, Any]) -> str | None:
    if x[0] is None or x[0].dtype.kind != "f" or x[-1] is None or x[-1].dtype.kind not in "iu":
        return None
    info = np.iinfo(x[-1].dtype)
    wide = x[0].astype(np.float64)
    fits = (wide > info.min - 1.0) & (wide < info.max + 1.0)
    return None if fits.all() else "a cast of what does not fit"


def _overflow(x: Operands, attributes: Mapping[str, Any]) -> str | None:
    """Of sums of products: ONNX does not say that integers wrap, nor how a factor of them rounds; and infinities of
    both signs meet in one order of summation, and not in another."""
    if x[0] is None or x[1] is None or x[0].size * x[1].size == 0:
        return None
    with np.errstate(all="ignore"):
        most = [float(np.nan_to_num(np.abs(a.astype(np.float64)), nan=np.inf).max()) for a in (x[0], x[1])]
    if x[0].dtype.kind == "f":
        limit = float(np.finfo("float64" if x[0].dtype == np.float64 else "float32").max)
        return "products that overflow" if most[0] * most[1] * x[0].size > limit else None
    if any(attributes.get(name, 1.0) not in (0.0, 1.0) for name in ("alpha", "beta")):
        return "integers scaled by a fraction"
    return "a product of integers that does not fit" if most[0] * most[1] * 100 > 2**31 else None


def _scaled_products(x: Operands, attributes: Mapping[str, Any]) -> str | None:
    """BLAS does not multiply where alpha is 0: what is not finite vanishes, and so does the sign."""
    return "products times 0" if attributes.get("alpha", 1.0) == 0 else _overflow(x, attributes)


def _quantization(x: Operands, _: Mapping[str, Any]) -> str | None:
    """Of what is not finite, or of quotients that the peers convert to an integer too small for them."""
    if x[0] is None or x[1] is None:
        return None
    with np.errstate(all="ignore"):
        most = np.abs(x[0].astype(np.float64)).max(initial=0) / np.abs(x[1].astype(np.float64)).min(initial=1)
    return None if most < 2**31 else "a quotient that fits no integer"


def _nan(x: Operands, _: Mapping[str, Any]) -> str | None:
    found = any(a is not None and a.dtype.kind == "f" and np.isnan(a).any() for a in x)
    return "NaN has no order" if found else None


def _not_finite(x: Operands, _: Mapping[str, Any]) -> str | None:
    return None if x[0] is None or np.isfinite(x[0]).all() else "a range that is infinite"


def _small_gelu(x: Operands, _: Mapping[str, Any]) -> str | None:
    return "1 + erf(x) where it vanishes" if x[0] is not None and (x[0] < -3).any() else None


def _edge(x: Operands, _: Mapping[str, Any]) -> str | None:
    near = 1e-3 if x[0] is not None and x[0].dtype == np.float16 else 1e-6
    found = x[0] is not None and bool((np.abs(np.abs(x[0].astype(np.float64)) - 1) < near).any())
    return "the edge of its domain, by a rounding" if found else None


def _shift(x: Operands, _: Mapping[str, Any]) -> str | None:
    if x[1] is None:
        return None
    return "a shift by as many bits as there are, or more" if (x[1] >= 8 * x[1].dtype.itemsize).any() else None


def _power(x: Operands, _: Mapping[str, Any]) -> str | None:
    if x[0] is None or x[1] is None or x[0].dtype.kind == "f":
        return None
    with np.errstate(all="ignore"):
        found = np.power(x[0].astype(np.float64), x[1].astype(np.float64))
        fits = np.abs(found) < float(np.iinfo(x[0].dtype).max)
    return None if fits.all() else "an integer power that is infinite, or does not fit"


def _ends(x: Operands, _: Mapping[str, Any]) -> str | None:
    return "a window whose ends are roundings of 0"


def _in_float32(x: Operands, attributes: Mapping[str, Any]) -> str | None:
    return "ONNX defines it in float32" if attributes.get("output_datatype") == 11 else None


def _large_sum(x: Operands, attributes: Mapping[str, Any]) -> str | None:
    """Of integers: an evaluation in double, or a mean of what has wrapped, is as good as what wraps."""
    if x[0] is None or x[0].dtype.kind not in "iu" or x[0].size == 0:
        return None
    most = float(np.abs(x[0].astype(np.float64)).max())
    fits = most * most * x[0].size < float(np.iinfo(x[0].dtype).max)
    return None if fits else "integers whose sum may not fit"


def _single_pixel(x: Operands, attributes: Mapping[str, Any]) -> str | None:
    one = x[1] is not None and bool((x[1][2:] == 1).any())
    return "the corners of a single pixel" if one and attributes.get("align_corners") else None


def _table(x: Operands, _: Mapping[str, Any]) -> str | None:
    return "ONNX Runtime's table of exponentials rounds down"


def _recurrence(x: Operands, _: Mapping[str, Any]) -> str | None:
    fine = all(a is None or a.dtype.kind != "f" or bool((np.abs(a.astype(np.float64)) < 1e30).all()) for a in x[:-1])
    if x[0] is not None and x[0].size == 0:
        return "a recurrence of no steps"
    return None if fine else "a recurrence over what is not finite"


def _sum(x: Operands, attributes: Mapping[str, Any]) -> str | None:
    """Of floats that overflow in a sum though their mean does not."""
    if x[0] is None or x[0].dtype.kind != "f":
        return _large_sum(x, attributes)
    most = np.nan_to_num(np.abs(x[0].astype(np.float64)), nan=0.0).max(initial=0.0)
    limit = float(np.finfo("float64" if x[0].dtype == np.float64 else "float32").max)
    return "a sum that overflows" if most > limit / max(x[0].size, 1) else None


def _squares(x: Operands, _: Mapping[str, Any]) -> str | None:
    if x[0] is None or x[0].dtype.kind != "f":
        return None
    with np.errstate(all="ignore"):
        total = np.square(x[0].astype(np.float64)).sum() * 4
    if 0 < total < float(np.finfo(x[0].dtype).tiny) * 1e8:
        return "squares that vanish"
    return None if total < float(np.finfo(x[0].dtype).max) else "squares that do not fit the dtype"


def _lengths(x: Operands, attributes: Mapping[str, Any]) -> str | None:
    return _squares(x, attributes) or _large_sum(x, attributes)


def _normalized(x: Operands, attributes: Mapping[str, Any]) -> str | None:
    return _squares(x, attributes) or _all_one(x[0], attributes.get("axis", -1))


def _all_one(x: np.ndarray | None, axis: int) -> str | None:
    """What is left of equal numbers without their mean is the mean's rounding."""
    if x is None or x.ndim == 0 or x.size == 0:
        return None
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        for axes in (tuple(range(axis % x.ndim, x.ndim)), tuple(range(min(2, x.ndim - 1), x.ndim))):
            tiny = wide.std(axes) <= 1e-4 * np.abs(wide.mean(axes))
            if tiny.any():
                return "a variance of nothing but roundings"
    return None


def _no_channels(x: Operands, _: Mapping[str, Any]) -> str | None:
    return "ONNX Runtime does not write a sum over no channels" if x[0] is not None and 0 in x[0].shape[1:2] else None


def _wide_integers(x: Operands, _: Mapping[str, Any]) -> str | None:
    """The peers compute in double; what they convert back need not fit."""
    if x[0] is None or x[0].dtype.kind not in "iu" or not (np.abs(x[0].astype(np.float64)) > 2**53).any():
        return None
    return "integers that double does not hold"


def _mean(x: Operands, attributes: Mapping[str, Any]) -> str | None:
    nothing = x[0] is not None and x[0].dtype.kind in "iu" and x[0].size == 0
    return "a mean of no integers" if nothing else _sum(x, attributes)


def _resized(x: Operands, attributes: Mapping[str, Any]) -> str | None:
    return _wide_integers(x, attributes) or _interpolated(x, attributes)


def _infinite_logits(x: Operands, _: Mapping[str, Any]) -> str | None:
    infinite = x[0] is not None and x[0].dtype.kind == "f" and bool(np.isposinf(x[0]).any())
    return "infinity less infinity" if infinite else None


def _logarithm(x: Operands, _: Mapping[str, Any]) -> str | None:
    return "a logarithm rounded to an integer" if x[0] is not None and x[0].dtype.kind in "iu" else None


def _sizes_differ(shape: tuple[int, ...], scales: np.ndarray) -> bool:
    extents = np.array(shape)
    single = np.floor(extents.astype(np.float32) * scales)
    return bool((single != np.floor(extents * scales.astype(np.float64))).any())


def _interpolated(x: Operands, attributes: Mapping[str, Any]) -> str | None:
    if x[0] is None:
        return None
    if x[0].dtype.kind == "f" and not np.isfinite(x[0]).all():
        return "infinity weighted with zero"
    scales = next((a for a in x[1:3] if a is not None and a.dtype == np.float32 and a.size == x[0].ndim), None)
    if scales is not None and _sizes_differ(x[0].shape, scales):
        return "a size that float32 rounds up, and double does not"
    if attributes.get("mode", b"nearest") == b"nearest":
        uneven = scales is not None and bool((scales % 1 != 0).any())
        return "coordinates that are rounded between two pixels" if uneven else None
    if x[0].dtype.kind != "f":
        return "integers between integers"
    return "coordinates in float32" if x[0].dtype == np.float64 else None


RULES: dict[str, Rule] = {
    "Acos": _edge,
    "Acosh": _edge,
    "AffineGrid": _single_pixel,
    "ArgMax": _nan,
    "ArgMin": _nan,
    "Asin": _edge,
    "Atanh": _edge,
    "Attention": _overflow,
    "AveragePool": _sum,
    "BatchNormalization": _overflow,
    "BiasGelu": _small_gelu,
    "BitShift": _shift,
    "BlackmanWindow": _ends,
    "Cast": _cast,
    "CastLike": _cast,
    "Clip": _nan,
    "Conv": _overflow,
    "ConvTranspose": _overflow,
    "CumSum": _sum,
    "Div": _division,
    "DynamicQuantizeLinear": _not_finite,
    "Einsum": _overflow,
    "FusedMatMul": _scaled_products,
    "GRU": _recurrence,
    "Gelu": _small_gelu,
    "Gemm": _scaled_products,
    "GlobalAveragePool": _sum,
    "GlobalLpPool": _squares,
    "GlobalMaxPool": _nan,
    "GroupNormalization": _normalized,
    "HammingWindow": _in_float32,
    "HannWindow": _in_float32,
    "Hardmax": _nan,
    "InstanceNormalization": _normalized,
    "LRN": _squares,
    "LSTM": _recurrence,
    "LayerNormalization": _normalized,
    "LpNormalization": _squares,
    "LpPool": _squares,
    "MatMul": _overflow,
    "Max": _nan,
    "MaxPool": _nan,
    "Mean": _sum,
    "MeanVarianceNormalization": _normalized,
    "Min": _nan,
    "Mod": _division,
    "Pow": _power,
    "QLinearConv": _no_channels,
    "QLinearSoftmax": _table,
    "QuantizeLinear": _quantization,
    "RMSNormalization": _squares,
    "RNN": _recurrence,
    "ReduceL1": _large_sum,
    "ReduceL2": _lengths,
    "ReduceLogSum": _logarithm,
    "ReduceLogSumExp": _logarithm,
    "ReduceMax": _nan,
    "ReduceMean": _mean,
    "ReduceMin": _nan,
    "ReduceSum": _sum,
    "ReduceSumSquare": _large_sum,
    "Relu": _nan,
    "Resize": _resized,
    "Shrink": _wide_integers,
    "Sign": _nan,
    "SkipLayerNormalization": _normalized,
    "SoftmaxCrossEntropyLoss": _infinite_logits,
    "TopK": _nan,
    "Upsample": _interpolated,
}


def reason(case: Case, known: Arrays) -> str:
    """Why ONNX does not say what the case's results are; empty where it does.  ``known`` are the graph's values."""
    for node in all_nodes(case.nodes):
        rule = RULES.get(node.op_type)
        operands = [known.get(name) for name in node.input] + [None] * 3 + [known.get(node.output[0])]
        found = rule(operands, attributes(node)) if rule else None
        if found:
            return f"{node.op_type}: {found}"
    return ""
