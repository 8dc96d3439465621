# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
from minitvm.tvm.relay.scale_axis import *
