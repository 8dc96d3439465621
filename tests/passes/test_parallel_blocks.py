"""CombineParallelBlocks: products of the same quantized rows become one, where panels end with the units of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from minitvm.ir import builder as ir
from minitvm.ir.decision import decisions
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Expr, Function, Module, Tuple, Var
from minitvm.ir.ops.more.qnn_blocks import DenseBlocks
from minitvm.ir.visitor import calls
from minitvm.passes.parallel_blocks import CombineParallelBlocks

BLOCK, BLOCKS = 32, 3


def rows(x: Expr) -> list[Expr]:
    numbers, *others = [*ir.call_op("qnn.quantize_blocks", x, block=BLOCK)]
    return [ir.call_op("qnn.words", numbers), *others]


def product(given: Sequence[Expr], units: int, bits: int = 4, zeros: bool = False, zero: int = 8, **other: Any) -> Expr:
    rng = np.random.default_rng(units)
    codes = rng.integers(0, 256, (units, BLOCKS * BLOCK * bits // 8), "uint8")
    scales = rng.uniform(0.5, 1.5, (units, BLOCKS)).astype(other.get("dtype", "float32"))
    panels = (
        ir.call_op("qnn.block_panels", ir.const(codes), bits=bits),
        ir.call_op("qnn.block_panels", ir.const(scales)),
    )
    points = ir.const(rng.integers(0, 15, scales.shape, "uint8"))
    point = ir.call_op("qnn.block_panels", points) if zeros else ir.const(np.asarray(zero, "uint8"))
    return ir.call_op("qnn.dense_blocks", *given, *panels, point, units=units, block=BLOCK, bits=bits)


def variable() -> Var:
    return ir.var("x", shape=("n", BLOCKS * BLOCK), dtype="float32")


def widths(module: Module) -> list[int]:
    return sorted(call.op.units for call in calls(module.main.body) if isinstance(call.op, DenseBlocks))


def check(x: Var, results: Sequence[Expr], expected: list[int]) -> None:
    """The products that are left, and equal bits."""
    before = Module(Function([x], Tuple(results)))
    after = CombineParallelBlocks()(before)
    assert widths(after) == expected
    given = np.random.default_rng(0).normal(size=(3, BLOCKS * BLOCK)).astype("f")
    (found, wanted) = (evaluate(module, given) for module in (after, before))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("zeros", [False, True])
def test_queries_keys_and_values_are_one_product(zeros: bool) -> None:
    x = variable()
    y = rows(x)
    check(x, [product(y, n, zeros=zeros) for n in (48, 16, 32)], [96])


def test_one_may_end_within_a_panel() -> None:
    """It comes last; its results stay where they were."""
    x = variable()
    y = rows(x)
    check(x, [product(y, n) for n in (21, 48, 32)], [101])
    check(x, [product(y, n) for n in (21, 48, 5)], [5, 69])
    check(x, [product(y, n) for n in (21, 5)], [5, 21])


def test_what_one_makes_of_another_stays_behind_it() -> None:
    x = variable()
    y = rows(x)
    first, second = product(y, 96), product(y, 64)
    z = rows(first)
    check(x, [ir.concatenate([product(z, 16), product(z, 32), second], axis=1)], [48, 160])


def test_those_that_differ_stay() -> None:
    x = variable()
    y, z = rows(x), rows(ir.call_op("nn.relu", x))
    apart = [product(y, 16), product(z, 16), product(y, 16, bits=8), product(y, 16, zeros=True), product(y, 16, zero=7)]
    check(x, [*apart, product(y, 16, dtype="float16")], [16] * 6)


def test_weights_that_the_model_makes_stay_and_it_says_why() -> None:
    x = variable()
    y = rows(x)
    given = ir.var("w", shape=(1, BLOCKS * BLOCK // 8, 16), dtype="int32")
    scales, point = ir.const(np.ones((1, BLOCKS, 16), "f")), ir.const(np.uint8(8))
    made = ir.call_op("qnn.dense_blocks", *y, given, scales, point, units=16, block=BLOCK, bits=4)
    module = Module(Function([x, given], Tuple([product(y, 16), made])))
    with decisions() as found:
        assert widths(CombineParallelBlocks()(module)) == [16, 16]
    assert {one.reason for one in found} == {"no other product of its rows ends with a panel of units"}
