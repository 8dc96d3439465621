"""``qnn.dense_blocks`` and what makes its operands: every tile on every machine, edges, numbers that are none."""

from __future__ import annotations

import numpy as np
import pytest
from operator_cases.products import few_bits_operands

import minitvm
from minitvm.codegen.problem import Problem
from minitvm.codegen.simplify import simplify
from minitvm.codegen.templates.dense_blocks import DenseBlocks
from minitvm.ir import builder as ir
from minitvm.ir.expr import Call
from minitvm.ir.loop import (
    Buffer,
    Intrin,
    Kernel,
    Load,
    Prefetch,
    Seq,
    Stmt,
    Store,
    const,
    map_stmt,
    nest,
    seq,
    walk_exprs,
    walk_stmts,
)
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.ops.more.qnn_blocks import DenseBlocks as Op
from minitvm.ir.ops.more.qnn_blocks import QuantizeBlocks, panels, panels_of_words
from minitvm.target import MachineModel

MACHINES = {
    "SSE": MachineModel(16, 16),
    "AVX2": MachineModel(32, 16, threads=2),
    "VNNI": MachineModel(64, 32, features=frozenset(["dot4"])),
    "NEON": MachineModel(16, 32, features=frozenset(["neon", "sdot4"])),
}


def _call(operands: list[np.ndarray], units: int, block: int, bits: int, parts: int = 1) -> Call:
    variables = [ir.var(f"p{i}", shape=a.shape, dtype=str(a.dtype)) for i, a in enumerate(operands)]
    call = ir.call_op("qnn.dense_blocks", *variables, units=units, block=block, bits=bits, parts=parts)
    assert isinstance(call, Call)
    return call


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("sizes", "block", "bits", "zeros", "parts"),
    [
        ((1, 3, 50), 16, 4, False, 1),
        ((9, 2, 33), 32, 4, True, 1),
        ((3, 2, 16), 16, 8, True, 1),
        ((2, 1, 7), 64, 2, False, 1),
        ((5, 2, 33), 32, 4, True, 3),
    ],
)
def test_every_tile_on_every_machine(
    machine: str, sizes: tuple[int, int, int], block: int, bits: int, zeros: bool, parts: int
) -> None:
    operands = few_bits_operands(np.random.default_rng(3), sizes, block, bits, zeros, "float32", parts)
    call = _call(operands, sizes[-1], block, bits, parts)
    expected = Op(sizes[-1], block, bits, parts).reference(*operands)
    template = DenseBlocks(Problem.of(call), MACHINES[machine])
    for choice in template.candidates:
        kernel = template.kernel(choice)
        assert isinstance(kernel, Kernel)
        (found,) = run_kernel(simplify(kernel), *operands, check_races=True)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max(), err_msg=str(choice))


