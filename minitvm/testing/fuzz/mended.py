"""Operators of ONNX's reference evaluator, written anew where its own are wrong, from ONNX's documentation.

Its RNN, GRU and LSTM run every step of every sequence, and all forwards; its LRN takes as many channels as images; its
pools lose NaN; its BatchNormalization before opset 14 takes nine tenths of the variance, as if it were training; its
ConvTranspose has one channel a group; its LpNormalization sums without magnitudes for p = 1; its Softmax, LogSoftmax
and Hardmax before opset 13 take one axis; its LayerNormalization broadcasts what is normalized.
Recurrent layers have the default activations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_layer_normalization import LayerNormalization as _LayerNormalization

from minitvm.testing.fuzz.case import attributes
from minitvm.testing.fuzz.mended_places import PLACES
from minitvm.testing.fuzz.mended_rows import ROWS

Array = np.ndarray
State = tuple[Array, ...]
Step = Callable[[Array, State], State]


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


class _Layer(OpRun):
    """One recurrent layer; subclasses give the step of one direction."""

    op_domain = ""
    states = 1

    def step(self, wx: Array, wr: Array, b: Array, peephole: Array | None, given: dict[str, Any]) -> Step:
        raise NotImplementedError

    def _run(
        self,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        lengths: Array | None = None,
        *rest: Array | None,
        **_: Any,
    ) -> tuple[Array, ...]:
        given = {a.name: a for a in self.onnx_node.attribute}
        directions, hidden = w.shape[0], r.shape[2]
        if r.shape[:2] != w.shape[:2]:
            raise ValueError("weights of other directions or gates")
        if any(s is not None and s.shape != (directions, x.shape[1], hidden) for s in rest[: self.states]):
            raise ValueError("a state of another shape")
        if lengths is not None and ((lengths < 0) | (lengths > len(x))).any():
            raise ValueError("a sequence longer than there are steps")
        initial, peepholes = rest[: self.states], rest[self.states] if len(rest) > self.states else None
        ends = np.full(x.shape[1], x.shape[0]) if lengths is None else lengths
        results = []
        for d in range(directions):
            bias = np.zeros(2 * w.shape[1], x.dtype) if b is None else b[d]
            zero = np.zeros((x.shape[1], hidden), x.dtype)
            start = tuple(zero if s is None else s[d] for s in (*initial, None, None)[: self.states])
            step = self.step(w[d], r[d], bias, None if peepholes is None else peepholes[d], given)
            backward = d == 1 or ("direction" in given and given["direction"].s == b"reverse")
            results.append(_walk(x, start, step, ends, backward))
        outputs = np.stack([y for y, _ in results], 1)
        return (outputs, *(np.stack([last[i] for _, last in results]) for i in range(self.states)))


def _walk(x: Array, start: State, step: Step, ends: Array, backward: bool) -> tuple[Array, State]:
    """All steps of one direction; a sequence that has ended gives zeros, and its state stays."""
    state, outputs = start, np.zeros((x.shape[0], *start[0].shape), x.dtype)
    for t in reversed(range(x.shape[0])) if backward else range(x.shape[0]):
        runs = (t < ends)[:, None]
        state = tuple(np.where(runs, new, old) for new, old in zip(step(x[t], state), state, strict=True))
        outputs[t] = np.where(runs, state[0], 0)
    return outputs, state


def _clipped(x: Array, given: dict[str, Any]) -> Array:
    return np.clip(x, -given["clip"].f, given["clip"].f) if "clip" in given else x


class RNN(_Layer):
    def step(self, wx: Array, wr: Array, b: Array, peephole: Array | None, given: dict[str, Any]) -> Step:
        bias = b[: len(wx)] + b[len(wx) :]
        return lambda x, state: (np.tanh(_clipped(x @ wx.T + state[0] @ wr.T + bias, given)),)


class GRU(_Layer):
    def step(self, wx: Array, wr: Array, b: Array, peephole: Array | None, given: dict[str, Any]) -> Step:
        bw, br = b[: len(wx)], b[len(wx) :]
        before = "linear_before_reset" in given and given["linear_before_reset"].i

        def run(x: Array, state: State) -> State:
            (h,), n = state, wr.shape[1]
            inner = x @ wx.T + bw
            z, r = (_sigmoid(_clipped(inner[:, s] + h @ wr[s].T + br[s], given)) for s in (slice(n), slice(n, 2 * n)))
            last = slice(2 * n, None)
            reset = r * (h @ wr[last].T + br[last]) if before else (r * h) @ wr[last].T + br[last]
            return ((1 - z) * np.tanh(_clipped(inner[:, last] + reset, given)) + z * h,)

        return run


class LSTM(_Layer):
    states = 2

    def step(self, wx: Array, wr: Array, b: Array, peephole: Array | None, given: dict[str, Any]) -> Step:
        bias, n = b[: len(wx)] + b[len(wx) :], wr.shape[1]
        pi, po, pf = np.split(np.zeros(3 * n, wx.dtype) if peephole is None else peephole, 3)
        coupled = "input_forget" in given and given["input_forget"].i

        def run(x: Array, state: State) -> State:
            h, c = state
            i, o, f, g = np.split(x @ wx.T + h @ wr.T + bias, 4, 1)
            i = _sigmoid(_clipped(i + pi * c, given))
            f = 1 - i if coupled else _sigmoid(_clipped(f + pf * c, given))
            c = f * c + i * np.tanh(_clipped(g, given))
            return _sigmoid(_clipped(o + po * c, given)) * np.tanh(c), c

        return run


class LRN(OpRun):
    op_domain = ""

    def _run(self, x: Array, **_: Any) -> tuple[Array]:
        given = {"alpha": float(np.float32(1e-4)), "beta": 0.75, "bias": 1.0}
        given |= {a.name: a.f for a in self.onnx_node.attribute}
        size = next(a.i for a in self.onnx_node.attribute if a.name == "size")
        channels = x.shape[1]
        total = np.zeros_like(x)
        for c in range(channels):
            near = slice(max(0, c - (size - 1) // 2), min(channels, c + size // 2 + 1))
            total[:, c] = np.square(x[:, near]).sum(1)
        scale = (given["bias"] + given["alpha"] / size * total) ** given["beta"]
        return (np.asarray(x / scale, x.dtype),)


class LpNormalization(OpRun):
    op_domain = ""

    def _run(self, x: Array, **_: Any) -> tuple[Array]:
        given = {"axis": -1, "p": 2} | {a.name: a.i for a in self.onnx_node.attribute}
        norm = np.linalg.norm(x.astype(np.promote_types(x.dtype, "float32")), given["p"], given["axis"], keepdims=True)
        return (np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm)).astype(x.dtype),)


class MaxPool(OpRun):
    """NaN is larger than any number, in windows as in all of minitvm, numpy and ONNX's Max."""

    op_domain = ""

    def _run(self, x: Array, **_: Any) -> tuple[Array, ...]:
        given = attributes(self.onnx_node)
        window = _Window(x.shape[2:], given)
        order = x.shape[:1:-1] if given.get("storage_order") else x.shape[2:]
        places = np.arange(math.prod(order)).reshape(order)
        places = places.T if given.get("storage_order") else places
        starts = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * places.ndim) * places.size
        least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        parts = zip(window.parts(x, least), window.parts(starts + places, 0), strict=True)
        best, where = next(parts)
        for value, place in parts:
            larger = (value > best) | (np.isnan(value) & ~np.isnan(best))
            best, where = np.where(larger, value, best), np.where(larger, place, where)
        return (best, where)[: len(self.onnx_node.output)]


