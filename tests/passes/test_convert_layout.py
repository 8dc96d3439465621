"""ConvertLayout.  The cases are Relay's (test_pass_convert_op_layout), by the same names where one covers one.

Left out: the qnn and simulated_quantize cases (quantized models are expressed by plain operators here), deformable
convolution, roi_align, roi_pool, slice_like (operators that do not exist), and convert_with_config (layouts that
change from layer to layer are asked for by two runs).  The rules themselves are shared with AlterOpLayout and have
their cases there; here are those that only plain layouts reach.
"""

from __future__ import annotations

import re

import pytest
from rewriting import check_rewrite, check_unchanged, run, stayed

from minitvm.errors import PassError
from minitvm.ir.decision import decisions
from minitvm.passes.convert_layout import ConvertLayout

X = "%x: Tensor[(1, 8, 6, 6), float32]"
W = "%w: Tensor[(8, 8, 3, 3), float32]"
CONV = "%0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1]);"
NHWC = """
%a = layout_transform(%x, src_layout="NCHW", dst_layout="NHWC");
%b = layout_transform(%w, src_layout="OIHW", dst_layout="HWIO");
%0 = nn.conv2d(%a, %b, padding=[1, 1, 1, 1], data_layout="NHWC", kernel_layout="HWIO");
"""
BACK = 'src_layout="NHWC", dst_layout="NCHW"'

to_nhwc = ConvertLayout({"nn.conv2d": ["NHWC", "default"]})


def main(body: str, *more: str) -> str:
    return f"def @main({', '.join([X, W, *more])}) {{ {body} }}"


def converts(body: str, expected: str, *more: str) -> None:
    """A convolution, then ``body``, becomes the NHWC convolution, then ``expected``."""
    check_rewrite(to_nhwc, main(CONV + body, *more), main(NHWC + expected, *more))


def test_no_convert_layout() -> None:
    check_unchanged(ConvertLayout({"nn.conv2d": ["NCHW", "default"]}), main(CONV + "nn.relu(%0)"))


def test_no_desired_layout() -> None:
    """Operators that are not named keep their layout, and follow only where others have moved."""
    check_unchanged(ConvertLayout({"nn.conv3d": ["NDHWC", "DHWIO"]}), main(CONV + "nn.max_pool2d(%0)"))


def test_conv_convert_layout() -> None:
    """From NHWC to NCHW, as for a model that came from TensorFlow."""
    text = "def @main(%x: Tensor[(1, 6, 6, 8), float32], %w: Tensor[(3, 3, 8, 4), float32]) {{ {} }}"
    before = '%0 = nn.conv2d(%x, %w, data_layout="NHWC", kernel_layout="HWIO"); nn.relu(%0)'
    after = """
    %0 = layout_transform(%x, src_layout="NHWC", dst_layout="NCHW");
    %1 = layout_transform(%w, src_layout="HWIO", dst_layout="OIHW");
    layout_transform(nn.relu(nn.conv2d(%0, %1)), src_layout="NCHW", dst_layout="NHWC")
    """
    check_rewrite(ConvertLayout({"nn.conv2d": ["NCHW", "default"]}), text.format(before), text.format(after))


def test_conv_nhwc_convert_layout() -> None:
    converts("nn.relu(%0)", f"layout_transform(nn.relu(%0), {BACK})")


def test_conv_convert_kernel_layout() -> None:
    text = "def @main(%x: Tensor[(1, 6, 6, 8), float32], %w: Tensor[(3, 3, 8, 4), float32]) {{ {} }}"
    before = 'nn.conv2d(%x, %w, data_layout="NHWC", kernel_layout="HWIO")'
    after = """
    %0 = layout_transform(%w, src_layout="HWIO", dst_layout="OHWI");
    nn.conv2d(%x, %0, data_layout="NHWC", kernel_layout="OHWI")
    """
    check_rewrite(ConvertLayout({"nn.conv2d": ["NHWC", "OHWI"]}), text.format(before), text.format(after))


def test_default_keyword_of_a_depthwise_convolution() -> None:
    text = "def @main(%x: Tensor[(1, 8, 6, 6), float32], %w: Tensor[(8, 1, 3, 3), float32]) {{ {} }}"
    after = f"""
    %0 = layout_transform(%x, src_layout="NCHW", dst_layout="NHWC");
    %1 = layout_transform(%w, src_layout="OIHW", dst_layout="HWOI");
    %2 = nn.conv2d(%0, %1, groups=8, data_layout="NHWC", kernel_layout="HWOI");
    layout_transform(%2, {BACK})
    """
    check_rewrite(to_nhwc, text.format("nn.conv2d(%x, %w, groups=8)"), text.format(after))


