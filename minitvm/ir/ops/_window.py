"""Window arithmetic that convolutions and pools share: kernels, strides, padding, dilation, extents, bounds.

Padding is kept as ``(before..., after...)`` over the spatial axes: ``(top, left, bottom, right)`` in 2-d.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from minitvm.errors import TypeInferenceError
from minitvm.ir.dims import Dim, always_less, ceil_divide, larger, smaller, truncating_divide
from minitvm.ir.loop import Buffer, LoopExpr, as_index
from minitvm.ir.op import Op
from minitvm.ir.types import TensorType


class Windowed(Op):
    """An operator that slides a window over the axes ``spatial``.

    Its attributes are a number for each of these axes, padding one for each end; one integer stands for all.
    """

    spatial: ClassVar[str] = ""
    filters: ClassVar[str] = ""
    """The weight's axes besides those: ``OI`` or ``IO``; the second one is divided among the groups."""

    def __init_subclass__(cls, spatial: str = "", **traits: Any) -> None:
        """Windows over these axes: by default steps of 1, no padding, layouts with the axes in order."""
        if spatial:
            rank, image, cls.spatial = len(spatial), f"NC{spatial}", spatial
            defaults: dict[str, Any] = dict.fromkeys(("pool_size", "strides", "dilation"), (1,) * rank)
            defaults |= {"output_padding": (0,) * rank, "padding": (0, 0) * rank}
            defaults |= {"layout": image, "data_layout": image, "kernel_layout": cls.filters + spatial}
            for field in dataclasses.fields(cls):
                if field.name in defaults.keys() - vars(cls).keys():
                    cls.__annotations__[field.name] = field.type
                    setattr(cls, field.name, defaults[field.name])
        super().__init_subclass__(**traits)

    def __post_init__(self) -> None:
        super().__post_init__()
        rank = len(self.spatial)
        for name in ("pool_size", "kernel_size", "strides", "dilation", "output_padding"):
            if getattr(self, name, None) is not None:
                self._spread(name, (1, rank), rank)
        self._spread("padding", (1, rank, 2 * rank), 2 * rank)

    def window(self: Any, axis: str, taps: int) -> Window:
        """That of so many taps along a spatial axis."""
        d = self.spatial.index(axis)
        return Window(taps, self.strides[d], self.dilation[d], pads_of(self.padding)[d])

    def _spread(self, name: str, lengths: tuple[int, ...], total: int) -> None:
        given: tuple[int, ...] = getattr(self, name)
        if len(given) not in lengths:
            expected = " or ".join(map(str, dict.fromkeys(lengths)))
            raise self.reject(f"{name}={list(given)} has {len(given)} numbers, expected {expected}")
        least = 0 if name in ("padding", "output_padding") else 1
        if min(given) < least:
            raise self.reject(f"{name}={list(given)} has a number below {least}")
        if len(given) < total:
            object.__setattr__(self, name, given * (total // len(given)))


class Window(NamedTuple):
    """A window along one axis."""

    taps: int
    stride: int
    dilation: int
    pads: tuple[int, int]

    def room(self, extent: Dim) -> Dim:
        """How far it can move within the padded input."""
        return extent + sum(self.pads) - dilated(self.taps, self.dilation)

    def position(self, index: Any, tap: Any) -> Any:
        """The element that a tap of the window of that index meets; outside where it falls on padding."""
        return index * self.stride + tap * self.dilation - self.pads[0]

    def too_wide(self, op: Op, axis: str, extent: Dim) -> TypeInferenceError:
        span = dilated(self.taps, self.dilation)
        return op.reject(
            f"the window spans {span} along {axis} but the padded input has {extent + sum(self.pads)}",
            hint="use a smaller kernel or dilation, or more padding",
        )


def tap_views(array: np.ndarray, windows: Sequence[Window], counts: Sequence[int]) -> Iterator[np.ndarray]:
    """For every tap, row-major, the elements of an array (N, C, spatial...) that it meets in ``counts`` windows."""
    for tap in np.ndindex(*(w.taps for w in windows)):
        starts = [t * w.dilation for t, w in zip(tap, windows, strict=True)]
        spans = [max((n - 1) * w.stride + 1, 0) for n, w in zip(counts, windows, strict=True)]
        steps = [slice(a, a + n, w.stride) for a, n, w in zip(starts, spans, windows, strict=True)]
        yield array[tuple([slice(None)] * 2 + steps)]


def dilated(kernel: int, dilation: int) -> int:
    """How many elements a window of ``kernel`` taps spans."""
    return (kernel - 1) * dilation + 1


def window_extent(op: Op, axis: str, extent: Dim, window: Window) -> Dim:
    """How many windows fit."""
    room = window.room(extent)
    if always_less(room, 0):
        raise window.too_wide(op, axis, extent)
    return room // window.stride + 1


def pool_extent(op: Op, axis: str, extent: Dim, window: Window, ceil_mode: bool) -> Dim:
    """How many windows a pool has.  With ``ceil_mode`` also one that hangs over the end, unless it would start
    behind the input and its padding in front.

    A window larger than the padded input, by less than a stride, hangs over it too; by less than two there is no
    window: ONNX Runtime divides towards zero.
    """
    room, stride = window.room(extent), window.stride
    if always_less(room, 1 - 2 * stride):
        raise window.too_wide(op, axis, extent)
    if not ceil_mode:
        return truncating_divide(room, stride) + 1
    count, starts = ceil_divide(room, stride) + 1, ceil_divide(extent + window.pads[0], stride)
    return larger(count - 1, smaller(count, starts))


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
    if not isinstance(dim, int):
        raise op.reject(f"{what} must be known", hint="only the batch and the spatial dimensions may be unknown")
    return dim
