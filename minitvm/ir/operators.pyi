# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
"""Operators as functions: ``add(x, y)``.  Numbers and arrays become constants."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from minitvm.ir.dims import SymbolicDim
from minitvm.ir.expr import Call, Expr, Function

_Operand: TypeAlias = Expr | npt.ArrayLike | Sequence[Expr]
_Int: TypeAlias = int | np.integer[Any]
_Float: TypeAlias = float | np.floating[Any] | np.integer[Any]
_Array: TypeAlias = npt.NDArray[Any]

def abs(data: _Operand) -> Call:
    """The absolute value of numbers."""
def acos(data: _Operand) -> Call:
    """The inverse of cos; NaN outside of [-1, 1]."""
def acosh(data: _Operand) -> Call:
    """The inverse of cosh; NaN below 1."""
def add(lhs: _Operand, rhs: _Operand) -> Call:
    """lhs + rhs; integers wrap around."""
def all(
    data: _Operand,
    axis: _Int | Sequence[_Int] | _Array | None = ...,
    keepdims: bool | np.bool_ = ...,
    exclude: bool | np.bool_ = ...,
) -> Call:
    """Whether all are true."""
def any(
    data: _Operand,
    axis: _Int | Sequence[_Int] | _Array | None = ...,
    keepdims: bool | np.bool_ = ...,
    exclude: bool | np.bool_ = ...,
) -> Call:
    """Whether at least one is true."""
def arange(start: _Operand, stop: _Operand, step: _Operand) -> Call:
    """start, start + step, ... below stop (above, for a negative step).  Three scalars of one dtype -> (n,)."""
def argmax(
    data: _Operand,
    axis: _Int | Sequence[_Int] | _Array | None = ...,
    keepdims: bool | np.bool_ = ...,
    exclude: bool | np.bool_ = ...,
    select_last_index: bool | np.bool_ = ...,
) -> Call:
    """The position of the first largest (or the last one) as int32."""
def argmin(
    data: _Operand,
    axis: _Int | Sequence[_Int] | _Array | None = ...,
    keepdims: bool | np.bool_ = ...,
    exclude: bool | np.bool_ = ...,
    select_last_index: bool | np.bool_ = ...,
) -> Call:
    """The position of the first smallest (or the last one) as int32."""
def argsort(data: _Operand, axis: _Int = ..., is_ascend: bool | np.bool_ = ..., dtype: str = ...) -> Call:
    """The positions, of ``dtype``, that sort data along ``axis``; equal elements keep their order."""
def argwhere(condition: _Operand) -> Call:
    """Positions of the elements that are not zero, in order.  x: (d...) -> (number of them, rank), int64."""
def asin(data: _Operand) -> Call:
    """The inverse of sin; NaN outside of [-1, 1]."""
def asinh(data: _Operand) -> Call:
    """The inverse of sinh."""
def atan(data: _Operand) -> Call:
    """The inverse of tan."""
def atanh(data: _Operand) -> Call:
    """The inverse of tanh; NaN outside of [-1, 1]."""
def bitwise_and(lhs: _Operand, rhs: _Operand) -> Call:
    """Bit by bit, of integers or bool."""
def bitwise_not(data: _Operand) -> Call:
    """All bits flipped; of bool, the negation."""
def bitwise_or(lhs: _Operand, rhs: _Operand) -> Call:
    """Bit by bit, of integers or bool."""
def bitwise_xor(lhs: _Operand, rhs: _Operand) -> Call:
    """Bit by bit, of integers or bool."""
def broadcast_to(data: _Operand, shape: Sequence[_Int | SymbolicDim] | _Array) -> Call:
    """data repeated along dimensions of extent 1, and new ones in front, until it has ``shape``."""
def broadcast_to_like(data: _Operand, shape_like: _Operand) -> Call:
    """data broadcast to the shape of another tensor.  data: (...), shape_like: (...) -> shape_like's shape."""
def cast(data: _Operand, dtype: str, saturate: bool | np.bool_ = ..., round_mode: str = ...) -> Call:
    """Conversion to ``dtype``: floats to integers truncate and saturate (NaN is 0), to bool anything but 0 is true."""
def ceil(data: _Operand) -> Call:
    """Rounds floats towards plus infinity."""
def clip(data: _Operand, a_min: _Int | _Float, a_max: _Int | _Float) -> Call:
    """``min(max(x, a_min), a_max)``; NaN stays.  For integers, bounds are moved into the dtype's range."""
def concatenate(data: _Operand, axis: _Int = ...) -> Call:
    """Tensors end to end along ``axis``.  A tuple of (..., n_i, ...) -> (..., sum of n_i, ...)."""
def copy(data: _Operand) -> Call:
    """The same values in memory of their own."""
def cos(data: _Operand) -> Call:
    """The cosine of an angle in radians."""
def cosh(data: _Operand) -> Call:
    """The hyperbolic cosine."""
def cumprod(data: _Operand, axis: _Int = ..., exclusive: bool | np.bool_ = ...) -> Call:
    """Products of all elements up to each one."""
def cumsum(data: _Operand, axis: _Int = ..., exclusive: bool | np.bool_ = ...) -> Call:
    """Sums of all elements up to each one."""
def divide(lhs: _Operand, rhs: _Operand) -> Call:
    """lhs / rhs; integers truncate towards zero, as in C and ONNX.  An integer divided by 0 stays as it is."""
def equal(lhs: _Operand, rhs: _Operand) -> Call:
    """lhs == rhs."""
def erf(data: _Operand) -> Call:
    """The error function, 2/sqrt(pi) times the integral of exp(-t*t) from 0 to x."""
def exp(data: _Operand) -> Call:
    """e to the power of x."""
def expand_dims(data: _Operand, axis: _Int, num_newaxis: _Int = ...) -> Call:
    """``num_newaxis`` dimensions of extent 1 inserted before ``axis`` (negative: after it)."""
def expm1(data: _Operand) -> Call:
    """exp(x) - 1, exact near 0."""
def extent(size: _Int | SymbolicDim, dtype: str = ...) -> Call:
    """The dimension ``size`` as a number.  -> (), of ``dtype``."""
def external(
    *more: _Operand,
    compiler: str,
    symbol: str,
    source: str,
    constants: str | Sequence[str] | _Array,
    types: str | Sequence[str] | _Array,
) -> Call:
    """A function that the code generator ``compiler`` computes, in Python, under the name ``symbol``."""
def eye(shape: Sequence[_Int | SymbolicDim] | _Array, k: _Int = ..., dtype: str = ...) -> Call:
    """Ones on diagonal ``k``, zeros elsewhere, of ``dtype``; ``shape`` is (rows, columns)."""
