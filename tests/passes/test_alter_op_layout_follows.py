"""What stands behind a convolution that AlterOpLayout moves to blocks follows, or gets its operands as they were."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest
from blocked import AVX2, BACK, CONV, SSE, W, alters, main, reasons
from rewriting import check_unchanged, random_array, run, stayed

from minitvm.ir.builder import call_op, const, function, nn, var
from minitvm.ir.decision import Declined, decisions
from minitvm.ir.expr import Call, Module
from minitvm.ir.op import OPS, Fusion, Op
from minitvm.ir.ops.nn_conv import Conv2d
from minitvm.ir.parser import parse_module
from minitvm.ir.relayout import Move, Placement, Site, calling
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import calls
from minitvm.passes.alter_op_layout import PROPOSALS, AlterOpLayout
from minitvm.passes.fuse_ops import FuseOps
from minitvm.passes.redundancy import FoldConstant
from minitvm.target import MachineModel


def test_alter_layout() -> None:
    """Bias, rectifier, pool and cast work on blocks; only the result comes back."""
    alters(
        """
        %1 = nn.bias_add(%0, %bias); %2 = nn.relu(%1);
        %3 = nn.max_pool2d(%2, pool_size=[2, 2], strides=[2, 2]);
        cast(%3, dtype="int32")
        """,
        f"""
        %1 = expand_dims(expand_dims(%bias, axis=0), axis=2, num_newaxis=2);
        %2 = nn.relu(add(%0, reshape(%1, newshape=[1, 2, 1, 1, 4])));
        %3 = nn.max_pool2d(%2, pool_size=[2, 2], strides=[2, 2], layout="NCHW4c");
        layout_transform(cast(%3, dtype="int32"), {BACK})
        """,
        "%bias: Tensor[(8,), float32]",
    )


def test_alter_layout_multi() -> None:
    alters(
        "nn.conv2d(%0, %w)",
        f"""
        %1 = nn.contrib_conv2d_NCHWc(%0, %b, data_layout="NCHW4c", kernel_layout="OIHW4i4o", out_layout="NCHW4c");
        layout_transform(%1, {BACK})
        """,
    )


def test_alter_layout_lrn() -> None:
    """Its window runs over the channels, so it gets them back."""
    alters("nn.lrn(nn.max_pool2d(%0))", f'nn.lrn(layout_transform(nn.max_pool2d(%0, layout="NCHW4c"), {BACK}))')


def test_alter_layout_dual_path() -> None:
    alters(
        """
        %1 = nn.relu(%0); %2 = nn.batch_flatten(%1);
        %3 = nn.conv2d(%1, %w);
        (%2, %3)
        """,
        f"""
        %1 = nn.relu(%0); %2 = nn.batch_flatten(layout_transform(%1, {BACK}));
        %3 = nn.contrib_conv2d_NCHWc(%1, %b, data_layout="NCHW4c", kernel_layout="OIHW4i4o", out_layout="NCHW4c");
        (%2, layout_transform(%3, {BACK}))
        """,
    )


def test_alter_layout_resnet() -> None:
    """The block's input moves once for both its users; between the convolutions nothing moves."""
    body = """
    %1 = nn.relu(%0); %2 = nn.conv2d(%1, %w, padding=[1, 1, 1, 1]); %3 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1]);
    %4 = add(%2, %3); nn.global_max_pool2d(add(%4, %x))
    """
    module = run(AlterOpLayout(SSE), main(CONV + body))
    moved = [str(call.op) for call in calls(module.main.body) if call.op.name in ("layout_transform", "reshape")]  # type: ignore[union-attr]
    assert len(moved) == 3 and "reshape" in moved[-1].lower(), moved


def test_moving_a_single_pixel_is_a_reshape() -> None:
    alters("nn.global_avg_pool2d(%0)", 'reshape(nn.global_avg_pool2d(%0, layout="NCHW4c"), newshape=[1, 8, 1, 1])')


def test_alter_layout_broadcast_op() -> None:
    alters(
        "multiply(%0, %s)",
        f"""
        %1 = reshape(expand_dims(%s, axis=0), newshape=[1, 2, 1, 1, 4]);
        layout_transform(multiply(%0, %1), {BACK})
        """,
        "%s: Tensor[(8, 1, 1), float32]",
    )


