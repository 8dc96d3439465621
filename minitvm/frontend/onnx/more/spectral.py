"""ONNX's Fourier transforms, as products with constant matrices: DFT, STFT; MelWeightMatrix.

A transform of many points is one of some of them for each place between them, and one of the results (Cooley and
Tukey 1965), so that matrices stay small.  One of many that cannot be divided so, or that only a run counts, is a
convolution (Bluestein 1970).  Numbers are complex as ONNX stores them: the last dimension is (real, imaginary).
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from minitvm.frontend.onnx.more.foreign import foreign
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, normalize_axis, onnx_dtype, rank, scalar
from minitvm.frontend.onnx.registry import Outputs, onnx_op
from minitvm.frontend.onnx.tensor import first, number, positions, reshaped
from minitvm.ir.dims import Dim, SymbolicDim, is_equal, is_less, larger, product
from minitvm.ir.expr import Constant, Expr

DIRECT = 512
"""Points of a transform that is one product."""
LARGEST = 2048
"""Points that cannot be divided, and still are one product."""


_shaped = partial(reshaped, allowzero=True)

LONGEST = 4096
"""Points of a transform whose matrix a run makes."""
ROWS = 256
"""Into which the places of a convolution are divided."""
MOST = ROWS * LARGEST // 2
"""Points of a transform that is a convolution: twice as many places, in rows of at most ``LARGEST``."""


def _cut(x: Expr, axis: int, length: Dim) -> Expr:
    """The first ``length`` places along an axis, zeros behind the last."""
    extent = x.tensor_type.shape[axis]
    missing = larger(0, length - extent)
    if missing != 0:
        x = emit("nn.pad", x, 0, pad_width=tuple((0, missing if d == axis else 0) for d in range(rank(x))))
    return x if extent == length else first(x, length, axis)


def _roots(sign: float, times: np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of ``sign * times / points`` turns; at a quarter of a turn one of them is 0, not its rounding."""
    angle = sign * 2 * np.pi * (times % points) / points
    quarters = 4 * times % points == 0
    cosine, sine = (np.where(quarters, np.round(part), part) for part in (np.cos(angle), np.sin(angle)))
    return cosine, sine


def _matrix(points: int, wanted: int, parts: int, sign: int) -> np.ndarray:
    """(points * parts, wanted * 2): e to the power of (sign 2 pi i n k / points), from real numbers or complex ones."""
    n, k = np.arange(points)[:, None], np.arange(wanted)
    cosine, sine = _roots(sign, n * k, points)
    rows = [np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)][:parts]
    return np.stack(rows, 1).reshape(points * parts, wanted * 2)


def _open_roots(times: Expr, points: Dim) -> tuple[Expr, Expr]:
    """Likewise of ``times`` / ``points`` turns, in a run."""
    turns = emit("floor_mod", times, points)
    angle = cast(turns, "float64") * (2 * np.pi) / cast(number(points), "float64")
    at_quarter = emit("equal", emit("floor_mod", turns * 4, points), 0)
    cosine, sine = (
        emit("where", at_quarter, emit("round", part), part) for part in map(emit, ("cos", "sin"), [angle] * 2)
    )
    return cosine, sine


def _open_transform(x: Expr, wanted: Dim, sign: int) -> Expr:
    """:func:`transform` of as many points as a run has."""
    rows, points, parts = x.tensor_type.shape
    n, k = _shaped(positions(points), [1, points]), _shaped(positions(wanted), [wanted, 1])
    cosine, sine = _open_roots(n * k * sign, points)
    columns = [emit("stack", [cosine, -sine][:parts], axis=2), emit("stack", [sine, cosine][:parts], axis=2)]
    matrix = _shaped(emit("stack", columns, axis=1), [wanted * 2, points * parts])
    return _shaped(emit("nn.dense", _shaped(x, [rows, points * parts]), cast(matrix, x.dtype)), [rows, wanted, 2])


