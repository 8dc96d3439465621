"""Convolutions, pools and what samples images, at their edges."""

import numpy as np

from tests.known_bugs import Case, case, f32, i64, refused, report

ORT, OV, TVM = "microsoft/onnxruntime", "openvinotoolkit/openvino", "apache/tvm"


def _transposed(x: np.ndarray, w: np.ndarray, stride: int, begin: int, shape: tuple[int, int]) -> np.ndarray:
    """A transposed convolution of one image by scattering, from ``begin`` on."""
    (_, channels, height, width), (_, outputs, rows, columns) = x.shape, w.shape
    full = np.zeros((outputs, stride * height + rows + 8, stride * width + columns + 8))
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                full[:, i * stride : i * stride + rows, j * stride : j * stride + columns] += x[0, c, i, j] * w[c]
    return full[None, :, begin : begin + shape[0], begin : begin + shape[1]].astype(np.float32)


@report(ORT, 4086, "ConvTranspose with SAME_UPPER pads nothing: its image is too large")
def transposed_same_upper() -> Case:
    x, w = np.arange(2, 6, dtype="f").reshape(1, 1, 2, 2), np.arange(2, 11, dtype="f").reshape(1, 1, 3, 3)
    text = """(float[1, 1, 2, 2] x, float[1, 1, 3, 3] w) => (float[1, 1, 2, 2] y)
    { y = ConvTranspose <auto_pad = "SAME_UPPER"> (x, w) }"""
    return case(text, {"x": x, "w": w}, _transposed(x, w, 1, 1, (2, 2)))


@report(ORT, 4698, "ConvTranspose with SAME_UPPER and a stride has not stride times the pixels")
def transposed_same_upper_by_two() -> Case:
    x, w = np.arange(25, dtype="f").reshape(1, 1, 5, 5), np.arange(9, dtype="f").reshape(1, 1, 3, 3)
    text = """(float[1, 1, 5, 5] x, float[1, 1, 3, 3] w) => (float[1, 1, 10, 10] y)
    { y = ConvTranspose <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w) }"""
    return case(text, {"x": x, "w": w}, _transposed(x, w, 2, 0, (10, 10)))


@report(OV, 32608, "ConvTranspose with SAME_LOWER and no output_shape keeps its full size")
def transposed_same_lower() -> Case:
    x, w = np.arange(16, dtype="f").reshape(1, 1, 4, 4), np.arange(9, dtype="f").reshape(1, 1, 3, 3)
    text = """(float[1, 1, 4, 4] x, float[1, 1, 3, 3] w) => (float[1, 1, 4, 4] y)
    { y = ConvTranspose <auto_pad = "SAME_LOWER"> (x, w) }"""
    return case(text, {"x": x, "w": w}, _transposed(x, w, 1, 1, (4, 4)))


@report(TVM, 18601, "output_padding of ConvTranspose is forgotten")
def transposed_output_padding() -> Case:
    x, w = np.arange(16, dtype="f").reshape(1, 1, 4, 4), np.arange(18, dtype="f").reshape(1, 2, 3, 3)
    text = """(float[1, 1, 4, 4] x, float[1, 2, 3, 3] w) => (float[1, 2, 8, 8] y)
    { y = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]> (x, w) }"""
    return case(text, {"x": x, "w": w}, _transposed(x, w, 2, 1, (8, 8)))


@report(TVM, 13757, "a convolution with padding -1 fails in its kernel: ONNX has none below 0")
def negative_padding_of_a_convolution() -> Case:
    feeds = {"x": np.arange(25, dtype="f").reshape(1, 1, 5, 5), "w": f32(1, 2).reshape(1, 1, 1, 2)}
    text = """(float[1, 1, 5, 5] x, float[1, 1, 1, 2] w) => (float[1, 1, h, v] y)
    { y = Conv <pads = [-1, -1, -1, -1]> (x, w) }"""
    return refused(text, feeds)


@report(ORT, 24681, "AveragePool since opset 19 forgets the padding at the end")
def average_same_lower() -> Case:
    x = np.arange(12, dtype="f").reshape(1, 1, 6, 2)
    text = """(float[1, 1, 6, 2] x) => (float[1, 1, 6, 2] y)
    { y = AveragePool <kernel_shape = [5, 1], auto_pad = "SAME_LOWER", count_include_pad = 1> (x) }"""
    padded = np.pad(x, [(0, 0), (0, 0), (2, 2), (0, 0)])
    want = np.stack([padded[:, :, i : i + 5].sum(2) / 5 for i in range(6)], 2)
    return case(text, {"x": x}, want, opset=19, within=1e-6)