def test_conv_bias_pool_convert_layout() -> None:
    converts(
        "%1 = nn.bias_add(%0, %bias); %2 = nn.max_pool2d(nn.relu(%1), pool_size=[2, 2]); nn.batch_flatten(%2)",
        f"""
        %1 = nn.bias_add(%0, %bias, axis=3);
        %2 = nn.max_pool2d(nn.relu(%1), pool_size=[2, 2], layout="NHWC");
        nn.batch_flatten(layout_transform(%2, {BACK}))
        """,
        "%bias: Tensor[(8,), float32]",
    )


def test_conv_bias_pool_uses_specified_convert_layout() -> None:
    step = ConvertLayout({"nn.conv2d": ["NHWC", "OHWI"], "nn.max_pool2d": ["NCHW"]})
    module = run(step, main(CONV + "nn.max_pool2d(%0)"))
    assert re.findall(r'(nn\.\w+|dst_layout="\w+")', module.astext()) == [
        'dst_layout="NHWC"',
        'dst_layout="OHWI"',
        "nn.conv2d",
        'dst_layout="NCHW"',
        "nn.max_pool2d",
    ]


def test_conv_max_pool_uses_specified_convert_layout() -> None:
    """A pool alone can be asked to move."""
    text = "def @main(%x: Tensor[(1, 8, 6, 6), float32]) {{ {} }}"
    after = f"""
    %0 = layout_transform(%x, src_layout="NCHW", dst_layout="NHWC");
    layout_transform(nn.max_pool2d(%0, layout="NHWC"), {BACK})
    """
    step = ConvertLayout({"nn.max_pool2d": ["NHWC"]})
    check_rewrite(step, text.format("nn.max_pool2d(%x)"), text.format(after))


def test_different_ops_convert_layout() -> None:
    step = ConvertLayout({"nn.conv2d": ["NHWC", "HWIO"], "image.resize2d": ["NCHW"]})
    text = run(step, main(CONV + "image.resize2d(%0, size=[4, 4])")).astext()
    assert text.count("layout_transform") == 3 and "image.resize2d(%3, size=[4, 4])" in text


def test_conv_concat_convert_layout() -> None:
    """Channels need not be divisible where they are not split."""
    converts(
        "concatenate((%0, %y), axis=1)",
        f"""
        %1 = layout_transform(%y, src_layout="NCHW", dst_layout="NHWC");
        layout_transform(concatenate((%0, %1), axis=3), {BACK})
        """,
        "%y: Tensor[(1, 3, 6, 6), float32]",
    )


def test_dual_path_convert_layout() -> None:
    converts(
        "%1 = nn.relu(%0); (nn.conv2d(%1, %w), nn.batch_flatten(%1))",
        f"""
        %1 = nn.relu(%0); %2 = nn.conv2d(%1, %b, data_layout="NHWC", kernel_layout="HWIO");
        (layout_transform(%2, {BACK}), nn.batch_flatten(layout_transform(%1, {BACK})))
        """,
    )


def test_bn_convert_layout() -> None:
    converts(
        "%1 = nn.batch_norm(%0, %g, %g, %g, exp(%g)); nn.relu(%1.0)",
        f"%1 = nn.batch_norm(%0, %g, %g, %g, exp(%g), axis=3); layout_transform(nn.relu(%1.0), {BACK})",
        "%g: Tensor[(8,), float32]",
    )


def test_transpose_convert_layout() -> None:
    """A transpose that the new layout does already vanishes."""
    converts("transpose(nn.relu(%0), axes=[0, 2, 3, 1])", "nn.relu(%0)")


def test_resnet_convert_layout() -> None:
    body = """
    %1 = nn.relu(%0); %2 = nn.conv2d(%1, %w, padding=[1, 1, 1, 1]); %3 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1]);
    %4 = add(%2, %3); nn.global_max_pool2d(%4)
    """
    text = run(to_nhwc, main(CONV + body)).astext()
    assert text.count("layout_transform") == 2, "the input and the weight, once each"


def test_resnet_convert_layout_nchwc() -> None:
    """Blocked layouts can be asked for by hand; the operator stays ``nn.conv2d``."""
    step = ConvertLayout({"nn.conv2d": ["NCHW4c", "OIHW4i4o"]})
    text = run(step, main(CONV + "add(nn.relu(%0), %x)")).astext()
    assert text.count("layout_transform") == 3


def test_scalar_convert_layout() -> None:
    converts(
        "multiply(add(%0, 1f), %s)", f"layout_transform(multiply(add(%0, 1f), %s), {BACK})", "%s: Tensor[(), float32]"
    )


