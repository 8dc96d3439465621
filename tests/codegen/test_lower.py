"""Every operator with a compute rule or a template, lowered alone and run in the loop interpreter, against numpy."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import numpy as np
import pytest
from op_samples import SAMPLES, Sample

from minitvm.codegen.lower import lower, lowering
from minitvm.codegen.problem import TEMPLATES
from minitvm.codegen.simplify import simplify
from minitvm.ir.builder import call_op, const, function, var
from minitvm.ir.expr import Call, Expr, Function, Tuple, Var
from minitvm.ir.loop import Alloc, Intrin, Store, walk_exprs, walk_stmts
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.types import type_of
from minitvm.target import MachineModel

if importlib.util.find_spec("op_samples_nn") is not None:
    from op_samples_nn import SAMPLES as NN_SAMPLES

    SAMPLES = [*SAMPLES, *NN_SAMPLES]

MACHINE = MachineModel(vector_bytes=32, vector_registers=16, threads=2)
AVX512, NEON = MachineModel(64, 32, threads=2), MachineModel(16, 32, threads=3)
LOWERED = [s for s in SAMPLES if s.op.has_compute() or TEMPLATES.find("llvm", s.op)]


REASONS = re.compile(
    r"registers hold sums of floats; here .*|more than one output channel per input channel"
    r"|the weight's blocks of \d+ are not whole vectors of \d+"
)
"""Why a template may decline a sample."""


def as_function(sample: Sample) -> tuple[Function, list[np.ndarray]]:
    """The operator over one parameter per array."""
    arrays: list[np.ndarray] = []
    params: list[Var] = []

    def operand(value: Any) -> Expr:
        if isinstance(value, tuple):
            return Tuple([operand(v) for v in value])
        arrays.append(value)
        params.append(Var(f"p{len(params)}", type_of(value)))
        return params[-1]

    call = Call(sample.op, [operand(a) for a in sample.args])
    return Function(params, call), arrays


def run(function_: Function, arrays: list[np.ndarray], machine: MachineModel = MACHINE) -> tuple[np.ndarray, ...]:
    kernel = simplify(lower(function_, "kernel", machine))
    inputs = [a.reshape(p.shape) for a, p in zip(arrays, kernel.inputs, strict=True)]
    return run_kernel(kernel, *inputs, check_races=True)


@pytest.mark.parametrize("sample", LOWERED, ids=str)
def test_lowered_operator_gives_what_reference_gives(sample: Sample) -> None:
    check_against_reference(sample, MACHINE)


@pytest.mark.parametrize("machine", [AVX512, NEON], ids=["avx512", "neon"])
@pytest.mark.parametrize("sample", [s for s in LOWERED if TEMPLATES.find("llvm", s.op)], ids=str)
def test_templates_follow_the_width_of_the_machine(sample: Sample, machine: MachineModel) -> None:
    """Compute rules are lowered where a template has a reason; a product of floats has none."""
    found = lowering(as_function(sample)[0], "kernel", machine)
    if not any(REASONS.fullmatch(d.reason) for d in found.decisions if not d.taken and d.by.startswith("template")):
        assert found.template is not None or any(0 in a.shape for a in as_function(sample)[1]), found.chosen
    check_against_reference(sample, machine)


def test_most_samples_are_taken_by_templates() -> None:
    """Else the test above would compare compute rules only."""
    samples = [s for s in LOWERED if TEMPLATES.find("llvm", s.op)]
    taken = [s for s in samples if lowering(as_function(s)[0], "kernel", AVX512).template is not None]
    assert len(taken) > 0.7 * len(samples), [str(s) for s in samples if s not in taken]


def check_against_reference(sample: Sample, machine: MachineModel) -> None:
    with np.errstate(all="ignore"):
        expected = sample.op.reference(*sample.args)
        results = run(*as_function(sample), machine)
    for want, have in zip(expected if isinstance(expected, tuple) else (expected,), results, strict=True):
        assert have.dtype == want.dtype
        if want.dtype.kind == "f":
            scale = max(1.0, float(np.abs(np.nan_to_num(want, posinf=0, neginf=0)).max(initial=0)))
            rtol = 2e-3 if want.dtype == np.float16 else 2e-5  # another order of summation
            np.testing.assert_allclose(have.reshape(want.shape), want, rtol=rtol, atol=rtol * scale)
        else:
            np.testing.assert_array_equal(have.reshape(want.shape), want)


def _arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.normal(size=s).astype("float32") for s in shapes]


def test_epilogue_with_a_bias_and_a_residual_is_fused_into_a_convolution() -> None:
    arrays = _arrays((1, 2, 5, 7, 8), (2, 2, 3, 3, 8, 8), (1, 2, 1, 1, 8), (1, 2, 5, 7, 8))
    x, w, b, r = (var(n, shape=a.shape) for n, a in zip("xwbr", arrays, strict=True))
    conv = call_op(
        "nn.contrib_conv2d_NCHWc",
        x,
        w,
        channels=16,
        kernel_size=(3, 3),
        padding=(1, 1, 1, 1),
        data_layout="NCHW8c",
        kernel_layout="OIHW8i8o",
        out_layout="NCHW8c",
    )
    group = function(call_op("maximum", conv + b + r, const(0.0)), [x, w, b, r])
    (result,) = run(group, arrays)
    product = conv.op.reference(*arrays[:2])  # type: ignore[union-attr]
    np.testing.assert_allclose(result, np.maximum(product + arrays[2] + arrays[3], 0), rtol=1e-5, atol=1e-5)


def test_prologue_is_fused_into_a_product() -> None:
    arrays = _arrays((9, 20), (24, 20))
    x, w = (var(n, shape=a.shape) for n, a in zip("xw", arrays, strict=True))
    (result,) = run(function(call_op("nn.dense", call_op("tanh", x), w), [x, w]), arrays)
    np.testing.assert_allclose(result, np.tanh(arrays[0]) @ arrays[1].T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(6, 9), (2, 3, 40)])
def test_softmax_like_chain_runs_row_by_row_without_a_barrier(shape: tuple[int, ...]) -> None:
    (array,) = _arrays(shape)
    x = var("x", shape=shape)
    shifted = call_op("exp", x - call_op("max", x, axis=-1, keepdims=True))
    kernel = lower(function(shifted / call_op("sum", shifted, axis=-1, keepdims=True), [x]), "softmax", MACHINE)
    assert "barrier" not in str(kernel).lower()
    (result,) = run_kernel(kernel, array, check_races=True)
    e = np.exp(array - array.max(-1, keepdims=True))
    np.testing.assert_allclose(result, e / e.sum(-1, keepdims=True), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [3, "n"])
def test_what_is_made_of_a_costly_value_is_computed_once_for_a_reduction_and_what_else_reads_it(rows: Any) -> None:
    """x * sigmoid(x) is quantized by its largest magnitude."""
    x = var("x", shape=(rows, 64))
    gated = call_op("multiply", call_op("sigmoid", x), x)
    kernel = lower(function(call_op("qnn.quantize_blocks", gated, block=32)), "kernel", MACHINE)
    stores = [s.value for s in walk_stmts(kernel.body) if isinstance(s, Store)]
    made = [value for value in stores for e in walk_exprs(value) if isinstance(e, Intrin) and e.name == "sigmoid"]
    assert len(made) == 1


def test_contiguous_dimensions_are_merged() -> None:
    x, b = var("x", shape=(2, 3, 5, 7)), var("b", shape=(3, 1, 1))
    kernel = lower(function(x + b, [x, b]), "add", MACHINE)
    assert [p.shape for p in kernel.params] == [(2, 3, 35), (3,), (2, 3, 35)]


@pytest.mark.parametrize(
    ("op", "attributes", "shapes"),
    [
        ("strided_slice", {"begin": (2,), "end": (5,), "axes": (1,)}, [(4, 90), (4, 45)]),
        ("strided_slice", {"begin": (0,), "end": (5,), "strides": (2,), "axes": (1,)}, [(4, 6, 15), (4, 3, 15)]),
        ("strided_slice", {"begin": (1,), "end": (2,), "axes": (2,)}, [(24, 3, 5), (24, 5)]),
        ("nn.pad", {"pad_width": ((0, 0), (1, 2), (0, 0), (0, 0))}, [(4, 90), (4, 135)]),
        ("nn.pad", {"pad_width": ((1, 1), (0, 0), (0, 0), (0, 0))}, [(360,), (540,)]),
        ("nn.pad", {"pad_width": ((0, 0), (0, 0), (0, 1), (0, 0))}, [(24, 15), (24, 20)]),
        ("split", {"indices_or_sections": (2,), "axis": 1}, [(4, 90), (4, 30), (4, 60)]),
        ("split", {"indices_or_sections": (1,), "axis": 0}, [(360,), (90,), (270,)]),
        ("split", {"indices_or_sections": 2, "axis": 1}, [(4, 6, 3, 5), (4, 3, 3, 5), (4, 3, 3, 5)]),
    ],
)
def test_dimensions_within_what_is_cut_are_merged(op: str, attributes: dict[str, Any], shapes: list[Any]) -> None:
    x, (a,) = var("x", shape=(4, 6, 3, 5)), _arrays((4, 6, 3, 5))
    call = call_op(op, x, **attributes)
    group = function(call, [x])
    assert [p.shape for p in lower(group, "moved", MACHINE).params] == shapes
    found = np.concatenate([result.ravel() for result in run(group, [a], MACHINE)])
    expected = call.op.reference(a)  # type: ignore[union-attr]
    parts = expected if isinstance(expected, tuple) else (expected,)
    np.testing.assert_array_equal(found, np.concatenate([part.ravel() for part in parts]))


def test_dimensions_within_what_is_joined_are_merged() -> None:
    x, y, b = var("x", shape=(2, 3, 5)), var("y", shape=(2, 4, 5)), var("b", shape=(7, 1))
    joined = call_op("concatenate", Tuple((x, y)), axis=1)
    arrays = _arrays((2, 3, 5), (2, 4, 5), (7, 1))
    group = function(joined, [x, y])
    assert [p.shape for p in lower(group, "joined", MACHINE).params] == [(2, 15), (2, 20), (2, 35)]
    (result,) = run(group, arrays[:2], MACHINE)
    np.testing.assert_array_equal(result.reshape(2, 7, 5), np.concatenate(arrays[:2], 1))
    group = function(joined + b, [x, y, b])
    assert [p.shape for p in lower(group, "added", MACHINE).params] == [(2, 3, 5), (2, 4, 5), (7,), (2, 7, 5)]
    (result,) = run(group, arrays, MACHINE)
    np.testing.assert_array_equal(result, np.concatenate(arrays[:2], 1) + arrays[2])


def test_a_batch_of_one_does_not_keep_the_epilogue_out_of_the_template() -> None:
    x, w, b = var("x", shape=(1, 2, 5, 7, 8)), var("w", shape=(2, 2, 1, 1, 8, 8)), var("b", shape=(1, 2, 1, 1, 8))
    layouts = {"data_layout": "NCHW8c", "kernel_layout": "OIHW8i8o", "out_layout": "NCHW8c"}
    conv = call_op("nn.contrib_conv2d_NCHWc", x, w, channels=16, kernel_size=(1, 1), **layouts)
    kernel = lower(function(conv + b, [x, w, b]), "conv", MACHINE)
    allocated = [s.buffer for s in walk_stmts(kernel.body) if isinstance(s, Alloc)]
    assert all(buffer.scope == "local" for buffer in allocated), allocated


@pytest.mark.parametrize(("taps", "padding"), [(3, 1), (1, 0)])
def test_a_small_image_is_convolved_a_few_input_channels_at_a_time(taps: int, padding: int) -> None:
    inputs = 4 if taps == 3 else 36  # enough for the weights to leave a first-level cache of 8 KiB
    arrays = _arrays((1, inputs, 3, 3, 8), (32, inputs, taps, taps, 8, 8), (1, 32, 1, 1, 8))
    x, w, b = (var(n, shape=a.shape) for n, a in zip("xwb", arrays, strict=True))
    attributes = {"padding": (padding,) * 4, "channels": 256, "kernel_size": (taps, taps)}
    layouts = {"data_layout": "NCHW8c", "kernel_layout": "OIHW8i8o", "out_layout": "NCHW8c"}
    conv = call_op("nn.contrib_conv2d_NCHWc", x, w, **attributes, **layouts)
    group = function(call_op("nn.relu", conv + b), [x, w, b])
    machine = MachineModel(vector_bytes=32, vector_registers=16, l1_bytes=8192)
    assert "alloc sums" in str(lower(group, "conv", machine))
    (result,) = run(group, arrays, machine)
    expected = np.maximum(conv.op.reference(*arrays[:2]) + arrays[2], 0)  # type: ignore[union-attr]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
