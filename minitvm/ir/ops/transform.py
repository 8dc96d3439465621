"""Operators that move elements about: reshape, transpose, expand, squeeze, tile, repeat, reverse, layout_transform."""

from collections.abc import Sequence

import numpy as np

from minitvm.ir.arrays import row_major
from minitvm.ir.decision import Declined
from minitvm.ir.dims import Dim, anonymous, differ, is_anonymous, product
from minitvm.ir.layout import Layout
from minitvm.ir.loop import Buffer, Const, LoopExpr, Stage, as_index
from minitvm.ir.op import Fusion, Op, compute
from minitvm.ir.ops._shape import Axiswise, buffer_type, normalize_axes, normalize_axis, replaced, reshape_index
from minitvm.ir.relayout import Move, Placement, Site, calling, same_tensor
from minitvm.ir.types import Shape, TensorType, as_tensor


def _reshaped(data: Buffer, shape: tuple[int, ...]) -> Stage:
    return compute(shape, lambda *i: data[tuple(reshape_index(i, shape, data.shape))])


class View(Op, view=True):
    """The elements of data in their order, in the shape that ``infer`` says."""

    def compute(self, data: Buffer) -> Stage:
        return _reshaped(data, as_tensor(self.infer(buffer_type(data))).extents)

    def starts(self, data: TensorType) -> tuple[int, ...]:
        return (0,)


_REST = -1
_COPY_ALL, _MERGE, _SPLIT = -2, -3, -4


def resolve_reshape(op: Op, x: TensorType, newshape: Sequence[Dim], allowzero: bool) -> Shape:
    """``newshape`` with its special values replaced; rejects the call where the sizes cannot agree."""
    plain = all(d >= 1 for d in newshape if isinstance(d, int))
    try:
        shape, open_at = ([*newshape], None) if plain else _expand(x.shape, newshape, allowzero)
    except ValueError as error:
        raise op.reject(f"newshape {list(newshape)} does not fit {x}: {error}") from None
    if open_at is not None:
        shape[open_at] = _remaining(x.shape, shape[:open_at] + shape[open_at + 1 :])
    if -1 in shape or differ(product(x.shape), product(shape)):
        raise op.reject(f"{x} cannot have shape {list(newshape)}: the numbers of elements differ")
    return tuple(shape)


def _expand(source: Shape, newshape: Sequence[Dim], allowzero: bool) -> tuple[list[Dim], int | None]:
    """The target, and where it has its -1.  Each entry uses up dimensions of ``source`` from the left."""
    result: list[Dim] = []
    entries = list(newshape)
    open_at: int | None = None
    at = 0
    while entries:
        entry = entries.pop(0)
        if not isinstance(entry, int):
            result.append(entry)
        elif entry == _REST:
            if open_at is not None:
                raise ValueError("more than one -1")
            open_at = len(result)
            result.append(_REST)
        elif entry == 0 and not allowzero:
            result.append(_dim(source, at))
        elif entry == _COPY_ALL:
            result += source[at:]
            at = len(source) - 1
        elif entry == _MERGE:
            result.append(product((_dim(source, at), _dim(source, at + 1))))
            at += 1
        elif entry == _SPLIT:
            if len(entries) < 2:
                raise ValueError("-4 takes the two numbers that follow it")
            result += _split(_dim(source, at), entries.pop(0), entries.pop(0))
        elif entry < _SPLIT:
            raise ValueError(f"{entry} means nothing")
        else:
            result.append(entry)
        at += 1
    return result, open_at


def _dim(source: Shape, at: int) -> Dim:
    if at >= len(source):
        raise ValueError(f"it refers to dimension {at}")
    return source[at]


def _split(extent: Dim, first: Dim, second: Dim) -> list[Dim]:
    """One dimension as two, of which one may be -1."""
    if -1 not in (first, second):
        return [first, second]
    known = second if first == -1 else first
    rest = extent // known if known else 0
    return [rest, second] if first == -1 else [first, rest]


