"""Slices at the edges: every start, end and step, against ONNX Runtime and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx_build import error_of, one_node, run
from onnx_oracle import check_as_onnx_runtime, check_same, onnx_runtime

from minitvm.errors import FrontendError
from minitvm.ir import builder as ir
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Function
from minitvm.ir.types import TensorType

INT64 = np.iinfo(np.int64)
POSITIONS = st.integers(-12, 12) | st.sampled_from(
    [INT64.min, INT64.min + 1, INT64.max, INT64.max - 1, 2**31, -(2**31)]
)
STEPS = POSITIONS.filter(bool)


def slice_of(x: np.ndarray, *cuts: Any) -> Any:
    """A Slice of (axis, start, end, step) each."""
    axes, starts, ends, steps = (np.array([c[i] for c in cuts], np.int64) for i in range(4))
    return one_node("Slice", x, constants={1: starts, 2: ends, 3: axes, 4: steps})


def test_a_start_before_the_first_element_going_backwards() -> None:
    """It moves onto the first element, where Python's would stay outside."""
    x = np.arange(7, dtype=np.float32)
    for start, end in ((-8, -9), (-20, -100), (INT64.min, INT64.min)):
        model = slice_of(x, (0, start, end, -1))
        check_as_onnx_runtime(model, {"x0": x})
        np.testing.assert_array_equal(run(model, {"x0": x})[0], [0])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=2), st.data())
def test_as_onnx_runtime(shape: list[int], data: st.DataObject) -> None:
    """But for an end of INT64_MAX going backwards: ONNX Runtime takes it for the front, ONNX and numpy do not."""
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    cuts = [(axis, data.draw(POSITIONS), data.draw(POSITIONS), data.draw(STEPS)) for axis in range(len(shape))]
    assume(not any(end == INT64.max and step < 0 for _, _, end, step in cuts))
    model = slice_of(x, *cuts)
    check_same(run(model, {"x0": x}), onnx_runtime(model, {"x0": x}))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(1, 9), POSITIONS, POSITIONS, STEPS)
def test_compiled(extent: int, start: int, end: int, step: int) -> None:
    assume(end != INT64.max or step > 0)
    x = np.arange(3 * extent, dtype=np.float32).reshape(3, extent)
    check_as_onnx_runtime(slice_of(x, (1, start, end, step)), {"x0": x})


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 7), POSITIONS, POSITIONS, STEPS)
def test_the_operator_follows_python(extent: int, begin: int, end: int, step: int) -> None:
    x = np.arange(extent, dtype=np.float32)
    var = ir.var("x", TensorType(x.shape))
    cut = ir.strided_slice(var, begin=(begin,), end=(end,), strides=(step,))
    np.testing.assert_array_equal(evaluate(Function([var], cut), x), x[begin:end:step], strict=True)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(1, 7), st.data())
def test_sizes_from_the_end(extent: int, data: st.DataObject) -> None:
    """``slice_mode="size"`` counts from ``begin`` also where that is negative."""
    begin = data.draw(st.integers(-extent, extent - 1))
    place = begin % extent
    size = data.draw(st.integers(0, extent - place))
    x = np.arange(extent, dtype=np.float32)
    var = ir.var("x", TensorType(x.shape))
    cut = ir.strided_slice(var, begin=(begin,), end=(size,), slice_mode="size")
    np.testing.assert_array_equal(evaluate(Function([var], cut), x), x[place : place + size], strict=True)


def test_a_start_that_needs_the_extent() -> None:
    x = np.arange(7, dtype=np.float32)
    model = slice_of(x, (0, -8, -9, -1))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    assert error_of(FrontendError, model, shape_dict={"x0": (None,)}) == (
        "Slice: start -8 with step -1 needs to know dimension 0\n"
        '  | ONNX node "the_node" (Slice)\n'
        "  = hint: give shape_dict"
    )


@pytest.mark.parametrize("positions", [(-1,), (1, 3), (9,)])
def test_split_positions_are_within_the_extent(positions: tuple[int, ...]) -> None:
    """The reference cuts where the type says."""
    var, x = ir.var("x", TensorType((4,))), np.arange(4, dtype=np.float32)
    parts = evaluate(Function([var], ir.split(var, indices_or_sections=positions)), x)
    assert sum(p.size for p in parts) == 4
