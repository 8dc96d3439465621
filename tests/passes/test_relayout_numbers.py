"""Operators behind a convolution that changes its layout: the same numbers, whatever the layouts are."""

from __future__ import annotations

import pytest
from rewriting import run

from minitvm.ir.decision import decisions
from minitvm.ir.layout import Layout
from minitvm.passes.convert_layout import ConvertLayout
from minitvm.testing import resnet

EXTENTS = {"N": 1, "C": 8, "H": 4, "W": 6, "O": 8, "I": 8}
LAYOUTS = {"NCHW": "OIHW", "NHWC": "HWIO", "NCHW4c": "OIHW4i4o", "NCHW2c": "OIHW2i2o"}
FOLLOWERS = (
    "nn.relu(%c)",
    "add(%c, %c)",
    "add(%c, %whole)",
    "add(%c, %along)",
    "add(%c, %last)",
    "nn.global_avg_pool2d(%c, layout={layout})",
    "nn.max_pool2d(%c, pool_size=[2, 2], layout={layout})",
    "concatenate((%c, %c), axis={axis})",
    "split(%c, indices_or_sections=1, axis={axis}).0",
    "split(%c, indices_or_sections={extent}, axis={axis}).0",
    "strided_slice(%c, begin=[0], end=[{half}], axes=[{axis}])",
    "transpose(%c)",
    "transpose(%c, axes={first})",
    "squeeze(%c)",
    "expand_dims(%c, axis={axis})",
    "cumsum(%c, axis={axis})",
    "reverse(%c, axis={axis})",
    "take(%c, 0i64, axis={axis})",
    "nn.pad(%c, pad_width={pads})",
    "nn.bias_add(%c, %vector, axis={axis})",
    "nn.prelu(%c, %vector, axis={axis})",
    "nn.batch_norm(%c, %vector, %vector, %vector, exp(%vector), axis={axis}).0",
    "nn.softmax(%c, axis={axis})",
    "nn.log_softmax(%c, axis={axis})",
    "nn.lrn(%c, axis={axis})",
    "argmax(%c, axis=[{axis}])",
    *(f"{name}(%c, axis=[{{axis}}]{kept})" for name in ("sum", "mean", "max") for kept in ("", ", keepdims=True")),
    "mean(%c, axis=[{axis}], exclude=True)",
)
"""What uses of a program along ``axis`` are made of: ``%whole`` has the convolution's shape, ``%along`` the axis alone,
``%last`` the dimensions from it on."""


def _shape(layout: str) -> list[int]:
    axes = Layout(layout)
    return [a.block or EXTENTS[a.name] // axes.factor(a.name) for a in axes.axes]


def _param(name: str, shape: list[int]) -> str:
    return f"%{name}: Tensor[({', '.join(map(str, shape))}), float32]"


def _program(layout: str, axis: int, after: str) -> str:
    shape, kernel = _shape(layout), LAYOUTS[layout]
    weight = [
        1 if n in (4, 6) and a.name in "HW" else n for n, a in zip(_shape(kernel), Layout(kernel).axes, strict=True)
    ]
    params = {"x": shape, "w": weight, "vector": [shape[axis]], "whole": shape, "last": shape[axis:]}
    params["along"] = [n if d == axis else 1 for d, n in enumerate(shape)]
    used = {name: extents for name, extents in params.items() if name in ("x", "w") or f"%{name}" in after}
    first = [axis, *(d for d in range(len(shape)) if d != axis)]
    how = {
        "axis": axis,
        "layout": f'"{layout}"',
        "first": first,
        "pads": [[int(d == axis), 0] for d in range(len(shape))],
    }
    how |= {"extent": shape[axis], "half": -(-shape[axis] // 2)}
    return f"""
    def @main({", ".join(_param(*one) for one in used.items())}) {{
        %c = nn.conv2d(%x, %w, data_layout="{layout}", kernel_layout="{kernel}");
        {after.format(**how)}
    }}"""


def _axes(layout: str, after: str) -> range:
    along = any(part in after for part in ("{axis}", "{first}", "{pads}", "%along", "%last"))
    return range(Layout(layout).rank if along else 1)


@pytest.mark.parametrize(("old", "new"), [(a, b) for a in LAYOUTS for b in LAYOUTS if a != b])
def test_operators_behind_a_convolution_compute_the_same(old: str, new: str) -> None:
    for after in FOLLOWERS:
        for axis in _axes(old, after):
            run(ConvertLayout({"nn.conv2d": [new, LAYOUTS[new]]}), _program(old, axis, after))


@pytest.mark.parametrize("block", [4, 16])
def test_a_convolution_whose_channels_are_no_blocks_stays_alone(block: int) -> None:
    """The stem of three channels; all others move."""
    module, _ = resnet.get_workload(num_layers=18, image_shape=(3, 32, 32), num_classes=10)
    with decisions() as made:
        out = ConvertLayout({"nn.conv2d": [f"NCHW{block}c", f"OIHW{block}i{block}o"]})(module)
    text = str(out)
    assert text.count(f'data_layout="NCHW{block}c"') == text.count("nn.conv2d(") - 1
    assert any(f"blocks of {block} do not divide" in str(decision) for decision in made)
