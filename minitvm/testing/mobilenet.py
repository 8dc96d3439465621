"""MobileNet v1 (Howard et al. 2017, arXiv:1704.04861) and v2 (Sandler et al. 2018, arXiv:1801.04381)."""

from minitvm.errors import MiniTVMError
from minitvm.ir.builder import call_op, function
from minitvm.ir.expr import Expr, Function
from minitvm.testing.layers import batch_norm, classifier, conv2d, conv_bn_relu, image, workload_of

# (output channels, stride) of v1's separable layers; (expansion, output channels, repeats, stride) of v2's blocks.
_V1 = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
_V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _depthwise(data: Expr, name: str, channels: int, stride: int) -> Expr:
    return conv2d(data, name, channels, (3, 3), (stride, stride), (1, 1), groups=channels)


def _separable(data: Expr, name: str, before: int, after: int, stride: int) -> Expr:
    x = batch_norm(_depthwise(data, f"{name}_depthwise_conv1", before, stride), f"{name}_bn1")
    return conv_bn_relu(call_op("nn.relu", x), f"{name}_pointwise", after, (1, 1))


def _relu6(data: Expr) -> Expr:
    return call_op("clip", data, a_min=0.0, a_max=6.0)


def _inverted_residual(data: Expr, name: str, before: int, after: int, expansion: int, stride: int) -> Expr:
    width = before * expansion
    x = data
    if expansion != 1:
        x = _relu6(batch_norm(conv2d(x, f"{name}_expand", width, (1, 1)), f"{name}_expand_bn"))
    x = _relu6(batch_norm(_depthwise(x, f"{name}_depthwise", width, stride), f"{name}_depthwise_bn"))
    x = batch_norm(conv2d(x, f"{name}_project", after, (1, 1)), f"{name}_project_bn")
    return x + data if stride == 1 and before == after else x


def _v1(data: Expr, num_classes: int) -> Expr:
    x, channels = conv_bn_relu(data, "conv_block_1", 32, (3, 3), strides=(2, 2), padding=(1, 1)), 32
    for i, (after, stride) in enumerate(_V1, start=1):
        x, channels = _separable(x, f"separable_conv_block_{i}", channels, after, stride), after
    return classifier(x, "fc", num_classes)


def _v2(data: Expr, num_classes: int) -> Expr:
    x = _relu6(batch_norm(conv2d(data, "stem", 32, (3, 3), (2, 2), (1, 1)), "stem_bn"))
    channels, block = 32, 0
    for expansion, after, repeats, first_stride in _V2:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            x, channels = _inverted_residual(x, f"block{block}", channels, after, expansion, stride), after
            block += 1
    x = _relu6(batch_norm(conv2d(x, "head", 1280, (1, 1)), "head_bn"))
    return classifier(x, "fc", num_classes)


def get_net(
    batch_size: int = 1,
    num_classes: int = 1000,
    image_shape: tuple[int, int, int] = (3, 224, 224),
    dtype: str = "float32",
    version: int = 1,
) -> Function:
    """``main`` from ``data``: (batch, 3, height, width) to class probabilities: (batch, num_classes)."""
    if version not in (1, 2):
        raise MiniTVMError(f"no MobileNet v{version}", hint="version is 1 or 2")
    data = image(batch_size, image_shape, dtype)
    return function((_v1 if version == 1 else _v2)(data, num_classes))


get_workload = workload_of(get_net)
