"""Windows over open pixels: one compilation, right at every size; what the pass makes of them, and leaves."""

import math
import random
from collections.abc import Sequence

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

import minitvm
from minitvm.codegen.templates.window import axis_of
from minitvm.frontend import from_onnx
from minitvm.ir.dims import assumptions, symbol
from minitvm.ir.ops.nn_tiles import ExtractTiles
from minitvm.ir.text import print_expr
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import calls
from minitvm.passes.tile_windows import TileWindows

_KINDS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")


def _drawn(seed: int) -> tuple[ModelProto, int]:
    """A window of random form behind an addition, before a rectifier, of open pixels, and channels that blocks divide
    or do not; whether its images are 11 pixels wide."""
    rng = random.Random(seed)
    kind, channels = _KINDS[seed % len(_KINDS)], rng.choice((6, 32))
    taps = [rng.randint(1, 4) for _ in range(2)]
    attributes = {"strides": [rng.randint(1, 3) for _ in range(2)], "kernel_shape": taps}
    if kind in ("Conv", "ConvTranspose"):
        attributes["group"] = rng.choice((1, 1, 2, channels))
        attributes["dilations"] = [rng.randint(1, 2) for _ in range(2)]
    attributes["pads"] = [rng.randint(0, k - 1) for k in taps * 2]
    if kind == "AveragePool":
        attributes["count_include_pad"] = rng.randint(0, 1)
    weights = {}
    group = attributes.get("group", 1)
    values = np.random.default_rng(seed)
    if kind == "Conv":
        weights["w"] = values.standard_normal((2 * channels, channels // group, *taps)).astype(np.float32)
    elif kind == "ConvTranspose":
        weights["w"] = values.standard_normal((channels, 2 * channels // group, *taps)).astype(np.float32)
    weights["b"] = values.standard_normal((channels, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"]),
        helper.make_node(kind, ["a", *(["w"] if "w" in weights else [])], ["c"], **attributes),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    shape = ["n", channels, "h", "v"] if seed % 3 else [2, channels, "h", 11]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), shape[3] == 11


@pytest.mark.parametrize("seed", range(16))
def test_one_library_is_right_at_every_size(seed: int) -> None:
    model, is_wide = _drawn(seed)
    session, runtime = minitvm.InferenceSession(model), onnxruntime.InferenceSession(model.SerializeToString())
    for n, height, width in ((2, 37, 11), (2, 9, 70), (1, 8, 8), (2, 64, 11)):
        channels = session.get_inputs()[0].shape[1]
        shape = (2, channels, height, 11) if is_wide else (n, channels, height, width)
        x = np.random.default_rng(seed).standard_normal(shape)
        feed = {"x": x.astype(np.float32)}
        [found], [want] = session.run(None, feed), runtime.run(None, feed)
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
    assert len(session.libraries) == 1 and session.symbolic is not None and session.symbolic.taken


def test_what_it_makes_of_a_convolution() -> None:
    """Tiles as large as divide the first run's sizes; the rectifier stays among them."""
    model, _ = _drawn(4)
    with assumptions({"n": 1, "h": 60, "v": 20}):
        module, _ = from_onnx(model, shape_dict={"x": ("n", 6, "h", "v")})
        text = print_expr(TileWindows()(module).main)
    assert text.count("nn.extract_tiles") == text.count("nn.merge_tiles") == 1
    assert text.index("nn.conv2d") < text.index("nn.relu") < text.index("nn.merge_tiles")


def test_what_hangs_over_repeats_the_last_pixels() -> None:
    """Winograd's tiles of zeros beside numbers are out of scale, and slow; what results read behind is padding."""
    convolution = "Conv <pads = [1, 1, 1, 1]> (x, w)"
    graph = f"g (float[1, 1, h, v] x, float[1, 1, 3, 3] w) => (float[1, 1, p, q] y) {{ y = {convolution} }}"
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 19]> ' + graph)
    with assumptions({"h": 9, "v": 9}):
        module, _ = from_onnx(model, shape_dict={"x": (1, 1, "h", "v")})
        (extract,) = [c for c in calls(TileWindows()(module).main.body) if isinstance(c.op, ExtractTiles)]
    tiles = extract.op.with_attributes(counts=(1, 1)).reference(np.ones((1, 1, 4, 7), np.float32))
    assert tiles.shape == (1, 1, 11, 11) and not tiles[0, 0, 5].any() and not tiles[..., 8].any()
    assert tiles[0, 0, 6:, 1:8].all() and tiles[0, 0, 1:5, 9:].all()


def test_images_of_known_size_are_left_alone() -> None:
    model, _ = _drawn(4)
    module, _ = from_onnx(model, shape_dict={"x": (1, 6, 20, 20)})
    assert TileWindows()(module).main is module.main


@pytest.mark.parametrize("taps", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3, 5])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 0, 2], [5, 6, 4, 0]])
def test_transposed_strides_beyond_the_taps(taps: int, stride: int, pads: list[int]) -> None:
    """Pixels that no tap reaches lie between those that one does, and behind the last one of a tile."""
    window = f"ConvTranspose <strides = [{stride}, {stride}], pads = {pads}>"
    graph = f"g (float[n, 2, h, v] x, float[2, 3, {taps}, {taps}] w) => (float[n, 3, p, q] y) {{ y = {window} (x, w) }}"
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 19]> ' + graph)
    session, runtime = minitvm.InferenceSession(model), onnxruntime.InferenceSession(model.SerializeToString())
    for shape in ((2, 2, 11, 16), (1, 2, 12, 19), (1, 2, 37, 90)):
        drawn = {"x": shape, "w": (2, 3, taps, taps)}
        feed = {n: np.random.default_rng(4).standard_normal(s).astype(np.float32) for n, s in drawn.items()}
        [found], [want] = session.run(None, feed), runtime.run(None, feed)
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5, strict=True)
    assert len(session.libraries) == 1