def _remaining(source: Shape, others: Sequence[Dim]) -> Dim:
    """What -1 stands for: -1 where no number fits.  Symbols and zeros cancel where both sides have as many."""
    given, used = list(source), list(others)
    for dim in others:
        if dim in given and (dim == 0 or not isinstance(dim, int)):
            given.remove(dim)
            used.remove(dim)
    if 0 in given:
        return 0
    total, known = product(given), product(used)
    if known == 0:
        return -1 if isinstance(total, int) else anonymous()
    if isinstance(total, int) and isinstance(known, int) and total % known:
        return -1
    return total // known


class Reshape(View, name="reshape", fusion=Fusion.INJECTIVE):
    """The same elements, row-major, in another shape.  data: (...) -> newshape.

    In ``newshape``, 0 copies a dimension of data (unless ``allowzero``), -1 is what remains, -2 copies all
    remaining dimensions, -3 merges two, and -4 splits one into the two that follow it.
    """

    newshape: tuple[Dim, ...]
    allowzero: bool = False

    @classmethod
    def to(cls, shape: Shape) -> "Reshape":
        """The reshape to this shape as it is, whose zeros copy nothing."""
        return cls(tuple(shape), 0 in shape)

    def infer(self, data: TensorType) -> TensorType:
        return data.with_shape(resolve_reshape(self, data, self.newshape, self.allowzero))

    def reference(self, data: np.ndarray) -> np.ndarray:
        target = TensorType(data.shape, data.dtype.name)
        shape = [-1 if is_anonymous(d) else d for d in self.newshape]  # what came up inside the model is what is left
        return data.reshape(resolve_reshape(self, target, shape, self.allowzero))


class ReshapeLike(Op, name="reshape_like", fusion=Fusion.INJECTIVE):
    """The elements of data in the shape of another tensor.  data: (...), shape_like: (...) -> shape_like's shape."""

    def infer(self, data: TensorType, shape_like: TensorType) -> TensorType:
        have, want = product(data.shape), product(shape_like.shape)
        if differ(have, want):
            raise self.reject(f"{data} has {have} elements, {shape_like} has {want}")
        return data.with_shape(shape_like.shape)

    def reference(self, data: np.ndarray, shape_like: np.ndarray) -> np.ndarray:
        return data.reshape(shape_like.shape)

    def compute(self, data: Buffer, shape_like: Buffer) -> Stage:
        return _reshaped(data, shape_like.shape)


class BatchFlatten(View, name="nn.batch_flatten", fusion=Fusion.INJECTIVE):
    """All dimensions but the first merged.  data: (n, ...) -> (n, product of the others)."""

    def infer(self, data: TensorType) -> TensorType:
        if data.rank < 1:
            raise self.reject(f"expected at least one dimension, not {data}")
        return data.with_shape((data.shape[0], product(data.shape[1:])))

    def reference(self, data: np.ndarray) -> np.ndarray:
        return data.reshape(data.shape[0], int(np.prod(data.shape[1:])))


class Transpose(Op, name="transpose", fusion=Fusion.INJECTIVE, affine=True):
    """Dimension ``axes[d]`` of data becomes dimension d; reversed where ``axes`` is not given."""

    axes: tuple[int, ...] | None = None

    def order(self, rank: int) -> tuple[int, ...]:
        """The dimension of data that becomes each of the result's."""
        if self.axes is None:
            return tuple(reversed(range(rank)))
        if len(self.axes) != rank:
            raise self.reject(f"{len(self.axes)} axes given for rank {rank}: {list(self.axes)}")
        return normalize_axes(self, self.axes, rank)

    def infer(self, data: TensorType) -> TensorType:
        return data.with_shape(tuple(data.shape[a] for a in self.order(data.rank)))

    def reference(self, data: np.ndarray) -> np.ndarray:
        transposed: np.ndarray = data.transpose(self.axes)
        return transposed

    def compute(self, data: Buffer) -> Stage:
        order = self.order(len(data.shape))
        place = {axis: d for d, axis in enumerate(order)}
        shape = [data.shape[a] for a in order]
        return compute(shape, lambda *i: data[tuple(i[place[a]] for a in range(len(order)))])

    def relayout(self, site: Site) -> Placement:
        """Disappears: whoever needs the transposed tensor makes it from the moved one in one step."""
        move = site.data
        renamed = Layout("".join(move.axis(d) for d in self.order(move.old.rank)))
        return Placement((move,), Move(renamed, move.new), same_tensor)


