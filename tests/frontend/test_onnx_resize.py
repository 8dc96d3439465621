"""Resize of every dtype: each mode and coordinate transformation, against ONNX Runtime and ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_build import one_node, run
from onnx_oracle import check_as_onnx_runtime, check_same, compiled, onnx_runtime

RNG = np.random.default_rng(3)
INTEGERS = ("uint8", "int8", "int32", "int64")
COORDINATES = (
    "half_pixel",
    "align_corners",
    "asymmetric",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
    "tf_crop_and_resize",
)
NOTHING = np.float32([])


def resized(x: np.ndarray, scales: list[float], **attributes: Any) -> onnx.ModelProto:
    crops = attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    roi = np.float32([0] * x.ndim + [1] * x.ndim) if crops else NOTHING
    return one_node("Resize", x, opset=19, constants={1: roi, 2: np.float32(scales)}, **attributes)


def image(dtype: str, low: int = 0, high: int = 100) -> np.ndarray:
    return RNG.integers(low, high, (1, 2, 5, 4)).astype(dtype)


def test_the_weights_of_integers_are_not_whole() -> None:
    x = np.array([[[[0, 100], [200, 50]]]], np.uint8)
    model = resized(x, [1, 1, 2, 2], mode="linear")
    check_as_onnx_runtime(model, {"x0": x})
    rows = [[0, 25, 75, 100], [50, 59, 78, 87], [150, 128, 84, 62], [200, 162, 87, 50]]
    assert run(model, {"x0": x})[0][0, 0].tolist() == rows


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_linear_of_integers(dtype: str, coordinates: str) -> None:
    """Truncated: a rounding error may decide between two neighbours."""
    for scales in ([1, 1, 2.5, 2], [1, 1, 0.6, 0.7]):
        x = image(dtype)
        model = resized(x, scales, mode="linear", coordinate_transformation_mode=coordinates)
        same = x.astype("int32" if dtype == "int64" else dtype)  # ONNX Runtime has no int64
        expected = onnx_runtime(
            resized(same, scales, mode="linear", coordinate_transformation_mode=coordinates), {"x0": same}
        )
        check_same(run(model, {"x0": x}), [expected[0].astype(dtype)], steps=1)


@pytest.mark.parametrize("coordinates", ("half_pixel", "asymmetric", "pytorch_half_pixel"))
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("antialias", (0, 1))
def test_cubic_of_integers(dtype: str, coordinates: str, antialias: int) -> None:
    """ONNX Runtime has no cubic integers without ``antialias``, and rounds between axes with it: ONNX's reference.
    Values far from the ends of the dtype, which the reference wraps around."""
    for scales in ([1, 1, 2.5, 2], [1, 1, 0.6, 0.7]):
        x = image(dtype, 50, 90)
        model = resized(x, scales, mode="cubic", coordinate_transformation_mode=coordinates, antialias=antialias)
        check_same(run(model, {"x0": x}), ReferenceEvaluator(model).run(None, {"x0": x}), steps=1)


def test_the_cubic_kernel_stays_within_the_dtype() -> None:
    x = np.array([0, 255, 255, 0, 0, 255], np.uint8).reshape(1, 1, 1, 6)
    (found,) = run(resized(x, [1, 1, 1, 3], mode="cubic"), {"x0": x})
    (floats,) = run(resized(x.astype(np.float32), [1, 1, 1, 3], mode="cubic"), {"x0": x.astype(np.float32)})
    assert floats.min() < 0 and floats.max() > 255
    np.testing.assert_array_equal(found, np.clip(floats, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("mode", ("linear", "cubic"))
@pytest.mark.parametrize("dtype", ("uint8", "int64"))
def test_what_is_the_same_everywhere_stays(mode: str, dtype: str) -> None:
    """No rounding error makes 99 of 100."""
    x = np.full((1, 1, 4, 7), 100, dtype)
    for antialias in (0, 1):
        model = resized(x, [1, 1, 0.7, 1.9], mode=mode, antialias=antialias)
        for found in (*run(model, {"x0": x}), *compiled(model, {"x0": x})):
            assert np.all(found == 100)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ("nearest", "linear", "cubic"))
@pytest.mark.parametrize("dtype", ("float16", "float32"))
def test_floats(dtype: str, mode: str, coordinates: str) -> None:
    for scales in ([1, 1, 2.5, 2], [1, 1, 0.6, 0.7]):
        x = image(dtype)
        model = resized(x, scales, mode=mode, coordinate_transformation_mode=coordinates)
        half = dtype == "float16"
        check_same(
            run(model, {"x0": x}), onnx_runtime(model, {"x0": x}), 2e-3 if half else 1e-5, 0.07 if half else 1e-4
        )


def _sized(shape: tuple[int, ...], size: int) -> np.ndarray:
    return np.float32([*(1 for _ in shape[:-1]), np.float32(size) / np.float32(shape[-1])])


@pytest.mark.parametrize("size", [19, 5, 36, 77, 3])
@pytest.mark.parametrize("extent", [7, 11, 33, 60])
def test_sizes_are_those_of_scales_in_float32(extent: int, size: int) -> None:
    """7 * float32(19 / 7) is 19 in float32, 18.9999 in double."""
    x = np.ones((1, 1, 2, extent), np.float32)
    model = one_node("Resize", x, constants={1: np.float32([]), 2: _sized(x.shape, size)}, mode="linear")
    check_as_onnx_runtime(model, {"x0": x})


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize(("extent", "size"), [(33, 36), (36, 33), (7, 19), (60, 77), (5, 15), (49, 7)])
def test_nearest_pixels_of_scales_that_are_fractions(rounding: str, extent: int, size: int) -> None:
    """24 / float32(36 / 33) is meant as 22, and is not in double."""
    exact = {"floor": lambda p, q: p // q, "ceil": lambda p, q: -(-p // q)}
    exact |= {
        "round_prefer_floor": lambda p, q: -((q - 2 * p) // (2 * q)),
        "round_prefer_ceil": lambda p, q: (2 * p + q) // (2 * q),
    }
    places = [min(exact[rounding](i * extent, size), extent - 1) for i in range(size)]
    for shape in ((2, extent), (1, 1, 2, extent)):
        x = RNG.standard_normal(shape).astype(np.float32)
        given = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": rounding}
        model = one_node("Resize", x, constants={1: NOTHING, 2: _sized(shape, size)}, **given)
        check_same(compiled(model, {"x0": x}), [x[..., places]])


@pytest.mark.parametrize("shape", [(1, 1, 1, 200_000), (200_000,)])
def test_scales_may_be_tiny(shape: tuple[int, ...]) -> None:
    x = np.arange(200_000, dtype=np.float32).reshape(shape)
    scales = np.float32([*(1 for _ in shape[:-1]), 2e-5])
    given = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    model = one_node("Resize", x, constants={1: NOTHING, 2: scales}, **given)
    check_same(compiled(model, {"x0": x}), [x[..., [0, 50_000, 100_000, 150_000]]])


@pytest.mark.parametrize("shape", [(1, 2, 0, 3), (0, 5), (1, 0, 1, 1)])
@pytest.mark.parametrize("given", [{"exclude_outside": 1}, {"antialias": 1}, {}])
def test_images_of_nothing(shape: tuple[int, ...], given: dict[str, int]) -> None:
    sizes = np.int64([0 if n == 0 else n + 2 for n in shape])
    model = one_node(
        "Resize", np.zeros(shape, np.float32), constants={1: NOTHING, 2: NOTHING, 3: sizes}, mode="cubic", **given
    )
    assert compiled(model, {"x0": np.zeros(shape, np.float32)})[0].shape == tuple(sizes)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(("given", "shape"), [({"exclude_outside": 1}, (1, 1, 3, 20)), ({}, (3, 20))])
def test_nan_stays_where_it_is(given: dict[str, int], shape: tuple[int, ...], mode: str) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    x[..., 1, 10] = np.nan
    sizes = np.int64([*shape[:-1], 43])
    model = one_node("Resize", x, opset=19, constants={1: NOTHING, 2: NOTHING, 3: sizes}, mode=mode, **given)
    found = np.isnan(compiled(model, {"x0": x})[0])
    assert not found[..., (0, 2), :].any() and 0 < found[..., 1, :].sum() <= 10


def test_nothing_is_resized_to_nothing() -> None:
    x = np.ones((1, 1, 2, 0), np.float32)
    model = one_node(
        "Resize", x, constants={1: np.float32([]), 2: np.float32([]), 3: np.int64([1, 1, 5, 0])}, mode="linear"
    )
    assert compiled(model, {"x0": x})[0].shape == (1, 1, 5, 0)


@pytest.mark.parametrize("dtype", ("uint8", "int8", "int32", "float16", "float32"))
def test_other_ranks_and_kernels(dtype: str) -> None:
    """Three dimensions, one axis, through kernels."""
    x = RNG.integers(0, 100, (3, 4, 5)).astype(dtype)
    model = resized(x, [1, 1, 1.7], mode="linear")
    tolerance = 0.07 if dtype == "float16" else 1e-4
    check_as_onnx_runtime(model, {"x0": x}, steps=1, atol=tolerance)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("extent", [3, 7, 12])
def test_a_stretched_kernel_takes_nothing_from_pixels_it_does_not_reach(mode: str, extent: int) -> None:
    """Infinity times a weight of 0 is NaN: where many pixels are weighed, only those count that weigh something."""
    x = RNG.standard_normal((31, 5)).astype(np.float32)
    x[3, 0], x[20, 4] = np.nan, np.inf
    sizes = np.int64([extent, 5])
    model = one_node("Resize", x, opset=19, constants={1: NOTHING, 2: NOTHING, 3: sizes}, mode=mode, antialias=1)
    check_same(compiled(model, {"x0": x}), onnx_runtime(model, {"x0": x}), 1e-5, 1e-5)