def _of_open_images(body: str, weights: dict[str, tuple[int, ...]]) -> ModelProto:
    """Of an image ``x`` of the first weight's inputs; Winograd's convolutions need constant weights."""
    channels = next(iter(weights.values()))[1]
    declared = ", ".join(f"float{list(shape)} {name}" for name, shape in weights.items())
    graph = f"g (float[n, {channels}, h, v] x) => (float[n, c, p, q] y) <{declared}> {{ {body} }}"
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 19]> ' + graph)
    drawn = {n: np.random.default_rng(2).standard_normal(s) / math.sqrt(math.prod(s[1:])) for n, s in weights.items()}
    del model.graph.initializer[:]
    model.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), n) for n, a in drawn.items())
    return model


def _kernels_of(model: ModelProto, sizes: Sequence[tuple[int, int]]) -> list[str]:
    """The names of the one library's, which is right at all sizes."""
    session, runtime = minitvm.InferenceSession(model), onnxruntime.InferenceSession(model.SerializeToString())
    channels = session.get_inputs()[0].shape[1]
    for height, width in sizes:
        x = np.random.default_rng(2).standard_normal((2, channels, height, width)).astype(np.float32)
        [found], [want] = session.run(None, {"x": x}), runtime.run(None, {"x": x})
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4, strict=True)
    (library,) = session.libraries
    return [node.name for node in library.graph.nodes]


def test_tiles_stay_in_blocks_between_windows() -> None:
    """Cutting an image and putting it together leaves channels in their blocks, whatever its size."""
    body = "c = Conv <pads = [1, 1, 1, 1]> (x, w) y = Conv (c, u)"
    model = _of_open_images(body, {"w": (128, 128, 3, 3), "u": (128, 128, 3, 3)})
    kernels = _kernels_of(model, ((40, 40), (11, 70)))
    (between,) = (name for name in kernels if "merge_tiles" in name and "extract_tiles" in name)
    assert "layout_transform" not in between


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_over_blocks_slide_over_the_image_itself(stride: int, padding: int) -> None:
    """No tile is copied; images as small as a window, whose results all stick out, and wider than any tile."""
    window = f"strides = [{stride}, {stride}], pads = [{padding}, {padding}, {padding}, {padding}]"
    body = f"""c = Conv <{window}> (x, w) r = Relu (c) d = Conv <group = 32, {window}> (r, u) e = Conv (d, t)
    y = MaxPool <kernel_shape = [3, 3], {window if padding < 2 else "strides = [2, 2]"}> (e)"""
    model = _of_open_images(body, {"w": (32, 16, 3, 2), "u": (32, 1, 3, 3), "t": (64, 32, 1, 1)})
    least = 3
    for _ in range(3):
        least = (least - 1) * stride + 3 - 2 * padding
    sizes = [(max(1, least), 45), (45, max(1, least + 1)), (46, 77)]
    assert not any("tiles" in name for name in _kernels_of(model, sizes))


