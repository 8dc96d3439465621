"""MultiplyByParts: dense layers by packed weights as products of bytes: what they give, what stays in floats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from minitvm.ir import builder as ir
from minitvm.ir.decision import decisions
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Expr, Function, Module, Tuple, Var
from minitvm.ir.ops.more.qnn_blocks import DenseBlocks, QuantizeBlocks
from minitvm.ir.visitor import calls
from minitvm.passes import default_pipeline
from minitvm.passes.by_parts import MultiplyByParts
from minitvm.target import MachineModel

UNITS, BLOCKS = 21, 3


def weight(bits: int = 4, block: int = 32, zeros: bool = False, dtype: str = "float32", zero: str = "uint8") -> Expr:
    rng = np.random.default_rng(bits)
    codes = ir.const(rng.integers(0, 256, (UNITS, BLOCKS * block * bits // 8), "uint8"))
    scales = ir.const(rng.uniform(0.01, 0.1, (UNITS, BLOCKS)).astype(dtype))
    points = rng.integers(0, 2**bits, (UNITS, BLOCKS)) if zeros else np.asarray(2 ** (bits - 1))
    return ir.call_op(
        "qnn.dequantize_blocks", codes, scales, ir.const(points.astype(zero)), axis=1, bits=bits, block=block
    )


def layers(x: Var, *weights: Expr) -> Module:
    return Module(Function([x], Tuple([ir.call_op("nn.dense", x, w) for w in weights])))


def data(rows: int | str = "n", features: int = 96, dtype: str = "float32") -> Var:
    return ir.var("x", shape=(rows, features), dtype=dtype)


@pytest.mark.parametrize(("bits", "block", "zeros"), [(4, 32, False), (4, 16, True), (2, 64, True), (8, 32, True)])
def test_products_of_three_bytes_are_those_of_floats(bits: int, block: int, zeros: bool) -> None:
    x = np.random.default_rng(bits).normal(size=(4, BLOCKS * block)).astype("float32")
    x[0], x[1, 5], x[2] = 0, 3e4, x[2] * 1e-30  # a row of zeros, one number far above the others, tiny ones
    before = layers(data(*x.shape), weight(bits, block, zeros))
    after = MultiplyByParts()(before)
    assert any(isinstance(call.op, DenseBlocks) for call in calls(after.main.body))
    (found,), (expected,) = (evaluate(module, x) for module in (after, before))
    largest = np.abs(x).reshape(4, BLOCKS, block).max(axis=2)
    each = np.eye(x.shape[1], dtype="float32")
    (of_weights,) = evaluate(layers(data(*each.shape), weight(bits, block, zeros)), each)
    of_blocks = np.abs(of_weights).reshape(BLOCKS, block, UNITS).sum(axis=1)
    assert (np.abs(found - expected) <= 2.0**-22 * (largest @ of_blocks)).all()


def test_layers_of_one_input_share_its_numbers() -> None:
    after = MultiplyByParts()(layers(data(), weight(4), weight(4, zeros=True), weight(2)))
    ops = [call.op for call in calls(after.main.body) if isinstance(call, Call)]
    assert sum(isinstance(op, QuantizeBlocks) for op in ops) == 1
    assert sum(isinstance(op, DenseBlocks) for op in ops) == 3


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (lambda: layers(data(features=48), weight(block=16, zero="float32")), "its rows are not float32, or its zero"),
        (
            lambda: layers(data(dtype="float16"), weight(dtype="float16")),
            "its rows are not float32, or its zero points",
        ),
        (lambda: layers(data(features=36), weight(block=12)), "its weights are not packed in whole blocks"),
    ],
)
def test_what_stays_in_floats_says_why(module: Callable[[], Module], reason: str) -> None:
    before = module()
    with decisions() as log:
        assert MultiplyByParts()(before) is before
    assert [d.reason[: len(reason)] for d in log if d.by == "MultiplyByParts"] == [reason]


def test_it_is_for_machines_with_products_of_bytes() -> None:
    for features in ((), ("dot4",)):
        names = [step.info.name for step in default_pipeline(MachineModel(64, 32, features=frozenset(features))).passes]
        assert ("MultiplyByParts" in names) == bool(features)
    last = names.index("AlterOpLayout")
    assert names[last - 2 : last] == ["MultiplyByParts", "CombineParallelBlocks"]
