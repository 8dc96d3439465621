"""AlterOpLayout on a machine with vectors of 4 floats.  The cases are Relay's (test_pass_alter_op_layout).

Left out: ..._nchw_dyn_upsamping_op and dense_packed_data (operators that do not exist here), nhwc_arm and
nhwc_int8_aarch64 (what NHWC convolutions ask for on ARM), alter_op_with_global_var and alter_with_subfunc (calls of
global functions and closures, which the graph does not have; fused groups are left alone, which is tested).
"""

from __future__ import annotations

import numpy as np
import pytest
from blocked import AVX2, AVX512, BACK, SSE, WEIGHING, main
from rewriting import check_rewrite, check_unchanged, random_array, run, stayed

from minitvm.codegen.cuda.machine import gpu_model
from minitvm.ir.builder import call_op
from minitvm.ir.decision import Declined, decisions
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call
from minitvm.ir.ops.nn_conv import Conv2d
from minitvm.ir.parser import parse_module
from minitvm.ir.relayout import Placement, Site
from minitvm.ir.visitor import calls
from minitvm.passes.alter_op_layout import PROPOSALS, AlterOpLayout, block
from minitvm.target import MachineModel


def test_alter_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proposal may replace the operator and leave the layouts."""

    def twice(site: Site, machine: MachineModel) -> Placement | Declined:
        def build(args: object) -> Call:
            x, w = args  # type: ignore[misc]
            return Call(site.op, (x, call_op("multiply", w, 2.0)))

        return Placement((None, None), None, build)

    monkeypatch.setitem(PROPOSALS, ("llvm", Conv2d), twice)
    after = AlterOpLayout(SSE)(parse_module(main("nn.conv2d(%x, %w)")))
    assert after.astext() == parse_module(main("nn.conv2d(%x, multiply(%w, 2f))")).astext()


def test_alter_return_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def no(site: Site, machine: MachineModel) -> Placement | Declined:
        return Declined("not today")

    monkeypatch.setitem(PROPOSALS, ("llvm", Conv2d), no)
    before = parse_module(main("nn.conv2d(%x, %w)"))
    assert AlterOpLayout(SSE)(before) is before


@pytest.mark.parametrize(("machine", "lanes"), [(SSE, 4), (AVX2, 8), (AVX512, 16)])
def test_block_is_the_machines_vector(machine: MachineModel, lanes: int) -> None:
    text = """
    def @main(%x: Tensor[(1, 32, 5, 5), float32], %w: Tensor[(48, 32, 1, 1), float32]) {
      nn.relu(nn.conv2d(%x, %w))
    }
    """
    module = run(AlterOpLayout(machine), text)
    (conv,) = (call.op for call in calls(module.main.body) if call.op.name == "nn.contrib_conv2d_NCHWc")  # type: ignore[union-attr]
    assert (conv.data_layout, conv.kernel_layout, conv.out_layout) == (  # type: ignore[union-attr]
        f"NCHW{lanes}c",
        f"OIHW{lanes}i{lanes}o",
        f"NCHW{lanes}c",
    )


def test_block_sizes() -> None:
    assert [block(n, 8) for n in (64, 24, 12, 10, 21, 3)] == [8, 8, 4, None, None, None]
    assert [block(n, 16) for n in (64, 24, 12, 10)] == [16, 8, 4, None]
    assert [block(n, 4) for n in (64, 6, 3)] == [4, None, None]


def test_image_channels_stay_plain() -> None:
    text = "def @main(%x: Tensor[(1, 3, 6, 6), float32], %w: Tensor[(8, 3, 3, 3), float32]) {{ {} }}"
    after = f"""
    %0 = layout_transform(%w, src_layout="OIHW", dst_layout="OIHW3i4o");
    %1 = nn.contrib_conv2d_NCHWc(%x, %0, data_layout="NCHW", kernel_layout="OIHW3i4o", out_layout="NCHW4c");
    layout_transform(%1, {BACK})
    """
    check_rewrite(AlterOpLayout(SSE), text.format("nn.conv2d(%x, %w)"), text.format(after))


def test_alter_layout_depthwise_conv2d() -> None:
    text = "def @main(%x: Tensor[(1, 8, 6, 6), float32], %w: Tensor[(8, 1, 3, 3), float32]) {{ {} }}"
    before = "%0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1], groups=8); clip(%0, a_min=0, a_max=6)"
    after = f"""
    %0 = layout_transform(%x, src_layout="NCHW", dst_layout="NCHW4c");
    %1 = layout_transform(%w, src_layout="OIHW", dst_layout="OIHW1i4o");
    %2 = nn.contrib_depthwise_conv2d_NCHWc(%0, %1, padding=[1, 1, 1, 1], groups=8,
                                           data_layout="NCHW4c", kernel_layout="OIHW1i4o", out_layout="NCHW4c");
    %3 = clip(%2, a_min=0, a_max=6);
    layout_transform(%3, {BACK})
    """
    check_rewrite(AlterOpLayout(SSE), text.format(before), text.format(after))


def test_groups_of_whole_blocks_are_blocked() -> None:
    text = "def @main(%x: Tensor[(1, 8, 6, 6), float32], %w: Tensor[(16, 4, 3, 3), float32]) {{ {} }}"
    after = f"""
    %0 = layout_transform(%x, src_layout="NCHW", dst_layout="NCHW4c");
    %1 = layout_transform(%w, src_layout="OIHW", dst_layout="OIHW4i4o");
    %2 = nn.contrib_conv2d_NCHWc(%0, %1, groups=2,
                                 data_layout="NCHW4c", kernel_layout="OIHW4i4o", out_layout="NCHW4c");
    layout_transform(%2, {BACK})
    """
    check_rewrite(AlterOpLayout(SSE), text.format("nn.conv2d(%x, %w, groups=2)"), text.format(after))


@pytest.mark.parametrize(
    ("x", "w", "attributes", "reason"),
    [
        ((1, 8, 6, 6), (8, 2, 3, 3), "groups=4", "no blocks of 4 divide the 2 and 2 channels of a group"),
        ((1, 8, 6, 6), (7, 8, 3, 3), "groups=1", "no blocks of 4 divide its 7 output channels"),
        ((1, 6, 6, 6), (6, 1, 3, 3), "groups=6", "no blocks of 4 divide its 6 channels"),
        (
            (1, 6, 6, 8),
            (3, 3, 8, 8),
            'data_layout="NHWC", kernel_layout="HWIO"',
            "its layouts are NHWC and HWIO, not NCHW and OIHW",
        ),
    ],
)
def test_what_keeps_its_layout(x: tuple[int, ...], w: tuple[int, ...], attributes: str, reason: str) -> None:
    text = f"def @main(%x: Tensor[{x}, float32], %w: Tensor[{w}, float32]) {{ nn.conv2d(%x, %w, {attributes}) }}"
    with decisions() as log:
        check_unchanged(AlterOpLayout(SSE), text)
    assert stayed(log) == [f"nn.conv2d: {reason}"]


def test_integers_keep_their_layout() -> None:
    params = "%x: Tensor[(1, 8, 6, 6), int8], %w: Tensor[(8, 8, 3, 3), int8]"
    text = f'def @main({params}) {{ nn.conv2d(%x, %w, out_dtype="int32") }}'
    with decisions() as log:
        check_unchanged(AlterOpLayout(SSE), text)
    assert stayed(log) == ["nn.conv2d: it computes int32 from int8"]


def test_unknown_shapes_keep_their_layout() -> None:
    text = "def @main(%x: Tensor[(?, 8, 6, 6), float32], %w: Tensor[(8, 8, 3, 3), float32]) { nn.conv2d(%x, %w) }"
    check_unchanged(AlterOpLayout(SSE), text)


def test_another_target_asks_for_nothing() -> None:
    check_unchanged(AlterOpLayout(SSE, kind="interp"), main("nn.conv2d(%x, %w)"))


def test_a_gpu_has_channels_last() -> None:
    after = """
    %a = layout_transform(%x, src_layout="NCHW", dst_layout="NHWC");
    %b = layout_transform(%w, src_layout="OIHW", dst_layout="HWIO");
    %c = nn.conv2d(%a, %b, data_layout="NHWC", kernel_layout="HWIO", out_layout="NHWC");
    %d = nn.relu(%c);
    layout_transform(%d, src_layout="NHWC", dst_layout="NCHW")
    """
    check_rewrite(AlterOpLayout(SSE, kind="cuda"), main("%0 = nn.conv2d(%x, %w); nn.relu(%0)"), main(after))


def test_a_gpu_reads_an_image_of_three_channels_as_it_comes() -> None:
    image = "def @main(%x: Tensor[(1, 3, 6, 6), float32], %w: Tensor[(8, 3, 3, 3), float32]) "
    after = """{
    %b = layout_transform(%w, src_layout="OIHW", dst_layout="HWIO");
    %c = nn.conv2d(%x, %b, kernel_layout="HWIO", out_layout="NHWC");
    layout_transform(%c, src_layout="NHWC", dst_layout="NCHW") }
    """
    check_rewrite(AlterOpLayout(SSE, kind="cuda"), image + "{ nn.conv2d(%x, %w) }", image + after)


class Filling(MachineModel):
    """One on which whole vectors of channels always pay."""

    def pays_to_fill(self, multiply_adds: int, times: float, nbytes: int) -> bool:
        assert (multiply_adds, times, nbytes) == (8 * 4 * 4 * 27, 8 / 3, 6 * 6 * (3 + 8) * 2)
        return True


def test_an_image_for_tensor_cores_is_filled_up_with_channels_of_zeros_where_that_pays() -> None:
    image = "def @main(%x: Tensor[(1, 3, 6, 6), float16], %w: Tensor[(8, 3, 3, 3), float16]) "
    after = """{
    %a = nn.pad(%x, pad_width=[[0, 0], [0, 5], [0, 0], [0, 0]]);
    %b = layout_transform(%a, src_layout="NCHW", dst_layout="NHWC");
    %c = layout_transform(%w, src_layout="OIHW", dst_layout="HWIO");
    %d = nn.pad(%c, pad_width=[[0, 0], [0, 0], [0, 5], [0, 0]]);
    %e = nn.conv2d(%b, %d, data_layout="NHWC", kernel_layout="HWIO", out_layout="NHWC");
    layout_transform(%e, src_layout="NHWC", dst_layout="NCHW") }
    """
    gpu = AlterOpLayout(Filling(16, 16), kind="cuda")
    check_rewrite(gpu, image + "{ nn.conv2d(%x, %w) }", image + after)
    wide = image.replace("float16", "float32") + "{ nn.conv2d(%x, %w) }"
    assert "nn.pad" not in gpu(parse_module(wide)).astext()


def test_filling_up_pays_for_many_images_and_not_for_a_small_one() -> None:
    gpu = gpu_model("sm_90")
    work = 112 * 112 * 64 * 7 * 7 * 3
    assert gpu.pays_to_fill(32 * work, 8 / 3, 32 * 224 * 224 * 11 * 2)
    assert not gpu.pays_to_fill(work // 8, 8 / 3, 224 * 224 * 11 * 2)


def test_a_gpu_has_constant_weights_depth_first() -> None:
    def dense(rows: int, body: str) -> str:
        return f"def @main(%x: Tensor[({rows}, 5), float32]) {{ {body} }}"

    weight = {"w": np.arange(15, dtype="float32").reshape(3, 5)}
    gpu, before = AlterOpLayout(SSE, kind="cuda"), 'nn.dense(%x, meta["w"])'
    after = '%t = transpose(meta["w"], axes=[1, 0]); nn.matmul(%x, %t)'
    check_rewrite(gpu, dense(4, before), dense(4, after), constants=weight)
    check_unchanged(gpu, dense(1, before), constants=weight)


def test_alter_op_dense() -> None:
    text = "def @main(%x: Tensor[(3, 5), float32]) {{ {} }}"
    weights = {"w": random_array((16, 5))}
    after = """
    %0 = layout_transform(meta["w"], src_layout="NC", dst_layout="NC4n");
    nn.relu(nn.contrib_dense_pack(%x, %0, weight_layout="NC4n", units=16))
    """
    check_rewrite(
        AlterOpLayout(SSE), text.format('nn.relu(nn.dense(%x, meta["w"]))'), text.format(after), constants=weights
    )


def test_matmul_with_constant_weights_is_packed_too() -> None:
    text = "def @main(%x: Tensor[(3, 5), float32]) {{ {} }}"
    weights = {"w": random_array((5, 12))}
    after = """
    %0 = layout_transform(meta["w"], src_layout="CN", dst_layout="NC4n");
    nn.contrib_dense_pack(%x, %0, weight_layout="NC4n", units=12)
    """
    check_rewrite(AlterOpLayout(SSE), text.format('nn.matmul(%x, meta["w"])'), text.format(after), constants=weights)


def test_the_last_panel_of_units_is_filled_up_with_zeros() -> None:
    text = "def @main(%x: Tensor[(3, 5), float32]) {{ {} }}"
    after = """
    %0 = layout_transform(nn.pad(meta["w"], pad_width=[[0, 0], [0, 2]]), src_layout="CN", dst_layout="NC4n");
    nn.contrib_dense_pack(%x, %0, weight_layout="NC4n", units=10)
    """
    weights = {"w": random_array((5, 10))}
    check_rewrite(AlterOpLayout(SSE), text.format('nn.matmul(%x, meta["w"])'), text.format(after), constants=weights)


def test_a_packed_dense_says_what_lies_otherwise() -> None:
    weights = {"w": random_array((10, 5))}
    module = parse_module('def @main(%x: Tensor[(3, 5), float32]) { nn.dense(%x, meta["w"]) }', weights)
    with decisions() as log:
        AlterOpLayout(SSE)(module)
    told = "its weights are held as NC4n, so that vectors take 4 of 10 units; its result is held as it was"
    assert [(d.about, d.taken, d.reason) for d in log] == [("nn.dense", True, told)]


def test_few_units_of_many_features_are_dot_products() -> None:
    text = 'def @main(%x: Tensor[(3, 100), float32]) { nn.dense(%x, meta["w"]) }'
    with decisions() as log:
        check_unchanged(AlterOpLayout(SSE), text, constants={"w": random_array((2, 100))})
    assert stayed(log) == ["nn.dense: 2 dot products of 100 cost less than one vector of 4 units"]


def test_dense_with_computed_weights_is_not_packed() -> None:
    with decisions() as log:
        check_unchanged(
            AlterOpLayout(SSE),
            "def @main(%x: Tensor[(3, 5), float32], %w: Tensor[(16, 5), float32]) { nn.dense(%x, %w) }",
        )
    expected = "nn.dense: its weights are not constant: packing them at every run costs more than it saves"
    assert stayed(log) == [expected]


@pytest.mark.parametrize(
    ("image", "more", "moved"),
    [(48, "", False), (7, "", True), (8, "", True), (48, "%z = nn.conv2d(%y, %w, padding=(1, 1));", True)],
    ids=["long rows", "short rows", "much padding", "two share a layout"],
)
def test_a_convolution_alone_moves_where_that_pays(image: int, more: str, moved: bool) -> None:
    x, w = f"(1, 16, {image}, {image})", "(16, 16, 3, 3)"
    last = "%z" if more else "%y"
    body = f"%y = nn.conv2d(%x, %w, padding=(1, 1)); {more} nn.relu({last})"
    module = parse_module(f"def @main(%x: Tensor[{x}, float32], %w: Tensor[{w}, float32]) {{ {body} }}")
    with decisions() as log:
        assert ("NCHWc" in WEIGHING(module).astext()) == moved
    assert moved or any("stands alone" in d.reason for d in log)


@pytest.mark.parametrize(("image", "kernel", "moved"), [(13, 7, True), (14, 3, False), (112, 3, False)])
def test_a_depthwise_convolution_alone_moves_where_its_window_is_large_beside_it(
    image: int, kernel: int, moved: bool
) -> None:
    params = f"%x: Tensor[(1, 64, {image}, {image}), float32], %w: Tensor[(64, 1, {kernel}, {kernel}), float32]"
    pads = (kernel // 2, kernel // 2)
    module = parse_module(f"def @main({params}) {{ nn.conv2d(%x, %w, groups=64, padding={pads}) }}")
    assert ("NCHWc" in WEIGHING(module).astext()) == moved


def test_weights_come_in_whole_vectors_whatever_the_results_blocks() -> None:
    """24 channels are three blocks of 8; on a machine with vectors of 16 the second block of weights is half empty."""
    params = "%x: Tensor[(1, 8, 6, 6), float32], %w: Tensor[(48, 4, 3, 3), float32]"
    text = f"def @main({params}) {{ nn.conv2d(%x, %w, groups=2) }}"
    module = parse_module(text)
    after = AlterOpLayout(MachineModel(64, 32))(module).main
    (conv,) = [call for call in calls(after.body) if call.op.name == "nn.contrib_conv2d_NCHWc"]
    assert conv.args[1].tensor_type.shape == (4, 1, 3, 3, 4, 16)
    assert (conv.op.attributes()["out_layout"], conv.op.attributes()["channels"]) == ("NCHW8c", 48)
    x, w = random_array((1, 8, 6, 6)), random_array((48, 4, 3, 3))
    np.testing.assert_allclose(evaluate(after, x, w), evaluate(module.main, x, w), rtol=1e-4, atol=1e-4)