_FRESH_AXES = "NCHWDABEFGJKLMPQ"


class ExpandDims(View, name="expand_dims", fusion=Fusion.BROADCAST, takes_stored=True):
    """``num_newaxis`` dimensions of extent 1 inserted before ``axis`` (negative: after it)."""

    axis: int
    num_newaxis: int = 1

    def infer(self, data: TensorType) -> TensorType:
        at = normalize_axis(self, self.axis, data.rank + 1)
        return data.with_shape(data.shape[:at] + (1,) * self.num_newaxis + data.shape[at:])

    def reference(self, data: np.ndarray) -> np.ndarray:
        at = self.axis if self.axis >= 0 else self.axis + data.ndim + 1
        return np.expand_dims(data, tuple(range(at, at + self.num_newaxis)))

    def relayout(self, site: Site) -> Placement | Declined:
        """One new axis, in front of the same axis as before; its letter is one that NCHW lacks, so that images fit."""
        move = site.data
        if self.num_newaxis != 1:
            return Declined("it adds several axes")
        at = self.axis % (move.old.rank + 1)
        fresh = next(letter for letter in _FRESH_AXES if letter not in move.old)
        last = next((d for d, a in enumerate(move.new.axes) if a.block), move.new.rank)
        place = move.index(at) if at < move.old.rank else last
        old, new = ([str(a) for a in layout.axes] for layout in (move.old, move.new))
        old.insert(at, fresh)
        new.insert(place, fresh)
        return Placement((move,), Move.of("".join(old), "".join(new)), calling(self.with_attributes(axis=place)))


class Squeeze(View, name="squeeze", fusion=Fusion.INJECTIVE):
    """Dimensions of extent 1 removed: those in ``axis``, all of them where it is not given."""

    axis: tuple[int, ...] | None = None

    def infer(self, data: TensorType) -> TensorType:
        if self.axis is None:
            if not data.is_static:
                raise self.reject(f"axis is needed where a dimension is unknown: {data}")
            return data.with_shape(tuple(d for d in data.shape if d != 1))
        axes = normalize_axes(self, self.axis, data.rank)
        for a in axes:
            if differ(data.shape[a], 1):
                raise self.reject(f"dimension {a} of {data} is {data.shape[a]}, not 1")
        return data.with_shape(tuple(dim for d, dim in enumerate(data.shape) if d not in axes))

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.squeeze(data, self.axis)

    def relayout(self, site: Site) -> Placement | Declined:
        """Drops the same axes of extent 1 (a split one has a block of 1)."""
        move, shape = site.data, site.type(0).extents
        every = [d for d, n in enumerate(shape) if n == 1]
        dropped = every if self.axis is None else normalize_axes(self, self.axis, len(shape))
        letters = "".join(move.axis(d) for d in dropped)
        if len(letters) == move.old.rank:
            return Declined("nothing is left")
        op = self.with_attributes(axis=move.places(letters))
        return Placement((move,), move.without(letters), calling(op))


