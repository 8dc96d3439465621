"""Canonicalization: InferType, SimplifyInference, CanonicalizeOps, CanonicalizeCast and Legalize write each thing in
one way, the one that runs well."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from minitvm.errors import TypeInferenceError, user_code
from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined, decide, name_of
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, TupleGetItem, Var, describe_call
from minitvm.ir.op import Op
from minitvm.ir.ops.elemwise import CastTo
from minitvm.ir.ops.nn_conv import Conv1d, Conv2d, Conv3d, Convolution
from minitvm.ir.ops.nn_conv_transpose import Conv2dTranspose
from minitvm.ir.ops.nn_dense import BiasAdd
from minitvm.ir.ops.nn_norm import BatchNorm, Dropout, GroupNorm, InstanceNorm, L2Normalize, LayerNorm
from minitvm.ir.ops.transform import Reshape
from minitvm.ir.pattern import call, const, value
from minitvm.ir.types import only_batch_open
from minitvm.ir.visitor import as_function, calls, post_order, rebuild, rebuild_over, rewrite
from minitvm.passes.bound import SAME_PRODUCTS, Bound, Of
from minitvm.passes.manager import FunctionPass, PassContext, register_config
from minitvm.passes.rule import Replacement, RulePass, rule

KEEP = register_config(
    "minitvm.SimplifyInference.keep",
    tuple,
    ("nn.layer_norm",),
    "operators that stay whole, as a tuple of names; () expands all of them, as Relay does",
)

Expansion = Callable[..., Expr]
"""From an operator and its arguments to what replaces the call."""


class InferType(FunctionPass, opt_level=0):
    """Give every untyped variable the type that its uses determine; nothing else changes.

    Raises :class:`TypeInferenceError` for a variable that no use determines, naming it, and for one whose uses
    disagree.
    """

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        if function.checked_type is not None:
            return function
        solved: dict[Expr, Var] = {}
        while unsolved := [p for p in function.params if p.checked_type is None and p not in solved]:
            before = len(solved)
            _sweep(function, solved)
            if len(solved) == before:
                raise _unresolved(unsolved, function)
        body = _sweep(function, solved)
        return Function([solved.get(p, p) for p in function.params], body, function.attrs, span=function.span)


def _sweep(function: Function, solved: dict[Expr, Var]) -> Expr:
    """Rebuild the body over ``solved``, adding to it what calls determine on the way."""
    done: dict[Expr, Expr] = {}
    for node in post_order(function.body):
        if isinstance(node, Call):
            args = [done[a] for a in node.args]
            if isinstance(node.op, Op):
                _solve_call(node, node.op, args, solved)
            elif node.op.checked_type is None or None in [a.checked_type for a in args]:
                made = _solve_called(node.op, args, node, solved)
                done[node] = Call(made, [solved.get(a, done[a]) for a in node.args], span=node.span)
                continue
            done.update((a, solved[a]) for a in node.args if a in solved)
        done[node] = solved[node] if node in solved else rebuild_over(node, done)
    return done[function.body]


def _solve_called(function: Function, args: Sequence[Expr], call: Call, solved: dict[Expr, Var]) -> Function:
    """A called function whose untyped parameters have the types of the arguments; arguments without one have those of
    the parameters."""
    given = {p: a.checked_type for p, a in zip(function.params, args, strict=True) if p.checked_type is None}
    typed: dict[Expr, Var] = {p: Var(p.name, type_, span=p.span) for p, type_ in given.items() if type_ is not None}
    body = _sweep(function, typed) if function.checked_type is None else function.body
    for param, arg, original in zip(function.params, args, call.args, strict=True):
        type_ = typed.get(param, param).checked_type
        if isinstance(arg, Var) and arg.checked_type is None and type_ is not None:
            solved[original] = Var(arg.name, type_, span=arg.span)
    params = [typed.get(p, p) for p in function.params]
    return as_function(rebuild(function, (*params, body)))


def _solve_call(call: Call, op: Op, args: list[Expr], solved: dict[Expr, Var]) -> None:
    """Type the untyped variables among a call's arguments where the operator determines them."""
    with user_code(type(op), f"solve of {op.name}", partial(describe_call, call)):
        found = op.solve([a.checked_type for a in args])
    for arg, original, type_ in zip(args, call.args, found, strict=True):
        if isinstance(arg, Var) and arg.checked_type is None and type_ is not None:
            solved[original] = Var(arg.name, type_, span=arg.span)
            decide("InferType", f"%{arg.name}", f"is {type_}, as {op.name} says", call.span)


def _unresolved(unsolved: list[Var], function: Function) -> TypeInferenceError:
    names = ", ".join(f"%{v.name}" for v in unsolved)
    uses = [c for c in calls(function.body) if unsolved[0] in c.args]
    return TypeInferenceError(
        f"the type of {names} cannot be inferred from its uses",
        where=[f"%{unsolved[0].name} is used by {name_of(c)}" for c in uses[:3]],
        hint=f'give the variable a type: var("{unsolved[0].name}", TensorType(shape, dtype))',
    )