def test_conv_reduce_convert_layout() -> None:
    converts("sum(%0, axis=[1, 2])", "sum(%0, axis=[1, 3])")
    converts("sum(%0, axis=[3], keepdims=True)", f"layout_transform(sum(%0, axis=[2], keepdims=True), {BACK})")


def test_reduce_that_leaves_another_order() -> None:
    converts("max(%0, axis=[3])", 'layout_transform(max(%0, axis=[2]), src_layout="NHC", dst_layout="NCH")')


def test_conv_strided_slice_axes_convert_layout() -> None:
    converts(
        "strided_slice(%0, begin=[1, 2], end=[4, 7], axes=[2, 1])",
        f"""
        %1 = strided_slice(%0, begin=[0, 2, 1, 0], end=[1, 7, 4, 6], strides=[1, 1, 1, 1], axes=[0, 3, 1, 2]);
        layout_transform(%1, {BACK})
        """,
    )


def test_conv_split_convert_layout() -> None:
    converts(
        "%1 = split(%0, indices_or_sections=[3], axis=1); nn.relu(%1.0)",
        f"%1 = split(%0, indices_or_sections=[3], axis=3); layout_transform(nn.relu(%1.0), {BACK})",
    )


def test_conv_squeeze_convert_layout() -> None:
    converts(
        "squeeze(nn.relu(%0), axis=[0])",
        'layout_transform(squeeze(nn.relu(%0), axis=[0]), src_layout="HWC", dst_layout="CHW")',
    )


def test_conv_topk_convert_layout() -> None:
    """Operators without a rule get what they had."""
    module = run(to_nhwc, main(CONV + "%1 = topk(%0, k=2, axis=2); %1.0"))
    assert "topk(%3" in module.astext() and f"layout_transform(%2, {BACK})" in module.astext()


def test_conv_lrn_and_softmax() -> None:
    converts("nn.softmax(nn.lrn(%0), axis=1)", f"layout_transform(nn.softmax(nn.lrn(%0, axis=3), axis=3), {BACK})")


def test_conv_prelu() -> None:
    converts("nn.prelu(%0, %s)", f"layout_transform(nn.prelu(%0, %s, axis=3), {BACK})", "%s: Tensor[(8,), float32]")


def test_conv_image_resize2d_convert_layout() -> None:
    converts(
        "image.resize2d(%0, size=[3, 4])", f'layout_transform(image.resize2d(%0, size=[3, 4], layout="NHWC"), {BACK})'
    )


def test_conv_transpose_convert_layout() -> None:
    module = run(ConvertLayout({"nn.conv2d_transpose": ["NHWC", "IOHW"]}), main("nn.conv2d_transpose(%x, %w)"))
    assert 'data_layout="NHWC"' in module.astext()


@pytest.mark.parametrize(
    ("desired", "message"),
    [
        ({"nn.relu": ["NHWC"]}, "ConvertLayout: 'nn.relu' is not an operator with a layout"),
        ({"nn.conf2d": ["NHWC"]}, "ConvertLayout: 'nn.conf2d' is not an operator with a layout"),
        ({"nn.conv2d": "NHWC"}, "ConvertLayout: nn.conv2d takes a list of 1 to 2 layouts, not 'NHWC'"),
        (
            {"nn.max_pool2d": ["NHWC", "HWIO"]},
            "ConvertLayout: nn.max_pool2d takes a list of 1 to 1 layouts, not ['NHWC', 'HWIO']",
        ),
        ({"nn.conv2d": ["default"]}, "ConvertLayout: the data layout of nn.conv2d must be named"),
    ],
)
def test_bad_requests(desired: dict[str, list[str]], message: str) -> None:
    with pytest.raises(PassError) as error:
        ConvertLayout(desired)
    assert error.value.message == message


def test_no_usual_partner() -> None:
    with pytest.raises(PassError) as error:
        run(ConvertLayout({"nn.conv2d": ["CNHW", "default"]}), main(CONV + "%0"))
    assert str(error.value) == (
        "ConvertLayout: no kernel layout is usual for CNHW\n  | in pass ConvertLayout\n"
        "  = hint: name it: ['CNHW', 'OIHW']"
    )


def test_a_layout_with_other_axes_is_declined() -> None:
    with decisions() as log:
        check_unchanged(ConvertLayout({"nn.conv2d": ["NCW", "OIW"]}), main(CONV + "%0"))
    assert stayed(log) == ["nn.conv2d: NCHW and OIHW cannot become NCW and OIW"]