def test_alter_layout_broadcast_scalar_op() -> None:
    alters(
        "subtract(1f, maximum(%0, %s))",
        f"layout_transform(subtract(1f, maximum(%0, %s)), {BACK})",
        "%s: Tensor[(), float32]",
    )


def test_alter_layout_scalar_regression() -> None:
    """Without a convolution there is nothing to follow."""
    text = """
    def @main(%x: Tensor[(4, 8), float32]) {
      %0 = mean(%x, axis=[1], keepdims=True);
      subtract(%x, add(%0, 1f))
    }
    """
    check_unchanged(AlterOpLayout(SSE), text)


def test_alter_layout_blocked_broadcast() -> None:
    """Along an axis that is broadcast, the block is 1; a row along W keeps its place."""
    alters(
        "%1 = add(%row, %0); subtract(%1, %plane)",
        f"""
        %1 = reshape(expand_dims(%row, axis=0, num_newaxis=3), newshape=[1, 1, 1, 6, 1]);
        %2 = reshape(%plane, newshape=[1, 1, 6, 6, 1]);
        layout_transform(subtract(add(%1, %0), %2), {BACK})
        """,
        "%row: Tensor[(6,), float32]",
        "%plane: Tensor[(1, 1, 6, 6), float32]",
    )


def test_alter_layout_nonscalar_broadcast() -> None:
    """A moved operand of one channel does not lead; the whole one beside it does not follow."""
    text = "%1 = mean(%0, axis=[1], keepdims=True); add(%1, %x)"
    assert reasons(text) == ["add: no moved operand has the result's rank and channels"]


def test_alter_layout_blocked_no_broadcast() -> None:
    """An equal tensor from elsewhere follows."""
    alters(
        "add(%0, %y)",
        f'layout_transform(add(%0, layout_transform(%y, src_layout="NCHW", dst_layout="NCHW4c")), {BACK})',
        "%y: Tensor[(1, 8, 6, 6), float32]",
    )


def test_alter_layout_re_blocking_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two convolutions in blocks of different size: the second operand is re-blocked in one step."""
    module = parse_module(main("add(nn.conv2d(%x, %w), nn.conv2d(%x, %w))")).main
    sizes = iter((4, 8))

    def ask(site: Site, machine: MachineModel) -> Placement | Declined:
        n = next(sizes)
        layouts = {"data_layout": "NCHW4c", "kernel_layout": f"OIHW4i{n}o", "out_layout": f"NCHW{n}c"}
        op = OPS["nn.contrib_conv2d_NCHWc"](**{**site.op.attributes(), **layouts})
        moves = (Move.of("NCHW", "NCHW4c"), Move.of("OIHW", layouts["kernel_layout"]))
        return Placement(moves, Move.of("NCHW", f"NCHW{n}c"), calling(op))

    monkeypatch.setitem(PROPOSALS, ("llvm", Conv2d), ask)
    text = AlterOpLayout(AVX2)(module).astext()
    assert 'src_layout="NCHW8c", dst_layout="NCHW4c"' in text
    assert text.count("layout_transform") == 5


def test_broadcast_non_adaptable() -> None:
    """Against a tensor of higher rank the convolution's result comes back."""
    text = "add(%0, %y)"
    assert reasons(text, "%y: Tensor[(3, 1, 8, 6, 6), float32]") == [
        "add: no moved operand has the result's rank and channels"
    ]


def test_alter_layout_concatenate() -> None:
    alters(
        "concatenate((%0, %y), axis=-3)",
        f"""
        %1 = layout_transform(%y, src_layout="NCHW", dst_layout="NCHW4c");
        layout_transform(concatenate((%0, %1), axis=1), {BACK})
        """,
        "%y: Tensor[(1, 4, 6, 6), float32]",
    )


def test_concatenate_of_ragged_channels() -> None:
    more = "%y: Tensor[(1, 3, 6, 6), float32]"
    assert reasons("concatenate((%0, %y), axis=1)", more) == [
        "concatenate: blocks of NCHW4c do not divide every operand"
    ]


def test_alter_layout_nchw_upsampling_op() -> None:
    alters(
        "%1 = nn.upsampling(%0, scale_h=2, scale_w=2); image.resize2d(%1, size=[9, 9])",
        f"""
        %1 = nn.upsampling(%0, scale_h=2, scale_w=2, layout="NCHW4c");
        layout_transform(image.resize2d(%1, size=[9, 9], layout="NCHW4c"), {BACK})
        """,
    )


