"""Cases of sums of products: fully connected layers, matrix products, convolutions; some in blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minitvm.ir.layout import Layout
from minitvm.ir.loop import DOT_OPERANDS
from minitvm.ir.ops.more.qnn_blocks import panels, panels_of_words
from minitvm.ir.ops.nn_winograd import Transforms
from operator_cases.accuracy import BITS, Accuracy
from operator_cases.case import Case, case, generator, summed
from operator_cases.draw import Draw


def _work(draw: Draw) -> int:
    """Most multiplications of a case: few, so that the interpreter can follow; sometimes more."""
    return 1 << (19 if draw.flag(4) else 15)


def _operands(
    draw: Draw, dtype: str, first: Sequence[int], second: Sequence[int], padded: bool = False
) -> tuple[Any, Any, str]:
    """Two arrays and ``out_dtype``: 8-bit integers may differ in sign, and then are summed in more bits.

    Where the first one is ``padded`` the second is finite: whether 0 times infinity is added is nobody's promise.
    """
    eight = dtype in ("int8", "uint8")
    out = draw.choice(("int32", "") if eight else ("",))
    other = draw.choice(("int8", "uint8")) if eight and out else dtype
    special = "nonfinite" if dtype.startswith("float") else "all"
    return (
        draw.array(first, dtype, special=special),
        draw.array(second, other, -9, 9, "none" if padded else special),
        out,
    )


def _flipped(shape: Sequence[int], flip: bool) -> tuple[int, ...]:
    """The last two dimensions swapped."""
    return (*shape[:-2], shape[-1], shape[-2]) if flip else tuple(shape)


@generator("nn.dense")
def dense(name: str, draw: Draw, dtype: str) -> Case:
    m, k, n = draw.sizes(3, _work(draw))
    x, w, out = _operands(draw, dtype, (m, k), (n, k))
    return summed(name, x, w, terms=k, out_dtype=out, units=n if draw.flag() else None)


@generator("nn.contrib_dense_pack", "qnn.contrib_dense_pack")
def dense_pack(name: str, draw: Draw, dtype: str) -> Case:
    width = draw.choice((4, 8, 16, 2, 3, 32, 64))
    m, k, blocks = draw.sizes(3, _work(draw) // width)
    x, w, out = _operands(draw, dtype, (m, k), (blocks, k, width))
    units = blocks * width - draw.integer(0, width - 1) if blocks and draw.flag() else None
    parts = _parts(name, draw)
    return summed(name, x, w, terms=k, out_dtype=out, weight_layout=f"NC{width}n", units=units, **parts)


@generator("qnn.quantize_blocks")
def quantize_blocks(name: str, draw: Draw, dtype: str) -> Case:
    form = {"block": draw.choice((16, 32, 1, 3, 7, 64)), "parts": draw.choice((1, 2, 3))}
    return case(name, draw.array(draw.shape(1, 4), dtype, -9, 9, "all"), **form)


@generator("qnn.block_panels")
def block_panels(name: str, draw: Draw, dtype: str) -> Case:
    units, count = draw.sizes(2)
    bits = draw.choice((0, 2, 4, 8)) if dtype == "uint8" else 0
    return case(name, draw.array((units, count * (4 if bits else 1)), dtype, -9, 99, "all"), bits=bits, accuracy=BITS)


@generator("qnn.dense_blocks")
def dense_blocks(name: str, draw: Draw, dtype: str) -> Case:
    """Among the scales of rows there may be those of NaN and infinity."""
    block, bits, seed = draw.choice((16, 32, 48, 128)), draw.choice((2, 4, 8)), draw.integer(0, 1000)
    rows, blocks, units = draw.sizes(3, _work(draw) // block)
    parts = draw.choice((1, 1, 3))
    sizes, form = (rows, blocks, units), {"units": units, "block": block, "bits": bits, "parts": parts}
    data, _, *others = few_bits_operands(np.random.default_rng(seed), sizes, block, bits, draw.flag(), dtype, parts)
    made = case(name, data, draw.array((rows, blocks), "float32", 0, 0.1), *others, **form)
    return replace(made, accuracy=Accuracy(ulps=1, terms=blocks + 3, magnitude=lambda: _by_blocks(made)))


def _by_blocks(made: Case) -> np.ndarray:
    """The magnitudes of all blocks' parts of a result, added up."""
    total = np.zeros(made.reference()[0].shape)
    for b in range(made.args[1].shape[1]):
        of_block = [a if a.ndim == 0 else np.split(a, made.args[1].shape[1], axis=1)[b] for a in made.args]
        total += np.abs(made.op.reference(*of_block).astype("float64"))
    return total


