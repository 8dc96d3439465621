"""Indices that follow from sizes: in range without a look in a run, and what they select a part of the data.

``python tests/frontend/test_onnx_places.py 500`` draws as many.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import minitvm
from minitvm.errors import MiniTVMError
from minitvm.frontend import from_onnx
from minitvm.ir.dims import assumptions, deciding
from minitvm.ir.op import Op
from minitvm.ir.visitor import calls

SIZES = ((3, 5), (1, 4), (4, 1), (2, 6), (5, 3))


class _Drawn:
    """Data (n, t) and whole numbers that count along its axes, as exporters write them; or nearly so."""

    def __init__(self, seed: int) -> None:
        self.rng, self.nodes, self.weights = random.Random(seed), list[Any](), list[Any]()
        self.model = getattr(self, self.rng.choice(["each", "flat", "along", "along"]))()

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [f"v{len(self.nodes)}"], **attributes))
        return f"v{len(self.nodes) - 1}"

    def const(self, value: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value, "int64"), f"c{len(self.weights)}"))
        return f"c{len(self.weights) - 1}"

    def extent(self, axis: int) -> str:
        return self.add("Gather", self.add("Shape", "x"), self.const(axis))

    def places(self, axis: int, first: int = 0) -> str:
        """0, 1, ... of an axis, or some that begin later."""
        end = self.extent(axis) if not first else self.add("Sub", self.extent(axis), self.const(first))
        found = self.add("Range", self.const(0), end, self.const(1))
        if self.rng.random() < 0.5:
            found = self.add("Add", self.add("Mul", found, self.const(1)), self.const(0))
        return self.add("Add", found, self.const(first)) if first else found

    def end(self, result: str) -> bytes:
        given = [helper.make_tensor_value_info("x", 1, ["n", "t"])]
        outs = [helper.make_tensor_value_info(result, 1, None)]
        graph = helper.make_graph(self.nodes, "places", given, outs, self.weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        data: bytes = made.SerializeToString()
        return data

    def each(self) -> bytes:
        """GatherND by an index for each axis, in one order or the other."""
        wide = [self.const([1]), self.const([0])]
        if self.rng.random() < 0.4:
            wide.reverse()
        firsts = [self.rng.choice((0, 0, 0, 1)) for _ in wide]
        parts = [self.add("Unsqueeze", self.places(axis, firsts[axis]), by) for axis, by in enumerate(wide)]
        shape = self.add("Shape", self.add("Add", *parts))
        parts = [self.add("Unsqueeze", self.add("Expand", part, shape), self.const([-1])) for part in parts]
        return self.end(self.add("GatherND", "x", self.add("Concat", *parts, axis=-1)))

    def flat(self) -> bytes:
        """Gather out of all in a row, by row * t + column."""
        rows = self.add("Unsqueeze", self.places(0), self.const([1]))
        by = self.extent(self.rng.choice((1, 1, 1, 0)))
        index = self.add("Add", self.add("Mul", rows, by), self.add("Unsqueeze", self.places(1), self.const([0])))
        return self.end(self.add("Gather", self.add("Reshape", "x", self.const([-1])), index))

    def along(self) -> bytes:
        """Gather along an axis, by the places of one, perhaps one further, or from the end."""
        axis, other = self.rng.randrange(2), self.rng.randrange(2)
        index = self.places(other, self.rng.choice((0, 0, 1)))
        if self.rng.random() < 0.3:
            index = self.add("Sub", self.const(0), index)
        if self.rng.random() < 0.3:
            index = self.add("Add", index, self.const(self.rng.choice((-1, 1))))
        return self.end(self.add("Gather", "x", self.add("Unsqueeze", index, self.const([0])), axis=axis))


def _check(seed: int) -> None:
    """As ONNX Runtime has it; what is out of range is an error for both."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model = _Drawn(seed).model
    peer = onnxruntime.InferenceSession(model, options)
    session = minitvm.InferenceSession(model, num_threads=1, specialise_after=0)
    for n, t in SIZES:
        x = np.random.default_rng(seed).normal(size=(n, t)).astype("float32")
        try:
            (wanted,) = peer.run(None, {"x": x})
        except Exception:
            with pytest.raises(MiniTVMError):
                session.run(None, {"x": x})
        else:
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], wanted)
    assert all(library.artifact.is_open for library in session.libraries)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 8, 13, 21, 34])
def test_drawn_places_select_what_onnxruntime_does(seed: int) -> None:
    _check(seed)


def _operators(text: str, **sizes: int) -> list[str]:
    shape = {"x": ["n", "t"]}
    with assumptions(sizes), deciding():
        module, _ = from_onnx(onnx.parser.parse_model(text), shape_dict=shape)
    return [call.op.name for call in calls(module.main.body) if isinstance(call.op, Op)]


HEAD = '<ir_version: 9, opset_import: ["" : 18]> g (float[n, t] x) => (float[a, b] y) '


def test_all_places_of_all_axes_are_the_data_itself() -> None:
    """Rows by columns, as masks are looked up; a whole axis by its places."""
    text = """<int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] last = {-1}, int64[1] flat = {-1}> {
        shape = Shape (x) n = Gather (shape, zero) t = Gather (shape, one)
        rows = Range (zero, n, one) columns = Range (zero, t, one) down = Unsqueeze (rows, last)
        above = Mul (down, t) index = Add (above, columns) all = Reshape (x, flat) y = Gather (all, index) }"""
    found = _operators(HEAD + text, n=2, t=3)
    assert not {"take", "control.out_of_range"}.intersection(found), found


def test_places_of_another_axis_are_in_range_as_the_sizes_say() -> None:
    text = """<int64 zero = {0}, int64 one = {1}> {
        shape = Shape (x) n = Gather (shape, zero) rows = Range (zero, n, one) y = Gather <axis = 1> (x, rows) }"""
    assert "control.out_of_range" not in _operators(HEAD + text, n=2, t=3)
    assert "control.out_of_range" in _operators(HEAD + text, n=4, t=3)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        try:
            _check(number)
        except Exception as error:
            print(number, type(error).__name__, str(error)[:300])
