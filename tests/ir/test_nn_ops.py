"""Operators of neural networks: solving of untyped arguments, unknown dimensions, and every error's text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minitvm.errors import TypeInferenceError
from minitvm.ir.builder import image, nn, qnn, var
from minitvm.ir.expr import Call, Var, span_scope
from minitvm.ir.op import OPS, Fusion
from minitvm.ir.types import DTYPES, TensorType, Type, alike


def _v(name: str, *shape: int | None, dtype: str = "float32") -> Var:
    return var(name, shape=shape, dtype=dtype)


DATA = _v("data", 1, 3, 8, 8)
STATE = {"h0": _v("h0", 2, 3), "c0": _v("c0", 2, 3)}


# ---- argument types from attributes -------------------------------------------------------------------------------


def _solved(name: str, *types: Type | None, **attributes: Any) -> list[str]:
    return [str(t) for t in OPS[name](**attributes).solve(list(types))]


SOLVED: list[tuple[str, dict[str, Any], tuple[int, ...], list[tuple[int, ...]]]] = [
    ("nn.conv2d", {"channels": 16, "kernel_size": (3, 5)}, (1, 4, 9, 9), [(16, 4, 3, 5)]),
    ("nn.conv2d", {"channels": 16, "kernel_size": 3, "groups": 4}, (1, 4, 9, 9), [(16, 1, 3, 3)]),
    (
        "nn.conv2d",
        {"channels": 6, "kernel_size": 3, "data_layout": "NHWC", "kernel_layout": "HWIO"},
        (1, 9, 9, 4),
        [(3, 3, 4, 6)],
    ),
    (
        "nn.contrib_conv2d_NCHWc",
        {"channels": 16, "kernel_size": 3, "data_layout": "NCHW4c", "kernel_layout": "OIHW4i8o"},
        (1, 3, 9, 9, 4),
        [(2, 3, 3, 3, 4, 8)],
    ),
    ("nn.conv2d_transpose", {"channels": 8, "kernel_size": 2, "groups": 2}, (1, 4, 9, 9), [(4, 4, 2, 2)]),
    ("nn.dense", {"units": 7}, (2, 5), [(7, 5)]),
    ("nn.matmul", {"units": 7}, (2, 5), [(5, 7)]),
    ("nn.bias_add", {"axis": -1}, (2, 5), [(5,)]),
    ("nn.prelu", {}, (2, 5, 3), [(5,)]),
    ("nn.batch_norm", {"axis": 3}, (1, 2, 3, 4), [(4,)] * 4),
    ("nn.layer_norm", {}, (1, 2, 6), [(6,)] * 2),
    ("nn.group_norm", {"num_groups": 2}, (1, 4, 6), [(4,)] * 2),
]


@pytest.mark.parametrize(("name", "attributes", "data", "found"), SOLVED)
def test_types_are_solved_from_the_data_and_the_attributes(
    name: str, attributes: dict[str, Any], data: tuple[int, ...], found: list[tuple[int, ...]]
) -> None:
    given = TensorType(data, "float16")
    types: list[Type | None] = [given, *[None] * len(found)]
    solved = OPS[name](**attributes).solve(types)
    assert solved == [given, *(TensorType(shape, "float16") for shape in found)]
    OPS[name](**attributes).infer(*solved)


def test_known_types_are_kept_and_too_little_is_left_open() -> None:
    weight = TensorType((9, 3, 1, 1))
    assert OPS["nn.conv2d"](channels=4, kernel_size=3).solve([DATA.type, weight]) == [DATA.type, weight]
    assert OPS["nn.conv2d"](channels=4).solve([DATA.type, None]) == [DATA.type, None]
    assert OPS["nn.dense"](units=3).solve([None, None]) == [None, None]
    assert (
        _solved("nn.lstm", TensorType((5, 2, 12)), TensorType((12, 3)), None, None)[2:]
        == ["Tensor[(2, 3), float32]"] * 2
    )


# ---- attributes and types -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"), [(1, (1,) * 4), ((1, 2), (1, 2, 1, 2)), ([1, 2, 3, 4], (1, 2, 3, 4)), ((5,), (5,) * 4)]
)
def test_padding_is_top_left_bottom_right(given: Any, kept: tuple[int, ...]) -> None:
    for name in ("nn.conv2d", "nn.conv2d_transpose", "nn.max_pool2d"):
        assert OPS[name](padding=given).padding == kept  # type: ignore[attr-defined]


def test_equal_attributes_make_equal_operators() -> None:
    conv = OPS["nn.conv2d"]
    assert conv(padding=[1, 1], strides=2) == conv(padding=1, strides=(2, 2)) != conv(padding=1)
    assert conv() == conv(padding=0, strides=1, dilation=1)


def test_batch_and_pixels_may_be_unknown() -> None:
    x = _v("x", None, 3, None, 8)
    batch, _, rows, _ = x.tensor_type.shape
    assert nn.conv2d(x, _v("w", 4, 3, 3, 3), padding=1).type == TensorType((batch, 4, rows, 8))
    assert alike(nn.max_pool2d(x, pool_size=2, strides=2).type, TensorType((None, 3, None, 4)))
    assert alike(nn.dense(_v("x", None, 5), _v("w", 7, 5)).type, TensorType((None, 7)))


def test_batch_norm_and_dropout_return_tuples() -> None:
    norm = nn.batch_norm(DATA, *(_v(n, 3) for n in ("gamma", "beta", "mean", "var")))
    assert norm[0].type == DATA.type and norm[2].type == TensorType((3,))
    assert len(list(nn.dropout(DATA))) == 2


def test_a_blocked_convolution_takes_a_plain_image_with_few_channels() -> None:
    found = nn.contrib_conv2d_NCHWc(
        DATA, _v("w", 2, 1, 3, 3, 3, 8), data_layout="NCHW", kernel_layout="OIHW3i8o", out_layout="NCHW8c", padding=1
    )
    assert found.type == TensorType((1, 2, 8, 8, 8))


def test_fusion_patterns_are_relays() -> None:
    patterns = {
        Fusion.ELEMWISE: "nn.relu nn.leaky_relu",
        Fusion.BROADCAST: "nn.bias_add nn.prelu",
        Fusion.INJECTIVE: "nn.pad layout_transform nn.depth_to_space image.resize2d nn.upsampling",
        Fusion.OUT_ELEMWISE_FUSABLE: "nn.conv2d nn.conv2d_transpose nn.contrib_conv2d_NCHWc nn.dense nn.batch_matmul "
        "nn.max_pool2d nn.avg_pool2d nn.global_avg_pool2d nn.softmax nn.log_softmax nn.batch_norm",
        Fusion.OPAQUE: "nn.lrn nn.dropout nn.lstm",
    }
    for fusion, names in patterns.items():
        assert [OPS[name].fusion for name in names.split()] == [fusion] * len(names.split())


def test_softmax_of_large_values_does_not_overflow() -> None:
    x = np.array([[1e4, 1e4 - 1, -1e4]], "float32")
    found = OPS["nn.softmax"]().reference(x)
    np.testing.assert_allclose(found, [[1 / (1 + np.exp(-1)), 1 / (1 + np.e), 0]], rtol=1e-6)
    assert OPS["nn.log_softmax"]().reference(x)[0, 2] == pytest.approx(-2e4 - np.log1p(np.exp(-1)), rel=1e-7)


def test_quantize_rounds_half_to_even_and_saturates() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1000, -1000], "float32")
    one, zero = np.float32(1), np.int8(0)
    found = OPS["qnn.quantize"]().reference(x, np.asarray(one), np.asarray(zero))
    assert found.tolist() == [0, 2, 2, 0, -2, 127, -128]


def test_int8_sums_are_exact() -> None:
    x, w = np.full((1, 4096), 255, "uint8"), np.full((1, 4096), -128, "int8")
    assert OPS["nn.dense"](out_dtype="int32").reference(x, w).tolist() == [[-255 * 128 * 4096]]


# ---- errors -------------------------------------------------------------------------------------------------------


def test_the_designs_example_word_for_word() -> None:
    with span_scope(("conv1",)), pytest.raises(TypeInferenceError) as error:
        nn.conv2d(DATA, _v("w", 8, 4, 3, 3), padding=(1, 1))
    assert str(error.value) == (
        "nn.conv2d: the input has 3 channels but the weight expects 4\n"
        '  | nn.conv2d(%data, %w, padding=[1, 1, 1, 1])      from ONNX node "conv1"\n'
        "  |   %data: Tensor[(1, 3, 8, 8), float32]\n"
        "  |   %w: Tensor[(8, 4, 3, 3), float32]\n"
        "  = hint: weights are OIHW; with groups=1 the weight's second dimension must be 3"
    )


def _conv(*weight: int | None, data: Var = DATA, dtype: str = "float32", **attributes: Any) -> Callable[[], Call]:
    return lambda: nn.conv2d(data, _v("w", *weight, dtype=dtype), **attributes)


def _deconv(*weight: int, data: Var = DATA, **attributes: Any) -> Callable[[], Call]:
    return lambda: nn.conv2d_transpose(data, _v("w", *weight), **attributes)


def _blocked(name: str, data: tuple[int, ...], weight: tuple[int, ...], **attributes: Any) -> Callable[[], Call]:
    return lambda: getattr(nn, name)(_v("d", *data), _v("w", *weight), **attributes)


def _lstm(xw: tuple[int, ...], weight: tuple[int, ...], **states: Var) -> Callable[[], Call]:
    return lambda: nn.lstm(_v("xw", *xw), _v("r", *weight), **{**STATE, **states})


D = "Tensor[(1, 3, 8, 8), float32]"
HINT_RANK = "add or remove dimensions with reshape, or name the layout that the tensor has"

ERRORS: list[tuple[Callable[[], Any], str, str | None]] = [
    (
        _conv(8, 4, 3, 3, data=_v("d", 1, 4, 8, 8), groups=2),
        "nn.conv2d: the input has 4 channels but the weight expects 8",
        "weights are OIHW; with groups=2 the weight's second dimension must be 2",
    ),
    (
        _conv(3, 3, 4, 8, kernel_layout="HWIO"),
        "nn.conv2d: the input has 3 channels but the weight expects 4",
        "weights are HWIO; with groups=1 the weight's third dimension must be 3",
    ),
    (_conv(8, 4, 3, 3, groups=2), "nn.conv2d: groups=2 does not divide the 3 input channels", None),
    (_conv(8, 1, 3, 3, groups=3), "nn.conv2d: groups=3 does not divide the 8 filters", None),
    (_conv(8, 3, 3, 3, groups=0), "nn.conv2d: groups=0 must be positive", None),
    (
        _conv(8, 3, 3, 3, data=_v("d", 3, 8, 8)),
        "nn.conv2d: the input has 3 dimensions but layout NCHW has 4: Tensor[(3, 8, 8), float32]",
        HINT_RANK,
    ),
    (
        _conv(8, 3, 3),
        "nn.conv2d: the weight has 3 dimensions but layout OIHW has 4: Tensor[(8, 3, 3), float32]",
        HINT_RANK,
    ),
    (
        _conv(8, 3, 5, 5, dilation=2),
        "nn.conv2d: the window spans 9 along H but the padded input has 8",
        "use a smaller kernel or dilation, or more padding",
    ),
    (_conv(8, 3, 3, 3, channels=16), "nn.conv2d: channels=16 but the weight has 8 filters", None),
    (_conv(8, 3, 3, 3, kernel_size=5), "nn.conv2d: kernel_size=[5, 5] but the weight's is [3, 3]", None),
    (_conv(8, 3, 3, 3, strides=(1, 2, 3)), "nn.conv2d: strides=[1, 2, 3] has 3 numbers, expected 1 or 2", None),
    (_conv(8, 3, 3, 3, padding=(1, 2, 3)), "nn.conv2d: padding=[1, 2, 3] has 3 numbers, expected 1 or 2 or 4", None),
    (_conv(8, 3, 3, 3, strides=0), "nn.conv2d: strides=[0] has a number below 1", None),
    (_conv(8, 3, 3, 3, padding=-1), "nn.conv2d: padding=[-1] has a number below 0", None),
    (_conv(8, 3, 3, 3, data_layout="NCDH"), "nn.conv2d: data_layout='NCDH' must have the axes N, C, H, W", None),
    (_conv(8, 3, 3, 3, kernel_layout="NCHW"), "nn.conv2d: kernel_layout='NCHW' must have the axes O, I, H, W", None),
    (
        _conv(8, 3, 3, 3, data_layout="nchw"),
        "'nchw' is not a layout: axes are capital letters, blocks a number and a small letter",
        "layouts look like NCHW, NHWC, OIHW, NCHW8c",
    ),
    (
        _conv(8, 3, 3, 3, dtype="float16"),
        f"nn.conv2d: dtypes differ: {D} and Tensor[(8, 3, 3, 3), float16]",
        "cast one side; int8 with uint8 needs out_dtype",
    ),
    (
        _conv(8, 3, 3, 3, out_dtype="float8"),
        f"nn.conv2d: attribute 'out_dtype' is 'float8', expected one of {', '.join(map(repr, ('', *DTYPES)))}",
        None,
    ),
    (_conv(8, None, 3, 3), "nn.conv2d: the weight must have a known shape, not Tensor[(8, ?, 3, 3), float32]", None),
    (
        _conv(8, 3, 3, 3, data=_v("d", 1, None, 8, 8)),
        "nn.conv2d: the input's channels must be known",
        "only the batch and the spatial dimensions may be unknown",
    ),
    (
        lambda: Call(
            OPS["nn.extract_tiles"](tile=(2, 2), steps=(2, 2), before=(0, 0), counts=(2, 2), layout="NC"),
            [_v("d", 4, 4)],
        ),
        "nn.extract_tiles: layout='NC' must have the axes N, C, H, W; only C may be in blocks",
        None,
    ),
    (
        _blocked("contrib_conv2d_NCHWc", (1, 1, 8, 8, 4), (1, 1, 3, 3, 8, 8), data_layout="NCHW4c"),
        "nn.contrib_conv2d_NCHWc: the data's layout NCHW4c has other blocks than the inputs of OIHW8i8o",
        None,
    ),
    (
        _blocked("contrib_conv2d_NCHWc", (1, 1, 8, 8, 8), (1, 1, 3, 3, 8, 8), groups=2),
        "nn.contrib_conv2d_NCHWc: 2 groups of data Tensor[(1, 1, 8, 8, 8), float32] in NCHW8c, "
        "Tensor[(1, 1, 3, 3, 8, 8), float32] in OIHW8i8o: blocks straddle groups",
        "keep nn.conv2d",
    ),
    (
        _blocked("contrib_conv2d_NCHWc", (1, 1, 8, 8, 8), (1, 1, 3, 3, 8, 8), out_layout="NCHW16c"),
        "nn.contrib_conv2d_NCHWc: the blocks of the result's layout NCHW16c do not divide those of the filters of "
        "OIHW8i8o",
        None,
    ),
    (
        _blocked("contrib_depthwise_conv2d_NCHWc", (1, 2, 8, 8, 8), (2, 1, 3, 3, 1, 8), groups=8),
        "nn.contrib_depthwise_conv2d_NCHWc: groups=8, 16 input channels, weight layout OIHW1i8o: "
        "not a depthwise convolution",
        "groups must equal the input channels and the weight's layout be OIHW1i[y]o",
    ),
    (
        _deconv(4, 2, 3, 3),
        "nn.conv2d_transpose: the input has 3 channels but the weight expects 4",
        "weights are IOHW: the first dimension must be 3",
    ),
    (_deconv(3, 2, 3, 3, groups=2), "nn.conv2d_transpose: groups=2 does not divide the 3 input channels", None),
    (_deconv(3, 2, 3, 3, channels=4), "nn.conv2d_transpose: channels=4 but the weight has 2 filters", None),
    (_deconv(3, 2, 3, 3, padding=5), "nn.conv2d_transpose: padding=[5, 5, 5, 5] removes all 10 elements along H", None),
    (
        lambda: nn.dense(_v("x", 2, 3), _v("w", 4, 5)),
        "nn.dense: inner dimensions differ: Tensor[(2, 3), float32] and Tensor[(4, 5), float32]",
        "weight is (units, features): its second dimension must equal the input's",
    ),
    (
        lambda: nn.dense(_v("x", 2, 3, 4), _v("w", 4, 5)),
        "nn.dense: the input must have 2 dimensions, (rows, features), not Tensor[(2, 3, 4), float32]",
        "reshape it",
    ),
    (lambda: nn.dense(_v("x", 2, 3), _v("w", 4, 3), units=5), "nn.dense: units=5 but the weight has 4 rows", None),
    (
        lambda: nn.contrib_dense_pack(_v("x", 2, 3), _v("w", 4, 3, 8), weight_layout="NCHW"),
        "nn.contrib_dense_pack: weight_layout='NCHW' must be NC[n]n, for example NC8n",
        None,
    ),
    (
        lambda: nn.matmul(_v("a", 2, 3), _v("b", 2, 3)),
        "nn.matmul: inner dimensions differ: Tensor[(2, 3), float32] and Tensor[(2, 3), float32]",
        "with transpose_a=False and transpose_b=False the product is (2, 3) by (2, 3)",
    ),
    (
        lambda: nn.batch_matmul(_v("a", 2, 3, 4), _v("b", 3, 5, 4)),
        "nn.batch_matmul: batches differ: Tensor[(2, 3, 4), float32] and Tensor[(3, 5, 4), float32]",
        "they must be equal, or one of them 1",
    ),
    (lambda: nn.bias_add(DATA, _v("b", 4)), "nn.bias_add: the bias has 4 elements but axis 1 of the input has 3", None),
    (lambda: nn.bias_add(DATA, _v("b", 4), axis=4), "nn.bias_add: axis 4 is out of range for rank 4", None),
    (lambda: nn.softmax(DATA, axis=-5), "nn.softmax: axis -5 is out of range for rank 4", None),
    (
        lambda: nn.softmax(_v("x", 2, dtype="int32")),
        "nn.softmax: the input is Tensor[(2,), int32]; expected float",
        None,
    ),
    (
        lambda: nn.prelu(DATA, _v("a", 8)),
        "nn.prelu: alpha must be (3,), one slope for each place along axis 1, not Tensor[(8,), float32]",
        None,
    ),
    (
        lambda: nn.batch_norm(DATA, _v("g", 3), _v("b", 4), _v("m", 3), _v("v", 3)),
        "nn.batch_norm: beta must be (3,), one number for each place along axis 1 of the input, "
        "not Tensor[(4,), float32]",
        f"the input is {D}",
    ),
    (
        lambda: nn.group_norm(DATA, _v("g", 3), _v("b", 3), num_groups=2),
        "nn.group_norm: num_groups=2 does not divide the 3 channels",
        None,
    ),
    (lambda: nn.lrn(DATA, size=0), "nn.lrn: size=0 must be positive", None),
    (
        lambda: nn.max_pool2d(DATA, pool_size=10),
        "nn.max_pool2d: the window spans 10 along H but the padded input has 8",
        "use a smaller kernel or dilation, or more padding",
    ),
    (
        lambda: nn.max_pool2d(DATA, layout="NCHW8h"),
        "nn.max_pool2d: layout='NCHW8h' must have the axes N, C, H, W; only C may be in blocks",
        None,
    ),
    (
        lambda: nn.global_avg_pool2d(DATA, layout="NCHW4c"),
        f"nn.global_avg_pool2d: the input has 4 dimensions but layout NCHW4c has 5: {D}",
        None,
    ),
    (
        lambda: nn.global_max_pool2d(_v("x", 1, 3, 0, 4)),
        "nn.global_max_pool2d: the input has no pixels: Tensor[(1, 3, 0, 4), float32]",
        None,
    ),
    (
        _lstm((5, 2, 16), (12, 3)),
        "nn.lstm: xw has 16 features but the weight has 4 gates of 3: Tensor[(5, 2, 16), float32]",
        None,
    ),
    (
        _lstm((5, 2, 9), (9, 3)),
        "nn.lstm: recurrent_weight must be (4 * hidden, hidden), not Tensor[(9, 3), float32]",
        None,
    ),
    (
        _lstm((5, 2, 12), (12, 3), h0=_v("h0", 1, 3)),
        "nn.lstm: h0 must be Tensor[(2, 3), float32], not Tensor[(1, 3), float32]",
        None,
    ),
    (
        lambda: image.resize2d(DATA, size=(0, 3)),
        "image.resize2d: size=[0, 3] must be a height and a width, both positive",
        None,
    ),
    (
        lambda: image.resize2d(DATA, size=(4, 3), method="lanczos"),
        "image.resize2d: attribute 'method' is 'lanczos', expected one of 'nearest_neighbor', 'linear', 'cubic'",
        None,
    ),
    (
        lambda: nn.pad(DATA, pad_width=((0, 0), (1, 1))),
        f"nn.pad: pad_width=[(0, 0), (1, 1)] must have one pair for each dimension of {D}",
        None,
    ),
    (
        lambda: nn.pad(_v("x", 3), pad_width=((-1, 0),)),
        "nn.pad: pad_width=[(-1, 0)] is negative",
        "use strided_slice to cut off",
    ),
    (
        lambda: nn.pad(_v("x", 3), pad_width=((3, 0),), pad_mode="reflect"),
        "nn.pad: reflect padding by 3 needs 4 elements: Tensor[(3,), float32]",
        None,
    ),
    (lambda: nn.depth_to_space(DATA, block_size=2), "nn.depth_to_space: the input's C=3 is not a multiple of 4", None),
    (
        lambda: qnn.quantize(DATA, _v("s", 4), _v("z", 4, dtype="int8"), axis=1),
        f"qnn.quantize: scale has 4 numbers but axis 1 of {D} has 3",
        None,
    ),
    (
        lambda: qnn.quantize(DATA, _v("s"), _v("z", dtype="int8"), out_dtype="int64"),
        "qnn.quantize: attribute 'out_dtype' is 'int64', expected one of 'int8', 'uint8', 'int16', 'uint16', "
        "'int4', 'uint4', 'int2', 'uint2'",
        None,
    ),
    (
        lambda: qnn.dequantize(DATA, _v("s"), _v("z", dtype="int8")),
        "qnn.dequantize: the input is float32; quantized tensors are int8, uint8, int16, uint16 or int32",
        None,
    ),
]


@pytest.mark.parametrize(("build", "message", "hint"), ERRORS, ids=[e[1][:70] for e in ERRORS])
def test_what_does_not_fit_is_refused(build: Callable[[], Any], message: str, hint: str | None) -> None:
    with pytest.raises(TypeInferenceError) as error:
        build()
    assert (error.value.message, error.value.hint) == (message, hint)


def test_an_infinite_cell_is_not_seen_without_peepholes() -> None:
    """Infinity times a peephole of 0 would be NaN."""
    xw, weight = np.zeros((1, 1, 4), "float32"), np.ones((4, 1), "float32")
    h, c = np.zeros((1, 1)), np.full((1, 1), -np.inf)
    y, _, last = OPS["nn.lstm"]().reference(xw, weight, h.astype("float32"), c.astype("float32"))
    np.testing.assert_array_equal([y[0], last], [[[-0.5]], [[-np.inf]]])
