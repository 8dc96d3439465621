"""CombineParallelConv2D, -Dense and -BatchMatmul, after Relay's tests of the same names.

Left out: ``expand_dims`` and ``reshape`` behind a branch are not followed (Relay searches the axis to slice by its
extent, which is wrong where two extents are equal); here the slices come before them.
"""

from __future__ import annotations

import numpy as np
import pytest

from minitvm.errors import ConfigError
from minitvm.ir import builder as ir
from minitvm.ir.dims import assumptions
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Expr, Function, Module, Tuple
from minitvm.ir.op import Op
from minitvm.ir.ops.nn_dense import Dense
from minitvm.ir.ops.quantize_blocks import DequantizeBlocks
from minitvm.ir.ops.slicing import Concatenate
from minitvm.ir.visitor import calls
from minitvm.passes import CombineParallelBatchMatmul, CombineParallelConv2D, CombineParallelDense
from minitvm.passes.sink_cast import is_cast_of_weights
from minitvm.testing.checks import check_rewrite, check_unchanged, run_opt_pass


def names(module: object) -> list[str]:
    return [c.op.name for c in calls(module.main.body) if isinstance(c.op, Op)]  # type: ignore[attr-defined]


def part(value: str, start: int, size: int, axis: int = 1) -> str:
    return f'strided_slice({value}, begin=[{start}], end=[{size}], axes=[{axis}], slice_mode="size")'


# --- convolutions -------------------------------------------------------------------------------------------------

CONV = """
def @main(%x: Tensor[(1, 4, 6, 6), float32], %w1: Tensor[(2, 4, 1, 1), float32], %w2: Tensor[(3, 4, 1, 1), float32],
          %w3: Tensor[(4, 4, 3, 3), float32], %w4: Tensor[(5, 4, 1, 1), float32], %v: Tensor[(2, 4, 1, 1), float32],
          %s1: Tensor[(2, 1, 1), float32], %s2: Tensor[(3, 1, 1), float32], %s4: Tensor[(5, 1, 1), float32],
          %b1: Tensor[(2,), float32], %b2: Tensor[(3,), float32], %t: Tensor[(1,), float32],
          %u: Tensor[(1, 4, 1, 1), float32],
          %image: Tensor[(6, 6), float32], %rows: Tensor[(6,), float32], %deep: Tensor[(2, 1, 1, 6, 6), float32],
          %open: Tensor[(n, 1, 1), float32]) {
  BODY
}"""


def conv(body: str) -> str:
    return CONV.replace("BODY", body)


def test_convolutions_of_one_input_become_one() -> None:
    """A 3x3 among them, and a pooling, stay."""
    before = """
    %1 = nn.conv2d(%x, %w1);
    %2 = nn.conv2d(%x, %w2);
    %3 = nn.conv2d(%x, %w3, padding=[1, 1, 1, 1]);
    %4 = nn.conv2d(%x, %w4);
    %5 = nn.max_pool2d(%x);
    (%1, %2, %3, %4, %5)"""
    after = f"""
    %0 = nn.conv2d(%x, concatenate((%w1, %w2, %w4)));
    %3 = nn.conv2d(%x, %w3, padding=[1, 1, 1, 1]);
    ({part("%0", 0, 2)}, {part("%0", 2, 3)}, %3, {part("%0", 5, 5)}, nn.max_pool2d(%x))"""
    check_rewrite(CombineParallelConv2D(min_num_branches=2), conv(before), conv(after))
    check_rewrite(CombineParallelConv2D(min_num_branches=3), conv(before), conv(after))
    check_unchanged(CombineParallelConv2D(min_num_branches=4), conv(before))


def test_channels_attribute_is_the_sum() -> None:
    before = "(nn.conv2d(%x, %w1, channels=2), nn.conv2d(%x, %v, channels=2))"
    after = f"%0 = nn.conv2d(%x, concatenate((%w1, %v)), channels=4); ({part('%0', 0, 2)}, {part('%0', 2, 2)})"
    check_rewrite(CombineParallelConv2D(2), conv(before), conv(after))


