"""A multilayer perceptron: two hidden layers, softmax (Relay's testing network)."""

from minitvm.ir.builder import call_op, function
from minitvm.ir.expr import Expr, Function
from minitvm.testing.layers import dense, image, relu, workload_of


def get_net(
    batch_size: int = 1, num_classes: int = 10, image_shape: tuple[int, int, int] = (1, 28, 28), dtype: str = "float32"
) -> Function:
    """``main`` from ``data``: (batch, channels, height, width) to class probabilities: (batch, num_classes)."""
    x: Expr = call_op("nn.batch_flatten", image(batch_size, image_shape, dtype))
    x = relu(dense(x, "fc1", 128))
    x = relu(dense(x, "fc2", 64))
    return function(call_op("nn.softmax", dense(x, "fc3", num_classes)))


get_workload = workload_of(get_net)
