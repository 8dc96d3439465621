"""SinkCast: of large weights in few bytes only what is read becomes floats, when it is read."""

from __future__ import annotations

import math
from typing import TypeGuard

import numpy as np

from minitvm.ir.decision import Declined, decide
from minitvm.ir.dims import Dim
from minitvm.ir.dtypes import bits_of, is_float
from minitvm.ir.evaluate import folded, unfoldable
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, Var
from minitvm.ir.ops.checks import OutOfRange
from minitvm.ir.ops.elemwise import BinaryOp, CastTo, Multiply
from minitvm.ir.ops.indexing import Take
from minitvm.ir.ops.nn_conv import Conv2d, Conv2dNCHWc, Convolution
from minitvm.ir.ops.nn_dense import Dense, DensePack, Matmul
from minitvm.ir.ops.nn_pad import Pad
from minitvm.ir.ops.quantize import Dequantize
from minitvm.ir.ops.quantize_blocks import DequantizeBlocks
from minitvm.ir.ops.slicing import Concatenate
from minitvm.ir.ops.transform import LayoutTransform, Reshape, Transpose
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import as_function, is_made_of, post_order, rebuild, rewrite, users
from minitvm.passes.bound import Bound, Of
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.places import in_pipeline
from minitvm.passes.scales import MODERATE

MANY_ROWS = {1: 32, 2: 4, 4: 4}
"""Rows of a product by integers, by how many of them are in a byte, beyond which float weights are faster: with int8
64 rows take 1.15 times as long, 8 rows 0.9; with 4 bits 8 rows 1.3 times, 4 rows as long, one row half."""
HUGE = 1 << 28
"""Bytes of floats from which integers are not folded, however many rows there are."""
_PRODUCTS = (Dense, Matmul, DensePack, Conv2d, Conv2dNCHWc)
MANY_PIXELS = 49
"""Pixels of a convolution in blocks up to which weights of any format stay; with 64 some of float16 took 1.2 times as
long, without blocks even few take 1.6 times."""
MOVES = (Transpose, Reshape, Pad, LayoutTransform, Concatenate)
LARGE = 1 << 22
"""Bytes of floats from which weights stay as they are stored; less is folded."""
SOONER = 16
"""Times as soon stay those of which several are in a byte: one row by 576 x 1536 of 4 bits takes half the time of
floats that come from memory."""


_BOUND = Bound(4, Of.SUMS, "a scale of weights, between 2^-64 and 2^64, is multiplied behind the product")


@in_pipeline(after="SinkReshape")
class SinkCast(FunctionPass, opt_level=2, bound=_BOUND):
    """Gathers and transposes of large weights are done before the weights are cast, scaled or dequantized.

    A table of int8 with a scale for each row is 4 times as large in float32; of what a gather takes, only that is
    made floats, in the gather's kernel.  A scale for each unit of a dense layer is multiplied by what the layer makes;
    all else is exact, an element is computed as before.
    """

    needs = (CastTo, Dequantize, DequantizeBlocks)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        readers = users(function.body)

        def visit(old: Expr, new: Expr) -> Expr:
            if not isinstance(new, Call):
                return new
            return _packed(old, new, readers) or _sunk(new)

        return as_function(rewrite(function, visit))


def _sunk(call: Call) -> Expr:
    if isinstance(call.op, Dequantize):
        return _scaled(call, call.op)
    if isinstance(call.op, (OutOfRange, Take, Transpose)) and isinstance(call.args[0], Call):
        blocks = call.args[0]
        if isinstance(blocks.op, DequantizeBlocks):
            return _of_blocks(call, blocks, blocks.op) or call
    if isinstance(call.op, (Dense, Conv2d)):
        return _scaled_behind(call)
    if not isinstance(call.op, (OutOfRange, Take, Transpose)) or not is_widened(call.args[0]):
        return call
    found = _before(call, call.args[0])
    if found is None:
        return call
    decide("SinkCast", call, "done before its operand becomes larger")
    return found


