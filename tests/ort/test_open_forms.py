"""Operators whose tables follow from sizes: over open sizes kernels make them, and one library is for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import minitvm
from minitvm.errors import TypeInferenceError

Shape = tuple[int, ...]
_AXIS = "int64[1] axis = {1}, int64 one = {1}, int64[1] two = {2}"
_HALVES = """shape = Shape <start = 1, end = 2> (x) half = Div (shape, two) rest = Sub (shape, half)
        both = Concat <axis = 0> (rest, half)"""
FORMS: dict[str, tuple[str, list[list[Shape]]]] = {
    "dft": (
        "(float[n, t, 1] x) => (float[n, u, 2] y) <int64 axis = {1}> { y = DFT <onesided = 1> (x, , axis) }",
        [[(2, 8, 1)], [(1, 7, 1)], [(3, 30, 1)], [(1, 1, 1)]],
    ),
    "inverse": (
        "(float[n, t, 2] x) => (float[n, t, 2] y) <int64 axis = {1}> { y = DFT <inverse = 1> (x, , axis) }",
        [[(2, 8, 2)], [(1, 7, 2)], [(3, 30, 2)]],
    ),
    "dft of a length": (
        "(float[n, t, 2] x) => (float[n, 12, 2] y) <int64 axis = {1}, int64 l = {12}> { y = DFT (x, l, axis) }",
        [[(2, 8, 2)], [(1, 12, 2)], [(3, 30, 2)]],
    ),
    "stft": (
        "(float[n, t, 1] x) => (float[n, f, 9, 2] y) <int64 step = {4}, int64 l = {16}> { y = STFT (x, step, , l) }",
        [[(2, 80, 1)], [(1, 16, 1)], [(3, 51, 1)]],
    ),
    "smoothed": (
        """(float[1, 2, h, w] x, float[a, b] q) => (float[1, 2, a, b] y) <int64[2] head = {1, 2}> {
        shape = Shape (q) size = Concat <axis = 0> (head, shape)
        y = Resize <mode = "cubic", antialias = 1, coordinate_transformation_mode = "half_pixel"> (x, , , size) }""",
        [[(1, 2, 5, 14), (8, 9)], [(1, 2, 14, 7), (14, 14)], [(1, 2, 30, 9), (5, 7)]],
    ),
    "cut at the border": (
        """(float[1, 2, h, w] x, float[a, b] q) => (float[1, 2, a, b] y) <int64[2] head = {1, 2}> {
        shape = Shape (q) size = Concat <axis = 0> (head, shape)
        y = Resize <mode = "cubic", exclude_outside = 1> (x, , , size) }""",
        [[(1, 2, 5, 14), (8, 9)], [(1, 2, 30, 9), (5, 7)]],
    ),
    "half as large again": (
        """(float[1, 2, h, w] x) => (float[1, 2, a, b] y) <float[4] scales = {1.0, 1.0, 1.5, 0.5}> {
        y = Resize <mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"> (x, , scales) }""",
        [[(1, 2, 5, 14)], [(1, 2, 8, 7)], [(1, 2, 30, 9)]],
    ),
    "of whole numbers": (
        """(float[1, 2, h, w] x) => (uint8[1, 2, a, b] y) <float[4] scales = {1.0, 1.0, 2.0, 2.0}, float by = {40.0}> {
        s = Abs (x) t = Mul (s, by) u = Cast <to = 2> (t) y = Resize <mode = "linear"> (u, , scales) }""",
        [[(1, 2, 5, 14)], [(1, 2, 8, 7)]],
    ),
    "diagonal": (
        """(float[s] x) => (float[s, s] y) <float nil = {0}> {
        n = Shape (x) both = Concat <axis = 0> (n, n) zeros = Expand (nil, both) y = EyeLike <k = 1> (zeros) }""",
        [[(5,)], [(1,)], [(40,)]],
    ),
    "wrapped": (
        '(float[n, s] x) => (float[n, t] y) <int64[4] by = {0, 2, 1, 7}> { y = Pad <mode = "wrap"> (x, by) }',
        [[(2, 8)], [(1, 3)], [(3, 30)]],
    ),
    "parts of computed sizes": (
        f"""(float[n, s, 3] x) => (float[n, t, 3] y, float[n, u, 3] z, float[n, 3] v, float[n, 3] w) <{_AXIS}> {{
        {_HALVES} y, z = Split <axis = 1> (x, both) a, b = Split <axis = 1, num_outputs = 2> (x)
        v = ReduceSum <keepdims = 0> (a, axis) w = ReduceSum <keepdims = 0> (b, axis) }}""",
        [[(2, 8, 3)], [(1, 7, 3)], [(3, 1, 3)], [(2, 30, 3)]],
    ),
    "a list of parts": (
        f"""(float[n, s, 3] x) => (float[n, s, 3] y) <{_AXIS}, int64 first = {{0}}> {{
        {_HALVES} list = SplitToSequence <axis = 1> (x, both) a = SequenceAt (list, first) b = SequenceAt (list, one)
        y = Concat <axis = 1> (b, a) }}""",
        [[(2, 8, 3)], [(1, 7, 3)], [(3, 1, 3)]],
    ),
    "pieces of four": (
        """(float[n, s, 3] x) => (float[n, t, 3] y, float[n, u, 3] z, int64 c, float[n, s, 3] w)
        <int64 four = {4}, int64 first = {0}, int64 last = {-1}> {
        list = SplitToSequence <axis = 1> (x, four) y = SequenceAt (list, first) z = SequenceAt (list, last)
        c = SequenceLength (list) w = ConcatFromSequence <axis = 1> (list) }""",
        [[(2, 8, 3)], [(1, 7, 3)], [(3, 1, 3)], [(2, 30, 3)]],
    ),
    "rows and pieces in loops": (
        """(float[s, 3] x) => (float[s, 3] y, float[k, 3] z)
        <bool go = {1}, int64 four = {4}, int64[1] axis = {0}, int64 last = {-1}> {
        rows = SplitToSequence <axis = 0, keepdims = 0> (x) n = SequenceLength (rows)
        y = Loop (n, go) <body = each (int64 i, bool g) => (bool h, float[3] o) {
            h = Identity (g) row = SequenceAt (rows, i) o = Softmax (row) }>
        pieces = SplitToSequence <axis = 0> (x, four) m = SequenceLength (pieces)
        z = Loop (m, go) <body = some (int64 j, bool f) => (bool e, float[3] p) {
            e = Identity (f) back = Sub (last, j) piece = SequenceAt (pieces, back)
            p = ReduceSum <keepdims = 0> (piece, axis) }> }""",
        [[(8, 3)], [(9, 3)], [(1, 3)], [(7, 3)]],
    ),
    "rolled": (
        f"""(float[n, s, 3] x) => (float[n, s, 3] y, float[n, s, 3] z) <{_AXIS}, int64[1] first = {{0}},
        int64[1] last = {{-1}}, int64[1] far = {{9223372036854775807}}> {{
        a = Slice (x, last, far, axis) b = Slice (x, first, last, axis) y = Concat <axis = 1> (a, b)
        shape = Shape <start = 1, end = 2> (x) half = Div (shape, two)
        c = Slice (x, half, far, axis) d = Slice (x, first, half, axis) z = Concat <axis = 1> (c, d) }}""",
        [[(2, 8, 3)], [(1, 1, 3)], [(3, 0, 3)], [(2, 31, 3)]],
    ),
    "columns put together": (
        """(float[n, 8, l] x, float[h, w] q) => (float[n, 2, a, b] y) <int64[2] two = {2, 2}> {
        size = Shape (q) y = Col2Im <strides = [2, 2]> (x, size, two) }""",
        [[(1, 8, 6), (4, 6)], [(2, 8, 2), (2, 4)], [(1, 8, 30), (10, 12)]],
    ),
    "places in steps of a length": (
        """(float[n, s] x) => (int64[n] y) <int64 first = {0}> {
        total = Size (x) length = Shape <start = 1, end = 2> (x) step = Squeeze (length)
        y = Range (first, total, step) }""",
        [[(4, 6)], [(1, 1)], [(0, 3)], [(30, 7)]],
    ),
    "the best of ten at most": (
        """(float[n] x) => (float[k] y, float[m] z) <int64[1] ten = {10}> {
        n = Shape (x) k = Min (n, ten) y, i = TopK (x, k) z = Gather <axis = 0> (x, i) }""",
        [[(40,)], [(3,)], [(0,)], [(10,)]],
    ),
    "product": ("(float[m, k] x, float[n, k] w) => (float[m, n] y) { y = Gemm <transB = 1> (x, w) }", []),
}
FORMS["product"][1].extend([[(3, 40), (5, 40)], [(1, 7), (2, 7)], [(33, 513), (17, 513)], [(4, 16), (4, 16)]])