class Tile(Op, name="tile", fusion=Fusion.BROADCAST, takes_stored=True):
    """data repeated ``reps[d]`` times along dimension d; the shorter of shape and reps is padded with 1 in front."""

    reps: tuple[int, ...]

    def _padded(self, shape: Shape) -> list[tuple[Dim, int]]:
        rank = max(len(shape), len(self.reps))
        dims = (1,) * (rank - len(shape)) + shape
        return list(zip(dims, (1,) * (rank - len(self.reps)) + self.reps, strict=True))

    def infer(self, data: TensorType) -> TensorType:
        if any(n < 0 for n in self.reps):
            raise self.reject(f"reps must not be negative: {list(self.reps)}")
        return data.with_shape(tuple(d * n for d, n in self._padded(data.shape)))

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.asarray(np.tile(data, self.reps))

    def compute(self, data: Buffer) -> Stage:
        shape = self.infer(TensorType(data.shape, data.dtype)).extents

        def element(*i: LoopExpr) -> LoopExpr:
            tail = i[len(i) - len(data.shape) :]
            full = shape[len(shape) - len(data.shape) :]
            return data[
                tuple(v if e == n else v % _one_at_least(e) for v, e, n in zip(tail, data.shape, full, strict=True))
            ]

        return compute(shape, element)


def _one_at_least(extent: Dim) -> LoopExpr:
    """What is divided by: of no elements, nothing is."""
    return as_index(max(extent, 1) if isinstance(extent, int) else extent)


class Repeat(Op, name="repeat", fusion=Fusion.BROADCAST, takes_stored=True):
    """Each element along ``axis`` ``repeats`` times in a row."""

    repeats: int
    axis: int = 0

    def infer(self, data: TensorType) -> TensorType:
        axis = normalize_axis(self, self.axis, data.rank)
        if self.repeats < 1:
            raise self.reject(f"repeats must be positive, not {self.repeats}")
        shape = list(data.shape)
        shape[axis] = shape[axis] * self.repeats
        return data.with_shape(tuple(shape))

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.asarray(np.repeat(data, self.repeats, self.axis))

    def compute(self, data: Buffer) -> Stage:
        axis = self.axis % len(data.shape)
        shape = list(data.shape)
        shape[axis] *= self.repeats
        return compute(shape, lambda *i: data[replaced(i, axis, i[axis] // self.repeats)])


class Reverse(Axiswise, name="reverse", fusion=Fusion.INJECTIVE):
    """data back to front along ``axis``."""

    axis: int = 0

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.array(np.flip(data, self.axis))

    def compute(self, data: Buffer) -> Stage:
        axis = self.axis % len(data.shape)
        last = Const(data.shape[axis] - 1)
        return compute(data.shape, lambda *i: data[replaced(i, axis, last - i[axis])])


class LayoutTransform(Op, name="layout_transform", fusion=Fusion.INJECTIVE):
    """The same tensor with its axes in another order, split into blocks or merged: ``NCHW`` to ``NCHW8c``.

    data: in ``src_layout`` -> in ``dst_layout``.  Blocks must divide their axes.
    """

    src_layout: str = ""
    dst_layout: str = ""

    def infer(self, data: TensorType) -> TensorType:
        source, target = Layout(self.src_layout), Layout(self.dst_layout)
        if data.rank != source.rank:
            raise self.reject(f"src_layout {source} has {source.rank} dimensions, the input is {data}")
        return data.with_shape(target.shape_from(source, data.shape))

    def reference(self, data: np.ndarray) -> np.ndarray:
        return row_major(Layout(self.dst_layout).convert(data, self.src_layout))

    def compute(self, data: Buffer) -> Stage:
        source, target = Layout(self.src_layout), Layout(self.dst_layout)
        shape = TensorType(target.shape_from(source, data.shape)).extents
        return compute(shape, lambda *index: data[source.index_from(target, index)])

    def relayout(self, site: Site) -> Placement | Declined:
        """Disappears as ``transpose`` does."""
        if self.src_layout != str(site.data.old):
            return Declined("it reads another layout")
        return Placement((site.data,), Move(Layout(self.dst_layout), site.data.new), same_tensor)