def kept_narrow(root: Expr, has_layouts: bool = False) -> set[Expr]:
    """Casts of large weights that only products read: their kernels make floats of what they read.

    ``has_layouts``: what is not in blocks now stays out of them.
    """
    nodes = post_order(root)
    if not any(isinstance(node, Call) and isinstance(node.op, SinkCast.needs) for node in nodes):
        return set()
    casts = [node for node in nodes if isinstance(node, Call) and is_cast_of_weights(node)]
    readers = users(root) if casts else {}
    plain = {c for c in casts if has_layouts and any(_is_plain(user) for user in readers.get(c, ()))}
    return {c for c in casts if c not in plain and all(_multiplies_by(user, c) for user in readers.get(c, ()))}


def _is_plain(user: Expr) -> bool:
    return isinstance(user, Call) and isinstance(user.op, Conv2d)


def is_cast_of_weights(node: Expr) -> TypeGuard[Call]:
    """True if a value is one large constant, moved at most, in another format."""
    if not isinstance(node, Call) or isinstance(node.op, BinaryOp) or not _keeps_places(node):
        return False
    stored = is_made_of(node.args[0], of=_is_stored) and is_made_of(*node.args[1:], of=lambda e: not isinstance(e, Var))
    return stored and node.tensor_type.is_static and _is_larger(node, sum(arg.tensor_type.nbytes for arg in node.args))


def _is_stored(node: Expr) -> bool:
    return isinstance(node, (Constant, Tuple)) or (isinstance(node, Call) and isinstance(node.op, MOVES))


def _multiplies_by(user: Expr, weight: Call) -> bool:
    """Integers of many rows are worth folding: each tile of rows makes floats of them again."""
    if not isinstance(user, Call) or not isinstance(user.op, _PRODUCTS) or user.args[0] is weight:
        return False
    if lies_across_depth(weight, user):
        return False
    rows, in_byte = _rows(user), getattr(weight.op, "per_byte", 1)
    many = isinstance(rows, int) and rows > MANY_ROWS[in_byte] and weight.tensor_type.nbytes < HUGE
    if isinstance(user.op, Convolution) and not (isinstance(rows, int) and rows <= MANY_PIXELS):
        return False
    if many and not is_float(weight.args[0].dtype):
        decide("SinkCast", user, Declined(f"{rows} rows by weights of {8 // in_byte} bits are slower than by floats"))
        return False
    return True


def _rows(product: Call) -> Dim:
    """Rows of a matrix product, pixels of a convolution."""
    if not isinstance(product.op, Convolution):
        return product.tensor_type.shape[0]
    extents = product.op.layouts[2].primal_shape(product.tensor_type.shape)
    return math.prod(extents[axis] for axis in "NHW")


def lies_across_depth(weight: Expr, product: Call) -> bool:
    """True if weights are in blocks along anything but what the product sums over: no vector of units then has scales
    of its own."""
    if not isinstance(weight, Call) or not isinstance(weight.op, DequantizeBlocks):
        return False
    by_columns = isinstance(product.op, Matmul) and not product.op.transpose_b
    along_depth = weight.op.axis % weight.tensor_type.rank == (0 if by_columns else 1)
    return isinstance(product.op, Convolution) or not along_depth


def is_widened(expr: Expr) -> bool:
    """True if a value is large, and made of constants that take less memory, element by element."""
    if not isinstance(expr, Call) or not isinstance(expr.type, TensorType) or not expr.type.is_static:
        return False
    if not is_made_of(expr, of=lambda e: isinstance(e, Constant) or _keeps_places(e)):
        return False
    return _is_larger(expr, sum(node.value.nbytes for node in post_order(expr) if isinstance(node, Constant)))