class _Window:
    """A pooling window over an image, from the attributes of its node; ``padded``: the image has its padding."""

    def __init__(self, sizes: tuple[int, ...], given: dict[str, Any], padded: bool = False) -> None:
        rank, self.kernel = len(sizes), given["kernel_shape"]
        self.strides, self.dilations = (given.get(name, [1] * rank) for name in ("strides", "dilations"))
        spans = [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        flat = given.get("pads", [0] * 2 * rank)
        self.pads = list(zip(flat[:rank], flat[rank:], strict=True))
        if bytes(given.get("auto_pad", b"")).startswith(b"SAME"):
            totals = [max(-(-s // t) * t - t + w - s, 0) for s, t, w in zip(sizes, self.strides, spans, strict=True)]
            halves = [t // 2 if given["auto_pad"] == b"SAME_UPPER" else -(-t // 2) for t in totals]
            self.pads = [(h, t - h) for h, t in zip(halves, totals, strict=True)]
        if padded:
            self.pads = [(0, 0)] * rank
        self.counts = []
        for s, (low, high), span, t in zip(sizes, self.pads, spans, self.strides, strict=True):
            up = bool(given.get("ceil_mode"))
            room = s + low + high - span
            count = -(-room // t) + 1 if up or room < 0 else room // t + 1
            self.counts.append(count - 1 if up and (count - 1) * t >= s + low else count)

    def parts(self, image: Array, padding: Any) -> Iterator[Array]:
        """For each place in the window, what lies there, for all windows; ``padding`` outside of the image."""
        axes = list(
            zip(self.counts, self.strides, self.dilations, self.kernel, self.pads, image.shape[2:], strict=True)
        )
        around = [(low, max((m - 1) * t + d * (k - 1) + 1 - low - s, 0)) for m, t, d, k, (low, _), s in axes]
        wide = np.pad(image, [(0, 0), (0, 0), *around], constant_values=padding)
        for at in np.ndindex(*self.kernel):
            cut = [slice(i * d, i * d + (m - 1) * t + 1, t) for i, (m, t, d, *_) in zip(at, axes, strict=True)]
            yield wide[tuple(itertools.chain((slice(None),) * 2, cut))]


class AveragePool(OpRun):
    op_domain = ""

    def _run(self, x: Array, **_: Any) -> tuple[Array]:
        given = attributes(self.onnx_node)
        window = _Window(x.shape[2:], given)
        wide = np.float32 if x.dtype == np.float16 else x.dtype
        total = np.asarray(sum(window.parts(x.astype(wide), 0)))
        counted = np.pad(np.ones(x.shape[2:]), window.pads, constant_values=bool(given.get("count_include_pad")))
        count = sum(_Window(counted.shape, given, padded=True).parts(counted[None, None], 0))
        same: tuple[Any, ...] = (..., *map(slice, total.shape[2:]))
        return (np.asarray(total / np.asarray(count)[same], x.dtype),)


class LpPool(OpRun):
    op_domain = ""

    def _run(self, x: Array, **_: Any) -> tuple[Array]:
        given = attributes(self.onnx_node)
        p, wide = given.get("p", 2), np.float32 if x.dtype == np.float16 else x.dtype
        total = sum(np.abs(part) ** p for part in _Window(x.shape[2:], given).parts(x.astype(wide), 0))
        return (np.asarray(total ** (1 / p), x.dtype),)


class GlobalLpPool(OpRun):
    op_domain = ""

    def _run(self, x: Array, **_: Any) -> tuple[Array]:
        p = next((a.i for a in self.onnx_node.attribute if a.name == "p"), 2)
        wide = np.abs(x.astype(np.float32 if x.dtype == np.float16 else x.dtype))
        total = (wide**p).sum(tuple(range(2, x.ndim)), keepdims=True)
        return (np.asarray(total ** (1 / p), x.dtype),)


class _Flat(OpRun):
    """Before opset 13 over all axes from the given one on; subclasses act on rows."""

    op_domain = ""

    def rows(self, x: Array) -> Array:
        raise NotImplementedError

    def _run(self, x: Array, **_: Any) -> tuple[Array]:
        old = int(self.run_params["opsets"][""]) < 13
        axis = next((a.i for a in self.onnx_node.attribute if a.name == "axis"), 1 if old else -1)
        if x.ndim == 0 or x.size == 0:
            return (x if x.size == 0 else self.rows(x.reshape(1, 1)).reshape(()),)
        moved = x if old else np.moveaxis(x, axis, -1)
        width = math.prod(x.shape[axis % x.ndim :]) if old else x.shape[axis]
        found = self.rows(moved.reshape(-1, width)).reshape(moved.shape).astype(x.dtype)
        return (found if old else np.moveaxis(found, -1, axis),)


class Softmax(_Flat):
    def rows(self, x: Array) -> Array:
        powers = np.exp(x.astype(np.promote_types(x.dtype, "float32")) - x.max(1, keepdims=True))
        return np.asarray(powers / powers.sum(1, keepdims=True))


class LogSoftmax(_Flat):
    def rows(self, x: Array) -> Array:
        shifted = x.astype(np.promote_types(x.dtype, "float32")) - x.max(1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


class Hardmax(_Flat):
    def rows(self, x: Array) -> Array:
        return np.asarray(np.eye(x.shape[1], dtype=x.dtype)[x.argmax(1)])


class LayerNormalization(_LayerNormalization):
    op_domain = ""

    def _run(self, x: Array, *operands: Array, **given: Any) -> tuple[Array, ...]:  # type: ignore[override]
        if any(np.broadcast_shapes(x.shape, a.shape) != x.shape for a in operands if a is not None):
            raise ValueError("a scale larger than what is scaled")
        found: Any = super()._run(x, *operands, **given)  # type: ignore[no-untyped-call]
        return tuple(found)


class BatchNormalization(OpRun):
    op_domain = ""

    def _run(self, x: Array, *parameters: Array, **_: Any) -> tuple[Array]:
        epsilon = next((a.f for a in self.onnx_node.attribute if a.name == "epsilon"), float(np.float32(1e-5)))
        scale, bias, mean, var = (p.reshape(-1, *[1] * (x.ndim - 2)) for p in parameters)
        return (np.asarray((x - mean) / np.sqrt(var + epsilon) * scale + bias, x.dtype),)


class ConvTranspose(OpRun):
    """x: (N, C, image...), w: (C, M / groups, kernel...).  Every tap adds a grid of products to the result."""

    op_domain = ""

    def _run(self, x: Array, w: Array, b: Array | None = None, **_: Any) -> tuple[Array]:
        given = attributes(self.onnx_node)
        image, kernel, groups = np.array(x.shape[2:]), np.array(w.shape[2:]), given.get("group", 1)
        one = np.ones_like(image)
        strides, dilations = np.array(given.get("strides", one)), np.array(given.get("dilations", one))
        full = (image - 1) * strides + (kernel - 1) * dilations + 1
        before, extent = _transposed_extent(full, image * strides, given)
        wide, flat = np.promote_types(x.dtype, "float32"), w.reshape(*w.shape[:2], int(kernel.prod()))
        grids = np.zeros((len(x), w.shape[1] * groups, *np.maximum(full, before + extent)), wide)
        by_group = zip(
            *(np.split(*a) for a in ((x.astype(wide), groups, 1), (flat, groups), (grids, groups, 1))), strict=True
        )
        for part, weight, total in by_group:
            for i, tap in enumerate(np.ndindex(*kernel)):
                start = dilations * tap
                products = np.einsum("nc...,cm->nm...", part, weight[:, :, i])
                total[_box(start, start + strides * image, strides)] += products
        found = grids[_box(before, before + extent, one)]
        return ((found if b is None else found + b.reshape(-1, *one)).astype(x.dtype),)


def _box(start: Array, stop: Array, step: Array) -> tuple[Any, ...]:
    """The index of some pixels in all images."""
    return (slice(None), slice(None), *map(slice, start, stop, step))


def _transposed_extent(full: Array, same: Array, given: dict[str, Any]) -> tuple[Array, Array]:
    """What is cut off in front of the ``full`` image, and the extent of what is kept."""
    count, mode = len(full), given.get("auto_pad", b"NOTSET")
    extra = np.array(given.get("output_padding", 0 * full))
    if not mode.startswith(b"SAME"):
        pads = np.array(given.get("pads", [0] * (2 * count)) if mode == b"NOTSET" else [0] * (2 * count))
        return pads[:count], full + extra - pads[:count] - pads[count:]
    cut = full + extra - same
    return (cut // 2 if mode == b"SAME_UPPER" else cut - cut // 2), same


class GlobalMaxPool(OpRun):
    op_domain = ""

    def _run(self, x: Array, **_: Any) -> tuple[Array]:
        return (x.max(tuple(range(2, x.ndim)), keepdims=True),)


MENDED: list[type[Any]] = [
    RNN,
    GRU,
    LSTM,
    LRN,
    LpNormalization,
    MaxPool,
    AveragePool,
    LpPool,
    GlobalLpPool,
    GlobalMaxPool,
    Softmax,
    LogSoftmax,
    Hardmax,
    LayerNormalization,
    BatchNormalization,
    ConvTranspose,
    *PLACES,
    *ROWS,
]
