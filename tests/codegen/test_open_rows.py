"""Rows of a length that only a run knows: what their kernels spare, and that they are right at any length."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import minitvm
from minitvm.codegen.llvm.positions import _on_later_axes
from minitvm.codegen.loops import unflatten
from minitvm.codegen.templates.tile import halves
from minitvm.ir.dims import symbol
from minitvm.ir.loop import Binary, Buffer, Const, LoopVar, as_index


def session(body: str, weights: Mapping[str, np.ndarray] = MappingProxyType({})) -> minitvm.InferenceSession:
    text = f'<ir_version: 9, opset_import: ["": 19]> g (float[b, 4, s, s] x) => (float y) {{ {body} }}'
    model = parser.parse_model(text)
    model.graph.output[0].ClearField("type")
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return minitvm.InferenceSession(model, num_threads=1, specialise_after=0)


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    found: np.ndarray = powers / powers.sum(-1, keepdims=True)
    return found


@pytest.fixture(scope="module")
def opened() -> minitvm.InferenceSession:
    return session("y = Softmax <axis = -1> (x)")


@pytest.mark.parametrize("size", [33, 1, 7, 64, 130])
@pytest.mark.parametrize("batch", [1, 3])
def test_softmax_of_any_length(opened: minitvm.InferenceSession, size: int, batch: int) -> None:
    x = np.random.default_rng(size).standard_normal((batch, 4, size, size)).astype(np.float32)
    np.testing.assert_allclose(opened.run(None, {"x": x})[0], softmax(x), rtol=1e-5, atol=1e-7, strict=True)
    assert len(opened.libraries) == 1


def test_no_row_is_divided_for_and_no_sum_is_stored_under_a_mask(opened: minitvm.InferenceSession) -> None:
    """Several rows at a time, as where sizes are known; what is masked would be waited for in memory."""
    opened.run(None, {"x": np.ones((1, 4, 33, 33), np.float32)})
    report = opened.libraries[0].report
    (name,) = report.groups
    kernel = report.kernel(name)
    assert not re.search(r"[su](div|rem) i64 \S+, %", kernel.text("llvm"))
    loops = kernel.text("loops")
    assert "strip in" in loops and re.search(r"larger\(acc\w*\[lane\], select\(", loops)
    assert not re.search(r" if [^\n]*< s:\n\s*acc", loops)


def test_a_maximum_where_lanes_are_left_out() -> None:
    """Lanes that a row does not fill change nothing, whatever lies there; what is no number stays."""
    opened = session("p = Mul (x, x) y = ReduceMax <keepdims = 0> (p)")
    for size in (33, 5):
        x = np.random.default_rng(size).standard_normal((2, 4, size, size)).astype(np.float32)
        assert opened.run(None, {"x": x})[0] == (x * x).max()
        x[1, 2, 3, 4] = np.nan
        assert np.isnan(opened.run(None, {"x": x})[0])


def test_positions_behind_an_axis_stand_for_quotients() -> None:
    b, s = symbol("b"), symbol("s")
    buffer, row, lane = Buffer("x", (b, 4, s, s), "float32"), LoopVar("row"), LoopVar("lane")
    index = (*unflatten(row, (b, 4, s)), lane)
    assert _on_later_axes(buffer, index) == (Const(0), Const(0), row, lane)
    other = (Binary("floordiv", row, as_index(s)), Binary("floormod", row, as_index(b)), lane, lane)
    assert _on_later_axes(buffer, other) == other


@pytest.mark.parametrize("part", [2, 4])
@pytest.mark.parametrize("most", [1, 3, 4, 8, 13, 16, 23])
def test_a_total_falls_into_pieces_of_each_size(most: int, part: int) -> None:
    """Fewer than ``part`` of each size but the largest, in order, no element twice and none left out."""
    for total in range(70):
        found = halves(total, most, part)
        starts = [run.begin + i * run.size for run in found for i in range(run.count)]
        sizes = [run.size for run in found for _ in range(run.count)]
        assert starts == [sum(sizes[:i]) for i in range(len(sizes))] and sum(sizes) == total
        assert all(run.count < part for run in found[1:])


def test_pixels_of_any_number_have_one_tile_each_of_a_few_sizes() -> None:
    """Whole tiles, a few of four pixels, and single ones, each once in the code, no steps written out."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((32, 4, 1, 1)).astype(np.float32)
    opened = session("y = Conv (x, w)", {"w": w})
    for size in (5, 1, 33):
        x = rng.standard_normal((2, 4, size, size)).astype(np.float32)
        expected = np.einsum("bihw,oi->bohw", x, w[:, :, 0, 0])
        np.testing.assert_allclose(opened.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)
    report = opened.libraries[0].report
    (loops,) = (report.kernel(name).text("loops") for name in report.groups if "conv2d" in name)
    tiles = re.findall(r"alloc acc\w*: float32\[(\d+), ", loops)
    assert len(opened.libraries) == 1 and len(tiles) == len(set(tiles)) <= 3 and "unrolled u" not in loops


def resized(attributes: str) -> onnx.ModelProto:
    text = """<ir_version: 9, opset_import: ["": 19]> g (float[b, 4, s, s] x, float[h, w] like) => (float y) {
        first = Shape <end = 2> (x)  last = Shape (like)  sizes = Concat <axis = 0> (first, last)
        y = Resize <HOW> (x, , , sizes) }""".replace("HOW", attributes)
    return parser.parse_model(text)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_no_pixel_is_divided_for_by_a_resize(mode: str) -> None:
    """Quotients are an axis's; elements are looked up along the rows that there are, not along those of the result."""
    opened = minitvm.InferenceSession(resized(f'mode = "{mode}"'), num_threads=1, specialise_after=0)
    opened.run(None, {"x": np.ones((2, 4, 5, 5), np.float32), "like": np.ones((9, 7), np.float32)})
    report = opened.libraries[0].report
    whole = [report.kernel(name) for name, group in report.groups.items() if group.body.tensor_type.rank == 4]
    assert [not re.search(r"[su](div|rem) i64 \S+, %", one.text("llvm")) for one in whole] == [True, True]
    shapes = [str(report.groups[one.symbol].body.type) for one in whole]
    assert shapes == ["Tensor[(b, 4, s, w), float32]", "Tensor[(b, 4, h, w), float32]"]


@pytest.mark.parametrize("coordinates", ["align_corners", "pytorch_half_pixel", "half_pixel"])
def test_a_resize_to_a_single_pixel_needs_no_other_library(coordinates: str) -> None:
    model = resized(f'mode = "linear", coordinate_transformation_mode = "{coordinates}"')
    opened, means = minitvm.InferenceSession(model, num_threads=1, specialise_after=0), ReferenceEvaluator(model)
    for extent, height, width in ((3, 5, 4), (3, 1, 4), (4, 2, 1), (5, 1, 1)):
        x = np.random.default_rng(extent).standard_normal((2, 4, extent, extent)).astype(np.float32)
        feeds = {"x": x, "like": np.ones((height, width), np.float32)}
        (expected,) = means.run(None, feeds)
        np.testing.assert_allclose(opened.run(None, feeds)[0], np.float32(expected), rtol=1e-5, atol=1e-6, strict=True)
    assert len(opened.libraries) == 1