def _is_larger(expr: Expr, nbytes: int) -> bool:
    several = any(getattr(node.op, "per_byte", 1) > 1 for node in post_order(expr) if isinstance(node, Call))
    return expr.tensor_type.nbytes > max(LARGE // SOONER if several else LARGE, nbytes)


def _keeps_places(node: Expr) -> bool:
    if not isinstance(node, Call):
        return False
    scalars = isinstance(node.op, Dequantize) and all(arg.tensor_type.rank == 0 for arg in node.args[1:])
    return scalars or isinstance(node.op, (CastTo, BinaryOp, DequantizeBlocks))


def _packed(old: Expr, call: Call, readers: dict[Expr, list[Expr]]) -> Expr | None:
    """Large weights of 2 or 4 bits, a byte each so far, as bytes of several along their blocks; ``None`` of others."""
    op, data = call.op, call.args[0] if call.args else None
    if isinstance(data, Call) and isinstance(data.op, CastTo):
        data = data.args[0]
    if not isinstance(op, (Dequantize, DequantizeBlocks)) or not isinstance(data, Constant):
        return None
    folds = (folded(arg) if isinstance(arg, Call) and not unfoldable(arg) else arg for arg in call.args[1:])
    values = [arg.value for arg in folds if isinstance(arg, Constant)]
    few = bits_of(data.dtype) < 8 and not is_float(data.dtype) and data.tensor_type.rank == 2
    if not few or len(values) < 2 or not _is_larger(call, data.value.nbytes):
        return None
    axis, block = (op.axis % 2, op.block) if isinstance(op, DequantizeBlocks) else (1 - op.axis % 2, 0)
    if not block:  # one scale for each index of the other axis
        axis = axis if values[0].ndim else _depth(old, readers)
        block, shape = data.value.shape[axis], [1 if i == axis else n for i, n in enumerate(data.value.shape)]
        values = [np.broadcast_to(p.reshape(shape) if p.size > 1 else p, shape) for p in values]
    decide("SinkCast", call, f"its weights stay in {bits_of(data.dtype)} bits, several in a byte")
    return _in_bytes(call, data, axis, block, *values)


def _in_bytes(call: Call, data: Constant, axis: int, block: int, scale: np.ndarray, zero: np.ndarray) -> Expr:
    """Signed numbers and their zero points count from the least one."""
    bits = bits_of(data.dtype)
    least, count = 0 if data.dtype.startswith("u") else 2 ** (bits - 1), 8 // bits
    codes = np.moveaxis((data.value.astype("int8") + least).astype("uint8"), axis, -1)
    missing = -codes.shape[-1] % count
    codes = np.pad(codes, ((0, 0), (0, missing))).reshape(len(codes), -1, count)
    joined = np.bitwise_or.reduce(codes << np.arange(0, 8, bits, dtype="uint8"), axis=-1)
    stored = np.ascontiguousarray(np.moveaxis(joined, -1, axis))
    points = (zero.astype("int32") + least).astype("uint8")
    whole = points.reshape(-1)[:1].reshape(()) if np.all(points == points.flat[0]) else points
    op = DequantizeBlocks(axis, block, bits, data.value.shape[axis])
    return Call(
        op, (Constant(stored, data.name), Constant(np.ascontiguousarray(scale)), Constant(whole)), span=call.span
    )


def _depth(weights: Expr, readers: dict[Expr, list[Expr]]) -> int:
    """The axis of a matrix that its reader sums over, or does not look up along."""
    for user in readers.get(weights, ()):
        if not isinstance(user, Call):
            continue
        if isinstance(user.op, Transpose):
            return 1 - _depth(user, readers)
        if isinstance(user.op, Take) and user.op.axis is not None:
            return 1 - user.op.axis % 2
        if isinstance(user.op, Matmul):
            return int(user.op.transpose_b)
    return 1


def _of_blocks(call: Call, blocks: Call, op: DequantizeBlocks) -> Expr | None:
    """A gather or a transpose done to bytes, scales and zero points; ``None`` of one along the blocks."""
    own, rank = op.axis % blocks.tensor_type.rank, blocks.tensor_type.rank
    if not is_cast_of_weights(blocks):
        return None
    if isinstance(call.op, OutOfRange):  # of its operand it reads the shape
        apart = all(axis % rank != own for axis in call.op.axes)
        return rebuild(call, (blocks.args[0], *call.args[1:])) if apart else None
    if isinstance(call.op, Transpose):
        axis = [a % rank for a in call.op.axes or range(rank)[::-1]].index(own)
    else:
        assert isinstance(call.op, Take)
        if call.op.axis is None or call.op.axis % rank == own:
            return None
        axis = own + (call.tensor_type.rank - rank if call.op.axis % rank < own else 0)
    decide("SinkCast", call, "done before its operand becomes larger")
    args = [arg if arg.tensor_type.rank == 0 else rebuild(call, (arg, *call.args[1:])) for arg in blocks.args]
    return Call(op.with_attributes(axis=axis), args, span=call.span)


def _scaled(call: Call, op: Dequantize) -> Expr:
    """Large weights with a scale for each index of an axis, and no zero points: a cast, then a factor."""
    data, scale, zero = call.args
    if not (isinstance(data, Constant) and isinstance(scale, Constant) and isinstance(zero, Constant)):
        return call
    by_axis = scale.tensor_type.rank == 1 and scale.dtype == op.out_dtype == "float32" and not zero.value.any()
    if not by_axis or not _is_larger(call, data.value.nbytes):
        return call
    shape = [1] * data.tensor_type.rank
    shape[op.axis] = scale.tensor_type.size
    cast = Call(CastTo("float32"), (data,), span=call.span)
    return Call(Multiply(), (cast, Constant(scale.value.reshape(shape), scale.name)), span=call.span)


def _scaled_behind(call: Call) -> Expr:
    """A product by large weights with a factor for each unit: the result has the factor."""
    x, weight = call.args
    if not isinstance(weight, Call) or not isinstance(weight.op, Multiply) or not is_widened(weight):
        return call
    cast, factor = weight.args
    units, axes = weight.tensor_type.shape[0], (1,) * (weight.tensor_type.rank - 1)
    if not isinstance(factor, Constant) or factor.value.shape != (units, *axes) or not isinstance(cast, Call):
        return call
    if isinstance(call.op, Conv2d) and (call.op.kernel_layout[0], call.op.layouts[2].primal) != ("O", "NCHW"):
        return call
    plain = rebuild(call, (x, cast))
    if not is_cast_of_weights(cast) or not _multiplies_by(plain, cast):
        return call
    refusal = MODERATE.refusal(factor.value)
    decide(
        "SinkCast", call, refusal or "its result is multiplied by the weights' scale, and the weights stay as they are"
    )
    return (
        call
        if refusal
        else Call(Multiply(), (plain, Constant(factor.value.reshape(-1, *axes[1:]), factor.name)), span=call.span)
    )


def _before(call: Call, operand: Expr) -> Expr | None:
    """The call done to the constants that ``operand`` is made of; ``None`` where one has another shape."""
    if isinstance(call.op, OutOfRange):  # of its operand it reads the shape
        whole = next(node for node in post_order(operand) if node.tensor_type.shape == operand.tensor_type.shape)
        return rebuild(call, (whole, *call.args[1:]))
    if isinstance(operand, Constant):
        return _of_constant(call, operand)
    assert isinstance(operand, Call)
    if isinstance(operand.op, DequantizeBlocks):
        inner = rebuild(call, (operand, *call.args[1:]))
        return _of_blocks(inner, operand, operand.op) if isinstance(inner, Call) else None
    args = [_before(call, arg) for arg in operand.args]
    return None if None in args else rebuild(operand, [arg for arg in args if arg is not None])


def _of_constant(call: Call, constant: Constant) -> Expr | None:
    """Of a scalar the scalar; of what is spread along the axis that is gathered from nothing."""
    whole, own = call.args[0].tensor_type, constant.tensor_type
    if own.rank == 0:
        return constant
    if own.rank != whole.rank:
        return None
    if isinstance(call.op, Take) and (call.op.axis is None or own.shape[call.op.axis] != whole.shape[call.op.axis]):
        return None
    return rebuild(call, (constant, *call.args[1:]))