def test_alter_layout_strided_slice() -> None:
    """Whole blocks are cut in blocks; planes are cut with any stride."""
    alters(
        """
        %1 = strided_slice(%0, begin=[0, 4], end=[1, 8]);
        strided_slice(%1, begin=[1, 0], end=[6, 6], strides=[2, 3], axes=[2, 3])
        """,
        f"""
        %1 = strided_slice(%0, begin=[0, 1, 0, 0], end=[1, 2, 6, 6], strides=[1, 1, 1, 1], axes=[0, 1, 2, 3]);
        %2 = strided_slice(%1, begin=[0, 0, 1, 0], end=[1, 1, 6, 6], strides=[1, 1, 2, 3], axes=[0, 1, 2, 3]);
        layout_transform(%2, {BACK})
        """,
    )


def test_conv2d_strided_slice_packed_to_unpacked() -> None:
    cut = "strided_slice(%0, begin=[{}], end=[{}], strides=[{}], axes=[1])"
    inside = "strided_slice: a slice along C does not consist of whole blocks of 4"
    assert reasons(cut.format(2, 8, 1)) == [inside]
    assert reasons(cut.format(0, 7, 1)) == [inside]
    assert reasons(cut.format(0, 8, 2)) == [inside], "an arbitrary stride"


def test_a_slice_that_runs_backwards() -> None:
    assert reasons("strided_slice(%0, begin=[5], end=[-7], strides=[-1], axes=[3])") == [
        "strided_slice: a slice runs backwards"
    ]


def test_split() -> None:
    alters(
        "%1 = split(%0, indices_or_sections=2, axis=1); nn.relu(%1.1)",
        f"%1 = split(%0, indices_or_sections=2, axis=1); layout_transform(nn.relu(%1.1), {BACK})",
    )
    assert reasons("%1 = split(%0, indices_or_sections=[3], axis=1); nn.relu(%1.0)") == [
        "split: a cut along C falls inside a block of 4"
    ]


def test_a_tuple_from_blocks_comes_back_field_by_field() -> None:
    body = "%1 = split(%0, indices_or_sections=2, axis=1);"
    alters(f"{body} %1", f"{body} (layout_transform(%1.0, {BACK}), layout_transform(%1.1, {BACK}))")


def test_alter_layout_prelu() -> None:
    alters(
        "nn.prelu(%0, %slope)",
        f"""
        %1 = expand_dims(expand_dims(%slope, axis=0), axis=2, num_newaxis=2);
        %2 = multiply(%0, reshape(%1, newshape=[1, 2, 1, 1, 4]));
        layout_transform(where(less(%0, 0f), %2, %0), {BACK})
        """,
        "%slope: Tensor[(8,), float32]",
    )


def test_alter_layout_pad() -> None:
    alters(
        "nn.pad(%0, 0f, pad_width=[[0, 0], [0, 0], [1, 1], [2, 0]])",
        f"layout_transform(nn.pad(%0, 0f, pad_width=[[0, 0], [0, 0], [1, 1], [2, 0], [0, 0]]), {BACK})",
    )
    assert reasons("nn.pad(%0, 0f, pad_width=[[0, 0], [4, 4], [0, 0], [0, 0]])") == [
        "nn.pad: C is padded and split into blocks"
    ]


@pytest.mark.parametrize("pool", ["max_pool2d", "avg_pool2d"])
def test_alter_layout_pool(pool: str) -> None:
    call = f"nn.{pool}(%0, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1]"
    alters(call + ")", f'layout_transform({call}, layout="NCHW4c"), {BACK})')


def test_alter_layout_sum() -> None:
    alters("sum(%0, axis=[1], exclude=True)", "reshape(sum(%0, axis=[0, 2, 3]), newshape=[8])")


def test_conv2d_reduce_channels() -> None:
    """Both parts of the channels are reduced; nothing has to come back."""
    alters("max(%0, axis=[1])", "max(%0, axis=[1, 4])")


def test_alter_with_reduce() -> None:
    alters(
        "%1 = mean(%0, axis=[1, 2, 3], keepdims=True); subtract(%0, %1)",
        f"%1 = mean(%0, axis=[1, 2, 3, 4], keepdims=True); layout_transform(subtract(%0, %1), {BACK})",
    )


