"""Templates of GPUs.  Importing this package registers all of them, in the order in which they are asked."""

from minitvm.codegen.cuda.templates import attention, dense, depthwise, implicit_conv

__all__ = ["attention", "dense", "depthwise", "implicit_conv"]
