"""Templates of GPUs.  Importing this package registers all of them, in the order in which they are asked."""

from minitvm.codegen.cuda.templates import dense, depthwise, implicit_conv

__all__ = ["dense", "depthwise", "implicit_conv"]