def _agree(text: str, domain: str, feeds: list[dict[str, np.ndarray]]) -> None:
    """With onnxruntime, at all of these, by one library."""
    import onnxruntime

    head = f'<ir_version: 9, opset_import: ["" : 20{domain}]> g '
    data = onnx.parser.parse_model(head + text).SerializeToString()
    session = minitvm.InferenceSession(data, num_threads=1, specialise_after=0)
    peer = onnxruntime.InferenceSession(data)
    for given in feeds:
        results: Any = peer.run(None, given)
        for found, wanted in zip(session.run(None, given), results, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-4)  # its transforms add up in float32
    assert len(session.libraries) == 1 and session.host_calls == [], session.symbolic


@pytest.mark.parametrize("form", list(FORMS))
def test_a_form_is_compiled_once_and_agrees_with_onnxruntime(form: str) -> None:
    text, runs = FORMS[form]
    rng, names = np.random.default_rng(0), [name for name in "xqw" if f"] {name}" in text.partition("=>")[0]]
    _agree(text, "", [{n: rng.normal(size=s).astype("float32") for n, s in zip(names, r, strict=True)} for r in runs])


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_ends_of_sequences_is_compiled_once(parts: int, causal: int) -> None:
    """``parts`` 2: with starts behind them."""
    text = f"""(float[n, t, 8] x, int32[m] ends, float[8, 24] w, float[24] b) => (float[n, t, 8] y) {{
        y = com.microsoft.Attention <num_heads = 2, unidirectional = {causal}> (x, w, b, ends) }}"""
    rng, runs = np.random.default_rng(1), []
    weights = {"w": rng.normal(size=(8, 24)).astype("float32"), "b": rng.normal(size=24).astype("float32")}
    for n, t in ((2, 8), (3, 5), (1, 17)):
        ends = [rng.integers(2, t + 1, n), rng.integers(0, 2, n)][:parts]
        x = rng.normal(size=(n, t, 8)).astype("float32")
        runs.append({"x": x, "ends": np.concatenate(ends).astype("int32"), **weights})
    _agree(text, ', "com.microsoft" : 1', runs)


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("onesided", [0, 1])
def test_a_transform_of_many_points_is_compiled_once(onesided: int, inverse: int) -> None:
    """Beside float64: ONNX Runtime's adds up a row of so many in float32."""
    parts = 1 if onesided > inverse else 2
    body = f"y = DFT <onesided = {onesided}, inverse = {inverse}> (x, , axis)"
    text = f"g (float[n, t, {parts}] x) => (float[n, u, v] y) <int64 axis = {{1}}> {{ {body} }}"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {text}')
    session = minitvm.InferenceSession(model, num_threads=1, specialise_after=0)
    for rows, points in ((1, 5000), (2, 4099), (1, 12345)):
        x = np.random.default_rng(points).standard_normal((rows, points, parts)).astype(np.float32)
        numbers = x[..., 0] + (1j * x[..., 1].astype(np.float64) if parts == 2 else 0)
        name = f"{'i' * inverse}{'r' * onesided}fft"
        wanted = getattr(np.fft, name)(numbers.astype(complex if parts == 2 else float), axis=1)
        (found,) = session.run(None, {"x": x})
        wanted = np.stack([wanted.real, wanted.imag], -1) if np.iscomplexobj(wanted) else wanted[..., None]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())
    assert len(session.libraries) == 1 and session.host_calls == [], session.symbolic


