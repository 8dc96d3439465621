"""Calls of Relay's operators as v0.14 takes them, and what comes out, in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minitvm import relay

_rng = np.random.default_rng(7)
A = _rng.normal(size=(2, 3, 4)).astype("float32")
P = np.abs(A) + 0.5
M = _rng.normal(size=(3, 5)).astype("float32")
PLACES = np.array([[0, 2], [1, 0]], "int32")
IMAGE = _rng.normal(size=(2, 3, 4, 6)).astype("float32")
Q = _rng.integers(-60, 60, (3, 8)).astype("int8")
W = _rng.integers(-60, 60, (5, 8)).astype("int8")


def c(value: Any, dtype: str | None = None) -> Any:
    return relay.const(value, dtype)


def ones(*shape: int) -> Any:
    return c(np.ones(shape, "float32"))


def _patches() -> np.ndarray:
    return np.stack([[M[i : i + 2, j : j + 3] for j in range(0, 3, 2)] for i in range(2)])


def _quantize(real: np.ndarray, scale: float, zero: int) -> np.ndarray:
    return np.clip(np.round(real / scale) + zero, -128, 127).astype("int8")


def _with_diagonal() -> np.ndarray:
    found = M.copy()
    np.fill_diagonal(found, [7, 8, 9])
    return found


def _with_zeros() -> np.ndarray:
    found = M.copy()
    found[0:3:2, 1:5:2] = 0
    return found


def _masked() -> np.ndarray:
    return np.where(np.arange(2)[:, None, None] < np.array([1, 2, 2])[None, :, None], A, np.float32(9))


CASES: dict[str, tuple[Callable[[], Any], Any]] = {
    "add": (lambda: relay.add(c(A), c(A)), A + A),
    "add by name": (lambda: relay.add(lhs=c(A), rhs=c(A)), A + A),
    "adv_index": (lambda: relay.adv_index([c(A), c(PLACES[1]), c(PLACES)]), A[PLACES[1], PLACES]),
    "arange one": (lambda: relay.arange(c(5.0)), np.arange(5, dtype="float32")),
    "arange": (lambda: relay.arange(c(1), c(9), c(2), "int32"), np.arange(1, 9, 2, dtype="int32")),
    "arange step": (
        lambda: relay.arange(c(1.0), c(4.0), step=c(1.0), dtype="float32"),
        np.arange(1, 4, dtype="float32"),
    ),
    "broadcast_to list": (lambda: relay.broadcast_to(c(A), [2, 2, 3, 4]), np.broadcast_to(A, (2, 2, 3, 4))),
    "broadcast_to expr": (lambda: relay.broadcast_to(c(M[0]), c(np.array([2, 5]))), np.broadcast_to(M[0], (2, 5))),
    "cast_like": (lambda: relay.cast_like(c(A), c(PLACES)), A.astype("int32")),
    "clip": (lambda: relay.clip(c(A), a_min=-0.5, a_max=np.float32(0.5)), np.clip(A, -0.5, 0.5)),
    "collapse_sum_like": (lambda: relay.collapse_sum_like(c(A), c(A[0, :, :1])), A.sum(0).sum(1, keepdims=True)),
    "collapse_sum_to": (lambda: relay.collapse_sum_to(c(A), (1, 4)), A.sum(0).sum(0, keepdims=True)),
    "concatenate": (lambda: relay.concatenate((c(A), c(A)), axis=-1), np.concatenate([A, A], -1)),
    "cumsum": (lambda: relay.cumsum(c(A), 1, "float64"), A.astype("float64").cumsum(1)),
    "cumsum flat": (lambda: relay.cumsum(c(A)), A.ravel().cumsum()),
    "cumprod": (lambda: relay.cumprod(c(P), axis=2, exclusive=False), P.cumprod(2)),
    "expand_dims": (lambda: relay.expand_dims(c(A), 1, 2), A[:, None, None]),
    "full": (lambda: relay.full(c(3.0), [2, 2], "int32"), np.full((2, 2), 3, "int32")),
    "full expr": (lambda: relay.full(c(3.0), c(np.array([2, 2]))), np.full((2, 2), 3, "float32")),
    "gather": (lambda: relay.gather(c(M), 1, c(np.array([[0], [4], [2]]))), M[np.arange(3)[:, None], [[0], [4], [2]]]),
    "gather_nd": (lambda: relay.gather_nd(c(M), c(np.array([[0, 2], [1, 4]]))), M[[0, 2], [1, 4]]),
    "invert_permutation": (lambda: relay.invert_permutation(c(np.array([2, 0, 1]))), np.array([1, 2, 0])),
    "log10": (lambda: relay.log10(c(P)), np.log10(P)),
    "matrix_set_diag": (lambda: relay.matrix_set_diag(c(M), c(np.float32([7, 8, 9]))), _with_diagonal()),
    "mean_std": (lambda: relay.mean_std(c(A), axis=1)[1], A.std(1)),
    "mean_variance": (lambda: relay.mean_variance(c(A), 1, True)[1], A.var(1, keepdims=True)),
    "meshgrid": (lambda: relay.meshgrid([c(M[0]), c(M[1])], "ij")[0], np.meshgrid(M[0], M[1], indexing="ij")[0]),
    "meshgrid xy": (lambda: relay.meshgrid([c(M[0]), c(M[:, 1])], indexing="xy")[1], np.meshgrid(M[0], M[:, 1])[1]),
    "one_hot": (lambda: relay.one_hot(c(PLACES), c(1.0), c(0.0), 3, -1, "float32"), np.eye(3, dtype="float32")[PLACES]),
    "repeat": (lambda: relay.repeat(c(A), repeats=2, axis=0), A.repeat(2, 0)),
    "reshape": (lambda: relay.reshape(c(A), newshape=[0, -1]), A.reshape(2, 12)),
    "reshape array": (lambda: relay.reshape(c(A), np.array([4, 6])), A.reshape(4, 6)),
    "reshape expr": (lambda: relay.reshape(c(A), relay.shape_of(c(A.reshape(6, 4)))), A.reshape(6, 4)),
    "reshape_like": (lambda: relay.reshape_like(c(A), c(A.reshape(6, 4))), A.reshape(6, 4)),
    "reshape_like part": (lambda: relay.reshape_like(c(A), c(np.zeros((7, 6))), 0, 2, 1), A.reshape(6, 4)),
    "reverse": (lambda: relay.reverse(c(A), axis=1), A[:, ::-1]),
    "reverse_reshape": (lambda: relay.reverse_reshape(c(A), (-1, 0)), A.reshape(6, 4)),
    "searchsorted": (
        lambda: relay.searchsorted(c(np.sort(M[0])), c(M[1])),
        np.searchsorted(np.sort(M[0]), M[1]).astype("int32"),
    ),
    "segment_sum": (lambda: relay.segment_sum(c(M), c(np.array([0, 0, 2]))), np.stack([M[0] + M[1], 0 * M[0], M[2]])),
    "sequence_mask": (lambda: relay.sequence_mask(c(A), c(np.array([1, 2, 2], "int32")), 9.0, 0), _masked()),
    "slice_like": (lambda: relay.slice_like(c(M), c(np.zeros((2, 3)))), M[:2, :3]),
    "slice_like axes": (lambda: relay.slice_like(c(M), c(np.zeros((2, 3))), axes=(1,)), M[:, :3]),
    "sliding_window": (lambda: relay.sliding_window(c(M), 0, [2, 3], [1, 2]), _patches()),
    "sort": (lambda: relay.sort(c(M), axis=1, is_ascend=False), -np.sort(-M, 1)),
    "sparse_to_dense": (
        lambda: relay.sparse_to_dense(c(np.array([[0, 1], [2, 0]])), (3, 2), c(np.float32([5, 6])), c(1.0)),
        np.array([[1, 5], [1, 1], [6, 1]], "float32"),
    ),
    "squeeze": (lambda: relay.squeeze(c(A[:, :1]), axis=[1]), A[:, 0]),
    "stack": (lambda: relay.stack([c(M), c(M)], axis=1), np.stack([M, M], 1)),
    "std": (lambda: relay.std(c(A), axis=[0, 2], keepdims=True), A.std((0, 2), keepdims=True)),
    "strided_set": (lambda: relay.strided_set(c(M), c(np.float32(0)), [0, 1], [3, 5], [2, 2]), _with_zeros()),
    "strided_slice": (lambda: relay.strided_slice(c(M), begin=[0, 1], end=[2, -1]), M[:2, 1:-1]),
    "strided_slice expr": (lambda: relay.strided_slice(c(M), c(np.array([0, 1])), c(np.array([2, 5]))), M[:2, 1:]),
    "take": (lambda: relay.take(c(M), c(PLACES), axis=1, mode="fast"), M[:, PLACES]),
    "tile": (lambda: relay.tile(c(M), [2, 1]), np.tile(M, (2, 1))),
    "topk": (lambda: relay.topk(c(M), 2, 1, "values"), -np.sort(-M, 1)[:, :2]),
    "topk both": (lambda: relay.topk(c(M), k=c(2))[0], -np.sort(-M, 1)[:, :2]),
    "transpose": (lambda: relay.transpose(c(A), axes=[2, 0, 1]), A.transpose(2, 0, 1)),
    "unique": (lambda: relay.unique(c(np.array([3, 1, 3])))[2], np.array([1, 0, 1], "int32")),
    "unravel_index": (lambda: relay.unravel_index(c(np.array([7, 3])), (3, 4)), np.array([[1, 0], [3, 3]])),
    "variance": (lambda: relay.variance(c(A), axis=1), A.var(1)),
    "variance unbiased": (lambda: relay.variance(c(A), 1, True, unbiased=True), A.var(1, ddof=1, keepdims=True)),
    "variance of a mean": (lambda: relay.variance(c(A), 1, with_mean=c(0 * A[:, :1])), (A * A).mean(1)),
    "where": (lambda: relay.where(c(A), c(A), c(-A)), A),
    "zeros": (lambda: relay.zeros((2, 2), "int8"), np.zeros((2, 2), "int8")),
    "nn.adaptive_avg_pool2d": (
        lambda: relay.nn.adaptive_avg_pool2d(c(IMAGE), (2, 3)),
        IMAGE.reshape(2, 3, 2, 2, 3, 2).mean((3, 5)),
    ),
    "nn.adaptive_max_pool1d": (lambda: relay.nn.adaptive_max_pool1d(c(A), 2), A.reshape(2, 3, 2, 2).max(3)),
    "nn.global_avg_pool1d": (lambda: relay.nn.global_avg_pool1d(c(A)), A.mean(2, keepdims=True)),
    "nn.global_max_pool2d": (lambda: relay.nn.global_max_pool2d(c(IMAGE)), IMAGE.max((2, 3), keepdims=True)),
    "nn.batch_matmul": (lambda: relay.nn.batch_matmul(c(A), c(A)), A @ A.transpose(0, 2, 1)),
    "nn.cross_entropy": (lambda: relay.nn.cross_entropy(c(P[0]), c(P[1])), -(P[1] * np.log(P[0])).sum() / 3),
    "nn.dense": (lambda: relay.nn.dense(c(M), c(M), units=3), M @ M.T),
    "nn.dense of three dimensions": (lambda: relay.nn.dense(c(A), c(A[0])), A @ A[0].T),
    "nn.dilate": (lambda: relay.nn.dilate(c(M[:2, :2]), [1, 2]), np.insert(M[:2, :2], 1, 0, 1)),
    "nn.dropout": (lambda: relay.nn.dropout(c(A), 0.3), A),
    "nn.l2_normalize": (lambda: relay.nn.l2_normalize(c(M), 1e-12, [1]), M / np.linalg.norm(M, axis=1, keepdims=True)),
    "nn.leaky_relu": (lambda: relay.nn.leaky_relu(c(A)), np.where(A > 0, A, A * np.float32(0.01))),
    "nn.matmul": (lambda: relay.nn.matmul(c(M), c(M), None, "", False, True), M @ M.T),
    "nn.mirror_pad": (lambda: relay.nn.mirror_pad(c(M), ((1, 1), (0, 2))), np.pad(M, ((1, 1), (0, 2)), "symmetric")),
    "nn.nll_loss": (
        lambda: relay.nn.nll_loss(c(M), c(np.array([0, 4, 2])), c(np.ones(5, "float32"))),
        -M[np.arange(3), [0, 4, 2]].mean(),
    ),
    "nn.pad": (lambda: relay.nn.pad(c(M), [[1, 0], [0, 2]], 3), np.pad(M, [[1, 0], [0, 2]], constant_values=3)),
    "nn.pad expr": (
        lambda: relay.nn.pad(c(M), ((0, 0), (1, 1)), c(2.0)),
        np.pad(M, ((0, 0), (1, 1)), constant_values=2),
    ),
    "nn.space_to_batch_nd": (
        lambda: relay.nn.space_to_batch_nd(c(IMAGE[:1, 0, :, :, None]), (2, 2), ((0, 0), (0, 0))),
        np.stack([IMAGE[0, 0, i::2, j::2, None] for i in (0, 1) for j in (0, 1)]),
    ),
    "nn.batch_to_space_nd": (
        lambda: relay.nn.batch_to_space_nd(
            relay.nn.space_to_batch_nd(c(IMAGE.transpose(0, 2, 3, 1)), [2, 3], [[0, 0], [3, 0]]),
            [2, 3],
            [[0, 0], [3, 0]],
        ),
        IMAGE.transpose(0, 2, 3, 1),
    ),
    "nn.conv3d_transpose": (
        lambda: relay.nn.conv3d_transpose(
            c(np.ones((1, 2, 1, 1, 1), "float32")), c(np.ones((2, 3, 1, 1, 1), "float32")), channels=3
        ),
        np.full((1, 3, 1, 1, 1), 2, "float32"),
    ),
    "image.resize2d": (
        lambda: relay.image.resize2d(c(IMAGE), (8, 12), None, "NCHW", "nearest_neighbor", "asymmetric"),
        IMAGE.repeat(2, 2).repeat(2, 3),
    ),
    "image.resize1d": (
        lambda: relay.image.resize1d(c(A), (8,), None, "NCW", "nearest_neighbor", "asymmetric"),
        A.repeat(2, 2),
    ),
    "image.affine_grid": (
        lambda: relay.image.grid_sample(
            c(IMAGE), relay.image.affine_grid(c(np.float32([[[1, 0, 0], [0, 1, 0]]] * 2)), (4, 6)), "bilinear"
        ),
        IMAGE,
    ),
    "vision.roi_align": (
        lambda: relay.vision.roi_align(c(0 * IMAGE + 2), c(np.float32([[1, 0, 0, 3, 3]])), (2, 2), 1.0, sample_ratio=2),
        np.full((1, 3, 2, 2), 2, "float32"),
    ),
    "vision.roi_pool": (
        lambda: relay.vision.roi_pool(c(IMAGE), c(np.float32([[1, 0, 0, 5, 3]])), pooled_size=1, spatial_scale=1.0),
        IMAGE[1:].max((2, 3), keepdims=True),
    ),
    "vision.all_class_non_max_suppression": (
        lambda: relay.vision.all_class_non_max_suppression(
            c(np.float32([[[0, 0, 1, 1], [0, 0, 1, 1.1], [2, 2, 3, 3]]])),
            c(np.float32([[[0.9, 0.8, 0.7]]])),
            10,
            0.5,
            0.0,
        )[1],
        np.array([2]),
    ),
    "qnn.quantize": (lambda: relay.qnn.op.quantize(c(M), c(0.05), c(3)), _quantize(M, 0.05, 3)),
    "qnn.dense": (
        lambda: relay.qnn.op.dense(c(Q), c(W), c(2), c(0), c(0.1), c(0.2), units=5),
        (Q.astype("int32") - 2) @ W.T.astype("int32"),
    ),
    "qnn.requantize": (
        lambda: relay.qnn.op.requantize(c(Q.astype("int32") * 9), c(0.5), c(0), c(1.0), c(1), out_dtype="int8"),
        np.clip(np.floor(Q.astype("float64") * 4.5 + 0.5) + 1, -128, 127).astype("int8"),
    ),
    "qnn.add": (
        lambda: relay.qnn.op.add(c(Q), c(Q), c(0.5), c(0), c(0.25), c(1), c(1.0), c(2)),
        _quantize(Q * 0.5 + (Q - 1.0) * 0.25, 1.0, 2),
    ),
    "qnn.conv2d": (
        lambda: relay.qnn.op.conv2d(
            c(Q.reshape(1, 1, 4, 6)),
            c(W[:1, :1].reshape(1, 1, 1, 1)),
            c(1),
            c(0),
            c(1.0),
            c(1.0),
            (1, 1),
            1,
            padding=(1, 1),
        ),
        np.pad((Q.reshape(1, 1, 4, 6).astype("int32") - 1) * W[0, 0], ((0, 0), (0, 0), (1, 1), (1, 1))),
    ),
    "qnn.sigmoid": (
        lambda: relay.qnn.op.sigmoid(c(Q), c(0.1), c(0), c(1 / 128), c(-128)),
        _quantize(1 / (1 + np.exp(-Q * np.float32(0.1))), 1 / 128, -128),
    ),
}
"""By title, a call and its value."""
