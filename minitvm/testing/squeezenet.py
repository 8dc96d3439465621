"""SqueezeNet 1.0 and 1.1 (Iandola et al. 2016, arXiv:1602.07360)."""

from minitvm.errors import MiniTVMError
from minitvm.ir.builder import call_op, function
from minitvm.ir.expr import Expr, Function
from minitvm.testing.layers import concatenate, conv_bias, image, max_pool, relu, workload_of

_FIRE = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
_POOL_BEFORE = {"1.0": (0, 3, 7), "1.1": (0, 2, 4)}


def _fire(data: Expr, name: str, squeeze: int, expand: int) -> Expr:
    x = relu(conv_bias(data, f"{name}_squeeze", squeeze, (1, 1)))
    left = relu(conv_bias(x, f"{name}_expand1x1", expand, (1, 1)))
    right = relu(conv_bias(x, f"{name}_expand3x3", expand, (3, 3), padding=(1, 1)))
    return concatenate(left, right)


def get_net(
    batch_size: int = 1,
    num_classes: int = 1000,
    version: str = "1.1",
    image_shape: tuple[int, int, int] = (3, 224, 224),
    dtype: str = "float32",
) -> Function:
    """``main`` from ``data``: (batch, 3, height, width) to class probabilities: (batch, num_classes)."""
    if version not in _POOL_BEFORE:
        raise MiniTVMError(f"no SqueezeNet {version}", hint="version is '1.0' or '1.1'")
    channels, size = (96, 7) if version == "1.0" else (64, 3)
    x = relu(conv_bias(image(batch_size, image_shape, dtype), "conv1", channels, (size, size), strides=(2, 2)))
    for i, (squeeze, expand) in enumerate(_FIRE):
        if i in _POOL_BEFORE[version]:
            x = max_pool(x, 3, 2)
        x = _fire(x, f"fire{i + 2}", squeeze, expand)
    x = relu(conv_bias(call_op("nn.dropout", x)[0], "conv_final", num_classes, (1, 1)))
    return function(call_op("nn.softmax", call_op("nn.batch_flatten", call_op("nn.global_avg_pool2d", x))))


get_workload = workload_of(get_net)
