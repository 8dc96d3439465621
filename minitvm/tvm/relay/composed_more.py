"""Relay's operators that few networks have: sparse matrices, boxes, spectra, gradients of layers, and more.

Made of our operators.  What the importer knows how to make (Einsum, DeformConv) is made by it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minitvm.errors import TypeInferenceError
from minitvm.ir.expr import Call, Expr, Tuple, Var
from minitvm.ir.op import Op
from minitvm.tvm.relay.composed import COMPOSED, composed, like, made, many, rank_of, refuse, shaped
from minitvm.tvm.relay.forms import const
from minitvm.tvm.relay.operators import function, plain, tensor


class _Node:
    """What the importer's builders ask of a node of a model: inputs, and attributes of which all are given."""

    def __init__(self, inputs: Sequence[Expr], **attributes: Any) -> None:
        self.inputs, self.attributes = inputs, attributes

    def __getitem__(self, index: int) -> Expr:
        return self.inputs[index]

    def get(self, index: int) -> Expr | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    require = attr

    def fail(self, message: str) -> TypeInferenceError:
        return TypeInferenceError(message)


def _imported(home: str, name: str, inputs: Sequence[Expr], **attributes: Any) -> Expr:
    build: Any = getattr(importlib.import_module(f"minitvm.frontend.onnx.{home}"), name)
    found: Expr = build(_Node(inputs, **attributes))
    return found


@composed("einsum")
def einsum(data: Any, equation: str) -> Expr:
    """Sums of products over the letters that the result has not."""
    given = tensor(data)
    parts = list(given) if not isinstance(given, Tuple) else list(given.fields)
    return _imported("matmul", "einsum", parts, equation=equation)


