"""The deep Q-network (Mnih et al. 2015, doi:10.1038/nature14236), Relay's graph and parameter names."""

from minitvm.ir.builder import call_op, function
from minitvm.ir.expr import Function
from minitvm.testing.layers import conv_bias, dense, image, relu, workload_of


def get_net(
    batch_size: int = 1, num_actions: int = 18, image_shape: tuple[int, int, int] = (4, 84, 84), dtype: str = "float32"
) -> Function:
    """``main`` from ``data``: (batch, frames, height, width) to a value of each action: (batch, num_actions)."""
    x = relu(conv_bias(image(batch_size, image_shape, dtype), "conv1", 32, (8, 8), strides=(4, 4)))
    x = relu(conv_bias(x, "conv2", 64, (4, 4), strides=(2, 2)))
    x = relu(conv_bias(x, "conv3", 64, (3, 3)))
    x = relu(dense(call_op("nn.batch_flatten", x), "dense1", 512))
    return function(dense(x, "dense2", num_actions))


get_workload = workload_of(get_net)