def _open_real_inverse(x: Expr, length: Dim) -> Expr:
    """:func:`_real_inverse` of as many points as a run has."""
    rows, points, _ = x.tensor_type.shape
    n, k = _shaped(positions(length), [length, 1]), _shaped(positions(points), [1, points])
    cosine, sine = _open_roots(n * k, length)
    is_single = emit("logical_or", emit("equal", k, 0), emit("equal", k * 2, length))
    share = emit("where", is_single, scalar(1.0, "float64"), 2.0) / cast(number(length), "float64")
    matrix = _shaped(emit("stack", [cosine * share, -sine * share], axis=2), [length, points * 2])
    found = emit("nn.dense", _shaped(x, [rows, points * 2]), cast(matrix, x.dtype))
    return _shaped(found, [rows, length, 1])


def _product(x: Expr, matrix: np.ndarray) -> Expr:
    return emit("nn.dense", x, Constant(np.ascontiguousarray(matrix.T.astype(x.dtype))))


def _divisor(points: int) -> int:
    """The one nearest to the square root; 1 of a prime number."""
    return max(d for d in range(1, math.isqrt(points) + 1) if points % d == 0)


def transforms(points: int) -> bool:
    """True if all prime factors are small enough."""
    return points <= LARGEST or (_divisor(points) > 1 and transforms(points // _divisor(points)))


def transform(x: Expr, wanted: Dim, sign: int = -1) -> Expr:
    """x: (rows, points, 1 or 2) -> (rows, wanted, 2), the first frequencies."""
    rows, points, parts = x.shape
    if not isinstance(points, int) or not isinstance(wanted, int):
        return _open_transform(x, wanted, sign) if is_less(points, LONGEST + 1) else _convolved(x, wanted, sign)
    if not transforms(points):
        return _convolved(x, wanted, sign)
    first = _divisor(points)
    if points <= DIRECT or first == 1:
        found = _product(_shaped(x, [rows, points * parts]), _matrix(points, wanted, parts, sign))
        return _shaped(found, [rows, wanted, 2])
    second = points // first
    apart = emit("transpose", _shaped(x, [rows, first, second, parts]), axes=(0, 2, 1, 3))
    inner = transform(_shaped(apart, [rows * second, first, parts]), first, sign)
    twiddled = _twiddled(_shaped(inner, [rows, second, first, 2]), points, sign)
    across = emit("transpose", twiddled, axes=(0, 2, 1, 3))
    outer = transform(_shaped(across, [rows * first, second, 2]), second, sign)
    ordered = emit("transpose", _shaped(outer, [rows, first, second, 2]), axes=(0, 2, 1, 3))
    return _cut(_shaped(ordered, [rows, points, 2]), 1, wanted)


def _twiddled(x: Expr, points: int, sign: int) -> Expr:
    """x: (rows, n, k, 2), each times e to the power of (sign 2 pi i n k / points)."""
    n, k = np.arange(x.shape[1])[:, None], np.arange(x.shape[2])
    return _times(x, [Constant(part[..., None].astype(x.dtype)) for part in _roots(sign, n * k, points)])


def _parts(x: Expr) -> list[Expr]:
    """Real and imaginary, each with a last dimension of 1."""
    return [emit("strided_slice", x, begin=(i,), end=(i + 1,), axes=(rank(x) - 1,)) for i in (0, 1)]


def _times(x: Expr, factor: Sequence[Expr]) -> Expr:
    """Of complex numbers, the factor's parts apart."""
    (real, imaginary), (a, b) = _parts(x), factor
    return emit("concatenate", [real * a - imaginary * b, real * b + imaginary * a], axis=rank(x) - 1)


def _convolved(x: Expr, wanted: Dim, sign: int) -> Expr:
    """:func:`transform` of any number of points, as Bluestein computes it: ``2 n k = n**2 + k**2 - (k - n)**2``, so
    that numbers that are turned by ``n**2`` are convolved with such turns, and turned by ``k**2``."""
    rows, points, _ = x.tensor_type.shape
    columns = -(-(points + wanted) // ROWS)
    total, places = ROWS * columns, positions(ROWS * columns)

    def turns(n: Expr, sign: int) -> list[Expr]:
        return [_shaped(part, [*part.tensor_type.shape, 1]) for part in _open_roots(n * n * sign, 2 * points)]

    n, k = _shaped(positions(ROWS), [ROWS, 1]), _shaped(positions(columns), [1, columns])
    with_, back = ([_shaped(p, [ROWS, columns, 1]) for p in _open_roots(n * k * s, total)] for s in (-1, 1))

    def spectrum(given: Expr) -> Expr:
        """(some, total, 2) -> (some, ROWS, columns, 2), in an order of its own."""
        apart = _shaped(given, [given.tensor_type.shape[0], ROWS, columns, 2])
        return _along_columns(_times(_along_rows(apart, -1), with_), -1)

    apart = emit("where", emit("less", places, number(wanted)), places, number(total) - places)  # k - n, or n - k
    kernel = emit("concatenate", turns(apart, -sign), axis=1)
    given = _cut(_times(_cut(x, 2, 2), turns(positions(points), sign)), 1, total)
    mixed = _times(spectrum(given), _parts(spectrum(_shaped(kernel, [1, total, 2]))))
    found = _along_rows(_times(_along_columns(mixed, 1), back), 1) / cast(number(total), x.dtype)
    return _times(_cut(_shaped(found, [rows, total, 2]), 1, wanted), turns(positions(wanted), sign))


def _along_columns(x: Expr, sign: int) -> Expr:
    """x: (some, n, k, 2), transformed along k."""
    some, n, k, _ = x.tensor_type.shape
    return _shaped(transform(_shaped(x, [some * n, k, 2]), k, sign), [some, n, k, 2])


def _along_rows(x: Expr, sign: int) -> Expr:
    return emit("transpose", _along_columns(emit("transpose", x, axes=(0, 2, 1, 3)), sign), axes=(0, 2, 1, 3))


def _real_inverse(x: Expr, length: Dim) -> Expr:
    """x: (rows, length // 2 + 1, 2) half of a symmetric spectrum -> (rows, length, 1)."""
    rows, points, _ = x.shape
    if not is_less(length, (LARGEST if isinstance(length, int) else LONGEST) + 1):
        return _mirrored_inverse(x, length)
    if not isinstance(points, int) or not isinstance(length, int):
        return _open_real_inverse(x, length)
    n, k = np.arange(length), np.arange(points)[:, None]
    (cosine, sine), twice = _roots(1, n * k, length), np.where((k == 0) | (2 * k == length), 1, 2) / length
    matrix = np.stack([cosine * twice, -sine * twice], 1).reshape(points * 2, length)
    return _shaped(_product(_shaped(x, [rows, points * 2]), matrix), [rows, length, 1])


def _mirrored_inverse(x: Expr, length: Dim) -> Expr:
    """:func:`_real_inverse` by the other half of the spectrum."""
    places = positions(length)
    behind = number(length) - places
    sides = _parts(emit("take", x, emit("minimum", places, behind), axis=1))
    sides[1] = sides[1] * _shaped(cast(emit("sign", behind - places), x.dtype), [length, 1])
    found = transform(emit("concatenate", sides, axis=2), length, 1)
    return _parts(found)[0] / cast(number(length), x.dtype)


@onnx_op("DFT", since=17)
def dft(node: OnnxNode) -> Outputs:
    x = node[0]
    axis = int(node.constant(2, "axis").item()) if node.get(2) is not None else node.attr("axis", -2)
    axis, one_sided, inverse = normalize_axis(node, axis, rank(x)), node.attr("onesided", 0), node.attr("inverse", 0)
    if axis == rank(x) - 1 or x.shape[-1] not in (1, 2):
        raise node.fail(f"takes numbers or pairs of them along another axis than the last, not {x.tensor_type}")
    default = 2 * (x.shape[axis] - 1) if inverse and one_sided else x.shape[axis]
    length = default if node.get(1) is None else int(node.constant(1, "dft_length").item())
    if not one_sided and is_equal(length, 0):
        nothing = tuple(0 if d == axis else extent for d, extent in enumerate(x.tensor_type.shape[:-1]))
        return emit("full", scalar(0, x), shape=(*nothing, 2), dtype=x.dtype)
    if not _is_within(node, length):
        return foreign(node)
    order = (*(d for d in range(rank(x) - 1) if d != axis), axis, rank(x) - 1)
    shape = [x.shape[d] for d in order]
    x = emit("transpose", cast(x, "float64"), axes=order)  # what cancels is far smaller than what it is made of
    x = _cut(x, rank(x) - 2, length // 2 + 1 if inverse and one_sided else length)
    x = _shaped(x, [product(shape[:-2]), *x.shape[-2:]])
    if inverse and one_sided:
        x = x if x.shape[2] == 2 else _cut(x, 2, 2)
        found = _real_inverse(x, length)
    else:
        found = transform(x, length // 2 + 1 if one_sided else length, 1 if inverse else -1)
        found = emit("divide", found, cast(number(length), found.dtype)) if inverse else found
    found = _shaped(found, [*shape[:-2], *found.shape[1:]])
    back = tuple(int(i) for i in np.argsort(order))
    return cast(emit("transpose", found, axes=back), node[0].dtype)


def _is_within(node: OnnxNode, points: Dim) -> bool:
    """Whether kernels transform so many points; of open ones that is counted on."""
    if isinstance(points, SymbolicDim):
        return is_less(0, points) and is_less(points, MOST + 1)
    node.afford(32 * points, f"a transform of {points:,} points")
    return transforms(points) or points <= MOST


@onnx_op("STFT", since=17)
def stft(node: OnnxNode) -> Outputs:
    """Transforms of windows that step through the signal.  signal: (batch, length, 1 or 2)."""
    x, step = node[0], int(node.constant(1, "frame_step").item())
    window, given = node.get(2), node.get(3)
    if rank(x) != 3 or step < 1:
        raise node.fail(f"takes steps of 1 or more through (batch, length, 1 or 2), not {step} through {x.tensor_type}")
    points = int(node.constant(3, "frame_length").item()) if given is not None else None
    width = window.shape[0] if window is not None else points or x.shape[1]
    points = points or width
    count = (x.shape[1] - points) // step + 1
    if count < 1 or not _is_within(node, points):
        return foreign(node)
    if isinstance(count, int):
        node.afford(8 * count * width, f"{count:,} windows of {width:,} points")
    places = _shaped(positions(count), [count, 1]) * step + _shaped(positions(width), [1, width])
    frames = emit("take", _cut(x, 1, (count - 1) * step + width), places, axis=1)
    if window is not None:
        frames = frames * _shaped(window, [width, 1])
    rows = _cut(_shaped(frames, [x.shape[0] * count, width, x.shape[2]]), 1, points)
    found = transform(rows, points // 2 + 1 if node.attr("onesided", 1) else points)
    return _shaped(found, [x.shape[0], count, *found.shape[1:]])


@onnx_op("MelWeightMatrix", since=17)
def mel_weight_matrix(node: OnnxNode) -> Expr:
    """Triangles over the bins of a spectrum, evenly spread on the mel scale: a constant of the model."""
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    bands, points, rate, low, high = (node.constant(i, name).item() for i, name in enumerate(names))
    node.afford(32 * (bands + 2) * (points // 2 + 1), f"{bands:,} bands of {points:,} points")
    ends = [2595 * np.log10(1 + edge / 700) for edge in (low, high)]
    mels = np.arange(bands + 2) * (ends[1] - ends[0]) / (bands + 2) + ends[0]
    bins = ((points + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(np.int64)
    left, peak, right = bins[:-2], bins[1:-1], bins[2:]
    at = np.arange(points // 2 + 1)[:, None]
    with np.errstate(all="ignore"):
        up, down = (at - left) / (peak - left), (right - at) / (right - peak)
    rising = np.where((at >= left) & (at <= peak) & (peak > left), up, (at == peak) & (peak == left))
    found = np.where((at >= peak) & (at < right), down, rising)
    return Constant(found.astype(onnx_dtype(node, node.attr("output_datatype", 1))))
