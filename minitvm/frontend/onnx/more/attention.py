"""Attention as ONNX Runtime's optimisers fuse it, domain ``com.microsoft``: grouped-query attention and its like."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minitvm.frontend.onnx.matmul import matmul
from minitvm.frontend.onnx.more.contrib import contrib_op, only
from minitvm.frontend.onnx.more.contrib_quantized import quantized_projection
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, emit_many, rank, single
from minitvm.frontend.onnx.tensor import integers, positions, reshaped
from minitvm.ir.dims import Dim, is_equal, is_less
from minitvm.ir.expr import Constant, Expr

NEVER = float(np.finfo(np.float32).min)
"""What is added to the score of a place that is not looked at."""


@dataclass(frozen=True)
class Heads:
    """Queries (batch, heads, length, size), keys and values (batch, heads, places, size) of one attention."""

    query: Expr
    key: Expr
    value: Expr

    @property
    def batch(self) -> int:
        return self.query.shape[0]

    @property
    def length(self) -> int:
        return self.query.shape[2]

    @property
    def places(self) -> int:
        return self.key.shape[2]

    def scores(self, node: OnnxNode, masks: Sequence[Expr | None]) -> Expr:
        """q k' * scale + masks, (batch, heads, length, places); ``softcap`` bounds the products first."""
        q, k = single(self.query), single(self._shared(self.key))
        scale = node.attr("scale", 0.0) or 1 / math.sqrt(q.shape[3])
        scores = matmul(node, q * scale, emit("transpose", k, axes=(0, 1, 3, 2)))
        cap = node.attr("softcap", 0.0)
        scores = emit("tanh", scores / cap) * cap if cap else scores
        for mask in masks:
            scores = scores if mask is None else scores + single(mask)
        return scores

    def _shared(self, x: Expr) -> Expr:
        """Keys or values, once for each head of the queries."""
        repeats = self.query.shape[1] // x.shape[1]
        return emit("repeat", x, repeats=repeats, axis=1) if repeats > 1 else x

    def mixed(self, node: OnnxNode, shares: Expr) -> Expr:
        """Values by their shares (batch, heads, length, places), (batch, length, heads * size)."""
        merged = emit("transpose", matmul(node, shares, single(self._shared(self.value))), axes=(0, 2, 1, 3))
        return cast(reshaped(merged, [*merged.shape[:2], math.prod(merged.shape[2:])]), self.query.dtype)

    def attend(self, node: OnnxNode, masks: Sequence[Expr | None]) -> Expr:
        return self.mixed(node, emit("nn.softmax", self.scores(node, masks), axis=3))


