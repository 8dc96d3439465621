"""Operators of ``ai.onnx.ml`` as tensor programs (``trees.py`` has the trees).

Where ONNX leaves open what a classifier of two classes with one score says, this is what ONNX Runtime or onnx's
reference do, whichever keeps to the transform that the node asks for.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from minitvm.frontend.onnx.more.foreign import foreign
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, rank, scalar, wide
from minitvm.frontend.onnx.registry import Outputs, formulas
from minitvm.frontend.onnx.tensor import concatenated, integers
from minitvm.ir.expr import Constant, Expr
from minitvm.ir.ops._shape import shapes_differ
from minitvm.ir.types import STRING

ML = "ai.onnx.ml"


def _vector(node: OnnxNode, name: str) -> Expr:
    return Constant(np.asarray(node.require(name), np.float32))


def _scaler(node: OnnxNode) -> Expr:
    return (cast(node[0], "float32") - _vector(node, "offset")) * _vector(node, "scale")


_NORMS = {"MAX": "max", "L1": "sum", "L2": "sum"}


def _normalizer(node: OnnxNode) -> Expr:
    """Over the norm of each row: MAX, L1 or L2."""
    x, norm = cast(node[0], "float32"), node.attr("norm", "MAX")
    if norm not in _NORMS:
        raise node.refuse("norm", "one of MAX, L1, L2")
    size = x * x if norm == "L2" else emit("abs", x)
    total = emit(_NORMS[norm], size, axis=(rank(x) - 1,), keepdims=True)
    total = emit("sqrt", total) if norm == "L2" else total
    return x / emit("maximum", total, scalar(1e-30, total))


def _imputer(node: OnnxNode) -> Expr:
    """One value replaced, in all columns or in each by its own."""
    x, kind = node[0], "float" if node[0].tensor_type.is_float else "int64"
    replaced = node.attr(f"replaced_value_{kind}", 0)
    missing = emit("isnan", x) if replaced != replaced else emit("equal", x, scalar(replaced, x))
    values = np.asarray(node.require(f"imputed_value_{kind}s"), x.dtype)
    if len(values) != 1 and shapes_differ(x.tensor_type.shape[-1:], (len(values),)):
        raise node.misfit(f"{len(values)} values are imputed in {x.tensor_type}; expected 1, or one a column")
    return emit("where", missing, Constant(values), x)


def _vectorizer(node: OnnxNode) -> Expr:
    """All inputs side by side as floats, each cut off or filled up with zeros to its size; a vector is one row."""
    parts = []
    for given, size in zip(node.operands(), node.require("inputdimensions"), strict=True):
        x = cast(given if rank(given) > 1 else emit("expand_dims", given, axis=0), "float32")
        x = emit("strided_slice", x, begin=(0,), end=(size,), axes=(1,)) if x.shape[1] > size else x
        more = size - x.shape[1]
        parts.append(emit("nn.pad", x, pad_width=((0, 0), (0, more))) if more else x)
    return concatenated(parts, 1)


formulas(
    {
        "Binarizer": lambda n: cast(emit("greater", n[0], scalar(n.attr("threshold", 0.0), n[0])), n[0].dtype),
        "FeatureVectorizer": _vectorizer,
        "Imputer": _imputer,
        "Normalizer": _normalizer,
        "Scaler": _scaler,
    },
    domain=ML,
)


# --- labels and categories --------------------------------------------------------------------------------------


def _encoded(x: Expr, keys: np.ndarray, values: np.ndarray, default: Any) -> Expr:
    """``values`` at the places of keys, the last of equal ones; from or to text in Python."""
    if object in (keys.dtype, values.dtype):
        dtype = STRING if values.dtype == object else values.dtype.name
        names = {"keys": tuple(keys.tolist()), "values": tuple(values.tolist())}
        return emit("map.lookup", x, **names, default=default, dtype=dtype)
    table = {None if k != k else k: v for k, v in zip(keys.tolist(), values.tolist(), strict=True)}
    known = Constant(np.array([np.nan if k is None else k for k in table], keys.dtype).astype(x.dtype))
    at = emit("expand_dims", x, axis=rank(x))
    equal = emit("equal", at, known)
    if None in table:
        equal = emit("logical_or", equal, emit("logical_and", emit("isnan", at), emit("isnan", known)))
    place = emit("sum", emit("where", equal, integers(range(1, len(table) + 1)), 0), axis=(rank(x),))
    return emit("take", Constant(np.array([default, *table.values()], values.dtype)), place, axis=0)


def _label_encoder(node: OnnxNode) -> Outputs:
    def column(side: str) -> tuple[np.ndarray, str]:
        for kind, dtype in (("int64s", "int64"), ("floats", "float32"), ("strings", object), ("tensor", None)):
            if node.has(f"{side}_{kind}"):
                return np.asarray(node.attr(f"{side}_{kind}"), dtype).reshape(-1), kind
        raise node.fail(f"none of {side}_int64s, {side}_floats, {side}_strings is given")

    (keys, _), (values, kind) = column("keys"), column("values")
    default = node.attr(f"default_{kind.rstrip('s')}")
    if default is None:
        default = "_Unused" if values.dtype == object else -1 if values.dtype.kind == "i" else -0.0
    return _encoded(node[0], keys, values, np.asarray(default).item())


def _by_position(node: OnnxNode, numbers: Sequence[int], names: Sequence[str]) -> Expr:
    """From text to numbers and back."""
    columns = np.array(numbers, np.int64), np.array(names, object)
    if node[0].dtype == STRING:
        return _encoded(node[0], *columns[::-1], node.attr("default_int64", -1))
    return _encoded(node[0], *columns, node.attr("default_string", "_Unused"))


def _one_hot(node: OnnxNode) -> Outputs:
    """Numbers are cast to integers first; text gets a number in Python."""
    if not node.attr("zeros"):
        return foreign(node)
    names, numbers = node.attr("cats_strings"), node.attr("cats_int64s")
    if node[0].dtype == STRING:
        numbers = range(len(names or []))
        x = _encoded(node[0], np.array(names or [], object), np.array(numbers), -1)
    else:
        x = cast(node[0], "int64")
    return cast(emit("equal", emit("expand_dims", x, axis=rank(x)), integers(numbers or [])), "float32")


formulas(
    {
        "CategoryMapper": lambda n: _by_position(n, n.require("cats_int64s"), n.require("cats_strings")),
        "LabelEncoder": lambda n: _by_position(n, range(len(n.require("classes_strings"))), n.attr("classes_strings")),
        "LabelEncoder-2": _label_encoder,
        "OneHotEncoder": _one_hot,
    },
    domain=ML,
)


# --- linear models and support vectors --------------------------------------------------------------------------


def _probit(x: Expr) -> Expr:
    """The normal distribution's quantile, by Winitzki's formula for the inverse of erf, as ONNX Runtime has it."""
    x = x * 2 - 1
    log = emit("log", (1 - x) * (1 + x))
    half = log * 0.5 + 2 / (np.pi * 0.147)
    return emit("sign", x) * emit("sqrt", emit("sqrt", half * half - log / 0.147) - half) * 1.41421356


def _softmax_zero(x: Expr) -> Expr:
    """Softmax in which what is almost 0 stays so."""
    top = emit("max", x, axis=(1,), keepdims=True)
    kept = emit("where", emit("less", emit("abs", x), 1e-7), x * emit("exp", -top), emit("exp", x - top))
    total = emit("sum", kept, axis=(1,), keepdims=True)
    return emit("where", emit("equal", total, 0), 0.5, kept / total)


_TRANSFORMS = {
    "NONE": lambda x: x,
    "LOGISTIC": lambda x: emit("sigmoid", x),
    "SOFTMAX": lambda x: emit("nn.softmax", x, axis=1),
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}


def transformed(node: OnnxNode, scores: Expr, name: str | None = None) -> Expr:
    """What ``post_transform`` makes of (rows, scores).  One score a row stays as it is, as in ONNX Runtime, which
    knows PROBIT only there."""
    name = node.attr("post_transform", "NONE") if name is None else name
    if name not in _TRANSFORMS:
        raise node.fail(f"attribute post_transform={name!r} is not supported", ", ".join(_TRANSFORMS))
    return scores if scores.shape[1] == 1 and name != "PROBIT" else _TRANSFORMS[name](scores)


def labels_of(node: OnnxNode) -> np.ndarray:
    """The labels of a classifier, int64 or text."""
    for name in ("classlabels_ints", "classlabels_int64s", "classlabels_strings"):
        if node.attr(name):
            return np.array(node.attr(name), object if name.endswith("strings") else np.int64)
    raise node.fail("there are no class labels")


def labelled(node: OnnxNode, place: Expr) -> Expr:
    """The labels at ``place``: (rows,) integers."""
    labels = labels_of(node)
    if labels.dtype == object:
        return _encoded(cast(place, "int64"), np.arange(len(labels)), labels, "")
    return emit("take", Constant(labels), place, axis=0)


def classified(node: OnnxNode, scores: Expr, place: Expr | None = None) -> Outputs:
    """Labels, by default of the largest scores (of SOFTMAX_ZERO when transformed), and the scores (rows, classes)."""
    found = transformed(node, scores)
    ranked = found if node.attr("post_transform") == "SOFTMAX_ZERO" else scores
    place = emit("argmax", ranked, axis=(1,), keepdims=False) if place is None else place
    return [labelled(node, place), cast(found, "float32")]


def two_scores(score: Expr, complement: bool = False) -> Expr:
    """(rows, 2) of one score a row: behind its negative, or what it is less than 1."""
    return concatenated([1 - score if complement else -score, score], 1)


def column(x: Expr, index: int) -> Expr:
    return emit("strided_slice", x, begin=(index,), end=(index + 1,), axes=(1,))


def is_above(score: Expr, least: float) -> Expr:
    """(rows,) 0 or 1: whether one score a row is more than that."""
    return cast(emit("squeeze", emit("greater", score, least), axis=(1,)), "int64")


def _linear(node: OnnxNode, rows: int) -> Expr:
    """x @ coefficients.T + intercepts, ``rows`` coefficients of each feature."""
    x = cast(node[0], wide(node[0].dtype))
    weight = np.asarray(node.require("coefficients"), x.dtype).reshape(rows, -1)
    found = emit("nn.dense", x, Constant(weight))
    return found + Constant(np.asarray(node.attr("intercepts"), x.dtype)) if node.attr("intercepts") else found


def _linear_regressor(node: OnnxNode) -> Expr:
    return cast(transformed(node, _linear(node, node.attr("targets", 1))), "float32")


def _linear_classifier(node: OnnxNode) -> Outputs:
    """With one row of coefficients the score of the second of two classes, or whether there is the only one."""
    if rank(node[0]) != 2:
        raise node.misfit(f"the input must be a matrix, not {node[0].tensor_type}")
    scores, classes = _linear(node, len(node.require("coefficients")) // node[0].shape[1]), len(labels_of(node))
    if scores.shape[1] == 1 and classes == 2:
        return classified(node, two_scores(scores), is_above(scores, 0))
    if classes > 1:
        return classified(node, scores)
    return foreign(node)


def _kernel(node: OnnxNode, x: Expr, vectors: np.ndarray, kind: str) -> Expr:
    """How alike rows and support vectors are: (rows, features), (vectors, features) -> (rows, vectors)."""
    gamma, coef0, degree = node.attr("kernel_params") or (0.0, 0.0, 0.0)
    if kind == "RBF":
        apart = emit("expand_dims", x, axis=1) - Constant(vectors)
        return emit("exp", emit("sum", apart * apart, axis=(2,)) * -gamma)
    product = emit("nn.dense", x, Constant(vectors))
    if kind == "LINEAR":
        return product
    product = product * gamma + coef0
    if kind == "SIGMOID":
        return emit("tanh", product)
    if kind != "POLY":
        raise node.refuse("kernel_type", "LINEAR, POLY, RBF, SIGMOID")
    return emit("power", product, scalar(degree, product))


def _floats(node: OnnxNode, name: str, dtype: str) -> np.ndarray:
    return np.asarray(node.attr(name) or [], dtype)


def _svm_regressor(node: OnnxNode) -> Expr:
    x, count = cast(node[0], wide(node[0].dtype)), node.attr("n_supports", 0)
    weight, rho = (_floats(node, name, x.dtype) for name in ("coefficients", "rho"))
    if count:
        vectors = _floats(node, "support_vectors", x.dtype).reshape(count, -1)
        x = _kernel(node, x, vectors, node.attr("kernel_type", "LINEAR"))
    found = emit("nn.dense", x, Constant(weight.reshape(1, -1))) + Constant(rho[:1])
    if node.attr("one_class"):
        found = emit("where", emit("greater", found, 0), emit("full_like", found, scalar(1, found)), -1)
    return cast(transformed(node, found), "float32")


def _svm_classifier(node: OnnxNode) -> Outputs:
    """A score for each pair of classes, and a vote for one of them; or, without support vectors, one for each class."""
    x, counts = cast(node[0], wide(node[0].dtype)), node.attr("vectors_per_class") or []
    weight, rho = (_floats(node, name, x.dtype) for name in ("coefficients", "rho"))
    if not sum(counts):
        classes = max(len(labels_of(node)), 1)
        return classified(node, emit("nn.dense", x, Constant(weight.reshape(classes, -1))) + Constant(rho[:1]))
    vectors = _floats(node, "support_vectors", x.dtype).reshape(sum(counts), -1)
    kernel = _kernel(node, x, vectors, node.attr("kernel_type", "LINEAR"))
    size = len(counts) ** 2 // 2 * (sum(counts) + 4 * len(counts)) * weight.itemsize
    node.afford(size, f"a machine of {len(counts):,} classes")
    pairs, table = _pairs(counts, weight.reshape(-1, sum(counts)))
    scores = emit("nn.dense", kernel, Constant(table)) + Constant(rho[: len(pairs)])
    place = emit("argmax", _votes(scores, pairs, len(counts)), axis=(1,), keepdims=False)
    if node.attr("prob_a"):
        return classified(node, _probabilities(node, scores, pairs, len(counts)), place)
    return classified(node, two_scores(scores) if len(counts) == 2 else scores, place)


def _pairs(counts: Sequence[int], weight: np.ndarray) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Classes i < j, and the weights (pairs, vectors) of all vectors in the score that it is i."""
    ends = np.cumsum([0, *counts])
    own = [slice(a, b) for a, b in pairwise(ends)]
    pairs = [(i, j) for i in range(len(counts)) for j in range(i + 1, len(counts))]
    table = np.zeros((len(pairs), weight.shape[1]), weight.dtype)
    for row, (i, j) in zip(table, pairs, strict=True):
        row[own[i]], row[own[j]] = weight[j - 1, own[i]], weight[i, own[j]]
    return pairs, table