@pytest.mark.parametrize("attributes", ["group = 2", "group = 2, strides = [2, 1]"])
def test_taps_far_apart_read_no_pixels_between_them(attributes: str) -> None:
    """Tiles hold what is read: of 3 x 3 taps 9 times their results at most."""
    window = f"Conv <{attributes}, dilations = [12, 5], pads = [12, 5, 12, 5]>"
    graph = f"g (float[n, 4, h, v] x, float[4, 2, 3, 3] w) => (float[n, 4, p, q] y) {{ y = {window} (x, w) }}"
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 19]> ' + graph)
    session, runtime = minitvm.InferenceSession(model), onnxruntime.InferenceSession(model.SerializeToString())
    for shape in ((2, 4, 6, 4), (1, 4, 32, 3), (1, 4, 14, 40)):
        drawn = {"x": shape, "w": (4, 2, 3, 3)}
        feed = {n: np.random.default_rng(4).standard_normal(s).astype(np.float32) for n, s in drawn.items()}
        [found], [want] = session.run(None, feed), runtime.run(None, feed)
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4, strict=True)
    (library,) = session.libraries
    tiles = next(node.types[0] for node in library.graph.nodes if "extract_tiles" in node.name)
    assert isinstance(tiles, TensorType) and math.prod(d for d in tiles.shape if isinstance(d, int)) <= 9 * 4 * 6 * 4


@pytest.mark.parametrize("counts_padding", [0, 1])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 0, 1]])
@pytest.mark.parametrize("widths", [(1, 2, 9, 1), (9, 1, 2)])
def test_means_of_images_that_are_smaller_than_a_window(
    counts_padding: int, pads: list[int], widths: tuple[int, ...]
) -> None:
    """The one window there is hangs over the end, and divides by what it meets, as where the size is known."""
    pool = f"AveragePool <kernel_shape = [2, 3], strides = [2, 3], pads = {pads}, count_include_pad = {counts_padding}>"
    graph = f"g (float[n, 2, h, v] x) => (float[n, 2, p, q] y) {{ y = {pool} (x) }}"
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 19]> ' + graph)
    session = minitvm.InferenceSession(model)
    for width in widths:
        x = np.random.default_rng(3).standard_normal((1, 2, 5, width)).astype(np.float32)
        expected = minitvm.compile(model, shape_dict={"x": x.shape}).run({"x": x})[0]
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-6, atol=1e-6, strict=True)


@pytest.mark.filterwarnings("ignore::minitvm.driver.program.HostCallWarning")
@pytest.mark.parametrize("axis", [0, 2, 3])
def test_images_whose_size_data_decides_are_left_alone(axis: int) -> None:
    """A tile's place is counted in sizes that have names."""
    window = "y = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (some)"
    graph = f"g (float[2, 3, 4, 5] x, bool[k] c) => (float y) {{ some = Compress <axis = {axis}> (x, c) {window} }}"
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 19]> ' + graph)
    model.graph.output[0].ClearField("type")
    session, runtime = minitvm.InferenceSession(model), onnxruntime.InferenceSession(model.SerializeToString())
    x = np.random.default_rng(2).standard_normal((2, 3, 4, 5)).astype(np.float32)
    for kept in ([True], [True, True], [False, True]):
        feeds = {"x": x, "c": np.array(kept)}
        np.testing.assert_array_equal(session.run(None, feeds)[0], runtime.run(None, feeds)[0])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_padding_never_wins_over_integers(dtype: str) -> None:
    """They have no infinity: outside of the image is the least of them."""
    pool = "MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)"
    graph = f"g ({dtype}[n, 3, h, v] x) => ({dtype}[n, 3, p, q] y) {{ y = {pool} }}"
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 19]> ' + graph)
    session, runtime = minitvm.InferenceSession(model), onnxruntime.InferenceSession(model.SerializeToString())
    info = np.iinfo(dtype)
    for shape in ((1, 3, 5, 7), (2, 3, 40, 9)):
        x = np.random.default_rng(1).integers(info.min, info.min + 9, shape).astype(dtype)
        assert (session.run(None, {"x": x})[0] == runtime.run(None, {"x": x})[0]).all()


