"""ResNet v2 (pre-activation; He et al. 2016, arXiv:1603.05027), Relay's graph and parameter names."""

from minitvm.errors import MiniTVMError
from minitvm.ir.builder import function
from minitvm.ir.expr import Expr, Function
from minitvm.testing.layers import batch_norm, classifier, conv2d, image, max_pool, relu, workload_of

_EPSILON = 2e-5
_UNITS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def _norm_relu(data: Expr, name: str) -> Expr:
    return relu(batch_norm(data, name, _EPSILON))


def _unit(data: Expr, name: str, filters: int, stride: int, same_shape: bool, bottleneck: bool) -> Expr:
    strides = (stride, stride)
    first = _norm_relu(data, f"{name}_bn1")
    if bottleneck:
        x = conv2d(first, f"{name}_conv1", filters // 4, (1, 1), strides)
        x = conv2d(_norm_relu(x, f"{name}_bn2"), f"{name}_conv2", filters // 4, (3, 3), padding=(1, 1))
        x = conv2d(_norm_relu(x, f"{name}_bn3"), f"{name}_conv3", filters, (1, 1))
    else:
        x = conv2d(first, f"{name}_conv1", filters, (3, 3), strides, (1, 1))
        x = conv2d(_norm_relu(x, f"{name}_bn2"), f"{name}_conv2", filters, (3, 3), padding=(1, 1))
    shortcut = data if same_shape else conv2d(first, f"{name}_sc", filters, (1, 1), strides)
    return x + shortcut


def _stem(data: Expr, filters: int, height: int) -> Expr:
    if height <= 32:
        return conv2d(data, "conv0", filters, (3, 3), padding=(1, 1))
    x = conv2d(data, "conv0", filters, (7, 7), (2, 2), (3, 3))
    return max_pool(_norm_relu(x, "bn0"), 3, 2, 1)


def get_net(
    batch_size: int = 1,
    num_classes: int = 1000,
    num_layers: int = 18,
    image_shape: tuple[int, int, int] = (3, 224, 224),
    dtype: str = "float32",
    first_projection: bool = True,
) -> Function:
    """``main`` from ``data``: (batch, 3, height, width) to class probabilities: (batch, num_classes).

    ``first_projection``: a 1x1 convolution in the shortcut of the very first unit too, as Relay's network has it (99
    parameters for ResNet-18); without it, where the shapes agree, the network is the one that pretrained ResNet-18 v2
    models have (98).
    """
    if num_layers not in _UNITS:
        raise MiniTVMError(f"no ResNet-{num_layers}", hint=f"num_layers is one of {', '.join(map(str, _UNITS))}")
    bottleneck = num_layers >= 50
    filters = (64, 256, 512, 1024, 2048) if bottleneck else (64, 64, 128, 256, 512)
    data = image(batch_size, image_shape, dtype)
    x = _stem(batch_norm(data, "bn_data", _EPSILON, scale=False), filters[0], image_shape[1])
    for stage, units in enumerate(_UNITS[num_layers], start=1):
        for unit in range(1, units + 1):
            stride = 2 if stage > 1 and unit == 1 else 1
            same_shape = unit > 1 or (stage == 1 and not first_projection and filters[0] == filters[1])
            x = _unit(x, f"stage{stage}_unit{unit}", filters[stage], stride, same_shape, bottleneck)
    return function(classifier(_norm_relu(x, "bn1"), "fc1", num_classes))


get_workload = workload_of(get_net)