def test_variance_follows_with_its_mean() -> None:
    alters(
        "%1 = mean(%0, axis=[2, 3], keepdims=True); variance(%0, %1, axis=[2, 3])",
        "%1 = mean(%0, axis=[2, 3], keepdims=True); reshape(variance(%0, %1, axis=[2, 3]), newshape=[1, 8])",
    )


def test_axis_semantic_change() -> None:
    """Transposes vanish: the second convolution reads what the first wrote, the softmax gets it in one step."""
    alters(
        """
        %1 = transpose(%0, axes=[0, 2, 3, 1]); %2 = nn.relu(%1); %3 = transpose(%2, axes=[0, 3, 1, 2]);
        (nn.conv2d(%3, %w), nn.softmax(%2))
        """,
        f"""
        %2 = nn.relu(%0);
        %3 = nn.contrib_conv2d_NCHWc(%2, %b, data_layout="NCHW4c", kernel_layout="OIHW4i4o", out_layout="NCHW4c");
        (layout_transform(%3, {BACK}), nn.softmax(layout_transform(%2, src_layout="NCHW4c", dst_layout="NHWC")))
        """,
    )


@pytest.mark.parametrize(
    "body",
    [
        "nn.conv2d(%1, %w)",
        "nn.max_pool2d(%1, pool_size=[2, 1])",
        'layout_transform(%1, src_layout="NCHW", dst_layout="NHWC")',
        "add(%1, %0)",
        "concatenate((%1, %0), axis=1)",
    ],
)
def test_a_transposed_tensor_is_not_taken_for_what_it_was(body: str) -> None:
    """All four axes look alike from outside here: only the name of the layout tells them apart."""
    text = f"""
    def @main(%x: Tensor[(8, 8, 8, 8), float32], {W}) {{
      {CONV}
      %1 = transpose(%0, axes=[0, 2, 3, 1]);
      {body}
    }}
    """
    run(AlterOpLayout(SSE), text)


def test_batch_norm_needs_its_channels_on_one_axis() -> None:
    body = "%1 = nn.batch_norm(%0, %g, %g, %g, exp(%g)); nn.relu(%1.0)"
    assert reasons(body, "%g: Tensor[(8,), float32]") == ["nn.batch_norm: batch_norm needs its channels on one axis"]


def test_squeeze_of_channels_that_were_reduced() -> None:
    alters(
        "squeeze(mean(%0, axis=[1], keepdims=True), axis=[1])",
        "squeeze(mean(%0, axis=[1, 4], keepdims=True), axis=[1, 4])",
    )


def test_matmul_with_a_transposed_first_operand_is_not_packed() -> None:
    text = 'def @main(%x: Tensor[(5, 3), float32]) { nn.matmul(%x, meta["w"], transpose_a=True) }'
    with decisions() as log:
        check_unchanged(AlterOpLayout(SSE), text, constants={"w": random_array((5, 12))})
    assert stayed(log) == ["nn.matmul: its first operand comes transposed"]


def test_argmax_gets_its_axis_back() -> None:
    assert reasons("argmax(%0, axis=[1])") == ["argmax: argmax has no layout rule"]


def test_softmax() -> None:
    assert reasons("nn.softmax(%0, axis=3)") == []
    assert reasons("nn.softmax(%0, axis=1)") == ["nn.softmax: it runs over C, which is split"]


def test_squeeze_drops_the_planes() -> None:
    alters(
        "squeeze(nn.global_avg_pool2d(%0), axis=[2, 3])",
        'reshape(squeeze(nn.global_avg_pool2d(%0, layout="NCHW4c"), axis=[2, 3]), newshape=[1, 8])',
    )


def test_a_signal_goes_through_image_convolutions() -> None:
    """A convolution in one dimension, imported as one with height 1: squeeze and expand_dims keep the blocks."""
    alters(
        """
        %1 = nn.relu(squeeze(strided_slice(%0, begin=[0], end=[1], axes=[2]), axis=[2]));
        %2 = expand_dims(%1, axis=2);
        nn.conv2d(%2, %w, padding=[1, 1, 1, 1])
        """,
        f"""
        %1 = strided_slice(%0, begin=[0, 0, 0, 0], end=[1, 2, 1, 6], strides=[1, 1, 1, 1], axes=[0, 1, 2, 3]);
        %2 = expand_dims(nn.relu(squeeze(%1, axis=[2])), axis=2);
        %3 = nn.contrib_conv2d_NCHWc(%2, %b, padding=[1, 1, 1, 1],
                                     data_layout="NCHW4c", kernel_layout="OIHW4i4o", out_layout="NCHW4c");
        layout_transform(%3, {BACK})
        """,
    )