def apart(x: Expr, heads: int) -> Expr:
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    batch, length, width = x.shape
    return emit("transpose", reshaped(x, [batch, length, heads, width // heads]), axes=(0, 2, 1, 3))


def _continued(past: Expr | None, x: Expr) -> Expr:
    return x if past is None else emit("concatenate", [past, x], axis=2)


def refused(node: OnnxNode, inputs: dict[int, str], attributes: Sequence[str]) -> None:
    for index, name in inputs.items():
        if node.get(index) is not None:
            raise node.fail(f"input {name!r} is not supported")
    for name in attributes:
        if node.attr(name, 0) not in (0, "NONE"):
            raise node.refuse(name)


# --- masks: what is added to scores (batch, heads, length, places) ----------------------------------------------


def _causal(node: OnnxNode, heads: Heads, past: int) -> Expr | None:
    """Every position, the first of which comes after ``past`` places, looks at itself and what came before; the last
    one at all there is, whatever comes after it, as in ONNX Runtime."""
    if not node.attr("unidirectional", 0):
        return None
    if not isinstance(heads.places, int) or not isinstance(heads.length, int):
        return _causal_of_any(heads.length, heads.places, past)
    place, own = np.arange(heads.places), np.arange(heads.length)[:, None] + past
    own[-1:] = heads.places - 1
    return Constant(np.where(place <= own, 0, NEVER).astype(np.float32))


def _causal_of_any(length: Dim, places: Dim, past: Dim) -> Expr:
    row = reshaped(positions(length), [length, 1])
    own = emit("where", emit("equal", row, length - 1), places - 1, row + past)
    return _added(emit("less_equal", reshaped(positions(places), [1, places]), own))


def _added(seen: Expr) -> Expr:
    """What is added to the scores of places that are ``seen`` or not."""
    return emit("where", seen, Constant(np.float32(0)), Constant(np.float32(NEVER)))


def _padding(node: OnnxNode, mask: Expr | None, heads: Heads) -> Expr | None:
    """A mask of ones and zeros (batch, places), (batch, length, places) or (batch, 1, most, most), or ends of the
    sequences (batch,), or those and, behind them, their starts, or where sequences begin when they are put together."""
    if mask is None:
        return None
    off, places, mask = node.attr("mask_filter_value", -10000.0), heads.places, cast(mask, "int64")
    if rank(mask) == 1:
        ends, *starts = _ends(node, mask, heads.batch)
        place = reshaped(positions(places), [1, places])
        kept = emit("less", place, ends)
        for start in starts:
            kept = emit("logical_and", kept, emit("greater_equal", place, start))
    else:
        kept = emit("greater", mask, 0)
    shape = [heads.batch, 1, *kept.shape[1:-1], places] if rank(kept) == 3 else [heads.batch, 1, 1, places]
    return reshaped(emit("where", kept, Constant(np.float32(0)), Constant(np.float32(off))), shape)


def _ends(node: OnnxNode, mask: Expr, batch: Dim) -> list[Expr]:
    """Where sequences end, (batch, 1), and where they start, if the mask says so."""
    count = mask.tensor_type.shape[0]
    if is_equal(count, 2 * batch):
        return emit_many("split", reshaped(mask, [2 * batch, 1]), indices_or_sections=2, axis=0)
    if is_equal(count, 3 * batch + 2):
        mask = emit("strided_slice", mask, begin=(0,), end=(batch,), axes=(0,))
    elif not is_equal(count, batch):
        raise node.fail(f"a mask of {count} numbers for {batch} sequences is not supported")
    return [reshaped(mask, [batch, 1])]


# --- attention --------------------------------------------------------------------------------------------------


@contrib_op("Attention", "QAttention")
def attention(node: OnnxNode) -> list[Expr | None]:
    """Inputs: x (batch, length, width), weights for queries, keys and values beside each other, their bias, the mask,
    the past (2, batch, heads, length, size), what is added to the scores.  QAttention multiplies in integers."""
    if node.op_type == "QAttention":
        projected, mask, past, bias = quantized_projection(node), node.get(5), node.get(8), None
    else:
        refused(node, {6: "past_sequence_length"}, ())
        projected, mask, past, bias = matmul(node, node[0], node[1]), node.get(3), node.get(4), node.get(5)
        projected = projected if node.get(2) is None else emit("add", projected, node[2])
    refused(node, {}, ("do_rotary", "past_present_share_buffer"))
    count, sizes = node.require("num_heads"), node.attr("qkv_hidden_sizes")
    cuts = 3 if sizes is None else tuple(int(c) for c in np.cumsum(sizes[:2]))
    query, key, value = (apart(x, count) for x in emit_many("split", projected, indices_or_sections=cuts, axis=2))
    if past is not None:
        key, value = (
            _continued(only(node.as_onnx("Gather", past, integers(i), axis=0)), x) for i, x in enumerate((key, value))
        )
    heads = Heads(query, key, value)
    before = heads.places - heads.length
    result = heads.attend(node, [_padding(node, mask, heads), _causal(node, heads, before), bias])
    if node.wants(1) and key.shape != value.shape:
        raise node.fail(
            f"keys {key.tensor_type} and values {value.tensor_type} differ in size: 'present' cannot hold both"
        )
    return [result, emit("stack", [key, value], axis=0) if node.wants(1) else None]


@contrib_op("MultiHeadAttention")
def multi_head_attention(node: OnnxNode) -> list[Expr]:
    """Inputs: query, key, value (batch, length, width), or packed beside each other for each head, or keys and values
    of an encoder (batch, heads, length, size); bias, padding, what is added to the scores, past keys and values."""
    count = node.require("num_heads")
    query, key, value = _projections(node, count)
    if node.get(8) is not None:
        return _into_buffers(node, query, key, value)
    key, value = _continued(node.get(6), key), _continued(node.get(7), value)
    heads = Heads(query, key, value)
    before = 0 if node.get(6) is None else node[6].shape[2]
    masks = [_padding(node, node.get(4), heads), _causal(node, heads, before), node.get(5)]
    return [heads.attend(node, masks), key, value]


def _into_buffers(node: OnnxNode, query: Expr, key: Expr, value: Expr) -> list[Expr]:
    """Keys and values go behind the first ``past_sequence_length`` places of buffers, which are the results."""
    batch, length, total = query.shape[0], query.shape[2], node[6].shape[2]
    before = emit("broadcast_to", reshaped(cast(node[8], "int64"), [1, 1]), shape=(batch, 1))
    key, value = (written(node[i], x, before, total, clears=False) for i, x in ((6, key), (7, value)))
    place = integers(np.arange(total))
    heads = Heads(query, *(_of_beams(node, x, emit("less", place, before)) for x in (key, value)))
    last = reshaped(before, [batch, 1, 1, 1])
    last = last + integers(np.arange(length)[:, None] if node.attr("unidirectional", 0) else [length - 1])
    seen = _added(emit("less_equal", place, last))
    return [heads.attend(node, [seen, _padding(node, node.get(4), heads), node.get(5)]), key, value]


def _of_beams(node: OnnxNode, x: Expr, is_past: Expr) -> Expr:
    """Keys or values (batch * beams, heads, places, size), past ones from the beam that ``cache_indirection`` (batch,
    beams, places) names."""
    beam = node.get(9)
    if beam is None:
        return x
    own, (count, places) = np.arange(x.shape[0])[:, None], beam.shape[1:]
    named = cast(reshaped(beam, [-1, places]), "int64") + integers(own // count * count)
    source = reshaped(emit("where", is_past, named, integers(own)), [x.shape[0], 1, places, 1])
    return emit("gather", x, emit("broadcast_to", source, shape=x.shape), axis=0)


def _projections(node: OnnxNode, count: int) -> list[Expr]:
    """Queries, keys and values by heads, with the bias."""
    if node.get(1) is None:  # packed: (batch, length, heads, 3, size)
        parts = _unpacked(node[0])
    elif node.get(2) is None:
        parts = [node[0], *_unpacked(node[1])]
    else:
        parts = node.operands()[:3] if len(node.inputs) == 3 else [node[i] for i in range(3)]
    given = node.get(3)
    if given is not None:
        widths = [p.shape[-1] if rank(p) == 3 else p.shape[1] * p.shape[3] for p in parts]
        cuts = (widths[0], widths[0] + widths[1])
        biases = emit_many("split", given, indices_or_sections=cuts, axis=0)
        parts = [p if rank(p) == 4 else emit("add", p, b) for p, b in zip(parts, biases, strict=True)]
    return [p if rank(p) == 4 else apart(p, count) for p in parts]


def _unpacked(x: Expr) -> list[Expr]:
    """(batch, length, heads, parts, size) as so many (batch, length, heads * size)."""
    batch, length, count, parts, size = x.shape
    found = emit_many("split", x, indices_or_sections=parts, axis=3)
    return [reshaped(part, [batch, length, count * size]) for part in found]


def written(past: Expr | None, x: Expr, before: Expr, total: Dim, clears: bool) -> Expr:
    """``x`` behind the first ``before`` places of the past of each sequence, in a buffer of its length or of the total
    length; then zeros where ``clears``, else the rest of the past."""
    if past is None:
        return x
    (batch, heads, length, size), held = x.shape, past.shape[2]
    if not is_less(held, total):
        return emit("tensor_scatter", past, x, reshaped(before, [batch]), axis=2, clears=clears)
    place = reshaped(positions(total), [1, total])
    behind = emit("minimum", emit("maximum", place - before, 0), length - 1) + held
    source = emit("where", emit("less", place, before), emit("minimum", place, held - 1), behind)
    written = emit("less", place, before + length)
    source, is_written = (reshaped(p, [batch, 1, total, 1]) for p in (source, written))
    source = emit("broadcast_to", source, shape=(batch, heads, total, size))
    found = emit("gather", emit("concatenate", [past, x], axis=2), source, axis=2)
    return emit("where", is_written, found, 0)


# --- rotary places ----------------------------------------------------------------------------------------------


def rotated(node: OnnxNode, x: Expr, places: Expr, cos: Expr, sin: Expr, even: bool, size: int = 0) -> Expr:
    """Pairs of the last axis rotated by an angle that depends on the position (Su et al. 2021, arXiv:2104.09864).

    x: (batch, heads, length, size), places: (batch, length), cos, sin: (places, half of what is rotated).  Pairs are
    neighbours (``even``), or lie half of what is rotated apart.
    """
    half = cos.shape[1] if not size else size // 2
    rest: list[Expr] = []
    if 2 * half != x.shape[3]:
        x, *rest = emit_many("split", x, indices_or_sections=(2 * half,), axis=3)
    pairs = reshaped(x, [*x.shape[:3], half, 2] if even else [*x.shape[:3], 2, half])
    a, b = emit_many("split", pairs, indices_or_sections=2, axis=4 if even else 3)
    shape = [*places.shape[:1], 1, *places.shape[1:], *((half, 1) if even else (1, half))]
    c, s = (reshaped(only(node.as_onnx("Gather", table, places, axis=0)), shape) for table in (cos, sin))
    rotated_pairs = emit("concatenate", [a * c - b * s, b * c + a * s], axis=4 if even else 3)
    rotated_pairs = reshaped(rotated_pairs, list(x.shape))
    return emit("concatenate", [rotated_pairs, *rest], axis=3) if rest else rotated_pairs


@contrib_op("RotaryEmbedding")
def rotary_embedding(node: OnnxNode) -> Expr:
    """Inputs: x (batch, length, width) or by heads, the places or where they start, tables of cosines and sines.

    ``scale`` and ``is_packed_batching`` change nothing in ONNX Runtime.
    """
    x, places, cos, size = node[0], cast(node[1], "int64"), node[2], node.attr("rotary_embedding_dim", 0)
    if x.shape[-1] == 0:  # nothing that could be rotated, by no heads
        return x
    width = node.attr("num_heads", 0) or (x.shape[-1] // (2 * cos.shape[1]) if rank(x) == 3 else 1)
    by_heads = apart(x, width) if rank(x) == 3 else x
    if rank(places) == 1:
        places = places + integers(np.arange(by_heads.shape[2])[None])
        batch, _, length, _ = by_heads.shape
        places = emit("broadcast_to", reshaped(places, [1, length]), shape=(batch, length))
    found = rotated(node, by_heads, places, cos, node[3], bool(node.attr("interleaved", 0)), size)
    return reshaped(emit("transpose", found, axes=(0, 2, 1, 3)), list(x.shape)) if rank(x) == 3 else found
