"""Loop IR to LLVM IR to machine code."""

from minitvm.errors import require

require("llvmlite", "target 'llvm'")
