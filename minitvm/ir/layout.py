"""Tensor layouts: which axes a tensor has, in which order, and which of them are split into blocks.

``NCHW`` is plain.  ``NCHW8c`` is a blocked layout, which splits the channels: ``C`` counts blocks of 8, ``c`` the
channels inside one, so a ``(1, 16, 5, 5)`` tensor becomes ``(1, 2, 5, 5, 8)``.  A block must divide its axis; nothing
is padded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from minitvm.errors import TypeInferenceError
from minitvm.ir.dims import Dim, differ
from minitvm.ir.types import Shape

_PART = re.compile(r"([A-Z])|([0-9]+)([a-z])")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


@dataclass(frozen=True)
class Axis:
    """One dimension of a layout: ``C`` (``block`` 0) or, for a block of ``block`` channels, ``c``."""

    name: str
    block: int = 0

    @property
    def primal(self) -> str:
        return self.name.upper()

    def __str__(self) -> str:
        return f"{self.block}{self.name}" if self.block else self.name


@dataclass(frozen=True)
class Split:
    """A coordinate along an axis whose block and place in it are known: ``outer * factor + inner``."""

    outer: Any
    inner: Any
    factor: int

    @property
    def value(self) -> Any:
        return self.outer * self.factor + self.inner


@dataclass(frozen=True)
class Layout:
    """A parsed layout; equal layouts have equal text.  Raises :class:`TypeInferenceError` for text that is none.

    One object per text, so that what is found out about a layout is found out once.
    """

    text: str

    def __new__(cls, text: str | None = None) -> Layout:
        if not isinstance(text, (str, type(None))):
            raise _malformed(text, 'layouts are text, such as "NCHW"')
        made = _KNOWN.get(text or "") or super().__new__(cls)
        return made if text is None else _KNOWN.setdefault(text, made)

    def __post_init__(self) -> None:
        _ = self.axes

    def __str__(self) -> str:
        return self.text

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        return _parse(self.text)

    @cached_property
    def primal(self) -> str:
        """The axes without blocks, in order: ``NCHW`` of ``NCHW8c``."""
        return "".join(a.name for a in self.axes if not a.block)

    @property
    def rank(self) -> int:
        """Dimensions of a tensor in this layout, blocks included."""
        return len(self.axes)

    @property
    def is_blocked(self) -> bool:
        return len(self.primal) != self.rank

    @cached_property
    def _position(self) -> dict[str, int]:
        return {a.name: d for d, a in enumerate(self.axes)}

    def __contains__(self, axis: str) -> bool:
        return axis in self._position

    def index(self, axis: str) -> int:
        """The dimension of axis ``C``, or of its block ``c``; KeyError where it has none."""
        return self._position[axis]

    @cached_property
    def _factors(self) -> dict[str, int]:
        return {a.primal: a.block for a in self.axes if a.block}

    def factor(self, axis: str) -> int:
        """The block size of axis ``C``; 1 where it is not split."""
        return self._factors.get(axis.upper(), 1)

    def ordinal(self, axis: str) -> str:
        """The position of an axis in words: ``second``."""
        return _ORDINALS[self.index(axis)]

    def plain(self) -> Layout:
        """This layout without its blocks."""
        return Layout(self.primal)

    def blocked(self, axis: str, factor: int) -> Layout:
        """This layout with ``axis`` split and the block at the end: ``NCHW`` to ``NCHW8c``."""
        if axis.lower() in self or axis not in self:
            raise TypeInferenceError(
                f"layout {self} cannot split {axis!r}: it has no such axis, or it is split already"
            )
        return Layout(f"{self}{factor}{axis.lower()}")

    def without(self, axes: str) -> Layout:
        """This layout with some primal axes, and their blocks, removed (what a reduction leaves)."""
        return Layout("".join(str(a) for a in self.axes if a.primal not in axes))

    def compatible(self, other: Layout) -> bool:
        """True where both have the same primal axes: each tensor in one has its twin in the other."""
        return sorted(self.primal) == sorted(other.primal)

    def primal_shape(self, shape: Sequence[Dim]) -> dict[str, Dim]:
        """The extent of each primal axis of a tensor of ``shape`` in this layout."""
        if len(shape) != self.rank:
            raise TypeInferenceError(f"layout {self} has {self.rank} dimensions, the tensor {len(shape)}")
        extents: dict[str, Dim] = {}
        for axis, dim in zip(self.axes, shape, strict=True):
            if not axis.block:
                extents[axis.name] = dim * self.factor(axis.name)
            elif differ(dim, axis.block):
                raise TypeInferenceError(f"layout {self}: dimension {axis.name!r} is {dim}, not {axis.block}")
        return extents

    def shape_of(self, extents: Mapping[str, Dim]) -> Shape:
        """The shape of a tensor with these primal extents; a block must divide its axis."""
        return tuple(a.block or self._blocks(a.name, extents[a.name]) for a in self.axes)

    def _blocks(self, axis: str, extent: Dim) -> Dim:
        factor = self.factor(axis)
        if not isinstance(extent, int) or extent % factor == 0:
            return extent // factor
        raise TypeInferenceError(
            f"layout {self}: {axis} is {extent}, which blocks of {factor} do not divide",
            hint="choose a block size that divides the axis; padded blocks are not supported",
        )

    def shape_from(self, other: Layout | str, shape: Sequence[Dim]) -> Shape:
        """The shape in this layout of a tensor that has ``shape`` in layout ``other``."""
        return _converted(Layout(str(other)), self, tuple(shape))

    def coordinates(self, index: Sequence[Any]) -> dict[str, Any]:
        """Primal coordinates of the element at ``index``: numbers, or loop expressions; a split axis is a ``Split``."""
        return {
            name: Split(index[self.index(name)], index[self.index(name.lower())], self.factor(name))
            if name.lower() in self
            else index[self.index(name)]
            for name in self.primal
        }

    def place(self, coordinates: Mapping[str, Any]) -> tuple[Any, ...]:
        """The index of the element at these primal coordinates (the inverse of :meth:`coordinates`)."""
        return tuple(self._place(axis, coordinates[axis.primal]) for axis in self.axes)

    def _place(self, axis: Axis, coordinate: Any) -> Any:
        factor = self.factor(axis.primal)
        if isinstance(coordinate, Split):
            if coordinate.factor == factor and axis.primal.lower() in self:
                return coordinate.inner if axis.block else coordinate.outer
            coordinate = coordinate.value
        return coordinate % factor if axis.block else coordinate // factor if factor > 1 else coordinate

    def index_from(self, other: Layout, index: Sequence[Any]) -> tuple[Any, ...]:
        """The index, in this layout, of the element that has ``index`` in layout ``other``."""
        return self.place(other.coordinates(index))

    def convert(self, array: np.ndarray, source: Layout | str) -> np.ndarray:
        """``array``, which is in layout ``source``, in this layout (numpy; a copy or a view)."""
        given = Layout(str(source))
        shape, extents = self.shape_from(given, array.shape), given.primal_shape(array.shape)
        plain = array.transpose(given._by_axis).reshape([extents[name] for name in given.primal])
        ordered = plain.transpose([given.primal.index(name) for name in self.primal])
        split = ordered.reshape([shape[d] for d in self._by_axis])
        return np.asarray(split.transpose(np.argsort(self._by_axis)))

    @cached_property
    def _by_axis(self) -> list[int]:
        """The dimensions with each block right behind its axis."""
        return [self.index(a) for name in self.primal for a in (name, name.lower()) if a in self]


_KNOWN: dict[str, Layout] = {}
"""Every layout by its text."""


@lru_cache(maxsize=1024)
def _parse(text: str) -> tuple[Axis, ...]:
    parts = _PART.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        raise _malformed(text, "axes are capital letters, blocks a number and a small letter")
    axes = tuple(Axis(upper) if upper else Axis(lower, int(size)) for upper, size, lower in parts)
    names = [a.name for a in axes]
    for axis in axes:
        if names.count(axis.name) > 1:
            raise _malformed(text, f"{axis.name!r} is there twice")
        if axis.primal not in names:
            raise _malformed(text, f"block {str(axis)!r} has no axis {axis.primal!r}")
        if axis.name.islower() and not axis.block:
            raise _malformed(text, f"block {axis.name!r} has size 0")
    return axes


def _malformed(text: str, why: str) -> TypeInferenceError:
    return TypeInferenceError(f"{text!r} is not a layout: {why}", hint="layouts look like NCHW, NHWC, OIHW, NCHW8c")


@lru_cache(maxsize=1 << 12)
def _converted(source: Layout, target: Layout, shape: Shape) -> Shape:
    """:meth:`Layout.shape_from`; a model has few shapes and asks for them often."""
    if not target.compatible(source):
        raise TypeInferenceError(
            f"layouts {source} and {target} have different axes",
            hint="both must name the same axes, in any order and with any blocks",
        )
    return target.shape_of(source.primal_shape(shape))
