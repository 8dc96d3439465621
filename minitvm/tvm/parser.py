"""TVM's ``parser``: text to modules."""

from minitvm.ir.parser import parse_expr, parse_module

parse = fromtext = parse_module
