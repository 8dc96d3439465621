"""Sample rows for the operators of neural networks: what ``test_ops.py`` checks, as in ``op_samples.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
from op_samples import Sample, bools, floats, ints, row
from op_samples_quantized import QUANTIZED
from operator_cases.norms import quantized_recurrence


def _conv(name: str, data: Any, weight: Any, **attributes: Any) -> Sample:
    return row(name, floats(*data), floats(*weight), **attributes)


def words(*shape: int) -> np.ndarray:
    """Four bytes each."""
    return ints(*shape, 4, low=0, high=255, dtype="uint8").view("<i4")[..., 0]


_C2 = "nn.conv2d"
_NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
_BLOCKED = "nn.contrib_conv2d_NCHWc"
_DEPTHWISE = "nn.contrib_depthwise_conv2d_NCHWc"

CONVOLUTIONS = [
    _conv(_C2, (2, 3, 5, 6), (4, 3, 3, 2)),
    _conv(_C2, (1, 4, 6, 7), (2, 4, 3, 3), padding=1, strides=2, channels=2, kernel_size=3),
    _conv(_C2, (1, 2, 7, 8), (3, 2, 3, 2), padding=(1, 0, 2, 3), dilation=(2, 1), strides=(1, 3)),
    _conv(_C2, (1, 4, 5, 5), (6, 2, 3, 3), groups=2, padding=(1, 1)),
    _conv(_C2, (2, 4, 5, 5), (4, 1, 3, 3), groups=4, padding=1),
    _conv(_C2, (1, 3, 4, 4), (6, 1, 3, 3), groups=3),
    _conv(_C2, (1, 5, 6, 3), (3, 2, 3, 4), padding=1, **_NHWC),
    _conv(_C2, (1, 5, 6, 4), (4, 3, 2, 4), data_layout="NHWC", kernel_layout="OHWI"),
    _conv(_C2, (1, 5, 6, 4), (3, 3, 4, 1), groups=4, data_layout="NHWC", kernel_layout="HWOI", padding=1),
    _conv(_C2, (1, 4, 3, 5), (2, 4, 1, 1), out_layout="NHWC"),
    row(_C2, floats(1, 3, 4, 4, dtype="float16"), floats(2, 3, 3, 3, dtype="float16"), padding=1),
    row(_C2, floats(1, 2, 4, 4, dtype="float64"), floats(2, 2, 3, 3, dtype="float64")),
    row(_C2, ints(1, 3, 4, 4, high=127, dtype="int8"), ints(2, 3, 3, 3, dtype="int8"), out_dtype="int32", padding=1),
    row(_C2, ints(1, 3, 4, 4, low=0, high=255, dtype="uint8"), ints(2, 3, 2, 2, dtype="int8"), out_dtype="int32"),
    _conv("nn.conv1d", (2, 3, 9), (4, 3, 3), padding=(1, 2), strides=2),
    _conv("nn.conv1d", (1, 9, 4), (3, 2, 6), groups=2, data_layout="NWC", kernel_layout="WIO", dilation=2),
    _conv("nn.conv3d", (1, 2, 4, 5, 3), (3, 2, 2, 3, 2), padding=(1, 0, 1), strides=(2, 1, 1)),
    row(
        "qnn.contrib_conv2d_NCHWc",
        words(1, 2, 5, 4, 2),
        words(3, 2, 3, 3, 2, 4),
        padding=1,
        data_layout="NCHW2c",
        kernel_layout="OIHW2i4o",
        out_layout="NCHW2c",
        channels=10,
    ),
    row(
        "qnn.contrib_conv2d_NCHWc",
        words(1, 2, 5, 4, 2),
        words(2, 2, 3, 3, 2, 4),
        padding=1,
        data_layout="NCHW2c",
        kernel_layout="OIHW2i4o",
        out_layout="NCHW4c",
        product="dot2",
    ),
    _conv(
        _BLOCKED,
        (1, 2, 5, 4, 4),
        (3, 2, 3, 3, 4, 2),
        padding=1,
        data_layout="NCHW4c",
        kernel_layout="OIHW4i2o",
        out_layout="NCHW2c",
    ),
    _conv(
        _BLOCKED,
        (1, 4, 5, 4, 4),
        (6, 2, 3, 3, 4, 4),
        groups=2,
        padding=1,
        data_layout="NCHW4c",
        kernel_layout="OIHW4i4o",
        out_layout="NCHW4c",
    ),
    _conv(
        _BLOCKED,
        (2, 3, 6, 5),
        (2, 1, 3, 3, 3, 4),
        strides=2,
        data_layout="NCHW",
        kernel_layout="OIHW3i4o",
        out_layout="NCHW4c",
    ),
    _conv(
        _DEPTHWISE,
        (1, 2, 5, 5, 4),
        (2, 1, 3, 3, 1, 4),
        padding=1,
        strides=(1, 2),
        groups=8,
        data_layout="NCHW4c",
        kernel_layout="OIHW1i4o",
        out_layout="NCHW4c",
    ),
]

_WINOGRAD = {"data_layout": "NCHW4c", "kernel_layout": "OHWI4i4o"}
WINOGRAD = [
    _conv(
        "nn.contrib_conv2d_winograd_NCHWc",
        (2, 2, 5, 4, 4),
        (2, 4, 4, 2, 4, 4),
        tile_size=2,
        out_layout="NCHW4c",
        **_WINOGRAD,
    ),
    _conv(
        "nn.contrib_conv2d_winograd_NCHWc",
        (1, 1, 4, 7, 4),
        (2, 6, 6, 1, 4, 4),
        padding=(1, 0, 2, 1),
        channels=6,
        out_layout="NCHW2c",
        **_WINOGRAD,
    ),
    row("nn.contrib_conv2d_winograd_weight_transform", floats(3, 2, 3, 3), tile_size=2),
    row("nn.contrib_conv2d_winograd_weight_transform", floats(3, 2, 3, 3, dtype="float64"), tile_size=4),
]

TRANSPOSED = [
    _conv("nn.conv2d_transpose", (1, 3, 4, 5), (3, 2, 3, 3)),
    _conv("nn.conv2d_transpose", (2, 3, 4, 3), (3, 2, 3, 2), strides=2, padding=(1, 0, 0, 1), output_padding=(1, 0)),
    _conv("nn.conv2d_transpose", (1, 4, 3, 3), (4, 3, 2, 2), strides=(2, 3), groups=2, dilation=2),
    _conv("nn.conv2d_transpose", (1, 4, 4, 3), (3, 3, 2, 3), data_layout="NHWC", kernel_layout="HWOI", padding=1),
    _conv("nn.conv2d_transpose", (1, 2, 2, 2), (2, 1, 1, 1), strides=3, output_padding=2),
    _conv("nn.conv1d_transpose", (1, 3, 5), (3, 2, 4), strides=2, padding=1),
    _conv("nn.conv3d_transpose", (1, 2, 2, 3, 2), (2, 2, 2, 2, 3), strides=(1, 2, 2)),
]

MATRICES = [
    row("nn.dense", floats(3, 5), floats(4, 5)),
    row("nn.dense", floats(1, 7, dtype="float16"), floats(3, 7, dtype="float16"), units=3),
    row("nn.dense", ints(2, 9, low=0, high=255, dtype="uint8"), ints(3, 9, dtype="int8"), out_dtype="int32"),
    row("nn.contrib_dense_pack", floats(3, 5), floats(2, 5, 4), weight_layout="NC4n"),
    row("qnn.words", ints(2, 3, 8, low=0, high=255, dtype="uint8")),
    row("qnn.words", ints(4, low=-128, dtype="int8")),
    row("qnn.words", ints(3, 4, low=-32768, high=32767, dtype="int16")),
    row("qnn.contrib_dense_pack", words(3, 5), words(2, 5, 4), weight_layout="NC4n", units=7, out_dtype="int32"),
    row("qnn.contrib_dense_pack", words(3, 5), words(2, 5, 4), weight_layout="NC4n", product="dot2"),
    row("nn.matmul", floats(3, 5), floats(5, 4)),
    row("nn.matmul", floats(5, 3), floats(4, 5), transpose_a=True, transpose_b=True),
    row("nn.matmul", ints(3, 5), ints(5, 4)),
    row("nn.batch_matmul", floats(2, 3, 5), floats(2, 4, 5)),
    row("nn.batch_matmul", floats(1, 5, 3), floats(3, 5, 4), transpose_a=True, transpose_b=False),
    row("nn.batch_matmul", floats(3, 2, 5), floats(1, 4, 5)),
    row("nn.batch_matmul", ints(2, 2, 3, dtype="int8"), ints(2, 4, 3, dtype="uint8", low=0), out_dtype="int32"),
    row("nn.attention", floats(2, 3, 2, 5), floats(2, 7, 2, 5), floats(2, 7, 2, 4), scale=0.4),
    row("nn.attention", *(floats(1, n, 3, 2, dtype="float16") for n in (5, 4, 4)), floats(5, 4), empty_rows="zero"),
    row("nn.attention", *(floats(1, n, 1, 3) for n in (4, 6, 6)), bools(1, 1, 4, 6), fill=-2.5),
    row("nn.bias_add", floats(2, 3, 4, 5), floats(3)),
    row("nn.bias_add", floats(2, 3, 4), floats(4), axis=-1),
    row("nn.bias_add", ints(4, 3), ints(4), axis=0),
]

POOLS = [
    row("nn.max_pool2d", floats(1, 2, 6, 7), pool_size=(3, 2), strides=2),
    row("nn.max_pool2d", floats(1, 2, 5, 5, low=-3, high=-1), pool_size=3, padding=1, strides=2),
    row("nn.max_pool2d", floats(1, 2, 6, 6), pool_size=3, strides=2, ceil_mode=True),
    row("nn.max_pool2d", floats(1, 6, 6, 3), pool_size=2, dilation=(2, 3), layout="NHWC"),
    row("nn.max_pool2d", floats(1, 2, 5, 4, 4), pool_size=2, padding=(0, 1, 1, 0), layout="NCHW4c"),
    row("nn.max_pool2d", ints(1, 2, 5, 5, low=-128, high=-100, dtype="int8"), pool_size=3, padding=1),
    row("nn.avg_pool2d", floats(1, 2, 6, 7), pool_size=(3, 2), strides=2),
    row("nn.avg_pool2d", floats(1, 2, 5, 5), pool_size=3, padding=1, strides=2),
    row("nn.avg_pool2d", floats(1, 2, 5, 6), pool_size=3, padding=(1, 0, 2, 1), count_include_pad=True),
    row("nn.avg_pool2d", floats(1, 2, 6, 6), pool_size=3, strides=2, ceil_mode=True),
    row("nn.avg_pool2d", floats(1, 2, 6, 5), pool_size=3, strides=2, ceil_mode=True, count_include_pad=True, padding=1),
    row("nn.avg_pool2d", floats(1, 7, 7, 2), pool_size=3, dilation=2, padding=2, strides=2, layout="NHWC"),
    row("nn.avg_pool2d", floats(1, 2, 4, 4, 2, dtype="float16"), pool_size=2, layout="NCHW2c"),
    row("nn.max_pool1d", floats(2, 3, 8), pool_size=3, strides=2, padding=(1, 0)),
    row("nn.avg_pool1d", floats(2, 3, 8), pool_size=3, strides=2, padding=1),
    row("nn.max_pool3d", floats(1, 2, 4, 5, 4), pool_size=2, strides=(2, 1, 2), padding=1),
    row("nn.avg_pool3d", floats(1, 2, 4, 5, 4), pool_size=(2, 3, 2), padding=1, count_include_pad=True),
    row("nn.global_avg_pool2d", floats(2, 3, 4, 5)),
    row("nn.global_avg_pool2d", floats(1, 2, 4, 5, 4), layout="NCHW4c"),
    row("nn.global_max_pool2d", floats(2, 4, 5, 3), layout="NHWC"),
]


def _norm(name: str, shape: tuple[int, ...], size: int, dtype: str = "float32", **attributes: Any) -> Sample:
    vectors = [floats(size, dtype=dtype) for _ in range(2)]
    return row(name, floats(*shape, dtype=dtype), *vectors, **attributes)


def _batch_norm(shape: tuple[int, ...], size: int, **attributes: Any) -> Sample:
    return row(
        "nn.batch_norm", floats(*shape), *(floats(size) for _ in range(3)), floats(size, low=0.1, high=3), **attributes
    )


NORMS = [
    _batch_norm((2, 3, 4, 5), 3),
    _batch_norm((2, 3), 2, axis=0, scale=False),
    _batch_norm((2, 3, 4), 4, axis=-1, center=False, epsilon=0.3),
    _norm("nn.layer_norm", (2, 3, 8), 8),
    _norm("nn.layer_norm", (2, 6, 3), 6, axis=1, scale=False, epsilon=0.1),
    _norm("nn.layer_norm", (2, 8), 8, dtype="float16", center=False),
    _norm("nn.instance_norm", (2, 3, 4, 5), 3),
    _norm("nn.instance_norm", (2, 6, 3), 3, axis=2, epsilon=1e-2),
    _norm("nn.group_norm", (2, 6, 3, 2), 6, num_groups=3),
    _norm("nn.group_norm", (2, 3, 4), 4, num_groups=2, axis=2),
    row("nn.l2_normalize", floats(2, 3, 4), axis=1),
    row("nn.l2_normalize", floats(2, 3, 4), axis=(0, -1), eps=60.0),
    row("nn.lrn", floats(1, 7, 3, 2), size=3, alpha=0.5, beta=0.75, bias=1.0),
    row("nn.lrn", floats(1, 2, 3, 6), size=4, axis=3, alpha=0.5),
    row("nn.dropout", floats(2, 3)),
]

ACTIVATIONS = [
    row("nn.relu", floats(3, 4)),
    row("nn.relu", ints(3, 4, dtype="int8")),
    row("nn.relu", np.array([np.nan, -np.inf, np.inf, -1.0], "float32")),
    row("nn.leaky_relu", floats(3, 4), alpha=0.1),
    row("nn.prelu", floats(2, 3, 4), floats(3)),
    row("nn.prelu", floats(2, 3, 4), floats(4), axis=-1),
    row("nn.softmax", floats(2, 7)),
    row("nn.softmax", floats(2, 5, 3, low=-90, high=90), axis=1),
    row("nn.softmax", floats(4, dtype="float16")),
    row("nn.log_softmax", floats(2, 7)),
    row("nn.log_softmax", floats(2, 5, 3, low=-90, high=90), axis=-2),
]

LAYOUTS = [
    row("layout_transform", floats(1, 6, 2, 3), src_layout="NCHW", dst_layout="NHWC"),
    row("layout_transform", floats(1, 8, 2, 3), src_layout="NCHW", dst_layout="NCHW4c"),
    row("layout_transform", floats(1, 2, 2, 3, 4), src_layout="NCHW4c", dst_layout="NCHW2c"),
    row("layout_transform", floats(1, 2, 2, 3, 4), src_layout="NCHW4c", dst_layout="NHWC"),
    row("layout_transform", floats(4, 6, 3, 1), src_layout="OIHW", dst_layout="OIHW3i2o"),
    row("layout_transform", ints(6, 5), src_layout="NC", dst_layout="NC3n"),
]


def _recurrent(name: str, steps: int, batch: int, hidden: int, gates: int, *rest: Any, **attributes: Any) -> Sample:
    xw, weight = floats(steps, batch, gates * hidden), floats(gates * hidden, hidden, low=-1, high=1)
    return row(name, xw, weight, *rest, **attributes)


def _quantized_lstm(steps: int, batch: int, hidden: int, zeros: bool, *rest: Any, **attributes: Any) -> Sample:
    xw, states = floats(steps, batch, 4 * hidden), (floats(batch, hidden), floats(batch, hidden))
    return row("qnn.lstm", xw, *quantized_recurrence(hidden, zeros, steps), *states, *rest, **attributes)


RECURRENT = [
    _quantized_lstm(4, 2, 5, False),
    _quantized_lstm(3, 1, 8, True, floats(24), reverse=True),
    _quantized_lstm(0, 2, 4, False),
    _quantized_lstm(2, 0, 4, True),
    _recurrent("nn.lstm", 4, 2, 3, 4, floats(2, 3), floats(2, 3)),
    _recurrent("nn.lstm", 3, 1, 4, 4, floats(1, 4), floats(1, 4), floats(12), reverse=True),
    _recurrent("nn.gru", 4, 2, 3, 3, floats(9), floats(2, 3)),
    _recurrent("nn.gru", 3, 2, 4, 3, floats(12), floats(2, 4), linear_before_reset=True, reverse=True),
    _recurrent("nn.rnn", 4, 2, 3, 1, floats(2, 3)),
    _recurrent("nn.rnn", 2, 1, 5, 1, floats(1, 5), reverse=True),
]

_RESIZE = "image.resize2d"
RESIZES = [
    row(_RESIZE, floats(1, 2, 3, 5), size=(7, 8)),
    row(_RESIZE, floats(1, 2, 7, 6), size=(3, 4), coordinate_transformation_mode="asymmetric"),
    row(_RESIZE, floats(1, 4, 3, 2), size=(5, 6), coordinate_transformation_mode="align_corners", layout="NHWC"),
    row(_RESIZE, floats(1, 2, 4, 3, 4, dtype="float16"), size=(3, 6), layout="NCHW4c"),
    row(_RESIZE, floats(1, 2, 5, 5), size=(1, 3), coordinate_transformation_mode="pytorch_half_pixel"),
    row(_RESIZE, floats(1, 2, 4, 4), size=(6, 6), scales=(1.7, 1.6), coordinate_transformation_mode="asymmetric"),
    row(_RESIZE, floats(1, 2, 4, 5), size=(7, 3), method="cubic"),
    row(_RESIZE, floats(1, 2, 4, 5), size=(7, 9), method="cubic", cubic_alpha=-0.75, scales=(1.9, 1.8)),
    *(
        row(_RESIZE, floats(1, 1, 5, 4), size=size, method="nearest_neighbor", rounding_method=r, **mode)
        for size in ((10, 6), (3, 2))
        for r, mode in (
            ("", {}),
            ("floor", {"coordinate_transformation_mode": "asymmetric"}),
            ("ceil", {"coordinate_transformation_mode": "half_pixel_symmetric"}),
            ("round_prefer_floor", {}),
            ("round_prefer_ceil", {"coordinate_transformation_mode": "pytorch_half_pixel"}),
            ("", {"coordinate_transformation_mode": "align_corners"}),
        )
    ),
    row(_RESIZE, ints(1, 3, 4, 2, dtype="uint8", low=0), size=(8, 12), method="nearest_neighbor", layout="NHWC"),
    row("nn.upsampling", floats(1, 2, 3, 4), scale_h=2, scale_w=3),
    row("nn.upsampling", floats(1, 3, 4, 2), scale_h=2, scale_w=1.5, method="bilinear", layout="NHWC"),
    row("nn.upsampling", floats(1, 2, 3, 4), scale_h=2, scale_w=2, method="bicubic", align_corners=True),
]

PADS = [
    row("nn.pad", floats(2, 3), floats(), pad_width=((1, 0), (2, 3))),
    row("nn.pad", floats(2, 3), pad_width=((0, 0), (2, 0))),
    row("nn.pad", ints(2, 3), ints(1), pad_width=((1, 1), (0, 0))),
    row("nn.pad", floats(2, 3, 4), floats(), pad_width=((0, 0), (2, 1), (3, 3)), pad_mode="reflect"),
    row("nn.pad", floats(2, 3, 4), pad_width=((2, 0), (0, 5), (0, 0)), pad_mode="edge"),
    row("nn.depth_to_space", floats(2, 12, 2, 3), block_size=2),
    row("nn.depth_to_space", floats(1, 2, 3, 8), block_size=2, mode="CRD", layout="NHWC"),
    row("nn.space_to_depth", floats(2, 3, 4, 6), block_size=2),
    row("nn.space_to_depth", floats(1, 3, 6, 2), block_size=3, layout="NHWC"),
]


_PLACES = np.stack([floats(2, 3, 4, low=-1.3, high=1.3) for _ in range(2)], -1)
SAMPLED = [
    row("image.grid_sample", floats(2, 3, 5, 4), _PLACES, method=m, padding_mode=p, align_corners=a)
    for m in ("linear", "nearest", "cubic")
    for p in ("zeros", "border", "reflection")
    for a in (False, True)
]
SAMPLED += [
    row(f"nn.max_pool{d}d_positions", ints(1, 2, *[6] * d, low=0, high=3), pool_size=3, strides=2, padding=1)
    for d in (1, 2, 3)
]
_BOXES = np.concatenate([corner := floats(2, 9, 2, low=0, high=4), corner + floats(2, 9, 2, low=-1, high=3)], -1)
SAMPLED += [
    row(
        "vision.non_max_suppression", _BOXES, np.round(floats(2, 3, 9), 1),
        np.asarray(most), np.asarray(0.3, "f"), np.asarray(least, "f"), center=center, limit=limit,
    )
    for most, least, center, limit in ((3, 0.0, False, 3), (9, -1.0, True, None), (0, 0.0, False, None))
]  # fmt: skip
_STRANGE = np.array([np.nan, np.inf, -1e9, -1], "float32").reshape(2, 1, 1, 2)
_COLUMNS = {"size": (5, 5), "kernel_size": (2, 3), "strides": (1, 1), "dilation": (1, 1), "padding": (0,) * 4}
SAMPLED += [
    row("image.grid_sample", floats(2, 1, 5, 4), _STRANGE),
    row("nn.col2im", floats(2, 12, 12), **_COLUMNS),
    row(
        "ml.tree_leaves", floats(5, 2), np.int32([0, 1, 0]), floats(3), np.array([True, False, True]),
        np.int32([[1, 2], [3, 4], [2, 5]]), np.int32([0, 1, 4]), depth=3,
    ),
    row("ml.pairwise_coupling", np.float32([[[0.09, -0.21], [-0.21, 0.49]]])),
    row("vision.roi_pool", floats(2, 2, 6, 5), np.float32([[1, 0, 1, 3, 4], [0, -2, 2, 9, 2]]), size=(2, 3)),
    row("vision.roi_align", floats(1, 2, 6, 6), floats(3, 4, low=0, high=6), ints(3, low=0, high=0), size=(2, 3)),
]  # fmt: skip

EMPTY = [
    _conv(_C2, (0, 3, 5, 5), (4, 3, 3, 3), padding=1),
    _conv(_C2, (0, 4, 5, 5), (4, 1, 3, 3), groups=4),
    _conv("nn.conv2d_transpose", (0, 3, 4, 4), (3, 2, 3, 3)),
    row("nn.dense", floats(0, 5), floats(4, 5)),
    row("nn.dense", floats(3, 0), floats(4, 0)),
    row("nn.batch_matmul", floats(0, 2, 5), floats(1, 4, 5)),
    row("nn.attention", floats(1, 2, 2, 3), floats(1, 0, 2, 3), floats(1, 0, 2, 4)),
    row("nn.max_pool2d", floats(0, 2, 4, 4), pool_size=2),
    row("nn.avg_pool2d", floats(0, 2, 4, 4), pool_size=2, padding=1),
    row("nn.global_avg_pool2d", floats(0, 3, 4, 5)),
    row("nn.softmax", floats(0, 3)),
    row("nn.softmax", floats(3, 0)),
    row("nn.log_softmax", floats(2, 0)),
    row("nn.relu", floats(0, 3)),
    _norm("nn.layer_norm", (0, 8), 8),
    _batch_norm((0, 3, 2, 2), 3),
    row("nn.lrn", floats(0, 4, 3, 3)),
    row("nn.pad", floats(0, 2), pad_width=((1, 1), (0, 0))),
    row(_RESIZE, floats(0, 2, 3, 3), size=(5, 5)),
    row("nn.depth_to_space", floats(0, 4, 2, 2), block_size=2),
    row("layout_transform", floats(0, 8, 2, 3), src_layout="NCHW", dst_layout="NCHW4c"),
    _recurrent("nn.lstm", 0, 2, 3, 4, floats(2, 3), floats(2, 3)),
    _recurrent("nn.gru", 3, 0, 3, 3, floats(9), floats(0, 3)),
]

SAMPLES: list[Sample] = [
    *CONVOLUTIONS,
    *WINOGRAD,
    *TRANSPOSED,
    *MATRICES,
    *POOLS,
    *NORMS,
    *ACTIVATIONS,
    *LAYOUTS,
    *RECURRENT,
    *RESIZES,
    *PADS,
    *QUANTIZED,
    *SAMPLED,
    *EMPTY,
]