@composed("nn.deformable_conv2d")
def deformable_conv2d(
    data: Any, offset: Any, weight: Any, strides: Any, padding: Any, dilation: Any, deformable_groups: Any, groups: Any,
    data_layout: str, kernel_layout: str, **_: Any,
) -> Expr:  # fmt: skip
    """A convolution whose taps lie where offsets put them."""
    if (data_layout, kernel_layout) != ("NCHW", "OIHW"):
        raise refuse("nn.deformable_conv2d", f"layouts {data_layout}, {kernel_layout}")
    pads = many(padding)
    how = {"strides": _two(strides), "dilations": _two(dilation), "pads": pads * (4 // len(pads))}
    given = [tensor(one) for one in (data, weight, offset)]
    return _imported("more.sampling", "deform_conv", given, group=groups, offset_group=deformable_groups, **how)


def _two(value: Any) -> list[Any]:
    found = list(many(value))
    return found * 2 if len(found) == 1 else found


# --- numbers ----------------------------------------------------------------------------------------------------


@composed("fixed_point_multiply")
def fixed_point_multiply(data: Any, multiplier: Any, shift: Any) -> Expr:
    """``data`` times ``multiplier * 2 ** (shift - 31)``, halves up, in int64."""
    expr = tensor(data)
    wide = made("cast", expr, dtype="int64")
    left, right = max(plain(shift), 0), 31 + max(-plain(shift), 0)
    scaled = made("multiply", made("left_shift", wide, const(left, "int64")), const(plain(multiplier), "int64"))
    rounded = made("add", scaled, const(1 << (right - 1), "int64"))
    return made("cast", made("right_shift", rounded, const(right, "int64")), dtype=expr.dtype)


@composed("fixed_point_multiply_per_axis")
def fixed_point_multiply_per_axis(
    x: Any, y: Any, lshift: Any, rshift: Any, is_lshift_required: Any, is_rshift_required: Any, axes: Any
) -> Expr:
    """``x`` times multipliers of 31 bits along axes, with shifts of their own, halves up."""
    expr = tensor(x)
    shape = [expr.shape[d] if d in many(axes) else 1 for d in range(rank_of(expr))]
    wide = [made("cast", expr, dtype="int64")]
    wide += [shaped(made("cast", one, dtype="int64"), shape) for one in (y, lshift, rshift)]
    data = made("left_shift", wide[0], wide[2]) if plain(is_lshift_required) else wide[0]
    right = made("add", wide[3], const(31, "int64")) if plain(is_rshift_required) else const(31, "int64")
    half = made("left_shift", const(1, "int64"), made("subtract", right, const(1, "int64")))
    found = made("right_shift", made("add", made("multiply", data, wide[1]), half), right)
    return made("cast", found, dtype=expr.dtype)


@composed("nn.fifo_buffer")
def fifo_buffer(data: Any, buffer: Any, axis: Any) -> Expr:
    """A buffer without its oldest elements along an axis, and with new ones at its end."""
    old, along = tensor(buffer), plain(axis)
    joined = made("concatenate", Tuple([old, tensor(data)]), axis=along)
    extent, new = (one.shape[along] for one in (old, tensor(data)))
    return made("strided_slice", joined, begin=[new], end=[new + extent], axes=[along])


# --- spectra ----------------------------------------------------------------------------------------------------


def _waves(count: int, dtype: str, inverse: bool = False) -> list[Expr]:
    """The real and the imaginary part of the matrix of the transform of ``count`` numbers."""
    angles = -2j * np.pi * np.outer(np.arange(count), np.arange(count)) / count
    matrix = np.exp(-angles) / count if inverse else np.exp(angles)
    return [const(part, dtype) for part in (matrix.real, matrix.imag)]


def _product(rows: Expr, matrix: Expr) -> Expr:
    """Products along the last axis."""
    *lead, depth = rows.shape
    found = made("nn.matmul", made("reshape", rows, newshape=(-1, depth)), matrix)
    return shaped(found, [*lead, matrix.shape[1]])


@composed("dft")
def dft(re_data: Any, im_data: Any, inverse: Any) -> Expr:
    """The discrete Fourier transform along the last axis: its real and its imaginary part."""
    real, imaginary = tensor(re_data), tensor(im_data)
    cos, sin = _waves(real.shape[-1], real.dtype, bool(plain(inverse)))
    whole = made("subtract", _product(real, cos), _product(imaginary, sin))
    return Tuple([whole, made("add", _product(real, sin), _product(imaginary, cos))])


@composed("stft")
def stft(data: Any, n_fft: Any, hop_length: Any, win_length: Any, window: Any, normalized: Any, onesided: Any) -> Expr:
    """Spectra of windows of rows, (rows, samples) -> (rows, frequencies, windows, 2)."""
    rows, count, hop = tensor(data), plain(n_fft), plain(hop_length)
    rows = rows if rank_of(rows) == 2 else made("expand_dims", rows, axis=0)
    starts = np.arange((rows.shape[1] - count) // hop + 1) * hop
    frames = made("take", rows, const(starts[:, None] + np.arange(count), "int64"), axis=1)
    if window is not None:
        before = (count - plain(win_length)) // 2
        widths = [[before, count - plain(win_length) - before]]
        frames = made("multiply", frames, made("nn.pad", window, pad_width=widths))
    kept = count // 2 + 1 if plain(onesided) else count
    parts = [_product(frames, m) for m in _waves(count, rows.dtype)]
    both = made("stack", Tuple(parts), axis=-1)
    both = made("strided_slice", both, begin=[0], end=[kept], axes=[2])
    both = made("multiply", both, like(count**-0.5, both)) if plain(normalized) else both
    return made("transpose", both, axes=(0, 2, 1, 3))


# --- gradients of layers ----------------------------------------------------------------------------------------


def _gradient(call: Call, adjoint: Any, argument: int) -> Expr:
    assert isinstance(call.op, Op)
    rule: Any = importlib.import_module("minitvm.passes.gradient.rules").rule_of(call.op.name)
    found: Expr = rule(call, tensor(adjoint))[argument]
    return found


def _pool_gradient(kind: str) -> Callable[..., Expr]:
    def gradient(out_grad: Any, data: Any, **how: Any) -> Expr:
        """The gradient of a pool by its data."""
        return _gradient(function(f"nn.{kind}_pool2d")(data, **how), out_grad, 0)

    return gradient


COMPOSED |= {f"nn.{kind}_pool2d_grad": _pool_gradient(kind) for kind in ("avg", "max")}


@composed("nn.conv2d_backward_weight")
def conv2d_backward_weight(
    grad: Any, data: Any, groups: Any, channels: Any, kernel_size: Any, grad_layout: str, data_layout: str,
    kernel_layout: str, out_dtype: Any, **how: Any,
) -> Expr:  # fmt: skip
    """The gradient of a convolution by its weight, whose window is ``kernel_size``."""
    if (grad_layout, data_layout, kernel_layout) != ("NCHW", "NCHW", "OIHW") or kernel_size is None:
        raise refuse("nn.conv2d_backward_weight", "other layouts than NCHW and OIHW, or without kernel_size")
    image, adjoint = tensor(data), tensor(grad)
    shape = (adjoint.shape[1], image.shape[1] // plain(groups), *_two(kernel_size))
    weight = made("zeros", shape=shape, dtype=image.dtype)
    return _gradient(function("nn.conv2d")(image, weight, groups=groups, **how), adjoint, 1)


# --- images -----------------------------------------------------------------------------------------------------


@composed("image.dilation2d")
def dilation2d(
    data: Any, weight: Any, strides: Any, padding: Any, dilations: Any, data_layout: str, kernel_layout: str,
    out_dtype: Any,
) -> Expr:  # fmt: skip
    """The largest of the sums of windows' pixels and the weight; beyond the border there is nothing."""
    image, taps = tensor(data), tensor(weight)
    moved = data_layout == "NHWC"
    image = made("transpose", image, axes=(0, 3, 1, 2)) if moved else image
    taps = made("transpose", taps, axes=(2, 0, 1)) if kernel_layout == "HWI" else taps
    pads = many(padding) * (4 // len(many(padding)))
    if any(pads):
        widths = [[0, 0], [0, 0], [pads[0], pads[2]], [pads[1], pads[3]]]
        image = made("nn.pad", image, like(float(np.finfo(image.dtype).min), image), pad_width=widths)
    step, apart, (_, height, width) = _two(strides), _two(dilations), taps.shape
    spans = [
        (n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(image.shape[2:], (height, width), apart, step, strict=True)
    ]
    parts = []
    for i in range(height):
        for j in range(width):
            begin = [i * apart[0], j * apart[1]]
            end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, spans, step, strict=True)]
            tap = made("strided_slice", taps, begin=[i, j], end=[i + 1, j + 1], axes=[1, 2])
            parts.append(
                made("add", made("strided_slice", image, begin=begin, end=end, strides=step, axes=[2, 3]), tap)
            )
    found = made("max", made("stack", Tuple(parts), axis=0), axis=(0,))
    return made("transpose", found, axes=(0, 2, 3, 1)) if moved else found


@composed("image.resize3d")
def resize3d(data: Any, size: Any, layout: str, **how: Any) -> Expr:
    """A volume in another size: its planes, then its depth."""
    expr, (depth, height, width) = tensor(data), many(size)
    if layout != "NCDHW":
        order = {"NDHWC": ((0, 4, 1, 2, 3), (0, 2, 3, 4, 1))}.get(layout)
        if order is None:
            raise refuse("image.resize3d", f"layout={layout!r}")
        inner = resize3d(made("transpose", expr, axes=order[0]), size, "NCDHW", **how)
        return made("transpose", inner, axes=order[1])
    n, channels, planes, *pixels = expr.shape
    resize = function("image.resize2d")
    flat = resize(shaped(expr, [n, channels * planes, *pixels]), [height, width], layout="NCHW", **how)
    deep = resize(shaped(flat, [n, channels, planes, height * width]), [depth, height * width], layout="NCHW", **how)
    return shaped(deep, [n, channels, depth, height, width])


@composed("nn.upsampling3d")
def upsampling3d(
    data: Any, scale_d: Any, scale_h: Any, scale_w: Any, layout: str, method: str, coordinate_transformation_mode: str
) -> Expr:
    """A volume with more pixels along each axis."""
    expr, at = tensor(data), [layout.index(axis) for axis in "DHW"]
    size = [round(expr.shape[d] * plain(s)) for d, s in zip(at, (scale_d, scale_h, scale_w), strict=True)]
    kind = {"trilinear": "linear"}.get(method, method)
    made_: Expr = function("image.resize3d")(
        expr, size, layout=layout, method=kind, coordinate_transformation_mode=coordinate_transformation_mode
    )
    return made_


@composed("image.crop_and_resize")
def crop_and_resize(
    data: Any, boxes: Any, box_indices: Any, crop_size: Any, layout: str, method: str, extrapolation_value: Any,
    out_dtype: Any,
) -> Expr:  # fmt: skip
    """Boxes (y1, x1, y2, x2), of parts of an image, in one size; beyond the image there is ``extrapolation_value``."""
    image, places = tensor(data), made("cast", boxes, dtype="float32")
    image = made("transpose", image, axes=(0, 3, 1, 2)) if layout == "NHWC" else image
    picked = made("cast", made("take", image, box_indices, axis=0), dtype="float32")
    count, lines, inside = places.shape[0], [], []
    for d, (extent, cells) in enumerate(zip(image.shape[2:], many(crop_size), strict=True)):
        low, high = (made("strided_slice", places, begin=[e], end=[e + 1], axes=[1]) for e in (d, d + 2))
        along = np.linspace(0, 1, cells) if cells > 1 else np.full(1, 0.5)
        spread = made("multiply", made("subtract", high, low), const(along, "float32"))
        line = made("multiply", made("add", low, spread), const(float(extent - 1)))
        lines.append(line)
        beyond = made("greater", line, const(float(extent - 1)))
        inside.append(made("logical_not", made("logical_or", made("less", line, const(0.0)), beyond)))
    sizes = many(crop_size)
    if method == "nearest_neighbor":
        lines = [made("floor", made("add", line, const(0.5))) for line in lines]
    grid = [
        made("broadcast_to", shaped(one, shape), shape=(count, *sizes)) for one, shape in _two_ways(lines, count, sizes)
    ]
    found = made("image.grid_sample", picked, made("stack", Tuple(grid[::-1]), axis=-1), pixels=True)
    both = made("logical_and", *(shaped(one, shape) for one, shape in _two_ways(inside, count, sizes)))
    found = made("where", made("expand_dims", both, axis=1), found, like(float(plain(extrapolation_value)), found))
    found = made("transpose", found, axes=(0, 2, 3, 1)) if layout == "NHWC" else found
    return made("cast", found, dtype=out_dtype) if out_dtype else found


def _two_ways(lines: Sequence[Expr], count: int, sizes: Sequence[int]) -> list[tuple[Expr, list[int]]]:
    """Rows and columns as what broadcasts to an image."""
    return [(lines[0], [count, sizes[0], 1]), (lines[1], [count, 1, sizes[1]])]
