"""What iterates over nothing, branches that never run, and shapes that data decides: sessions and ``compile`` alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import minitvm
from minitvm.errors import InputError, MiniTVMError

CASES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "scan": (
        """g (float[N,4] x) => (float[4] s, float[N,4] y) <int64[1] ax = {0}> { z = ReduceSum<keepdims=0>(x,
        ax) s, y = Scan <num_scan_inputs=1, body = b (float[4] st, float[4] r) => (float[4] n, float[4] o) {
        n = Add(st, r) o = Tanh(n) }> (z, x) }""",
        [{"x": (3, 4)}, {"x": (0, 4)}, {"x": (1, 4)}],
    ),
    "scan_batch_axis": (
        """g (float[4,N] x) => (float[4] s, float[4,N] y) <int64[1] ax = {1}> { z = ReduceSum<keepdims=0>(x,
        ax) s, y = Scan <num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1],
        scan_input_directions=[1], body = b (float[4] st, float[4] r) => (float[4] n, float[4] o) { n =
        Add(st, r) o = Tanh(n) }> (z, x) }""",
        [{"x": (4, 3)}, {"x": (4, 0)}, {"x": (4, 1)}],
    ),
    "seqmap": (
        """g (float[N,4] x) => (float[M,4] y) { s = SplitToSequence <axis=0> (x) t = SequenceMap <body = b
        (float[K,4] a) => (float[K,4] c) { c = Relu(a) }> (s) y = ConcatFromSequence <axis=0> (t) }""",
        [{"x": (3, 4)}, {"x": (1, 4)}, {"x": (0, 4)}],
    ),
    "seqempty_len": (
        """g (float[N,4] x) => (int64 n) { s = SequenceEmpty() t = SequenceMap <body = b (float[K,4] a) =>
        (float[K,4] c) { c = Relu(a) }> (s) n = SequenceLength(t) }""",
        [{"x": (3, 4)}, {"x": (0, 4)}],
    ),
    "if_first": (
        """g (float[N,4] x) => (float[4] y) <int64 zero = {0}, float[4] d = {1,2,3,4}> { s = Shape(x) n =
        Gather(s, zero) c = Greater(n, zero) y = If (c) <then_branch = t () => (float[4] a) { a = Gather
        <axis=0> (x, zero) }, else_branch = e () => (float[4] b) { b = Identity(d) }> }""",
        [{"x": (3, 4)}, {"x": (0, 4)}],
    ),
    "if_data": (
        """g (float[N,4] x, bool c) => (float[4] y) <int64 zero = {0}, float[4] d = {1,2,3,4}> { y = If (c)
        <then_branch = t () => (float[4] a) { a = Gather <axis=0> (x, zero) }, else_branch = e () =>
        (float[4] b) { b = Identity(d) }> }""",
        [{"x": (3, 4), "c": True}, {"x": (0, 4), "c": False}],
    ),
    "if_seqat": (
        """g (float[N,4] x) => (float[M,4] y) <int64 zero = {0}> { q = SplitToSequence <axis=0> (x) n =
        SequenceLength(q) c = Greater(n, zero) y = If (c) <then_branch = t () => (float[K,4] a) { a =
        SequenceAt (q, zero) }, else_branch = e () => (float[K,4] b) { b = Identity(x) }> }""",
        [{"x": (3, 4)}, {"x": (0, 4)}],
    ),
    "loop_named": (
        """g (float[R,D] x, int64 n) => (float[K,D] y) <int64[1] m={-1}> { y = Loop (n, "") <body = b (int64 i,
        bool c) => (bool co, float[D] r) { co = Identity(c) q = Gather<axis=0>(x, i) k = NonZero(q) r =
        Identity(q)}> }""",
        [{"x": (3, 4), "n": 2}, {"x": (3, 4), "n": 0}, {"x": (0, 4), "n": 0}],
    ),
    "loop_carried": (
        """g (float[R,4] x, int64 n) => (float[4] last, float[K,4] y) <float[4] z = {1,1,1,1}> { last, y = Loop
        (n, , z) <body = b (int64 i, bool c, float[4] s) => (bool co, float[4] t, float[4] r) { co =
        Identity(c) r = Gather<axis=0>(x, i) t = Add(s, r) }> }""",
        [{"x": (3, 4), "n": 2}, {"x": (3, 4), "n": 0}, {"x": (0, 4), "n": 0}],
    ),
    "loop_cond": (
        """g (float[R,4] x, bool go) => (float[K,4] y) { y = Loop ( , go) <body = b (int64 i, bool c) => (bool
        co, float[4] r) <bool f = {0}> { co = Identity(f) r = Gather<axis=0>(x, i) }> }""",
        [{"x": (3, 4), "go": True}, {"x": (3, 4), "go": False}, {"x": (0, 4), "go": False}],
    ),
    "loop_seq": (
        """g (float[R,4] x, int64 n) => (int64 k) { s = SequenceEmpty() t = Loop (n, , s) <body = b (int64 i,
        bool c, seq(float[4]) q) => (bool co, seq(float[4]) p) { co = Identity(c) r = Gather<axis=0>(x, i) p
        = SequenceInsert(q, r) }> k = SequenceLength(t) }""",
        [{"x": (3, 4), "n": 2}, {"x": (3, 4), "n": 0}, {"x": (0, 4), "n": 0}],
    ),
    "nested": (
        """g (float[R,C] x) => (float[K,L] y) <int64 z0={0}, int64 z1={1}> { s = Shape(x) n = Gather(s,z0) m =
        Gather(s,z1) y = Loop (n, "") <body = b (int64 i, bool c) => (bool co, float[L] r) { co =
        Identity(c) row = Gather<axis=0>(x, i) r = Loop (m, "") <body = b2 (int64 j, bool c2) => (bool co2,
        float e) { co2 = Identity(c2) e0 = Gather<axis=0>(row, j) e = Relu(e0)}> }> }""",
        [{"x": (3, 4)}, {"x": (0, 4)}, {"x": (3, 0)}, {"x": (0, 0)}],
    ),
    "seqat_loop": (
        """g (float[N,4] x) => (float[M,4] y) { q = SplitToSequence <axis=0> (x) n = SequenceLength(q) y = Loop
        (n, "") <body = b (int64 i, bool c) => (bool co, float[1,4] r) { co = Identity(c) r = SequenceAt (q,
        i) }> }""",
        [{"x": (3, 4)}, {"x": (0, 4)}],
    ),
    "concat_empty": (
        """g (float[N,4] x) => (float[M,4] y) { q = SplitToSequence <axis=0> (x) y = ConcatFromSequence
        <axis=0> (q) }""",
        [{"x": (3, 4)}, {"x": (0, 4)}],
    ),
    "compress": (
        """g (float[N,4] x) => (float[M,4] y) <float t={0.0}, int64[1] ax={1}> { r = ReduceSum<keepdims=0>(x,
        ax) c = Greater(r, t) y = Compress<axis=0>(x, c) }""",
        [{"x": (3, 4)}, {"x": (0, 4)}, {"x": (1, 4)}],
    ),
    "nonzero": (
        """g (float[N,4] x) => (int64[2,M] y) { r = Relu(x) y = NonZero(r) }""",
        [{"x": (3, 4)}, {"x": (0, 4)}, {"x": (1, 4)}],
    ),
    "nonzero_gathernd": (
        """g (float[N,4] x) => (float[M] y) { r = Relu(x) k = NonZero(r) t = Transpose(k) a = GatherND(x, t) y
        = Exp(a) }""",
        [{"x": (3, 4)}, {"x": (0, 4)}, {"x": (1, 4)}],
    ),
    "unique": (
        """g (float[N,4] x) => (float[M] y) { r = Round(x) y = Unique(r) }""",
        [{"x": (3, 4)}, {"x": (0, 4)}, {"x": (1, 4)}],
    ),
    "unique_ax": (
        """g (float[N,4] x) => (float[M,4] y) { r = Sign(x) y = Unique<axis=0>(r) }""",
        [{"x": (3, 4)}, {"x": (0, 4)}, {"x": (1, 4)}],
    ),
    "nms": (
        """g (float[1,N,4] b, float[1,1,N] s) => (int64[K,3] y) <int64 m={5}, float iou={0.5}, float sc={0.0}>
        { y = NonMaxSuppression(b, s, m, iou, sc) }""",
        [{"b": (1, 3, 4), "s": (1, 1, 3)}, {"b": (1, 0, 4), "s": (1, 1, 0)}],
    ),
    "topk_computed": (
        """g (float[N,4] x) => (float[N,M] y) <float t={0.0}, int64[1] one={1}> { c = Greater(x, t) i =
        Cast<to=7>(c) f = ReduceMax<keepdims=0>(i) o = Reshape(f, one) y, z = TopK(x, o) }""",
        [{"x": (3, 4)}, {"x": (1, 4)}],
    ),
    "range_computed": (
        """g (float[N,4] x) => (int64[M] y) <float t={0.0}, int64 a={0}, int64 b={1}> { c = Greater(x, t) i =
        Cast<to=7>(c) f = ReduceSum<keepdims=0>(i) y = Range(a, f, b) }""",
        [{"x": (3, 4)}, {"x": (1, 4)}, {"x": (0, 4)}],
    ),
    "slice_computed": (
        """g (float[N,4] x) => (float[M,4] y) <float t={0.0}, int64[1] a={0}, int64[1] ax={0}, int64[1]
        one={1}> { c = Greater(x, t) i = Cast<to=7>(c) f = ReduceSum<keepdims=0>(i) e = Reshape(f, one) y =
        Slice(x, a, e, ax) }""",
        [{"x": (3, 4)}, {"x": (1, 4)}, {"x": (0, 4)}],
    ),
    "expand_computed": (
        """g (float[N,4] x) => (float[M,4] y) <float t={0.0}, int64[1] a={4}, int64[1] one={1}> { c =
        Greater(x, t) i = Cast<to=7>(c) f = ReduceSum<keepdims=0>(i) e = Reshape(f, one) s =
        Concat<axis=0>(e, a) r = ReduceSum<keepdims=0>(x) y = Expand(r, s) }""",
        [{"x": (3, 4)}, {"x": (1, 4)}],
    ),
    "tile_computed": (
        """g (float[N,4] x) => (float[M,4] y) <float t={0.0}, int64[1] a={1}, int64[1] one={1}> { c =
        Greater(x, t) i = Cast<to=7>(c) f = ReduceMax<keepdims=0>(i) e = Reshape(f, one) s =
        Concat<axis=0>(e, a) y = Tile(x, s) }""",
        [{"x": (3, 4)}, {"x": (1, 4)}],
    ),
    "constofshape_computed": (
        """g (float[N,4] x) => (float[M] y) <float t={0.0}, int64[1] one={1}> { c = Greater(x, t) i =
        Cast<to=7>(c) f = ReduceSum<keepdims=0>(i) e = Reshape(f, one) y = ConstantOfShape(e) }""",
        [{"x": (3, 4)}, {"x": (0, 4)}],
    ),
    "pad_computed": (
        """g (float[N,4] x) => (float[M,K] y) <float t={0.0}, int64[1] one={1}, int64[3] r={0,0,0}> { c =
        Greater(x, t) i = Cast<to=7>(c) f = ReduceMax<keepdims=0>(i) e = Reshape(f, one) p =
        Concat<axis=0>(r, e) y = Pad(x, p) }""",
        [{"x": (3, 4)}, {"x": (1, 4)}],
    ),
    "reshape_computed": (
        """g (float[N,4] x) => (float[M,K] y) <float t={-100.0}, int64[1] one={1}, int64[1] r={-1}> { c =
        Greater(x, t) i = Cast<to=7>(c) f = ReduceSum<keepdims=0>(i) e = Reshape(f, one) p =
        Concat<axis=0>(r, e) y = Reshape(x, p) }""",
        [{"x": (3, 4)}, {"x": (1, 4)}],
    ),
    "split_computed": (
        """g (float[4,N] x) => (float[A,N] y, float[B,N] z) <float t={-100.0}, int64[1] two={2}, int64[1]
        one={1}> { q = Shape(x) c = Greater(x, t) i = Cast<to=7>(c) f = ReduceMin<keepdims=0>(i) e =
        Reshape(f, one) m = Add(e, two) p = Concat<axis=0>(e, m) y, z = Split<axis=0>(x, p) }""",
        [{"x": (4, 3)}, {"x": (4, 1)}],
    ),
    "where_unknown_add": (
        """g (float[N,4] x) => (float[M] y, float z) { r = Relu(x) k = NonZero(r) t = Transpose(k) a =
        GatherND(x, t) y = Mul(a, a) z = ReduceSum<keepdims=0>(a) }""",
        [{"x": (3, 4)}, {"x": (0, 4)}],
    ),
}
"""Models, and for each run its feeds: a shape of random numbers, or a value."""


def feeds_of(given: dict[str, Any]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {n: rng.standard_normal(v).astype("f") if isinstance(v, tuple) else np.array(v) for n, v in given.items()}


def expected(name: str, model: bytes, feeds: dict[str, np.ndarray]) -> list[Any] | None:
    """ONNX Runtime's results; ``None`` where it has none.

    Its Scan over nothing ends the process, and it has 0 for a size that has a name in a body.
    """
    if "scan" in name and not feeds["x"].size:
        return [np.zeros(4, "f"), feeds["x"]]
    if name == "loop_named" and not feeds["n"]:
        return [np.zeros((0, 4), "f")]
    try:
        return list(onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds))
    except Exception:  # it has classes of errors of its own
        return None


def check(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::minitvm.HostCallWarning")
@pytest.mark.parametrize("name", CASES)
def test_as_onnx_runtime_has_it(name: str) -> None:
    text, runs = CASES[name]
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 18]>\n' + text).SerializeToString()
    session = minitvm.InferenceSession(model, num_threads=1)
    for given in runs:
        feeds = feeds_of(given)
        wanted = expected(name, model, feeds)
        shapes = {n: a.shape for n, a in feeds.items()}
        library = minitvm.compile(model, opt_level=len(given) - 1, shape_dict=shapes, num_threads=1)
        if wanted is None:
            for run in (lambda f: session.run(None, f), library.run):
                with pytest.raises(InputError):
                    run(feeds)
        else:
            check(session.run(None, feeds), wanted)
            check(library.run(feeds), wanted)


@pytest.mark.filterwarnings("ignore::minitvm.HostCallWarning")
def test_a_trip_that_the_shapes_rule_out_is_an_error_when_it_is_made() -> None:
    """Rows of a tensor that has none: as many as the run asks for."""
    text, _ = CASES["loop_carried"]
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 18]>\n' + text)
    session = minitvm.InferenceSession(model, num_threads=1)
    with pytest.raises(InputError, match="takes a branch that the shapes of the inputs rule out: take: there is no"):
        session.run(None, {"x": np.zeros((0, 4), "f"), "n": np.array(1)})
    text = text.replace("int64 n)", "int64 m)").replace("<float[4] z", "<int64 n = {2}, float[4] z")
    sure = parser.parse_model('<ir_version: 9, opset_import: ["": 18]>\n' + text)
    with pytest.raises(MiniTVMError, match="there is no element to take"):
        minitvm.compile(sure, shape_dict={"x": (0, 4)})


@pytest.mark.filterwarnings("ignore::minitvm.HostCallWarning")
def test_data_is_not_compiled_for() -> None:
    """A condition that is computed of data is another one in each run."""
    text, _ = CASES["compress"]
    session = minitvm.InferenceSession(parser.parse_model('<ir_version: 9, opset_import: ["": 18]>\n' + text))
    for seed in range(3):
        session.run(None, {"x": np.random.default_rng(seed).standard_normal((5, 4)).astype("f")})
    assert session.inputs_by_value == [] and len(session.libraries) == 1


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool", "LpPool"])
def test_padding_that_keeps_nothing_as_it_is(op: str) -> None:
    """As many windows as strides, rounded up: none, though strides are longer than windows."""
    options = 'kernel_shape = [2], strides = [3], auto_pad = "SAME_UPPER"'
    graph = f"g (float[2,2,n] x) => (float[a,b,c] y) {{ y = {op} <{options}> (x) }}"
    text = '<ir_version: 9, opset_import: ["": 18]>\n' + graph
    session = minitvm.InferenceSession(parser.parse_model(text), num_threads=1)
    for count in (5, 0, 6, 3, 0):
        (y,) = session.run(None, {"x": np.ones((2, 2, count), "float32")})
        assert y.shape == (2, 2, -(-count // 3))
