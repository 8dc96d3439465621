"""What every network module offers: ``get_net`` and ``get_workload`` with Relay's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minitvm.ir.builder import var
from minitvm.ir.expr import Expr, Function, Module
from minitvm.testing.init import Initializer, create_workload


def image(batch_size: int, image_shape: tuple[int, int, int], dtype: str) -> Expr:
    """The input every network calls ``data``: (batch, channels, height, width)."""
    return var("data", shape=(batch_size, *image_shape), dtype=dtype)


def workload_of(get_net: Callable[..., Function]) -> Callable[..., tuple[Module, dict[str, np.ndarray]]]:
    """``get_workload`` of a network: ``get_net``'s arguments, ``initializer`` and ``seed`` -> (module, parameters)."""

    def get_workload(
        *arguments: Any, initializer: Initializer | None = None, seed: int = 0, **named: Any
    ) -> tuple[Module, dict[str, np.ndarray]]:
        return create_workload(get_net(*arguments, **named), initializer, seed)

    return get_workload
