"""Sizes that data decide: one library whatever is found, and no Python behind it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import minitvm
from minitvm.driver import HostCallWarning
from minitvm.errors import MiniTVMError
from minitvm.ir.builder import call_op
from minitvm.ir.dims import symbol
from minitvm.ir.expr import Constant, Function, Var
from minitvm.ir.ops.stage import Stage
from minitvm.ir.types import TensorType
from tests.drawn_counts import checked

node = helper.make_node


def _model(nodes: list[Any], weights: dict[str, Any], result: int = TensorProto.FLOAT, **inputs: Any) -> bytes:
    given = [helper.make_tensor_value_info(name, *how) for name, how in inputs.items()]
    kept = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", given, [helper.make_tensor_value_info("y", result, None)], kept)
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    ).SerializeToString()
    return made


def _session(model: bytes, **how: Any) -> minitvm.InferenceSession:
    return minitvm.InferenceSession(model, num_threads=1, **{"specialise_after": 0, **how})


ROWS = {"x": (TensorProto.FLOAT, ["n", 3])}
POSITIVE = [
    node("ReduceSum", ["x", "one"], ["s"], keepdims=0),
    node("Greater", ["s", "zero"], ["m"]),
    node("NonZero", ["m"], ["found"]),
    node("Squeeze", ["found", "first"], ["places"]),
]
KNOWN = {"one": np.array([1]), "zero": np.float32(0), "first": np.array([0])}
WEIGHT = np.arange(12, dtype="float32").reshape(3, 4)
EXPERT = _model(
    [*POSITIVE, node("Gather", ["x", "places"], ["rows"]), node("MatMul", ["rows", "w"], ["y"])],
    {**KNOWN, "w": WEIGHT},
    **ROWS,
)


def _rows(*signs: int) -> np.ndarray:
    return np.array([[s, 2 * s, i] if s > 0 else [-1 - i, 0, 0] for i, s in enumerate(signs)], "float32").reshape(-1, 3)


@pytest.mark.parametrize("seed", [4, 9, 15, 17, 22, 48, 205, 243, 1014, 1021])
def test_drawn_graphs_are_compiled_once_and_agree_with_onnxruntime(seed: int) -> None:
    problem, libraries, python = checked(seed)
    assert (problem, libraries, python) == ("", 1, [])


def test_the_rows_of_an_expert_are_found_computed_and_counted_without_python() -> None:
    session = _session(EXPERT)
    for signs in ((1, 0, 1, 0), (0, 0), (1,), (1,) * 9):
        x = _rows(*signs)
        found = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(found, x[x.sum(1) > 0] @ WEIGHT, rtol=1e-6)
    (library,) = session.libraries
    assert library.host_calls == [] and library.is_staged


def test_a_shape_that_comes_again_gets_kernels_of_its_own_for_any_count() -> None:
    session = _session(EXPERT)
    session.run(None, {"x": _rows(1, 0, 1)})
    session.prepare({"x": (3, 3)})
    for signs in ((0, 0, 0), (1, 1, 1), (0, 1, 0)):
        x = _rows(*signs)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x[x.sum(1) > 0] @ WEIGHT, rtol=1e-6)
    assert session.libraries[-1].host_calls == [] and len(session.libraries) == 2


def test_compile_stages_what_fits_any_count_and_leaves_the_rest_to_python() -> None:
    """Rows found by two masks are added up where these find as many, which no library for all counts can promise."""
    library = minitvm.compile(EXPERT, shape_dict={"x": (3, 3)}, num_threads=1)
    assert library.host_calls == [] and library.is_staged
    for signs in ((0, 0, 0), (1, 1, 1), (0, 1, 0)):
        x = _rows(*signs)
        np.testing.assert_allclose(library.run({"x": x})[0], x[x.sum(1) > 0] @ WEIGHT, rtol=1e-6)
    two = [
        node("Greater", ["s", "high"], ["m2"]),
        node("Compress", ["x", "m"], ["a"], axis=0),
        node("Compress", ["x", "m2"], ["b"], axis=0),
        node("Add", ["a", "b"], ["y"]),
    ]
    model = _model([*POSITIVE[:2], *two], {**KNOWN, "high": np.float32(7)}, **ROWS)
    with pytest.warns(HostCallWarning):
        library = minitvm.compile(model, shape_dict={"x": (4, 3)}, num_threads=1)
    assert library.host_calls and not library.is_staged
    both, alone = _rows(3, 0, 3, 3), _rows(1, 0, 3, 1)
    np.testing.assert_array_equal(library.run({"x": both})[0], 2 * both[[0, 2, 3]])
    np.testing.assert_array_equal(library.run({"x": alone})[0], alone[[0, 2, 3]] + alone[2])


def test_a_saved_library_finds_as_many(tmp_path: Path) -> None:
    session = _session(EXPERT)
    session.run(None, {"x": _rows(1, 0, 1)})
    session.save(tmp_path / "expert.mtvm")
    loaded = minitvm.load(tmp_path / "expert.mtvm")
    x = _rows(0, 1, 1, 1, 0)
    np.testing.assert_allclose(loaded.run({"x": x})[0], x[x.sum(1) > 0] @ WEIGHT, rtol=1e-6)


def test_what_is_counted_on_of_a_count_is_turned_round_when_a_run_has_it_otherwise() -> None:
    """What two masks find is added up: counted on to be as much, or one of them one row."""
    more = [
        node("Greater", ["s", "high"], ["m2"]),
        node("NonZero", ["m2"], ["found2"]),
        node("Squeeze", ["found2", "first"], ["places2"]),
        node("Gather", ["x", "places"], ["a"]),
        node("Gather", ["x", "places2"], ["b"]),
        node("Add", ["a", "b"], ["y"]),
    ]
    session = _session(_model([*POSITIVE, *more], {**KNOWN, "high": np.float32(7)}, **ROWS))
    both, alone = _rows(3, 0, 3, 3), _rows(1, 0, 3, 1)
    np.testing.assert_array_equal(session.run(None, {"x": both})[0], 2 * both[[0, 2, 3]])
    np.testing.assert_array_equal(session.run(None, {"x": alone})[0], alone[[0, 2, 3]] + alone[2])
    with pytest.raises(MiniTVMError):
        session.run(None, {"x": _rows(1, 3, 3)})
    np.testing.assert_array_equal(session.run(None, {"x": both})[0], 2 * both[[0, 2, 3]])


def test_a_stage_means_what_its_body_does_at_the_sizes_it_is_given() -> None:
    found, n = symbol("found"), symbol("n")
    rows, y = Var("rows", TensorType((found, 2), "float32")), Var("y", TensorType((n,), "float32"))
    zeros = call_op("full", Constant(np.float32(0)), shape=(found, 1), dtype="float32")
    body = call_op("concatenate", (zeros, call_op("broadcast_to", y, shape=(found, n))), axis=1)
    stage = Stage(Function([rows, y], body), ("found", "n"), 1, 1, (0, -1))
    assert str(stage.infer(*[TensorType((), "int64")] * 2, rows.type, y.type)) == "Tensor[(?, n + 1), float32]"
    room, three = np.ones((5, 2), "float32"), np.arange(3, dtype="float32")
    results = stage.reference(np.array(2), np.array(3), room, three)
    np.testing.assert_array_equal(results, [[0, 0, 1, 2], [0, 0, 1, 2]])
    with pytest.raises(MiniTVMError, match="shape"):
        stage.reference(np.array(6), np.array(3), room, three)


def _sliced(ends: str) -> bytes:
    nodes = [node("Slice", ["x", "zeros", ends, "zeros"], ["y"])]
    given = {"x": (TensorProto.FLOAT, ["n", 3]), ends: (TensorProto.INT64, [1])}
    return _model(nodes, {"zeros": np.array([0])}, **given)


def test_a_value_that_an_input_gives_is_no_reason_to_compile_again() -> None:
    session, x = _session(_sliced("ends")), _rows(1, 1, 1, 1, 1)
    for end in (2, 0, 4, 5, 9):
        np.testing.assert_array_equal(session.run(None, {"x": x, "ends": np.array([end])})[0], x[:end])
    assert len(session.libraries) == 1


def test_a_value_below_zero_is_measured_and_served_all_the_same() -> None:
    session, x = _session(_sliced("ends")), _rows(1, 1, 1, 1, 1)
    for end in (2, -2, 3, -1):
        np.testing.assert_array_equal(session.run(None, {"x": x, "ends": np.array([end])})[0], x[:end])


def test_a_computed_start_below_zero_counts_from_the_end_and_no_further() -> None:
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "first"], ["count"]),
        node("Sub", ["count", "four"], ["start"]),
        node("Slice", ["x", "start", "far", "first"], ["y"]),
    ]
    weights = {"first": np.array([0]), "four": np.array([4]), "far": np.array([2**40])}
    session = _session(_model(nodes, weights, **ROWS))
    for count in (3, 1, 0, 2, 5, 4, 9):
        x = _rows(*[1] * count)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x[count - 4 :])


def test_an_index_that_is_out_of_range_behind_a_count_is_an_error_and_the_session_goes_on() -> None:
    nodes = [*POSITIVE, node("Gather", ["x", "places"], ["a"]), node("Gather", ["a", "third"], ["y"])]
    session = _session(_model(nodes, {**KNOWN, "third": np.array([2])}, **ROWS))
    x = _rows(1, 1, 1, 0)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x[[2]])
    with pytest.raises(MiniTVMError, match="index 2"):
        session.run(None, {"x": _rows(1, 1, 0)})
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x[[2]])


def test_the_best_of_a_count_that_is_computed() -> None:
    nodes = [
        node("ReduceSum", ["x", "one"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["m"]),
        node("Cast", ["m"], ["i"], to=TensorProto.INT64),
        node("ReduceSum", ["i", "first"], ["k"], keepdims=1),
        node("TopK", ["s", "k"], ["y", "places"]),
    ]
    session = _session(_model(nodes, KNOWN, **ROWS))
    for signs in ((1, 0, 1), (0, 0), (1, 1)):
        x = _rows(*signs)
        sums = np.sort(x.sum(1))[::-1]
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], sums[sums > 0])
    assert len(session.libraries) == 1 and not session.libraries[0].host_calls


def test_a_convolution_whose_channels_come_out_of_a_choice_is_computed() -> None:
    """Where no size has a name: what needs one is computed when it is there."""
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None, None]) for name in ("a", "b")]
    parts = [
        helper.make_graph([node("Unsqueeze", ["x", "first"], ["a"])], "t", [], shapes[:1]),
        helper.make_graph([node("Unsqueeze", ["turned", "first"], ["b"])], "e", [], shapes[1:]),
    ]
    nodes = [
        node("Transpose", ["x"], ["turned"]),
        node("If", ["straight"], ["chosen"], then_branch=parts[0], else_branch=parts[1]),
        node("Conv", ["chosen", "w"], ["y"]),
    ]
    inputs = {"x": (TensorProto.FLOAT, ["n", 3]), "straight": (TensorProto.BOOL, [])}
    session = _session(_model(nodes, {"w": np.ones((2, 3, 1), "float32"), "first": np.array([0])}, **inputs))
    x = _rows(1, 1, 1, 1)
    found = session.run(None, {"x": x, "straight": np.array(False)})[0]
    np.testing.assert_array_equal(found, np.stack([x.sum(1)] * 2)[None])
    square = x[:3]
    found = session.run(None, {"x": square, "straight": np.array(True)})[0]
    np.testing.assert_array_equal(found, np.stack([square.sum(0)] * 2)[None])


def test_a_model_of_fixed_sizes_is_staged_as_well() -> None:
    model = onnx.load_from_string(EXPERT)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    session = _session(model.SerializeToString())
    for signs in ((1, 0, 1, 0), (0, 0, 0, 0), (1, 1, 1, 1)):
        x = _rows(*signs)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x[x.sum(1) > 0] @ WEIGHT, rtol=1e-6)
    assert len(session.libraries) == 1 and not session.libraries[0].host_calls


def _bag(mean: bool) -> bytes:
    """What PyTorch's exporter makes of ``EmbeddingBag``."""
    body = [
        node("Gather", ["bounds", "trip"], ["a"]),
        node("Gather", ["ends", "trip"], ["b"]),
        node("Unsqueeze", ["a", "first"], ["start"]),
        node("Unsqueeze", ["b", "first"], ["end"]),
        node("Slice", ["ids", "start", "end", "first"], ["mine"]),
        node("Gather", ["table", "mine"], ["rows"]),
        node("ReduceMean" if mean else "ReduceSum", ["rows", "first"], ["total"], keepdims=0),
        node("Cast", ["yes"], ["going"], to=TensorProto.BOOL),
    ]
    given = [helper.make_tensor_value_info("trip", 7, []), helper.make_tensor_value_info("before", 9, [])]
    made = [helper.make_tensor_value_info("going", 9, []), helper.make_tensor_value_info("total", 1, None)]
    nodes = [
        node("Shape", ["ids"], ["count"]),
        node("Concat", ["offsets", "count"], ["bounds"], axis=0),
        node("Slice", ["bounds", "one", "all", "first"], ["ends"]),
        node("Shape", ["ends"], ["trips"]),
        node("Squeeze", ["trips", "first"], ["bags"]),
        node("Loop", ["bags", "yes"], ["y"], body=helper.make_graph(body, "body", given, made)),
    ]
    table = np.arange(30, dtype="float32").reshape(10, 3)
    weights = {"one": np.array([1]), "first": np.array([0]), "all": np.array([2**62]), "yes": True, "table": table}
    ids, offsets = (TensorProto.INT64, ["n"]), (TensorProto.INT64, ["batch"])
    return _model(nodes, weights, ids=ids, offsets=offsets)


