"""ONNX reductions, cumulative sums, arg-reductions and top-k."""

from minitvm.frontend.onnx.node import OnnxNode, cast, emit, normalize_axis, rank, single
from minitvm.frontend.onnx.registry import formulas, onnx_op
from minitvm.ir.expr import Expr

_SIMPLE = {"ReduceMax": "max", "ReduceMin": "min", "ReduceMean": "mean", "ReduceProd": "prod", "ReduceSum": "sum"}


def _axes(node: OnnxNode) -> tuple[int, ...] | None:
    """The axes to reduce, by attribute or input, each once; ``None``: nothing is to be reduced."""
    given = node.numbers(1, "axes")
    if given:
        return tuple(dict.fromkeys(normalize_axis(node, a, rank(node[0])) for a in given))
    return None if node.attr("noop_with_empty_axes", 0) else tuple(range(rank(node[0])))


def _reduced(node: OnnxNode, name: str, x: Expr) -> Expr:
    axes = _axes(node)
    return emit(name, x, axis=axes, keepdims=bool(node.attr("keepdims", 1))) if axes else x


@onnx_op(*_SIMPLE)
def reduce_simple(node: OnnxNode) -> Expr:
    x = node[0]
    if x.dtype == "bool":  # ReduceMax and ReduceMin of opset 20
        return cast(_reduced(node, _SIMPLE[node.op_type], cast(x, "uint8")), "bool")
    return _reduced(node, _SIMPLE[node.op_type], x)


def _squares(node: OnnxNode) -> Expr:
    x = single(node[0])
    return _reduced(node, "sum", x * x)


def _as_float(x: Expr) -> Expr:
    """Integers in float64; their logarithms and roots lose the fraction afterwards, as in ONNX Runtime."""
    return x if x.tensor_type.is_float else cast(x, "float64")


formulas(
    {
        "ReduceL1": lambda n: _reduced(n, "sum", emit("abs", n[0])),
        "ReduceL2": lambda n: cast(emit("sqrt", _as_float(_squares(n))), n[0].dtype),
        "ReduceLogSum": lambda n: cast(emit("log", _as_float(_reduced(n, "sum", single(n[0])))), n[0].dtype),
        "ReduceLogSumExp": lambda n: cast(_reduced(n, "logsumexp", _as_float(n[0])), n[0].dtype),
        "ReduceSumSquare": lambda n: cast(_squares(n), n[0].dtype),
    }
)


@onnx_op("ArgMax", "ArgMin")
def arg_reduce(node: OnnxNode) -> Expr:
    axis = normalize_axis(node, node.attr("axis"), rank(node[0]))
    flags = {"keepdims": bool(node.attr("keepdims")), "select_last_index": bool(node.attr("select_last_index", 0))}
    found = emit(node.op_type.lower(), node[0], axis=(axis,), **flags)
    return cast(found, "int64")


@onnx_op("CumProd", "CumSum", since=11)
def cumulative(node: OnnxNode) -> Expr:
    axis = normalize_axis(node, int(node.constant(1, "axis").item()), rank(node[0]))
    x = emit("reverse", node[0], axis=axis) if node.attr("reverse") else node[0]
    total = emit(node.op_type.lower(), x, axis=axis, exclusive=bool(node.attr("exclusive")))
    return emit("reverse", total, axis=axis) if node.attr("reverse") else total


@onnx_op("MeanVarianceNormalization", since=9)
def mean_variance_normalization(node: OnnxNode) -> Expr:
    """(x - mean) / (standard deviation + 1e-9), over ``axes``."""
    x = single(node[0])
    axes = tuple(normalize_axis(node, a, rank(x)) for a in node.attr("axes", [0, 2, 3]))
    centred = x - emit("mean", x, axis=axes, keepdims=True)
    variance = emit("mean", centred * centred, axis=axes, keepdims=True)
    return cast(centred / (emit("sqrt", variance) + 1e-9), node[0].dtype)


@onnx_op("LpNormalization")
def lp_normalization(node: OnnxNode) -> Expr:
    """x over its p-norm along ``axis``; zero where the norm is."""
    x, p = single(node[0]), node.attr("p")
    axes = (normalize_axis(node, node.attr("axis"), rank(x)),)
    if p == 1:
        norm = emit("sum", emit("abs", x), axis=axes, keepdims=True)
    elif p == 2:
        norm = emit("sqrt", emit("sum", x * x, axis=axes, keepdims=True))
    else:
        raise node.refuse("p", "p is 1 or 2")
    return cast(x / emit("where", emit("equal", norm, 0), 1, norm), node[0].dtype)
