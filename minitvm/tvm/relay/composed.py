"""Relay's operators that are several of ours, or have parameters that mean something else: made of our operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from minitvm.ir.builder import call_op
from minitvm.ir.expr import Call, Constant, Expr, Tuple
from minitvm.ir.layout import Layout
from minitvm.ir.ops.transform import Reshape
from minitvm.tvm.error import NotOfferedError
from minitvm.tvm.relay.forms import const, shape_of
from minitvm.tvm.relay.operators import plain, tensor

COMPOSED: dict[str, Callable[..., Any]] = {}
"""By Relay's name, what makes a call of it; parameters are Relay's."""


Maker = TypeVar("Maker", bound=Callable[..., Any])


def composed(*names: str) -> Callable[[Maker], Maker]:
    """Registers a function under Relay's names for it."""

    def register(function: Maker) -> Maker:
        COMPOSED.update(dict.fromkeys(names, function))
        return function

    return register


def made(name: str, *args: Any, **attributes: Any) -> Expr:
    """A call of one of our operators, of anything that can stand for arguments and attributes."""
    return call_op(name, *map(tensor, args), **{key: plain(value) for key, value in attributes.items()})


def like(value: float, expr: Expr) -> Constant:
    """A number in an expression's dtype."""
    return const(value, expr.dtype)


def refuse(name: str, why: str) -> NotOfferedError:
    """The error to raise where a function cannot do all that Relay's can."""
    return NotOfferedError(f"relay.{name} is not offered with {why}", hint="docs/from-tvm.md")


def shaped(expr: Expr, shape: Sequence[Any]) -> Expr:
    """A reshape to this shape as it is."""
    return Call(Reshape.to(tuple(shape)), (expr,))


def rank_of(expr: Expr) -> int:
    """The number of dimensions of a tensor."""
    return expr.tensor_type.rank


# --- element by element -----------------------------------------------------------------------------------------


@composed("clip")
def clip(a: Any, a_min: Any, a_max: Any, data: Any = None) -> Expr:
    """Values between two bounds."""
    return made("clip", a if data is None else data, a_min=a_min, a_max=a_max)


@composed("log10")
def log10(data: Any) -> Expr:
    """The logarithm of base 10."""
    return made("multiply", found := made("log", data), like(1 / math.log(10), found))


@composed("where")
def where(condition: Any, x: Any, y: Any) -> Expr:
    """Values of ``x`` where the condition is not 0, else of ``y``."""
    given = tensor(condition)
    holds = given if given.dtype == "bool" else made("not_equal", given, like(0, given))
    return made("where", holds, x, y)


@composed("cast_like")
def cast_like(data: Any, dtype_like: Any) -> Expr:
    """``data`` in another tensor's dtype."""
    return made("cast", data, dtype=tensor(dtype_like).dtype)


@composed("broadcast_to_like")
def broadcast_to_like(data: Any, broadcast_type: Any, shape_like: Any = None) -> Expr:
    """``data`` in another tensor's shape."""
    return made("broadcast_to_like", data, broadcast_type if shape_like is None else shape_like)


@composed("collapse_sum_like")
def collapse_sum_like(data: Any, collapse_type: Any) -> Expr:
    """Sums that give another tensor's shape, which broadcasts to that of ``data``."""
    return collapse_sum_to(data, tensor(collapse_type).tensor_type.shape)


@composed("collapse_sum_to")
def collapse_sum_to(data: Any, shape: Any) -> Expr:
    """Sums that give a shape, which broadcasts to that of ``data``."""
    expr, wanted = tensor(data), shape_of(plain(shape))
    lead = rank_of(expr) - len(wanted)
    found = made("sum", expr, axis=tuple(range(lead))) if lead else expr
    axes = tuple(d for d, n in enumerate(wanted) if n == 1 and found.tensor_type.shape[d] != 1)
    return made("sum", found, axis=axes, keepdims=True) if axes else found


# --- reductions -------------------------------------------------------------------------------------------------


@composed("variance")
def variance(
    data: Any,
    axis: Any = None,
    keepdims: Any = False,
    exclude: Any = False,
    unbiased: Any = False,
    with_mean: Any = None,
    mean: Any = None,
) -> Expr:
    """The variance, of ``with_mean`` (with keepdims) where it is given."""
    if isinstance(axis, Expr) and mean is None:  # our own order: the mean is the second argument
        axis, mean = None, axis
    kept = {"axis": axis, "exclude": exclude}
    of = next((m for m in (with_mean, mean) if m is not None), None)
    of = made("mean", data, keepdims=True, **kept) if of is None else of
    return made("variance", data, of, keepdims=keepdims, unbiased=unbiased, **kept)


