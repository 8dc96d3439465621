"""Templates of GPUs.  Importing this package registers all of them."""

from minitvm.codegen.cuda.templates import conv, dense

__all__ = ["conv", "dense"]
