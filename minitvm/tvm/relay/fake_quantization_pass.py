"""The pass FakeQuantizationToInteger as Relay has it: see ``minitvm.tvm.relay.fake_quantization``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from minitvm.errors import PassError
from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, describe_call
from minitvm.ir.op import Op
from minitvm.ir.ops.quantize import Dequantize, Quantize
from minitvm.ir.types import TupleType
from minitvm.ir.visitor import as_function, children, post_order, rewrite
from minitvm.passes import quantized
from minitvm.passes.manager import FunctionPass, Pass, PassContext
from minitvm.target import MachineModel
from minitvm.tvm.relay import fake_quantization_rules as fake_quantization_rules
from minitvm.tvm.relay.composed import made
from minitvm.tvm.relay.fake_quantization import Affine, Refused, Stored, Subgraph, is_source, requantized


class BetweenQuantizations(FunctionPass):
    """Makes integers of what is quantized; ``hard_fail`` raises where an operator in between stays as it is."""

    def __init__(self, hard_fail: bool, use_qat: bool, optional: Iterable[str]) -> None:
        self.hard_fail, self.use_qat, self.optional = hard_fail, use_qat, tuple(optional)
        self.info = replace(self.info, name="FakeQuantizationToInteger")

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        made_ = as_function(rewrite(function, lambda _, new: self._visit(new)))
        return as_function(rewrite(made_, lambda _, new: self._trained(new))) if self.use_qat else made_

    def _visit(self, node: Expr) -> Expr:
        if not isinstance(node, Call) or not isinstance(node.op, Quantize):
            return node
        data, scale, zero = node.args
        if not any(map(is_source, post_order(data, operands=lambda n: () if is_source(n) else children(n)))):
            return node
        try:
            out = Affine.of(scale, zero, node.op.out_dtype, node.op.axis, data.tensor_type.rank)
            found = Subgraph(out, self.optional).stored(data)
            if not isinstance(found, Stored):
                return node
            values = requantized(found, out, out.dtype).values
        except Refused as refusal:
            decide("FakeQuantizationToInteger", node, Declined(str(refusal)))
            if self.hard_fail:
                raise PassError(f"FakeQuantizationToInteger: {refusal}", where=describe_call(node)) from refusal
            return node
        decide("FakeQuantizationToInteger", node, "computes with integers")
        return values

    def _trained(self, node: Expr) -> Expr:
        """An operator all of whose arguments are dequantized, as one of integers that is dequantized."""
        if not isinstance(node, Call) or not isinstance(node.op, Op) or isinstance(node.op, (Quantize, Dequantize)):
            return node
        if not node.args or not all(map(is_source, node.args)) or isinstance(node.type, TupleType):
            return node
        try:
            found = Subgraph(None, self.optional).stored(node)
        except Refused as refusal:
            decide("FakeQuantizationToInteger", node, Declined(str(refusal)))
            return node
        if not isinstance(found, Stored):
            return node
        values, kind = found
        axis = kind.axis if kind.is_along else -1
        return made("qnn.dequantize", values, Constant(kind.scale), Constant(kind.zero), axis=axis)


def FakeQuantizationToInteger(
    hard_fail: Any = False, use_qat: bool = False, optional_qnn_ops: Iterable[str] | None = None
) -> Pass:
    """Relay's; minitvm's own, which a build runs, for the machine that stands in place of ``hard_fail``."""
    if isinstance(hard_fail, MachineModel):
        return quantized.FakeQuantizationToInteger(hard_fail)
    return BetweenQuantizations(bool(hard_fail), use_qat, optional_qnn_ops or ())
