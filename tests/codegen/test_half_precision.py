"""float16 through templates: sums are kept in float32 and rounded once, so results are those of float64, rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from native_kernel import run_native

import minitvm.codegen.templates  # noqa: F401  (registers the templates)
from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.problem import TEMPLATES, Problem
from minitvm.codegen.simplify import simplify
from minitvm.ir.builder import call_op, var
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call
from minitvm.ir.loop import Kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.ir.op import Op
from minitvm.target import MachineModel

MACHINES = [MachineModel(64, 32, threads=2), MachineModel(32, 16, threads=1), MachineModel(16, 16, threads=3)]
ERROR = 5e-4  # of the largest: one rounding to float16

BLOCKED = {"data_layout": "NCHW8c", "kernel_layout": "OIHW8i8o", "out_layout": "NCHW8c"}
DEPTHWISE = {**BLOCKED, "kernel_layout": "OIHW1i8o", "groups": 16, "channels": 16}

CASES: dict[str, tuple[str, list[tuple[int, ...]], dict[str, Any]]] = {
    "dense": ("nn.dense", [(6, 64), (40, 64)], {}),
    "deep dense": ("nn.dense", [(5, 3072), (33, 3072)], {}),
    "packed dense": ("nn.contrib_dense_pack", [(3, 3072), (2, 3072, 16)], {"weight_layout": "NC16n"}),
    "matmul": ("nn.matmul", [(7, 500), (500, 41)], {}),
    "batch_matmul": ("nn.batch_matmul", [(2, 5, 300), (2, 32, 300)], {}),
    "conv2d": ("nn.conv2d", [(1, 20, 6, 40), (8, 20, 3, 3)], {"kernel_size": (3, 3), "padding": (1, 1)}),
    "blocked conv2d": (
        "nn.contrib_conv2d_NCHWc",
        [(1, 8, 5, 9, 8), (2, 8, 3, 3, 8, 8)],
        {"kernel_size": (3, 3), **BLOCKED},
    ),
    "conv2d of a small image": (
        "nn.contrib_conv2d_NCHWc",
        [(1, 16, 5, 5, 8), (48, 16, 3, 3, 8, 8)],
        {"kernel_size": (3, 3), "padding": (1, 1), **BLOCKED},
    ),
    "depthwise": (
        "nn.contrib_depthwise_conv2d_NCHWc",
        [(1, 2, 6, 9, 8), (2, 1, 5, 5, 1, 8)],
        {"kernel_size": (5, 5), **DEPTHWISE},
    ),
    "lstm": ("nn.lstm", [(9, 2, 4 * 70), (4 * 70, 70), (2, 70), (2, 70), (3 * 70,)], {}),
    "gru": ("nn.gru", [(9, 2, 3 * 70), (3 * 70, 70), (3 * 70,), (2, 70)], {}),
    "gru with the reset after": (
        "nn.gru",
        [(9, 1, 3 * 33), (3 * 33, 33), (3 * 33,), (1, 33)],
        {"linear_before_reset": True},
    ),
    "rnn": ("nn.rnn", [(9, 2, 90), (90, 90), (2, 90)], {}),
}


def template_kernel(call: Call, machine: MachineModel) -> Kernel | Declined:
    """What the operator's first template that does not decline answers."""
    assert isinstance(call.op, Op)
    answers = [template(Problem.of(call), machine).kernel() for template in TEMPLATES.find("llvm", call.op)]
    return next((a for a in answers if isinstance(a, Kernel)), answers[0])


def run(name: str, arrays: list[np.ndarray], machine: MachineModel, **attributes: Any) -> tuple[np.ndarray, ...]:
    params = [var(f"p{i}", shape=a.shape, dtype=a.dtype.name) for i, a in enumerate(arrays)]
    call = call_op(name, *params, **attributes)
    assert isinstance(call, Call)
    kernel = template_kernel(call, machine)
    assert isinstance(kernel, Kernel), kernel
    kernel = legalize(simplify(kernel), SPELLINGS)
    verify_kernel(kernel)
    return run_native(kernel, *arrays, threads=machine.threads, machine=machine)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bytes} bytes")
@pytest.mark.parametrize("case", CASES)
def test_results_are_float64_rounded(case: str, machine: MachineModel) -> None:
    name, shapes, attributes = CASES[case]
    rng = np.random.default_rng(0)
    scale = 1 if len(shapes) == 2 else 0.3  # gates that are not saturated
    arrays = [(rng.normal(size=s) * scale).astype("float16") for s in shapes]
    params = [var(f"p{i}", shape=s, dtype="float64") for i, s in enumerate(shapes)]
    call = call_op(name, *params, **attributes)
    assert isinstance(call, Call) and isinstance(call.op, Op)
    expected = call.op.reference(*(a.astype("float64") for a in arrays))
    results = run(name, arrays, machine, **attributes)
    for have, want in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert have.dtype == np.float16
        assert np.abs(have - want).max() <= ERROR * np.abs(want).max()


@pytest.mark.parametrize("name", ["nn.dense", "nn.contrib_dense_pack"])
def test_partial_sums_may_exceed_half_precision(name: str) -> None:
    """512 products of 256, then as many of -256: half of them are beyond 65504."""
    x = np.full((4, 1024), 16, "float16")
    x[:, 512:] = -16
    weight = np.full((16, 1024), 16, "float16")
    attributes = {"weight_layout": "NC16n"} if name == "nn.contrib_dense_pack" else {}
    given = weight.T.reshape(1, 1024, 16).copy() if attributes else weight
    (result,) = run(name, [x, given], MACHINES[1], **attributes)
    np.testing.assert_array_equal(result, np.zeros((4, 16)))


def test_products_of_half_precision_with_a_result_in_single() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=s).astype("float16") for s in ((6, 300), (40, 300)))
    (result,) = run("nn.dense", [a, b], MACHINES[0], out_dtype="float32")
    want = a.astype("float64") @ b.astype("float64").T
    assert result.dtype == np.float32
    assert np.abs(result - want).max() <= 1e-6 * np.abs(want).max()
