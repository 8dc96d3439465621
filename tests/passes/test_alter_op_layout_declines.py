"""What AlterOpLayout leaves: dtypes, blocks, computed or open weights, and what it need not weigh."""

from __future__ import annotations

import numpy as np
import pytest
from blocked import AVX512, BACK, SSE, WEIGHING, alters
from rewriting import check_rewrite, check_unchanged, random_array, run, stayed

from minitvm.ir.decision import Declined, decisions
from minitvm.ir.ops.elemwise import Relu
from minitvm.ir.parser import parse_module
from minitvm.ir.relayout import Placement, calling
from minitvm.passes import sink_cast
from minitvm.passes.alter_op_layout import PROPOSALS, AlterOpLayout

IMAGE, WEIGHT = (1, 8, 6, 6), (8, 8, 3, 3)


@pytest.mark.parametrize(
    ("layer", "data", "weight", "result", "reason"),
    [
        ("nn.conv2d", (IMAGE, "int32"), (WEIGHT, "int32"), "int32", "it computes int32 from int32"),
        ("nn.conv2d", (IMAGE, "float32"), (WEIGHT, "float32"), "float64", "it computes float64 from float32"),
        ("nn.conv2d", (IMAGE, "uint8"), ((6, 8, 3, 3), "int8"), "int32", "no blocks of 4 divide 8 and 6 channels"),
        (
            "nn.conv2d",
            ((1, 6, 6, 6), "uint8"),
            ((8, 6, 3, 3), "int8"),
            "int32",
            "no blocks of 4 divide 6 and 8 channels",
        ),
        ("nn.conv2d", (IMAGE, "uint8"), (WEIGHT, "int8"), "float32", "it computes float32 from uint8"),
        ("nn.dense", ((3, 8), "int8"), ((8, 8), "int8"), "float32", "it computes float32 from int8"),
        ("nn.dense", ((3, 6), "uint8"), ((8, 6), "int8"), "float32", "it computes float32 from uint8"),
        ("nn.dense", ((3, 8), "float32"), ((8, 8), "float32"), "int32", "it computes int32 from float32"),
        ("nn.dense", ((3, 6), "uint8"), ((8, 6), "int8"), "int32", "words of uint8 do not divide its depth of 6"),
    ],
)
def test_what_no_layout_is_faster_for(
    layer: str, data: tuple[tuple[int, ...], str], weight: tuple[tuple[int, ...], str], result: str, reason: str
) -> None:
    constants = {"w": np.arange(np.prod(weight[0])).reshape(weight[0]).astype(weight[1])}
    with decisions() as log:
        text = f'def @main(%x: Tensor[{data[0]}, {data[1]}]) {{ {layer}(%x, meta["w"], out_dtype="{result}") }}'
        check_unchanged(AlterOpLayout(SSE), text, constants=constants)
    assert stayed(log) == [f"{layer}: {reason}"]


@pytest.mark.parametrize(("channels", "filters"), [(8, 0), (0, 8)])
def test_a_convolution_of_nothing_is_weighed_like_others(channels: int, filters: int) -> None:
    text = f'def @main(%x: Tensor[(1, {channels}, 6, 6), float32]) {{ nn.conv2d(%x, meta["w"]) }}'
    check_unchanged(WEIGHING, text, constants={"w": np.ones((filters, channels, 3, 3), np.float32)})


def test_bytes_in_groups_or_by_weights_that_are_computed_keep_their_layout() -> None:
    text = 'def @main(%x: Tensor[(1, 8, 6, 6), uint8], {}) {{ nn.conv2d(%x, {}, out_dtype="int32") }}'
    for module in (
        parse_module(text.format("%w: Tensor[(8, 8, 3, 3), int8]", "%w")),
        parse_module(text.format("", 'meta["w"], groups=2'), {"w": np.ones((8, 4, 3, 3), "int8")}),
    ):
        with decisions() as log:
            check_unchanged(AlterOpLayout(SSE), module)
        assert stayed(log) == ["nn.conv2d: it computes int32 from uint8"]


def test_few_units_of_many_bytes_are_packed() -> None:
    text = 'def @main(%x: Tensor[(3, 100), uint8]) { nn.dense(%x, meta["w"], out_dtype="int32") }'
    weights = {"w": np.arange(200, dtype="int8").reshape(2, 100)}
    assert "qnn.contrib_dense_pack" in run(AlterOpLayout(SSE), text, weights).astext()


def test_a_depth_that_is_known_only_when_the_model_runs() -> None:
    text = 'def @main(%x: Tensor[(n, m), float32]) { nn.dense(%x, meta["w"]) }'
    check_unchanged(AlterOpLayout(SSE), text, constants={"w": random_array((16, 5))})


HALF = 'cast(meta["w"], dtype="float32")'