def floor(data: _Operand) -> Call:
    """Rounds floats towards minus infinity."""
def floor_divide(lhs: _Operand, rhs: _Operand) -> Call:
    """floor(lhs / rhs).  An integer divided by 0 stays as it is."""
def floor_mod(lhs: _Operand, rhs: _Operand) -> Call:
    """The remainder of division that rounds down: the sign of rhs (Python)."""
def foreign(
    *more: _Operand,
    origin: str,
    operator: str,
    node: str,
    version: _Int,
    types: str | Sequence[str] | _Array,
) -> Call:
    """A node of a model for which minitvm has no operators: it runs in Python, by its origin's own evaluator."""
def foreign_random(
    *more: _Operand,
    origin: str,
    operator: str,
    node: str,
    version: _Int,
    types: str | Sequence[str] | _Array,
) -> Call:
    """A ``foreign`` operator whose results differ from one run to the next."""
def full(fill_value: _Operand, shape: Sequence[_Int | SymbolicDim] | _Array, dtype: str | None = ...) -> Call:
    """A tensor of one value.  fill_value: () -> ``shape``, of ``dtype`` (the scalar's by default)."""
def full_like(data: _Operand, fill_value: _Operand) -> Call:
    """A scalar's value in every element.  data: (...), fill_value: () -> (...), both of one dtype."""
def gather(data: _Operand, indices: _Operand, axis: _Int = ...) -> Call:
    """``data[..., indices[...], ...]`` at ``axis``, elsewhere the same position (ONNX GatherElements)."""
def gather_nd(data: _Operand, indices: _Operand, batch_dims: _Int = ...) -> Call:
    """Slices of data at positions: ``data[b, indices[0, b, y], indices[1, b, y], ..., :]``."""
def greater(lhs: _Operand, rhs: _Operand) -> Call:
    """lhs > rhs."""
def greater_equal(lhs: _Operand, rhs: _Operand) -> Call:
    """lhs >= rhs."""
def iota(size: _Int | SymbolicDim, dtype: str = ...) -> Call:
    """0, 1, 2, ... as many as ``size`` says.  -> (size,), of ``dtype``."""
def isfinite(data: _Operand) -> Call:
    """True where x is neither infinite nor NaN."""
def isinf(data: _Operand) -> Call:
    """True where x is plus or minus infinity."""
def isnan(data: _Operand) -> Call:
    """True where x is not a number."""
def layout_transform(data: _Operand, src_layout: str = ..., dst_layout: str = ...) -> Call:
    """The same tensor with its axes in another order, split into blocks or merged: ``NCHW`` to ``NCHW8c``."""
def left_shift(lhs: _Operand, rhs: _Operand) -> Call:
    """lhs * 2**rhs; by the width or more, or by less than 0, everything is shifted out."""
def less(lhs: _Operand, rhs: _Operand) -> Call:
    """lhs < rhs."""
def less_equal(lhs: _Operand, rhs: _Operand) -> Call:
    """lhs <= rhs."""
def log(data: _Operand) -> Call:
    """The natural logarithm; NaN below 0."""
def log1p(data: _Operand) -> Call:
    """log(1 + x), exact near 0."""
def log2(data: _Operand) -> Call:
    """The logarithm to base 2; NaN below 0."""
def logical_and(lhs: _Operand, rhs: _Operand) -> Call:
    """Both, of bool."""
def logical_not(data: _Operand) -> Call:
    """Negation of bool."""
def logical_or(lhs: _Operand, rhs: _Operand) -> Call:
    """Either, of bool."""
def logical_xor(lhs: _Operand, rhs: _Operand) -> Call:
    """Exactly one, of bool."""
def logsumexp(
    data: _Operand,
    axis: _Int | Sequence[_Int] | _Array | None = ...,
    keepdims: bool | np.bool_ = ...,
    exclude: bool | np.bool_ = ...,
) -> Call:
    """log(sum(exp(data))), without overflow; minus infinity of no elements."""
def max(
    data: _Operand,
    axis: _Int | Sequence[_Int] | _Array | None = ...,
    keepdims: bool | np.bool_ = ...,
    exclude: bool | np.bool_ = ...,
) -> Call:
    """The largest; NaN if one is; of nothing -inf or the lowest integer."""
def maximum(lhs: _Operand, rhs: _Operand) -> Call:
    """The larger one; NaN if either is."""
def mean(
    data: _Operand,
    axis: _Int | Sequence[_Int] | _Array | None = ...,
    keepdims: bool | np.bool_ = ...,
    exclude: bool | np.bool_ = ...,
) -> Call:
    """The mean, in the dtype of data; of integers truncated towards zero.  NaN of no elements."""
def min(
    data: _Operand,
    axis: _Int | Sequence[_Int] | _Array | None = ...,
    keepdims: bool | np.bool_ = ...,
    exclude: bool | np.bool_ = ...,
) -> Call:
    """The smallest; NaN if one is; of nothing inf or the highest integer."""
def minimum(lhs: _Operand, rhs: _Operand) -> Call:
    """The smaller one; NaN if either is."""
def mod(lhs: _Operand, rhs: _Operand) -> Call:
    """The remainder of division that truncates: the sign of lhs (C, fmod)."""
def multiply(lhs: _Operand, rhs: _Operand) -> Call:
    """lhs * rhs; integers wrap around."""
def ndarray_size(data: _Operand, dtype: str = ...) -> Call:
    """The number of elements of data.  data: (...) -> (), of ``dtype``."""
def negative(data: _Operand) -> Call:
    """-x; integers wrap around."""
def nonzero(x: _Operand) -> Call:
    """Positions of the elements that are not zero, in order, and how many there are."""
def not_equal(lhs: _Operand, rhs: _Operand) -> Call:
    """lhs != rhs."""
def one_hot(
    indices: _Operand,
    on_value: _Operand,
    off_value: _Operand,
    depth: _Int,
    axis: _Int = ...,
    dtype: str = ...,
) -> Call:
    """``on_value`` at position indices[...] of a new dimension of extent ``depth``, ``off_value`` elsewhere."""
def ones(shape: Sequence[_Int | SymbolicDim] | _Array, dtype: str = ...) -> Call:
    """Ones of ``shape`` and ``dtype``, from nothing."""
def ones_like(data: _Operand) -> Call:
    """Ones in the shape and dtype of data."""
def power(lhs: _Operand, rhs: _Operand) -> Call:
    """lhs to the power of rhs.  Integers wrap around; a negative power truncates: 0, but for bases 1 and -1."""
