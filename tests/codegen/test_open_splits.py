"""Indices that divide by sizes that only a run knows, as loops of their own; squares of open axes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import minitvm
from minitvm.codegen.open_splits import dividing, without_quotients
from minitvm.codegen.stages import Output
from minitvm.codegen.walks import Walk, walks
from minitvm.ir.dims import assumptions, symbol
from minitvm.ir.loop import Binary, Buffer, Load, LoopExpr, LoopVar, Size, as_index, select, walk_exprs

H, W = (symbol("h") + 1) // 2, symbol("w")
SIZES = ((33, 20), (1, 1), (5, 64), (16, 16), (47, 3))


def divides(value: LoopExpr) -> bool:
    """True if an index divides what varies from element to element."""
    divisions = (n for n in walk_exprs(value) if isinstance(n, Binary) and n.op in ("floordiv", "floormod"))
    variables = (v for n in divisions for v in walk_exprs(n.lhs) if isinstance(v, LoopVar))
    return any(not isinstance(v, Size) for v in variables)


@pytest.mark.parametrize("groups", [1, 8])
def test_a_flat_axis_becomes_its_rows_and_columns(groups: int) -> None:
    """Channels by groups, as a group norm reads an image in blocks."""
    extent = H * W * 16
    image = Buffer("image", (groups, 2 * H, 8 * W), "float32")
    i, k = LoopVar("i"), LoopVar("k")
    flat = i * as_index(extent) + k
    value = image[flat // as_index(extent), flat // as_index(8 * W) % as_index(2 * H), flat % as_index(8 * W)]
    walk = Walk.over(Output(Buffer("out", (groups, extent), "float32"), (i, k), value))
    with assumptions({"h": 64, "w": 64}):
        (found,) = walks(walk)
    assert not divides(found.value) and len(found.loops) == 3
    assert isinstance(found.value, Load) and found.value.index[-1] == found.loops[-1][0]


def test_rows_that_groups_are_made_of_are_not_split() -> None:
    """Two channels a group: which one it is follows from channel and row, and elements of a row lie side by side."""
    image = Buffer("image", (4, 2 * H * W), "float32")
    c, h, w = (LoopVar(name) for name in "chw")
    flat = (c * as_index(H) + h) * as_index(W) + w
    value = image[flat // as_index(2 * H * W), flat % as_index(2 * H * W)]
    with assumptions({"h": 64, "w": 64}):
        assert dividing(value, {h: H, w: W}) == (w, W)
        found = without_quotients(value, w, W)
    divisions = [n for n in walk_exprs(found) if isinstance(n, Binary) and n.op in ("floordiv", "floormod")]
    assert divisions and not any(n is w for division in divisions for n in walk_exprs(division))


def test_what_is_put_together_along_pixels_is_read_part_by_part() -> None:
    """The levels of a detector's head: no element chooses between images, nor divides."""
    total, j, k = H * W * 5, LoopVar("j"), LoopVar("k")
    wide, narrow = (Buffer(name, (16, s * H, s * W), "float32") for name, s in (("wide", 2), ("narrow", 1)))
    rest = k - as_index(H * W * 4)
    first = wide[j, k // as_index(2 * W), k % as_index(2 * W)]
    value = select(k < as_index(H * W * 4), first, narrow[j, rest // as_index(W), rest % as_index(W)])
    walk = Walk.over(Output(Buffer("out", (16, total), "float32"), (j, k), value))
    with assumptions({"h": 64, "w": 64}):
        found = walks(walk)
    assert [len(part.loops) for part in found] == [3, 3]
    assert all(isinstance(part.value, Load) and not divides(part.value) for part in found)


def test_what_sizes_do_not_decide_is_not_cut() -> None:
    """A place that may lie behind the end, and one that another loop moves."""
    j, k, out = LoopVar("j"), LoopVar("k"), Buffer("out", (16, W), "float32")
    x = Buffer("x", (W,), "float32")
    for limit in (as_index(H), j + 3):
        walk = Walk.over(Output(out, (j, k), select(k < limit, x[k], -x[k])))
        with assumptions({"h": 64, "w": 64}):
            assert len(walks(walk)) == 1


def test_what_is_no_multiple_stays() -> None:
    """Of an extent that is none of the divisor, of a sum that begins elsewhere, and of a divisor that varies."""
    k, buffer = LoopVar("k"), Buffer("x", (symbol("n"),), "float32")
    with assumptions({"h": 64, "w": 64, "n": 64}):
        for x, divisor in ((k, symbol("n")), (k + 1, W), (k * 2, W)):
            assert dividing(buffer[x // as_index(divisor)], {k: H * W}) is None
        assert dividing(buffer[k % as_index(W)], {k: 12}) is None
    kept = (k + 1) // as_index(W)
    assert without_quotients(kept, k, W) is kept


def session(body: str, shape: str) -> minitvm.InferenceSession:
    text = f'<ir_version: 9, opset_import: ["": 19]> g (float[{shape}] x) => (float y) {{ {body} }}'
    model = parser.parse_model(text)
    model.graph.output[0].ClearField("type")
    return minitvm.InferenceSession(model, num_threads=1, specialise_after=0)


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (1, 2, 0)])
def test_open_matrices_are_turned_in_squares(order: tuple[int, ...]) -> None:
    opened = session(f"t = Transpose <perm = {list(order)}> (x) y = Neg (t)", "n, h, w")
    for height, width in SIZES:
        x = np.random.default_rng(height).standard_normal((18, height, width)).astype(np.float32)
        np.testing.assert_array_equal(opened.run(None, {"x": x})[0], -x.transpose(order), strict=True)
    (library,) = opened.libraries
    (name,) = library.report.groups
    assert "alloc square" in library.report.kernel(name).text("loops")


def test_images_as_rows_of_groups() -> None:
    """Reshaped, scaled group by group and back, at sizes of which some are shorter than a vector."""
    body = """s = Shape (x) o = Constant <value_ints = [0, 4, -1]> () r = Reshape (x, o)
    a = Constant <value_ints = [2]> () m = ReduceMax (r, a) d = Sub (r, m)
    f = Reshape (d, s) t = Transpose <perm = [0, 2, 3, 1]> (f) y = Neg (t)"""
    opened = session(body, "n, 16, h, w")
    for height, width in SIZES:
        x = np.random.default_rng(width).standard_normal((2, 16, height, width)).astype(np.float32)
        rows = x.reshape(2, 4, -1)
        want = -(rows - rows.max(2, keepdims=True)).reshape(x.shape).transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(opened.run(None, {"x": x})[0], want, strict=True)
    assert len(opened.libraries) == 1


def test_levels_of_a_head_side_by_side() -> None:
    """Three sizes of an image, flat, one behind the other; channels below and above a place are computed otherwise."""
    text = """<ir_version: 9, opset_import: ["" : 18]>
    head (float[n, 8, h, w] x, float[24, 8, 3, 3] k) => (float[n, 24, p] y)
    <int64[3] flat = {0, 24, -1}, int64[1] low = {0}, int64[1] mid = {4}, int64[1] high = {24}, int64[1] one = {1}> {
        a = Conv <pads = [1, 1, 1, 1]> (x, k)
        b = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, k)
        c = Conv <pads = [1, 1, 1, 1], strides = [4, 4]> (x, k)
        ra = Reshape (a, flat)
        rb = Reshape (b, flat)
        rc = Reshape (c, flat)
        all = Concat <axis = 2> (ra, rb, rc)
        boxes = Slice (all, low, mid, one)
        classes = Slice (all, mid, high, one)
        scores = Sigmoid (classes)
        y = Concat <axis = 1> (boxes, scores)
    }"""
    draw = np.random.default_rng(7)
    k = draw.standard_normal((24, 8, 3, 3)).astype("float32")
    session = minitvm.InferenceSession(parser.parse_model(text).SerializeToString(), num_threads=1)
    for n, h, w in ((1, 36, 40), (2, 17, 9), (1, 1, 3), (3, 4, 100)):
        feeds = {"x": draw.standard_normal((n, 8, h, w)).astype("float32"), "k": k}
        own = minitvm.compile(parser.parse_model(text), shape_dict={name: a.shape for name, a in feeds.items()})
        np.testing.assert_allclose(session.run(None, feeds)[0], own.run(feeds)[0], rtol=1e-5, atol=1e-5)
    assert len(session.libraries) == 1
