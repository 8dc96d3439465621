"""Kernels written by hand: one loop over arrays of any dtypes, and random arrays for it."""

from __future__ import annotations

import zlib

import numpy as np

from minitvm.ir.loop import Alloc, Buffer, Kernel, LoopExpr, LoopKind, const, intrin, loop, nest, seq, store

PARALLEL, VECTORIZED, UNROLLED, SERIAL = (LoopKind.PARALLEL, LoopKind.VECTORIZED, LoopKind.UNROLLED, LoopKind.SERIAL)


def random_array(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, zlib.crc32(dtype.encode())])
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        low = 0 if kind == "u" else -40
        return rng.integers(low, 41, shape).astype(dtype)
    return (rng.standard_normal(shape) * 3).astype(dtype)


def elementwise(n: int, dtypes: list[str], result: str, value: object, kind: LoopKind = VECTORIZED) -> Kernel:
    """``out[i] = value(in0[i], ...)`` in one loop of a kind."""
    assert callable(value)
    ins = [Buffer(f"x{i}", (n,), d) for i, d in enumerate(dtypes)]
    out = Buffer("out", (n,), result)
    return Kernel("elementwise", (*ins, out), loop(n, lambda i: store(out, (i,), value(*(b[i] for b in ins))), kind))


def tiled_matmul(m: int, n: int, k: int, lanes: int, rows: int = 6, columns: int = 2, unroll: int = 4) -> Kernel:
    """``C = A B`` with a register tile; A as (m/rows, k, rows), B as (n/width, k, width)."""
    width = columns * lanes
    a = Buffer("a", (m // rows, k, rows), "float32")
    b, c = Buffer("b", (n // width, k, width), "float32"), Buffer("c", (m, n), "float32")
    acc = Buffer("acc", (rows, width), "float32", "local")

    def each(body: object) -> object:
        assert callable(body)
        cell = lambda r, q: loop(lanes, lambda v: body(r, q * lanes + v), VECTORIZED)  # noqa: E731
        return nest((rows, columns), cell, UNROLLED)

    def tile(i: LoopExpr, j: LoopExpr) -> object:
        def step(s: LoopExpr) -> object:
            return each(lambda r, v: store(acc, (r, v), intrin("fma", a[i, s, r], b[j, s, v], acc[r, v])))

        zero = each(lambda r, v: store(acc, (r, v), const(0, "float32")))
        inner = loop(k // unroll, lambda o: loop(unroll, lambda u: step(o * unroll + u), UNROLLED))
        write = each(lambda r, v: store(c, (i * rows + r, j * width + v), acc[r, v]))
        return Alloc(acc, seq(zero, inner, write))

    return Kernel("matmul", (a, b, c), nest((m // rows, n // width), tile, PARALLEL))


def packed(a: np.ndarray, b: np.ndarray, rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    (m, k), n = a.shape, b.shape[1]
    return a.reshape(m // rows, rows, k).transpose(0, 2, 1), b.reshape(k, n // width, width).transpose(1, 0, 2)
