"""The operators, by family.  Importing this package registers all of them in ``minitvm.ir.op.OPS``."""

from minitvm.ir.ops import (
    annotation,
    broadcast,
    control,
    elemwise,
    elemwise_math,
    indexing,
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
    "reduce",
    "slicing",
    "tensor",
    "transform",
]