def few_bits_operands(
    rng: np.random.Generator,
    sizes: tuple[int, int, int],
    block: int,
    bits: int,
    zeros: bool,
    dtype: str,
    parts: int = 1,
) -> list[np.ndarray]:
    """What ``qnn.dense_blocks`` takes for so many rows, blocks and units; with zero points of blocks, or one."""
    rows, blocks, units = sizes
    numbers = rng.integers(-127, 128, (parts * rows, blocks, block), "int8")
    packed = rng.integers(0, 256, (units, blocks * block * bits // 8), "uint8")
    scales = [rng.uniform(0.01, 0.1, shape).astype("float32") for shape in ((rows, blocks), (units, blocks))]
    points = rng.integers(0, 2**bits, (units, blocks), "uint8") if zeros else np.asarray(2 ** (bits - 1), "uint8")
    return [
        numbers.reshape(parts * rows, blocks * block).view("<i4"),
        scales[0],
        numbers.sum(axis=2, dtype="int32"),
        panels_of_words(packed, bits),
        panels(scales[1].astype(dtype)),
        panels(points) if zeros else points,
    ]


def _parts(name: str, draw: Draw) -> dict[str, Any]:
    """What words hold."""
    return {"product": draw.choice(list(DOT_OPERANDS))} if name.startswith("qnn.") else {}


@generator("nn.matmul")
def matmul(name: str, draw: Draw, dtype: str) -> Case:
    m, k, n = draw.sizes(3, _work(draw))
    flips = draw.flag(), draw.flag()
    x, w, out = _operands(draw, dtype, _flipped((m, k), flips[0]), _flipped((k, n), flips[1]))
    return summed(name, x, w, terms=k, out_dtype=out, transpose_a=flips[0], transpose_b=flips[1])


@generator("nn.batch_matmul")
def batch_matmul(name: str, draw: Draw, dtype: str) -> Case:
    b, m, k, n = draw.sizes(4, _work(draw))
    batches = draw.choice(((b, b), (1, b), (b, 1)))
    flips = draw.flag(), draw.flag()
    first, second = _flipped((batches[0], m, k), flips[0]), _flipped((batches[1], k, n), flips[1])
    x, w, out = _operands(draw, dtype, first, second)
    return summed(name, x, w, terms=k, out_dtype=out, transpose_a=flips[0], transpose_b=flips[1])


# --- convolutions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """Taps, strides, dilation and padding along each spatial axis, and pixels that they fit in."""

    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    pixels: tuple[int, ...]

    @property
    def attributes(self) -> dict[str, Any]:
        return {"strides": self.strides, "padding": self.padding, "dilation": self.dilation}

    @property
    def spans(self) -> list[int]:
        return [(k - 1) * d + 1 for k, d in zip(self.taps, self.dilation, strict=True)]


def window(draw: Draw, rank: int, most: int = 48) -> Window:
    """Padding differs before and after; the image holds the window at least once, and may be all padding but one."""
    taps = tuple(draw.choice((1, 3, 2, 4)[: 4 if rank < 3 else 3]) for _ in range(rank))
    strides = tuple(draw.choice((1, 2, 3)) if draw.flag() else 1 for _ in range(rank))
    dilation = tuple(draw.choice((1, 2, 3)) if draw.flag(4) else 1 for _ in range(rank))
    padding = tuple(draw.integer(0, 2) if draw.flag() else 0 for _ in range(2 * rank))
    pixels: list[int] = []
    for d, (k, step) in enumerate(zip(taps, dilation, strict=True)):
        least = max(1, (k - 1) * step + 1 - padding[d] - padding[d + rank])
        pixels.append(least + draw.size(max(2, most // max(1, math.prod(pixels)))) - 1)
    return Window(taps, strides, dilation, padding, tuple(pixels))


def _channels(draw: Draw, limit: int) -> tuple[int, int, int]:
    """Groups, and input and output channels in each: one group, as many as channels, or some."""
    kind = draw.choice(("one", "depthwise", "some"))
    if kind == "one":
        per, filters = draw.sizes(2, limit, least=1)
        return 1, per, filters
    if kind == "depthwise":
        return draw.size(min(limit, 48)), 1, draw.choice((1, 1, 2))
    groups = draw.integer(2, 3)
    per, filters = draw.sizes(2, max(1, limit // 3), least=1)
    return groups, per, filters


_CONV_LAYOUTS = {
    1: (("NCW", "OIW"), ("NWC", "WIO")),
    2: (("NCHW", "OIHW"), ("NHWC", "HWIO"), ("NHWC", "OHWI"), ("NHWC", "HWOI")),
    3: (("NCDHW", "OIDHW"), ("NDHWC", "DHWIO")),
}
_AXES = {1: "W", 2: "HW", 3: "DHW"}


@generator("nn.conv1d", "nn.conv2d", "nn.conv3d")
def convolution(name: str, draw: Draw, dtype: str) -> Case:
    rank = int(name[len("nn.conv")])
    shape = window(draw, rank)
    batch = draw.choice((1, 1, 2, 3, 0) if draw.flag(8) else (1, 2))
    taps, area = math.prod(shape.taps), math.prod(shape.pixels)
    groups, per, filters = _channels(draw, max(1, _work(draw) // (taps * area * max(1, batch))))
    image, kernel = draw.choice(_CONV_LAYOUTS[rank])
    pixels, window_ = (dict(zip(_AXES[rank], e, strict=True)) for e in (shape.pixels, shape.taps))
    data = Layout(image).shape_of({"N": batch, "C": groups * per, **pixels})
    weight = Layout(kernel).shape_of({"O": groups * filters, "I": per, **window_})
    x, w, out = _operands(draw, dtype, data, weight, any(shape.padding))  # type: ignore[arg-type]
    layouts: dict[str, Any] = {"data_layout": image, "kernel_layout": kernel}
    return summed(name, x, w, terms=per * taps, groups=groups, out_dtype=out, **layouts, **shape.attributes)


@generator("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
def transposed(name: str, draw: Draw, dtype: str) -> Case:
    rank = int(name[len("nn.conv")])
    shape = window(draw, rank, 16)
    groups, per, filters = _channels(draw, max(1, _work(draw) // 4 // math.prod((*shape.taps, *shape.pixels))))
    extra = tuple(draw.integer(0, s - 1) for s in shape.strides)
    sizes = zip(shape.pixels, shape.strides, shape.spans, strict=True)
    full = [(n - 1) * s + span for n, s, span in sizes]
    before = [min(p, max(0, (f - 1) // 2)) for p, f in zip(shape.padding, full * 2, strict=True)]
    image, kernel = draw.choice((_CONV_LAYOUTS[rank][0], _CONV_LAYOUTS[rank][-1]))
    pixels, window_ = (dict(zip(_AXES[rank], e, strict=True)) for e in (shape.pixels, shape.taps))
    data = Layout(image).shape_of({"N": draw.integer(1, 2), "C": groups * per, **pixels})
    weight = Layout(kernel.translate(_SWAPPED)).shape_of({"I": groups * per, "O": filters, **window_})
    x, w, out = _operands(draw, dtype, data, weight, padded=True)  # type: ignore[arg-type]
    attributes = {**shape.attributes, "padding": before, "output_padding": extra}
    layouts: dict[str, Any] = {"data_layout": image, "kernel_layout": kernel.translate(_SWAPPED)}
    return summed(name, x, w, terms=per * math.prod(shape.taps), groups=groups, out_dtype=out, **layouts, **attributes)


_SWAPPED = str.maketrans("OI", "IO")


@generator("nn.contrib_conv2d_NCHWc", "qnn.contrib_conv2d_NCHWc")
def blocked(name: str, draw: Draw, dtype: str) -> Case:
    """Data in blocks, or an image of few plain channels; whole vectors, half ones, and blocks that are neither.  The
    result's blocks may be smaller than the weights', and the last of those of a group not full."""
    shape = window(draw, 2, 40)
    inner, outer = draw.choice((8, 16, 4, 3, 2)), draw.choice((8, 16, 4, 2, 7))
    plain = draw.flag(4)
    inner = draw.choice((3, 1, 4)) if plain else inner
    groups = 1 if plain else draw.choice((1, 1, 2))
    limit = max(1, _work(draw) * 2 // (math.prod((*shape.taps, *shape.pixels)) * inner * outer))
    per, filters = (1, draw.size(min(limit, 9))) if plain else draw.sizes(2, min(limit, 16), least=1)
    batch = draw.choice((1, 2))
    data = (batch, inner, *shape.pixels) if plain else (batch, groups * per, *shape.pixels, inner)
    x, w, out = _operands(draw, dtype, data, (groups * filters, per, *shape.taps, inner, outer), any(shape.padding))
    layouts: dict[str, Any] = {
        "data_layout": "NCHW" if plain else f"NCHW{inner}c",
        "kernel_layout": f"OIHW{inner}i{outer}o",
    }
    terms = per * inner * math.prod(shape.taps)
    result = draw.choice([b for b in (outer, outer, 4, 2, 1) if outer % b == 0])
    missing = result * draw.integer(0, outer // result - 1)
    layouts |= {"out_layout": f"NCHW{result}c", "channels": groups * (filters * outer - missing)}
    attributes = {**layouts, **shape.attributes, **_parts(name, draw)}
    return summed(name, x, w, terms=terms, groups=groups, out_dtype=out, **attributes)


@generator("nn.contrib_conv2d_winograd_NCHWc")
def winograd(name: str, draw: Draw, dtype: str) -> Case:
    """Of any transformed weights; results whose blocks may be smaller than those of the weights."""
    tile, block = draw.choice((2, 4)), draw.choice((8, 4, 16, 2))
    result = draw.choice([b for b in (block, 4, 2, 1) if block % b == 0])
    padding = [draw.choice((0, 1, 2)) for _ in range(4)]
    pixels = [draw.integer(3, 9) for _ in range(2)]
    inputs, filters = draw.sizes(2, max(1, _work(draw) // (math.prod(pixels) * 32 * block * block)), least=1)
    shape = (filters, tile + 2, tile + 2, inputs, block, block)
    x = draw.array((draw.integer(1, 2), inputs, *pixels, block), dtype, special="none")
    w = draw.array(shape, dtype, special="none")
    layouts = {"data_layout": f"NCHW{block}c", "kernel_layout": f"OHWI{block}i{block}o", "out_layout": f"NCHW{result}c"}
    channels = filters * block - result * draw.integer(0, block // result - 1)
    attributes: dict[str, Any] = {**layouts, "padding": padding, "tile_size": tile, "channels": channels}
    made = case(name, x, w, **attributes)

    def magnitude() -> np.ndarray:
        return np.full(made.reference()[0].shape, _largest(x, w, Transforms.of(tile)))

    return Case(made.op, made.args, Accuracy(1, inputs * block + 20, magnitude))


def _largest(x: np.ndarray, w: np.ndarray, t: Transforms) -> float:
    """More than any sum of Winograd's terms without their signs."""
    grown = np.abs(t.A).max(0) * np.abs(t.B).sum(1)
    places = np.abs(w.astype("float64")).sum(axis=(3, 4)).max(axis=(0, 3), initial=0)
    return float(grown @ places @ grown * np.abs(x.astype("float64")).max(initial=0))


@generator("nn.contrib_conv2d_winograd_weight_transform")
def winograd_weights(name: str, draw: Draw, dtype: str) -> Case:
    filters, inputs = draw.sizes(2, 64, least=0)
    weight, tile = draw.array((filters, inputs, 3, 3), dtype, special="none"), draw.choice((2, 4))
    made, G = case(name, weight, tile_size=tile), np.abs(Transforms.of(tile).G)
    return Case(made.op, made.args, Accuracy(1, 11, lambda: G @ np.abs(weight.astype("float64")) @ G.T))


@generator("nn.contrib_depthwise_conv2d_NCHWc")
def blocked_depthwise(name: str, draw: Draw, dtype: str) -> Case:
    shape = window(draw, 2)
    block = draw.choice((8, 16, 4, 2, 3))
    blocks, batch = draw.integer(1, 4), draw.choice((1, 2))
    x, w, out = _operands(
        draw, dtype, (batch, blocks, *shape.pixels, block), (blocks, 1, *shape.taps, 1, block), any(shape.padding)
    )
    layouts = {"data_layout": f"NCHW{block}c", "kernel_layout": f"OIHW1i{block}o", "out_layout": f"NCHW{block}c"}
    attributes = {**layouts, **shape.attributes, "groups": blocks * block}
    return summed(name, x, w, terms=math.prod(shape.taps), out_dtype=out, **attributes)


# --- attention ------------------------------------------------------------------------------------------------


@generator("nn.attention")
def attention(name: str, draw: Draw, dtype: str) -> Case:
    batch, heads = draw.sizes(2, 6)
    length, places, size, width = draw.sizes(4, _work(draw) // max(1, batch * heads))
    shapes = ((batch, n, heads, w) for n, w in ((length, size), (places, size), (places, width)))
    q, k, v = (draw.array(shape, dtype, special="none") for shape in shapes)
    scores = (batch, heads, length, places)
    shape = tuple(n if draw.flag() else 1 for n in scores)[draw.choice((0, 2, 3)) :]
    mask = draw.array(shape, draw.choice(("bool", dtype)), special="none")
    if mask.dtype != bool and draw.flag():
        mask = np.where(mask > 1, -np.inf, mask).astype(dtype)
    scale, rows = draw.choice((1.0, 0.35)), draw.choice(("nan", "zero"))
    masks = [mask] if draw.flag() else []
    made = case(name, q, k, v, *masks, scale=scale, empty_rows=rows, fill=draw.choice((-np.inf, -3.0)))

    def sizes() -> np.ndarray:
        """Powers are off by what their scores are, which is rounded as sums are."""
        wide = [np.abs(a.astype("float64")) for a in (q, k, v)]
        most = np.einsum("bihd,bjhd->bih", wide[0], wide[1]) * scale + np.abs(mask[np.isfinite(mask)]).max(initial=3)
        return np.asarray((1 + most)[..., None] * wide[2].max(axis=1, initial=0)[:, None])

    return Case(made.op, made.args, Accuracy(ulps=2, terms=size + places + 16, magnitude=sizes))