def test_scale_and_relu_follow() -> None:
    before = """
    %1 = nn.relu(multiply(nn.conv2d(%x, %w1), %s1));
    %2 = nn.relu(multiply(nn.conv2d(%x, %w2), %s2));
    (%1, add(%2, 1f))"""
    after = f"""
    %0 = nn.conv2d(%x, concatenate((%w1, %w2)));
    %1 = nn.relu(multiply(%0, concatenate((%s1, %s2))));
    ({part("%1", 0, 2)}, add({part("%1", 2, 3)}, 1f))"""
    check_rewrite(CombineParallelConv2D(2), conv(before), conv(after))


def test_bias_add_and_equal_scalars_follow() -> None:
    before = """
    (multiply(2f, nn.bias_add(nn.conv2d(%x, %w1), %b1)), multiply(2f, nn.bias_add(nn.conv2d(%x, %w2), %b2)))"""
    after = f"""
    %0 = nn.conv2d(%x, concatenate((%w1, %w2)));
    %1 = multiply(2f, nn.bias_add(%0, concatenate((%b1, %b2))));
    ({part("%1", 0, 2)}, {part("%1", 2, 3)})"""
    check_rewrite(CombineParallelConv2D(2), conv(before), conv(after))


def test_one_bias_of_one_element_is_one_for_each_branch() -> None:
    before = "(nn.bias_add(nn.conv2d(%x, %u), %t), nn.bias_add(nn.conv2d(%x, %u), %t))"
    after = f"""
    %1 = nn.bias_add(nn.conv2d(%x, concatenate((%u, %u))), concatenate((%t, %t)));
    ({part("%1", 0, 1)}, {part("%1", 1, 1)})"""
    check_rewrite(CombineParallelConv2D(2), conv(before), conv(after))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("multiply(%1, %s1)", "multiply(%2, %t)"),  # one scale is a scalar in effect
        ("multiply(%1, %s1)", "add(%2, %s2)"),
        ("multiply(%1, 2f)", "multiply(%2, 3f)"),
        ("subtract(%1, %s1)", "subtract(%s2, %2)"),
        ("clip(%1, a_min=0, a_max=1)", "clip(%2, a_min=0, a_max=6)"),
        ("add(%1, %1)", "add(%2, %2)"),
        ("nn.softmax(%1)", "nn.softmax(%2)"),
        ("nn.bias_add(%1, %rows, axis=2)", "nn.bias_add(%2, %rows, axis=2)"),  # no bias of channels
        ("multiply(%1, %deep)", "multiply(%2, %deep)"),  # a result of more dimensions
        ("multiply(%1, %open)", "multiply(%2, %open)"),  # which may have channels
    ],
)
def test_followers_that_differ_come_after_the_slices(first: str, second: str) -> None:
    before = f"%1 = nn.conv2d(%x, %w1); %2 = nn.conv2d(%x, %w2); ({first}, {second})"
    after = f"""
    %0 = nn.conv2d(%x, concatenate((%w1, %w2)));
    %1 = {part("%0", 0, 2)};
    %2 = {part("%0", 2, 3)};
    ({first}, {second})"""
    check_rewrite(CombineParallelConv2D(2), conv(before), conv(after))


def test_an_operand_that_all_share_follows_if_it_has_no_channels() -> None:
    before = "(multiply(nn.conv2d(%x, %w1), %image), multiply(nn.conv2d(%x, %w2), %image))"
    after = f"""
    %0 = multiply(nn.conv2d(%x, concatenate((%w1, %w2))), %image);
    ({part("%0", 0, 2)}, {part("%0", 2, 3)})"""
    check_rewrite(CombineParallelConv2D(2), conv(before), conv(after))


def test_a_branch_that_is_read_twice_ends_there() -> None:
    before = "%1 = nn.conv2d(%x, %w1); (%1, nn.relu(%1), nn.relu(nn.conv2d(%x, %w2)))"
    after = f"""
    %0 = nn.conv2d(%x, concatenate((%w1, %w2)));
    %1 = {part("%0", 0, 2)};
    (%1, nn.relu(%1), nn.relu({part("%0", 2, 3)}))"""
    check_rewrite(CombineParallelConv2D(2), conv(before), conv(after))


def test_branches_that_meet_are_not_their_own_operands() -> None:
    """``add(conv1, conv2)`` follows both: combining it with itself would be a cycle."""
    before = "%1 = nn.conv2d(%x, %w1); %2 = nn.conv2d(%x, %v); add(%1, %2)"
    after = f"""
    %0 = nn.conv2d(%x, concatenate((%w1, %v)));
    add({part("%0", 0, 2)}, {part("%0", 2, 2)})"""
    check_rewrite(CombineParallelConv2D(2), conv(before), conv(after))


