"""What ONNX, or ONNX Runtime, leaves open in attention and its like."""

import numpy as np

from tests.fuzz.freedom import limit, magnitudes, opened, rule, wide
from tests.fuzz.walk import Array, Seen


@rule("products that overflow", "Attention")
def _scores(s: Seen) -> Array | float:
    """ONNX's definition keeps scores in the operands' dtype, minitvm's and others' kernels of float16 in float32."""
    q, k = (float(magnitudes(a).max(initial=0.0)) for a in s.x[:2] if a is not None)
    return np.inf if q * k * s.first.shape[-1] > float(np.finfo(s.first.dtype).max) else 0.0


@rule("scores that are no numbers, or overflow", "Attention GroupQueryAttention MultiHeadAttention")
def _scores_of_nothing(s: Seen) -> Array | float:
    """The softmax of ONNX Runtime's own layers takes NaN for one score among others, sequence by sequence."""
    if not s.node.domain:
        return 0.0
    lost = np.zeros(s.y.shape[0], bool)
    for operand in (a for a in s.x[:3] if a is not None and a.dtype.kind == "f"):
        far = ~(np.abs(wide(operand)) < 1e18)
        lost |= far.reshape(len(far), -1).any(1) if operand.ndim == 3 else far.any()
    return opened(np.broadcast_to(lost.reshape(-1, *[1] * (s.y.ndim - 1)), s.y.shape))


@rule("pairs whose products overflow", "RotaryEmbedding")
def _turned(s: Seen) -> Array | float:
    largest = max((float(magnitudes(a).max(initial=0.0)) for a in s.x[2:] if a is not None), default=1.0)
    return opened((np.abs(wide(s.first)) * largest > limit(s.first)).any(-1, keepdims=True) & np.ones(s.y.shape, bool))
