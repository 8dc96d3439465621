"""What operators share: checks, axes, broadcasting, reshaping (a dimension may be symbolic), products, windows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from minitvm.errors import TypeInferenceError
from minitvm.ir.attributes import complete
from minitvm.ir.dims import (
    Dim,
    Undecided,
    broadcast_dims,
    ceil_divide,
    differ,
    falls_short,
    larger,
    smaller,
    truncating_divide,
)
from minitvm.ir.dtypes import STORED
from minitvm.ir.loop import Buffer, Const, LoopExpr, Stage, as_index
from minitvm.ir.op import Op, compute
from minitvm.ir.types import Shape, TensorType, TupleType, Type


def require_tuple(op: Op, type_: Any) -> tuple[TensorType, ...]:
    """The tensors of an argument that is a list of them; at least one."""
    fields = type_.fields if isinstance(type_, TupleType) else (None,)
    tensors = tuple(f for f in fields if isinstance(f, TensorType))
    if len(tensors) < len(fields):
        raise op.reject(f"takes one tuple of tensors, not {type_}", hint="write a Python list or a Tuple")
    if not tensors:
        raise op.reject("takes at least one tensor, the tuple is empty")
    return tensors


def require_kind(op: Op, type_: TensorType, kinds: str, argument: str = "the argument") -> None:
    """Reject a dtype whose numpy kind (``b i u f``, ``V``: stored) is not in ``kinds``."""
    names = {"b": "bool", "i": "signed integer", "u": "unsigned integer", "f": "float", "V": "stored"}
    if ("V" if type_.dtype in STORED else np.dtype(type_.dtype).kind) not in kinds:
        raise op.reject(f"{argument} is {type_}; expected {' or '.join(names[k] for k in kinds)}")


def require_scalars(op: Op, **given: TensorType) -> None:
    for argument, type_ in given.items():
        if type_.shape:
            raise op.reject(f"{argument} is {type_}; expected a scalar")


def require_same_dtype(op: Op, *types: TensorType) -> str:
    if len({t.dtype for t in types}) > 1:
        raise op.reject(f"dtypes differ: {' and '.join(map(str, types))}", hint="cast one side")
    return types[0].dtype


def normalize_axis(op: Op, axis: int, rank: int) -> int:
    """``axis`` counted from the front."""
    if not -rank <= axis < rank:
        raise op.reject(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def normalize_axes(op: Op, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """``axes`` counted from the front, in the order given; each at most once."""
    found = tuple(normalize_axis(op, axis, rank) for axis in axes)
    if len(set(found)) != len(found):
        raise op.reject(f"an axis is repeated in {list(axes)}")
    return found


def broadcast_shapes(op: Op, *types: TensorType) -> Shape:
    """The common shape of ``types`` by numpy's rule; rejects the call where there is none."""
    rank = max(t.rank for t in types)
    result: list[Dim] = [1] * rank
    for type_ in types:
        for d, dim in enumerate(type_.shape, rank - type_.rank):
            try:
                result[d] = broadcast_dims(result[d], dim)
            except ValueError as error:
                shapes = " and ".join(map(str, types))
                raise op.reject(
                    f"shapes do not broadcast: {shapes}",
                    hint=f"dimension {d - rank} is {error}; they must agree or be 1",
                ) from None
    return tuple(result)


