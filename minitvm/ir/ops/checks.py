"""Checks of values while a model runs, and marks that compute nothing.

A check is a kernel that looks; the executor raises after the run:

    %flag = control.out_of_range(%data, %indices, axes=[0])
    take(%data, control.after(%indices, %flag), axis=0)

Kernels themselves clamp positions, so that no input makes them touch memory that is not their own.
"""

from typing import Any

import numpy as np

from minitvm.errors import InputError
from minitvm.ir.dims import differ
from minitvm.ir.loop import Binary, Buffer, LoopExpr, Stage, as_index, const, select
from minitvm.ir.op import Fusion, Op, compute, max_over
from minitvm.ir.ops._shape import normalize_axis, require_kind
from minitvm.ir.relayout import Placement, Site, elementwise
from minitvm.ir.types import Shape, TensorType


class OutOfRange(Op, name="control.out_of_range", fusion=Fusion.OPAQUE, takes_stored=True):
    """The index that lies furthest outside of the dimension that it selects from; 0 if none does.

    data: (...), indices: (...) signed integers -> (), the worst index i as ``2 * i``, or ``-2 * i - 1`` where it is
    negative (``runtime.checks.from_zigzag``); with ``by_row`` (n, ...) -> (n,), so that threads can share many.

    One of the ``axes`` of data goes for all indices, several for the rows of indices.  An index is in [-extent,
    extent); with ``lengths`` it is a number of elements, in [0, extent].

    Run on the host (constants, unknown shapes) it raises :class:`InputError` at once.
    """

    axes: tuple[int, ...]
    lengths: bool = False
    by_row: bool = False

    def infer(self, data: TensorType, indices: TensorType) -> TensorType:
        require_kind(self, indices, "i", "indices")
        for axis in self.axes:
            normalize_axis(self, axis, data.rank)
        if len(self.axes) != 1 and (not indices.rank or differ(indices.shape[0], len(self.axes))):
            raise self.reject(f"{len(self.axes)} axes need as many rows of indices, not {indices}")
        if self.by_row and (len(self.axes) != 1 or not indices.rank):
            raise self.reject(f"by_row needs rows and one axis, not {indices} and axes {list(self.axes)}")
        return TensorType(indices.shape[: self.by_row], "uint64")

    def _limits(self, shape: Shape) -> list[tuple[int, int]]:
        """The lowest index of each axis, and the first that is too high."""
        extents: list[Any] = [shape[axis] for axis in self.axes]
        return [(0, n + 1) if self.lengths else (-n, n) for n in extents]

    def message(self, data: TensorType) -> str:
        """What is wrong, with ``{}`` for the index."""
        axes = ", ".join(str(axis % data.rank) for axis in self.axes)
        return f"{'length' if self.lengths else 'index'} {{}} is outside of dimension {axes} of {data}"

    def first_outside(self, shape: Shape, indices: np.ndarray) -> int | None:
        """An index that is out of range in a tensor of that shape."""
        rows = indices[None] if len(self.axes) == 1 else indices
        for row, (low, high) in zip(rows, self._limits(shape), strict=True):
            wrong = row[(row < low) | (row >= high)]
            if wrong.size:
                return int(wrong.flat[0])
        return None

    def reference(self, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
        wrong = self.first_outside(data.shape, indices)
        if wrong is not None:
            raise InputError(self.message(TensorType(data.shape, data.dtype.name)).format(wrong))
        return np.zeros(indices.shape[: self.by_row], np.uint64)

    def compute(self, data: Buffer, indices: Buffer) -> Stage:
        limits = self._limits(data.shape)

        def code(*i: LoopExpr) -> LoopExpr:
            index = indices[i].astype("int64")
            (low, high), *others = reversed(limits)
            least, end = as_index(low), as_index(high)
            for row, (low, high) in zip(reversed(range(len(others))), others, strict=True):
                least, end = select(i[0].equal(row), low, least), select(i[0].equal(row), high, end)
            return select((least <= index) & (index < end), const(0, "uint64"), _zigzag(index))

        if self.by_row:
            return compute(indices.shape[:1], lambda row: max_over(indices.shape[1:], lambda *i: code(row, *i)))
        return compute((), lambda: max_over(indices.shape, code))


def _zigzag(index: LoopExpr) -> LoopExpr:
    doubled = Binary("shl", index.astype("uint64"), const(1, "uint64"))
    return Binary("xor", doubled, select(index < 0, const(2**64 - 1, "uint64"), const(0, "uint64")))


class After(Op, name="control.after", fusion=Fusion.INJECTIVE):
    """``value`` itself, once ``flag`` is known: what a check is tied to the graph with.  Nothing is computed."""

    def infer(self, value: TensorType, flag: TensorType) -> TensorType:
        return value

    def reference(self, value: np.ndarray, flag: np.ndarray) -> np.ndarray:
        return value

    def compute(self, value: Buffer, flag: Buffer) -> Stage:
        return compute(value.shape, lambda *i: value[i])


class StopFusion(Op, name="annotation.stop_fusion", fusion=Fusion.OPAQUE, takes_stored=True):
    """``x`` itself, but FuseOps does not fuse across it.  x: any shape and dtype -> the same.  FuseOps removes it."""

    def infer(self, x: TensorType) -> TensorType:
        return x

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x

    def relayout(self, site: Site) -> Placement:
        return elementwise(site)
