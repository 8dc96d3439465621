"""Rows of Winograd's transforms as sums of values that are written out."""

from collections.abc import Iterable, Sequence

import numpy as np

from minitvm.ir.loop import LoopExpr, const, intrin


def combined(coefficients: Iterable[float], values: Sequence[LoopExpr]) -> LoopExpr | None:
    """The sum of values times numbers, as additions and multiply-adds; ``None`` where all are zero."""
    total: LoopExpr | None = None
    for c, value in sorted(
        zip(map(float, coefficients), values, strict=True), key=lambda pair: (pair[0] != 1, pair[0] != -1)
    ):
        if c == 0:
            continue
        if total is None:
            total = value if c == 1 else value * const(c, value.dtype)
        elif abs(c) == 1:
            total = total + value if c == 1 else total - value
        else:
            total = intrin("fma", value, const(c, value.dtype), total)
    return total


def transformed_input(B: np.ndarray, values: Sequence[LoopExpr]) -> list[LoopExpr]:
    """``B @ values``: rows of points that differ in sign share their even and odd parts."""
    extent = len(values)
    even = [float(i % 2 == 0) for i in range(extent)]
    odd = [1 - e for e in even]

    def row(coefficients: np.ndarray) -> LoopExpr:
        found = combined(coefficients, values)
        assert found is not None
        return found

    found = [row(B[0])]
    for i in range(1, extent - 1, 2):
        e, o = row(B[i] * even), row(B[i] * odd)
        found += [e + o, e - o]
    return [*found, row(B[-1])]


def transformed_output(A: np.ndarray, values: Sequence[LoopExpr]) -> list[LoopExpr]:
    """``A @ values``: points that differ in sign come as a sum and a difference."""
    pairs = [(values[i] + values[i + 1], values[i] - values[i + 1]) for i in range(1, len(values) - 1, 2)]
    found = []
    for i, row in enumerate(A):
        terms = [values[0], *(pair[i % 2] for pair in pairs), values[-1]]
        value = combined([row[0], *row[1:-1:2], row[-1]], terms)
        assert value is not None
        found.append(value)
    return found
