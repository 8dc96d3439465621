"""The graph IR.  Its files are the doors; what TVM's ``ir`` offers is here by its names."""

import importlib
from typing import Any

from minitvm.doors import door, left_out

_TVM = {"GlobalVar": "expr", "IRModule": "expr.Module", "Op": "op"}
_TVM |= dict.fromkeys(("TensorType", "TupleType", "FuncType", "Type", "Span"), "types")
_TVM |= dict.fromkeys(("assert_structural_equal", "structural_equal", "structural_hash"), "structural")


@door
def register_op_attr(op_name: str, attr_key: str, value: Any = None, level: int = 10) -> Any:
    """Says what another compiler computes: ``register_op_attr("nn.relu", "target.mylib", True)``."""
    raise left_out("the partitioning of graphs")


def __getattr__(name: str) -> Any:
    if name in ("instrument", "transform"):  # which the finder of ``minitvm.tvm.paths`` knows
        return importlib.import_module(f"minitvm.ir.{name}")
    if name not in _TVM:
        raise AttributeError(f"minitvm.ir has no attribute {name!r}")
    home, _, there = _TVM[name].partition(".")
    return getattr(importlib.import_module(f"minitvm.ir.{home}"), there or name)
