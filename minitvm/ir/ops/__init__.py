"""The operators, by family.  Importing this package registers all of them in ``minitvm.ir.op.OPS``."""
