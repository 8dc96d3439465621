"""The generator of a DCGAN (Radford, Metz and Chintala 2015, arXiv:1511.06434), Relay's graph and parameter names."""

from minitvm.errors import MiniTVMError
from minitvm.ir import builder as ir
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.expr import Expr, Function
from minitvm.testing.layers import batch_norm, relu, workload_of


def _deconv(data: Expr, name: str, before: int, after: int) -> Expr:
    """A transposed convolution that doubles height and width."""
    weight = var(f"{name}_weight", shape=(before, after, 4, 4))
    window = {"kernel_size": (4, 4), "strides": (2, 2), "padding": (1, 1), "output_padding": (0, 0)}
    return ir.nn.conv2d_transpose(data, weight, channels=after, **window)


def get_net(
    batch_size: int = 1,
    random_len: int = 100,
    oshape: tuple[int, int, int] = (3, 64, 64),
    ngf: int = 128,
    dtype: str = "float32",
) -> Function:
    """``main`` from ``data``: (batch, random_len) to pictures: (batch, *oshape), in [-1, 1]."""
    if oshape[1:] != (64, 64):
        raise MiniTVMError(
            f"pictures of {oshape[1]} x {oshape[2]}", hint="the network makes 64 x 64: oshape=(3, 64, 64)"
        )
    data = var("data", shape=(batch_size, random_len), dtype=dtype)
    x: Expr = ir.nn.dense(data, var("dense_weight"), units=4 * 4 * ngf * 8)
    x = relu(call_op("reshape", x, newshape=(-1, ngf * 8, 4, 4)))
    for step, (before, after) in enumerate([(8, 4), (4, 2), (2, 1)], start=2):
        x = relu(batch_norm(_deconv(x, f"g{step}_deconv", ngf * before, ngf * after), f"g{step}_bn"))
    return function(ir.tanh(_deconv(x, "g5_deconv", ngf, oshape[0])))


get_workload = workload_of(get_net)
