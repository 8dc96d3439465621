"""Padding, and moving pixels between the image plane and its channels."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np

from minitvm.ir.decision import Declined
from minitvm.ir.dims import Dim, always_less, differ, falls_short, larger, product, smaller
from minitvm.ir.layout import Layout
from minitvm.ir.loop import Buffer, Const, LoopExpr, Stage, all_of, as_index, const, maximum, minimum, select
from minitvm.ir.op import Fusion, Op, compute
from minitvm.ir.ops._shape import buffer_type, inside, require_same_dtype
from minitvm.ir.relayout import Placement, Site, data_moved
from minitvm.ir.types import TensorType, Type, type_of

PAD_MODES = ("constant", "edge", "reflect")


class Pad(Op, name="nn.pad", fusion=Fusion.INJECTIVE):
    """Grows a tensor.  data: (...), pad_value (optional, 0): () or (1,) -> (... + before + after).

    ``pad_width`` is ``((before, after), ...)``, one pair per dimension.  Other ``pad_mode``s than ``constant`` repeat
    the border (``edge``) or mirror what is next to it (``reflect``) and have no use for ``pad_value``.
    """

    pad_width: tuple[tuple[Dim, Dim], ...] = ()
    pad_mode: Annotated[str, PAD_MODES] = "constant"

    def solve(self, types: list[Type | None]) -> list[Type | None]:
        data = types[0]
        if len(types) < 2 or types[1] is not None or not isinstance(data, TensorType):
            return types
        return [data, TensorType((), data.dtype)]

    def infer(self, data: TensorType, pad_value: TensorType | None = None) -> TensorType:
        found = self._padded(data)
        if pad_value is not None:
            require_same_dtype(self, data, pad_value)
            if pad_value.rank > 1 or any(differ(d, 1) for d in pad_value.shape):
                raise self.reject(f"pad_value must be one number, not {pad_value}")
        return found

    def _padded(self, data: TensorType) -> TensorType:
        if len(self.pad_width) != data.rank or any(len(pair) != 2 for pair in self.pad_width):
            raise self.reject(f"pad_width={list(self.pad_width)} must have one pair for each dimension of {data}")
        for pair in self.pad_width:
            if any(always_less(end, 0) for end in pair):
                raise self.reject(f"pad_width={list(self.pad_width)} is negative", hint="use strided_slice to cut off")
        widths = [*zip(data.shape, self.pad_width, strict=True)]
        found = data.with_shape(tuple(n + before + after for n, (before, after) in widths))
        for n, pair in widths:
            self._check_room(n, pair, data, product(found.shape))
        return found

    def _check_room(self, n: Dim, pair: Sequence[Dim], data: TensorType, size: Dim) -> None:
        """Borders can only be repeated where there are elements, mirrored where there are enough; of a result of no
        elements nothing is."""
        most = larger(*pair)
        one = smaller(most, 1)
        few = {"constant": 0, "edge": one, "reflect": most + one}[self.pad_mode]
        if falls_short(n, smaller(few, few * size)):
            raise self.reject(f"{self.pad_mode} padding by {most} needs {few} elements: {data}")

    def reference(self, data: np.ndarray, pad_value: np.ndarray | None = None) -> np.ndarray:
        if self.pad_mode != "constant" and not data.size:
            return np.empty(self._padded(type_of(data)).static_shape, data.dtype)
        widths = [TensorType(pair).static_shape for pair in self.pad_width]
        if self.pad_mode != "constant":
            return np.pad(data, widths, mode=self.pad_mode)  # type: ignore[call-overload, no-any-return]
        fill = 0 if pad_value is None else pad_value.reshape(())[()]
        return np.pad(data, widths, constant_values=fill)

    def compute(self, data: Buffer, pad_value: Buffer | None = None) -> Stage:
        shape = self.infer(buffer_type(data)).extents
        padded = [d for d, pair in enumerate(self.pad_width) if pair != (0, 0)]

        def element(*index: LoopExpr) -> LoopExpr:
            where = [i - as_index(before) for i, (before, _) in zip(index, self.pad_width, strict=True)]
            if self.pad_mode != "constant":
                for d in padded:
                    where[d] = self._border(where[d], data.shape[d])
                return data[tuple(where)]
            conditions = [c for d in padded for c in inside(where[d], data.shape[d])]
            loaded = data[tuple(where)]
            return select(all_of(conditions), loaded, _fill(data, pad_value)) if conditions else loaded

        return compute(shape, element)

    def _border(self, i: LoopExpr, extent: Dim) -> LoopExpr:
        """The place whose element stands at ``i``, which may lie outside."""
        last = as_index(extent - 1)
        if self.pad_mode == "edge":
            return minimum(maximum(i, 0), last)
        mirrored = maximum(i, 0 - i)
        return minimum(mirrored, 2 * last - mirrored)

    def relayout(self, site: Site) -> Placement | Declined:
        """Axes that are not padded may be split."""
        move = site.data
        by_axis = dict(zip(move.old.primal, self.pad_width, strict=True))
        split_and_padded = [a for a in move.blocks if by_axis[a] != (0, 0)]
        if split_and_padded:
            return Declined(f"{split_and_padded[0]} is padded and split into blocks")
        op = self.with_attributes(pad_width=tuple(by_axis.get(a.name, (0, 0)) for a in move.new.axes))
        return data_moved(site, op)


def _fill(data: Buffer, pad_value: Buffer | None) -> LoopExpr:
    if pad_value is None:
        return const(0, data.dtype)
    return pad_value[tuple(Const(0) for _ in pad_value.shape)]


class _Shuffle(Op, fusion=Fusion.INJECTIVE):
    """Operators between ``block_size`` squared channels and as many pixels.  data: ``layout`` NCHW or NHWC."""

    block_size: int = 1
    layout: Literal["NCHW", "NHWC"] = "NCHW"

    def _extents(self, data: TensorType) -> dict[str, Dim]:
        if data.rank != 4 or self.block_size < 1:
            raise self.reject(f"takes an image of 4 dimensions and a positive block_size={self.block_size}, not {data}")
        return Layout(self.layout).primal_shape(data.shape)

    def _divide(self, extent: Dim, by: int, what: str) -> Dim:
        if differ(extent % by, 0):
            raise self.reject(f"the input's {what}={extent} is not a multiple of {by}")
        return extent // by

    def reference(self, data: np.ndarray) -> np.ndarray:
        layout = Layout(self.layout)
        return np.ascontiguousarray(layout.convert(self._moved(Layout("NCHW").convert(data, layout)), "NCHW"))

    def _moved(self, x: np.ndarray) -> np.ndarray:
        """x: NCHW -> NCHW."""
        raise NotImplementedError(self.name)

    def compute(self, data: Buffer) -> Stage:
        layout, result = Layout(self.layout), self.infer(buffer_type(data))
        assert isinstance(result, TensorType)
        shape = result.extents
        given, made = (Layout(self.layout).primal_shape(s) for s in (data.shape, shape))
        depth = min(given["C"], made["C"])

        def element(*index: LoopExpr) -> LoopExpr:
            at = layout.coordinates(index)
            return data[layout.place({**at, **self._source(at, depth)})]

        return compute(shape, element)

    def _source(self, at: dict[str, Any], depth: Dim) -> dict[str, Any]:
        """The channel and the pixel of data that stand at another place; ``depth`` is the fewer channels."""
        raise NotImplementedError(self.name)


class DepthToSpace(_Shuffle, name="nn.depth_to_space"):
    """Channels become pixels.  data: (N, C, H, W) -> (N, C / b**2, H * b, W * b).

    ``mode`` "DCR" takes a block's offset from the high part of the channel, "CRD" from the low part.
    """

    mode: Literal["DCR", "CRD"] = "DCR"

    def infer(self, data: TensorType) -> TensorType:
        b, at = self.block_size, self._extents(data)
        at |= {axis: at[axis] * b for axis in "HW"}
        return data.with_shape(Layout(self.layout).shape_of({**at, "C": self._divide(at["C"], b * b, "C")}))

    def _moved(self, x: np.ndarray) -> np.ndarray:
        b, (n, c, h, w) = self.block_size, x.shape
        if self.mode == "DCR":
            split = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
        else:
            split = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
        return np.asarray(split.reshape(n, c // (b * b), h * b, w * b))

    def _source(self, at: dict[str, Any], depth: Dim) -> dict[str, Any]:
        b = self.block_size
        offset = at["H"] % b * b + at["W"] % b
        channel = offset * depth + at["C"] if self.mode == "DCR" else at["C"] * (b * b) + offset
        return {"C": channel, "H": at["H"] // b, "W": at["W"] // b}


class SpaceToDepth(_Shuffle, name="nn.space_to_depth"):
    """Pixels become channels.  data: (N, C, H, W) -> (N, C * b**2, H / b, W / b)."""

    def infer(self, data: TensorType) -> TensorType:
        b, at = self.block_size, self._extents(data)
        at |= {axis: self._divide(at[axis], b, axis) for axis in "HW"}
        return data.with_shape(Layout(self.layout).shape_of({**at, "C": at["C"] * (b * b)}))

    def _moved(self, x: np.ndarray) -> np.ndarray:
        b, (n, c, h, w) = self.block_size, x.shape
        split = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
        return np.asarray(split.reshape(n, c * b * b, h // b, w // b))

    def _source(self, at: dict[str, Any], depth: Dim) -> dict[str, Any]:
        b, offset = self.block_size, at["C"] // depth
        return {"C": at["C"] % depth, "H": at["H"] * b + offset // b, "W": at["W"] * b + offset % b}
