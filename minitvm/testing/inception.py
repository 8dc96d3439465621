"""Inception v3 (Szegedy et al. 2015, arXiv:1512.00567)."""

from minitvm.ir.builder import function
from minitvm.ir.expr import Expr, Function
from minitvm.testing.layers import avg_pool, classifier, concatenate, conv_bn_relu, image, max_pool, workload_of


def _conv(data: Expr, name: str, channels: int, height: int, width: int | None = None, stride: int = 1) -> Expr:
    """A convolution that keeps the image's size where its stride is 1."""
    width = height if width is None else width
    padding = (height // 2, width // 2) if stride == 1 else (0, 0)
    return conv_bn_relu(data, name, channels, (height, width), strides=(stride, stride), padding=padding)


def _block_a(x: Expr, name: str, pool_channels: int) -> Expr:
    b1 = _conv(x, f"{name}_1x1", 64, 1)
    b2 = _conv(_conv(x, f"{name}_5x5_reduce", 48, 1), f"{name}_5x5", 64, 5)
    b3 = _conv(_conv(x, f"{name}_3x3_reduce", 64, 1), f"{name}_3x3_1", 96, 3)
    b3 = _conv(b3, f"{name}_3x3_2", 96, 3)
    return concatenate(b1, b2, b3, _conv(avg_pool(x, 3, 1, 1), f"{name}_pool", pool_channels, 1))


def _block_b(x: Expr, name: str) -> Expr:
    b1 = _conv(x, f"{name}_3x3", 384, 3, stride=2)
    b2 = _conv(_conv(x, f"{name}_double_reduce", 64, 1), f"{name}_double_1", 96, 3)
    return concatenate(b1, _conv(b2, f"{name}_double_2", 96, 3, stride=2), max_pool(x, 3, 2))


def _block_c(x: Expr, name: str, width: int) -> Expr:
    b1 = _conv(x, f"{name}_1x1", 192, 1)
    b2 = _conv(_conv(x, f"{name}_7_reduce", width, 1), f"{name}_7_1", width, 1, 7)
    b2 = _conv(b2, f"{name}_7_2", 192, 7, 1)
    b3 = _conv(x, f"{name}_77_reduce", width, 1)
    for i, (channels, h, w) in enumerate(((width, 7, 1), (width, 1, 7), (width, 7, 1), (192, 1, 7)), start=1):
        b3 = _conv(b3, f"{name}_77_{i}", channels, h, w)
    return concatenate(b1, b2, b3, _conv(avg_pool(x, 3, 1, 1), f"{name}_pool", 192, 1))


def _block_d(x: Expr, name: str) -> Expr:
    b1 = _conv(_conv(x, f"{name}_3x3_reduce", 192, 1), f"{name}_3x3", 320, 3, stride=2)
    b2 = _conv(_conv(x, f"{name}_7_reduce", 192, 1), f"{name}_7_1", 192, 1, 7)
    b2 = _conv(_conv(b2, f"{name}_7_2", 192, 7, 1), f"{name}_7_3", 192, 3, stride=2)
    return concatenate(b1, b2, max_pool(x, 3, 2))


def _block_e(x: Expr, name: str) -> Expr:
    b1 = _conv(x, f"{name}_1x1", 320, 1)
    b2 = _conv(x, f"{name}_3_reduce", 384, 1)
    b2 = concatenate(_conv(b2, f"{name}_3_1", 384, 1, 3), _conv(b2, f"{name}_3_2", 384, 3, 1))
    b3 = _conv(_conv(x, f"{name}_33_reduce", 448, 1), f"{name}_33", 384, 3)
    b3 = concatenate(_conv(b3, f"{name}_33_1", 384, 1, 3), _conv(b3, f"{name}_33_2", 384, 3, 1))
    return concatenate(b1, b2, b3, _conv(avg_pool(x, 3, 1, 1), f"{name}_pool", 192, 1))


def _stem(data: Expr) -> Expr:
    x = _conv(data, "stem1", 32, 3, stride=2)
    x = conv_bn_relu(x, "stem2", 32, (3, 3))
    x = max_pool(_conv(x, "stem3", 64, 3), 3, 2)
    return max_pool(conv_bn_relu(_conv(x, "stem4", 80, 1), "stem5", 192, (3, 3)), 3, 2)


def get_net(
    batch_size: int = 1,
    num_classes: int = 1000,
    image_shape: tuple[int, int, int] = (3, 299, 299),
    dtype: str = "float32",
) -> Function:
    """``main`` from ``data``: (batch, 3, height, width) to class probabilities: (batch, num_classes)."""
    x = _stem(image(batch_size, image_shape, dtype))
    for i, pool_channels in enumerate((32, 64, 64)):
        x = _block_a(x, f"mixed{i}", pool_channels)
    x = _block_b(x, "mixed3")
    for i, width in enumerate((128, 160, 160, 192), start=4):
        x = _block_c(x, f"mixed{i}", width)
    x = _block_d(x, "mixed8")
    for i in (9, 10):
        x = _block_e(x, f"mixed{i}")
    return function(classifier(x, "fc1", num_classes))


get_workload = workload_of(get_net)
