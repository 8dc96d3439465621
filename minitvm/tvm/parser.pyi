# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
from minitvm.ir.parser import parse_expr as parse_expr
from minitvm.ir.parser import parse_module as parse_module
parse = parse_module
fromtext = parse_module