_NORMS = Bound(8, Of.SUMS, "a normalization, whose roundings are open: batch norm is a scale and a shift")


class SimplifyInference(FunctionPass, opt_level=0, bound=_NORMS):
    """Expand batch_norm, dropout, layer_norm, instance_norm, group_norm and l2_normalize: they become the arithmetic
    that they are when nothing is trained.  Statistics that are constants turn into one scale and one shift that
    FoldConstant computes; the scale then folds into convolution weights (FoldScaleAxis).

    ``keep`` names operators to leave whole; by default ``minitvm.SimplifyInference.keep`` says.  Statistics of a
    batch_norm that the graph uses are left alone.
    """

    def __init__(self, keep: Sequence[str] | None = None) -> None:
        self.keep = keep

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        keep = context.option(KEEP.name) if self.keep is None else self.keep
        return as_function(rewrite(function, lambda _, new: as_arithmetic(new, keep)))


def as_arithmetic(node: Expr, keep: Sequence[str]) -> Expr:
    """What replaces a node; the first result of an operator with several is its projection."""
    call = node.tuple if isinstance(node, TupleGetItem) and node.index == 0 else node
    if not isinstance(call, Call):
        return node
    if name_of(call) in keep:
        decide("SimplifyInference", call, Declined("it stays whole (minitvm.SimplifyInference.keep)"))
        return node
    table = _RESULTS if isinstance(node, TupleGetItem) else _CALLS
    expand = table.get(type(call.op))
    if expand is None:
        return node
    decide("SimplifyInference", call, "becomes its arithmetic")
    return expand(call.op, *call.args)


def _scalar(value: float, like: Expr) -> Constant:
    return Constant(np.asarray(value, like.dtype))


def along(vector: Expr, axis: int, rank: int) -> Expr:
    """A vector whose elements lie along ``axis`` of a tensor of ``rank``: trailing dimensions of 1."""
    after = rank - 1 - axis % rank
    return ir.expand_dims(vector, axis=1, num_newaxis=after) if after else vector


def _batch_norm(op: Any, data: Expr, gamma: Expr, beta: Expr, mean: Expr, variance: Expr) -> Expr:
    """``x * scale + shift`` with ``scale = gamma * rsqrt(var + eps)``, ``shift = beta - mean * scale``."""
    rank = data.tensor_type.rank
    scale: Expr = ir.rsqrt(variance + _scalar(op.epsilon, variance))
    if op.scale:
        scale = scale * gamma
    shift = -mean * scale
    if op.center:
        shift = shift + beta
    return data * along(scale, op.axis, rank) + along(shift, op.axis, rank)


def _normalize(data: Expr, axes: Sequence[int], epsilon: float) -> Expr:
    """``(x - mean) / sqrt(variance + eps)`` over ``axes``."""
    mean = ir.mean(data, axis=tuple(axes), keepdims=True)
    variance = ir.variance(data, mean, axis=tuple(axes), keepdims=True)
    return (data - mean) / ir.sqrt(variance + _scalar(epsilon, data))


def _affine(data: Expr, gamma: Expr, beta: Expr, axis: int, op: Any) -> Expr:
    rank = data.tensor_type.rank
    if op.scale:
        data = data * along(gamma, axis, rank)
    if op.center:
        data = data + along(beta, axis, rank)
    return data


def _in_single(expand: Expansion) -> Expansion:
    """Squares of float16 in float32: 256 squared is infinite."""

    def expanded(op: Any, *args: Expr) -> Expr:
        if args[0].dtype != "float16":
            return expand(op, *args)
        return ir.cast(expand(op, *(ir.cast(a, dtype="float32") for a in args)), dtype="float16")

    return expanded


def _over(axes_of: Callable[[Any, int], Sequence[int]]) -> Expansion:
    """Statistics over some axes, by the operator and the rank."""

    def expanded(op: Any, data: Expr, gamma: Expr, beta: Expr) -> Expr:
        axes = axes_of(op, data.tensor_type.rank)
        return _affine(_normalize(data, axes, op.epsilon), gamma, beta, op.axis, op)

    return expanded


