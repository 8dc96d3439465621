"""minitvm as an ONNX backend, and ONNX's own tests of backends: none may come to less than docs/coverage.json says."""

from __future__ import annotations

import unittest
import zlib
from functools import lru_cache

import numpy as np
import onnx
import pytest
from onnx import helper, parser

import minitvm.onnx_backend as backend
from benchmarks import coverage
from minitvm.errors import InputError

PARTS, SHARES = 2, 32
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] x, float[2, 3] y) => (float[2, 3] z, float[2, 3] w) { z = Add(x, y) w = Sub(x, y) }"""
VALUES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] x, int64[1] axes) => (float z) { z = ReduceSum(x, axes) }"""
X, Y = np.float32([[1, 2, 3], [4, 5, 6]]), np.float32([[1, 1, 1], [2, 2, 2]])


def test_results_of_arrays_in_order_or_by_name() -> None:
    model = parser.parse_model(MODEL)
    assert backend.is_compatible(model) and not backend.is_compatible(model, "CUDA:0")
    prepared = backend.prepare(model, "CPU")
    for inputs in ([X, Y], {"y": Y, "x": X}, (X, Y)):
        total, difference = prepared.run(inputs)
        np.testing.assert_array_equal(total, X + Y)
        np.testing.assert_array_equal(difference, X - Y)
    with pytest.raises(InputError, match="1 inputs given, the model takes 2: x, y"):
        prepared.run(X)
    with pytest.raises(InputError, match="no device 'CUDA:0'"):
        backend.prepare(model, "CUDA:0")


def test_one_node() -> None:
    (found,) = backend.run_node(helper.make_node("Mul", ["a", "b"], ["c"]), [X, Y])
    np.testing.assert_array_equal(found, X * Y)
    (found,) = backend.run_node(helper.make_node("Mul", ["a", "a"], ["c"]), [X, X])
    np.testing.assert_array_equal(found, X * X)
    with pytest.raises(InputError, match="1 inputs given, the node takes 2: a, b"):
        backend.run_node(helper.make_node("Mul", ["a", "b"], ["c"]), [X])
    old = [helper.make_opsetid("", 6)]
    (found,) = backend.run_node(helper.make_node("Mul", ["a", "b"], ["c"], broadcast=1), [X, Y[0]], opset_imports=old)
    np.testing.assert_array_equal(found, X * Y[0])


def test_models_that_want_values_are_compatible() -> None:
    model = parser.parse_model(VALUES)
    assert backend.is_compatible(model)
    (found,) = backend.run_model(model, [X, np.array([1])])
    np.testing.assert_array_equal(found, X.sum(1, keepdims=True))


def test_what_cannot_be_imported_is_not_compatible() -> None:
    graph = helper.make_graph([helper.make_node("Nothing", ["x"], ["y"])], "g", [], [onnx.ValueInfoProto(name="y")])
    assert not backend.is_compatible(helper.make_model(graph))


@lru_cache(maxsize=1)
def _cases() -> dict[str, unittest.TestCase]:
    return coverage.cases()


@pytest.mark.parametrize("part", range(PARTS))
def test_the_suite_of_onnx(part: int) -> None:
    """A sixteenth of the tests and of definitions, each at some level; ``python -m benchmarks coverage`` runs all."""
    record = coverage.recorded()
    if not record.keys() >= _cases().keys():
        pytest.skip(f"docs/coverage.json is of another onnx than {onnx.__version__}")
    draws = {name: zlib.crc32(name.encode()) for name in _cases() if not coverage.excluded(name)}
    wanted = {name: draw // SHARES % 4 for name, draw in draws.items() if draw % SHARES == part}
    assert len(wanted) > 50 and sum(name.endswith("_expanded") for name in wanted) > 5
    with coverage.own_folder():
        found = {name: coverage.outcome(_cases()[name], level) for name, level in wanted.items()}
    assert coverage.worse(record, found) == []


def test_the_page_says_what_the_record_says() -> None:
    counts = {kind: list(coverage.recorded().values()).count(kind) for kind in coverage.OUTCOMES}
    passed = sum(counts[kind] for kind in coverage.PASSED)
    assert f"**{passed:,} pass, " in coverage.PAGE.read_text(encoding="utf-8")