def prefix(value: _Operand, count: _Operand, axis: _Int = ..., extent: _Int | SymbolicDim | None = ...) -> Call:
    """The first ``count`` places along ``axis``.  value: (..., n, ...), count: () int64 -> (..., count, ...)."""
def prod(
    data: _Operand,
    axis: _Int | Sequence[_Int] | _Array | None = ...,
    keepdims: bool | np.bool_ = ...,
    exclude: bool | np.bool_ = ...,
) -> Call:
    """The product; integers wrap around in their own dtype."""
def reinterpret(data: _Operand, dtype: str) -> Call:
    """The same bits as elements of ``dtype``, which is as wide; as bool, whether any bit is set."""
def repeat(data: _Operand, repeats: _Int, axis: _Int = ...) -> Call:
    """Each element along ``axis`` ``repeats`` times in a row."""
def reshape(data: _Operand, newshape: Sequence[_Int | SymbolicDim] | _Array, allowzero: bool | np.bool_ = ...) -> Call:
    """The same elements, row-major, in another shape.  data: (...) -> newshape."""
def reshape_like(data: _Operand, shape_like: _Operand) -> Call:
    """The elements of data in the shape of another tensor.  data: (...), shape_like: (...) -> shape_like's shape."""
def reverse(data: _Operand, axis: _Int = ...) -> Call:
    """data back to front along ``axis``."""
def reverse_sequence(data: _Operand, seq_lengths: _Operand, seq_axis: _Int = ..., batch_axis: _Int = ...) -> Call:
    """The first seq_lengths[b] elements along ``seq_axis`` of each b along ``batch_axis`` back to front."""
def right_shift(lhs: _Operand, rhs: _Operand) -> Call:
    """floor(lhs / 2**rhs); by the width or more, or by less than 0, everything is shifted out."""
def round(data: _Operand) -> Call:
    """Rounds floats to the nearest integer, halves to even."""
def rsqrt(data: _Operand) -> Call:
    """1 / sqrt(x)."""
def scatter_elements(
    data: _Operand,
    indices: _Operand,
    updates: _Operand,
    axis: _Int = ...,
    reduction: str = ...,
) -> Call:
    """data with each of ``updates`` combined in at ``indices[...]`` along ``axis``, elsewhere at its own position."""
def scatter_nd(data: _Operand, indices: _Operand, updates: _Operand, mode: str = ...) -> Call:
    """data with slices combined in: ``result[indices[0, y], indices[1, y], ..., :] = updates[y, :]``."""
def segment_reduce(data: _Operand, starts: _Operand, ends: _Operand, mode: Literal['sum', 'mean'] = ...) -> Call:
    """The sum of each segment's rows, one after the other, or their mean, as ``mode`` says."""
def shape_of(data: _Operand, dtype: str = ...) -> Call:
    """The shape of data.  data: (d_0, ..., d_n) -> (n + 1,), of ``dtype``."""
def sigmoid(data: _Operand) -> Call:
    """1 / (1 + exp(-x))."""
def sign(data: _Operand) -> Call:
    """-1, 0 or 1; NaN of NaN."""
def sin(data: _Operand) -> Call:
    """The sine of an angle in radians."""
def sinh(data: _Operand) -> Call:
    """The hyperbolic sine."""
def sort(data: _Operand, axis: _Int = ..., is_ascend: bool | np.bool_ = ...) -> Call:
    """data sorted along ``axis``."""
def split(data: _Operand, indices_or_sections: _Int | _Int | Sequence[_Int] | _Array, axis: _Int = ...) -> Call:
    """data cut along ``axis`` -> a tuple of tensors.  ``indices_or_sections``: an integer, so many"""
def sqrt(data: _Operand) -> Call:
    """The square root; NaN below 0."""
def squeeze(data: _Operand, axis: _Int | Sequence[_Int] | _Array | None = ...) -> Call:
    """Dimensions of extent 1 removed: those in ``axis``, all of them where it is not given."""
def stack(data: _Operand, axis: _Int = ...) -> Call:
    """Tensors of one shape side by side along a new dimension, ``axis``.  A tuple of n (...) -> (..., n, ...)."""
def strided_slice(
    data: _Operand,
    begin: Sequence[_Int | SymbolicDim] | _Array,
    end: Sequence[_Int | SymbolicDim] | _Array,
    strides: _Int | Sequence[_Int] | _Array | None = ...,
    axes: _Int | Sequence[_Int] | _Array | None = ...,
    slice_mode: Literal['end', 'size'] = ...,
) -> Call:
    """``data[begin:end:strides]`` along ``axes`` (the first ones by default), with Python's rules for bounds."""
def subtract(lhs: _Operand, rhs: _Operand) -> Call:
    """lhs - rhs; integers wrap around."""
def sum(
    data: _Operand,
    axis: _Int | Sequence[_Int] | _Array | None = ...,
    keepdims: bool | np.bool_ = ...,
    exclude: bool | np.bool_ = ...,
) -> Call:
    """The sum; integers wrap around in their own dtype."""
def take(data: _Operand, indices: _Operand, axis: _Int | None = ..., mode: Literal['clip', 'wrap'] = ...) -> Call:
    """Slices of data at ``indices`` along ``axis`` (of the flattened data where it is not given)."""
def tan(data: _Operand) -> Call:
    """The tangent of an angle in radians."""
def tanh(data: _Operand) -> Call:
    """The hyperbolic tangent."""
def tensor_scatter(
    data: _Operand,
    updates: _Operand,
    start: _Operand,
    axis: _Int = ...,
    circular: bool | np.bool_ = ...,
    clears: bool | np.bool_ = ...,
) -> Call:
    """data with ``updates`` from place ``start[...]`` of each sequence on, as a cache of keys or values has it."""
def tile(data: _Operand, reps: _Int | Sequence[_Int] | _Array) -> Call:
    """data repeated ``reps[d]`` times along dimension d; the shorter of shape and reps is padded with 1 in front."""
def topk(
    data: _Operand,
    k: _Int | SymbolicDim = ...,
    axis: _Int = ...,
    ret_type: Literal['both', 'values', 'indices'] = ...,
    is_ascend: bool | np.bool_ = ...,
    dtype: str = ...,
) -> Call:
    """The ``k`` largest (``is_ascend``: smallest) along ``axis``, sorted, and their positions of ``dtype``."""
def transpose(data: _Operand, axes: _Int | Sequence[_Int] | _Array | None = ...) -> Call:
    """Dimension ``axes[d]`` of data becomes dimension d; reversed where ``axes`` is not given."""