def test_what_two_groups_meet_in_follows_neither() -> None:
    before = """
    %y = nn.relu(%x);
    (add(nn.conv2d(%x, %w1), nn.conv2d(%y, %w1)), add(nn.conv2d(%x, %v), nn.conv2d(%y, %v)))"""
    after = f"""
    %0 = nn.conv2d(%x, concatenate((%w1, %v)));
    %1 = nn.conv2d(nn.relu(%x), concatenate((%w1, %v)));
    (add({part("%0", 0, 2)}, {part("%1", 0, 2)}), add({part("%0", 2, 2)}, {part("%1", 2, 2)}))"""
    check_rewrite(CombineParallelConv2D(2), conv(before), conv(after))


def test_weights_made_of_a_branch_do_not_combine() -> None:
    """The second convolution's weights are computed from the first one's result."""
    body = "%1 = nn.conv2d(%x, %w1); %2 = reshape(mean(%1, axis=[2, 3]), newshape=[2, 1, 1, 1]);"
    check_unchanged(CombineParallelConv2D(2), conv(body + "(%1, nn.conv2d(%x, add(%v, %2)))"))


def test_a_call_of_a_function_does_not_follow() -> None:
    before = (
        "%g = fn(%p: Tensor[(1, 2, 6, 6), float32]) { nn.relu(%p) }; (%g(nn.conv2d(%x, %w1)), %g(nn.conv2d(%x, %v)))"
    )
    after = f"""
    %0 = nn.conv2d(%x, concatenate((%w1, %v)));
    %g = fn(%p: Tensor[(1, 2, 6, 6), float32]) {{ nn.relu(%p) }};
    (%g({part("%0", 0, 2)}), %g({part("%0", 2, 2)}))"""
    check_rewrite(CombineParallelConv2D(2), conv(before), conv(after))


def test_equal_constants_with_an_element_for_each_channel_are_no_scalars() -> None:
    scale = "const([[[1]], [[2]]], float32)"
    before = f"(multiply(nn.conv2d(%x, %w1), {scale}), multiply(nn.conv2d(%x, %v), {scale}))"
    after = f"""
    %0 = multiply(nn.conv2d(%x, concatenate((%w1, %v))), concatenate(({scale}, {scale})));
    ({part("%0", 0, 2)}, {part("%0", 2, 2)})"""
    check_rewrite(CombineParallelConv2D(2), conv(before), conv(after))


@pytest.mark.parametrize(
    ("data", "weight", "layouts"),
    [
        ("(?, 4, 6, 6)", "(2, 4, 1, 1)", ""),
        ("(1, 2, 6, 6, 2)", "(1, 2, 1, 1, 2, 2)", 'data_layout="NCHW2c", kernel_layout="OIHW2i2o"'),
        ("(1, 2, 6, 6, 2)", "(2, 4, 1, 1)", 'data_layout="NCHW2c", kernel_layout="OIHW"'),
        ("(1, 4, 6, 6)", "(1, 4, 1, 1, 2)", 'kernel_layout="OIHW2o"'),
    ],
)
def test_open_and_blocked_images_do_not_combine(data: str, weight: str, layouts: str) -> None:
    types = f"%x: Tensor[{data}, float32], %w: Tensor[{weight}, float32], %v: Tensor[{weight}, float32]"
    check_unchanged(
        CombineParallelConv2D(2),
        f"def @main({types}) {{ (nn.conv2d(%x, %w, {layouts}), nn.conv2d(%x, %v, {layouts})) }}",
    )


@pytest.mark.parametrize("attributes", ["strides=[2, 2]", "padding=[1, 1, 1, 1]", 'out_dtype="float64"'])
def test_other_attributes_do_not_combine(attributes: str) -> None:
    check_unchanged(CombineParallelConv2D(2), conv(f"(nn.conv2d(%x, %w1), nn.conv2d(%x, %w2, {attributes}))"))


def test_other_inputs_and_groups_do_not_combine() -> None:
    check_unchanged(CombineParallelConv2D(2), conv("(nn.conv2d(%x, %w1), nn.conv2d(nn.relu(%x), %w2))"))
    grouped = conv("(nn.conv2d(%x, %w1, groups=2), nn.conv2d(%x, %v, groups=2))").replace(
        "(2, 4, 1, 1)", "(2, 2, 1, 1)"
    )
    check_unchanged(CombineParallelConv2D(2), grouped)


