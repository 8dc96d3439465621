"""Products by weights in blocks: a block's numbers are summed as they are, its scale multiplies their sum."""

from __future__ import annotations

import numpy as np
import pytest

from minitvm.codegen.lower import lower
from minitvm.codegen.simplify import simplify
from minitvm.ir.builder import call_op, var
from minitvm.ir.expr import Function
from minitvm.ir.loop import For, Kernel, Load, walk_exprs, walk_stmts
from minitvm.ir.loop.interp import run_kernel
from minitvm.target import MachineModel

MACHINES = {"SSE": MachineModel(16, 16), "AVX2": MachineModel(32, 16, threads=2), "AVX-512": MachineModel(64, 32)}
UNITS = 37


def _kernel(arrays: list[np.ndarray], machine: MachineModel, block: int, bits: int) -> Kernel:
    params = [var(f"p{i}", shape=a.shape, dtype=str(a.dtype)) for i, a in enumerate(arrays)]
    x, data, scale, zero = params
    depth = x.tensor_type.static_shape[1]
    weights = call_op("qnn.dequantize_blocks", data, scale, zero, axis=1, block=block, bits=bits, extent=depth)
    layout = f"NC{machine.lanes('float32')}n"
    body = call_op("nn.contrib_dense_pack", x, weights, weight_layout=layout, units=UNITS)
    return simplify(lower(Function(tuple(params), body), "product", machine))


def _arrays(rows: int, depth: int, block: int, bits: int, zeros: str, lanes: int) -> list[np.ndarray]:
    rng, panels, blocks = np.random.default_rng(rows), -(-UNITS // lanes), -(-depth // block)
    per_byte = 8 // bits if bits else 1
    points = rng.uniform(0, 4, (panels, blocks, lanes)) if zeros == "floats" else rng.integers(0, 4, blocks * lanes)
    return [
        rng.normal(size=(rows, depth)).astype("float32"),
        rng.integers(0, 256, (panels, -(-depth // per_byte), lanes), "uint8"),
        rng.uniform(0.1, 1, (panels, blocks, lanes)).astype("float32"),
        np.asarray(3, "uint8")
        if zeros == "one"
        else points.astype("float32")
        if zeros == "floats"
        else np.tile(points.reshape(blocks, lanes), (panels, 1, 1)).astype("uint8"),
    ]


def _expected(arrays: list[np.ndarray], block: int, bits: int) -> np.ndarray:
    """In double precision."""
    x, data, scale, zero = arrays
    depth, per_byte, place = x.shape[1], 8 // bits if bits else 1, np.arange(x.shape[1])
    codes = data[:, place // per_byte] >> (place % per_byte * bits).astype("uint8")[:, None]
    numbers = (codes & (2**bits - 1) if bits else codes).astype("float64")
    points = zero[:, place // block] if zero.ndim else zero
    weights = (numbers - points) * scale[:, place // block].astype("float64")
    return np.asarray(x @ weights.transpose(1, 0, 2).reshape(depth, -1)[:, :UNITS])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("rows", "depth", "block", "bits", "zeros"),
    [
        (1, 64, 32, 4, "one"),
        (1, 70, 16, 4, "blocks"),
        (3, 37, 16, 4, "floats"),
        (8, 50, 32, 2, "blocks"),
        (4, 15, 32, 2, "one"),
        (9, 33, 16, 4, "blocks"),
        (2, 40, 16, 8, "blocks"),
        (5, 24, 16, 0, "one"),
    ],
)
def test_products_are_those_of_what_the_numbers_stand_for(
    machine: str, rows: int, depth: int, block: int, bits: int, zeros: str
) -> None:
    """Whole blocks and a last one of fewer numbers, bytes that are partly filled, units that fill no panel."""
    model = MACHINES[machine]
    arrays = _arrays(rows, depth, block, bits, zeros, model.lanes("float32"))
    expected = _expected(arrays, block, bits)
    (found,) = run_kernel(_kernel(arrays, model, block, bits), *arrays, check_races=True)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6 * float(np.abs(expected).max()))


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_a_scale_is_read_once_for_its_block(rows: int) -> None:
    """By the loops around those that read numbers, whose sums the registers hold."""
    machine = MACHINES["AVX-512"]
    kernel = _kernel(_arrays(rows, 64, 32, 4, "one", 16), machine, 32, 4)
    steps = [s for s in walk_stmts(kernel.body) if isinstance(s, For) and s.var.name == "k"]
    read = {e.buffer.name for s in steps for t in walk_stmts(s) for e in walk_exprs(t) if isinstance(e, Load)}
    assert {"p0", "p1"} <= read
    assert "p2" not in read


@pytest.mark.parametrize("value", [np.inf, -np.inf, 3e37])
def test_numbers_out_of_scale_stay_what_they_are(value: float) -> None:
    """Infinity is no NaN for weights other than zero, and no sum of codes overflows where that of weights does not."""
    arrays = _arrays(1, 32, 32, 4, "one", 16)
    arrays[0][:] = 0
    arrays[0][0, 5] = value
    arrays[1][:] = 0xEE
    (found,) = run_kernel(_kernel(arrays, MACHINES["AVX-512"], 32, 4), *arrays)
    np.testing.assert_allclose(found, _expected(arrays, 32, 4).astype("float32"), rtol=1e-6)