def trilu(data: _Operand, k: _Operand, upper: bool | np.bool_ = ...) -> Call:
    """The ``upper`` (or lower) triangle of each matrix, from diagonal k; 0 elsewhere.  data: (..., m, n), k: ()."""
def trunc(data: _Operand) -> Call:
    """Rounds floats towards zero."""
def unique(data: _Operand, axis: _Int | None = ..., sorted: bool | np.bool_ = ...) -> Call:
    """The different slices along ``axis`` (elements, where it is not given), ``sorted`` or as they come."""
def variance(
    data: _Operand,
    mean: _Operand,
    axis: _Int | Sequence[_Int] | _Array | None = ...,
    keepdims: bool | np.bool_ = ...,
    exclude: bool | np.bool_ = ...,
    unbiased: bool | np.bool_ = ...,
) -> Call:
    """The mean of (data - mean)**2; ``unbiased`` divides by one less."""
def where(condition: _Operand, x: _Operand, y: _Operand) -> Call:
    """x where the condition holds, else y; all three broadcast.  condition: bool; x, y: one dtype."""
def zeros(shape: Sequence[_Int | SymbolicDim] | _Array, dtype: str = ...) -> Call:
    """Zeros of ``shape`` and ``dtype``, from nothing."""
def zeros_like(data: _Operand) -> Call:
    """Zeros in the shape and dtype of data."""

class annotation:
    """Operators annotation.*"""

    @staticmethod
    def cast_hint(data: _Operand, dtype: str = ...) -> Call:
        """``data`` itself, which is worth having in ``dtype`` where it lies in memory.  data: (...) -> the same."""
    @staticmethod
    def compiler_begin(data: _Operand, compiler: str) -> Call:
        """Marks where a value goes into what another compiler computes; PartitionGraph removes it."""
    @staticmethod
    def compiler_end(data: _Operand, compiler: str) -> Call:
        """Marks where a value comes out of what another compiler computes; PartitionGraph removes it."""
    @staticmethod
    def simulated_quantize(
        data: _Operand,
        dom_scale: _Operand,
        clip_min: _Operand,
        clip_max: _Operand,
        kind: _Int = ...,
        sign: bool | np.bool_ = ...,
        rounding: Literal['round'] = ...,
    ) -> Call:
        """``round(clip(data / dom_scale, clip_min, clip_max)) * dom_scale``, ties to even; ``data`` itself for a ``kind``"""
    @staticmethod
    def stop_fusion(x: _Operand) -> Call:
        """``x`` itself, but FuseOps does not fuse across it.  x: any shape and dtype -> the same.  FuseOps removes it."""

class control:
    """Operators control.*"""

    @staticmethod
    def after(value: _Operand, flag: _Operand) -> Call:
        """``value`` itself, once ``flag`` is known: what a check is tied to the graph with.  Nothing is computed."""
    @staticmethod
    def fail(
        message: str,
        shapes: Sequence[Sequence[_Int | None] | _Array] | _Array,
        dtypes: Sequence[str] | _Array,
    ) -> Call:
        """Never returns: running it raises :class:`InputError` with ``message``."""
    @staticmethod
    def loop(
        trip_count: _Operand,
        condition: _Operand,
        *more: _Operand,
        body: Function,
        num_carried: _Int,
        trips: _Int | SymbolicDim | None = ...,
        rows: Sequence[Sequence[_Int | SymbolicDim] | _Array] | _Array = ...,
    ) -> Call:
        """ONNX's Loop: ``while i < trip_count and condition: condition, *carried, *scanned = body(i, condition, ...)``."""
    @staticmethod
    def out_of_range(
        data: _Operand,
        indices: _Operand,
        axes: _Int | Sequence[_Int] | _Array,
        lengths: bool | np.bool_ = ...,
        by_row: bool | np.bool_ = ...,
    ) -> Call:
        """The index that lies furthest outside of the dimension that it selects from; 0 if none does."""
    @staticmethod
    def sized(value: _Operand, extents: Sequence[_Int | SymbolicDim] | _Array) -> Call:
        """``value`` itself, whose dimensions are ``extents``: names for those that the data decide."""
    @staticmethod
    def stage(
        *more: _Operand,
        body: Function,
        sizes: str | Sequence[str] | _Array,
        measured: _Int,
        fresh: _Int,
        axes: _Int | Sequence[_Int] | _Array,
    ) -> Call:
        """``body`` over values, some of which are as long as others say."""

class image:
    """Operators image.*"""

    @staticmethod
    def grid_sample(
        data: _Operand,
        grid: _Operand,
        method: str = ...,
        padding_mode: str = ...,
        align_corners: bool | np.bool_ = ...,
        pixels: bool | np.bool_ = ...,
    ) -> Call:
        """Data at the places of a grid.  data: (N, C, d...) floats, grid: (N, out..., rank of d...) floats ->"""
    @staticmethod
    def resize2d(
        data: _Operand,
        size: _Int | Sequence[_Int] | _Array = ...,
        layout: str = ...,
        method: str = ...,
        coordinate_transformation_mode: str = ...,
        rounding_method: str = ...,
        cubic_alpha: _Float = ...,
        scales: _Float | Sequence[_Float] | _Array = ...,
    ) -> Call:
        """Resizes H and W.  data: NCHW (or NHWC, NCHW[x]c) -> the same with ``size`` = (height, width)."""

class linalg:
    """Operators linalg.*"""

    @staticmethod
    def det(data: _Operand) -> Call:
        """The determinant of each matrix, by elimination with the largest pivots.  data: (..., n, n) floats -> (...)."""

class map:
    """Operators map.*"""

    @staticmethod
    def lookup(
        data: _Operand,
        keys: _Int | Sequence[_Int] | _Array | _Float | Sequence[_Float] | _Array | str | Sequence[str] | _Array,
        values: _Int | Sequence[_Int] | _Array | _Float | Sequence[_Float] | _Array | str | Sequence[str] | _Array,
        default: _Int | _Float | str,
        dtype: str,
    ) -> Call:
        """What stands at an element's place in ``values``, by its place in ``keys``, the last of equal ones; else"""
    @staticmethod
    def vector(
        map: _Operand,
        keys: _Int | Sequence[_Int] | _Array | str | Sequence[str] | _Array | None,
        dtype: str,
    ) -> Call:
        """One row of a map's values, cast to ``dtype``: those under ``keys``, 0 (or no text) where there is none, or all"""
    @staticmethod
    def zip(data: _Operand, keys: _Int | Sequence[_Int] | _Array | str | Sequence[str] | _Array) -> Call:
        """A map of each row, its elements under ``keys``.  data: (n, number of keys)."""