def test_channels_last() -> None:
    head = """def @main(%x: Tensor[(1, 6, 6, 4), float32], %w1: Tensor[(1, 1, 4, 2), float32],
                        %w2: Tensor[(1, 1, 4, 3), float32], %s1: Tensor[(2,), float32], %s2: Tensor[(3,), float32])"""
    layout = 'data_layout="NHWC", kernel_layout="HWIO"'
    before = f"{head} {{ (add(nn.conv2d(%x, %w1, {layout}), %s1), add(nn.conv2d(%x, %w2, {layout}), %s2)) }}"
    after = f"""{head} {{
      %0 = add(nn.conv2d(%x, concatenate((%w1, %w2), axis=3), {layout}), concatenate((%s1, %s2)));
      ({part("%0", 0, 2, 3)}, {part("%0", 2, 3, 3)})
    }}"""
    check_rewrite(CombineParallelConv2D(2), before, after)


def test_several_blocks_in_a_row() -> None:
    """Each block's input is made of the block before: every group is found and none is lost."""
    weights = ", ".join(f"%{name}: Tensor[(2, 4, 1, 1), float32]" for name in "wv")
    block = "concatenate((nn.relu(nn.conv2d(%{n}, %w)), nn.relu(nn.conv2d(%{n}, %v))), axis=1)"
    body = "".join(f"%{n + 1} = {block.replace('{n}', str(n))};" for n in range(4))
    text = f"def @main(%x: Tensor[(1, 4, 6, 6), float32], {weights}) {{ %0 = nn.relu(%x); {body} %4 }}"
    found = run_opt_pass(text, CombineParallelConv2D(2))
    assert names(found).count("nn.conv2d") == 4
    check_rewrite(CombineParallelConv2D(2), text, found)


def test_least_number_of_branches() -> None:
    with pytest.raises(ConfigError) as error:
        CombineParallelConv2D(1)
    assert error.value.message == "min_num_branches is 1"


# --- dense layers -------------------------------------------------------------------------------------------------

DENSE = """
def @main(%x: Tensor[(5, 4), float32], %w1: Tensor[(3, 4), float32], %w2: Tensor[(3, 4), float32],
          %w3: Tensor[(5, 4), float32], %b1: Tensor[(3,), float32], %b2: Tensor[(3,), float32],
          %b3: Tensor[(5,), float32], %s: Tensor[(1,), float32], %r: Tensor[(5, 3), float32]) {
  BODY
}"""


def dense(body: str) -> str:
    return DENSE.replace("BODY", body)


def test_dense_layers_become_a_batch() -> None:
    before = "(nn.dense(%x, %w1), nn.dense(%x, %w2), nn.dense(%x, %w3))"
    after = """
    %0 = nn.batch_matmul(expand_dims(%x, axis=0), stack((%w1, %w2)));
    %1 = split(%0, indices_or_sections=2);
    (squeeze(%1.0, axis=[0]), squeeze(%1.1, axis=[0]), nn.dense(%x, %w3))"""
    check_rewrite(CombineParallelDense(2), dense(before), dense(after))
    check_unchanged(CombineParallelDense(3), dense(before))


def test_biases_and_matrices_follow_into_the_batch() -> None:
    before = """
    %1 = multiply(nn.bias_add(nn.dense(%x, %w1), %b1), %r);
    %2 = multiply(nn.bias_add(nn.dense(%x, %w2), %b2), %r);
    (nn.relu(%1), nn.relu(%2))"""
    after = """
    %0 = nn.batch_matmul(expand_dims(%x, axis=0), stack((%w1, %w2)));
    %1 = add(%0, stack((expand_dims(%b1, axis=0), expand_dims(%b2, axis=0))));
    %2 = split(nn.relu(multiply(%1, stack((%r, %r)))), indices_or_sections=2);
    (squeeze(%2.0, axis=[0]), squeeze(%2.1, axis=[0]))"""
    check_rewrite(CombineParallelDense(2), dense(before), dense(after))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("nn.bias_add(%1, %b3, axis=0)", "nn.bias_add(%2, %b3, axis=0)"),  # one for each row
        ("multiply(%1, %r)", "multiply(%2, %s)"),
    ],
)
def test_operands_that_cannot_be_stacked_come_after_the_split(first: str, second: str) -> None:
    before = f"%1 = nn.dense(%x, %w1); %2 = nn.dense(%x, %w2); ({first}, {second})"
    after = f"""
    %0 = split(nn.batch_matmul(expand_dims(%x, axis=0), stack((%w1, %w2))), indices_or_sections=2);
    %1 = squeeze(%0.0, axis=[0]);
    %2 = squeeze(%0.1, axis=[0]);
    ({first}, {second})"""
    check_rewrite(CombineParallelDense(2), dense(before), dense(after))