@pytest.mark.parametrize(
    ("machine", "bits", "wanted"), [("NEON", 4, "sdot4"), ("NEON", 8, "sdot4"), ("VNNI", 4, "dot4")]
)
def test_weights_are_signed_bytes_where_the_machine_has_products_of_such(machine: str, bits: int, wanted: str) -> None:
    operands = few_bits_operands(np.random.default_rng(3), (1, 1, 16), 16, bits, False, "float32")
    kernel = DenseBlocks(Problem.of(_call(operands, 16, 16, bits)), MACHINES[machine]).kernel()
    assert isinstance(kernel, Kernel)
    names = {e.name for s in walk_stmts(kernel.body) for e in walk_exprs(s) if isinstance(e, Intrin)}
    assert {n for n in names if "dot" in n} == {wanted}


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_product_is_that_of_what_the_numbers_stand_for(bits: int) -> None:
    """Units that no panel is full of, and a last block that is partly filled: against floats, spelled out."""
    rng, (rows, features, units), block = np.random.default_rng(bits), (4, 40, 21), 16
    x = rng.normal(size=(rows, features)).astype("float32")
    packed = rng.integers(0, 256, (units, 3 * block * bits // 8), "uint8")
    scale, zero = rng.uniform(0.1, 1, (units, 3)).astype("float32"), rng.integers(0, 2**bits, (units, 3), "uint8")
    numbers, scales, sums = QuantizeBlocks(block).reference(x)
    assert np.abs(numbers).max(axis=1).tolist() == [127] * rows and not numbers[:, features:].any()
    held = panels_of_words(packed, bits), panels(scale), panels(zero)
    found = Op(units, block, bits).reference(numbers.view("<i4"), scales, sums, *held)
    codes = np.stack([packed >> at & 2**bits - 1 for at in range(0, 8, bits)], -1).reshape(units, -1).astype("int64")
    weight = (codes - zero.repeat(block, 1)) * scale.repeat(block, 1)
    rounded = numbers * scales.repeat(block, 1)
    np.testing.assert_allclose(found, rounded @ weight.T, rtol=1e-5, atol=1e-4)
    assert np.abs(rounded[:, :features] - x).max() <= scales.max() / 2


def test_a_row_of_zeros_is_zeros_and_one_of_no_numbers_is_none() -> None:
    """A block of zeros divides by nothing; NaN or infinity anywhere makes all of its row NaN, and no other row."""
    x = np.random.default_rng(1).normal(size=(5, 32)).astype("float32")
    x[0], x[1, 3], x[2, 20], x[3, 5] = 0, np.nan, np.inf, -np.inf
    operands = few_bits_operands(np.random.default_rng(2), (5, 2, 16), 16, 4, False, "float32")
    parameter, weights = ir.var("x", shape=x.shape), [ir.const(a) for a in operands[3:]]
    numbers, *others = ir.call_op("qnn.quantize_blocks", parameter, block=16)
    product = ir.call_op("qnn.dense_blocks", ir.call_op("qnn.words", numbers), *others, *weights, units=16, block=16)
    library = minitvm.build(minitvm.Module(ir.function(product, [parameter])))
    executor = minitvm.GraphModule(library["default"]())
    executor.run(x=x)
    found = executor.get_output(0).numpy()
    assert not found[0].any() and np.isnan(found[1:4]).all() and np.isfinite(found[4]).all()
    known = QuantizeBlocks(16).reference(x)
    np.testing.assert_array_equal(known[1][:4, 1], [0, known[1][1, 1], np.inf, known[1][3, 1]])
    expected = Op(16, 16, 4).reference(known[0].view("<i4"), *known[1:], *operands[3:])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_few_rows_fetch_the_weights_that_come_next() -> None:
    """Into the first level, all lines of the weights and of their scales but those of the first 32 blocks, whether they
    are of one panel or of some; more rows than two fetch none."""
    for rows, blocks in ((1, 4), (1, 80), (4, 4)):
        operands = few_bits_operands(np.random.default_rng(3), (rows, blocks, 16 * 12), 32, 4, False, "float32")
        kernel = DenseBlocks(Problem.of(_call(operands, 16 * 12, 32, 4)), MACHINES["VNNI"]).kernel()
        assert isinstance(kernel, Kernel)
        for number, words in ((3, 4), (4, 1)):
            found = _fetched(kernel, number)
            assert (found == 0).sum() == (32 * words if rows == 1 else found.size)
            assert not found[0, 0] and (found[-1].all() if rows == 1 else not found.any())


def _fetched(kernel: Kernel, number: int) -> np.ndarray:
    """1 for each line of an operand, of 16 elements, that the kernel names in a prefetch, else 0."""
    operand = kernel.inputs[number]
    noticed = Buffer("noticed", operand.shape, "int32")

    def noted(stmt: Stmt) -> Stmt:
        match stmt:
            case Prefetch(Load(buffer, index), level):
                assert level == 1
                return Store(noticed, index, const(1, "int32")) if buffer == operand else Seq(())
            case Store():
                return Seq(())
        return stmt

    none = nest(operand.shape, lambda *i: Store(noticed, i, const(0, "int32")))
    traced = Kernel("k", (*kernel.inputs, noticed), seq(none, map_stmt(kernel.body, lambda e: e, noted)))
    (found,) = run_kernel(traced, *(np.zeros(b.shape, b.dtype) for b in kernel.inputs))
    return found[..., 0]