def _group_norm(op: Any, data: Expr, gamma: Expr, beta: Expr) -> Expr:
    """Statistics over each group of channels and all but the batch: channel C becomes (groups, C / groups)."""
    shape, axis = data.shape, op.axis % len(data.shape)
    grouped = (*shape[:axis], op.num_groups, shape[axis] // op.num_groups, *shape[axis + 1 :])
    axes = [d for d in range(1, len(grouped)) if d != axis]
    whole = _normalize(Call(Reshape.to(grouped), (data,)), axes, op.epsilon)
    return _affine(Call(Reshape.to(shape), (whole,)), gamma, beta, axis, op)


def _l2_normalize(op: Any, data: Expr) -> Expr:
    square = ir.sum(data * data, axis=op.axis, keepdims=True)
    return data / ir.sqrt(ir.maximum(square, _scalar(op.eps, data)))


_RESULTS: dict[type, Expansion] = {BatchNorm: _batch_norm, Dropout: lambda op, data: data}
_CALLS: dict[type, Expansion] = {
    LayerNorm: _in_single(_over(lambda op, _: [op.axis])),
    # all but the batch (dimension 0) and the channel
    InstanceNorm: _in_single(_over(lambda op, rank: [d for d in range(1, rank) if d != op.axis % rank])),
    GroupNorm: _in_single(_group_norm),
    L2Normalize: _in_single(_l2_normalize),
}


@rule(call(BiasAdd, value("data"), value("bias"), name="biased"))
def bias_add_to_add(biased: Call, data: Expr, bias: Expr) -> Replacement:
    """``nn.bias_add(x, b, axis)`` is ``add(x, b)`` with ones behind ``b``'s axis."""
    if data.dtype == "bool":
        return Declined("add takes numbers, not bool")
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


@rule(
    call(Conv2dTranspose, value("data"), const("weight"), name="conv"), exactness="reassociating", bound=SAME_PRODUCTS
)
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
    if not (conv.tensor_type.is_static or only_batch_open(conv.type)):
        return Declined("its pixels are known only when the model runs")
    if op.data_layout != "NCHW" or op.kernel_layout != "IOHW":
        return Declined(f"phases are cut from IOHW weights, not {op.kernel_layout}")
    _, channels, height, width = weight.shape
    if not height * width or height % stride or width % stride:
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
    split = Call(Reshape.to((before, channels, taps[0], stride, taps[1], stride)), (weight,))
    reversed_taps = ir.reverse(ir.reverse(split, axis=2), axis=4)
    moved = ir.transpose(reversed_taps, axes=(1, 3, 5, 0, 2, 4))
    return Call(Reshape.to((channels * stride * stride, before, *taps)), (moved,))


_CUT = Bound(2, Of.SUMS, "weights are constant and finite; products by the zeros of a padding are left out")


@rule(
    call((Conv1d, Conv2d, Conv3d), value("data"), const("weight"), name="conv"), exactness="reassociating", bound=_CUT
)
def drop_taps_in_padding(conv: Call, data: Expr, weight: Constant) -> Replacement:
    """A 3x3 window on a single pixel reads one tap: constant weights are cut to the taps that see the image."""
    op = conv.op
    assert isinstance(op, Convolution)
    image, kernel, out = op.layouts
    if not all(isinstance(data.tensor_type.shape[image.index(axis)], int) for axis in op.spatial):
        return Declined("the image's size is known only when the model runs")
    if 0 in weight.shape:
        return Declined("the window has no taps")
    pads, rank = list(op.padding), len(op.spatial)
    begin, end = [0] * kernel.rank, list(weight.shape)
    for d, axis in enumerate(op.spatial):
        at = kernel.index(axis)
        taps = [t * op.dilation[d] - pads[d] for t in range(weight.shape[at])]
        extents = data.tensor_type.extents[image.index(axis)], conv.tensor_type.extents[out.index(axis)]
        seen = [t for t, first in enumerate(taps) if _sees(first, op.strides[d], *extents)] or [*range(len(taps))]
        begin[at], end[at] = seen[0], seen[-1] + 1
        pads[d] -= seen[0] * op.dilation[d]
        pads[d + rank] -= (len(taps) - end[at]) * op.dilation[d]
    if pads == list(op.padding):
        return Declined("every tap sees the image in some window")
    if min(pads) < 0:
        return Declined("windows would begin or end inside the image")
    if not np.isfinite(weight.value).all():
        return Declined("a weight is not finite: times a zero it is no number")
    size = tuple(end[kernel.index(axis)] - begin[kernel.index(axis)] for axis in op.spatial)
    cut = ir.call_op("strided_slice", weight, begin=tuple(begin), end=tuple(end), strides=(1,) * kernel.rank)
    return ir.call_op(op.name, data, cut, **{**op.attributes(), "padding": tuple(pads), "kernel_size": size})


def _sees(first: int, stride: int, extent: int, outputs: int) -> bool:
    """True if a tap that is at ``first`` in window 0 is inside the image in some window."""
    window = max(0, -(first // stride))
    return window < outputs and window * stride + first < extent


class Legalize(RulePass, opt_level=3):
    """Transposed convolutions with constant weights become convolutions, which have fast kernels."""

    rules = (transposed_convolution_to_convolution,)