def test_large_weights_move_in_the_format_that_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_cast, "LARGE", 0)
    dense = "def @main(%x: Tensor[(3, 5), float32]) {{ {} }}"
    packed = """
    %0 = cast(layout_transform(meta["w"], src_layout="NC", dst_layout="NC4n"), dtype="float32");
    nn.contrib_dense_pack(%x, %0, weight_layout="NC4n", units=16)
    """
    weights = {"w": random_array((16, 5)).astype("float16")}
    check_rewrite(AlterOpLayout(SSE), dense.format(f"nn.dense(%x, {HALF})"), dense.format(packed), constants=weights)

    conv = "def @main(%x: Tensor[(1, 8, 6, 6), float32]) {{ {} }}"
    blocked = f"""
    %0 = layout_transform(%x, src_layout="NCHW", dst_layout="NCHW4c");
    %1 = cast(layout_transform(meta["w"], src_layout="OIHW", dst_layout="OIHW4i4o"), dtype="float32");
    %2 = nn.contrib_conv2d_NCHWc(%0, %1, groups=2, channels=16,
                                 data_layout="NCHW4c", kernel_layout="OIHW4i4o", out_layout="NCHW4c");
    layout_transform(%2, {BACK})
    """
    weights = {"w": random_array((16, 4, 3, 3)).astype("float16")}
    before = f"nn.conv2d(%x, {HALF}, groups=2)"
    check_rewrite(AlterOpLayout(SSE), conv.format(before), conv.format(blocked), constants=weights)


def test_blocks_that_lie_along_units_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_cast, "LARGE", 0)
    weight = 'qnn.dequantize_blocks(meta["w"], meta["s"], 0i8, axis={}, block=4)'
    text = "def @main(%x: Tensor[(3, 8), float32]) {{ nn.dense(%x, {}) }}"
    arrays = {"w": np.arange(128, dtype="int8").reshape(16, 8), "s": random_array((4, 8))}
    with decisions() as log:
        check_unchanged(AlterOpLayout(SSE), text.format(weight.format(0)), constants=arrays)
    assert stayed(log) == ["nn.dense: blocks of its weights lie along its units"]
    arrays["s"] = random_array((16, 2))
    assert "contrib_dense_pack" in run(AlterOpLayout(SSE), text.format(weight.format(1)), arrays).astext()


def test_a_gpu_leaves_other_layouts_and_computed_weights() -> None:
    gpu = AlterOpLayout(SSE, kind="cuda")
    params = "%x: Tensor[(1, 6, 6, 8), float32], %w: Tensor[(3, 3, 8, 4), float32]"
    with decisions() as log:
        last = 'nn.conv2d(%x, %w, data_layout="NHWC", kernel_layout="HWIO")'
        check_unchanged(gpu, f"def @main({params}) {{ {last} }}")
        check_unchanged(gpu, "def @main(%x: Tensor[(4, 5), float32], %w: Tensor[(3, 5), float32]) { nn.dense(%x, %w) }")
    assert stayed(log) == [
        "nn.conv2d: its layouts are NHWC and HWIO, not NCHW and OIHW",
        "nn.dense: its weights are not constant: turning them at every run costs more than it saves",
    ]


@pytest.mark.parametrize(
    ("data", "weight", "attributes", "reason"),
    [
        (
            "(1, 28, 28, 64), float32",
            "float32",
            'data_layout="NHWC"',
            "its layouts are NHWC and OIHW, not NCHW and OIHW",
        ),
        (
            "(1, 64, 28, 28), uint8",
            "int8",
            'out_dtype="int32"',
            "it computes int32 from uint8 and int8, not float32",  # says Winograd; it moves
        ),
    ],
)
def test_only_floats_in_plain_planes_are_weighed(data: str, weight: str, attributes: str, reason: str) -> None:
    text = f'def @main(%x: Tensor[{data}]) {{ nn.conv2d(%x, meta["w"], padding=[1, 1, 1, 1], {attributes}) }}'
    with decisions() as log:
        WEIGHING(parse_module(text, {"w": np.ones((64, 64, 3, 3), weight)}))
    assert stayed(log) == [f"nn.conv2d: {reason}"]


def test_what_is_not_weighed_moves() -> None:
    """A convolution alone, whose pass does not weigh; a dense layer beside one that stays."""
    text = """
    def @main(%x: Tensor[(1, 64, 28, 28), float32], %y: Tensor[(3, 5), float32]) {
      (nn.conv2d(%x, meta["w"]), nn.dense(%y, meta["d"]))
    }"""
    module = parse_module(text, {"w": random_array((64, 64, 1, 1)), "d": random_array((16, 5))})
    for layouts, moves in ((AlterOpLayout(AVX512), True), (WEIGHING, False)):
        found = layouts(module).astext()
        assert ("NCHWc" in found, "dense_pack" in found) == (moves, True)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Placement((None,), None, calling(Relu())), f"nn.relu(layout_transform(%0, {BACK}))"),
        (Declined("not today"), f"layout_transform(nn.relu(%0), {BACK})"),
    ],
)
def test_who_asks_for_a_layout_has_it_and_who_does_not_follows(
    answer: Placement | Declined, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROPOSALS, ("llvm", Relu), lambda site, machine: answer)
    alters("nn.relu(%0)", expected)
