"""Layers that ONNX Runtime's optimisers write into models: domains ``com.microsoft`` and ``com.microsoft.nchwc``.

ONNX has no schemas for them, so defaults stand here.  Most are ONNX's own layers, in other layouts or with what
follows them.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from minitvm.frontend.onnx.activation import compared, flattened, gated, gelu, softmax, softplus
from minitvm.frontend.onnx.matmul import matmul, scaled, wide_enough
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, rank, scalar, single
from minitvm.frontend.onnx.norm import nothing_added
from minitvm.frontend.onnx.registry import MICROSOFT, formulas, onnx_op
from minitvm.frontend.onnx.tensor import integers, reshaped
from minitvm.ir.expr import Expr

NCHWC = "com.microsoft.nchwc"
contrib_op = partial(onnx_op, domain=MICROSOFT)
nchwc_op = partial(onnx_op, domain=NCHWC)


def only(found: list[Expr | None]) -> Expr:
    """The first of a node's outputs."""
    assert found[0] is not None
    return found[0]


# --- layers and what follows them -----------------------------------------------------------------------------

_SCALED: dict[str, Callable[[Expr], Expr]] = {"ParametricSoftplus": softplus, "ScaledTanh": lambda x: emit("tanh", x)}
"""alpha * f(beta * x), which ONNX no longer has."""
_PARAMETERS = {"Clip": ("min", "max"), "Selu": ("alpha", "gamma")} | dict.fromkeys(
    ("HardSigmoid", *_SCALED), ("alpha", "beta")
)
"""Attributes of activations; of others it is ``alpha`` where they have any."""
_BEFORE_INPUTS = 10
"""The opset to which the activations belong: their parameters are attributes."""


def activated(node: OnnxNode, x: Expr) -> Expr:
    """The node's ``activation`` over ``x``; its parameters are one list or an attribute each."""
    name = node.attr("activation", "")
    if not name:
        return x
    names = _PARAMETERS.get(name, ("alpha",))
    listed = node.attr("activation_params") or [node.attr(f"activation_{p}") for p in names]
    given = {p: v for p, v in zip(names, listed, strict=False) if v is not None}
    if name in _SCALED:
        alpha, beta = (float(given.get(p, 1.0)) for p in names)
        return _SCALED[name](x * beta) * alpha
    return only(node.as_onnx(name, x, opset=_BEFORE_INPUTS, **given))


def channels_second(x: Expr) -> Expr:
    """(batch, ..., channels) as (batch, channels, ...)."""
    return emit("transpose", x, axes=(0, rank(x) - 1, *range(1, rank(x) - 1)))


def channels_last(x: Expr) -> Expr:
    return emit("transpose", x, axes=(0, *range(2, rank(x)), 1))


