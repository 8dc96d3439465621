"""The operators, by family.  Importing this package registers all of them in ``minitvm.ir.op.OPS``."""

from minitvm.ir.ops import (
    annotation,
    broadcast,
    control,
    elemwise,
    elemwise_math,
    indexing,
    nn_activation,
    nn_conv,
    nn_dense,
    nn_layout,
    nn_norm,
    nn_pool,
    reduce,
    slicing,
    tensor,
    transform,
)

__all__ = [
    "annotation",
    "broadcast",
    "control",
    "elemwise",
    "elemwise_math",
    "indexing",
    "nn_activation",
    "nn_conv",
    "nn_dense",
    "nn_layout",
    "nn_norm",
    "nn_pool",
    "reduce",
    "slicing",
    "tensor",
    "transform",
]
