"""MultiplyByParts: dense layers by packed weights of few bits, made of products of bytes.

    dense(x, dequantize_blocks(w, s, z))  ->  dense_blocks(quantize_blocks(x, parts=3), w, s, z)

A row becomes whole numbers of three bytes, with a scale for each block of weights: the largest of a block keeps 23 bits
and its sign.  Products with each of the bytes are added up in integers, which are exact, and the three sums, 256 times
as much each, in floats.  Three products of bytes take less time than it takes to make floats of the weights.
"""

from __future__ import annotations

from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, TupleGetItem
from minitvm.ir.ops.more.qnn_blocks import BYTES, MOST_PARTS, BlockPanels, DenseBlocks, QuantizeBlocks
from minitvm.ir.ops.nn_dense import Dense
from minitvm.ir.ops.qnn import Words
from minitvm.ir.ops.quantize_blocks import DequantizeBlocks
from minitvm.ir.visitor import as_function, rewrite
from minitvm.passes.bound import Bound, Of
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.places import in_pipeline

_BOUND = Bound(8, Of.SUMS, "of a block of a row, the largest number keeps 23 bits, others what is above its last")


@in_pipeline(before="AlterOpLayout", feature="dot4")
class MultiplyByParts(FunctionPass, opt_level=3, bound=_BOUND):
    """Dense layers of float32 by packed constants, on machines with dot products of bytes."""

    needs = (DequantizeBlocks,)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        rows: dict[tuple[Expr, int], list[Expr]] = {}

        def visit(old: Expr, new: Expr) -> Expr:
            if not isinstance(new, Call) or not isinstance(new.op, Dense):
                return new
            data, weight = new.args
            if not isinstance(weight, Call) or not isinstance(weight.op, DequantizeBlocks):
                return new
            refusal = _refusal(new, weight, weight.op)
            decide(self.info.name, old, refusal or f"rows are numbers of {MOST_PARTS} bytes, by blocks")
            if refusal is not None:
                return new
            key = data, weight.op.block
            if key not in rows:
                rows[key] = _in_parts(data, weight.op.block)
            return _product(rows[key], weight, weight.op)

        return as_function(rewrite(function, visit))


def _refusal(call: Call, weight: Call, op: DequantizeBlocks) -> Declined | None:
    codes, scales, zeros = (arg.tensor_type for arg in weight.args)
    if not all(isinstance(arg, Constant) for arg in weight.args):
        return Declined("its weights are made by the model")
    if {arg.dtype for arg in (*call.args, call)} != {"float32"} or zeros.dtype != "uint8":
        return Declined("its rows are not float32, or its zero points no bytes")
    per_word = 8 * BYTES // op.bits if op.bits else op.block + 1
    whole = op.axis % codes.rank == 1 and codes.static_shape[1] * 8 == scales.static_shape[1] * op.block * op.bits
    return None if whole and not op.block % per_word else Declined("its weights are not packed in whole blocks")


def _in_parts(data: Expr, block: int) -> list[Expr]:
    """Words of the numbers, scales and sums of a row's blocks; (m, k) -> (3 * m, ...), (m, b), (3 * m, b)."""
    made = Call(QuantizeBlocks(block, MOST_PARTS), (data,))
    numbers, scales, sums = (TupleGetItem(made, i) for i in range(3))
    count = data.tensor_type.shape[0] * MOST_PARTS

    def flat(part: Expr) -> Expr:
        return ir.reshape(part, newshape=(count, part.tensor_type.shape[2]), allowzero=True)

    return [flat(Call(Words(), (numbers,))), scales, flat(sums)]


def _product(rows: list[Expr], weight: Call, op: DequantizeBlocks) -> Expr:
    codes, scales, zeros = weight.args
    panels = [Call(BlockPanels(), (part,)) if part.tensor_type.rank else part for part in (scales, zeros)]
    words, units = Call(BlockPanels(bits=op.bits), (codes,)), codes.tensor_type.static_shape[0]
    made = DenseBlocks(units, op.block, op.bits, MOST_PARTS)
    return Call(made, (*rows, words, *panels))
