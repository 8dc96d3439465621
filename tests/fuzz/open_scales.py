"""Rules about scales that a rewrite folds into the weights of a product: they act there before or behind the sum."""

from dataclasses import replace

import numpy as np
import onnx

from tests.fuzz.freedom import is_float, limit, magnitudes, opened, rule, wide
from tests.fuzz.walk import Array, Seen

_SCALES = 1e3
"""How much a scale may move the end of a dtype to."""


def _unfused(s: Seen) -> Seen:
    """A fused convolution without its activation; others as they are."""
    if s.node.op_type != "FusedConv":
        return s
    node = onnx.NodeProto(op_type="Conv", input=s.node.input[:3], output=s.node.output)
    node.attribute.extend(a for a in s.node.attribute if not a.name.startswith("activation"))
    return replace(s, node=node, x=s.x[:3])


_PRODUCTS = "Conv ConvTranspose Einsum FusedConv FusedMatMul Gemm MatMul TransposeMatMul"


@rule("products that overflow or vanish", _PRODUCTS)
def _products(s: Seen) -> Array | float:
    """Sums of finite products that overflow in one order of summation, or before a small alpha, and not in another;
    what vanishes has either sign.  Integers wrap.  Within three digits of the end a scale behind the sum, which is
    folded into the weights as those of normalizations are, overflows before terms of both signs cancel."""
    if not is_float(s) or s.first.size == 0:
        return 0.0
    least, info = min(abs(s.attributes.get("alpha", 1.0)), 1.0), np.finfo(s.y.dtype)
    total = np.abs(_unfused(s).of(*[magnitudes] * 3))
    vanishes = (total > 0) & (total < float(info.tiny))
    return np.where(vanishes, float(info.smallest_subnormal), opened(total > least * limit(s.first) / _SCALES))


@rule("a scale that overflows before it is in the weights", "Mul Div")
def _scaled(s: Seen) -> Array | float:
    """Finite numbers whose product leaves float32 or float64 by no more than three digits: where it is read by a
    product, the weights may take the scale."""
    by = s.operand(1)
    if by is None or s.y.dtype not in (np.float32, np.float64):
        return 0.0
    a, b = wide(s.first), wide(by)
    size = np.abs(a / b if s.node.op_type == "Div" else a * b).astype(np.float64)
    ends = np.isfinite(a) & np.isfinite(b) & ((size < limit(s.y) * _SCALES) if s.y.dtype == np.float32 else True)
    return opened(np.isinf(s.y) & ends & (b != 0 if s.node.op_type == "Div" else True))
