"""DenseNet (Huang et al. 2016, arXiv:1608.06993)."""

from minitvm.errors import MiniTVMError
from minitvm.ir.builder import function
from minitvm.ir.expr import Expr, Function
from minitvm.testing.layers import (
    avg_pool,
    batch_norm,
    classifier,
    concatenate,
    conv2d,
    image,
    max_pool,
    relu,
    workload_of,
)

_SPEC = {
    121: (64, 32, (6, 12, 24, 16)),
    161: (96, 48, (6, 12, 36, 24)),
    169: (64, 32, (6, 12, 32, 32)),
    201: (64, 32, (6, 12, 48, 32)),
}


def _norm_relu_conv(data: Expr, name: str, channels: int, size: int) -> Expr:
    x = relu(batch_norm(data, f"{name}_bn"))
    return conv2d(x, f"{name}_conv", channels, (size, size), padding=(size // 2, size // 2))


def _layer(data: Expr, name: str, growth: int) -> Expr:
    x = _norm_relu_conv(data, f"{name}_1", 4 * growth, 1)
    return concatenate(data, _norm_relu_conv(x, f"{name}_2", growth, 3))


def get_net(
    batch_size: int = 1,
    num_classes: int = 1000,
    image_shape: tuple[int, int, int] = (3, 224, 224),
    dtype: str = "float32",
    num_layers: int = 121,
) -> Function:
    """``main`` from ``data``: (batch, 3, height, width) to class probabilities: (batch, num_classes)."""
    if num_layers not in _SPEC:
        raise MiniTVMError(f"no DenseNet-{num_layers}", hint=f"num_layers is one of {', '.join(map(str, _SPEC))}")
    channels, growth, blocks = _SPEC[num_layers]
    x = conv2d(image(batch_size, image_shape, dtype), "conv1", channels, (7, 7), (2, 2), (3, 3))
    x = max_pool(relu(batch_norm(x, "bn1")), 3, 2, 1)
    for b, layers in enumerate(blocks, start=1):
        for i in range(1, layers + 1):
            x = _layer(x, f"block{b}_layer{i}", growth)
        channels += layers * growth
        if b < len(blocks):
            channels //= 2
            x = avg_pool(_norm_relu_conv(x, f"transition{b}", channels, 1), 2, 2)
    return function(classifier(relu(batch_norm(x, "bn_final")), "fc", num_classes))


get_workload = workload_of(get_net)