@pytest.mark.parametrize(("stride", "pad", "tiles"), [(1, 3, (8, (6,))), (1, 1, (8, (2,))), (2, 3, (4, (2, 1)))])
def test_windows_that_stick_out_are_tiles_of_their_own(
    stride: int, pad: int, tiles: tuple[int, tuple[int, ...]]
) -> None:
    """Those in front, and of a stride of 1 those behind; not where a window sticks out on both sides."""
    window = f"Conv <group = 8, pads = [{pad}, {pad}, {pad}, {pad}], strides = [{stride}, {stride}]>"
    graph = f"g (float[1, 8, h, v] x, float[8, 1, 7, 7] w) => (float[1, 8, p, q] y) {{ y = {window} (x, w) }}"
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 19]> ' + graph)
    width = symbol("v")
    with assumptions({"v": 14}):
        assert axis_of(width, (width + 2 * pad - 7) // stride + 1, 7, stride, 1, pad).counts == tiles
    session, runtime = minitvm.InferenceSession(model), onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(4)
    for extent in (14, *range(max(1, 7 - 2 * pad), 20)):
        feed = {
            n: rng.standard_normal(s).astype(np.float32) for n, s in (("x", (1, 8, 9, extent)), ("w", (8, 1, 7, 7)))
        }
        [found], [want] = session.run(None, feed), runtime.run(None, feed)
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5, strict=True)
    assert len(session.libraries) == 1


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_single_pixels_of_few_channels_are_a_product(channels: int) -> None:
    """No tiles are cut where no window reaches beyond its pixel; the bias is the product's."""
    nodes = "c = Conv (x, w, b) y = Relu (c)"
    weights = f"float[{channels}, 6, 1, 1] w, float[{channels}] b"
    graph = f"g (float[n, 6, h, v] x, {weights}) => (float[n, {channels}, h, v] y) {{ {nodes} }}"
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 19]> ' + graph)
    rng = np.random.default_rng(4)
    for name, shape in (("w", (channels, 6, 1, 1)), ("b", (channels,))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    del model.graph.input[1:]
    session, runtime = minitvm.InferenceSession(model), onnxruntime.InferenceSession(model.SerializeToString())
    for shape in ((2, 6, 11, 16), (1, 6, 1, 1), (1, 6, 37, 90)):
        feed = {"x": rng.standard_normal(shape).astype(np.float32)}
        [found], [want] = session.run(None, feed), runtime.run(None, feed)
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5, strict=True)
    (library,) = session.libraries
    kernels = [node.func for node in library.graph.nodes if node.is_kernel]
    assert kernels[0].startswith("fused_nn_batch_matmul_add") and not any("tiles" in name for name in kernels)


def test_a_group_norm_is_computed_once_for_each_pixel() -> None:
    """Not where tiles are cut: not again for a halo, and not by indices that divide by open sizes."""
    nodes = """r = Reshape (x, three) i = InstanceNormalization (r, a, b) s = Shape (x) j = Reshape (i, s)
        c = Conv <pads = [1, 1, 1, 1]> (j, w) y = Relu (c)"""
    weights = "float[8] a, float[8] b, float[32, 32, 3, 3] w"
    graph = (
        f"g (float[n, 32, h, v] x, {weights}) => (float[n, 32, h, v] y) <int64[3] three = {{0, 8, -1}}> {{ {nodes} }}"
    )
    model = parser.parse_model('<ir_version: 9, opset_import: ["": 19]> ' + graph)
    rng = np.random.default_rng(4)
    for name, shape in (("w", (32, 32, 3, 3)), ("a", (8,)), ("b", (8,))):
        drawn = rng.uniform(-0.1, 0.1, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(drawn, name))
    del model.graph.input[1:]
    session, runtime = minitvm.InferenceSession(model), onnxruntime.InferenceSession(model.SerializeToString())
    for shape in ((1, 32, 40, 40), (2, 32, 11, 16), (1, 32, 1, 3)):
        feed = {"x": rng.standard_normal(shape).astype(np.float32)}
        [found], [want] = session.run(None, feed), runtime.run(None, feed)
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4, strict=True)
    (library,) = session.libraries
    kernels = [node.func for node in library.graph.nodes if node.is_kernel]
    assert not any("rsqrt" in name and "tiles" in name for name in kernels)
