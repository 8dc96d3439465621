"""SinkCast: of large weights in few bytes only what is read becomes floats, when it is read."""

from __future__ import annotations

from minitvm.ir.decision import decide
from minitvm.ir.dtypes import is_float
from minitvm.ir.expr import Call, Constant, Expr, Function, Module
from minitvm.ir.ops.control import OutOfRange
from minitvm.ir.ops.elemwise import BinaryOp, CastTo, Multiply
from minitvm.ir.ops.indexing import Take
from minitvm.ir.ops.nn_dense import Dense, DensePack, Matmul
from minitvm.ir.ops.nn_pad import Pad
from minitvm.ir.ops.quantize import Dequantize
from minitvm.ir.ops.transform import LayoutTransform, Reshape, Transpose
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import as_function, post_order, rebuild, rewrite, users
from minitvm.passes.manager import FunctionPass, PassContext

MANY_ROWS = 32
"""Of a product by int8 weights, from which on float ones are faster: 64 rows take 1.15 times as long, 8 rows 0.9."""
MOVES = (Transpose, Reshape, Pad, LayoutTransform)
LARGE = 1 << 22
"""Bytes of floats from which weights stay as they are stored; less is folded."""


class SinkCast(FunctionPass, opt_level=2):
    """Gathers and transposes of large weights are done before the weights are cast, scaled or dequantized.

    A table of int8 with a scale for each row is 4 times as large in float32; of what a gather takes, only that is
    made floats, in the gather's kernel.  A scale for each unit of a dense layer is multiplied by what the layer makes;
    all else is exact, an element is computed as before.
    """

    needs = (CastTo, Dequantize)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return as_function(rewrite(function, lambda _, new: _sunk(new) if isinstance(new, Call) else new))


def _sunk(call: Call) -> Expr:
    if isinstance(call.op, Dequantize):
        return _scaled(call, call.op)
    if isinstance(call.op, Dense):
        return _scaled_behind(call)
    if not isinstance(call.op, (OutOfRange, Take, Transpose)) or not is_widened(call.args[0]):
        return call
    found = _before(call, call.args[0])
    if found is None:
        return call
    decide("SinkCast", call, "done before its operand becomes larger")
    return found


def kept_narrow(root: Expr) -> set[Expr]:
    """Casts of large weights that only matrix products read: their kernels make floats of what they read."""
    casts = [node for node in post_order(root) if isinstance(node, Call) and is_cast_of_weights(node)]
    readers = users(root) if casts else {}
    return {cast for cast in casts if all(_multiplies_by(user, cast) for user in readers.get(cast, ()))}


def is_cast_of_weights(node: Expr) -> bool:
    """Whether a value is one large constant, moved at most, in another format."""
    if not isinstance(node, Call) or isinstance(node.op, BinaryOp) or not _keeps_places(node):
        return False
    inside = post_order(*node.args)
    stored = all(isinstance(e, Constant) or (isinstance(e, Call) and isinstance(e.op, MOVES)) for e in inside)
    return stored and node.tensor_type.is_static and _is_larger(node, sum(arg.tensor_type.nbytes for arg in node.args))


def _multiplies_by(user: Expr, weight: Call) -> bool:
    """Integers of many rows are worth folding: each tile of rows makes floats of them again."""
    if not isinstance(user, Call) or not isinstance(user.op, (Dense, Matmul, DensePack)) or user.args[0] is weight:
        return False
    rows = user.tensor_type.shape[0]
    return not isinstance(rows, int) or rows <= MANY_ROWS or is_float(weight.args[0].dtype)


def is_widened(expr: Expr) -> bool:
    """Whether a value is large, and made of constants that take less memory, element by element."""
    if not isinstance(expr, Call) or not isinstance(expr.type, TensorType) or not expr.type.is_static:
        return False
    leaves = [node for node in post_order(expr) if isinstance(node, Constant)]
    known = all(isinstance(node, Constant) or _keeps_places(node) for node in post_order(expr))
    return known and _is_larger(expr, sum(leaf.value.nbytes for leaf in leaves))


def _is_larger(expr: Expr, nbytes: int) -> bool:
    return expr.tensor_type.nbytes > max(LARGE, nbytes)


def _keeps_places(node: Expr) -> bool:
    if not isinstance(node, Call):
        return False
    scalars = isinstance(node.op, Dequantize) and all(arg.tensor_type.rank == 0 for arg in node.args[1:])
    return scalars or isinstance(node.op, (CastTo, BinaryOp))


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
    units = weight.tensor_type.shape[0]
    if not isinstance(factor, Constant) or factor.value.shape != (units, 1) or not isinstance(cast, Call):
        return call
    plain = rebuild(call, (x, cast))
    if not is_cast_of_weights(cast) or not _multiplies_by(plain, cast):
        return call
    decide("SinkCast", call, "its result is multiplied by the weights' scale, and the weights stay as they are")
    return Call(Multiply(), (plain, Constant(factor.value.reshape(-1), factor.name)), span=call.span)


def _before(call: Call, operand: Expr) -> Expr | None:
    """The call done to the constants that ``operand`` is made of; ``None`` where one has another shape."""
    if isinstance(call.op, OutOfRange):  # of its operand it reads the shape
        whole = next(node for node in post_order(operand) if node.tensor_type.shape == operand.tensor_type.shape)
        return rebuild(call, (whole, *call.args[1:]))
    if isinstance(operand, Constant):
        return _of_constant(call, operand)
    assert isinstance(operand, Call)
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