class ml:
    """Operators ml.*"""

    @staticmethod
    def pairwise_coupling(q: _Operand) -> Call:
        """The shares p of k classes, 1 together, for which p q p is least: libsvm's iteration, which ends where the error"""
    @staticmethod
    def tree_leaves(
        x: _Operand,
        features: _Operand,
        splits: _Operand,
        missing: _Operand,
        children: _Operand,
        roots: _Operand,
        depth: _Int,
    ) -> Call:
        """The leaf of each row in each tree, after at most ``depth`` comparisons."""

class nn:
    """Operators nn.*"""

    @staticmethod
    def attention(
        query: _Operand,
        key: _Operand,
        value: _Operand,
        mask: _Operand | None = ...,
        scale: _Float = ...,
        fill: _Float = ...,
        empty_rows: Literal['nan', 'zero'] = ...,
    ) -> Call:
        """softmax(scores) @ value for every head, ``scores = query @ key.T * scale``, masked."""
    @staticmethod
    def avg_pool1d(
        data: _Operand,
        pool_size: _Int | Sequence[_Int] | _Array = ...,
        strides: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        layout: str = ...,
        out_layout: str = ...,
        ceil_mode: bool | np.bool_ = ...,
        count_include_pad: bool | np.bool_ = ...,
    ) -> Call:
        """Mean under a window along W.  data: NCW -> NCW."""
    @staticmethod
    def avg_pool2d(
        data: _Operand,
        pool_size: _Int | Sequence[_Int] | _Array = ...,
        strides: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        layout: str = ...,
        out_layout: str = ...,
        ceil_mode: bool | np.bool_ = ...,
        count_include_pad: bool | np.bool_ = ...,
    ) -> Call:
        """Mean under a window over H and W.  data: NCHW (or NHWC, NCHW[x]c) -> the same."""
    @staticmethod
    def avg_pool3d(
        data: _Operand,
        pool_size: _Int | Sequence[_Int] | _Array = ...,
        strides: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        layout: str = ...,
        out_layout: str = ...,
        ceil_mode: bool | np.bool_ = ...,
        count_include_pad: bool | np.bool_ = ...,
    ) -> Call:
        """Mean under a window over D, H and W.  data: NCDHW -> NCDHW."""
    @staticmethod
    def batch_flatten(data: _Operand) -> Call:
        """All dimensions but the first merged.  data: (n, ...) -> (n, product of the others)."""
    @staticmethod
    def batch_matmul(
        tensor_a: _Operand,
        tensor_b: _Operand,
        out_dtype: str = ...,
        transpose_a: bool | np.bool_ = ...,
        transpose_b: bool | np.bool_ = ...,
    ) -> Call:
        """One matrix product per batch entry.  tensor_a: (b, m, k), tensor_b: (b, n, k) -> (b, m, n)."""
    @staticmethod
    def batch_norm(
        data: _Operand,
        gamma: _Operand,
        beta: _Operand,
        moving_mean: _Operand,
        moving_var: _Operand,
        axis: _Int = ...,
        epsilon: _Float = ...,
        center: bool | np.bool_ = ...,
        scale: bool | np.bool_ = ...,
    ) -> Call:
        """Normalizes with statistics of the training.  Results: the tensor, moving_mean, moving_var (unchanged)."""
    @staticmethod
    def bias_add(data: _Operand, bias: _Operand, axis: _Int = ...) -> Call:
        """Adds a vector along one axis.  data: (...), bias: (data.shape[axis],) -> as data."""
    @staticmethod
    def col2im(
        data: _Operand,
        size: Sequence[_Int | SymbolicDim] | _Array,
        kernel_size: _Int | Sequence[_Int] | _Array,
        strides: _Int | Sequence[_Int] | _Array,
        dilation: _Int | Sequence[_Int] | _Array,
        padding: _Int | Sequence[_Int] | _Array,
    ) -> Call:
        """What im2col of an image of ``size`` has in its columns, added up where windows of ``kernel_size`` overlap."""
    @staticmethod
    def contrib_conv2d_NCHWc(
        data: _Operand,
        weight: _Operand,
        strides: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        groups: _Int = ...,
        channels: _Int | None = ...,
        kernel_size: _Int | Sequence[_Int] | _Array | None = ...,
        data_layout: str = ...,
        kernel_layout: str = ...,
        out_layout: str = ...,
        out_dtype: str = ...,
    ) -> Call:
        """``nn.conv2d`` in blocks.  data: NCHW[x]c (or NCHW, where C is the weight's I block), weight: OIHW[x]i[y]o"""
    @staticmethod
    def contrib_conv2d_winograd_NCHWc(
        data: _Operand,
        weight: _Operand,
        strides: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        groups: _Int = ...,
        channels: _Int | None = ...,
        kernel_size: _Int | Sequence[_Int] | _Array | None = ...,
        data_layout: str = ...,
        kernel_layout: str = ...,
        out_layout: str = ...,
        out_dtype: str = ...,
        tile_size: _Int = ...,
    ) -> Call:
        """A convolution of 3 x 3 taps in tiles of ``tile_size``, of the weights that"""
    @staticmethod
    def contrib_conv2d_winograd_weight_transform(weight: _Operand, tile_size: _Int) -> Call:
        """The filters of a 3 x 3 convolution, transformed for tiles of ``tile_size``: G w G^T."""
    @staticmethod
    def contrib_dense_pack(
        data: _Operand,
        weight: _Operand,
        weight_layout: str = ...,
        units: _Int | None = ...,
        out_dtype: str = ...,
    ) -> Call:
        """``nn.dense`` with its weight in panels.  data: (m, k), weight: (ceil(units / n), k, n) -> (m, units)."""
    @staticmethod
    def contrib_depthwise_conv2d_NCHWc(
        data: _Operand,
        weight: _Operand,
        strides: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        groups: _Int = ...,
        channels: _Int | None = ...,
        kernel_size: _Int | Sequence[_Int] | _Array | None = ...,
        data_layout: str = ...,
        kernel_layout: str = ...,
        out_layout: str = ...,
        out_dtype: str = ...,
    ) -> Call:
        """A depthwise ``nn.conv2d`` in blocks.  data: NCHW[y]c, weight: OIHW1i[y]o -> NCHW[y]c; groups = C."""
    @staticmethod
    def conv1d(
        data: _Operand,
        weight: _Operand,
        strides: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        groups: _Int = ...,
        channels: _Int | None = ...,
        kernel_size: _Int | Sequence[_Int] | _Array | None = ...,
        data_layout: str = ...,
        kernel_layout: str = ...,
        out_layout: str = ...,
        out_dtype: str = ...,
    ) -> Call:
        """Convolution over one axis.  data: NCW, weight: OIW -> NCW; the layouts are attributes."""
    @staticmethod
    def conv1d_transpose(
        data: _Operand,
        weight: _Operand,
        strides: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        groups: _Int = ...,
        channels: _Int | None = ...,
        kernel_size: _Int | Sequence[_Int] | _Array | None = ...,
        data_layout: str = ...,
        kernel_layout: str = ...,
        out_layout: str = ...,
        out_dtype: str = ...,
        output_padding: _Int | Sequence[_Int] | _Array = ...,
    ) -> Call:
        """Transposed convolution over one axis.  data: NCW, weight: IOW -> NCW; the layouts are attributes."""
    @staticmethod
    def conv2d(
        data: _Operand,
        weight: _Operand,
        strides: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        groups: _Int = ...,
        channels: _Int | None = ...,
        kernel_size: _Int | Sequence[_Int] | _Array | None = ...,
        data_layout: str = ...,
        kernel_layout: str = ...,
        out_layout: str = ...,
        out_dtype: str = ...,
    ) -> Call:
        """Convolution of images.  data: NCHW, weight: OIHW -> NCHW; NHWC with HWIO, OHWI, ... by attribute."""
    @staticmethod
    def conv2d_transpose(
        data: _Operand,
        weight: _Operand,
        strides: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        groups: _Int = ...,
        channels: _Int | None = ...,
        kernel_size: _Int | Sequence[_Int] | _Array | None = ...,
        data_layout: str = ...,
        kernel_layout: str = ...,
        out_layout: str = ...,
        out_dtype: str = ...,
        output_padding: _Int | Sequence[_Int] | _Array = ...,
    ) -> Call:
        """Transposed convolution of images.  data: NCHW, weight: IOHW -> NCHW; the layouts are attributes."""
    @staticmethod
    def conv3d(
        data: _Operand,
        weight: _Operand,
        strides: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        groups: _Int = ...,
        channels: _Int | None = ...,
        kernel_size: _Int | Sequence[_Int] | _Array | None = ...,
        data_layout: str = ...,
        kernel_layout: str = ...,
        out_layout: str = ...,
        out_dtype: str = ...,
    ) -> Call:
        """Convolution of volumes.  data: NCDHW, weight: OIDHW -> NCDHW; the layouts are attributes."""
    @staticmethod
    def conv3d_transpose(
        data: _Operand,
        weight: _Operand,
        strides: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        groups: _Int = ...,
        channels: _Int | None = ...,
        kernel_size: _Int | Sequence[_Int] | _Array | None = ...,
        data_layout: str = ...,
        kernel_layout: str = ...,
        out_layout: str = ...,
        out_dtype: str = ...,
        output_padding: _Int | Sequence[_Int] | _Array = ...,
    ) -> Call:
        """Transposed convolution of volumes.  data: NCDHW, weight: IODHW -> NCDHW; the layouts are attributes."""
    @staticmethod
    def dense(data: _Operand, weight: _Operand, units: _Int | None = ..., out_dtype: str = ...) -> Call:
        """data @ weight.T, the fully connected layer.  data: (m, k), weight: (units, k) -> (m, units)."""
    @staticmethod
    def depth_to_space(
        data: _Operand,
        block_size: _Int = ...,
        layout: Literal['NCHW', 'NHWC'] = ...,
        mode: Literal['DCR', 'CRD'] = ...,
    ) -> Call:
        """Channels become pixels.  data: (N, C, H, W) -> (N, C / b**2, H * b, W * b)."""
    @staticmethod
    def dropout(data: _Operand, rate: _Float = ...) -> Call:
        """Nothing at inference, whatever the ``rate``.  data: (...) -> data and a mask of ones."""
    @staticmethod
    def extract_tiles(
        data: _Operand,
        tile: _Int | Sequence[_Int] | _Array,
        steps: _Int | Sequence[_Int] | _Array,
        before: _Int | Sequence[_Int] | _Array,
        counts: Sequence[_Int | SymbolicDim] | _Array,
        fill: _Float = ...,
        runs: _Int | Sequence[_Int] | _Array = ...,
        gaps: _Int | Sequence[_Int] | _Array = ...,
        after: _Int | Sequence[_Int] | _Array = ...,
        layout: str = ...,
    ) -> Call:
        """data: (n, c, h, w) in ``layout`` -> (n * counts, c, *tile): tile (i, j) of an image begins at pixel"""
    @staticmethod
    def global_avg_pool2d(data: _Operand, layout: str = ..., out_layout: str = ...) -> Call:
        """The mean of every channel's pixels.  data: (N, C, H, W) floats -> (N, C, 1, 1)."""
    @staticmethod
    def global_max_pool2d(data: _Operand, layout: str = ..., out_layout: str = ...) -> Call:
        """The largest of every channel's pixels.  data: (N, C, H, W) -> (N, C, 1, 1)."""
    @staticmethod
    def group_norm(
        data: _Operand,
        gamma: _Operand,
        beta: _Operand,
        axis: _Int = ...,
        epsilon: _Float = ...,
        center: bool | np.bool_ = ...,
        scale: bool | np.bool_ = ...,
        num_groups: _Int = ...,
    ) -> Call:
        """Normalizes ``num_groups`` groups of neighbouring channels.  data: (N, C, ...) floats, gamma, beta: (C,)"""
    @staticmethod
    def gru(
        xw: _Operand,
        recurrent_weight: _Operand,
        recurrent_bias: _Operand,
        h0: _Operand,
        reverse: bool | np.bool_ = ...,
        linear_before_reset: bool | np.bool_ = ...,
    ) -> Call:
        """Gated recurrent unit, gates in ONNX's order z, r, h."""
    @staticmethod
    def instance_norm(
        data: _Operand,
        gamma: _Operand,
        beta: _Operand,
        axis: _Int = ...,
        epsilon: _Float = ...,
        center: bool | np.bool_ = ...,
        scale: bool | np.bool_ = ...,
    ) -> Call:
        """Normalizes every channel of every batch entry.  data: (N, C, ...) floats, gamma, beta: (C,) -> as data."""
    @staticmethod
    def l2_normalize(data: _Operand, eps: _Float = ..., axis: _Int | Sequence[_Int] | _Array = ...) -> Call:
        """data over the root of the sum of its squares along ``axis``, that sum at least ``eps``.  (...) -> (...)."""
    @staticmethod
    def layer_norm(
        data: _Operand,
        gamma: _Operand,
        beta: _Operand,
        axis: _Int = ...,
        epsilon: _Float = ...,
        center: bool | np.bool_ = ...,
        scale: bool | np.bool_ = ...,
    ) -> Call:
        """Normalizes over one axis.  data: (...) floats, gamma, beta: (data.shape[axis],) -> as data."""
    @staticmethod
    def leaky_relu(data: _Operand, alpha: _Float = ...) -> Call:
        """``alpha * data`` where data is negative, else data.  data: (...) floats -> (...)."""
    @staticmethod
    def log_softmax(data: _Operand, axis: _Int = ...) -> Call:
        """log(softmax(data)), without the loss of digits.  data: (...) floats -> (...)."""
    @staticmethod
    def lrn(
        data: _Operand,
        size: _Int = ...,
        axis: _Int = ...,
        bias: _Float = ...,
        alpha: _Float = ...,
        beta: _Float = ...,
    ) -> Call:
        """Local response normalization over ``size`` neighbouring channels, along ``axis``.  data: (...) floats -> (...)."""
    @staticmethod
    def lstm(
        xw: _Operand,
        recurrent_weight: _Operand,
        h0: _Operand,
        c0: _Operand,
        peephole: _Operand | None = ...,
        reverse: bool | np.bool_ = ...,
    ) -> Call:
        """Long short-term memory, gates in ONNX's order i, o, f, c."""
    @staticmethod
    def matmul(
        tensor_a: _Operand,
        tensor_b: _Operand,
        out_dtype: str = ...,
        transpose_a: bool | np.bool_ = ...,
        transpose_b: bool | np.bool_ = ...,
        units: _Int | None = ...,
    ) -> Call:
        """The product of two matrices.  tensor_a: (m, k), tensor_b: (k, n) -> (m, n)."""
    @staticmethod
    def max_pool1d(
        data: _Operand,
        pool_size: _Int | Sequence[_Int] | _Array = ...,
        strides: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        layout: str = ...,
        out_layout: str = ...,
        ceil_mode: bool | np.bool_ = ...,
    ) -> Call:
        """Maximum under a window along W.  data: NCW -> NCW."""
    @staticmethod
    def max_pool1d_positions(
        data: _Operand,
        pool_size: _Int | Sequence[_Int] | _Array = ...,
        strides: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        layout: str = ...,
        out_layout: str = ...,
        ceil_mode: bool | np.bool_ = ...,
    ) -> Call:
        """Where the maxima of nn.max_pool1d are."""
    @staticmethod
    def max_pool2d(
        data: _Operand,
        pool_size: _Int | Sequence[_Int] | _Array = ...,
        strides: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        layout: str = ...,
        out_layout: str = ...,
        ceil_mode: bool | np.bool_ = ...,
    ) -> Call:
        """Maximum under a window over H and W.  data: NCHW (or NHWC, NCHW[x]c) -> the same."""
    @staticmethod
    def max_pool2d_positions(
        data: _Operand,
        pool_size: _Int | Sequence[_Int] | _Array = ...,
        strides: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        layout: str = ...,
        out_layout: str = ...,
        ceil_mode: bool | np.bool_ = ...,
    ) -> Call:
        """Where the maxima of nn.max_pool2d are."""
    @staticmethod
    def max_pool3d(
        data: _Operand,
        pool_size: _Int | Sequence[_Int] | _Array = ...,
        strides: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        layout: str = ...,
        out_layout: str = ...,
        ceil_mode: bool | np.bool_ = ...,
    ) -> Call:
        """Maximum under a window over D, H and W.  data: NCDHW -> NCDHW."""
    @staticmethod
    def max_pool3d_positions(
        data: _Operand,
        pool_size: _Int | Sequence[_Int] | _Array = ...,
        strides: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        layout: str = ...,
        out_layout: str = ...,
        ceil_mode: bool | np.bool_ = ...,
    ) -> Call:
        """Where the maxima of nn.max_pool3d are."""
    @staticmethod
    def merge_tiles(
        data: _Operand,
        size: Sequence[_Int | SymbolicDim] | _Array,
        batch: _Int | SymbolicDim,
        counts: Sequence[_Int | SymbolicDim] | _Array,
        layout: str = ...,
    ) -> Call:
        """Tiles of results side by side, without what hangs over: data: (batch * counts, c, *tile) in ``layout`` ->"""
    @staticmethod
    def pad(
        data: _Operand,
        pad_value: _Operand | None = ...,
        pad_width: Sequence[Sequence[_Int | SymbolicDim] | _Array] | _Array = ...,
        pad_mode: str = ...,
    ) -> Call:
        """Grows a tensor.  data: (...), pad_value (optional, 0): () or (1,) -> (... + before + after)."""
    @staticmethod
    def prelu(data: _Operand, alpha: _Operand, axis: _Int = ...) -> Call:
        """``leaky_relu`` with a slope per channel.  data: (...) floats, alpha: (data.shape[axis],) -> as data."""
    @staticmethod
    def relu(data: _Operand) -> Call:
        """max(data, 0).  data: (...) -> (...)."""
    @staticmethod
    def rnn(xw: _Operand, recurrent_weight: _Operand, h0: _Operand, reverse: bool | np.bool_ = ...) -> Call:
        """The plain recurrence h = tanh(xw + recurrent_weight @ h)."""
    @staticmethod
    def softmax(data: _Operand, axis: _Int = ...) -> Call:
        """exp(data) over its sum along ``axis``.  data: (...) floats -> (...)."""
    @staticmethod
    def space_to_depth(data: _Operand, block_size: _Int = ..., layout: Literal['NCHW', 'NHWC'] = ...) -> Call:
        """Pixels become channels.  data: (N, C, H, W) -> (N, C * b**2, H / b, W / b)."""
    @staticmethod
    def upsampling(
        data: _Operand,
        scale_h: _Float = ...,
        scale_w: _Float = ...,
        layout: str = ...,
        method: str = ...,
        align_corners: bool | np.bool_ = ...,
    ) -> Call:
        """Enlarges H by ``scale_h`` and W by ``scale_w``.  data: ``layout`` NCHW, NHWC, NCHW[x]c -> the same; extents"""

