"""Every operator of ONNX Runtime's domain that its CPU provider runs, with its inputs and attributes in combination.

``python tests/frontend/test_onnx_contrib_table.py`` writes ``docs/contrib.md``; the tests hold each line to it.
"""

from __future__ import annotations

import pathlib
import warnings
from collections import Counter

import numpy as np
import onnx
import pytest
from contrib_table import ROWS, Try
from onnx import helper, numpy_helper
from onnx_build import run

runtime = pytest.importorskip("onnxruntime")
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "contrib.md"
MOST = 16
"""Combinations of a row."""
TOLERANCE = {"float16": 2e-3, "float32": 2e-4, "float64": 1e-9}
"""Of the largest number: products of 8 and 4 bits have some 1000 times the range of what is asked for."""


def _other(t: Try) -> str:
    """Why ONNX Runtime's answer is none; empty where it is one."""
    given, shapes = t.attributes, [a if a is None else a.shape for a in t.inputs]
    if t.op == "FusedMatMul" and given.get("transA") and len(shapes[1] or ()) == 1 and len(shapes[0] or ()) > 1:
        return "a transposed matrix times a vector is read without transposing"
    if t.op == "MatMulNBits" and len(t.inputs) > 4 and t.inputs[4] is not None:
        zeros = t.inputs[3]
        if given["bits"] == 2 or (zeros is not None and zeros.dtype == np.uint8):
            return "with `g_idx` it misreads 2 bits and packed zero points: a `g_idx` in order changes its result"
    if t.op == "NhwcMaxPool" and "dilations" in given and "SAME" in given.get("auto_pad", ""):
        return "SAME with dilations: its shape is not the one of ONNX"
    if t.op == "Attention" and t.outputs == 2 and len(set(given.get("qkv_hidden_sizes", [0]))) > 1:
        return "keys and values of two sizes in one `present` are refused"
    return ""


def _model(t: Try) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    names = ["" if a is None else f"x{i}" for i, a in enumerate(t.inputs)]
    while not names[-1]:
        names.pop()
    made = [f"y{i}" for i in range(t.outputs)]
    if t.op.startswith("Skip"):
        made[1:3] = [""] * len(made[1:3])
    given = {n: t.inputs[int(n[1:])] for n in names if n}
    feeds = {n: a for n, a in given.items() if a is not None and not t.constant[int(n[1:])]}
    node = helper.make_node(t.op, names, made, domain="com.microsoft", **t.attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    weights = [numpy_helper.from_array(a, n) for n, a in given.items() if a is not None and n not in feeds]
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=n) for n in made if n], weights)
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10), feeds


def _onnx_runtime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(found) for found in session.run(None, feeds)]
    except Exception as error:
        assert type(error).__module__.startswith("onnxruntime"), error
        return None


def _check(t: Try, found: tuple[np.ndarray, ...], expected: list[np.ndarray]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape), t
        if theirs.dtype.name not in TOLERANCE:
            np.testing.assert_array_equal(mine, theirs, err_msg=str(t))
            continue
        size = np.abs(theirs.astype(np.float64)).max(initial=0)
        allowed = TOLERANCE[theirs.dtype.name] * size + 1e-5
        np.testing.assert_allclose(mine.astype(np.float64), theirs, rtol=0, atol=allowed, err_msg=str(t))


def outcomes(op: str) -> tuple[Counter[str], set[str]]:
    """How many are right or refused by ONNX Runtime, and why others are not compared; raises where one is wrong."""
    counts, reasons = Counter[str](), set[str]()
    for t in (t for row in ROWS if row.op == op for t in row.tries(MOST)):
        model, feeds = _model(t)
        expected = _onnx_runtime(model, feeds)
        reason = "" if expected is None else _other(t)
        if expected is None or reason:
            counts["refused" if expected is None else "apart"] += 1
            reasons |= {reason} - {""}
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _check(t, run(model, feeds), expected)
        counts["right"] += 1
    return counts, reasons


def line(op: str) -> str:
    counts, reasons = outcomes(op)
    rows = [row for row in ROWS if row.op == op]
    tried = ", ".join(f"`{name}`" for name in dict.fromkeys(n for row in rows for n in row.attributes))
    inputs = max(len(row.inputs) for row in rows)
    cells = [f"`{op}`", inputs, tried, *(counts[k] or "" for k in ("right", "refused", "apart"))]
    return f"| {' | '.join(map(str, cells))} | {'; '.join(sorted(reasons))} |"


OPERATORS = tuple(dict.fromkeys(row.op for row in ROWS))
TEMPLATE = """# Operators of ONNX Runtime's own domain

Nodes of each operator of `com.microsoft` that both minitvm and the CPU provider of onnxruntime {version} know, with
inputs present and left out, of several shapes and dtypes, and attributes in combination
(`tests/frontend/contrib_table.py` says which), compared with onnxruntime: integers to the bit. What it refuses fits no
other input, or is not for CPUs.
`python tests/frontend/test_onnx_contrib_table.py` makes this page; the tests hold each line to it.

| operator | inputs up to | attributes | right | onnxruntime refuses | not compared | because |
|---|---|---|---|---|---|---|
{rows}
"""


@pytest.mark.parametrize("op", OPERATORS)
def test_as_onnx_runtime(op: str) -> None:
    assert line(op) in PAGE.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_an_order_of_groups(bits: int) -> None:
    """With rows in another order, and which block each belongs to: the same product."""
    rng, per = np.random.default_rng(bits), 8 // bits
    codes, groups = rng.integers(0, 2**bits, (5, 40)), rng.permutation(np.arange(40) // 16).astype("int32")
    held = np.pad(codes, ((0, 0), (0, 8))).reshape(5, 48 // per, per)
    packed = (held << (np.arange(per) * bits)).sum(2).astype("uint8").reshape(5, 3, -1)
    zeros, scales = rng.integers(0, 2**bits, (5, 3)), rng.random((5, 3)).astype("float32")
    held = np.pad(zeros, ((0, 0), (0, -3 % per))).reshape(5, -1, per)
    points = (held << (np.arange(per) * bits)).sum(2).astype("uint8")
    x = rng.standard_normal((3, 40)).astype("float32")
    for order in (groups, np.sort(groups), np.repeat(np.int32([2, 0]), 20)):
        t = Try("MatMulNBits", [x, packed, scales, points, order], [False, *[True] * 4], {}, 1)
        t.attributes.update(K=40, N=5, bits=bits, block_size=16)
        weight = (codes - zeros[:, order]) * scales[:, order]
        np.testing.assert_allclose(run(*_model(t))[0], x @ weight.T, rtol=1e-4, atol=1e-3)


if __name__ == "__main__":
    PAGE.write_text(
        TEMPLATE.format(version=runtime.__version__, rows="\n".join(map(line, OPERATORS))), encoding="utf-8"
    )
