"""``ai.onnx.ml``: random models against ONNX Runtime, and against onnx's reference where ONNX Runtime has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from minitvm import InferenceSession
from minitvm.errors import FrontendError, InputError, TypeInferenceError
from minitvm.frontend import from_onnx
from minitvm.frontend.onnx import node as onnx_node

ML = "ai.onnx.ml"
BRANCHES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def model_of(op_type: str, x: Any, outputs: int = 1, opset: int = 3, **attributes: Any) -> onnx.ModelProto:
    """``x``: an array, or the type of a map."""
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, ["x"], names, domain=ML, **attributes)
    if isinstance(x, np.ndarray):
        given = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    else:
        given = onnx.ValueInfoProto(name="x", type=helper.make_map_type_proto(x[0], _scalar(x[1])))
    graph = helper.make_graph([node], "g", [given], [onnx.ValueInfoProto(name=name) for name in names])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(ML, opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def _scalar(dtype: int) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(dtype, [])


def peer(model: onnx.ModelProto, x: Any) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    made = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(made.run(None, {"x": x}))


def run(model: onnx.ModelProto, x: Any, host_calls: tuple[str, ...] = ()) -> list[Any]:
    made = InferenceSession(model, num_threads=1)
    found = made.run(None, {"x": x})
    assert tuple(call.op for call in made.host_calls) == host_calls
    return found


def check(op_type: str, x: np.ndarray, tol: float = 2e-5, host_calls: tuple[str, ...] = (), **options: Any) -> None:
    """As ONNX Runtime; what it has only for float32 it gets in float32."""
    model = model_of(op_type, x, **options)
    try:
        expected = peer(model, x)
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        expected = peer(model_of(op_type, single := x.astype(np.float32), **options), single)
    compare(run(model, x, host_calls), expected, tol)


def compare(found: list[np.ndarray], expected: list[np.ndarray], tol: float) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == np.shape(theirs)
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(mine, theirs, rtol=tol, atol=tol)
        else:
            assert mine.tolist() == np.asarray(theirs).tolist()


def features(rng: np.random.Generator, rows: int, count: int, dtype: str) -> np.ndarray:
    """Many at thresholds, some NaN where floats are."""
    x = rng.integers(-4, 5, (rows, count)) / 2
    if dtype.startswith("float"):
        x[rng.random(x.shape) < 0.2] += 0.3
        x[rng.random(x.shape) < 0.1] = np.nan
    return x.astype(dtype)


def by_ids(rng: np.random.Generator, what: str, count: int, trees: int, targets: int, double: bool) -> dict[str, Any]:
    """Random trees, as TreeEnsembleRegressor and TreeEnsembleClassifier have them."""
    nodes: list[Any] = []
    votes: list[Any] = []

    def grow(tree: int, first: int, depth: int) -> int:
        me = len(nodes) - first
        nodes.append(None)
        if depth == 0 or rng.random() < 0.15:
            nodes[first + me] = (tree, me, "LEAF", 0, 0.0, 0, 0, 0)
            kept = rng.choice(targets, rng.integers(1, targets + 1), replace=False)
            votes.extend((tree, me, int(target), float(rng.normal())) for target in kept)
            return me
        yes, no = (grow(tree, first, depth - 1) for _ in range(2))
        split, missing = float(rng.integers(-3, 4) / 2), int(rng.integers(2))
        nodes[first + me] = (tree, me, str(rng.choice(BRANCHES)), int(rng.integers(count)), split, yes, no, missing)
        return me

    for tree in range(trees):
        grow(tree, len(nodes), int(rng.integers(1, 6)))
    columns = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids")
    found: dict[str, Any] = {f"nodes_{name}": [n[i] for n in nodes] for i, name in enumerate(columns)}
    found["nodes_missing_value_tracks_true"] = [n[7] for n in nodes]
    for i, name in enumerate(("treeids", "nodeids", "ids", "weights")):
        found[f"{what}_{name}"] = [v[i] for v in votes]
    for name in ("nodes_values", f"{what}_weights") if double else ():
        found[f"{name}_as_tensor"] = numpy_helper.from_array(np.array(found.pop(name)))
    return found


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("dtype, targets, post", [
    ("float32", 1, "NONE"), ("float32", 3, "SOFTMAX"), ("float64", 2, "LOGISTIC"), ("int64", 3, "SOFTMAX_ZERO"),
])  # fmt: skip
def test_regressors(aggregate: str, dtype: str, targets: int, post: str) -> None:
    rng = np.random.default_rng(targets + len(aggregate))
    x, trees = features(rng, 23, 4, dtype), by_ids(rng, "target", 4, 5, targets, dtype == "float64")
    base = {"base_values": rng.normal(size=targets).tolist()} if "MIN" != aggregate != "AVERAGE" else {}
    options = {"n_targets": targets, "aggregate_function": aggregate, "post_transform": post, **base}
    check("TreeEnsembleRegressor", x, **options, **trees)


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_classifiers(post: str, classes: int, dtype: str) -> None:
    """Of two classes trees give one score; softmax of its two sides is the reference's (ONNX Runtime leaves it)."""
    rng = np.random.default_rng(classes)
    x = features(rng, 23, 4, dtype)
    trees = by_ids(rng, "class", 4, 5, 1 if classes == 2 else classes, dtype == "float64")
    if classes > 2:  # every class has a vote: without one it is no candidate in ONNX Runtime
        trees["base_values"] = rng.normal(size=classes).tolist()
    options = {"outputs": 2, "post_transform": post, "classlabels_int64s": [7, -2, 5, 9][:classes], **trees}
    if (classes, post) != (2, "SOFTMAX"):
        return check("TreeEnsembleClassifier", x, **options)
    if dtype == "float64":  # neither is the reference's own way with doubles right
        return None
    x = np.nan_to_num(x)
    model = model_of("TreeEnsembleClassifier", x, **options)
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    compare(run(model, x), expected, 2e-5)
    return None


