"""The operators, by family.  Importing this package registers all of them in ``minitvm.ir.op.OPS``."""

from minitvm.ir.ops import annotation, broadcast, elemwise, elemwise_math, slicing, transform

__all__ = ["annotation", "broadcast", "elemwise", "elemwise_math", "slicing", "transform"]
