# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
import sys
from typing import Any
from minitvm.runtime import debug as _debug_executor
debug_executor = _debug_executor
from minitvm.runtime import debug as _debug_runtime
debug_runtime = _debug_runtime
from minitvm.runtime import executor as _graph_executor
graph_executor = _graph_executor
from minitvm.runtime import executor as _graph_runtime
graph_runtime = _graph_runtime
from minitvm.tvm.contrib import utils as utils