@report(ORT, 16203, "the last window of an AveragePool counts pixels beyond the padding")
def average_last_window() -> Case:
    x = np.arange(18, dtype="f").reshape(1, 2, 9) ** 2
    text = """(float[1, 2, 9] x) => (float[1, 2, 4] y)
    { y = AveragePool <kernel_shape = [7], strides = [3], pads = [3, 3], ceil_mode = 1, count_include_pad = 1> (x) }"""
    padded = np.pad(x, [(0, 0), (0, 0), (3, 3)])
    want = np.stack([padded[:, :, i : i + 7].mean(2) for i in range(0, 12, 3)], 2)
    return case(text, {"x": x}, want.astype("f"), opset=19, within=1e-6)


@report("pytorch/pytorch", 183528, "avg_pool2d with ceil_mode and count_include_pad differs once it is exported")
def average_of_torch() -> Case:
    x = np.arange(1, 17, dtype="f").reshape(1, 1, 4, 4)
    text = """(float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y) { y = AveragePool
    <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1, count_include_pad = 1> (x) }"""
    want = f32(14 / 9, 10 / 3, 2, 19 / 3, 11, 6, 4.5, 7.5, 4).reshape(1, 1, 3, 3)
    return case(text, {"x": x}, want, opset=19, within=1e-6)


@report(ORT, 16351, "with ceil_mode AveragePool has windows of nothing, which are NaN")
def average_of_nothing() -> Case:
    text = """(float[1, 1, 2] x) => (float[1, 1, n] y)
    { y = AveragePool <kernel_shape = [2], strides = [3], pads = [1, 1], ceil_mode = 1> (x) }"""
    return case(text, {"x": f32(5, 7).reshape(1, 1, 2)}, f32(5).reshape(1, 1, 1), opset=19)


@report(ORT, 6921, "RoiAlign is half a pixel off: a region that is the image is not the image")
def region_of_the_image() -> Case:
    x = np.arange(16, dtype="f").reshape(1, 1, 4, 4)
    text = """(float[1, 1, 4, 4] x, float[1, 4] r, int64[1] b) => (float[1, 1, 4, 4] y) { y = RoiAlign
    <output_height = 4, output_width = 4, sampling_ratio = 1, coordinate_transformation_mode = "half_pixel">
    (x, r, b) }"""
    return case(text, {"x": x, "r": f32([0, 0, 4, 4]), "b": i64(0)}, x)


@report(ORT, 17564, "Resize with align_corners samples as without")
def aligned_corners() -> Case:
    text = """(float[1, 1, 2] x) => (float[1, 1, 4] y) <int64[3] sizes = {1, 1, 4}> { y = Resize
    <mode = "linear", coordinate_transformation_mode = "align_corners"> (x, "", "", sizes) }"""
    return case(text, {"x": f32(0, 3).reshape(1, 1, 2)}, f32(0, 1, 2, 3).reshape(1, 1, 4), within=1e-6)


@report(ORT, 28302, "coordinates of GridSample that are no numbers read outside of the image")
def grid_of_no_numbers() -> Case:
    x = np.arange(4, dtype="f").reshape(1, 1, 2, 2)
    grid = f32([[[-0.5, -0.5], [1e30, 0], [-np.inf, 0], [0.5, 0.5]]])
    text = """(float[1, 1, 2, 2] x, float[1, 1, 4, 2] g) => (float[1, 1, 1, 4] y)
    { y = GridSample <mode = "nearest"> (x, g) }"""
    return case(text, {"x": x, "g": grid}, f32(0, 0, 0, 3).reshape(1, 1, 1, 4), opset=20)


@report("onnx/onnx", 5411, "GridSample of volumes is refused")
def grid_of_a_volume() -> Case:
    x = np.arange(8, dtype="f").reshape(1, 1, 2, 2, 2)
    corners = np.array([[i, j, k] for k in (-1, 1) for j in (-1, 1) for i in (-1, 1)], "f").reshape(1, 2, 2, 2, 3)
    text = """(float[1, 1, 2, 2, 2] x, float[1, 2, 2, 2, 3] g) => (float[1, 1, 2, 2, 2] y)
    { y = GridSample <align_corners = 1> (x, g) }"""
    return case(text, {"x": x, "g": corners}, x, opset=20)


@report(ORT, 2433, "negative padding leaves what was in memory")
def negative_padding() -> Case:
    x = np.arange(12, dtype="f").reshape(3, 4)
    text = "(float[3, 4] x) => (float[2, 4] y) <int64[4] p = {-1, 1, 0, -1}> { y = Pad (x, p) }"
    return case(text, {"x": x}, np.pad(x, [(0, 0), (1, 0)])[1:, :-1])


@report(ORT, 27652, "reflection by more than there are pixels reads outside of the image")
def reflected_too_far() -> Case:
    text = '(float[2] x) => (float[n] y) <int64[2] p = {7, 0}> { y = Pad <mode = "reflect"> (x, p) }'
    return refused(text, {"x": f32(1, 2)})
