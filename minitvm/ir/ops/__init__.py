"""The operators, by family.  Importing this package registers all of them in ``minitvm.ir.op.OPS``."""

from minitvm.ir.ops import (  # noqa: F401
    broadcast,
    control,
    elemwise,
    foreign,
    image,
    indexing,
    nn_conv,
    nn_conv_transpose,
    nn_dense,
    nn_norm,
    nn_pad,
    nn_pool,
    nn_recurrent,
    quantize,
    reduce,
    sampling,
    slicing,
    sorting,
    tensor,
    transform,
)
