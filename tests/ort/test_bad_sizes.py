"""Sizes that a model cannot have: the error names symbols, both values and the node, and the session works after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import minitvm
from minitvm.errors import MiniTVMError

HEAD = '<ir_version: 9, opset_import: ["": 21, "com.microsoft": 1]> g '
CONSTANT = "(float[n, 4] x, int64[1] k) => (z) { [made] c = ConstantOfShape (k) z = Relu (c) }"
GROUPED = """(float[n, t, 16] q, float[n, 2, s, 8] past, int32[n] lens, int32 total) => (y, nk, nv) {
    [grouped] y, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2>
        (q, q, q, past, past, lens, total) }"""


def _x(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def _at(*shape: int, k: int) -> dict[str, Any]:
    return {"x": _x(*shape), "k": np.array([k])}


def _grouped(lens: int) -> dict[str, Any]:
    lengths = {"lens": np.array([lens], np.int32), "total": np.array(8, np.int32)}
    return {"q": _x(1, 1, 16), "past": _x(1, 2, 8, 8), **lengths}


BAD: dict[str, tuple[str, dict[str, Any], dict[str, Any], list[str]]] = {
    "inputs that contradict each other": (
        "(float[n, t] x, float[n, t] y) => (float[n, t] z) { [both] z = Add (x, y) }",
        {"x": _x(2, 3), "y": _x(2, 3)},
        {"x": _x(2, 3), "y": _x(2, 4)},
        ["t = 3 (x) and 4 (y)", 'ONNX node "both"'],
    ),
    "what never fits": (
        "(float[n, 4] x) => (z) <int64[2] shape = {-1, 3}> { [threes] z = Reshape (x, shape) }",
        {"x": _x(3, 4)},
        {"x": _x(2, 4)},
        ["n = 2", "Tensor[(2, 4), float32] cannot have shape [-1, 3]", 'ONNX node "threes"'],
    ),
    "a size below 0": (CONSTANT, _at(2, 4, k=3), _at(2, 4, k=-3), ["computes is -3", "n = 2", 'ONNX node "made"']),
    "a size over memory": (
        CONSTANT,
        _at(2, 4, k=3),
        _at(2, 4, k=2**45),
        ["measured_0 = 35,184,372,088,832", 'ONNX node "made"'],
    ),
    "inputs' sizes over memory": (
        "(float[n, 1] x, float[1, m] y) => (z) { [outer] a = Mul (x, y) z = Relu (a) }",
        {"x": _x(2, 1), "y": _x(1, 3)},
        {"x": _x(2**22, 1), "y": _x(1, 2**22)},
        ["n = 4194304, m = 4194304", "70,368,744,177,664 bytes", 'ONNX node "outer"'],
    ),
    "ids outside of the table": (
        "(int64[n, t] ids, float[v, 2] w) => (z) { [embedded] z = Gather (w, ids) }",
        {"ids": np.array([[1, 3]]), "w": _x(4, 2)},
        {"ids": np.array([[1, 7]]), "w": _x(4, 2)},
        ["index 7", "v = 4", 'ONNX node "embedded"'],
    ),
    "a cache longer than its buffer": (
        GROUPED,
        _grouped(7),
        _grouped(11),
        ["length 12 is outside", "s = 8", 'ONNX node "grouped"'],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_an_error_names_symbols_values_and_node(case: str) -> None:
    text, good, bad, said = BAD[case]
    data = onnx.parser.parse_model(HEAD + text).SerializeToString()
    session = minitvm.InferenceSession(data, num_threads=1, specialise_after=0)
    before = session.run(None, good)
    with pytest.raises(MiniTVMError) as failed:
        session.run(None, bad)
    assert all(one in str(failed.value) for one in said), failed.value
    for found, wanted in zip(session.run(None, good), before, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert len(session.libraries) <= 2, "one for all sizes, and that which says what is wrong"


def test_names_that_shape_dict_gives_are_those_of_the_error() -> None:
    data = onnx.parser.parse_model(HEAD + "(float[a, b] x, float[c, d] y) => (z) { z = MatMul (x, y) }")
    names = {"x": ("n", "k"), "y": ("k", "m")}
    session = minitvm.InferenceSession(data.SerializeToString(), num_threads=1, shape_dict=names)
    with pytest.raises(MiniTVMError, match=r"n = 2, k = 9 \(x\) and 3 \(y\)"):
        session.run(None, {"x": _x(2, 9), "y": _x(3, 9)})
