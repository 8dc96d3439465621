"""Rows quantized block by block as they come, and their products by weights of 2, 4 or 8 bits in integers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, reduce

import numpy as np

from minitvm.ir.dims import Dim, ceil_divide, differ
from minitvm.ir.loop import (
    Binary,
    Buffer,
    LoopExpr,
    LoopKind,
    Stage,
    Stmt,
    as_index,
    const,
    intrin,
    maximum,
    minimum,
    select,
)
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.op import Fusion, Op, compute, max_over, sum_over
from minitvm.ir.ops._shape import buffer_type, shapes_differ
from minitvm.ir.types import TensorType, TupleType, as_tensor

LARGEST = 127
"""Of the bytes of a number that a row is rounded to; -128 is none of them."""

MOST_PARTS = 3
"""Bytes of a number, all of which float32 holds."""

PANEL = 16
"""Units whose weights lie side by side."""

BYTES = 4
"""Of a word."""

_AT_ONCE = 64
"""Panels that are made at a time."""

_FLOATS = ("float32", "float16")


class QuantizeBlocks(Op, name="qnn.quantize_blocks", fusion=Fusion.COMM_REDUCE, outputs=3):
    """Rows as int8, with a scale for each ``block`` numbers: the largest magnitude becomes 127, ties go to even.

    data: (..., k) float32 or float16 -> numbers: (..., b * block) int8, zeros behind the last one; scales: (..., b)
    float32; sums of the numbers of each block: (..., b) int32.  b is ceil(k / block).

    With ``parts`` a number has so many bytes, from the lowest on: numbers and sums are (parts, ...), and part p counts
    256**p.

    A block of zeros has the scale 0.  One with NaN or infinity has that scale, and zeros for numbers: their product is
    NaN.
    """

    block: int = 32
    parts: int = 1

    @property
    def _largest(self) -> int:
        return LARGEST * _ones(self.parts)

    def infer(self, data: TensorType) -> TupleType:
        if not data.rank or data.dtype not in _FLOATS:
            raise self.reject(f"the input must be rows of float32 or float16, (..., features), not {data}")
        if self.block < 1 or not 1 <= self.parts <= MOST_PARTS:
            raise self.reject(f"block={self.block} numbers of {self.parts} bytes have no scale")
        blocks = ceil_divide(data.shape[-1], self.block)
        lead, rows = (self.parts,) * (self.parts > 1), data.shape[:-1]
        numbers = TensorType((*lead, *rows, blocks * self.block), "int8")
        return TupleType((numbers, TensorType((*rows, blocks), "float32"), TensorType((*lead, *rows, blocks), "int32")))

    def reference(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        *rows, features = data.shape
        blocks = -(-features // self.block)
        whole = np.zeros((*rows, blocks * self.block), "float32")
        whole[..., :features] = data
        apart = whole.reshape(*rows, blocks, self.block)
        scales = np.max(np.abs(apart), axis=-1, initial=0) / np.float32(self._largest)
        with np.errstate(all="ignore"):
            steps = np.rint(apart / scales[..., None])
        steps[~((scales > 0) & np.isfinite(scales))] = 0
        whole_numbers = np.clip(steps, -self._largest, self._largest).astype("int32")
        found = [(whole_numbers + 128 * _ones(self.parts) >> 8 * p & 255) - 128 for p in range(self.parts)]
        numbers = np.stack(found).astype("int8") if self.parts > 1 else found[0].astype("int8")
        return numbers.reshape(*numbers.shape[:-2], whole.shape[-1]), scales, numbers.sum(axis=-1, dtype="int32")

    def compute(self, data: Buffer) -> tuple[Stage, ...]:
        *rows, features = data.shape
        blocks, size = ceil_divide(features, self.block), self.block

        def at(*i: LoopExpr) -> LoopExpr:
            """An element in single precision; zero behind the last one."""
            element = data[i].astype("float32")
            return element if features % size == 0 else select(i[-1] < features, element, 0.0)

        def of_block(i: tuple[LoopExpr, ...], r: LoopExpr) -> tuple[LoopExpr, ...]:
            return (*i[:-1], i[-1] * size + r)

        def scale(*i: LoopExpr) -> LoopExpr:
            return max_over(size, lambda r: intrin("abs", at(*of_block(i, r)))) / float(self._largest)

        def number(*i: LoopExpr) -> LoopExpr:
            block = (*i[:-1], i[-1] // size)
            return self.number(at(*i), scales[block])

        def part(p: LoopExpr, *i: LoopExpr) -> LoopExpr:
            shifted = Binary("shr", whole[i] + 128 * _ones(self.parts), p.astype("int32") * 8)
            return ((shifted & 255) - 128).astype("int8")

        def total(*i: LoopExpr) -> LoopExpr:
            return sum_over(size, lambda r: numbers[of_block(i, r)].astype("int32"))

        scales = _kept((*rows, blocks), scale)
        whole = _kept((*rows, blocks * size), number)
        numbers = whole if self.parts == 1 else _kept((self.parts, *whole.shape), part)
        results = (compute(stage.shape, lambda *i, stage=stage: stage[i]) for stage in (numbers, scales))
        return (*results, compute((*numbers.shape[:-1], blocks), total))

    def number(self, element: LoopExpr, scale: LoopExpr) -> LoopExpr:
        """An element in steps of a scale."""
        largest = float(self._largest)
        steps = minimum(maximum(intrin("round", element / scale), -largest), largest)
        is_sound = Binary("and", scale > 0.0, scale < float("inf"))
        return select(is_sound, steps, 0.0).astype("int8" if self.parts == 1 else "int32")


def _ones(parts: int) -> int:
    """One in each byte."""
    return sum(256**p for p in range(parts))


def _kept(shape: Sequence[Dim], element: Callable[..., LoopExpr]) -> Stage:
    """A stage that has memory of its own: it is read by more than one result."""
    return replace(compute(shape, element), kept=True)


class DenseBlocks(Op, name="qnn.dense_blocks", fusion=Fusion.OUT_ELEMWISE_FUSABLE, lowered_by_template=True):
    """Rows by weights of 2, 4 or 8 ``bits``, both with a scale for each ``block`` numbers.  Products of one are added
    up in integers; ``(data . weight - zero_point * data_sum) * data_scale * weight_scale`` of all blocks in float32.

    data: words of ``qnn.quantize_blocks``'s numbers of so many ``parts``, (parts * m, b * block / 4) int32;
    data_scale: (m, b) float32; data_sum: (parts * m, b) int32; weight: (ceil(units / 16), b * block * bits / 32, 16)
    int32; weight_scale: (ceil(units / 16), b, 16) float32 or float16; zero_point: uint8, as weight_scale or (): panels
    of ``units`` units (``qnn.block_panels``) -> (m, units) of weight_scale's dtype.
    """

    units: int
    block: int = 32
    bits: int = 4
    parts: int = 1

    @property
    def per_word(self) -> int:
        """Words of bytes that a word of weights holds, at so many bits' distance."""
        return 8 // self.bits

    @property
    def words(self) -> int:
        """Words of weights in a block."""
        return self.block // (BYTES * self.per_word)

    def infer(
        self,
        data: TensorType,
        data_scale: TensorType,
        data_sum: TensorType,
        weight: TensorType,
        weight_scale: TensorType,
        zero_point: TensorType,
    ) -> TensorType:
        if self.bits not in (2, 4, 8) or self.block < 1 or self.block % (BYTES * self.per_word) or self.units < 0:
            hint = "numbers are of 2, 4 or 8 bits, and a block is a multiple of 16, 8 or 4 of them"
            raise self.reject(f"bits={self.bits}, block={self.block}, units={self.units} say nothing", hint=hint)
        if data_scale.rank != 2 or weight_scale.rank != 3 or weight_scale.dtype not in _FLOATS:
            names = " or ".join(_FLOATS)
            raise self.reject(f"scales must be of rank 2 and 3, of {names}, not {data_scale} and {weight_scale}")
        (rows, blocks), panels = data_scale.shape, -(-self.units // PANEL)
        words = self.block // BYTES
        scales = weight_scale.with_shape((panels, blocks, PANEL))
        parts = self.parts * rows
        expected = {
            "data": (data, TensorType((parts, blocks * words), "int32")),
            "data_scale": (data_scale, data_scale.with_dtype("float32")),
            "data_sum": (data_sum, TensorType((parts, blocks), "int32")),
            "weight": (weight, TensorType((panels, blocks * self.words, PANEL), "int32")),
            "weight_scale": (weight_scale, scales),
            "zero_point": (zero_point, scales.with_dtype("uint8") if zero_point.rank else TensorType((), "uint8")),
        }
        for name, (type_, wanted) in expected.items():
            if type_.dtype != wanted.dtype or shapes_differ(type_.shape, wanted.shape):
                raise self.reject(f"{name} must be {wanted}, not {type_}")
        return TensorType((rows, self.units), weight_scale.dtype)

    def flops(self, args: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        """Two per multiplication."""
        return 2.0 * BYTES * self.parts * results[0].size * args[0].static_shape[1]

    def reference(
        self,
        data: np.ndarray,
        data_scale: np.ndarray,
        data_sum: np.ndarray,
        weight: np.ndarray,
        weight_scale: np.ndarray,
        zero_point: np.ndarray,
    ) -> np.ndarray:
        (rows, blocks), count = data_scale.shape, PANEL * len(weight)
        counts = 256.0 ** np.arange(self.parts)
        apart = np.ascontiguousarray(data).view("int8").reshape(self.parts, rows, blocks, self.block)
        x, sums = (np.tensordot(counts, p, 1) for p in (apart, data_sum.reshape(self.parts, rows, blocks)))
        codes = _codes_of(weight, self.bits).reshape(count, blocks, self.block)
        total = np.zeros((rows, count))
        with np.errstate(all="ignore"):
            for b in range(blocks):
                zero, scale = (p[:, b].ravel() if p.ndim else p for p in (zero_point, weight_scale))
                dots = x[:, b] @ codes[:, b].T.astype("float64")
                exact = dots - np.multiply.outer(sums[:, b], np.broadcast_to(zero, count).astype("float64"))
                total += exact * np.multiply.outer(data_scale[:, b].astype("float64"), scale.astype("float64"))
            return np.asarray(total[:, : self.units].astype("float32").astype(weight_scale.dtype))

    def statements(
        self,
        data: Buffer,
        data_scale: Buffer,
        data_sum: Buffer,
        weight: Buffer,
        weight_scale: Buffer,
        zero_point: Buffer,
        result: Buffer,
    ) -> Stmt:
        (rows, units), blocks = result.shape, data_scale.shape[1]
        total, exact = (Buffer(name, (), "float32", "local") for name in ("total", "exact"))
        dot, code = Buffer("dot", (), "int32", "local"), LoopBuilder()
        with code.loop(rows * units, "element", LoopKind.PARALLEL) as p, code.memory(total, exact, dot):
            i, j = p // units, p % units
            panel, lane = j // PANEL, j % PANEL
            code.store(total, (), const(0, "float32"))
            with code.loop(blocks, "block") as b:
                code.store(exact, (), const(0, "float32"))
                with code.loop(self.parts, "above") as above:
                    row = (self.parts - 1 - above) * as_index(rows) + i
                    zero = zero_point[(panel, b, lane) if zero_point.shape else ()].astype("int32")
                    self._dot(code, dot, weight, data, (panel, b, lane), row)
                    more = (dot[()] - zero * data_sum[row, b]).astype("float32")
                    code.store(exact, (), exact[()] * 256.0 + more)
                scale = data_scale[i, b] * weight_scale[panel, b, lane].astype("float32")
                code.store(total, (), total[()] + exact[()] * scale)
            code.store(result, (i, j), total[()].astype(result.dtype))
        return code.stmt

    def _dot(
        self, code: LoopBuilder, dot: Buffer, weight: Buffer, data: Buffer, at: Sequence[LoopExpr], row: LoopExpr
    ) -> None:
        """The products of a panel's block for one of its units, added up."""
        panel, block, lane = at
        code.store(dot, (), const(0, "int32"))
        with code.loop(self.words, "word") as q, code.loop(self.per_word, "part") as part:
            place = block * self.words + q
            number = self.part(weight[panel, place, lane], part)
            code.store(dot, (), intrin("dot4", number, data[row, place * self.per_word + part], dot[()]))

    def part(self, word: LoopExpr, at: LoopExpr | int) -> LoopExpr:
        """Four numbers, a byte each, of a word of weights."""
        if self.per_word == 1:
            return word
        distance = at.astype("int32") * self.bits if isinstance(at, LoopExpr) else const(at * self.bits, "int32")
        mask = (2**self.bits - 1) * 0x01010101
        return Binary("shr", word, distance) & const(mask, "int32")


class BlockPanels(Op, name="qnn.block_panels", fusion=Fusion.INJECTIVE):
    """Weights, scales or zero points for ``qnn.dense_blocks``: 16 units side by side, zeros for those that are missing.

    data: (units, n) -> (ceil(units / 16), n, 16).  With ``bits``, 2, 4 or 8, data is uint8 with as many numbers to a
    byte as it holds, lowest bits first -> (ceil(units / 16), n / 4, 16) int32: words of 32 / bits neighbours, whose
    bits are put so that a shift and a mask give words of four.
    """

    bits: int = 0

    def infer(self, data: TensorType) -> TensorType:
        packed = self.bits in (2, 4, 8) and data.dtype == "uint8"
        if data.rank != 2 or not (packed or (self.bits == 0 and data.dtype in ("uint8", *_FLOATS))):
            hint = f"(units, n) of uint8, {' or '.join(_FLOATS)}; of uint8 also with bits=2, 4 or 8"
            raise self.reject(f"bits={self.bits} of {data} make no panels", hint=hint)
        units, count = data.shape
        if packed and differ(count % BYTES, 0):
            raise self.reject(f"{count} bytes of a unit are no whole words of {BYTES}")
        blocks = ceil_divide(units, PANEL)
        return TensorType(
            (blocks, count // BYTES, PANEL) if packed else (blocks, count, PANEL), "int32" if packed else data.dtype
        )

    def reference(self, data: np.ndarray) -> np.ndarray:
        return panels_of_words(data, self.bits) if self.bits else panels(data)

    def compute(self, data: Buffer) -> Stage:
        units, shape = data.shape[0], as_tensor(self.infer(buffer_type(data))).extents

        def number(j: LoopExpr, q: LoopExpr, place: int) -> LoopExpr:
            byte, at = divmod(self.bits * place, 8)
            found = Binary("shr", data[j, q * BYTES + byte].astype("int32"), const(at, "int32"))
            part, to = divmod(place, BYTES)
            return Binary("shl", found & (2**self.bits - 1), const(8 * to + self.bits * part, "int32"))

        def element(p: LoopExpr, q: LoopExpr, lane: LoopExpr) -> LoopExpr:
            j = p * PANEL + lane
            places = range(32 // self.bits if self.bits else 0)
            found = reduce(operator.or_, (number(j, q, place) for place in places)) if self.bits else data[j, q]
            return found if shape[0] * PANEL == units else select(j < units, found, const(0, found.dtype))

        return compute(shape, element)


def panels(values: np.ndarray) -> np.ndarray:
    """(units, n) -> (ceil(units / 16), n, 16), zeros for units that are missing."""
    units, count = values.shape
    whole = np.pad(values, ((0, -units % PANEL), (0, 0))) if units % PANEL else values
    return np.ascontiguousarray(whole.reshape(len(whole) // PANEL, PANEL, count).transpose(0, 2, 1))


def panels_of_words(packed: np.ndarray, bits: int) -> np.ndarray:
    """:class:`BlockPanels` of packed numbers."""
    packed = np.ascontiguousarray(packed)
    if bits == 8:
        return panels(packed.view("<i4"))
    halves, (low, high) = packed.view("<u2"), _in_their_bytes(bits)
    found = np.empty((-(-len(packed) // PANEL), packed.shape[1] // BYTES, PANEL), "<i4")
    for first in range(0, len(found), _AT_ONCE):
        some = halves[first * PANEL : (first + _AT_ONCE) * PANEL]
        found[first : first + _AT_ONCE] = panels((low[some[:, ::2]] | high[some[:, 1::2]]).view("<i4"))
    return found


@cache
def _in_their_bytes(bits: int) -> tuple[np.ndarray, np.ndarray]:
    """What each half of a word as it is stored, a number of 16 bits, becomes of a word of weights."""
    stored, per_half = np.arange(1 << 16, dtype="uint32"), 16 // bits
    found = [np.zeros_like(stored), np.zeros_like(stored)]
    for place in range(2 * per_half):  # of a number among those of a word
        half, at = divmod(place, per_half)
        part, byte = divmod(place, BYTES)
        found[half] |= (stored >> (bits * at) & (2**bits - 1)) << (8 * byte + bits * part)
    return found[0], found[1]


def _codes_of(words: np.ndarray, bits: int) -> np.ndarray:
    """The other way: (panels, n, 16) -> (panels * 16, n * 32 / bits) uint8."""
    count, depth, _ = words.shape
    transposed = np.ascontiguousarray(words.transpose(0, 2, 1))
    apart = transposed[..., None].view("uint8").reshape(count * PANEL, depth, 1, BYTES)
    parts = apart >> np.arange(0, 8, bits, dtype="uint8")[:, None] & (2**bits - 1)
    return np.asarray(parts.reshape(count * PANEL, depth * BYTES * 8 // bits))
