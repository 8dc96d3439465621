"""How far a graph's own rounding moves its results: evaluated in its own dtypes, node by node, where what has one right
rounding stays as it is.

A sum of two numbers has one right result in a dtype: whoever computes another has changed the graph.  A sum of many, an
exponential or a normalization has not, and its operands and results move by one rounding.  Inputs do not: nobody may
say that the numbers he was given were others.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx

from tests.fuzz.case import Arrays, eps_of, is_float, plain
from tests.fuzz.steps import GATES, by_steps
from tests.fuzz.walk import Array, Compute, NoAnswer, Results, walk

PERTURBED = 16
"""Evaluations that are one rounding away."""
Way = Callable[[tuple[int, ...]], np.ndarray]
"""How far, of one rounding, each element of some shape moves: -1 to 1."""

_ROUNDED_ONCE = "Add Sub Abs Neg Sqrt Floor Ceil Round Sign Sum Relu LeakyRelu PRelu Max Min Clip Mod Reciprocal"
_DECIDED = "Equal Greater GreaterOrEqual Less LessOrEqual IsNaN IsInf ArgMax ArgMin TopK NonZero MaxPool GlobalMaxPool"
_MOVED = """Cast CastLike Concat Slice Split Gather GatherElements GatherND Reshape Transpose Squeeze Unsqueeze Flatten
Pad Tile Expand Identity Constant ConstantOfShape Where Dropout DepthToSpace SpaceToDepth OneHot Trilu EyeLike Compress
ReverseSequence Unique ReduceMax ReduceMin Shape Size QuantizeLinear DequantizeLinear ThresholdedRelu Shrink
NonMaxSuppression ScatterElements ScatterND Scatter SequenceConstruct SequenceAt SequenceInsert
SequenceErase SequenceLength SplitToSequence ConcatFromSequence Range"""
DECIDED = frozenset(f"{_ROUNDED_ONCE} {_DECIDED} {_MOVED}".split())
"""Operators with one right result."""
SCALES = frozenset(("Mul", "Div"))
"""Their results move, as constants may be multiplied first: by a rounding of the result, and of nothing larger."""
_TILES = 16.0
"""Roundings by which operands of 3 x 3 taps move: Winograd mixes those of a tile, 64 times larger ones among them."""
_INSIDE: dict[str, Callable[[Array], Array]] = {
    **dict.fromkeys(("Gelu", "FastGelu", "QuickGelu", "BiasGelu", "Mish", "Swish"), np.abs),
    **dict.fromkeys(("Elu", "Selu", "Celu", "Softplus", "Sigmoid", "Softsign", "HardSwish"), np.ones_like),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), lambda x: np.ones((), x.dtype)),
}
"""Operators that add up numbers inside, and how large these are: ``1 + erf(x)`` of a negative x is what they leave, and
half of ``1 + tanh(x / 2)`` what gates are; ONNX Runtime's tanh of an RNN is ``2 / (1 + exp(-2 x)) - 1`` or the like."""
_ONE_ADDED = {"GridSample": (1,)}
"""Operands that 1 is added to, by position: coordinates."""
_FIRST = frozenset(("Resize", "Upsample", "Pow"))
"""Only their first operand moves: others are sizes, or an exponent, which is whole or not."""


def own(model: onnx.ModelProto, feeds: Arrays, compute: Compute) -> list[Results]:
    """The results as they are, and with the graph's roundings moved; those that have an answer."""
    names = [v.name for v in model.graph.output]
    found: list[Results] = []
    for way in ways():
        try:
            values = walk(model, feeds, _moving(compute, way))
        except NoAnswer:
            if not found:
                raise
            continue
        found.append([values[name] for name in names])
    return found


def ways() -> Iterator[Way]:
    """As it is; all up, all down (what has saturated moves over its edge), and each as chance has it."""
    yield np.zeros
    yield np.ones
    yield lambda shape: -np.ones(shape)
    for seed in range(PERTURBED - 2):
        rng = np.random.default_rng(seed)
        yield lambda shape, rng=rng: rng.uniform(-1, 1, shape)  # type: ignore[misc]


def _moving(compute: Compute, way: Way) -> Compute:
    def moved(node: onnx.NodeProto, operands: Sequence[Array | None], opset: int) -> Results:
        if node.op_type in DECIDED:
            return compute(node, operands, opset)
        if node.op_type in GATES and operands[0] is not None and len(operands[0]) > 1:
            return by_steps(moved, node, operands, opset)
        taken = list(operands)
        if node.op_type not in SCALES:
            last = 1 if node.op_type in _FIRST else len(taken)
            times = _TILES if _is_tiled(node, operands) else 1.0
            taken[:last] = [None if a is None else _moved(a, way, times) for a in taken[:last]]
            added = [i for i in _ONE_ADDED.get(node.op_type, ()) if i < len(taken)]
            for i, a in ((i, taken[i]) for i in added):
                taken[i] = None if a is None else _shifted(a, np.ones_like(a), way)
        results = [_moved(a, way) for a in compute(node, taken, opset)]
        inside, first = _INSIDE.get(node.op_type), operands[0] if operands else None
        return results if inside is None or first is None else [_shifted(r, inside(first), way) for r in results]

    return moved


def _shifted(array: Array, size: Array, way: Way) -> Array:
    wide = array.astype(np.float64) + eps_of(array.dtype) * size.astype(np.float64) * way(array.shape)
    return np.asarray(wide.astype(array.dtype))


def _is_tiled(node: onnx.NodeProto, operands: Sequence[Array | None]) -> bool:
    weight = operands[1] if len(operands) > 1 else None
    return node.op_type in ("Conv", "FusedConv") and weight is not None and weight.shape[2:] == (3, 3)


def _moved(array: Array, way: Way, times: float = 1.0) -> Array:
    """What is finite stays so: masks hold the least number of a dtype."""
    if not is_float(array):
        return array
    wide = array.astype(np.float64) * (1 + times * eps_of(array.dtype) * way(array.shape))
    moved = wide.astype(array.dtype)
    return np.asarray(np.where(np.isfinite(plain(moved)) | ~np.isfinite(plain(array)), moved, array))


def narrowly(compute: Compute) -> Compute:
    """Of bfloat16, which peers hardly compute with: in float32, and the results rounded."""

    def narrow(node: onnx.NodeProto, operands: Sequence[Array | None], opset: int) -> Results:
        short = {a.dtype for a in operands if a is not None and a.dtype.name == "bfloat16"}
        to = next((a.i for a in node.attribute if a.name == "to"), None)
        if node.op_type == "Cast" and to == onnx.TensorProto.BFLOAT16 and operands[0] is not None:
            return [operands[0].astype("bfloat16")]
        if not short:
            return compute(node, operands, opset)
        wide = [None if a is None else plain(a) for a in operands]
        found = compute(node, wide, opset)
        (dtype,) = short
        return [a.astype(dtype) if a.dtype == np.float32 and to is None else a for a in found]

    return narrow
