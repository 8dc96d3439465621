"""ONNX AffineGrid: where each pixel of a moved image comes from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minitvm.frontend.onnx.matmul import matmul
from minitvm.frontend.onnx.node import OnnxNode, dims, emit, rank
from minitvm.frontend.onnx.registry import onnx_op
from minitvm.frontend.onnx.tensor import reshaped
from minitvm.ir.expr import Constant, Expr

LARGEST_GRID = 1 << 26
"""More pixels are a mistake: their coordinates are constants."""


@onnx_op("AffineGrid", since=20)
def affine_grid(node: OnnxNode) -> Expr:
    """theta: (n, d, d + 1), of every pixel's coordinates: (n, ..., d), the last axis (x first) from -1 to 1.

    ONNX's own definition drops a batch of one.
    """
    theta, size = node[0], [int(s) for s in node.constant(1, "size").reshape(-1)]
    batch, spatial = size[0], size[2:]
    expected = (batch, len(spatial), len(spatial) + 1)
    if rank(theta) != 3 or len(spatial) not in (2, 3) or dims(theta) != expected:
        raise node.misfit(f"theta is {theta.tensor_type}; size {size} takes {expected}")
    if np.prod(spatial, dtype=float) > LARGEST_GRID:
        raise node.fail(f"size {size} has more than {LARGEST_GRID} pixels")
    points = _points(spatial, bool(node.attr("align_corners", 0))).astype(theta.dtype)
    moved = emit("transpose", matmul(node, theta, Constant(points)), axes=(0, 2, 1))
    return reshaped(moved, [batch, *spatial, len(spatial)], allowzero=True)


def _points(spatial: Sequence[int], align_corners: bool) -> np.ndarray:
    """Homogeneous coordinates, x first: (d + 1, pixels)."""
    axes = [_coordinates(extent, align_corners) for extent in spatial]
    grid = np.meshgrid(*axes, indexing="ij")
    return np.stack([*(axis.reshape(-1) for axis in reversed(grid)), np.ones(grid[0].size)])


def _coordinates(extent: int, align_corners: bool) -> np.ndarray:
    """Centres of ``extent`` pixels that fill -1 to 1, or, with ``align_corners``, points from -1 to 1."""
    if align_corners:
        return np.linspace(-1, 1, extent) if extent != 1 else np.ones(1)
    return (2 * np.arange(extent) + 1) / max(extent, 1) - 1
