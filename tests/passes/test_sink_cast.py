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
from minitvm.ir.dtypes import limits
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


def blocks(dtype: str, zeros: bool = True) -> Expr:
    """Each 32 of a row with a scale and a zero point."""
    shape = (ROWS, -(-WIDTH // 32))
    zero = RNG.integers(0, 4, shape).astype("uint8") if zeros else np.uint8(2)
    data = ir.call_op("cast", few(dtype), dtype="int8" if dtype.startswith("i") else "uint8")
    return ir.call_op("qnn.dequantize_blocks", data, ir.const(RNG.random(shape, np.float32)), ir.const(zero), axis=1)


def few(dtype: str) -> Expr:
    least, most = limits(dtype)
    return ir.const(RNG.integers(int(least), int(most) + 1, (ROWS, WIDTH)).astype(dtype))


def few_by(dtype: str, count: int) -> Expr:
    """With one scale, or one for each row."""
    data = ir.call_op("cast", few(dtype), dtype="int8" if dtype.startswith("i") else "uint8")
    shape = (count,) if count > 1 else ()
    scale, zero = RNG.random(shape, np.float32), np.ones(shape, data.dtype)
    return ir.call_op("qnn.dequantize", data, ir.const(np.asarray(scale, "float32")), ir.const(zero), axis=0)


FEW = {
    "uint4 in blocks": lambda: blocks("uint4"),
    "int4 in blocks, one zero point": lambda: blocks("int4", zeros=False),
    "uint2 in blocks": lambda: blocks("uint2"),
    "int2 and one scale": lambda: few_by("int2", 1),
    "int4 by rows": lambda: few_by("int4", ROWS),
}
"""Weights of which a byte holds several."""
WIDENED = {
    **FEW,
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
    assert sum(array.nbytes for array in held) < (0.24 if name in FEW else 0.6) * ROWS * WIDTH * 4
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
    *((name, rows, rows == 3) for name in FEW for rows in (3, 20)),
])  # fmt: skip
def test_a_product_reads_weights_as_they_are_stored(name: str, rows: int, kept: bool) -> None:
    function = _products(rows, WIDENED[name]())
    library = minitvm.build(function, opt_level=3, num_threads=2)
    assert (
        sum(a.nbytes for a in library.params.values())
        < (0.24 if name in FEW and kept else 0.6 if kept else 1.1) * ROWS * WIDTH * 4
    )
    assert len(library.function_metadata) == 1
    x = RNG.standard_normal((rows, WIDTH)).astype("float32")
    want = np.asarray(evaluate(function, x))
    np.testing.assert_allclose(library.run({"x": x})[0], want, rtol=1e-4, atol=2e-6 * want.max())


UNITS, TAPS = 384, (3, 3)
"""384 to 384 channels: 5.3 MB as floats."""


def filters(how: str) -> Expr:
    shape = (UNITS, UNITS, *TAPS)
    if how in ("float16", "bfloat16"):
        return ir.call_op("cast", ir.const(RNG.standard_normal(shape).astype(how)), dtype="float32")
    data = ir.const(RNG.integers(-99, 99, shape).astype("int8"))
    count = (UNITS,) if how == "a scale a filter" else ()
    scale, zero = RNG.random(count, np.float32) / 99, np.full(count, 0 if count else 3, "int8")
    return ir.call_op("qnn.dequantize", data, ir.const(np.asarray(scale, "float32")), ir.const(zero), axis=0)


@pytest.mark.parametrize(("how", "size", "kept"), [
    ("float16", 7, True), ("float16", 8, False), ("bfloat16", 3, True), ("a scale and a zero point", 5, True),
    ("a scale and a zero point", 6, False), ("a scale a filter", 4, True), ("a scale a filter", 7, False),
])  # fmt: skip
@pytest.mark.parametrize("level", [2, 3])
def test_a_convolution_of_few_pixels_reads_weights_as_they_are_stored(
    how: str, size: int, kept: bool, level: int
) -> None:
    """In blocks of channels, which level 3 makes."""
    x = ir.var("x", shape=(1, UNITS, size, size))
    function = Function([x], ir.call_op("nn.relu", ir.nn.conv2d(x, filters(how), padding=1)))
    library = minitvm.build(function, opt_level=level, num_threads=1)
    stays, held = kept and level == 3, library.params.values()
    assert stays == any(a.dtype != np.float32 for a in held)
    assert not stays or sum(a.nbytes for a in held) < 0.6 * UNITS * UNITS * 9 * 4
    image = RNG.standard_normal(x.tensor_type.static_shape).astype("float32")
    want = np.asarray(evaluate(function, image))
    np.testing.assert_allclose(library.run({"x": image})[0], want, rtol=1e-4, atol=2e-6 * want.max())


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
    for rows in (1, 8, 9, 70):
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


WIDE = 1056
"""Of a square of few bits: 4.5 MB as floats, and whole blocks of all sizes but the largest."""


def _nbits(bits: int, block: int, zeros: bool) -> onnx.ModelProto:
    count = -(-WIDE // block)
    weights = {"w": RNG.integers(0, 256, (WIDE, count, block * bits // 8), "uint8")}
    weights["s"] = RNG.random(WIDE * count, np.float32) / 50
    if zeros:
        weights["z"] = RNG.integers(0, 256, WIDE * -(-count * bits // 8), "uint8")
    form = {"K": WIDE, "N": WIDE, "bits": bits, "block_size": block}
    node = helper.make_node("MatMulNBits", ["x", *weights], ["y"], domain="com.microsoft", **form)
    return _file([node], [numpy_helper.from_array(array, name) for name, array in weights.items()])


def _linear(dtype: str, scales: tuple[int, ...], **form: int) -> onnx.ModelProto:
    """x by a matrix (depth, units) of ``dtype`` with one scale, one for each unit, or for each block."""
    code = getattr(TensorProto, dtype.upper())
    least, most = map(int, limits(dtype))
    weights = [
        helper.make_tensor("w", code, (WIDE, WIDE), RNG.integers(least, most + 1, WIDE * WIDE)),
        numpy_helper.from_array(np.asarray(RNG.random(scales, np.float32) / 50, "float32"), "s"),
        helper.make_tensor("z", code, scales, RNG.integers(least, most + 1, int(np.prod(scales)))),
    ]
    dequantize = helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"], **form)
    return _file([dequantize, helper.make_node("MatMul", ["x", "f"], ["y"])], weights)


def _file(nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto]) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDE]) for name in "xy")
    opsets = [helper.make_opsetid("", 25), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=opsets, ir_version=11)


FILES = {
    **{f"{bits} bits, blocks of {block}": (_nbits, bits, block, bits + block > 36)
       for bits, block in ((4, 16), (4, 32), (4, 256), (8, 32), (8, 128), (2, 64))},
    "int4": (_linear, "int4", ()),
    "uint4 by units": (_linear, "uint4", (WIDE,)),
    "int4 in blocks": (_linear, "int4", (WIDE // 32, WIDE)),
    "uint2 in blocks": (_linear, "uint2", (WIDE // 16, WIDE)),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_weights_of_few_bits_take_what_they_do_in_the_file(name: str, tmp_path: pathlib.Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    make, *given = FILES[name]
    blocks_of = {"axis": 0, "block_size": 32 if "int4" in name else 16} if "in blocks" in name else {}
    model = make(*given, **(blocks_of or ({"axis": 1} if "units" in name else {})))
    size, path = len(model.SerializeToString()), tmp_path / "m.mtvm"
    session = minitvm.InferenceSession(model, num_threads=1)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    other = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for rows in (1, 8, 9, 70):
        feeds = {"x": RNG.standard_normal((rows, WIDE)).astype("float32")}
        want = other.run(None, feeds)[0]
        np.testing.assert_allclose(session.run(None, feeds)[0], want, rtol=1e-4, atol=2e-6 * abs(want).max())
    session.save(path)
    assert path.stat().st_size < 1.1 * size + 60_000
