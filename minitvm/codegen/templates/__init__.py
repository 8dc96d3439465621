"""Templates: how one operator runs fast on one target.  Importing this package registers all of them."""

from minitvm.codegen.templates import (
    attention,
    conv_blocked,
    conv_pixels,
    dense_blocks,
    matmul,
    recurrent,
    recurrent_quantized,
    running_sum,
    tensor_scatter,
    winograd,
)

__all__ = [
    "attention",
    "conv_blocked",
    "conv_pixels",
    "dense_blocks",
    "matmul",
    "recurrent",
    "recurrent_quantized",
    "running_sum",
    "tensor_scatter",
    "winograd",
]
