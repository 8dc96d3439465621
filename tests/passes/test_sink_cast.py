"""Weights in few bytes: they stay so in memory, and what is read of them becomes floats in the kernel."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import minitvm
from benchmarks.memory import dense
from minitvm.ir import builder as ir
from minitvm.ir.decision import decisions
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Constant, Expr, Function, Module
from minitvm.ir.visitor import post_order
from minitvm.passes import FoldConstant, SinkCast
from minitvm.testing import check_unchanged

RNG = np.random.default_rng(0)
ROWS, WIDTH = 4000, 300
"""As floats 4.8 MB: large enough to be kept as they are."""


def table(rows: int = ROWS, dtype: str = "int8") -> Expr:
    return ir.const((RNG.standard_normal((rows, WIDTH)) * 40).astype(dtype))


def scaled(rows: int = ROWS) -> Expr:
    return ir.call_op("cast", table(rows), dtype="float32") * ir.const(RNG.random((rows, 1), np.float32))


def dequantized(dtype: str = "uint8") -> Expr:
    zero = ir.const(np.array(3, dtype))
    return ir.call_op("qnn.dequantize", table(dtype=dtype), ir.const(np.float32(0.1)), zero, axis=0)


def by_rows() -> Expr:
    scale, zero = ir.const(RNG.random(ROWS).astype("float32")), ir.const(np.zeros(ROWS, "int8"))
    return ir.call_op("qnn.dequantize", table(), scale, zero, axis=0)


WIDENED = {
    "float16": lambda: ir.call_op("cast", table(dtype="float16"), dtype="float32"),
    "bfloat16": lambda: ir.call_op("cast", table(dtype="bfloat16"), dtype="float32"),
    "a scale a row": scaled,
    "a scale and a zero point": dequantized,
    "dequantized by rows": by_rows,
}


def taken(weights: Expr, axis: int = 0) -> Function:
    indices = ir.var("i", shape=(7,), dtype="int64")
    return Function([indices], ir.call_op("take", weights, indices, axis=axis))


@pytest.mark.parametrize("name", WIDENED)
def test_a_gather_takes_before_it_widens(name: str) -> None:
    function = taken(WIDENED[name]())
    with decisions() as log:
        found = FoldConstant(fold_qnn=True)(SinkCast()(Module(function))).main
    assert any(d.by == "SinkCast" and d.taken for d in log)
    held = [node.value for node in post_order(found.body) if isinstance(node, Constant)]
    assert sum(array.nbytes for array in held) < 0.6 * ROWS * WIDTH * 4
    indices = np.array([0, 5, ROWS - 1, 3, 3, 2000, 1])
    np.testing.assert_array_equal(evaluate(found, indices), evaluate(function, indices))


def test_what_is_small_or_spread_along_the_axis_stays() -> None:
    check_unchanged(SinkCast(), taken(scaled(40)))
    with decisions() as log:
        SinkCast()(Module(taken(scaled(), axis=1)))
    assert not any(d.by == "SinkCast" and d.taken for d in log)


def _products(rows: int, weights: Expr) -> Function:
    x = ir.var("x", shape=(rows, WIDTH))
    return Function([x], ir.call_op("nn.relu", ir.call_op("nn.dense", x, weights)))


@pytest.mark.parametrize(("name", "rows", "kept"), [
    ("float16", 1, True), ("float16", 90, True), ("bfloat16", 5, True), ("a scale and a zero point", 3, True),
    ("a scale and a zero point", 90, False), ("a scale a row", 3, True), ("a scale a row", 90, False),
    ("dequantized by rows", 5, True), ("dequantized by rows", 90, False),
])  # fmt: skip
def test_a_product_reads_weights_as_they_are_stored(name: str, rows: int, kept: bool) -> None:
    function = _products(rows, WIDENED[name]())
    library = minitvm.build(function, opt_level=3, num_threads=2)
    assert sum(a.nbytes for a in library.params.values()) < (0.6 if kept else 1.1) * ROWS * WIDTH * 4
    assert len(library.function_metadata) == 1
    x = RNG.standard_normal((rows, WIDTH)).astype("float32")
    want = np.asarray(evaluate(function, x))
    np.testing.assert_allclose(library.run({"x": x})[0], want, rtol=1e-4, atol=2e-6 * want.max())


def test_weights_that_something_else_reads_too_are_folded() -> None:
    weights = WIDENED["float16"]()
    x = ir.var("x", shape=(2, WIDTH))
    both = ir.call_op("nn.dense", x, weights) + ir.call_op("max", weights, axis=(0, 1))
    library = minitvm.build(Function([x], both), opt_level=3, num_threads=1)
    assert all(a.dtype == np.float32 for a in library.params.values())


@pytest.mark.parametrize(("weights", "share"), [("float16", 1.05), ("int8", 1.1)])
def test_a_session_and_its_file_are_as_large_as_the_model(weights: str, share: float, tmp_path: pathlib.Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    onnx.save(dense(2, 1152, weights), tmp_path / "m.onnx")
    size = (tmp_path / "m.onnx").stat().st_size
    session = minitvm.InferenceSession(tmp_path / "m.onnx", num_threads=1)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    other = onnxruntime.InferenceSession(tmp_path / "m.onnx", options, providers=["CPUExecutionProvider"])
    for rows in (1, 9):
        feeds = {"x": RNG.standard_normal((rows, 1152)).astype("float32")}
        np.testing.assert_allclose(session.run(None, feeds)[0], other.run(None, feeds)[0], rtol=1e-4, atol=1e-4)
    session.save(tmp_path / "m.mtvm")
    assert (tmp_path / "m.mtvm").stat().st_size < share * size + 60_000
    library = minitvm.load(tmp_path / "m.mtvm")
    np.testing.assert_array_equal(library.run(feeds)[0], session.run(None, feeds)[0])


def test_a_table_of_an_embedding_is_kept() -> None:
    """As exporters write it: cast, a scale for each row, indices checked against the table."""
    nodes = [
        helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["t"]),
        helper.make_node("Gather", ["t", "i"], ["y"]),
    ]
    arrays = {"w": RNG.integers(-9, 9, (ROWS, WIDTH), "int8"), "s": RNG.random((ROWS, 1), np.float32)}
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    i = helper.make_tensor_value_info("i", TensorProto.INT64, [5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, WIDTH])
    graph = helper.make_graph(nodes, "g", [i], [y], weights)
    library = minitvm.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert sum(a.nbytes for a in library.params.values()) < 1.1 * ROWS * WIDTH and not library.host_calls
    at = np.array([0, -1, 7, ROWS - 1, 12])
    np.testing.assert_array_equal(library.run({"i": at})[0], (arrays["w"].astype("float32") * arrays["s"])[at])
    with pytest.raises(minitvm.MiniTVMError, match="is outside of dimension 0"):
        library.run({"i": at + ROWS})
