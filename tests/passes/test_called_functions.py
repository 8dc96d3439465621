"""Calls of functions among those of operators: passes work around them and inside, and leave the calls."""

import pytest
from rewriting import random_array, run

from minitvm.ir.expr import Function, Module
from minitvm.ir.visitor import calls
from minitvm.passes import (
    AlterOpLayout,
    BackwardFoldScaleAxis,
    CanonicalizeCast,
    EliminateCommonSubexpr,
    FoldConstant,
    ForwardFoldScaleAxis,
    FuseOps,
    SimplifyInference,
)
from minitvm.passes.manager import FunctionPass
from minitvm.target import MachineModel

CALLED = """
def @main(%x: Tensor[(1, 8, 6, 6), float32]) {
  %0 = @half(nn.conv2d(multiply(@half(%x), 2f), meta["w"], padding=[1, 1, 1, 1]));
  cast(add(@half(multiply(%0, 3f)), @half(multiply(%0, 3f))), dtype="float64")
}
def @half(%a: Tensor[(1, 8, 6, 6), float32]) { nn.relu(multiply(%a, 0.5f)) }
"""
STEPS = [
    AlterOpLayout(MachineModel(vector_bytes=32, vector_registers=16)),
    BackwardFoldScaleAxis(),
    CanonicalizeCast(),
    EliminateCommonSubexpr(),
    FoldConstant(),
    ForwardFoldScaleAxis(),
    FuseOps(),
    SimplifyInference(),
]


def called(module: Module) -> int:
    """How many calls of functions that are no fused groups ``main`` has."""
    return sum(isinstance(call.op, Function) and not call.op.is_primitive for call in calls(module.main.body))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.info.name)
def test_calls_of_functions_stay(step: FunctionPass) -> None:
    assert called(run(step, CALLED, {"w": random_array((8, 8, 3, 3))})) == 4
