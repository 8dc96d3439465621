"""TVM's places of the executors and helpers: ``from minitvm.contrib import graph_executor, utils``."""

import sys
from typing import Any

from minitvm.runtime import debug as debug_executor
from minitvm.runtime import debug as debug_runtime
from minitvm.runtime import executor as graph_executor
from minitvm.runtime import executor as graph_runtime
from minitvm.tvm import lacking
from minitvm.tvm.contrib import utils

debugger = sys.modules[__name__]
"""Where TVM has ``debug_executor``."""


def __getattr__(name: str) -> Any:
    return lacking.attribute("contrib", name)
