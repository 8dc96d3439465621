"""Compute rules: an operator's meaning element by element, from which every target's kernels are lowered.

    compute((m, n), lambda i, j: sum_over(k, lambda r: x[i, r] * weight[j, r]))

A rule may use several stages; a stage is indexed like any buffer.  Element functions see loop variables only, so
they hold no state, and stages compose across operators: that is what makes fusion a substitution.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minitvm.ir.dims import Dim, SymbolicDim
from minitvm.ir.loop import Binary, Buffer, Const, LoopExpr, LoopVar, Reduce, Select, Stage, const, walk_exprs
from minitvm.ir.op import Op
from minitvm.ir.types import accumulator as accumulator

_AXIS_NAMES = "ijklmnopq"


def compute(shape: Sequence[Dim], element: Callable[..., Any], dtype: str | None = None, name: str = "t") -> Stage:
    """The tensor whose element at ``(i, j, ...)`` is ``element(i, j, ...)``.

    ``dtype`` is needed only where ``element`` returns a Python number.
    """
    axes = tuple(LoopVar(_AXIS_NAMES[d] if d < len(_AXIS_NAMES) else f"i{d}") for d in range(len(shape)))
    value = element(*axes)
    if not isinstance(value, LoopExpr):
        assert dtype is not None, "a constant element needs a dtype"
        value = const(value, dtype)
    assert dtype is None or value.dtype == dtype, f"element is {value.dtype}, not {dtype}"
    extents: Any = tuple(d if isinstance(d, SymbolicDim) else int(d) for d in shape)
    return Stage(name, extents, value.dtype, axes=axes, value=value)


def _reduce(kind: str, extents: int | Sequence[int], element: Callable[..., LoopExpr]) -> LoopExpr:
    sizes = (extents,) if isinstance(extents, (int, SymbolicDim)) else tuple(extents)
    axes = tuple(LoopVar("rstuvw"[d] if d < 6 else f"r{d}") for d in range(len(sizes)))
    value = element(*axes)
    if not sizes:
        return value
    return Reduce(kind, tuple(zip(axes, sizes, strict=True)), value)


def sum_over(extents: int | Sequence[int], element: Callable[..., LoopExpr]) -> LoopExpr:
    """Sum of ``element(r, ...)`` for ``r`` below each extent; 0 where an extent is 0.

    Where the element is a product of the rule's own, it is a ``"dot"``: multiplied and added with one rounding.
    """
    found = _reduce("sum", extents, element)
    return Reduce("dot", found.axes, found.value) if isinstance(found, Reduce) and is_product(found.value) else found


def is_product(value: LoopExpr) -> bool:
    """Of floats, wherever it is not masked."""
    if isinstance(value, Select):
        return is_product(value.then) or is_product(value.orelse)
    return isinstance(value, Binary) and value.op == "mul" and value.dtype.startswith("float")


prod_over, max_over, min_over = (functools.partial(_reduce, kind) for kind in ("prod", "max", "min"))
"""Product, maximum, minimum; where an extent is 0 what :func:`identity_of` says."""


def identity_of(kind: str, dtype: str) -> Const:
    """The neutral element of a reduction."""
    if kind in ("sum", "dot", "prod"):
        return const(1 if kind == "prod" else 0, dtype)
    if dtype == "bool":
        return const(kind == "min", dtype)
    if dtype.startswith("float"):
        return const(float("-inf") if kind == "max" else float("inf"), dtype)
    ends = np.iinfo(dtype)
    return const(ends.min if kind == "max" else ends.max, dtype)


def outer_reductions(value: LoopExpr) -> list[Reduce]:
    """The reductions below ``value`` that are not inside another, each once."""
    found = [node for node in walk_exprs(value) if isinstance(node, Reduce)]
    inner = {n for node in found for n in walk_exprs(node.value)}
    return [node for node in found if node not in inner]


def broadcast_index(buffer: Buffer, index: Sequence[LoopExpr]) -> tuple[LoopExpr, ...]:
    """The index into ``buffer`` for an element of the result that it is broadcast to (numpy's rule)."""
    tail = index[len(index) - len(buffer.shape) :]
    return tuple(Const(0) if extent == 1 else i for i, extent in zip(tail, buffer.shape, strict=True))


def compute_of(op: Op, *buffers: Buffer | tuple[Buffer, ...]) -> tuple[Buffer, ...]:
    """An operator's compute rule, always as a tuple of stages."""
    result = op.compute(*buffers)
    return result if isinstance(result, tuple) else (result,)
