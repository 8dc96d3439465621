"""Rows of a length that only a run knows: what their kernels spare, and that they are right at any length."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import parser

import minitvm
from minitvm.codegen.llvm.positions import _on_later_axes
from minitvm.codegen.loops import unflatten
from minitvm.ir.dims import symbol
from minitvm.ir.loop import Binary, Buffer, Const, LoopVar, as_index


def session(body: str) -> minitvm.InferenceSession:
    text = f'<ir_version: 9, opset_import: ["": 19]> g (float[b, 4, s, s] x) => (float y) {{ {body} }}'
    model = parser.parse_model(text)
    model.graph.output[0].ClearField("type")
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