@contrib_op("FusedConv", "FusedGemm", "NhwcConv", "NhwcFusedConv", "NhwcMaxPool")
@nchwc_op("Conv", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")
def fused_layer(node: OnnxNode) -> Expr:
    """ONNX's layer, a fourth input added to its result, and an activation; Nhwc: channels come last."""
    is_last = node.op_type.startswith("Nhwc")
    operands, name = list(node.inputs), node.op_type.removeprefix("Nhwc").removeprefix("Fused")
    if is_last:
        operands[::3] = [x if x is None else channels_second(x) for x in operands[::3]]
    if node.proto.domain == NCHWC and name == "Conv":
        operands[1] = _unblocked(node[1])
    result = only(node.as_onnx(name, *operands[:3]))
    if len(operands) > 3 and operands[3] is not None:
        result = emit("add", result, operands[3])
    result = activated(node, result)
    return channels_last(result) if is_last else result


@contrib_op("FusedMatMul", "FusedMatMulActivation", "TransposeMatMul")
def fused_matmul(node: OnnxNode) -> Expr:
    """alpha * A' B'.  ``transBatch``: the rows come before the batch; ``trans``: the last two dimensions swapped."""
    a, b = (_transposed(node[i], node.attr(f"transBatch{x}", 0), node.attr(f"trans{x}", 0)) for i, x in enumerate("AB"))
    alpha = node.attr("alpha", 1.0)
    return activated(node, cast(scaled(matmul(node, a, b, wide_enough(a, alpha)), alpha), a.dtype))


def _transposed(x: Expr, rows_first: bool, swapped: bool) -> Expr:
    axes = list(range(rank(x)))
    if rank(x) < 2:
        return x
    if rows_first:
        axes = [*axes[1:-1], 0, axes[-1]]
    if swapped:
        axes[-2:] = axes[:-3:-1]
    return x if axes == sorted(axes) else emit("transpose", x, axes=tuple(axes))


@contrib_op("BiasSoftmax")
def bias_softmax(node: OnnxNode) -> Expr:
    """Over all dimensions from ``axis`` on; the bias broadcasts."""
    return flattened(node, emit("add", node[0], node[1]), softmax)


# --- normalisations -------------------------------------------------------------------------------------------


@contrib_op("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
@onnx_op("SimplifiedLayerNormalization")
@contrib_op("SimplifiedLayerNormalization")
def skip_layer_normalization(node: OnnxNode) -> list[Expr | None]:
    """Inputs: x, skip, scale, beta, bias.  Layer norm of x + skip + bias, and as fourth output that sum, which float16
    may not hold.  Simplified: over the root of the mean square, without beta."""
    is_simplified, has_skip = "Simplified" in node.op_type, node.op_type.startswith("Skip")
    if node.wants(1) or node.wants(2):
        raise node.fail("its mean and deviation are training outputs, which are not supported")
    beta, bias = (None, node.get(3)) if is_simplified else (node.get(3), node.get(4))
    dtype, total, scale = node[0].dtype, single(node[0]), single(node[1 + has_skip])
    for part in (node[1] if has_skip else None, bias if has_skip else None):
        total = total if part is None else total + single(part)
    epsilon = node.attr("epsilon", 1e-12 if has_skip else 1e-5)
    normed = root_mean_square(total, scale, epsilon) if is_simplified else layer_norm(total, scale, beta, epsilon)
    return [cast(normed, dtype), None, None, cast(total, dtype)]


def layer_norm(x: Expr, scale: Expr, beta: Expr | None, epsilon: float) -> Expr:
    shift = nothing_added(scale) if beta is None else single(beta)
    return emit("nn.layer_norm", x, single(scale), shift, axis=rank(x) - 1, epsilon=epsilon)


def root_mean_square(x: Expr, scale: Expr, epsilon: float) -> Expr:
    """``x`` over the root of the mean square of its last axis, times scale."""
    square = emit("mean", x * x, axis=(rank(x) - 1,), keepdims=True)
    return x / emit("sqrt", square + epsilon) * scale


@contrib_op("GroupNorm", "SkipGroupNorm")
def group_norm(node: OnnxNode) -> list[Expr]:
    """Inputs: x, gamma, beta, skip, bias.  Group norm of x + skip + bias, and that sum; 1 as activation is SiLU."""
    is_last, total = bool(node.attr("channels_last", 1)), single(node[0])
    total = channels_second(total) if is_last else total
    for part in map(node.get, (3, 4)):
        if part is not None:
            shape = [part.shape[0], part.shape[-1], 1, 1]
            image = reshaped(single(part), [1, shape[1], 1, 1]) if rank(part) == 1 else single(part)
            total = total + (channels_second(image) if is_last and rank(part) == 4 else image)
    options = {"num_groups": node.require("groups"), "axis": 1, "epsilon": node.attr("epsilon", 1e-5)}
    normed = emit("nn.group_norm", total, single(node[1]), single(node[2]), **options)
    found = [gated(normed, 1.0) if node.require("activation") else normed, total]
    return [cast(channels_last(x) if is_last else x, node[0].dtype) for x in found]


@contrib_op("EmbedLayerNormalization")
def embed_layer_normalization(node: OnnxNode) -> list[Expr | None]:
    """Layer norm of the sum of a word's, a place's and a segment's embedding; the number of places that ``mask`` (7)
    keeps in each sequence; that sum."""
    ids, (batch, length) = node[0], node[0].shape
    places = node.get(8) or integers(np.arange(length).reshape(1, length))
    pairs = [(node[2], ids), (node[3], places)]
    if node.get(4) is not None:  # everything is of the first segment where none is named
        pairs.append((node[4], node.get(1) or integers(np.zeros((1, 1)))))
    words, *others = (single(only(node.as_onnx("Gather", table, index, axis=0))) for table, index in pairs)
    for other in others:
        words = words + other
    kept = node.get(7)
    count = integers([0] * batch) if kept is None else emit("sum", kept, axis=(1,))
    normed = layer_norm(words, node[5], node[6], node.attr("epsilon", 1e-12))
    return [cast(normed, node[2].dtype), cast(count, "int32"), cast(words, node[2].dtype)]


# --- channels in blocks ---------------------------------------------------------------------------------------


def _block() -> int:
    """Channels of a block.  ONNX Runtime takes a vector of the machine, on which alone it runs what it wrote."""
    features = __import__("numpy._core._multiarray_umath", fromlist=("_",)).__cpu_features__
    return 8 if features.get("AVX") and not features.get("AVX512F") else 16


def _unblocked(weight: Expr) -> Expr:
    """Weights as ONNX has them, of those that lie in blocks of channels.

    Outputs come in blocks always; inputs do too unless there is one (depthwise) or are fewer than a block.  The blocked
    image itself is imported as it is in ONNX, with channels up to whole blocks.
    """
    rows, columns, *kernel = weight.shape
    lanes = _block() if rows % _block() == 0 else 8
    inner = lanes if columns >= lanes else 1
    held = reshaped(weight, [rows // lanes, columns // inner, *kernel, inner, lanes])
    last = 2 + len(kernel)
    return reshaped(emit("transpose", held, axes=(0, last + 1, 1, last, *range(2, last))), [rows, columns, *kernel])


@nchwc_op("ReorderInput")
def reorder_input(node: OnnxNode) -> Expr:
    """Channels filled up to whole blocks."""
    x = channels_second(node[0]) if node.attr("channels_last", 0) else node[0]
    missing = -x.shape[1] % _block()
    widths = ((0, 0), (0, missing), *((0, 0),) * (rank(x) - 2))
    return emit("nn.pad", x, scalar(0, x), pad_width=widths) if missing else x


@nchwc_op("ReorderOutput")
def reorder_output(node: OnnxNode) -> Expr:
    x, channels = node[0], node.require("channels")
    if x.shape[1] != channels:
        x = emit("strided_slice", x, begin=(0,), end=(channels,), axes=(1,))
    return channels_last(x) if node.attr("channels_last", 0) else x


@nchwc_op("Upsample")
def upsample(node: OnnxNode) -> Expr:
    scales = integers(node.require("scales"))
    return only(node.as_onnx("Resize", node[0], None, cast(scales, "float32"), opset=13, nearest_mode="floor"))


# --- formulas, and ONNX's operators under another domain --------------------------------------------------------

_MODES = {"nearest": "nearest", "bicubic": "cubic"}
"""What ONNX calls the modes of GridSample."""
_SAME = ("ExpandDims", "GatherND", "GridSample", "Pad", "Range", "Trilu")


def _unique(node: OnnxNode) -> list[Expr | None]:
    """ONNX's, in the order in which elements come, without their first places."""
    found = node.as_onnx("Unique", node[0], outputs=("y", "first", "idx", "counts"), sorted=0)
    return [found[0], *found[2:]]


def _same(node: OnnxNode) -> list[Expr | None]:
    if node.op_type == "Range":
        return node.as_onnx("Range", node[0], node[1], node.get(2) or scalar(1, node[0]))
    if node.op_type == "GridSample":
        return node.as_onnx("GridSample", *node.inputs, mode=_MODES.get(node.attr("mode"), "linear"))
    return node.as_onnx("Unsqueeze" if node.op_type == "ExpandDims" else node.op_type, *node.inputs)


formulas(
    {
        "BiasAdd": lambda n: n[0] + n[1] + n[2],
        "BiasGelu": lambda n: gelu(n[0], n[1]),
        "FastGelu": lambda n: gelu(n[0], n.get(1), tanh=True),
        "Gelu": lambda n: gelu(n[0]),
        "GemmFastGelu": lambda n: gelu(matmul(n, n[0], n[1]), n.get(2), tanh=True),
        "QuickGelu": lambda n: cast(gated(compared(n[0]), n.attr("alpha", 1.702)), n[0].dtype),
        "Unique": _unique,
        **dict.fromkeys(_SAME, _same),
    },
    domain=MICROSOFT,
)


@contrib_op("CDist")
def distances(node: OnnxNode) -> Expr:
    """The distance of each row of (m, k) from each of (n, k): (m, n).  Differences are squared, which cancels
    nothing."""
    a, b = node[0], node[1]
    if rank(a) != 2 or rank(b) != 2:
        raise node.misfit(f"{a.tensor_type} and {b.tensor_type} are not two lists of points")
    metric = node.attr("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise node.refuse("metric")
    apart = emit("subtract", emit("expand_dims", a, axis=1), emit("expand_dims", b, axis=0))
    found = emit("sum", emit("multiply", apart, apart), axis=2)
    return found if metric == "sqeuclidean" else emit("sqrt", found)