@composed("std")
def std(data: Any, **how: Any) -> Expr:
    """The standard deviation."""
    return made("sqrt", variance(data, **how))


@composed("mean_variance")
def mean_variance(data: Any, axis: Any, keepdims: Any, exclude: Any, unbiased: Any) -> Expr:
    """A tuple of the mean and the variance."""
    mean = made("mean", data, axis=axis, keepdims=keepdims, exclude=exclude)
    return Tuple([mean, variance(data, axis, keepdims, exclude, unbiased)])


@composed("mean_std")
def mean_std(data: Any, **how: Any) -> Expr:
    """A tuple of the mean and the standard deviation."""
    mean, found = mean_variance(data, **how)
    return Tuple([mean, made("sqrt", found)])


def _summed(name: str) -> Callable[..., Expr]:
    def scan(data: Any, axis: Any, dtype: Any, exclusive: Any) -> Expr:
        """Sums or products of all elements up to each one; of the flattened tensor without an axis."""
        expr = tensor(data) if dtype is None else made("cast", data, dtype=dtype)
        flat = made("reshape", expr, newshape=(-1,)) if axis is None else expr
        return made(name, flat, axis=0 if axis is None else axis, exclusive=bool(exclusive))

    return scan


COMPOSED |= {name: _summed(name) for name in ("cumsum", "cumprod")}


@composed("unique")
def unique(data: Any, is_sorted: Any, return_counts: Any, **own: Any) -> Expr:
    """A tuple: the different elements (zeros behind the last), where each is first, which one each element is, how many
    there are; and how often each is there, where asked."""
    if own:  # our own: minitvm's attributes, and its five results
        return made("unique", data, **own)
    values, first, inverse, counts, number = made("unique", data, sorted=is_sorted)
    places = [made("cast", one, dtype="int32") for one in (first, inverse, made("reshape", number, newshape=(1,)))]
    more = [made("cast", counts, dtype="int32")] if return_counts else []
    return Tuple([values, *places, *more])


# --- made of numbers --------------------------------------------------------------------------------------------


@composed("arange")
def arange(start: Any, stop: Any, step: Any, dtype: Any) -> Expr:
    """Numbers from ``start`` (0 where only that is given, which then is ``stop``) below ``stop``."""
    if stop is None:
        start, stop = const(0, dtype), start
    given = [tensor(const(1, dtype) if one is None else one) for one in (start, stop, step)]
    wanted = given[0].dtype if isinstance(start, Expr) and dtype == "float32" and not _differ(given) else dtype
    scalars = [one if one.dtype == wanted else made("cast", one, dtype=wanted) for one in given]
    known = [one.value.item() for one in given if isinstance(one, Constant)]
    if len(known) == len(given):
        first, last, by = known
        return const(np.arange(first, last, by).astype(wanted))
    return made("arange", *scalars)


def _differ(exprs: Sequence[Expr]) -> bool:
    return len({one.dtype for one in exprs}) > 1


@composed("full")
def full(fill_value: Any, shape: Any, dtype: Any) -> Expr:
    """A tensor of one value, of its dtype unless another is given."""
    value = tensor(fill_value)
    return made("full", value, shape=many(shape), dtype=dtype or value.dtype)


def many(shape: Any) -> Any:
    """A tuple of numbers, or one number as one."""
    found = plain(shape)
    return found if isinstance(found, tuple) else (found,)


@composed("meshgrid")
def meshgrid(data: Any, indexing: str) -> Expr:
    """Each vector along an axis of its own, all in the shape of them all."""
    vectors = list(tensor(data))
    order = [1, 0, *range(2, len(vectors))] if indexing == "xy" and len(vectors) > 1 else [*range(len(vectors))]
    extents = [vectors[i].tensor_type.shape[0] if rank_of(vectors[i]) else 1 for i in order]
    rows = [shaped(v, [-1 if order[d] == i else 1 for d in range(len(vectors))]) for i, v in enumerate(vectors)]
    return Tuple([made("broadcast_to", row, shape=tuple(extents)) for row in rows])


# --- places -----------------------------------------------------------------------------------------------------


