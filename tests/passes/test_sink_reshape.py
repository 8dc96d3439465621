"""SinkReshape: what follows a matrix product can be fused with it."""

import pytest

from minitvm.passes import SinkReshape
from minitvm.testing.checks import check_rewrite, check_unchanged

TEXT = """
def @main(%x: Tensor[(6, 4), float32], %w: Tensor[(8, 4), float32], %b: Tensor[(8,), float32],
          %r: Tensor[(2, 3, 8), float32], %row: Tensor[(2, 3, 1), float32], %mask: Tensor[(1, 1, 1, 5), float32],
          %p: Tensor[(6, 5, 4), float32], %q: Tensor[(6, 5, 4), float32], %y: Tensor[(6, 8), float32]) {
  %0 = nn.dense(%x, %w);
  BODY
}"""


def main(body: str) -> str:
    return TEXT.replace("BODY", body)


def test_bias_and_activation_come_before_the_reshape() -> None:
    before = "nn.relu(add(reshape(%0, newshape=[2, 3, 8]), %b))"
    check_rewrite(SinkReshape(), main(before), main("reshape(nn.relu(add(%0, %b)), newshape=[2, 3, 8])"))


def test_a_value_that_is_read_twice() -> None:
    """GELU reads its input twice; both readings sink, and meet."""
    before = "%1 = add(reshape(%0, newshape=[2, 3, 8]), %b); multiply(%1, add(1f, erf(divide(%1, 1.5f))))"
    after = "%1 = add(%0, %b); reshape(multiply(%1, add(1f, erf(divide(%1, 1.5f)))), newshape=[2, 3, 8])"
    check_rewrite(SinkReshape(), main(before), main(after))


def test_the_other_side_of_a_residual_is_reshaped_instead() -> None:
    before = "subtract(%r, reshape(%0, newshape=[2, 3, 8]))"
    after = "reshape(subtract(reshape(%r, newshape=[6, 8]), %0), newshape=[2, 3, 8])"
    check_rewrite(SinkReshape(), main(before), main(after))


def test_reshapes_that_meet_vanish() -> None:
    before = "reshape(nn.relu(reshape(%0, newshape=[2, 3, 8])), newshape=[6, 8])"
    check_rewrite(SinkReshape(), main(before), main("nn.relu(%0)"))


def test_a_mask_loses_its_leading_ones() -> None:
    before = "%1 = nn.batch_matmul(%p, %q); add(reshape(%1, newshape=[2, 3, 5, 5]), %mask)"
    after = "%1 = nn.batch_matmul(%p, %q); reshape(add(%1, reshape(%mask, newshape=[1, 5])), newshape=[2, 3, 5, 5])"
    check_rewrite(SinkReshape(), main(before), main(after))


@pytest.mark.parametrize(
    "body",
    [
        "add(reshape(%0, newshape=[2, 3, 8]), %row)",  # varies along what the reshape split
        "add(reshape(%0, newshape=[2, 3, 8]), zeros(shape=[4, 2, 3, 8]))",  # gives the result its shape
        "nn.relu(reshape(%y, newshape=[2, 3, 8]))",  # no product
        "nn.softmax(reshape(%0, newshape=[2, 3, 8]))",  # not element by element
        "nn.bias_add(reshape(%0, newshape=[2, 8, 3]), %b)",
        "nn.relu(reshape(nn.softmax(%0), newshape=[2, 3, 8]))",  # no product that a kernel could go on with
        "nn.relu(reshape(nn.softmax(%y), newshape=[2, 3, 8]))",
        "add(reshape(nn.softmax(%y), newshape=[2, 3, 8]), %b)",
    ],
)
def test_what_stays(body: str) -> None:
    check_unchanged(SinkReshape(), main(body))


@pytest.mark.parametrize("body", ["nn.relu(%1)", "add(%1, %r)"])
def test_rows_that_only_a_run_counts_stay(body: str) -> None:
    given = "%x: Tensor[(?, 4), float32], %w: Tensor[(8, 4), float32], %r: Tensor[(8,), float32]"
    text = f"def @main({given}) {{ %0 = nn.dense(%x, %w); %1 = reshape(%0, newshape=[-1, 2, 4, 1, 8]); {body} }}"
    check_unchanged(SinkReshape(), text)
