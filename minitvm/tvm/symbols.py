"""TVM's ``te.var`` and ``te.size_var`` where scripts of Relay's need them: sizes that are open."""

from __future__ import annotations

from typing import Any

from minitvm.ir.dims import Dim, symbol


def var(name: str = "tindex", dtype: str = "int32", span: Any = None) -> Dim:
    """An open size of that name: equal to every other one of it."""
    return symbol(name)


size_var = var