@pytest.mark.parametrize("mean", [False, True])
def test_a_bag_of_embeddings_is_one_kernel_for_any_lengths(mean: bool) -> None:
    session, table = _session(_bag(mean)), np.arange(30, dtype="float32").reshape(10, 3)
    for lengths in ((2, 0, 3), (1,), (4, 4, 1, 1)):
        ids = np.arange(sum(lengths)) * 7 % 10
        offsets = np.cumsum((0, *lengths[:-1]))
        rows = [table[part] for part in np.split(ids, offsets[1:])]
        if not mean:
            found = session.run(None, {"ids": ids, "offsets": offsets})[0]
            np.testing.assert_allclose(found, [row.sum(0) for row in rows], rtol=1e-6)
        elif 0 not in lengths:
            found = session.run(None, {"ids": ids, "offsets": offsets})[0]
            np.testing.assert_allclose(found, [row.mean(0) for row in rows], rtol=1e-6)
    (library,) = session.libraries
    assert library.host_calls == []
    assert any("segment_reduce" in facts["ops"] for facts in library.artifact.metadata.values())


def test_sizes_that_no_measure_names_are_left_to_python() -> None:
    """Behind a sequence a size has no name: no stage can read it, no operator count to it; others are in stages."""
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]>
        g (float[N, T] x, float[S] z) => (float[] y, float[] w) <int64[1] first = {0}, float some = {0.1}> {
            sums = ReduceSum <keepdims = 0> (x, first) wanted = Greater (sums, some) y = Compress <axis = 1> (x, wanted)
            parts = SplitToSequence <axis = 0> (z) more = SequenceInsert (parts, z)
            joined = ConcatFromSequence <axis = 0> (more) over = Greater (joined, some)
            w = Compress <axis = 0> (joined, over) }"""
    )
    session, runtime = minitvm.InferenceSession(model), onnxruntime.InferenceSession(model.SerializeToString())
    for shape, count in (((7, 1), 1), ((3, 2), 0), ((0, 7), 7), ((4, 9), 3)):
        feeds = {"x": np.sin(np.arange(math.prod(shape), dtype=np.float32)).reshape(shape), "z": np.arange(count) * 0.2}
        feeds["z"] = feeds["z"].astype(np.float32)
        for found, want in zip(session.run(None, feeds), runtime.run(None, feeds), strict=True):
            np.testing.assert_array_equal(found, want)