@composed("gather")
def gather(data: Any, axis: Any, indices: Any) -> Expr:
    """Elements at ``indices`` along an axis."""
    if isinstance(axis, Expr):  # our own order
        axis, indices = indices, axis
    return made("gather", data, indices, axis=axis)


@composed("gather_nd")
def gather_nd(data: Any, indices: Any, batch_dims: Any, index_rank: Any) -> Expr:
    """Slices at places that ``indices`` has along its first axis."""
    return made("gather_nd", data, indices, batch_dims=batch_dims)


@composed("take")
def take(data: Any, indices: Any, axis: Any, batch_dims: Any, mode: Any) -> Expr:
    """Slices at ``indices`` along an axis."""
    if batch_dims:
        raise refuse("take", f"batch_dims={batch_dims}")
    return made("take", data, indices, axis=axis, mode="clip" if mode == "fast" else mode)


@composed("adv_index")
def adv_index(inputs: Any) -> Expr:
    """Elements of the first tensor at the places that the others have, which broadcast."""
    data, *places = list(tensor(inputs))
    wanted = np.broadcast_shapes(*(tuple(p.tensor_type.static_shape) for p in places))
    rows = [made("broadcast_to", p, shape=wanted) for p in places]
    return made("gather_nd", data, made("stack", Tuple(rows), axis=0))


@composed("slice_like")
def slice_like(data: Any, shape_like: Any, axes: Any = None) -> Expr:
    """The beginning of ``data``, as long as another tensor along ``axes`` (along all)."""
    expr, like = tensor(data), tensor(shape_like).tensor_type
    along = range(like.rank) if axes is None or not plain(axes) else many(axes)
    ends = [like.shape[a] for a in along]
    return made("strided_slice", expr, begin=[0] * len(ends), end=ends, axes=tuple(along))


@composed("strided_set")
def strided_set(data: Any, v: Any, begin: Any, end: Any, strides: Any) -> Expr:
    """``data`` with ``v`` in the place of a slice."""
    expr = tensor(data)
    steps = [1] * rank_of(expr) if strides is None else many(strides)
    slices = tuple(slice(*one) for one in zip(many(begin), many(end), steps, strict=False))
    places = np.moveaxis(np.indices(expr.shape), 0, -1)[slices]
    value = made("broadcast_to", v, shape=places.shape[:-1])
    return made("scatter_nd", expr, const(np.moveaxis(places, -1, 0).astype("int64")), value)


@composed("sequence_mask")
def sequence_mask(data: Any, valid_length: Any, mask_value: Any, axis: Any) -> Expr:
    """``data`` (time and batch first, as ``axis`` says) with a value behind the end of each sequence."""
    expr, lengths = tensor(data), tensor(valid_length)
    at, ones = plain(axis) % 2, [1] * (rank_of(expr) - 2)
    steps = const(np.arange(expr.shape[at]).reshape([-1, 1][:: 1 - 2 * at] + ones), lengths.dtype)
    ends = shaped(lengths, [1, -1][:: 1 - 2 * at] + ones)
    return made("where", made("less", steps, ends), expr, made("full_like", expr, like(plain(mask_value), expr)))


@composed("unravel_index")
def unravel_index(indices: Any, shape: Any) -> Expr:
    """The places, one a row, that flat indices are of a tensor of a shape."""
    flat = tensor(indices)
    extents = np.asarray(many(shape))
    below = np.append(np.cumprod(extents[::-1])[-2::-1], 1) if len(extents) > 1 else np.array([1])
    column = [len(extents), *[1] * rank_of(flat)]
    by, limit = (const(a.astype(flat.dtype).reshape(column)) for a in (below, extents))
    return made("floor_mod", made("floor_divide", flat, by), limit)


@composed("invert_permutation")
def invert_permutation(data: Any) -> Expr:
    """The permutation that undoes another one."""
    return made("argsort", data, dtype=tensor(data).dtype)


@composed("segment_sum")
def segment_sum(data: Any, segment_ids: Any, num_segments: Any) -> Expr:
    """Sums of the slices that have one number."""
    expr, numbers = tensor(data), tensor(segment_ids)
    if num_segments is not None:
        count = plain(num_segments)
    elif isinstance(numbers, Constant):
        count = int(numbers.value.max()) + 1
    else:
        raise refuse("segment_sum", "segments of which only a run knows how many there are: give num_segments")
    zeros = made("zeros", shape=(count, *expr.tensor_type.shape[1:]), dtype=expr.dtype)
    return made("scatter_nd", zeros, made("expand_dims", numbers, axis=0), expr, mode="add")


