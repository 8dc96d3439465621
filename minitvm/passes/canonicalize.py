"""CanonicalizeOps, CanonicalizeCast, Legalize: one way to say a thing, and the way that runs well."""

from __future__ import annotations

from collections import Counter

import numpy as np

from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.op import Op
from minitvm.ir.ops.elemwise import CastTo
from minitvm.ir.ops.nn_conv_transpose import Conv2dTranspose
from minitvm.ir.ops.nn_dense import BiasAdd
from minitvm.ir.pattern import call, const, value
from minitvm.ir.visitor import as_function, rebuild, rewrite
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.rule import Replacement, RulePass, rule
from minitvm.passes.simplify.simplify_inference import along


@rule(call(BiasAdd, value("data"), value("bias"), name="biased"))
def bias_add_to_add(biased: Call, data: Expr, bias: Expr) -> Expr:
    """``nn.bias_add(x, b, axis)`` is ``add(x, b)`` with ones behind ``b``'s axis."""
    assert isinstance(biased.op, BiasAdd)
    return ir.add(data, along(bias, biased.op.axis, data.tensor_type.rank))


class CanonicalizeOps(RulePass, opt_level=3):
    """``nn.bias_add`` becomes ``add``, which scale folding and the layout passes know."""

    rules = (bias_add_to_add,)


class CanonicalizeCast(FunctionPass, opt_level=3):
    """Give every user but the first of a widening cast a cast of its own, where the user is element-wise.

    No wide tensor is stored then: of int8 convolutions whose result feeds several int32 branches, once the cast is part
    of each branch's kernel, the tensor between the kernels is int8.
    """

    needs = (CastTo,)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        seen: Counter[Expr] = Counter()

        def visit(_: Expr, new: Expr) -> Expr:
            if isinstance(new, Call) and isinstance(new.op, Op) and new.op.is_elementwise:
                return rebuild(new, [_own_cast(arg, seen) for arg in new.args])
            return new

        return as_function(rewrite(function, visit))


def _own_cast(operand: Expr, seen: Counter[Expr]) -> Expr:
    """The operand, or a copy of it where it is a cast to a dtype of more bytes that another user has already."""
    if not isinstance(operand, Call) or not isinstance(operand.op, CastTo):
        return operand
    if np.dtype(operand.op.dtype).itemsize <= np.dtype(operand.args[0].dtype).itemsize:
        return operand
    seen[operand] += 1
    if seen[operand] == 1:
        return operand
    decide("CanonicalizeCast", operand, "done again by another user, so that no wide tensor is stored")
    return Call(operand.op, operand.args, span=operand.span)


@rule(call(Conv2dTranspose, value("data"), const("weight"), name="conv"), exactness="reassociating")
def transposed_convolution_to_convolution(conv: Call, data: Expr, weight: Expr) -> Replacement:
    """One convolution that computes all ``stride * stride`` phases of the result, then pixels from channels.

    With ``t = stride * u + phase`` a result at ``stride * q + phase`` is the sum over ``u`` of ``data[q - u]`` times
    ``weight[stride * u + phase]``: a convolution of stride 1 per phase (sub-pixel convolution, arXiv:1609.05158).
    """
    op = conv.op
    assert isinstance(op, Conv2dTranspose)
    stride = op.strides[0]
    if op.groups != 1 or set(op.dilation) != {1} or len(set(op.strides)) != 1 or stride == 1:
        return Declined("only one stride above 1, without groups and dilation, becomes phases")
    if op.data_layout != "NCHW" or op.kernel_layout != "IOHW":
        return Declined(f"phases are cut from IOHW weights, not {op.kernel_layout}")
    _, channels, height, width = weight.shape
    if height % stride or width % stride:
        return Declined(f"{height} x {width} taps are not as many in every phase of {stride}: some would be zeros")
    taps = (height // stride, width // stride)
    top, left = op.padding[:2]
    rows, columns = conv.shape[2:]
    extra = [
        -(-(start + size) // stride) - (extent + tap - 1)
        for start, size, extent, tap in zip((top, left), (rows, columns), data.shape[2:], taps, strict=True)
    ]
    pads = (taps[0] - 1, taps[1] - 1, taps[0] - 1 + max(0, extra[0]), taps[1] - 1 + max(0, extra[1]))
    phases = ir.nn.conv2d(data, _phases(weight, stride, taps), padding=pads, out_dtype=op.out_dtype)
    pixels = ir.nn.depth_to_space(phases, block_size=stride, mode="CRD")
    end = (conv.shape[0], channels, top + rows, left + columns)
    return ir.strided_slice(pixels, begin=(0, 0, top, left), end=end, strides=(1, 1, 1, 1))


def _phases(weight: Expr, stride: int, taps: tuple[int, int]) -> Expr:
    """(I, O, kh, kw) -> (O * stride * stride, I, taps, taps), the taps of a phase in reverse order."""
    before, channels = weight.shape[:2]
    split = ir.reshape(weight, newshape=(before, channels, taps[0], stride, taps[1], stride))
    turned = ir.reverse(ir.reverse(split, axis=2), axis=4)
    moved = ir.transpose(turned, axes=(1, 3, 5, 0, 2, 4))
    return ir.reshape(moved, newshape=(channels * stride * stride, before, *taps))


class Legalize(RulePass, opt_level=3):
    """Transposed convolutions with constant weights become convolutions, which have fast kernels."""

    rules = (transposed_convolution_to_convolution,)
