"""Operators that ONNX Runtime's optimiser writes into models (domain ``com.microsoft``).

ONNX has no schemas for them, so defaults stand here.
"""

from __future__ import annotations

from minitvm.frontend.onnx.activation import compared, gated, gelu_of
from minitvm.frontend.onnx.matmul import matmul, scaled, wide_enough
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, rank
from minitvm.frontend.onnx.norm import nothing_added
from minitvm.frontend.onnx.registry import onnx_op
from minitvm.ir.expr import Expr

DOMAIN = "com.microsoft"


@onnx_op("Gelu", "BiasGelu", domain=DOMAIN)
def gelu(node: OnnxNode) -> Expr:
    """``BiasGelu`` adds its second input first."""
    return gelu_of(node[0], node.get(1))


@onnx_op("FastGelu", domain=DOMAIN)
def fast_gelu(node: OnnxNode) -> Expr:
    return gelu_of(node[0], node.get(1), tanh=True)


@onnx_op("QuickGelu", domain=DOMAIN)
def quick_gelu(node: OnnxNode) -> Expr:
    """float16 in float32."""
    return cast(gated(compared(node[0]), node.attr("alpha", 1.702)), node[0].dtype)


@onnx_op("FusedMatMul", domain=DOMAIN)
def fused_matmul(node: OnnxNode) -> Expr:
    """alpha * A' B', with the last two dimensions of A and B swapped on demand."""
    if node.attr("transBatchA", 0) or node.attr("transBatchB", 0):
        raise node.fail("transBatchA and transBatchB are not supported")
    a = _swapped(node[0]) if node.attr("transA", 0) else node[0]
    b = _swapped(node[1]) if node.attr("transB", 0) else node[1]
    alpha = node.attr("alpha", 1.0)
    return cast(scaled(matmul(node, a, b, wide_enough(a, alpha)), alpha), a.dtype)


def _swapped(x: Expr) -> Expr:
    last = rank(x) - 1
    return emit("transpose", x, axes=(*range(last - 1), last, last - 1)) if last > 0 else x


@onnx_op("SkipLayerNormalization", domain=DOMAIN)
def skip_layer_normalization(node: OnnxNode) -> list[Expr | None]:
    """Inputs: x, skip, scale, beta, bias.  Layer norm of x + skip + bias, and as fourth output that sum."""
    if node.wants(1) or node.wants(2):
        raise node.fail("its mean and deviation are training outputs, which are not supported")
    total = node[0] + node[1] if node.get(4) is None else node[0] + node[1] + node[4]
    scale = node[2]
    beta = node.get(3) or nothing_added(scale)
    epsilon = node.attr("epsilon", 1e-12)
    return [emit("nn.layer_norm", total, scale, beta, axis=rank(total) - 1, epsilon=epsilon), None, None, total]
