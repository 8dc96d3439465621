"""Choices and loops over open sizes: one library, whose bodies are bound with what is around them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import minitvm
from tests.drawn_control import checked

CHOSEN = """
<ir_version: 9, opset_import: ["" : 18]>
chosen (float[n, t, 4] x) => (float[n, t, 4] y) <float zero = {0.0}, int64 three = {3}, bool yes = {1}> {
  total = ReduceSum <keepdims = 0> (x)
  asked = Greater (total, zero)
  z = If (asked) <
    then_branch = high () => (float[n, t, 4] a) { mean = ReduceMean <keepdims = 1> (x)  a = Sub (x, mean) },
    else_branch = low () => (float[n, t, 4] b) {
      b = Loop (three, yes, x) <body = trip (int64 i, bool on, float[n, t, 4] s) => (bool next, float[n, t, 4] after) {
        after = Tanh (s)  next = Identity (on)
      }>
    }>
  y = Relu (z)
}
"""


@pytest.mark.parametrize("seed", [1000, 1004, 1009, 1011, 1014, 1017, 1021])
def test_drawn_control_flow_is_compiled_once_and_agrees_with_onnxruntime(seed: int) -> None:
    problem, libraries, python = checked(seed)
    assert (problem, libraries, python) == ("", 1, [])


def _wanted(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.maximum(x - x.mean() if x.sum() > 0 else np.tanh(np.tanh(np.tanh(x))), 0)
    return found


def test_a_saved_library_of_control_flow_is_for_all_sizes(tmp_path: Path) -> None:
    session = minitvm.InferenceSession(onnx.parser.parse_model(CHOSEN).SerializeToString(), num_threads=1)
    x = np.random.default_rng(0).uniform(-1, 1, (2, 3, 4)).astype("float32")
    session.run(None, {"x": x})
    session.save(tmp_path / "chosen.mtvm")
    loaded = minitvm.load(tmp_path / "chosen.mtvm")
    for shape in ((1, 5, 4), (3, 1, 4), (0, 2, 4)):
        x = np.random.default_rng(1).uniform(-1, 1, shape).astype("float32")
        for given in (np.abs(x), -np.abs(x)):
            np.testing.assert_allclose(loaded.run({"x": given})[0], _wanted(given), rtol=1e-5, atol=1e-6)


HEAD = """
<ir_version: 9, opset_import: ["" : 18]>
control (float[n, 4] x) => (y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] many = {1000}, int64 first = {0},
  int64 single = {1}, int64[1] four = {4}, int64[1] back = {-1},
  int64 last = {-1}, int64 seven = {7}, float nothing = {0.0}, bool yes = {1}> {
"""
LISTED = """
  rows = Shape <start = 0, end = 1> (x)  trips = Squeeze (rows)  nothing_yet = SequenceEmpty <dtype = 1> ()
  state, listed = Loop (trips, yes, x, nothing_yet) <
    body = trip (int64 i, bool on, float[k, 4] s, seq(float[4]) l) => (next, after, longer) {
      row = Gather <axis = 0> (x, i)  mean = ReduceMean <keepdims = 0> (s, zero)  made = Add (row, mean)
      after = Tanh (s)  longer = SequenceInsert (l, made)  next = Identity (on) }>
"""
UNLIKE = """
  rows = Shape <start = 0, end = 1> (x)  trips = Squeeze (rows)  nothing_yet = SequenceEmpty <dtype = 1> ()
  listed = Loop (trips, yes, nothing_yet) <body = trip (int64 i, bool on, seq(float[k, 4]) l) => (next, longer) {
      more = Unsqueeze (i, zero)  end = Add (more, one)  part = Slice (x, zero, end)
      longer = SequenceInsert (l, part)  next = Identity (on) }>
"""
BY_DATA = """
  asked = Greater (sum, nothing)
  z = If (asked) <then_branch = a () => (c) { c = Slice (x, one, many) },
                  else_branch = b () => (d) { d = Concat <axis = 0> (x, x) }>
"""
FORMS = {
    "branches of different lengths": BY_DATA,
    "what data choose in a branch": """
  asked = Greater (sum, nothing)
  z = If (asked) <then_branch = a () => (c) {
                    high = ReduceMax <keepdims = 0> (x, one)  is_high = Greater (high, nothing)
                    c = Compress <axis = 0> (x, is_high) },
                  else_branch = b () => (d) { d = Identity (x) }>
""",
    "rows that a loop adds": """
  rows = Shape <start = 0, end = 1> (x)  trips = Squeeze (rows)
  z = Loop (trips, yes, x) <body = trip (int64 i, bool on, float[k, 4] s) => (next, after) {
    row = Gather <axis = 0> (s, first)  turned = Tanh (row)  as_row = Unsqueeze (turned, zero)
    after = Concat <axis = 0> (s, as_row)  next = Identity (on) }>
""",
    "a list that a loop appends to": LISTED + "  z = ConcatFromSequence <axis = 1, new_axis = 1> (listed)",
    "a list, one behind the other": LISTED + "  z = ConcatFromSequence <axis = 0> (listed)",
    "the last of a list": LISTED + "  z = SequenceAt (listed, last)",
    "a list of unlike lengths": UNLIKE + "  z = ConcatFromSequence <axis = 0> (listed)",
    "the last of unlike lengths": UNLIKE + "  z = SequenceAt (listed, last)",
    "what unbind takes apart": """
  rows = SplitToSequence <axis = 0, keepdims = 0> (x, single)  trips = SequenceLength (rows)
  empty = SequenceEmpty <dtype = 1> ()
  listed = Loop (trips, yes, empty) <body = trip (int64 i, bool on, seq(float[4]) l) => (next, longer) {
      row = SequenceAt (rows, i)  made = CumSum (row, first)  longer = SequenceInsert (l, made)  next = Identity (on) }>
  z = ConcatFromSequence <axis = 0, new_axis = 1> (listed)
""",
    "as many of each row as its place": """
  rows = Shape <start = 0, end = 1> (x)  ones = ConstantOfShape <value = int64[1] {1}> (rows)  trips = Squeeze (rows)
  parts = SplitToSequence <axis = 0> (x, ones)  empty = SequenceEmpty <dtype = 1> ()
  listed = Loop (trips, yes, empty) <body = trip (int64 i, bool on, seq(float[k, 4]) l) => (next, longer) {
      row = SequenceAt (parts, i)  times = Unsqueeze (i, zero)  shape = Concat <axis = 0> (times, four)
      made = Expand (row, shape)  longer = SequenceInsert (l, made)  next = Identity (on) }>
  z = ConcatFromSequence <axis = 0> (listed)
""",
    "a slice whose bounds are slices": """
  rows = Shape <start = 0, end = 1> (x)  trips = Squeeze (rows)
  places = Range (first, trips, single)  ends = Concat <axis = 0> (places, rows)
  z = Loop (trips, yes) <body = trip (int64 i, bool on) => (next, row) {
      a = Reshape (i, back)  b = Add (a, one)  c = Add (b, one)
      start = Slice (ends, a, b)  end = Slice (ends, b, c)  part = Slice (x, start, end)
      row = ReduceSum <keepdims = 0> (part, zero)  next = Identity (on) }>
""",
    "rows that a loop takes away until a condition": """
  z = Loop ("", yes, x) <body = trip (int64 i, bool on, float[k, 4] s) => (next, after) {
    left = Shape <start = 0, end = 1> (s)  count = Squeeze (left)  after = Slice (s, one, many)
    next = Greater (count, seven) }>
""",
}


@pytest.mark.parametrize("form", FORMS)
def test_what_grows_and_shrinks_has_kernels_for_all_sizes(form: str) -> None:
    """And nothing is computed in Python."""
    text = HEAD + "  sum = ReduceSum <keepdims = 0> (x)" + FORMS[form] + "  y = Relu (z)\n}"
    _agrees(text, [(3, 4), (1, 4), (8, 4), (13, 4)], libraries=1)


def test_a_choice_by_sizes_between_ranks_is_made_when_a_size_is_met() -> None:
    choice = """
  rows = Shape <start = 0, end = 1> (x)  is_one = Equal (rows, one)
  z = If (is_one) <then_branch = a () => (c) { c = Squeeze (x, zero) },
                   else_branch = b () => (d) { d = Identity (x) }>
"""
    _agrees(HEAD + choice + "  y = Relu (z)\n}", [(3, 4), (5, 4), (1, 4), (2, 4), (1, 4)], libraries=2)


def test_a_choice_by_data_between_ranks_is_a_library_each() -> None:
    choice = """
  asked = Greater (sum, nothing)
  z = If (asked) <then_branch = a () => (c) { c = ReduceSum <keepdims = 0> (x, zero) },
                  else_branch = b () => (d) { d = Tanh (x) }>
"""
    text = HEAD + "  sum = ReduceSum <keepdims = 0> (x)" + choice + "  y = Relu (z)\n}"
    _agrees(text, [(3, 4), (5, 4), (1, 4), (2, 4)], libraries=2)


def test_a_choice_by_sizes_between_like_results_needs_one_library() -> None:
    choice = """
  rows = Shape <start = 0, end = 1> (x)  is_one = Equal (rows, one)
  z = If (is_one) <then_branch = a () => (c) { c = Tanh (x) }, else_branch = b () => (d) { d = Neg (x) }>
"""
    _agrees(HEAD + choice + "  y = Relu (z)\n}", [(3, 4), (1, 4), (2, 4)], libraries=1)


def test_a_saved_library_with_a_loop_that_grows_is_for_all_sizes(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(HEAD + FORMS["rows that a loop adds"] + "  y = Relu (z)\n}").SerializeToString()
    session = minitvm.InferenceSession(model, num_threads=1)
    session.run(None, {"x": np.ones((3, 4), "float32")})
    session.save(tmp_path / "growing.mtvm")
    loaded = minitvm.load(tmp_path / "growing.mtvm")
    for rows in (1, 5):
        x = np.random.default_rng(rows).uniform(-1, 1, (rows, 4)).astype("float32")
        np.testing.assert_array_equal(loaded.run({"x": x})[0], session.run(None, {"x": x})[0])


def _agrees(text: str, shapes: list[tuple[int, ...]], libraries: int) -> None:
    """With onnxruntime, for values above and below 0."""
    model = onnx.parser.parse_model(text).SerializeToString()
    session = minitvm.InferenceSession(model, num_threads=1, specialise_after=0)
    peer = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for seed, shape in enumerate(shapes):
        x = np.random.default_rng(seed).uniform(-0.5, 1, shape).astype("float32")
        for given in (x, -x):
            found, wanted = session.run(None, {"x": given})[0], peer.run(None, {"x": given})[0]
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert (len(session.libraries), session.host_calls) == (libraries, [])


def test_a_list_that_is_handed_out_is_a_list() -> None:
    text = HEAD.replace("=> (y)", "=> (seq(float[4]) y)") + LISTED + "  y = Identity (listed)\n}"
    model = onnx.parser.parse_model(text).SerializeToString()
    session = minitvm.InferenceSession(model, num_threads=1)
    peer = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for rows in (3, 1):
        x = np.random.default_rng(rows).uniform(-1, 1, (rows, 4)).astype("float32")
        found, wanted = session.run(None, {"x": x})[0], peer.run(None, {"x": x})[0]
        assert len(found) == len(wanted) == rows
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
