"""Window arithmetic that convolutions and pools share: kernels, strides, padding, dilation, extents, bounds.

Padding is kept as ``(before..., after...)`` over the spatial axes: ``(top, left, bottom, right)`` in 2-d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minitvm.errors import TypeInferenceError
from minitvm.ir.loop import Buffer, LoopExpr, as_index
from minitvm.ir.op import Op
from minitvm.ir.types import Dim, TensorType


def freeze_window(op: Op, rank: int, *attributes: str) -> None:
    """Make attributes tuples of ``rank`` integers; one integer stands for all; ``None`` stays."""
    for attribute in attributes:
        value = getattr(op, attribute)
        if value is not None:
            object.__setattr__(op, attribute, _spread(op, attribute, value, (1, rank), rank))


def freeze_padding(op: Op, rank: int) -> None:
    """Make ``padding`` the amounts before, then after, every spatial axis; fewer integers are repeated."""
    spread = _spread(op, "padding", op.padding, (1, rank, 2 * rank), 2 * rank)  # type: ignore[attr-defined]
    object.__setattr__(op, "padding", spread)


def _spread(op: Op, attribute: str, given: tuple[int, ...], lengths: tuple[int, ...], total: int) -> tuple[int, ...]:
    if len(given) not in lengths:
        expected = " or ".join(map(str, dict.fromkeys(lengths)))
        raise op.reject(f"{attribute}={list(given)} has {len(given)} numbers, expected {expected}")
    least = 0 if attribute in ("padding", "output_padding") else 1
    if min(given) < least:
        raise op.reject(f"{attribute}={list(given)} has a number below {least}")
    return given * (total // len(given))


def dilated(kernel: int, dilation: int) -> int:
    """How many elements a window of ``kernel`` taps spans."""
    return (kernel - 1) * dilation + 1


def window_extent(
    op: Op,
    axis: str,
    extent: Dim,
    kernel: int,
    stride: int,
    dilation: int,
    pads: tuple[int, int],
) -> Dim:
    """How many windows fit; unknown stays unknown."""
    if extent is None:
        return None
    room = _room(extent, kernel, dilation, pads)
    if room < 0:
        raise _too_wide(op, axis, extent, dilated(kernel, dilation), pads)
    return room // stride + 1


def pool_extent(
    op: Op,
    axis: str,
    extent: Dim,
    kernel: int,
    stride: int,
    dilation: int,
    pads: tuple[int, int],
    ceil_mode: bool = False,
) -> Dim:
    """How many windows a pool has.  With ``ceil_mode`` also one that hangs over the end, unless it would start
    behind the input and its padding in front.

    A window larger than the padded input, by less than a stride, hangs over it too; by less than two there is no
    window: ONNX Runtime divides towards zero.
    """
    if extent is None:
        return None
    room = _room(extent, kernel, dilation, pads)
    if room <= -2 * stride:
        raise _too_wide(op, axis, extent, dilated(kernel, dilation), pads)
    count = -(-room // stride) + 1 if ceil_mode or room < 0 else room // stride + 1
    return count - 1 if ceil_mode and count > 0 and (count - 1) * stride >= extent + pads[0] else count


def _room(extent: int, kernel: int, dilation: int, pads: tuple[int, int]) -> int:
    """How far a window can move within the padded input."""
    return extent + sum(pads) - dilated(kernel, dilation)


def _too_wide(op: Op, axis: str, extent: int, span: int, pads: tuple[int, int]) -> TypeInferenceError:
    return op.reject(
        f"the window spans {span} along {axis} but the padded input has {extent + sum(pads)}",
        hint="use a smaller kernel or dilation, or more padding",
    )


def pads_of(padding: Sequence[int]) -> list[tuple[int, int]]:
    """``(before, after)`` of each spatial axis."""
    rank = len(padding) // 2
    return [(padding[d], padding[d + rank]) for d in range(rank)]


def inside(position: Any, extent: int) -> list[LoopExpr]:
    """The conditions for ``0 <= position < extent``."""
    return [as_index(0) <= position, position < extent]


def buffer_type(buffer: Buffer) -> TensorType:
    return TensorType(buffer.shape, buffer.dtype)


def known(op: Op, type_: TensorType, argument: str) -> tuple[int, ...]:
    """The shape of an argument whose dimensions must all be known."""
    if not type_.is_static:
        raise op.reject(f"{argument} must have a known shape, not {type_}")
    return type_.static_shape


def known_dim(op: Op, dim: Dim, what: str) -> int:
    if dim is None:
        raise op.reject(f"{what} must be known", hint="only the batch and the spatial dimensions may be unknown")
    return dim
