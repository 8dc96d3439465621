"""CanonicalizeOps: one way to say a thing, so that later passes know one operator less."""

from __future__ import annotations

from minitvm.ir import builder as ir
from minitvm.ir.expr import Call, Expr
from minitvm.ir.ops.nn_dense import BiasAdd
from minitvm.ir.pattern import call, value
from minitvm.passes.rule import RulePass, rule


@rule(call(BiasAdd, value("data"), value("bias"), name="biased"))
def bias_add_to_add(biased: Call, data: Expr, bias: Expr) -> Expr:
    """``nn.bias_add(x, b, axis)`` is ``add(x, b)`` with ones behind ``b``'s axis."""
    assert isinstance(biased.op, BiasAdd)
    rank = data.tensor_type.rank
    after = rank - 1 - biased.op.axis % rank
    wide = ir.expand_dims(bias, axis=1, num_newaxis=after) if after else bias
    return ir.add(data, wide)


class CanonicalizeOps(RulePass, opt_level=3):
    """``nn.bias_add`` becomes ``add``, which scale folding and the layout passes know."""

    rules = (bias_add_to_add,)
