"""CanonicalizeOps and CanonicalizeCast."""

import numpy as np
import pytest

from minitvm.passes import CanonicalizeCast, CanonicalizeOps
from minitvm.passes.canonicalize import drop_taps_in_padding
from minitvm.testing.checks import check_rewrite, check_unchanged

BIAS = "def @main(%x: Tensor[(2, 3, 4, 5), float32], %b: Tensor[(N,), float32]) { BODY }"


def bias(body: str, channels: int) -> str:
    return BIAS.replace("BODY", body).replace("N,", f"{channels},")


def test_bias_add_becomes_add_along_its_axis() -> None:
    after = "add(%x, expand_dims(%b, axis=1, num_newaxis=2))"
    check_rewrite(CanonicalizeOps(), bias("nn.bias_add(%x, %b)", 3), bias(after, 3))
    check_rewrite(CanonicalizeOps(), bias("nn.bias_add(%x, %b, axis=-3)", 3), bias(after, 3))


def test_bias_along_the_last_axis_needs_no_more_dimensions() -> None:
    check_rewrite(CanonicalizeOps(), bias("nn.bias_add(%x, %b, axis=-1)", 5), bias("add(%x, %b)", 5))


def test_other_operators_stay() -> None:
    check_unchanged(CanonicalizeOps(), bias("add(%x, %b)", 5))


def test_a_bias_of_truth_values_stays() -> None:
    check_unchanged(CanonicalizeOps(), bias("nn.bias_add(%x, %b)", 3).replace("float32", "bool"))


def taps(image: str, attributes: str) -> str:
    return f"""def @main(%x: Tensor[{image}, float32]) {{
      nn.conv1d(%x, meta["w", Tensor[(2, 1, 3), float32]], {attributes})
    }}"""


WEIGHT = np.arange(6, dtype="float32").reshape(2, 1, 3)


@pytest.mark.parametrize(
    ("image", "attributes", "kept", "padding"),
    [
        ("(1, 1, 1)", "padding=[1, 1]", (1, 2), "[0, 0]"),
        ("(n, 1, 1)", "padding=[1, 1]", (1, 2), "[0, 0]"),
        ("(1, 1, 2)", "padding=[2, 2], strides=[4]", (2, 3), "[0, 2]"),  # one window, two taps before the image
        ("(1, 1, 1)", "padding=[0, 2]", (0, 1), "[0, 0]"),
        ("(1, 1, 2)", "padding=[2, 2], dilation=[2]", (1, 2), "[0, 0]"),
    ],
)
def test_taps_that_see_nothing_of_the_image_are_dropped(
    image: str, attributes: str, kept: tuple[int, int], padding: str
) -> None:
    begin, end = kept
    others = ", ".join(a for a in attributes.split(", ") if "padding" not in a and a[0].isalpha())
    after = f"""def @main(%x: Tensor[{image}, float32]) {{
      %w = strided_slice(meta["w", Tensor[(2, 1, 3), float32]], begin=[0, 0, {begin}], end=[2, 1, {end}],
                         strides=[1, 1, 1]);
      nn.conv1d(%x, %w, padding={padding}, kernel_size=[{end - begin}], {others})
    }}"""
    check_rewrite(drop_taps_in_padding, taps(image, attributes), after, constants={"w": WEIGHT})


@pytest.mark.parametrize(
    ("image", "attributes"),
    [
        ("(1, 1, n)", "padding=[1, 1]"),  # n may be 1
        ("(1, 1, 5)", "padding=[1, 1]"),
        ("(1, 1, 3)", "strides=[3]"),
        ("(1, 1, 5)", "padding=[3, 0], strides=[9]"),  # no tap sees it
        ("(1, 1, 2)", "padding=[1, 2], strides=[4], dilation=[2]"),  # the one that does begins inside of it
    ],
)
def test_taps_that_see_the_image_stay(image: str, attributes: str) -> None:
    check_unchanged(drop_taps_in_padding, taps(image, attributes), constants={"w": WEIGHT})


def test_an_image_whose_first_extent_is_open_keeps_its_taps() -> None:
    conv = 'nn.conv2d(%x, meta["w"], padding=[1, 1, 1, 1], data_layout="HWNC")'
    text = f"def @main(%x: Tensor[(rows, 1, 2, 3), float32]) {{ {conv} }}"
    check_unchanged(drop_taps_in_padding, text, constants={"w": np.ones((4, 3, 3, 1), "float32")})


def test_a_window_without_taps_stays() -> None:
    empty = {"w": np.ones((2, 1, 0), "float32")}
    text = taps("(1, 1, 5)", "padding=[1, 1]").replace("(2, 1, 3)", "(2, 1, 0)")
    check_unchanged(drop_taps_in_padding, text, constants=empty)


CAST = """
def @main(%x: Tensor[(1, 4, 8, 8), int8], %w: Tensor[(4, 4, 3, 3), int8],
          %a: Tensor[(4, 1, 1), TYPE], %b: Tensor[(4, 1, 1), TYPE]) {
  %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1], out_dtype="int8");
  BODY
}"""


def cast(body: str, dtype: str = "int32") -> str:
    return CAST.replace("BODY", body).replace("TYPE", dtype)


def test_each_user_gets_a_widening_cast_of_its_own() -> None:
    before = '%1 = cast(%0, dtype="int32"); (add(%1, %a), add(%1, %b))'
    after = '%1 = cast(%0, dtype="int32"); %2 = cast(%0, dtype="int32"); (add(%1, %a), add(%2, %b))'
    check_rewrite(CanonicalizeCast(), cast(before), cast(after))


def test_one_user_keeps_its_cast() -> None:
    check_unchanged(CanonicalizeCast(), cast('add(cast(%0, dtype="int32"), %a)'))


def test_a_narrowing_cast_is_shared() -> None:
    narrow = '%1 = cast(cast(%0, dtype="int32"), dtype="int8"); (add(%1, %a), add(%1, %b))'
    check_unchanged(CanonicalizeCast(), cast(narrow, "int8"))


def test_a_cast_of_the_same_width_is_shared() -> None:
    check_unchanged(CanonicalizeCast(), cast('%1 = cast(%0, dtype="uint8"); (add(%1, %a), add(%1, %b))', "uint8"))


def test_users_that_do_not_fuse_share_it() -> None:
    """A reduction and the function's result read the one tensor."""
    check_unchanged(CanonicalizeCast(), cast('%1 = cast(%0, dtype="int32"); (sum(%1), add(%1, %a), %1)'))
