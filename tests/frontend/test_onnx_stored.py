"""Whole models over dtypes that are only stored: inputs, weights, results, and what is computed with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import minitvm
from minitvm.errors import FrontendError, InputError
from minitvm.ir.dtypes import STORED, is_float
from minitvm.runtime.executor import GraphModule

RNG = np.random.default_rng(26)
BF16 = ml_dtypes.bfloat16
FEW_BITS = ("int4", "uint4", "int2", "uint2")


def model_of(nodes: list[onnx.NodeProto], inputs: dict[str, np.ndarray], weights: dict[str, Any]) -> onnx.ModelProto:
    def info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    results = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", [info(n, a) for n, a in inputs.items()], results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    numbers = RNG.uniform(-9, 9, shape) if is_float(dtype) else RNG.integers(-9, 9, shape)
    return np.abs(numbers).astype("float32").astype(dtype) if "e8m0" in dtype else numbers.astype(dtype)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray], level: int = 3) -> list[np.ndarray]:
    session = minitvm.InferenceSession(model, opt_level=level, num_threads=1)
    found = session.run(None, feeds)
    assert not session.host_calls
    return list(found)


def same_bytes(have: np.ndarray, want: np.ndarray) -> None:
    assert have.dtype == want.dtype and have.shape == want.shape
    assert have.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", STORED)
def test_what_moves_moves_bytes(dtype: str, tmp_path: Path) -> None:
    x, y = values((4, 6), dtype), values((4, 6), dtype)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"]),
        helper.make_node("Reshape", ["t", "shape"], ["r"]),
        helper.make_node("Identity", ["r"], ["i"]),
    ]
    model = model_of(nodes, {"x": x}, {"shape": np.array([3, 8])})
    want = x.T.reshape(3, 8)
    for level in (0, 3):
        same_bytes(run(model, {"x": x}, level)[0], want)
    minitvm.compile(model).save(tmp_path / "model.mtvm")
    loaded = GraphModule(minitvm.load(tmp_path / "model.mtvm")["default"]())
    loaded.run(x=x)
    same_bytes(loaded.get_output(0).numpy(), want)
    loaded.run(x=y.tolist())
    same_bytes(loaded.get_output(0).numpy(), y.T.reshape(3, 8))
    with pytest.raises(InputError, match=f"input 'x' is float32, the model expects {dtype}"):
        loaded.run(x=x.astype("float32"))


@pytest.mark.parametrize("op", ["Slice", "Gather", "Concat", "Where", "Split", "Pad", "Tile", "Expand", "ScatterND"])
def test_bfloat16_is_moved_as_it_is(op: str) -> None:
    x, y = values((3, 4), "bfloat16"), values((3, 4), "bfloat16")
    x[0, :2] = np.array([0x7FC1, 0xFF81], np.uint16).view(BF16)  # NaNs of a kind: arithmetic would not keep them
    ints = {
        "Slice": [[0, 0], [2, 3]], "Gather": [[2, 0, 0]], "Pad": [[1, 0, 0, 2]], "Tile": [[2, 1]],
        "Expand": [[2, 3, 4]], "Split": [[1, 2]],
    }  # fmt: skip
    weights = {f"k{i}": np.array(v) for i, v in enumerate(ints.get(op, []))}
    inputs = {"x": x, **({"y": y} if op in ("Concat", "Where") else {})}
    order = list(inputs) + list(weights)
    attributes: dict[str, Any] = {"axis": 1} if op == "Concat" else {}
    if op == "Where":
        weights["mask"], order = np.array([[True], [False], [True]]), ["mask", "x", "y"]
    if op == "ScatterND":
        weights, order = {"at": np.array([[2], [1]]), "rows": y[:2]}, ["x", "at", "rows"]
    outputs = ["a", "b"] if op == "Split" else ["a"]
    model = model_of([helper.make_node(op, order, outputs, **attributes)], inputs, weights)
    found = run(model, inputs)
    assert set(x.view(np.uint16)[0, :2]) <= set(np.concatenate([y.view(np.uint16).ravel() for y in found]))
    for have, want in zip(found, ReferenceEvaluator(model).run(None, inputs), strict=True):
        np.testing.assert_array_equal(have.astype("float32"), want.astype("float32"))


@pytest.mark.parametrize("level", [0, 3])
def test_bfloat16_is_computed_in_float32_and_rounded_once_for_each_node(level: int) -> None:
    x, w, bias = values((5, 40), "bfloat16"), values((40, 7), "bfloat16"), values((7,), "bfloat16")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "bias"], ["a"]),
        helper.make_node("Softmax", ["a"], ["s"]),
        helper.make_node("ArgMax", ["a"], ["best"]),
        helper.make_node("Greater", ["a", "bias"], ["above"]),
        helper.make_node("ReduceMean", ["a", "axes"], ["mean"]),
        helper.make_node("Identity", ["a"], ["out"]),
    ]
    model = model_of(nodes, {"x": x}, {"w": w, "bias": bias, "axes": np.array([1])})
    names = ["m", "a", "s", "best", "above", "mean"]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    m, a, s, best, above, mean = run(model, {"x": x}, level)
    exact = x.astype("float64") @ w.astype("float64")
    np.testing.assert_allclose(m.astype("float64"), exact, rtol=2**-8, atol=1e-5)
    want = (m.astype("float32") + bias.astype("float32")).astype(BF16)
    same_bytes(a, want)
    wide = np.exp(a.astype("float64") - a.astype("float64").max(1, keepdims=True))
    soft = (wide / wide.sum(1, keepdims=True)).astype("float32").astype(BF16)
    np.testing.assert_allclose(s.astype("float32"), soft.astype("float32"), rtol=2**-7, atol=1e-30)
    same_bytes(best, a.astype("float32").argmax(0, keepdims=True))
    same_bytes(above, a.astype("float32") > bias.astype("float32"))
    assert mean.dtype == BF16
    np.testing.assert_allclose(mean.astype("float64"), a.astype("float64").mean(1, keepdims=True), rtol=2**-7)


def test_a_convolution_in_bfloat16() -> None:
    x, w, bias = (values(s, "bfloat16") for s in ((1, 16, 9, 9), (16, 16, 3, 3), (16,)))
    model = model_of(
        [helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1])], {"x": x}, {"w": w, "b": bias}
    )
    (found,) = run(model, {"x": x})
    wide = {"x": x.astype("float32")}
    exact = run(
        model_of([helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1])], wide,
                 {"w": w.astype("float32"), "b": bias.astype("float32")}), wide,
    )[0]  # fmt: skip
    same_bytes(found, exact.astype(BF16))


# --- quantized --------------------------------------------------------------------------------------------------

QUANTIZED = [d for d in STORED if d not in ("bfloat16", "float8_e8m0fnu")] + ["int8", "uint8", "int16", "uint16"]


@pytest.mark.parametrize("how", ["tensor", "axis", "blocked"])
@pytest.mark.parametrize("dtype", QUANTIZED)
def test_to_and_from_every_dtype(dtype: str, how: str) -> None:
    x = RNG.uniform(-20, 20, (4, 10)).astype("float32")
    shape = {"tensor": (), "axis": (4,), "blocked": (4, 3)}[how]
    where: dict[str, Any] = {"axis": 1, "block_size": 4} if how == "blocked" else {"axis": 0}
    scale = RNG.uniform(0.1, 4, shape).astype("float32")
    zero = np.zeros(shape, dtype) if is_float(dtype) else np.abs(RNG.integers(0, 2, shape)).astype(dtype)
    weights = {"scale": scale, "zero": zero}
    quantize = model_of([helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"], **where)], {"x": x}, weights)
    (q,) = run(quantize, {"x": x})
    each = scale if how != "blocked" else np.repeat(scale, 4, 1)[:, :10]
    each_zero = zero if how != "blocked" else np.repeat(zero, 4, 1)[:, :10]
    if how == "axis":
        each, each_zero = each[:, None], each_zero[:, None]
    if is_float(dtype):
        want = numpy_helper.saturate_cast(x / each, np.dtype(dtype))
    else:
        info = ml_dtypes.iinfo(dtype)
        want = np.clip(np.rint(x / each) + each_zero.astype("float32"), info.min, info.max).astype(dtype)
    same_bytes(q, want)
    back = model_of([helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], **where)], {"q": q}, weights)
    (found,) = run(back, {"q": q})
    want = (q.astype("float32") - each_zero.astype("float32")) * each
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("level", [0, 2, 3])
@pytest.mark.parametrize("dtype", [*FEW_BITS, "float8_e4m3fn", "float4_e2m1fn"])
def test_a_product_with_weights_of_few_bits(dtype: str, level: int, tmp_path: Path) -> None:
    """Blocks of 16 along the depth, weights packed in a file beside the model."""
    x, w = RNG.standard_normal((3, 64)).astype("float32"), values((64, 33), dtype)
    scale = RNG.uniform(0.1, 1, (4, 33)).astype("float32")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["d"], axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    model = model_of(nodes, {"x": x}, {"w": w, "scale": scale})
    path = tmp_path / "model.onnx"
    whole = model.SerializeToString()
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    want = x.astype("float64") @ (w.astype("float64") * np.repeat(scale, 16, 0))
    for source in (whole, str(path)):
        library = minitvm.compile(source, opt_level=level)
        made = GraphModule(library["default"]())
        made.run(x=x)
        np.testing.assert_allclose(made.get_output(0).numpy(), want, rtol=1e-4, atol=1e-3)
    library.save(tmp_path / "saved.mtvm")
    again = GraphModule(minitvm.load(tmp_path / "saved.mtvm")["default"]())
    again.run(x=x)
    np.testing.assert_allclose(again.get_output(0).numpy(), want, rtol=1e-4, atol=1e-3)


def test_zero_points_of_floats_are_zero() -> None:
    x = values((3,), "float8_e4m3fn")
    zero = np.array(2, "float8_e4m3fn")
    node = helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"])
    with pytest.raises(FrontendError, match=r"the zero point of float8_e4m3fn is not 0"):
        minitvm.InferenceSession(model_of([node], {"x": x}, {"s": np.float32(2), "z": zero}))


def test_reductions_into_bfloat16_are_rounded_once() -> None:
    data, at = np.zeros(2, BF16), np.zeros((300, 1), np.int64)
    model = model_of(
        [helper.make_node("ScatterND", ["x", "at", "ones"], ["y"], reduction="add")],
        {"x": data}, {"at": at, "ones": np.ones(300, BF16)},
    )  # fmt: skip
    (found,) = run(model, {"x": data})
    same_bytes(found, np.array([300, 0], BF16))  # 256 in bfloat16's own arithmetic
