"""Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) as ONNX Runtime's GroupQueryAttention has it: caches
in buffers, of fewer bits, or of a window that moves along with the tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from minitvm.frontend.onnx.index import within
from minitvm.frontend.onnx.more.attention import NEVER, Heads, apart, refused, rotated, written
from minitvm.frontend.onnx.more.contrib import contrib_op
from minitvm.frontend.onnx.more.contrib_quantized import packed, unpacked
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, emit_many, scalar, single
from minitvm.frontend.onnx.tensor import positions, reshaped
from minitvm.ir.dims import Dim
from minitvm.ir.expr import Constant, Expr


@contrib_op("GroupQueryAttention")
def group_query_attention(node: OnnxNode) -> list[Expr]:
    """Heads share keys and values; sequences of a batch have lengths of their own, ``seqlens_k`` + 1 with the past.

    Keys and values are written behind those of the past, into buffers of its length or of the total length, or of a
    window that moves (``sliding_window_cache``).
    """
    refused(node, {14: "q_norm_weight", 15: "k_norm_weight", 16: "query_seqlens"}, ())
    query, key, value = _grouped(node)
    batch, length = query.shape[0], query.shape[2]
    lengths = cast(node[5], "int64") + 1
    if not node.attr("sliding_window_cache", 0):  # which has room for any
        lengths = within(node, positions(node.sizes(6, "the total length")[0]), lengths, (0,), lengths=True)
    ends = reshaped(lengths, [batch, 1])
    before = emit("maximum", ends - length, 0)  # shorter ones of a first batch begin at 0, too
    own = before + reshaped(positions(length), [1, length])  # (batch, length)
    if node.attr("do_rotary", 0):
        places, even = node.get(9) or own, bool(node.attr("rotary_interleaved", 0))
        query, key = (rotated(node, x, places, node[7], node[8], even) for x in (query, key))
    caches = [_Cache.of(node, *each) for each in (("k_quant_type", 12, key), ("v_quant_type", 13, value))]
    pasts, new = [node.get(i) for i in (3, 4)], [c.stored(x) for c, x in zip(caches, (key, value), strict=True)]
    look = _moving if node.attr("sliding_window_cache", 0) else _all_places
    held, read, place, bias = look(node, pasts, new, before, ends)
    heads = Heads(query, *(cache.read(x) for cache, x in zip(caches, read, strict=True)))
    own = reshaped(own, [batch, 1, length, 1])
    seen = emit("less_equal", place, own) if node.attr("causal", 1) else emit("less", place, heads.places)
    window = node.attr("local_window_size", -1)
    if window >= 0:
        seen = emit("logical_and", seen, emit("greater", place, own - window))
    scores = emit("where", seen, heads.scores(node, [bias]), NEVER)
    shares = _with_sink(node, scores)
    looked_at = emit("where", seen, scores, 0) if node.attr("qk_output", 0) == 1 else shares
    return [heads.mixed(node, shares), *held, cast(looked_at, query.dtype)]


_Looked: TypeAlias = "tuple[list[Expr], list[Expr], Expr, Expr | None]"
"""Caches as they are handed out and as they are read, (batch, heads, places, size), which places these are, and what is
added to their scores."""


def _all_places(node: OnnxNode, pasts: Sequence[Expr | None], new: Sequence[Expr], before: Expr, ends: Expr) -> _Looked:
    """Caches have a row for each token."""
    [total] = node.sizes(6, "the total length")
    held = [written(past, x, before, total, clears=True) for past, x in zip(pasts, new, strict=True)]
    read = [_first(x, total) for x in held]
    places = read[0].shape[2]
    return held, read, positions(places), _as_long(node.get(10), places)


def _moving(node: OnnxNode, pasts: Sequence[Expr | None], new: Sequence[Expr], before: Expr, ends: Expr) -> _Looked:
    """Caches have rows for the last tokens alone."""
    if pasts[0] is None or pasts[1] is None:
        raise node.fail("a cache of a window (sliding_window_cache) needs 'past_key' and 'past_value'")
    window = _Window(pasts[0].shape[2], node.require("local_window_size"), before, ends)
    read = [emit("concatenate", [past, x], axis=2) for past, x in zip(pasts, new, strict=True)]
    place, bias = window.places(new[0].shape[2]), node.get(10)
    if bias is not None:
        bias = _of_places(bias, place)
    return [window.kept(x) for x in read], read, place, bias


@dataclass(frozen=True)
class _Window:
    """Caches of ``room`` rows for the last tokens, at least a ``window`` of them.

    Of ``t`` tokens, what is kept are the last t while there is room, then t - g * ceil((t - room) / g) for the
    g = room - window + 1 rows that are given up at once, from the first row on.  ``before``, ``ends``: (batch, 1), the
    tokens of each sequence without and with the new ones.
    """

    room: Dim
    window: int
    before: Expr
    ends: Expr

    def first(self, tokens: Expr) -> Expr:
        """The token in the first row: (batch, 1)."""
        at_once = self.room - self.window + 1
        beyond = emit("maximum", tokens - self.room, 0)
        return emit("floor_divide", beyond + (at_once - 1), at_once) * at_once

    def places(self, length: Dim) -> Expr:
        """Which tokens those of a cache and, behind them, ``length`` new ones are: (batch, 1, 1, room + length).  Rows
        that hold none are of tokens that nobody has come to."""
        row = reshaped(positions(self.room), [1, self.room])
        old = self.first(self.before) + row
        old = emit("where", emit("less", old, self.before), old, _NOBODY)
        new = self.before + reshaped(positions(length), [1, length])
        found = emit("concatenate", [old, new], axis=1)
        return reshaped(found, [found.shape[0], 1, 1, found.shape[1]])

    def kept(self, all_: Expr) -> Expr:
        """The rows of the cache with the new tokens, of old and new ones (batch, heads, room + length, size); zeros
        behind them."""
        batch, heads, places, size = all_.shape
        token = self.first(self.ends) + reshaped(positions(self.room), [1, self.room])
        behind = emit("minimum", token - self.before + self.room, places - 1)
        source = emit("where", emit("less", token, self.before), token - self.first(self.before), behind)
        source, is_there = (reshaped(x, [batch, 1, self.room, 1]) for x in (source, emit("less", token, self.ends)))
        source = emit("broadcast_to", source, shape=(batch, heads, self.room, size))
        return emit("where", is_there, emit("gather", all_, source, axis=2), 0)


_NOBODY = 1 << 40


def _of_places(bias: Expr, place: Expr) -> Expr:
    """What is added to the scores of tokens (batch or 1, heads or 1, length, tokens), for those in ``place``."""
    (one, heads, length, tokens), (batch, _, _, places) = bias.shape, place.shape
    column = emit("broadcast_to", emit("minimum", place, tokens - 1), shape=(batch, heads, length, places))
    bias = bias if one == batch else emit("broadcast_to", bias, shape=(batch, heads, length, tokens))
    return emit("gather", bias, column, axis=3)


def _with_sink(node: OnnxNode, scores: Expr) -> Expr:
    """softmax beside one more score, of ``head_sink`` for each head or 0 (``smooth_softmax``), where there is one."""
    sink = node.get(11)
    if sink is None and not node.attr("smooth_softmax", 0) > 0:
        return emit("nn.softmax", scores, axis=3)
    batch, count, length, places = scores.shape
    more = Constant(np.zeros((1, 1, 1, 1), np.float32)) if sink is None else reshaped(single(sink), [1, count, 1, 1])
    more = emit("broadcast_to", more, shape=(batch, count, length, 1))
    shares = emit("nn.softmax", emit("concatenate", [scores, more], axis=3), axis=3)
    return emit("strided_slice", shares, begin=(0,), end=(places,), axes=(3,))


@dataclass(frozen=True)
class _Cache:
    """How keys or values are kept: ``bits`` each by ``scale``, whole tensors' or channels'; as they are with none."""

    scale: Expr | None
    bits: int

    @staticmethod
    def of(node: OnnxNode, kind: str, index: int, x: Expr) -> "_Cache":
        if node.attr(kind, "NONE") == "NONE":
            return _Cache(None, 0)
        scale, channels = node[index], [1, x.shape[1], 1, x.shape[3]]
        shape = [1] * 4 if node.attr(kind) == "PER_TENSOR" else channels
        return _Cache(reshaped(scale, shape), node.attr("kv_cache_bit_width", 8))

    def stored(self, x: Expr) -> Expr:
        """Of 4 bits two neighbours share a byte, the first in its lower half, each with 8 added."""
        if self.scale is None:
            return x
        most = 2 ** (self.bits - 1)
        steps = emit("clip", emit("round", single(x) / self.scale), a_min=float(-most), a_max=float(most - 1))
        if self.bits == 8:
            return cast(steps, "int8")
        return packed(steps + 8, self.bits)

    def read(self, held: Expr) -> Expr:
        if self.scale is None:
            return held
        steps = cast(held, "float32") if self.bits == 8 else cast(unpacked(held, 4, -1), "float32") - 8
        return steps * self.scale


def _grouped(node: OnnxNode) -> list[Expr]:
    """Queries, keys and values by heads; without keys all three lie beside each other."""
    count, shared = node.require("num_heads"), node.require("kv_num_heads")
    if node.get(1) is not None:
        return [apart(node[i], c) for i, c in enumerate((count, shared, shared))]
    size = node[0].shape[2] // (count + 2 * shared)
    cuts = (count * size, (count + shared) * size)
    parts = emit_many("split", node[0], indices_or_sections=cuts, axis=2)
    return [apart(p, c) for p, c in zip(parts, (count, shared, shared), strict=True)]


def _first(x: Expr, total: Dim) -> Expr:
    """The places of a buffer (batch, heads, places, size) that are in use."""
    return x if x.shape[2] == total else emit("strided_slice", x, begin=(0,), end=(total,), axes=(2,))


def _as_long(bias: Expr | None, places: int) -> Expr | None:
    """What is added to the scores, for places of the buffer that are not looked at too."""
    if bias is None or bias.shape[3] == places:
        return bias
    return emit("nn.pad", bias, scalar(0, bias), pad_width=((0, 0), (0, 0), (0, 0), (0, places - bias.shape[3])))