@pytest.mark.parametrize("step", [CombineParallelDense(2), CombineParallelDense(2, to_batch=False)])
def test_layers_of_open_rows_do_not_combine(step: CombineParallelDense) -> None:
    check_unchanged(step, dense("(nn.dense(%x, %w1), nn.dense(%x, %w2))").replace("(5, 4)", "(n, 4)", 1))


def test_layers_of_rows_that_are_counted_on_combine() -> None:
    body = "(multiply(nn.dense(%x, %w1), 2f), multiply(nn.dense(%x, %w3), 2f))"
    with assumptions():
        found = run_opt_pass(dense(body).replace("(5, 4)", "(n, 4)", 1), CombineParallelDense(2, to_batch=False))
    assert names(found) == ["concatenate", "nn.dense", "multiply", "strided_slice", "strided_slice"]


def test_dense_layers_become_one_wider_layer() -> None:
    before = "(nn.dense(%x, %w1), nn.dense(%x, %w3), nn.dense(%x, %w2, units=3))"
    after = f"""
    %0 = nn.dense(%x, concatenate((%w1, %w3, %w2)));
    ({part("%0", 0, 3)}, {part("%0", 3, 5)}, {part("%0", 8, 3)})"""
    check_rewrite(CombineParallelDense(3, to_batch=False), dense(before), dense(after))


def test_flat_slices_are_along_the_units_though_the_rows_are_as_many() -> None:
    """Five rows and five units: the axis is known, not searched by its extent."""
    before = "(nn.bias_add(nn.dense(%x, %w3), %b3), nn.bias_add(nn.dense(%x, %w1), %b1))"
    after = f"""
    %0 = nn.bias_add(nn.dense(%x, concatenate((%w3, %w1))), concatenate((%b3, %b1)));
    ({part("%0", 0, 5)}, {part("%0", 5, 3)})"""
    check_rewrite(CombineParallelDense(2, to_batch=False), dense(before), dense(after))


def test_flat_scalars_are_repeated() -> None:
    before = "(multiply(nn.dense(%x, %w1), %s), multiply(nn.dense(%x, %w3), 2f))"
    after = f"""
    %0 = concatenate((repeat(%s, repeats=3), repeat(expand_dims(2f, axis=0), repeats=5)));
    %1 = multiply(nn.dense(%x, concatenate((%w1, %w3))), %0);
    ({part("%1", 0, 3)}, {part("%1", 3, 5)})"""
    check_rewrite(CombineParallelDense(2, to_batch=False), dense(before), dense(after))


@pytest.mark.parametrize("to_batch", [True, False])
def test_reshapes_behind_a_layer_come_after_the_slices(to_batch: bool) -> None:
    before = dense("(reshape(nn.dense(%x, %w1), newshape=[15]), expand_dims(nn.dense(%x, %w2), axis=2))")
    found = run_opt_pass(before, CombineParallelDense(2, to_batch=to_batch))
    assert names(found)[-2:] in (["squeeze", "expand_dims"], ["strided_slice", "expand_dims"])
    check_rewrite(CombineParallelDense(2, to_batch=to_batch), before, found)


# --- batched products ---------------------------------------------------------------------------------------------

BATCH = """
def @main(%x: Tensor[(2, 3, 4), float32], %a: Tensor[(2, 5, 4), float32], %b: Tensor[(2, 6, 4), float32],
          %c: Tensor[(1, 6, 4), float32], %t: Tensor[(2, 4, 5), float32],
          %p: Tensor[(5,), float32], %q: Tensor[(6,), float32]) {
  BODY
}"""


def batch(body: str) -> str:
    return BATCH.replace("BODY", body)


