"""Operators that once ran in Python, on awkward shapes and values: no host call, and what onnx's evaluator or ONNX
Runtime gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from minitvm import InferenceSession

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(
    op_type: str, feeds: dict[str, np.ndarray], outputs: int = 1, opset: int = 20, domain: str = "", **attributes: Any
) -> onnx.ModelProto:
    names = [f"out{i}" for i in range(outputs)]
    node = helper.make_node(op_type, list(feeds), names, "it", domain=domain, **attributes)
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
        if name
    ]
    graph = helper.make_graph([node], "g", given, [onnx.ValueInfoProto(name=name) for name in names])
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 3)] if domain else [])
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    made = InferenceSession(model, num_threads=1)
    found = made.run(None, {name: array for name, array in feeds.items() if name})
    assert made.host_calls == []
    return found


def check(
    op_type: str, feeds: dict[str, np.ndarray], by: str = "onnxruntime", tol: float = 1e-5, **options: Any
) -> None:
    model = model_of(op_type, feeds, **options)
    given = {name: array for name, array in feeds.items() if name}
    if by == "onnxruntime":
        peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        expected = peer.run(None, given)
    else:
        expected = ReferenceEvaluator(model).run(None, given)
    for mine, theirs in zip(run(model, feeds), expected, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(mine, theirs, rtol=tol, atol=tol)


@pytest.mark.parametrize("points", [1, 7, 12, 600, 1021, 2053])
@pytest.mark.parametrize("parts", [1, 2])
def test_fourier_transforms(points: int, parts: int) -> None:
    """A prime number of points, and one that is divided; backwards too."""
    x = normal(2, points, parts)
    signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    for inverse, expected in ((0, np.fft.fft(signal)), (1, np.fft.ifft(signal))):
        feeds = {"x": x, "length": np.array(points), "axis": np.array(1)}
        (found,) = run(model_of("DFT", feeds, inverse=inverse), feeds)
        np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("length", [6, 9, 600, 2053, 4098])
def test_real_fourier_transforms(length: int) -> None:
    """Half of a spectrum, of a signal that is cut or padded, and back."""
    x = normal(3, 8, 1)
    feeds = {"x": x, "length": np.array(length)}
    (half,) = run(model_of("DFT", feeds, onesided=1), feeds)
    expected = np.fft.rfft(x[..., 0], length)
    np.testing.assert_allclose(half[..., 0] + 1j * half[..., 1], expected, rtol=1e-5, atol=1e-5)
    feeds = {"x": half, "length": np.array(length)}
    (back,) = run(model_of("DFT", feeds, onesided=1, inverse=1), feeds)
    np.testing.assert_allclose(back[..., 0], np.fft.irfft(expected, length), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", ["ii->i", "bii->bi", "ii->", "iji->ij", "iij,jk->ik"])
def test_einsum_of_diagonals(equation: str) -> None:
    extents = dict(zip("bijk", (2, 3, 4, 5), strict=True))
    terms = equation.partition("->")[0].split(",")
    feeds = {f"x{n}": normal(*(extents[c] for c in term)) for n, term in enumerate(terms)}
    (found,) = run(model_of("Einsum", feeds, equation=equation), feeds)
    np.testing.assert_allclose(found, np.einsum(equation, *feeds.values()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("k", [1, 3, 40, 100])
def test_top_k_of_equal_values(k: int, largest: int) -> None:
    x = RNG.integers(0, 6, (3, 100)).astype(np.float32)
    x[1, ::7], x[2, 3] = np.inf, -np.inf
    check("TopK", {"x": x, "k": np.array([k])}, outputs=2, largest=largest)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatters_where_indices_repeat(reduction: str) -> None:
    indices = RNG.integers(-5, 5, (9, 3))
    feeds = {"x": normal(5, 3), "i": indices, "u": normal(9, 3)}
    check("ScatterElements", {**feeds, "i": indices % 5}, by="reference", reduction=reduction)
    check("ScatterND", {"x": normal(4, 5, 2), "i": indices[:, :2] % 4, "u": normal(9, 2)}, reduction=reduction)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_sample_far_outside(mode: str, padding: str, align: int) -> None:
    """ONNX's reference moves a place to the border before a cubic kernel reads around it; PyTorch, ONNX Runtime not."""
    feeds = {"x": normal(2, 2, 5, 4), "grid": 3 * normal(2, 5, 3, 2)}
    by = "reference" if mode == "cubic" and padding != "border" else "onnxruntime"
    check("GridSample", feeds, by, tol=1e-4, mode=mode, padding_mode=padding, align_corners=align)


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("half", ["half_pixel", "output_half_pixel"])
def test_roi_align(ratio: int, half: str) -> None:
    rois = np.float32([[0, 0, 9, 7], [2.5, 1, 30, 40], [-9, -9, 3, 3], [5, 5, 5, 5]])
    feeds = {"x": normal(2, 3, 8, 10), "rois": rois, "batch": np.array([0, 1, 1, 0])}
    options = {"output_height": 3, "output_width": 2, "sampling_ratio": ratio, "spatial_scale": 0.5}
    check("RoiAlign", feeds, tol=1e-4, coordinate_transformation_mode=half, **options)