class optional:
    """Operators optional.*"""

    @staticmethod
    def get(optional: _Operand) -> Call:
        """The value of an optional; :class:`InputError` where it has none."""
    @staticmethod
    def has(optional: _Operand) -> Call:
        """Tells whether an optional has a value, a bool."""
    @staticmethod
    def none(element: str) -> Call:
        """An optional that has no value; ``element`` is the type as text: ``Tensor[(?, 3), float32]``."""
    @staticmethod
    def of(value: _Operand) -> Call:
        """An optional that has the value."""

class qnn:
    """Operators qnn.*"""

    @staticmethod
    def block_panels(data: _Operand, bits: _Int = ...) -> Call:
        """Weights, scales or zero points for ``qnn.dense_blocks``: 16 units side by side, zeros for those that are missing."""
    @staticmethod
    def contrib_conv2d_NCHWc(
        data: _Operand,
        weight: _Operand,
        strides: _Int | Sequence[_Int] | _Array = ...,
        padding: _Int | Sequence[_Int] | _Array = ...,
        dilation: _Int | Sequence[_Int] | _Array = ...,
        groups: _Int = ...,
        channels: _Int | None = ...,
        kernel_size: _Int | Sequence[_Int] | _Array | None = ...,
        data_layout: str = ...,
        kernel_layout: str = ...,
        out_layout: str = ...,
        out_dtype: str = ...,
        product: Literal['dot4', 'sdot4', 'udot4', 'dot2'] = ...,
    ) -> Call:
        """``nn.contrib_conv2d_NCHWc`` over words of input channels.  data, weight: int32 -> int32."""
    @staticmethod
    def contrib_dense_pack(
        data: _Operand,
        weight: _Operand,
        weight_layout: str = ...,
        units: _Int | None = ...,
        out_dtype: str = ...,
        product: Literal['dot4', 'sdot4', 'udot4', 'dot2'] = ...,
    ) -> Call:
        """``nn.contrib_dense_pack`` over words of features.  data, weight: int32 -> int32."""
    @staticmethod
    def dense_blocks(
        data: _Operand,
        data_scale: _Operand,
        data_sum: _Operand,
        weight: _Operand,
        weight_scale: _Operand,
        zero_point: _Operand,
        units: _Int,
        block: _Int = ...,
        bits: _Int = ...,
        parts: _Int = ...,
    ) -> Call:
        """Rows by weights of 2, 4 or 8 ``bits``, both with a scale for each ``block`` numbers.  Products of one are added"""
    @staticmethod
    def dequantize(
        data: _Operand,
        input_scale: _Operand,
        input_zero_point: _Operand,
        axis: _Int = ...,
        out_dtype: str = ...,
    ) -> Call:
        """(data - zero_point) * scale, in float32 at least."""
    @staticmethod
    def dequantize_blocks(
        data: _Operand,
        input_scale: _Operand,
        input_zero_point: _Operand,
        axis: _Int = ...,
        block: _Int = ...,
        bits: _Int = ...,
        extent: _Int = ...,
    ) -> Call:
        """(data - zero_point) * scale, in float32 at least, with a scale for each ``block`` elements along ``axis``."""
    @staticmethod
    def lstm(
        xw: _Operand,
        recurrent_weight: _Operand,
        corrections: _Operand,
        scale: _Operand,
        h0: _Operand,
        c0: _Operand,
        peephole: _Operand | None = ...,
        reverse: bool | np.bool_ = ...,
        product: Literal['dot4', 'sdot4', 'udot4', 'dot2'] = ...,
    ) -> Call:
        """``nn.lstm`` by a state of bytes: before each step all states together become uint8, with a range that holds 0."""
    @staticmethod
    def quantize(
        data: _Operand,
        output_scale: _Operand,
        output_zero_point: _Operand,
        axis: _Int = ...,
        out_dtype: str = ...,
    ) -> Call:
        """round(data / scale) + zero_point, ties to even, kept within ``out_dtype``; in float32 at least."""
    @staticmethod
    def quantize_blocks(data: _Operand, block: _Int = ..., parts: _Int = ...) -> Call:
        """Rows as int8, with a scale for each ``block`` numbers: the largest magnitude becomes 127, ties go to even."""
    @staticmethod
    def words(data: _Operand) -> Call:
        """Parts of a tensor as words.  data: (..., 4 * n) of int8 or uint8, or (..., 2 * n) of int16 -> (..., n) int32."""

