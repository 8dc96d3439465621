"""TVM's places of the executors: ``from minitvm.tvm.contrib import graph_executor``.  Re-exports only."""

from types import SimpleNamespace

from minitvm.runtime import debug as debug_executor
from minitvm.runtime import executor as graph_executor

__all__ = ["debugger", "graph_executor", "graph_runtime"]

debugger = SimpleNamespace(debug_executor=debug_executor)
graph_runtime = graph_executor
"""The name that the graph executor had first."""
