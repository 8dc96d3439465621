"""Operators of Relay's that few networks have, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minitvm import relay
from minitvm.errors import MiniTVMError
from minitvm.ir.evaluate import evaluate
from minitvm.tvm.relay.operators import is_offered, signatures

R = np.random.default_rng(11)
A, B = (R.normal(size=s).astype("float32") for s in ((3, 4), (4, 5)))
IMAGE, VOLUME = (R.normal(size=s).astype("float32") for s in ((2, 3, 7, 6), (1, 2, 3, 4, 5)))
SPARSE = np.where(R.random((5, 5)) < 0.4, R.normal(size=(5, 5)), 0).astype("float32")


def c(array: Any) -> Any:
    return relay.const(array, str(np.asarray(array).dtype))


def by_rows(dense: np.ndarray, block: tuple[int, int] = (1, 1)) -> list[Any]:
    """The values, columns and starts of a matrix, of blocks that are not all zeros."""
    (r, q), (m, n) = block, dense.shape
    cut = dense.reshape(m // r, r, n // q, q).transpose(0, 2, 1, 3)
    rows, columns = np.nonzero(cut.any((2, 3)))
    starts = np.searchsorted(rows, np.arange(m // r + 1)).astype("int32")
    values = cut[rows, columns]
    return [c(values[:, 0, 0] if block == (1, 1) else values), c(columns.astype("int32")), c(starts)]


def fixed_point(x: np.ndarray, multiplier: Any, shift: Any) -> np.ndarray:
    return np.floor(x.astype("float64") * multiplier * 2.0 ** (shift - 31) + 0.5).astype("int32")


def dilated(image: np.ndarray, taps: np.ndarray, stride: int, apart: int, pad: int) -> np.ndarray:
    grown = np.pad(image, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=-np.inf)
    _, kh, kw = taps.shape
    size = [(n - (k - 1) * apart - 1) // stride + 1 for n, k in zip(grown.shape[2:], (kh, kw), strict=True)]
    found = np.empty((*image.shape[:2], *size), "float32")
    for y in range(size[0]):
        for x in range(size[1]):
            at = grown[:, :, y * stride : y * stride + kh * apart : apart, x * stride : x * stride + kw * apart : apart]
            found[:, :, y, x] = (at + taps).max((2, 3))
    return found


def linear_resized(x: np.ndarray, axis: int, size: int) -> np.ndarray:
    n = x.shape[axis]
    at = np.clip((np.arange(size) + 0.5) * n / size - 0.5, 0, n - 1)
    low = np.floor(at).astype(int)
    high, part = np.minimum(low + 1, n - 1), (at - low).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    return (x.take(low, axis) * (1 - part) + x.take(high, axis) * part).astype("float32")


def cropped(image: np.ndarray, boxes: np.ndarray, which: np.ndarray, size: tuple[int, int], fill: float) -> np.ndarray:
    found = np.full((len(boxes), image.shape[1], *size), fill, "float32")
    _, _, h, w = image.shape
    for b, (y1, x1, y2, x2) in enumerate(boxes):
        for i in range(size[0]):
            for j in range(size[1]):
                y = (y1 + (y2 - y1) * i / (size[0] - 1)) * (h - 1)
                x = (x1 + (x2 - x1) * j / (size[1] - 1)) * (w - 1)
                if 0 <= y <= h - 1 and 0 <= x <= w - 1:
                    t, s = int(y), int(x)
                    below, right = min(t + 1, h - 1), min(s + 1, w - 1)
                    p, top = y - t, image[which[b], :, t]
                    low = image[which[b], :, below]
                    upper = top[:, s] * (1 - x + s) + top[:, right] * (x - s)
                    found[b, :, i, j] = upper * (1 - p) + (low[:, s] * (1 - x + s) + low[:, right] * (x - s)) * p
    return found


def pool_gradient(kind: str, image: np.ndarray, d: np.ndarray, k: int) -> np.ndarray:
    found = np.zeros_like(image)
    for n, ch, y, x in np.ndindex(*d.shape):
        window = image[n, ch, y * k : y * k + k, x * k : x * k + k]
        share = np.full((k, k), 1 / (k * k)) if kind == "avg" else window == window.max()
        found[n, ch, y * k : y * k + k, x * k : x * k + k] += share * d[n, ch, y, x]
    return found


def weight_gradient(image: np.ndarray, d: np.ndarray, k: int) -> np.ndarray:
    out = range(d.shape[2]), range(d.shape[3])
    return sum(  # type: ignore[no-any-return]
        np.einsum("no,ncpq->ocpq", d[:, :, y, x], image[:, :, y : y + k, x : x + k]) for y in out[0] for x in out[1]
    )


def windows(rows: np.ndarray, count: int, hop: int, window: np.ndarray) -> np.ndarray:
    starts = range(0, rows.shape[1] - count + 1, hop)
    spectra = np.stack([np.fft.fft(rows[:, s : s + count] * window)[:, : count // 2 + 1] for s in starts], 2)
    return np.stack([spectra.real, spectra.imag], -1)


BOXES = np.float32([[0.1, 0.2, 0.8, 0.9], [0.0, 0.0, 1.0, 1.0], [-0.2, 0.3, 0.5, 1.2]])
FOUND = np.float32([[[0, 0.9, 1, 1, 2, 2], [1, 0.2, 3, 3, 4, 4], [-1, 0.8, 5, 5, 6, 6], [2, 0.7, 7, 7, 8, 8]]])
GRADIENT, WAVE = R.normal(size=(2, 3, 3, 3)).astype("float32"), R.normal(size=(2, 40)).astype("float32")
PLACES = np.int64([[0, 0, 1], [1, 2, 3], [1, 0, 0]])
WHOLE = R.integers(-(2**20), 2**20, (2, 3)).astype("int32")
BLOCKS = np.kron(np.float32([[1, 0, 2], [0, 3, 0]]), R.normal(size=(2, 2)).astype("float32"))
MULTIPLIERS, LEFT, RIGHT = np.int32([2**30, 2**29 + 7, 2**31 - 1]), np.int32([0, 3, 1]), np.int32([2, 0, 1])


def correlated(
    one: np.ndarray, two: np.ndarray, k: int, most: int, steps: tuple[int, int], pad: int, product: bool
) -> np.ndarray:
    one, two = (np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))) for x in (one, two))
    size = [-(-(n - 2 * (most + (k - 1) // 2)) // steps[0]) for n in one.shape[2:]]
    moves = [m * steps[1] for m in range(-(most // steps[1]), most // steps[1] + 1)]
    found = np.empty((len(one), len(moves) ** 2, *size), "float32")
    for at, (down, right) in enumerate((d, r) for d in moves for r in moves):
        for i, j in np.ndindex(*size):
            y, x = i * steps[0] + most, j * steps[0] + most
            a, b = one[:, :, y : y + k, x : x + k], two[:, :, y + down : y + down + k, x + right : x + right + k]
            found[:, at, i, j] = (a * b if product else abs(a - b)).mean((1, 2, 3))
    return found


def packed(x: np.ndarray, bits: int) -> np.ndarray:
    """The planes of bits of rows of 32 integers, along a new second axis."""
    planes = [(x >> bit) & 1 for bit in range(bits)]
    words = [
        [[int("".join(map(str, row[at : at + 32])), 2) for at in range(0, len(row), 32)] for row in p] for p in planes
    ]
    return np.stack([np.array(one, "uint32") for one in words], 1)


BITS = R.integers(0, 4, (3, 64)).astype("int32")
BIT_IMAGE, BIT_FILTERS = R.integers(0, 4, (1, 3, 5, 5)).astype("int32"), R.integers(0, 2, (4, 3, 3, 3)).astype("int32")
BLOCKED = R.normal(size=(1, 8, 5, 4)).astype("float32"), R.normal(size=(4, 8, 3, 3)).astype("float32")


def in_blocks(x: np.ndarray, shape: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    return x.reshape(shape).transpose(order)


def convolved(image: np.ndarray, filters: np.ndarray) -> np.ndarray:
    k = filters.shape[2]
    windows = np.lib.stride_tricks.sliding_window_view(image, (k, k), (2, 3))
    return np.einsum("nchwyx,ocyx->nohw", windows, filters)  # type: ignore[no-any-return]


CASES: dict[str, tuple[Callable[[], Any], Any]] = {
    "einsum": (lambda: relay.einsum([c(A), c(B)], "ij,jk->ik"), A @ B),
    "einsum of three": (lambda: relay.einsum((c(A), c(B), c(A)), "ij,jk,ij->k"), np.einsum("ij,jk,ij->k", A, B, A)),
    "nn.deformable_conv2d": (
        lambda: relay.nn.deformable_conv2d(
            c(IMAGE), c(np.zeros((2, 18, 5, 4), "float32")), c(np.ones((4, 3, 3, 3), "float32")), kernel_size=(3, 3)
        ),
        np.stack([sum(IMAGE[:, :, i : i + 5, j : j + 4].sum(1) for i in range(3) for j in range(3))] * 4, 1),
    ),
    "fixed_point_multiply": (
        lambda: relay.fixed_point_multiply(c(WHOLE), 2**30 + 5, -3),
        fixed_point(WHOLE, 2**30 + 5, -3),
    ),
    "fixed_point_multiply left": (
        lambda: relay.fixed_point_multiply(c(WHOLE), 2**30 + 5, 4),
        fixed_point(WHOLE, 2**30 + 5, 4),
    ),
    "fixed_point_multiply_per_axis": (
        lambda: relay.fixed_point_multiply_per_axis(c(WHOLE), c(MULTIPLIERS), c(LEFT), c(RIGHT), True, True, [1]),
        fixed_point(WHOLE, MULTIPLIERS, LEFT - RIGHT),
    ),
    "nn.bitpack": (lambda: relay.nn.bitpack(c(BITS), bits=2, pack_axis=1, bit_axis=1), packed(BITS, 2)),
    "nn.bitserial_dense": (
        lambda: relay.nn.bitserial_dense(c(BITS), c(BITS[::-1]), data_bits=2, weight_bits=2, unipolar=False),
        (BITS @ BITS[::-1].T).astype("int16"),
    ),
    "nn.bitserial_dense of -1 and 1": (
        lambda: relay.nn.bitserial_dense(c(BITS), c(BITS & 1), data_bits=2),
        (BITS @ (2 * (BITS & 1) - 1).T).astype("int16"),
    ),
    "nn.bitserial_conv2d": (
        lambda: relay.nn.bitserial_conv2d(c(BIT_IMAGE), c(BIT_FILTERS), padding=(1, 1), channels=4, activation_bits=2),
        convolved(np.pad(BIT_IMAGE, ((0, 0), (0, 0), (1, 1), (1, 1))), 2 * BIT_FILTERS - 1).astype("int16"),
    ),
    "qnn.op.simulated_quantize": (
        lambda: relay.qnn.op.simulated_quantize(c(A * 100), c(np.float32(0.5)), c(np.int32(3)), out_dtype="uint8"),
        np.clip(np.round(A * 100 / np.float32(0.5)) + 3, 0, 255),
    ),
    "qnn.op.simulated_quantize of rows": (
        lambda: relay.qnn.op.simulated_quantize(
            c(A * 9), c(np.float32([0.5, 0.25, 1])), c(np.int32([3, -1, 0])), axis=0
        ),
        np.clip(np.round(A * 9 / np.float32([[0.5], [0.25], [1]])) + np.float32([[3], [-1], [0]]), -128, 127),
    ),
    "qnn.op.simulated_quantize of nothing": (
        lambda: relay.qnn.op.simulated_quantize(c(A), c(np.float32(0.5)), c(np.int32(3)), out_dtype="disable"),
        A,
    ),
    "qnn.op.simulated_dequantize": (
        lambda: relay.qnn.op.simulated_dequantize(c(A), c(np.float32(0.5)), c(np.int32(3))),
        (A - 3) * np.float32(0.5),
    ),
    "nn.contrib_conv2d_nchwc": (
        lambda: relay.nn.contrib_conv2d_nchwc(
            c(in_blocks(BLOCKED[0], (1, 2, 4, 5, 4), (0, 1, 3, 4, 2))),
            c(in_blocks(BLOCKED[1], (1, 4, 2, 4, 3, 3), (0, 2, 4, 5, 3, 1))),
            kernel_size=(3, 3),
            channels=4,
            data_layout="NCHW4c",
            kernel_layout="OIHW4i4o",
        ),
        in_blocks(convolved(*BLOCKED), (1, 1, 4, 3, 2), (0, 1, 3, 4, 2)),
    ),
    "nn.contrib_depthwise_conv2d_nchwc": (
        lambda: relay.nn.contrib_depthwise_conv2d_nchwc(
            c(in_blocks(BLOCKED[0], (1, 2, 4, 5, 4), (0, 1, 3, 4, 2))),
            c(in_blocks(BLOCKED[1][:1].reshape(8, 1, 3, 3), (2, 4, 1, 3, 3), (0, 2, 3, 4, 1))[:, :, :, :, None]),
            kernel_size=(3, 3),
            channels=8,
            groups=8,
            data_layout="NCHW4c",
            kernel_layout="OIHW1i4o",
        ),
        in_blocks(
            np.concatenate([convolved(BLOCKED[0][:, [i]], BLOCKED[1][:1, [i]]) for i in range(8)], 1),
            (1, 2, 4, 3, 2),
            (0, 1, 3, 4, 2),
        ),
    ),
    **{
        f"nn.correlation {k} {most} {steps} {product}": (
            lambda k=k, most=most, steps=steps, product=product: relay.nn.correlation(
                c(IMAGE), c(IMAGE[::-1]), k, most, *steps, 3, product, "NCHW"
            ),
            correlated(IMAGE, IMAGE[::-1], k, most, steps, 3, product),
        )
        for k, most, steps, product in ((1, 2, (1, 1), True), (3, 2, (2, 1), True), (3, 3, (1, 2), False))
    },
    "nn.fifo_buffer": (lambda: relay.nn.fifo_buffer(c(A[:1]), c(A), 0), np.concatenate([A[1:], A[:1]])),
    "dft": (lambda: relay.dft(c(A), c(A[::-1]))[0], np.fft.fft(A + 1j * A[::-1]).real.astype("float32")),
    "dft inverse": (lambda: relay.dft(c(A), c(A), True)[1], np.fft.ifft(A + 1j * A).imag.astype("float32")),
    "stft": (
        lambda: relay.stft(c(WAVE), 8, 3, 8, c(np.hanning(8).astype("float32")), False, True),
        windows(WAVE, 8, 3, np.hanning(8)).astype("float32"),
    ),
    **{
        f"nn.{kind}_pool2d_grad": (
            lambda kind=kind: getattr(relay.nn, f"{kind}_pool2d_grad")(
                c(GRADIENT), c(IMAGE[:, :, :6]), pool_size=(2, 2), strides=(2, 2)
            ),
            pool_gradient(kind, IMAGE[:, :, :6], GRADIENT, 2),
        )
        for kind in ("avg", "max")
    },
    "nn.conv2d_backward_weight": (
        lambda: relay.nn.conv2d_backward_weight(c(GRADIENT), c(IMAGE[:, :, :5, :5]), kernel_size=(3, 3)),
        weight_gradient(IMAGE[:, :, :5, :5], GRADIENT, 3),
    ),
    "image.dilation2d": (
        lambda: relay.image.dilation2d(c(IMAGE), c(IMAGE[0, :, :3, :2]), strides=(2, 2), padding=(1, 1)),
        dilated(IMAGE, IMAGE[0, :, :3, :2], 2, 1, 1),
    ),
    "image.dilation2d NHWC": (
        lambda: relay.image.dilation2d(
            *(c(IMAGE.transpose(0, 2, 3, 1)), c(IMAGE[0, :, :2, :2].transpose(1, 2, 0))),
            dilations=(2, 2),
            data_layout="NHWC",
            kernel_layout="HWI",
        ),
        dilated(IMAGE, IMAGE[0, :, :2, :2], 1, 2, 0).transpose(0, 2, 3, 1),
    ),
    "image.resize3d": (
        lambda: relay.image.resize3d(c(VOLUME), (5, 3, 8)),
        linear_resized(linear_resized(linear_resized(VOLUME, 2, 5), 3, 3), 4, 8),
    ),
    "nn.upsampling3d": (
        lambda: relay.nn.upsampling3d(c(VOLUME), 2, 2, 2, "NCDHW", "nearest_neighbor", "asymmetric"),
        VOLUME.repeat(2, 2).repeat(2, 3).repeat(2, 4),
    ),
    "image.crop_and_resize": (
        lambda: relay.image.crop_and_resize(
            c(IMAGE), c(BOXES), c(np.int32([0, 1, 0])), (4, 3), "NCHW", extrapolation_value=0.5
        ),
        cropped(IMAGE, BOXES, np.int32([0, 1, 0]), (4, 3), 0.5),
    ),
    "nn.sparse_dense": (lambda: relay.nn.sparse_dense(c(SPARSE[:2]), by_rows(SPARSE)), SPARSE[:2] @ SPARSE.T),
    "nn.sparse_dense blocks": (
        lambda: relay.nn.sparse_dense(c(BLOCKS[:1]), by_rows(BLOCKS, (2, 2)), True),
        BLOCKS @ BLOCKS[:1].T,
    ),
    "nn.sparse_add": (lambda: relay.nn.sparse_add(c(SPARSE + 1), by_rows(SPARSE)), 2 * SPARSE + 1),
    "nn.sparse_transpose": (
        lambda: relay.nn.sparse_add(c(0 * SPARSE), list(relay.nn.sparse_transpose(by_rows(SPARSE)))),
        SPARSE.T,
    ),
    "sparse_reshape": (
        lambda: relay.sparse_reshape(c(PLACES), c(np.int64([2, 3, 4])), c(np.int64([4, -1])))[0],
        np.stack(np.unravel_index(np.ravel_multi_index(list(PLACES.T), (2, 3, 4)), (4, 6)), 1),
    ),
    "sparse_reshape's shape": (
        lambda: relay.sparse_reshape(c(PLACES), c(np.int64([2, 3, 4])), c(np.int64([4, -1])))[1],
        np.int64([4, 6]),
    ),
    "vision.get_valid_counts": (lambda: relay.vision.get_valid_counts(c(FOUND), 0.5)[0], np.int32([2])),
    "vision.get_valid_counts rows": (
        lambda: relay.vision.get_valid_counts(c(FOUND), 0.5, -1)[1],
        np.concatenate([FOUND[:, [0, 2, 3]], -np.ones((1, 1, 6), "float32")], 1),
    ),
    "vision.get_valid_counts places": (
        lambda: relay.vision.get_valid_counts(c(FOUND), 0.5)[2],
        np.int32([[0, 3, -1, -1]]),
    ),
    "vision.multibox_prior": (
        lambda: relay.vision.multibox_prior(c(IMAGE[:, :, :1, :1]), (0.5, 0.2), (1, 4)),
        np.float32([[[0.25, 0.25, 0.75, 0.75], [0.4, 0.4, 0.6, 0.6], [0.0, 0.375, 1.0, 0.625]]]),
    ),
    "vision.multibox_transform_loc": (
        lambda: relay.vision.multibox_transform_loc(
            *(c(np.float32([[[0.2, 0.6, 0.1], [0.1, 0.3, 0.7], [0.7, 0.1, 0.2]]])), c(np.zeros((1, 12), "float32"))),
            anchor=c(np.float32([[[0.1, 0.1, 0.3, 0.5], [0, 0, 1, 1], [-0.2, 0, 0.4, 0.4]]])),
            threshold=0.5,
        )[0],
        np.float32([[[1, 0.7, 0.1, 0.1, 0.3, 0.5], [0, 0.7, 0, 0, 0.4, 0.4], [-1] * 6]]),
    ),
}


@pytest.mark.parametrize("title", CASES)
def test_rare_numbers(title: str) -> None:
    call, want = CASES[title]
    found, want = np.asarray(evaluate(relay.Function([], call()))), np.asarray(want)
    assert (found.shape, found.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("title", ["nn.bitpack", "nn.bitserial_conv2d", "nn.correlation 3 3 (1, 2) False"])
def test_rare_numbers_compiled(title: str) -> None:
    call, want = CASES[title]
    found = relay.create_executor("graph", mod=relay.IRModule.from_expr(relay.Function([], call()))).evaluate()()
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-4, atol=1e-5)


def test_what_is_known_when_it_runs() -> None:
    """Sparse matrices and boxes may be inputs."""
    values, columns, starts = (part.value for part in by_rows(SPARSE))
    given = [
        relay.var(n, shape=a.shape, dtype=str(a.dtype)) for n, a in zip("vcs", (values, columns, starts), strict=True)
    ]
    product = relay.Function(given, relay.nn.sparse_dense(c(SPARSE), given))
    found = relay.create_executor("graph", mod=relay.IRModule.from_expr(product)).evaluate()(values, columns, starts)
    np.testing.assert_allclose(found.numpy(), SPARSE @ SPARSE.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: relay.nn.deformable_conv2d(c(IMAGE), c(IMAGE), c(IMAGE), data_layout="NHWC"), "layouts NHWC"),
        (lambda: relay.nn.bitpack(c(BITS[:, :40])), "40 integers, which words of 32 bits do not hold"),
        (lambda: relay.nn.bitserial_dense(c(BITS), c(BITS[None])), "weights that are packed already"),
        (lambda: relay.nn.bitserial_conv2d(c(BIT_IMAGE), c(BIT_FILTERS[None])), "weights that are packed already"),
        (lambda: relay.nn.correlation(c(IMAGE), c(IMAGE), 2, 1, 1, 1, 0, True, "NCHW"), "windows of 2"),
        (lambda: relay.qnn.op.simulated_quantize(c(A), c(A[0, 0]), c(0), out_dtype="int4"), "dtype 'int4'"),
        (lambda: relay.nn.conv2d_backward_weight(c(GRADIENT), c(IMAGE)), "without kernel_size"),
        (lambda: relay.image.resize3d(c(VOLUME), (1, 1, 1), layout="DHWNC"), "layout='DHWNC'"),
        (lambda: relay.einsum([c(A)], "ij,jk->ik"), "2 terms for 1 inputs"),
        (lambda: relay.nn.sparse_transpose(by_rows(BLOCKS, (2, 2))), "blocks"),
    ],
)
def test_what_is_not_made(call: Any, said: str) -> None:
    with pytest.raises(MiniTVMError, match=said):
        call()


def test_how_many_are_here() -> None:
    assert sum(map(is_offered, signatures())) >= 259