class sequence:
    """Operators sequence.*"""

    @staticmethod
    def at(sequence: _Operand, index: _Operand) -> Call:
        """A value of a sequence.  sequence: n values, index: one integer in [-n, n) -> a value."""
    @staticmethod
    def concatenate(sequence: _Operand, axis: _Int, stack: bool | np.bool_ = ...) -> Call:
        """All tensors one after the other along ``axis``; with ``stack`` along a new one."""
    @staticmethod
    def erase(sequence: _Operand, index: _Operand | None = ...) -> Call:
        """A sequence with one value less, the last.  sequence: n values, index: in [-n, n)."""
    @staticmethod
    def insert(sequence: _Operand, value: _Operand, index: _Operand | None = ...) -> Call:
        """A sequence with one value more, at the end.  sequence: n values, index: in [-n, n], before which it goes."""
    @staticmethod
    def length(sequence: _Operand) -> Call:
        """The number of values of a sequence, an int64."""
    @staticmethod
    def of(*more: _Operand, dtype: str = ...) -> Call:
        """A sequence of the given values.  Of none it is one of no tensors of ``dtype``."""
    @staticmethod
    def split(data: _Operand, lengths: _Operand, axis: _Int, keep: bool | np.bool_ = ...) -> Call:
        """Pieces of a tensor.  data: (..., n, ...), lengths: those of the pieces along ``axis``, or one of all but the"""