@pytest.mark.parametrize("order", [0, 1])
def test_positions_of_maxima(order: int) -> None:
    x = RNG.integers(0, 4, (2, 2, 7, 6)).astype(np.float32)
    check("MaxPool", {"x": x}, outputs=2, kernel_shape=[3, 3], strides=[2, 1], pads=[1, 0, 1, 1], storage_order=order)


@pytest.mark.parametrize(("plane", "window"), [((4, 3, 5, 2), (2, 2, 3, 1)), ((3, 2, 4, 3, 5), (2, 1, 2, 3, 2))])
@pytest.mark.parametrize("order", [0, 1])
def test_positions_of_maxima_over_more_than_3_axes(plane: tuple[int, ...], window: tuple[int, ...], order: int) -> None:
    """The first of equal ones, as numpy finds it in every window: no other runtime has so many axes."""
    x, taps = RNG.integers(0, 4, (2, 2, *plane)).astype(np.float32), list(range(-len(plane), 0))
    options = {"kernel_shape": window, "storage_order": order, "pads": [0] * len(plane) + [int(k > 1) for k in window]}
    found, places = run(model_of("MaxPool", {"x": x}, outputs=2, **options), {"x": x})
    where = np.arange(x.size).reshape(x.shape)
    if order:
        columns = np.moveaxis(where.reshape(2, 2, *plane[::-1]), taps, taps[::-1])
        where = np.ascontiguousarray(columns)
    widths = [(0, 0), (0, 0), *((0, int(k > 1)) for k in window)]
    padded, named = np.pad(x, widths, constant_values=-1), np.pad(where, widths)
    values, names = (
        np.lib.stride_tricks.sliding_window_view(a, window, taps).reshape(*found.shape, -1) for a in (padded, named)
    )
    first = values.argmax(-1)[..., None]
    np.testing.assert_array_equal(found, np.take_along_axis(values, first, -1)[..., 0])
    np.testing.assert_array_equal(places, np.take_along_axis(names, first, -1)[..., 0])


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 0, 3), (1, 1)])
@pytest.mark.parametrize("poison", ["0", "1"])
def test_places_that_are_not_zero(shape: tuple[int, ...], poison: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_POISON", poison)
    x = RNG.integers(0, 2, shape).astype(np.float32)
    for given in (x, np.zeros_like(x), np.full_like(x, np.nan)):
        feeds = {"x": given}
        (found,) = run(model_of("NonZero", feeds), feeds)
        np.testing.assert_array_equal(found, np.array(np.nonzero(given)).reshape(len(shape), -1))


@pytest.mark.parametrize("ordered", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_unique_slices(axis: int | None, ordered: int) -> None:
    x = RNG.integers(0, 2, (7, 3)).astype(np.float32)
    check("Unique", {"x": x}, outputs=4, sorted=ordered, **({} if axis is None else {"axis": axis}))


def test_boxes_of_which_none_is_wanted() -> None:
    """Known while importing; and of images, or classes, that are none."""
    for shape, most in (((2, 3, 9), 0), ((0, 3, 9), 4), ((2, 0, 9), 4), ((2, 3, 0), 4)):
        feeds = {"boxes": normal(shape[0], shape[2], 4), "scores": normal(*shape)}
        model = model_of("NonMaxSuppression", {**feeds, "most": np.array([most])})
        model.graph.initializer.append(numpy_helper.from_array(np.array([most]), "most"))
        del model.graph.input[2]
        assert run(model, feeds)[0].shape == (0, 3)


def test_offsets_into_no_pixels() -> None:
    grid = RNG.uniform(-1, 1, (1, 2, 2, 2)).astype(np.float32)
    (found,) = run(
        model_of("GridSample", {"x": normal(1, 3, 0, 4), "grid": grid}), {"x": normal(1, 3, 0, 4), "grid": grid}
    )
    np.testing.assert_array_equal(found, np.zeros((1, 3, 2, 2), np.float32))
    feeds = {"x": normal(1, 2, 3, 0), "w": normal(4, 2, 1, 1), "offset": normal(1, 2, 3, 2)}
    model = model_of("DeformConv", feeds, opset=19, pads=[0, 1, 0, 1])
    np.testing.assert_array_equal(run(model, feeds)[0], np.zeros((1, 4, 3, 2), np.float32))


@pytest.mark.parametrize("most", [0, 2, 100])
@pytest.mark.parametrize("center", [0, 1])
def test_boxes_that_overlap(most: int, center: int) -> None:
    """Of many classes and equal scores; values that arrive when the model runs."""
    boxes = RNG.uniform(0, 4, (2, 60, 4)).astype(np.float32)
    scores = RNG.integers(0, 12, (2, 3, 60)).astype(np.float32) / 12
    limits = {"most": np.array([most]), "overlap": np.float32([0.35]), "least": np.float32([0.25])}
    check("NonMaxSuppression", {"boxes": boxes, "scores": scores, **limits}, center_point_box=center)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("skip", [0, 2])
def test_n_grams(mode: str, sizes: tuple[int, int], skip: int) -> None:
    grams = {"ngram_counts": [0, 2, 6], "ngram_indexes": [3, 0, 1, 4, 2], "pool_int64s": [1, 2, 1, 1, 2, 0, 1, 0, 2]}
    options = {"min_gram_length": sizes[0], "max_gram_length": sizes[1], "max_skip_count": skip, "mode": mode}
    weights = [0.5, 2.0, 1.5, 3.0, 0.1]
    for shape in ((12,), (3, 9), (2, 1)):
        check("TfIdfVectorizer", {"x": RNG.integers(0, 3, shape)}, **grams, **options, weights=weights)


def test_features() -> None:
    x = normal(4, 3)
    check("Binarizer", {"x": x}, domain="ai.onnx.ml", threshold=0.25)
    check("Scaler", {"x": x}, domain="ai.onnx.ml", offset=[1.0, 2.0, -1.0], scale=[0.5, 2.0, 3.0])
    for norm in ("MAX", "L1", "L2"):
        check("Normalizer", {"x": np.abs(x)}, domain="ai.onnx.ml", norm=norm)
    weights = {"coefficients": normal(6).tolist(), "intercepts": [0.5, -1.0], "targets": 2}
    check("LinearRegressor", {"x": x}, domain="ai.onnx.ml", **weights)


def test_windows_over_four_axes() -> None:
    """Convolutions as ONNX Runtime; pools, which it has over three, as onnx's reference."""
    strides = {"strides": [2, 1, 1, 2], "pads": [1, 0, 1, 0, 0, 0, 1, 1], "dilations": [1, 1, 2, 1]}
    check("Conv", {"x": normal(2, 3, 4, 3, 5, 4), "w": normal(4, 3, 2, 1, 3, 2)}, **strides)
    check("Conv", {"x": normal(1, 4, 3, 2, 3, 4, 3), "w": normal(6, 2, 2, 2, 1, 2, 2), "b": normal(6)}, group=2)
    options = {"strides": [2, 1, 2, 3], "pads": [0, 1, 3, 0, 1, 0, 2, 0], "output_padding": [1, 0, 0, 2]}
    feeds = {"x": normal(2, 4, 3, 2, 3, 2), "w": normal(4, 3, 2, 2, 3, 2), "b": normal(6)}
    check("ConvTranspose", feeds, group=2, dilations=[1, 1, 2, 1], **options)
    pool = {"kernel_shape": [2, 3, 2, 2], "strides": [1, 2, 2, 1], "pads": [1, 1, 0, 1, 0, 1, 1, 0]}
    for more in ({"count_include_pad": 1}, {}, {"ceil_mode": 1}):
        check("AveragePool", {"x": normal(2, 3, 4, 5, 4, 3)}, by="reference", **pool, **more)
    check("LpPool", {"x": normal(2, 3, 4, 5, 4, 3)}, by="reference", **pool)


def test_maxima_over_four_axes() -> None:
    x, kernel, strides = normal(2, 3, 4, 5, 4, 3), (2, 3, 2, 2), (1, 2, 2, 1)
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel, axis=(2, 3, 4, 5))
    expected = windows[(..., *(slice(None, None, s) for s in strides), *[slice(None)] * 4)].max((6, 7, 8, 9))
    model = model_of("MaxPool", {"x": x}, kernel_shape=kernel, strides=strides)
    np.testing.assert_array_equal(run(model, {"x": x})[0], expected)


def test_batch_norm_of_each_element() -> None:
    """Before opset 9 an attribute asks for numbers of each element."""
    numbers = {name: normal(3, 4) for name in ("scale", "bias", "mean")} | {"var": np.abs(normal(3, 4))}
    check("BatchNormalization", {"x": normal(2, 3, 4), **numbers}, opset=7, spatial=0)


def test_maxima_in_regions() -> None:
    """Regions inside, across the borders, without pixels; corners at halves."""
    rois = np.float32([[0, 1, 2, 6, 5], [1, -3, 4.5, 2.5, 30], [1, 20, 20, 22, 22], [0, 3, 3, 3, 3], [1, 5, 4, 2, 1]])
    for size, scale in (((2, 3), 1.0), ((1, 1), 0.5), ((4, 5), 0.75)):
        check("MaxRoiPool", {"x": normal(2, 3, 9, 8), "rois": rois}, pooled_shape=size, spatial_scale=scale)


def test_there_is_no_maximum_in_regions_of_no_images() -> None:
    feeds = {"x": np.zeros((0, 2, 6, 5), np.float32), "rois": np.float32([[0, 0, 1, 3, 4]])}
    (found,) = InferenceSession(model_of("MaxRoiPool", feeds, pooled_shape=(2, 3))).run(None, feeds)
    np.testing.assert_array_equal(found, np.zeros((1, 2, 2, 3), np.float32))


def test_unique_has_one_nan() -> None:
    """As numpy and onnx's reference; ONNX Runtime's order, which NaN has no place in, leaves out more."""
    x = np.float32([3, np.nan, 1, 3, np.nan, -0.0, 0.0, np.inf])
    for ordered in (0, 1):
        values, first, group, counts = run(model_of("Unique", {"x": x}, 4, sorted=ordered), {"x": x})
        np.testing.assert_array_equal(values[group], x)
        np.testing.assert_array_equal(x[first], values)
        np.testing.assert_array_equal(np.bincount(group), counts)
        assert len(values) == len(np.unique(x)) == 5
