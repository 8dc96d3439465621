"""Operators behind a convolution that changes its layout: the same numbers, whatever the layouts are."""

from __future__ import annotations

import pytest
from rewriting import run

from minitvm.ir.layout import Layout
from minitvm.passes.convert_layout import ConvertLayout

EXTENTS = {"N": 1, "C": 8, "H": 4, "W": 6, "O": 8, "I": 8}
LAYOUTS = {"NCHW": "OIHW", "NHWC": "HWIO", "NCHW4c": "OIHW4i4o", "NCHW2c": "OIHW2i2o"}
PLAIN_OR_ALL = (
    "nn.relu(%c)",
    "add(%c, %c)",
    "nn.global_avg_pool2d(%c, layout={layout})",
    "nn.max_pool2d(%c, pool_size=[2, 2], layout={layout})",
    "concatenate((%c, %c), axis={axis})",
    "split(%c, indices_or_sections=1, axis={axis}).0",
    "transpose(%c)",
    "squeeze(%c)",
    "expand_dims(%c, axis={axis})",
    "cumsum(%c, axis={axis})",
    "reverse(%c, axis={axis})",
    "nn.softmax(%c, axis={axis})",
    "nn.log_softmax(%c, axis={axis})",
    "nn.lrn(%c, axis={axis})",
    "argmax(%c, axis=[{axis}])",
    *(f"{name}(%c, axis=[{{axis}}]{kept})" for name in ("sum", "mean", "max") for kept in ("", ", keepdims=True")),
    "mean(%c, axis=[{axis}], exclude=True)",
)


def _shape(layout: str) -> str:
    axes = Layout(layout)
    extents = (a.block or EXTENTS[a.name] // axes.factor(a.name) for a in axes.axes)
    return ", ".join(map(str, extents))


def _program(layout: str, axis: int, after: str) -> str:
    kernel = LAYOUTS[layout]
    weight = _shape(kernel).replace("4, 6", "1, 1")
    return f"""
    def @main(%x: Tensor[({_shape(layout)}), float32], %w: Tensor[({weight}), float32]) {{
        %c = nn.conv2d(%x, %w, data_layout="{layout}", kernel_layout="{kernel}");
        {after.format(axis=axis, layout=f'"{layout}"')}
    }}"""


@pytest.mark.parametrize(("old", "new"), [(a, b) for a in LAYOUTS for b in LAYOUTS if a != b])
def test_operators_behind_a_convolution_compute_the_same(old: str, new: str) -> None:
    for after in PLAIN_OR_ALL:
        for axis in range(Layout(old).rank) if "{axis}" in after else (0,):
            run(ConvertLayout({"nn.conv2d": [new, LAYOUTS[new]]}), _program(old, axis, after))


def test_blocks_that_do_not_divide_leave_the_convolution() -> None:
    text = """
    def @main(%x: Tensor[(1, 3, 4, 6), float32], %w: Tensor[(8, 3, 1, 1), float32]) {
        %c = nn.conv2d(%x, %w);
        nn.relu(%c)
    }"""
    assert "NCHW4c" not in run(ConvertLayout({"nn.conv2d": ["NCHW4c", "OIHW4i4o"]}), text).astext()