class string:
    """Operators string.*"""

    @staticmethod
    def text(texts: str | Sequence[str] | _Array, shape: _Int | Sequence[_Int] | _Array) -> Call:
        """A tensor of text: ``texts`` in row-major order, of ``shape``."""

class vision:
    """Operators vision.*"""

    @staticmethod
    def non_max_suppression(
        boxes: _Operand,
        scores: _Operand,
        most: _Operand,
        overlap: _Operand,
        least: _Operand,
        center: bool | np.bool_ = ...,
        limit: _Int | None = ...,
    ) -> Call:
        """The boxes of the highest scores, per batch and class, that overlap none of those before by more than ``overlap``."""
    @staticmethod
    def roi_align(
        data: _Operand,
        rois: _Operand,
        batch_indices: _Operand,
        size: Sequence[_Int] | _Array,
        spatial_scale: _Float = ...,
        sample_ratio: _Int = ...,
        mode: str = ...,
        half_pixel: bool | np.bool_ = ...,
    ) -> Call:
        """Each region of an image as ``size`` (height, width) cells, the mean (or the maximum) of samples in each,"""
    @staticmethod
    def roi_pool(data: _Operand, rois: _Operand, size: Sequence[_Int] | _Array, spatial_scale: _Float = ...) -> Call:
        """Maxima of the pixels in ``size`` (height, width) cells of regions (Girshick 2015); 0 where there are none."""
