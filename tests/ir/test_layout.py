"""Layouts: parsing, shapes, index maps; numpy conversion and index maps check each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm.errors import MiniTVMError, TypeInferenceError
from minitvm.ir.builder import layout_transform, var
from minitvm.ir.dims import symbol
from minitvm.ir.layout import Layout, Split
from minitvm.ir.types import TensorType


def test_axes_blocks_and_positions() -> None:
    layout = Layout("OIHW4i8o")
    assert (layout.primal, layout.rank, layout.is_blocked) == ("OIHW", 6, True)
    assert [str(a) for a in layout.axes] == ["O", "I", "H", "W", "4i", "8o"]
    assert (layout.index("I"), layout.index("i"), layout.ordinal("I")) == (1, 4, "second")
    assert (layout.factor("I"), layout.factor("O"), layout.factor("H")) == (4, 8, 1)
    assert "i" in layout and "h" not in layout


def test_building_layouts_from_layouts() -> None:
    assert str(Layout("NHWC").blocked("C", 16)) == "NHWC16c"
    assert str(Layout("NCHW16c").plain()) == "NCHW"
    assert str(Layout("NCHW16c").without("HW")) == "NC16c"
    assert str(Layout("NCHW16c").without("C")) == "NHW"
    assert Layout("NCHW8c") == Layout("NCHW8c") != Layout("NCHW4c")


def test_a_block_of_one_is_a_block() -> None:
    layout = Layout("OIHW1i8o")
    assert layout.shape_from("OIHW", (16, 1, 3, 3)) == (2, 1, 3, 3, 1, 8)


def test_compatible_means_the_same_axes() -> None:
    assert Layout("NHWC").compatible(Layout("NCHW8c"))
    assert not Layout("NCHW").compatible(Layout("OIHW"))


def test_unknown_extents_stay_unknown() -> None:
    n, h = symbol("n"), symbol("h")
    assert Layout("NCHW8c").shape_from("NHWC", (n, h, 5, 16)) == (n, 2, h, 5, 8)
    assert Layout("NCHW8c").shape_from("NCHW", (1, 8 * n, 5, 5)) == (1, n, 5, 5, 8)


def test_a_split_coordinate_goes_to_equal_blocks_untouched() -> None:
    at = {"N": 0, "C": Split("outer", "inner", 8), "H": 1, "W": 2}
    assert Layout("NCHW8c").place(at) == (0, "outer", 1, 2, "inner")
    assert Layout("NCHW4c").place({**at, "C": Split(1, 6, 8)}) == (0, 3, 1, 2, 2)


_BLOCKS = st.sampled_from([0, 1, 2, 3, 4, 6, 12])


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any order of N, C and W, each perhaps split, the blocks at the end."""
    layout = Layout("".join(draw(st.permutations("NCW"))))
    for axis in draw(st.permutations("NCW")):
        if block := draw(_BLOCKS):
            layout = layout.blocked(axis, block)
    return layout


@given(layouts(), layouts(), layouts())
@settings(max_examples=60, deadline=None)
def test_numpy_conversion_agrees_with_the_index_map_and_returns(a: Layout, b: Layout, c: Layout) -> None:
    plain = np.arange(12 * 24 * 36).reshape(12, 24, 36)
    x = a.convert(plain, "NCW")
    y = b.convert(x, a)
    assert y.shape == b.shape_from(a, x.shape)
    index = np.indices(y.shape)
    np.testing.assert_array_equal(y, x[a.index_from(b, list(index))])
    np.testing.assert_array_equal(Layout("NCW").convert(y, b), plain)
    np.testing.assert_array_equal(c.convert(y, b), c.convert(x, a))


MALFORMED = {
    "": "'' is not a layout: axes are capital letters, blocks a number and a small letter",
    "NcHW": "'NcHW' is not a layout: axes are capital letters, blocks a number and a small letter",
    "NCHWc8": "'NCHWc8' is not a layout: axes are capital letters, blocks a number and a small letter",
    "NCHWC": "'NCHWC' is not a layout: 'C' is there twice",
    "NCHW8c4c": "'NCHW8c4c' is not a layout: 'c' is there twice",
    "NCHW8o": "'NCHW8o' is not a layout: block '8o' has no axis 'O'",
    "NCHW0c": "'NCHW0c' is not a layout: block 'c' has size 0",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_text_that_is_no_layout(text: str) -> None:
    with pytest.raises(TypeInferenceError) as error:
        Layout(text)
    assert error.value.message == MALFORMED[text]
    assert error.value.hint == "layouts look like NCHW, NHWC, OIHW, NCHW8c"


def test_an_axis_is_split_once() -> None:
    with pytest.raises(TypeInferenceError, match="layout NCHW8c cannot split 'C': it has no such axis, or it is split"):
        Layout("NCHW8c").blocked("C", 2)


def _transform(shape: tuple[int, ...], source: str, target: str) -> TensorType:
    return layout_transform(var("x", shape=shape), src_layout=source, dst_layout=target).tensor_type


def test_layout_transform_types() -> None:
    assert _transform((1, 16, 4, 5), "NCHW", "NCHW8c") == TensorType((1, 2, 4, 5, 8))
    assert _transform((1, 2, 4, 5, 8), "NCHW8c", "NHWC") == TensorType((1, 4, 5, 16))


REJECTED = {
    ((1, 12, 4, 4), "NCHW", "NCHW8c"): "layout NCHW8c: C is 12, which blocks of 8 do not divide",
    ((1, 8, 4, 4), "NCHW", "NCH"): "layouts NCHW and NCH have different axes",
    ((1, 8, 4), "NCHW", "NHWC"): (
        "layout_transform: src_layout NCHW has 4 dimensions, the input is Tensor[(1, 8, 4), float32]"
    ),
    ((1, 2, 4, 4, 4), "NCHW8c", "NHWC"): "layout NCHW8c: dimension 'c' is 4, not 8",
}


@pytest.mark.parametrize("case", REJECTED, ids=str)
def test_layout_transform_rejects(case: tuple[tuple[int, ...], str, str]) -> None:
    with pytest.raises(MiniTVMError) as error:
        _transform(*case)
    assert error.value.message == REJECTED[case]
    assert error.value.where[0] == f'layout_transform(%x, src_layout="{case[1]}", dst_layout="{case[2]}")'