@pytest.mark.parametrize(
    ("text", "good", "bad", "said"),
    [
        (
            "(float[n, s] x) => (float[n, t] y) <int64[4] by = {0, -3, 0, -3}> { y = Pad (x, by) }",
            (2, 8),
            (2, 5),
            "Pad: pads -3 and -3 cut off more than dimension 1 of Tensor[(2, 5), float32]",
        ),
        (
            """(float[1, 1, h, w] x) => (float[1, 1, p, q] y) <int64[2] one = {1, 1}, int64[2] four = {4, 4}> {
            n = Shape <start = 2> (x) m = Sub (n, four) size = Concat <axis = 0> (one, m) y = Resize (x, , , size) }""",
            (1, 1, 8, 9),
            (1, 1, 3, 9),
            "Resize: Tensor[(1, 1, 3, 9), float32] cannot have sizes [1, 1, -1, 5], of which one is less than 0",
        ),
        (
            """(float[s, 3] x) => (float[t, 3] y) <int64 two = {2}, int64 four = {4}> {
            pieces = SplitToSequence <axis = 0> (x, four) y = SequenceAt (pieces, two) }""",
            (12, 3),
            (8, 3),
            "SequenceAt: index 2 is outside of a sequence of 2",
        ),
    ],
)
def test_sizes_that_a_model_cannot_have_are_an_error(text: str, good: Shape, bad: Shape, said: str) -> None:
    """The node is named, and the session works after it."""
    data = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {text}').SerializeToString()
    session = minitvm.InferenceSession(data, num_threads=1)
    given = {"x": np.arange(np.prod(good), dtype="float32").reshape(good)}
    before = session.run(None, given)
    with pytest.raises(TypeInferenceError) as failed:
        session.run(None, {"x": np.zeros(bad, "float32")})
    assert said in str(failed.value) and 'ONNX node that produces "y"' in str(failed.value)
    for found, wanted in zip(session.run(None, given), before, strict=True):
        np.testing.assert_array_equal(found, wanted)