@composed("sparse_to_dense")
def sparse_to_dense(sparse_indices: Any, output_shape: Any, sparse_values: Any, default_value: Any) -> Expr:
    """A tensor with values at places, and one value elsewhere."""
    places, values, shape = tensor(sparse_indices), tensor(sparse_values), many(output_shape)
    filled = made("full", like(plain(default_value), values), shape=shape, dtype=values.dtype)
    column = shaped(places, [-1, 1]) if rank_of(places) < 2 else places
    if rank_of(places) == 0:
        values = made("reshape", values, newshape=(1,))
    if rank_of(values) == 0:
        values = made("broadcast_to", values, shape=column.tensor_type.shape[:1])
    return made("scatter_nd", filled, made("transpose", column, axes=(1, 0)), values)


@composed("searchsorted")
def searchsorted(sorted_sequence: Any, values: Any, right: Any, dtype: Any) -> Expr:
    """The places of values in sorted ones, along the last axis."""
    ordered, wanted = tensor(sorted_sequence), tensor(values)
    rows = made("expand_dims", ordered, axis=rank_of(ordered) - 1) if rank_of(ordered) > 1 else ordered
    below = "less_equal" if right else "less"
    found = made(below, rows, made("expand_dims", wanted, axis=rank_of(wanted)))
    return made("sum", made("cast", found, dtype=dtype), axis=(-1,))


@composed("reshape_like")
def reshape_like(data: Any, shape_like: Any, lhs_begin: Any, lhs_end: Any, rhs_begin: Any, rhs_end: Any) -> Expr:
    """``data`` with some of its dimensions as some of another tensor's."""
    expr, like = tensor(data), tensor(shape_like)
    if (lhs_begin, lhs_end, rhs_begin, rhs_end) == (0, None, 0, None):
        return made("reshape_like", expr, like)
    have, want = expr.tensor_type.shape, like.tensor_type.shape
    first, stop, _ = slice(lhs_begin, lhs_end).indices(len(have))
    return shaped(expr, (*have[:first], *want[slice(rhs_begin, rhs_end)], *have[stop:]))


@composed("reverse_reshape")
def reverse_reshape(data: Any, newshape: Any) -> Expr:
    """A reshape whose special values are read from the last dimension on."""
    expr, wanted = tensor(data), list(many(newshape))
    have = list(expr.tensor_type.shape)
    found = made("reshape", made("zeros", shape=have[::-1], dtype="bool"), newshape=wanted[::-1])
    return shaped(expr, found.tensor_type.shape[::-1])


@composed("sliding_window")
def sliding_window(data: Any, axis: Any, window_shape: Any, strides: Any) -> Expr:
    """Windows over the dimensions from ``axis`` on; their places come before what is in them."""
    expr, at = tensor(data), plain(axis)
    have, window, steps = expr.shape[at:], many(window_shape), many(strides)
    counts = [(n - w) // s + 1 for n, w, s in zip(have, window, steps, strict=True)]
    found = expr
    for d, (count, size, step) in enumerate(zip(counts, window, steps, strict=True)):
        places = np.arange(count)[:, None] * step + np.arange(size)
        found = made("take", found, const(places.astype("int64")), axis=at + 2 * d)
    outer = [*range(at), *range(at, rank_of(found), 2), *range(at + 1, rank_of(found), 2)]
    return made("transpose", found, axes=tuple(outer))


@composed("matrix_set_diag")
def matrix_set_diag(data: Any, diagonal: Any, k: Any, align: Any) -> Expr:
    """Matrices with another diagonal."""
    expr, offset = tensor(data), plain(k)
    if isinstance(offset, tuple) and len(set(offset)) > 1:
        raise refuse("matrix_set_diag", "several diagonals")
    offset = offset[0] if isinstance(offset, tuple) else offset
    rows, columns = expr.shape[-2:]
    length = min(rows + min(offset, 0), columns - max(offset, 0))
    i, j = np.indices((rows, columns))
    place = np.clip(j - max(offset, 0) if offset >= 0 else i + offset, 0, max(length - 1, 0))
    line = tensor(diagonal)
    line = made("squeeze", line, axis=(-2,)) if rank_of(line) == rank_of(expr) else line
    spread = made("take", line, const((i - max(-offset, 0)).clip(0, max(length - 1, 0)) if length else place), axis=-1)
    return made("where", const(j - i == offset), spread, expr)