def shapes_differ(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """True if two shapes are never the same, as far as that is seen."""
    return len(a) != len(b) or any(map(differ, a, b))


def replaced(index: Sequence[LoopExpr], axis: int, value: LoopExpr) -> tuple[LoopExpr, ...]:
    """``index`` with another value at ``axis``."""
    return (*index[:axis], value, *index[axis + 1 :])


def flatten_index(index: Sequence[LoopExpr], shape: Sequence[int]) -> LoopExpr:
    """The row-major position of ``index`` in ``shape``."""
    flat: LoopExpr = Const(0)
    for i, extent in zip(index, shape, strict=True):
        flat = flat * extent + i
    return flat


def unflatten_index(flat: LoopExpr, shape: Sequence[int]) -> list[LoopExpr]:
    """The inverse of :func:`flatten_index`; ``flat`` is within the shape, so the first needs no remainder."""
    index: list[LoopExpr] = []
    for d in range(len(shape)):
        inner = math.prod(shape[d + 1 :])
        index.append(flat // inner if d == 0 else (flat // inner) % shape[d])
    return index


def _groups(source: Sequence[int], target: Sequence[int]) -> Iterable[tuple[list[int], list[int]]]:
    """Dimensions of both shapes (1s left out) in the smallest runs of equal product; what is only counted on to be
    equal is one run."""
    left = [d for d, extent in enumerate(source) if extent != 1]
    right = [d for d, extent in enumerate(target) if extent != 1]
    while left or right:
        a, b, left, right = left[:1], right[:1], left[1:], right[1:]
        while (p := math.prod(source[d] for d in a)) != (q := math.prod(target[d] for d in b)):
            if left and _is_part(p, q):
                a.append(left.pop(0))
            elif right and _is_part(q, p):
                b.append(right.pop(0))
            else:
                a, b, left, right = a + left, b + right, [], []
                break
        yield a, b


def _is_part(p: Dim, q: Dim) -> bool:
    """True if more factors are to come before a product is as large as another one; of symbols, whether it divides."""
    if isinstance(p, int) and isinstance(q, int):
        return p < q
    return p != q and p != 0 and q // p * p == q


def reshape_index(index: Sequence[LoopExpr], target: Sequence[int], source: Sequence[int]) -> list[LoopExpr]:
    """The index into ``source`` of element ``index`` of its reshape to ``target``.

    Dimensions that only move, merge or split give indices without division where they can.
    """
    result: list[LoopExpr] = [Const(0)] * len(source)
    if 0 in source:
        return result
    for a, b in _groups(source, target):
        flat = flatten_index([index[d] for d in b], [target[d] for d in b])
        for d, i in zip(a, unflatten_index(flat, [source[d] for d in a]), strict=True):
            result[d] = i
    return result


# --- reductions -----------------------------------------------------------------------------------------------

Index: TypeAlias = tuple[LoopExpr, ...]


def reduced(
    shape: Sequence[int],
    axes: Sequence[int],
    over: Callable[..., LoopExpr],
    term: Callable[[Index, Index], LoopExpr],
    finish: Callable[[LoopExpr, Index], LoopExpr] = lambda result, _: result,
    keepdims: bool = True,
    name: str = "t",
) -> Stage:
    """``over`` some axes (ascending; they stay with extent 1 or go) ``term(index, index along these axes)``.

    ``finish`` gets the result and the index with these axes at 0.
    """
    extents = [shape[a] for a in axes]

    def whole(i: Index, r: Index) -> Index:
        inner, kept = iter(r), iter(e for d, e in enumerate(i) if not (keepdims and d in axes))
        return tuple(next(inner) if d in axes else next(kept) for d in range(len(shape)))

    def value(*i: LoopExpr) -> LoopExpr:
        return finish(over(extents, lambda *r: term(whole(i, r), r)), whole(i, (Const(0),) * len(axes)))

    return compute([1 if d in axes else n for d, n in enumerate(shape) if keepdims or d not in axes], value, name=name)


def place(index: Index, axes: Sequence[int], keepdims: bool = True) -> Index:
    """The place where :func:`reduced` has what the element at ``index`` went into."""
    return tuple(Const(0) if d in axes else i for d, i in enumerate(index) if keepdims or d not in axes)


# --- operators along one axis of their data -------------------------------------------------------------------


class Ranking(Op):
    """Positions of elements by their order: a function that keeps the order changes nothing before it."""


class Axiswise(Op):
    """One tensor to one of its type, along one dimension, ``axis``."""

    kinds: ClassVar[str] = "biuf"
    argument: ClassVar[str] = "the argument"
    axis: int = -1

    def infer(self, data: TensorType) -> TensorType:
        require_kind(self, data, self.kinds, self.argument)
        normalize_axis(self, self.axis, data.rank)
        return data


def beside(vector: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """A vector in the shape that broadcasts along ``axis`` of a tensor."""
    return vector.reshape(-1, *[1] * (rank - axis % rank - 1))


class Channelwise(Op):
    """Its arguments behind the data are vectors: a number for each place along ``axis``."""

    axis: int = 1

    def solve(self, types: list[Type | None]) -> list[Type | None]:
        data = types[0]
        if not isinstance(data, TensorType):
            return types
        vector = TensorType((data.shape[normalize_axis(self, self.axis, data.rank)],), data.dtype)
        return [data, *(vector if t is None else t for t in types[1:])]

    def check_vectors(self, data: TensorType, number: str, of: str = "", **vectors: TensorType) -> None:
        """Data and vectors are floats of one dtype, and each vector has a ``number`` for each place."""
        require_kind(self, data, "f", "the input")
        size = data.shape[normalize_axis(self, self.axis, data.rank)]
        for name, type_ in vectors.items():
            require_same_dtype(self, data, type_)
            if type_.rank != 1 or differ(type_.shape[0], size):
                expected = f"one {number} for each place along axis {self.axis}{of}"
                hint = f"the input is {data}" if of else None
                raise self.reject(f"{name} must be ({size},), {expected}, not {type_}", hint=hint)


# --- dtypes of sums of products -------------------------------------------------------------------------------

_EIGHT_BITS = ("int8", "uint8")


def product_dtype(op: Op, lhs: TensorType, rhs: TensorType, out_dtype: str) -> str:
    """The result's dtype.  Operands agree, or both are 8-bit integers and ``out_dtype`` names a wider one."""
    if lhs.dtype == "bool" or rhs.dtype == "bool":
        raise op.reject(f"takes numbers, not {lhs} and {rhs}", hint="cast the operands")
    mixed = lhs.dtype != rhs.dtype
    if mixed and not (lhs.dtype in _EIGHT_BITS and rhs.dtype in _EIGHT_BITS and out_dtype):
        raise op.reject(f"dtypes differ: {lhs} and {rhs}", hint="cast one side; int8 with uint8 needs out_dtype")
    return out_dtype or lhs.dtype


def widened(dtype: str, out_dtype: str) -> Any:
    """What the numpy references accumulate in: exact for 8-bit integers, and fast where BLAS has it."""
    if dtype in _EIGHT_BITS:
        return np.float64
    if dtype == "float16":
        return np.float32
    return np.dtype(out_dtype) if np.dtype(out_dtype).itemsize > np.dtype(dtype).itemsize else np.dtype(dtype)


# --- windows --------------------------------------------------------------------------------------------------
# Padding is kept as ``(before..., after...)`` over the spatial axes: ``(top, left, bottom, right)`` in 2-d.


class Windowed(Op, fixed_from=1):
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
            complete(cls)
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
        """The window of so many taps along a spatial axis."""
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
        """The number of steps that it can move within the padded input."""
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
    """Yields, for every tap, row-major, the elements of an array (N, C, spatial...) that it meets in ``counts``
    windows."""
    for tap in np.ndindex(*(w.taps for w in windows)):
        starts = [t * w.dilation for t, w in zip(tap, windows, strict=True)]
        spans = [max((n - 1) * w.stride + 1, 0) for n, w in zip(counts, windows, strict=True)]
        steps = [slice(a, a + n, w.stride) for a, n, w in zip(starts, spans, windows, strict=True)]
        yield array[tuple([slice(None)] * 2 + steps)]


def dilated(kernel: int, dilation: int) -> int:
    """The number of elements that a window of ``kernel`` taps spans."""
    return (kernel - 1) * dilation + 1


def window_extent(op: Op, axis: str, extent: Dim, window: Window) -> Dim:
    """The number of windows that fit."""
    room = window.room(extent)
    if falls_short(room, 0):
        raise window.too_wide(op, axis, extent)
    return room // window.stride + 1


def pool_extent(op: Op, axis: str, extent: Dim, window: Window, ceil_mode: bool) -> Dim:
    """The number of windows of a pool.  With ``ceil_mode`` also one that hangs over the end, unless it would start
    behind the input and its padding in front.

    A window larger than the padded input, by less than a stride, hangs over it too; by less than two there is no
    window: ONNX Runtime divides towards zero.
    """
    room, stride = window.room(extent), window.stride
    if falls_short(room, 1 - 2 * stride):
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
        raise op.reject(f"{argument} must have a known shape, not {type_}") from Undecided(type_)
    return type_.static_shape


def known_dim(op: Op, dim: Dim, what: str) -> int:
    if not isinstance(dim, int):
        hint = "only the batch and the spatial dimensions may be unknown"
        raise op.reject(f"{what} must be known", hint=hint) from Undecided(dim)
    return dim