@pytest.mark.parametrize("axis", [0, 1, 2, 3, 4, -1])
def test_expand_dims_anywhere(axis: int) -> None:
    assert reasons(f"exp(expand_dims(%0, axis={axis}))") == []


def test_quantize() -> None:
    body = 'qnn.quantize(%0, {0}, {1}, out_dtype="int8", axis=1)'
    assert reasons(body.format("0.5f", "3")) == []
    vectors = ("const([1, 2, 3, 4, 5, 6, 7, 8], float32)", "const([0, 0, 0, 0, 1, 1, 1, 1], int32)")
    assert reasons(body.format(*vectors)) == ["qnn.quantize: its scales lie along C, which is split"]


def test_squeeze_and_excitation_stays_in_blocks() -> None:
    body = "%1 = sigmoid(nn.conv2d(nn.global_avg_pool2d(%0), %v)); multiply(%0, %1)"
    module = run(AlterOpLayout(SSE), main(CONV + body, "%v: Tensor[(8, 8, 1, 1), float32]"))
    assert module.astext().count("layout_transform") == 4, "the input, two weights, the result"


def test_not_inplace_modify() -> None:
    before = parse_module(main(CONV + "nn.relu(%0)"))
    text, hashes = before.astext(), [id(call) for call in calls(before.main.body)]
    AlterOpLayout(SSE)(before)
    assert before.astext() == text and [id(call) for call in calls(before.main.body)] == hashes


def test_fused_groups_are_left_alone() -> None:
    fused = FuseOps(2)(parse_module(main(CONV + "nn.relu(%0)")))
    assert AlterOpLayout(SSE)(fused) is fused


def test_weights_move_at_compile_time() -> None:
    weights = {"w": random_array((8, 8, 3, 3))}
    text = 'def @main(%x: Tensor[(1, 8, 6, 6), float32]) { nn.conv2d(%x, meta["w"]) }'
    folded = FoldConstant()(run(AlterOpLayout(SSE), text, weights))
    assert re.findall(r"= ([\w.]+)\(|^  ([\w.]+)\(", folded.astext(), re.M) == [
        ("layout_transform", ""),
        ("nn.contrib_conv2d_NCHWc", ""),
        ("", "layout_transform"),
    ]


def test_a_users_operator_follows_by_its_own_rule() -> None:
    @dataclass(frozen=True)
    class Mirror(Op):
        name = "test.mirror"
        fusion = Fusion.INJECTIVE

        def infer(self, x: TensorType) -> TensorType:
            return x

        def reference(self, x: np.ndarray) -> np.ndarray:
            return x[:, :, ::-1]

        def relayout(self, site: Site) -> Placement:
            return Placement((site.data,), site.data, calling(self))

    try:
        x, w = var("x", shape=(1, 8, 6, 6)), var("w", shape=(8, 8, 3, 3))
        body = nn.conv2d(Call(Mirror(), (nn.conv2d(x, w),)), w)
        text = AlterOpLayout(SSE)(function(body)).astext()
        assert text.count("layout_transform") == 3
    finally:
        del OPS["test.mirror"]


def test_origins_are_kept() -> None:
    x, w = var("x", shape=(1, 8, 6, 6)), var("w", shape=(8, 8, 3, 3))
    body = call_op("nn.relu", call_op("nn.conv2d", x, w, span=("conv_3",)), span=("relu_4",))
    after = AlterOpLayout(SSE)(function(body)).main
    assert [call.span for call in calls(after.body)] == [("conv_3",)] * 3 + [("relu_4",)] * 2


def test_branches_of_control_flow_are_altered_too() -> None:
    x, weight = var("x", shape=(1, 8, 6, 6)), const(random_array((8, 8, 3, 3), 3))
    inside = var("x", shape=(1, 8, 6, 6))
    then = function(call_op("nn.conv2d", inside, weight, padding=(1, 1)), [inside])
    other = function(call_op("nn.relu", inside), [inside])
    flag = var("flag", shape=(), dtype="bool")
    chosen = call_op("control.if", flag, x, then_branch=then, else_branch=other)
    altered = AlterOpLayout(SSE)(Module(function(chosen, [flag, x]))).main.body
    assert "nn.contrib_conv2d_NCHWc" in str(altered.op.then_branch)
