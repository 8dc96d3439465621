"""Loop IR to LLVM IR to machine code."""
