"""VGG with 11, 13, 16 or 19 layers (Simonyan and Zisserman 2014, arXiv:1409.1556)."""

from minitvm.errors import MiniTVMError
from minitvm.ir.builder import call_op, function
from minitvm.ir.expr import Function
from minitvm.testing.layers import batch_norm, conv_bias, dense, image, max_pool, relu, workload_of

_LAYERS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_FILTERS = (64, 128, 256, 512, 512)


def get_net(
    batch_size: int = 1,
    num_classes: int = 1000,
    image_shape: tuple[int, int, int] = (3, 224, 224),
    dtype: str = "float32",
    num_layers: int = 11,
    use_batch_norm: bool = False,
) -> Function:
    """``main`` from ``data``: (batch, 3, height, width) to class probabilities: (batch, num_classes)."""
    if num_layers not in _LAYERS:
        raise MiniTVMError(f"no VGG-{num_layers}", hint=f"num_layers is one of {', '.join(map(str, _LAYERS))}")
    x = image(batch_size, image_shape, dtype)
    for stage, (repeats, filters) in enumerate(zip(_LAYERS[num_layers], _FILTERS, strict=True), start=1):
        for repeat in range(1, repeats + 1):
            x = conv_bias(x, f"conv{stage}_{repeat}", filters, (3, 3), padding=(1, 1))
            x = relu(batch_norm(x, f"bn{stage}_{repeat}") if use_batch_norm else x)
        x = max_pool(x, 2, 2)
    x = call_op("nn.batch_flatten", x)
    for name in ("fc6", "fc7"):
        x = relu(dense(x, name, 4096))
    return function(call_op("nn.softmax", dense(x, "fc8", num_classes)))


get_workload = workload_of(get_net)