def test_batched_products_combine_along_the_columns() -> None:
    before = "(nn.batch_matmul(%x, %a), nn.batch_matmul(%x, %b))"
    after = f"""
    %0 = nn.batch_matmul(%x, concatenate((%a, %b), axis=1));
    ({part("%0", 0, 5, 2)}, {part("%0", 5, 6, 2)})"""
    check_rewrite(CombineParallelBatchMatmul(2), batch(before), batch(after))


def test_bias_follows_a_batched_product() -> None:
    before = "(nn.relu(add(nn.batch_matmul(%x, %a), %p)), nn.relu(add(nn.batch_matmul(%x, %b), %q)))"
    after = f"""
    %0 = nn.relu(add(nn.batch_matmul(%x, concatenate((%a, %b), axis=1)), concatenate((%p, %q))));
    ({part("%0", 0, 5, 2)}, {part("%0", 5, 6, 2)})"""
    check_rewrite(CombineParallelBatchMatmul(2), batch(before), batch(after))


@pytest.mark.parametrize(
    ("attributes", "x", "w"),
    [
        ("transpose_b=False", "(2, 3, 4)", "(2, 4, 5)"),
        ("transpose_a=True", "(2, 4, 3)", "(2, 5, 4)"),
        ("", "(n, 3, 4)", "(n, 5, 4)"),
    ],
)
def test_products_of_other_forms_do_not_combine(attributes: str, x: str, w: str) -> None:
    types = f"%x: Tensor[{x}, float32], %a: Tensor[{w}, float32], %b: Tensor[{w}, float32]"
    body = f"(nn.batch_matmul(%x, %a, {attributes}), nn.batch_matmul(%x, %b, {attributes}))"
    check_unchanged(CombineParallelBatchMatmul(2), f"def @main({types}) {{ {body} }}")


@pytest.mark.parametrize("second", ["nn.batch_matmul(%x, %c)", "nn.batch_matmul(%x, %t, transpose_b=False)"])
def test_other_batches_and_orientations_do_not_combine(second: str) -> None:
    check_unchanged(CombineParallelBatchMatmul(2), batch(f"(nn.batch_matmul(%x, %a), {second})"))


def test_followers_of_batched_products_are_checked() -> None:
    """Relay combines whatever follows; here operands that do not fit end the branch."""
    before = "(add(nn.batch_matmul(%x, %a), 1f), add(nn.batch_matmul(%x, %b), %q))"
    after = f"""
    %0 = nn.batch_matmul(%x, concatenate((%a, %b), axis=1));
    (add({part("%0", 0, 5, 2)}, 1f), add({part("%0", 5, 6, 2)}, %q))"""
    check_rewrite(CombineParallelBatchMatmul(2), batch(before), batch(after))


# --- weights that stay as small as they are stored ----------------------------------------------------------------


def test_weights_in_blocks_are_put_side_by_side_as_they_are_stored() -> None:
    """Of three layers by weights of 4 bits, one with zero points of its own, whatever moves them."""
    rng = np.random.default_rng(0)

    def layer(x: Expr, units: int, zero: int | None = None) -> Expr:
        data = ir.const(rng.integers(0, 256, (256, units), "uint8"))
        scale = ir.const(rng.uniform(0.1, 1, (units, 16)).astype("float32"))
        point = ir.const(np.uint8(8) if zero is None else np.full((units, 16), zero, "uint8"))
        moved = ir.call_op("transpose", data, axes=(1, 0))
        return ir.call_op("nn.dense", x, ir.call_op("qnn.dequantize_blocks", moved, scale, point, block=32, bits=4))

    def combined(*zeros: int | None) -> Call:
        x = ir.var("x", shape=(1, 512), dtype="float32")
        body = Tuple(tuple(layer(x, 160 + 16 * k, zero) for k, zero in enumerate(zeros)))
        module = Module(Function((x,), body))
        found = CombineParallelDense(3, to_batch=False)(module)
        data = rng.normal(size=(1, 512)).astype("float32")
        for ours, plain in zip(evaluate(found.main, data), evaluate(module.main, data), strict=True):
            np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-3)
        (product,) = [call for call in calls(found.main.body) if isinstance(call.op, Dense)]
        assert isinstance(product.args[1], Call)
        return product.args[1]

    for alike in ((None, None, None), (3, 4, 5)):
        weights = combined(*alike)
        assert isinstance(weights.op, DequantizeBlocks)
        assert is_cast_of_weights(weights)
    assert isinstance(combined(None, 3, 4).op, Concatenate)