def _votes(scores: Expr, pairs: list[tuple[int, int]], classes: int) -> Expr:
    """(rows, classes): how many of its pairs each class wins; the second does where the score is not above 0."""
    won = cast(emit("greater", scores, 0), scores.dtype)
    first, second = (np.eye(classes, dtype=scores.dtype)[[p[side] for p in pairs]].T for side in (0, 1))
    return emit("nn.dense", won, Constant(first)) + emit("nn.dense", 1 - won, Constant(second))


def _probabilities(node: OnnxNode, scores: Expr, pairs: list[tuple[int, int]], classes: int) -> Expr:
    """(rows, classes), from those of pairs (Platt's), which are coupled."""
    a, b = (Constant(_floats(node, name, scores.dtype)) for name in ("prob_a", "prob_b"))
    first = emit("clip", 1 - emit("sigmoid", scores * a + b), a_min=1e-7, a_max=1 - 1e-7)
    known = concatenated([first, 1 - first, emit("zeros_like", column(first, 0))], 1)
    place = np.full((classes, classes), 2 * len(pairs))
    for n, (i, j) in enumerate(pairs):
        place[i, j], place[j, i] = n, len(pairs) + n
    r = emit("take", known, Constant(place), axis=1)
    square = emit("sum", r * r, axis=(1,))
    own = emit("expand_dims", square, axis=1) * Constant(np.eye(classes, dtype=scores.dtype))
    return emit("ml.pairwise_coupling", own - r * emit("transpose", r, axes=(0, 2, 1)))


formulas(
    {
        "LinearClassifier": _linear_classifier,
        "LinearRegressor": _linear_regressor,
        "SVMClassifier": _svm_classifier,
        "SVMRegressor": _svm_regressor,
    },
    domain=ML,
)
