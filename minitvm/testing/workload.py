"""What every network module offers: ``get_net`` and ``get_workload`` with Relay's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minitvm.ir.builder import function, var
from minitvm.ir.expr import Expr, Function, Module
from minitvm.testing.init import create_workload


def image(batch_size: int, image_shape: tuple[int, int, int], dtype: str) -> Expr:
    """The input every network calls ``data``: (batch, channels, height, width)."""
    return var("data", shape=(batch_size, *image_shape), dtype=dtype)


def workload(get_net: Callable[..., Function], **arguments: Any) -> tuple[Module, dict[str, np.ndarray]]:
    """``create_workload`` of a network; ``initializer`` and ``seed`` go there, the rest to ``get_net``."""
    initializer, seed = arguments.pop("initializer", None), arguments.pop("seed", 0)
    return create_workload(get_net(**arguments), initializer, seed)


__all__ = ["function", "image", "workload"]