READS = {
    "TreeEnsembleRegressor": ("target", {"n_targets": 3}),
    "TreeEnsembleClassifier": ("class", {"classlabels_int64s": [0, 1, 2]}),
}


@pytest.mark.parametrize("op_type", READS)
def test_attributes_are_read_once_however_many_nodes_there_are(op_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of a number for each node: to read one takes as long as it is."""
    what, more = READS[op_type]
    reads: list[str] = []
    read = onnx_node.attribute_value
    monkeypatch.setattr(onnx_node, "attribute_value", lambda proto, *how: reads.append(proto.name) or read(proto, *how))

    def counted(trees: int) -> int:
        rng = np.random.default_rng(3)
        model = model_of(op_type, features(rng, 2, 4, "float32"), **more, **by_ids(rng, what, 4, trees, 3, False))
        reads.clear()
        from_onnx(model)
        return len(reads)

    few = counted(2)
    assert 8 <= few == counted(40) and len({*reads}) > few / 3


def test_labels_of_text() -> None:
    rng = np.random.default_rng(3)
    x, trees = features(rng, 9, 3, "float32"), by_ids(rng, "class", 3, 4, 1, False)
    options = {"outputs": 2, "classlabels_strings": ["no", "yes"], **trees}
    check("TreeEnsembleClassifier", x, host_calls=("map.lookup",), **options)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("aggregate", [0, 1])
def test_ensembles(dtype: str, aggregate: int) -> None:
    """Nodes and leaves apart; sets, which the reference reads in the order of a walk."""
    rng = np.random.default_rng(aggregate)
    nodes: list[Any] = []
    leaves: list[tuple[float, int]] = []
    members: list[float] = []

    def grow(depth: int) -> tuple[int, int]:
        if depth == 0:
            leaves.append((float(np.float16(rng.normal())), int(rng.integers(2))))
            return len(leaves) - 1, 1
        me, mode = len(nodes), int(rng.integers(7))
        nodes.append(None)
        if mode == 6:
            members.extend([*(rng.choice([-1.5, -1, -0.5, 0.5, 1, 2], 3, replace=False)), np.nan])
        yes, no = grow(depth - 1), grow(depth - 1)
        nodes[me] = (mode, int(rng.integers(3)), float(rng.integers(-3, 4) / 2), *yes, *no, int(rng.integers(2)))
        return me, 0

    roots = [grow(depth)[0] for depth in (1, 3, 4)]
    columns = ("modes", "featureids", "splits", "truenodeids", "trueleafs", "falsenodeids", "falseleafs")
    trees: dict[str, Any] = {f"nodes_{name}": [n[i] for n in nodes] for i, name in enumerate(columns)}
    trees["nodes_missing_value_tracks_true"] = [n[7] for n in nodes]
    tensors = {
        "nodes_splits": trees["nodes_splits"],
        "leaf_weights": [w for w, _ in leaves],
        "membership_values": members,
    }
    trees |= {name: numpy_helper.from_array(np.array(values, dtype)) for name, values in tensors.items()}
    trees["nodes_modes"] = numpy_helper.from_array(np.array(trees["nodes_modes"], np.uint8))
    trees |= {"leaf_targetids": [t for _, t in leaves], "tree_roots": roots, "n_targets": 2}
    x = features(rng, 29, 3, dtype)
    model = model_of("TreeEnsemble", x, opset=5, aggregate_function=aggregate, **trees)
    compare(run(model, x), ReferenceEvaluator(model).run(None, {"x": x}), 2e-3 if dtype == "float16" else 1e-5)


STUMP = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_featureids": [0, 0, 0], "nodes_values": [0.5, 0.0, 0.0], "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
    "target_weights": [1.0, 2.0], "n_targets": 1,
}  # fmt: skip


@pytest.mark.parametrize("changed, error, message", [
    ({"nodes_truenodeids": [0, 0, 0]}, FrontendError, "the way through a tree does not end"),
    ({"nodes_featureids": [2, 0, 0]}, TypeInferenceError, "nodes ask for features up to 2, the input has 1"),
    ({"nodes_modes": ["BRANCH_IN", "LEAF", "LEAF"]}, FrontendError, "nodes_modes has 'BRANCH_IN'"),
    ({"target_ids": [0, 1]}, FrontendError, "targets are numbered up to 1, there are 1"),
    ({"nodes_truenodeids": [5, 0, 0]}, FrontendError, "malformed"),
    ({"post_transform": "RELU"}, FrontendError, "post_transform='RELU' is not supported"),
    ({"aggregate_function": "MEDIAN"}, FrontendError, "aggregate_function='MEDIAN' is not supported"),
])  # fmt: skip
def test_trees_that_are_none(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    x = np.float32([[0.25]])
    with pytest.raises(error, match=message):
        run(model_of("TreeEnsembleRegressor", x, **STUMP | changed), x)


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_linear_models(post: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    x = np.nan_to_num(features(rng, 7, 4, dtype))
    for targets in (1, 3):
        weights = {
            "coefficients": rng.normal(size=4 * targets).tolist(),
            "intercepts": rng.normal(size=targets).tolist(),
        }
        check("LinearRegressor", x, targets=targets, post_transform=post, **weights)
    labels = {"classlabels_ints": [3, 8, 1], "outputs": 2}
    check("LinearClassifier", x, post_transform=post, **weights, **labels)
    model = model_of("LinearClassifier", x, 2, coefficients=[0.5, -1, 2, 1], intercepts=[0.1], classlabels_ints=[4, 9])
    compare(run(model, x), ReferenceEvaluator(model).run(None, {"x": x}), 1e-5)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_support_vectors(kernel: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(11, 4)).astype(np.float32)
    options = {"kernel_type": kernel, "kernel_params": [0.4, 0.3, 3.0]}

    def floats(*shape: int) -> list[float]:
        return list(map(float, rng.normal(size=shape).reshape(-1) / 2))

    for one_class in (0, 1):
        vectors = {"n_supports": 5, "support_vectors": floats(5, 4), "coefficients": floats(5), "rho": floats(1)}
        check("SVMRegressor", x, one_class=one_class, **vectors, **options)
    for classes in (2, 4):
        pairs = classes * (classes - 1) // 2
        vectors = {"vectors_per_class": [2, 1, 3, 2][:classes], "rho": floats(pairs)}
        count = sum(vectors["vectors_per_class"])
        vectors |= {"support_vectors": floats(count, 4), "coefficients": floats(classes - 1, count)}
        chances = {"prob_a": [-abs(a) - 0.1 for a in floats(pairs)], "prob_b": floats(pairs)}
        labels = {"outputs": 2, "classlabels_ints": [5, 3, 8, 2][:classes]}
        for more in ({}, {"post_transform": "LOGISTIC"}, chances):
            check("SVMClassifier", x, tol=1e-4, **vectors, **options, **labels, **more)


def test_support_vectors_of_none() -> None:
    """Linear scores, of which the largest decides."""
    x = np.random.default_rng(2).normal(size=(11, 2)).astype(np.float32)
    options = {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0], "classlabels_ints": [5, 3, 8]}
    check("SVMClassifier", x, outputs=2, coefficients=[0.3, -0.1, 0.2, 0.5, -0.4, 0.1], rho=[0.2], **options)


def test_categories() -> None:
    text, numbers = np.array([["a", "b"], ["zz", "a"]], object), np.int64([[4, 5], [9, 4]])
    lookup = {"host_calls": ("map.lookup",)}
    check("LabelEncoder", numbers, opset=2, keys_int64s=[4, 5], values_floats=[0.5, 1.5], default_float=-2.0)
    check("LabelEncoder", np.float32([2, 3, 1]), opset=2, keys_floats=[3.0, 1.0], values_int64s=[8, 9])
    check("LabelEncoder", text, opset=2, keys_strings=["a", "b"], values_int64s=[7, 8], **lookup)
    check("LabelEncoder", numbers, opset=2, keys_int64s=[4], values_strings=["u"], **lookup)
    check("LabelEncoder", text, opset=1, classes_strings=["b", "a"], **lookup)
    table = {"keys_tensor": np.array([4.0, 5.0]), "values_tensor": np.array([2, 3], np.int64)}
    tensors = {name: numpy_helper.from_array(values) for name, values in table.items()}
    check("LabelEncoder", numbers.astype(np.float64), opset=4, **tensors)
    pairs = {"cats_strings": ["a", "b"], "cats_int64s": [4, 5], "opset": 1}
    check("CategoryMapper", text, **pairs, default_int64=-7, **lookup)
    check("CategoryMapper", numbers, **pairs, default_string="other", **lookup)
    check("OneHotEncoder", numbers, opset=1, cats_int64s=[5, 9, 1])
    check("OneHotEncoder", np.float32([1.5, 9]), opset=1, cats_int64s=[5, 9, 1])
    check("OneHotEncoder", text, opset=1, cats_strings=["zz", "a"], **lookup)


def test_the_last_of_equal_keys_counts() -> None:
    x = np.float32([1, np.nan, 3])
    options = {"keys_floats": [1.0, np.nan, 1.0, np.nan], "values_int64s": [7, 8, 9, 10], "opset": 2}
    assert run(model_of("LabelEncoder", x, **options), x)[0].tolist() == [9, 10, -1]


def test_columns() -> None:
    x = np.float32([[1, np.nan, -1], [0, 3, 5]])
    check("Imputer", x, opset=1, imputed_value_floats=[5.0, 6.0, 7.0], replaced_value_float=float("nan"))
    check("Imputer", x, opset=1, imputed_value_floats=[5.0], replaced_value_float=-1.0)
    check("Imputer", np.nan_to_num(x).astype(np.int64), opset=1, imputed_value_int64s=[9], replaced_value_int64=0)
    for size in (2, 3, 5):
        check("FeatureVectorizer", x, opset=1, inputdimensions=[size])
    check("FeatureVectorizer", np.int64([4, 5]), opset=1, inputdimensions=[2])


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [4, 5]}, {"classlabels_strings": ["a", "b"]}])
def test_maps_of_scores(labels: dict[str, Any]) -> None:
    x = np.float32([[0.25, 0.75], [0.5, -1]])
    model = model_of("ZipMap", x, opset=1, **labels)
    assert run(model, x, ("map.zip",)) == peer(model, x)


def test_maps_that_come_in(tmp_path: Any) -> None:
    named = (TensorProto.STRING, TensorProto.FLOAT), {"a": 1.5, "c": 2.0}
    numbered = (TensorProto.INT64, TensorProto.FLOAT), {2: 1.5, 0: 3.0}
    for (types, x), op_type, options in (
        (named, "DictVectorizer", {"string_vocabulary": ["c", "b", "a"]}),
        (numbered, "DictVectorizer", {"int64_vocabulary": [0, 2]}),
        (numbered, "CastMap", {"map_form": "SPARSE", "max_map": 4}),
        (numbered, "CastMap", {"map_form": "DENSE", "cast_to": "TO_INT64"}),
    ):
        model = model_of(op_type, types, opset=1, **options)
        (found,) = run(model, x, ("map.vector",))
        np.testing.assert_array_equal(found, peer(model, x)[0])
    model = model_of("DictVectorizer", named[0], opset=1, string_vocabulary=["a"])
    with pytest.raises(InputError, match=r"map.vector: the map has 'c', which is not among 1 keys"):
        run(model, named[1])
    with pytest.raises(
        InputError, match=r"input 'x' is a list, the model expects a dictionary: Map\[string, float32\]"
    ):
        run(model, [1.5])
