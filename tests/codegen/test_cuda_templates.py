"""Templates of GPUs: a sample of every problem's choices gives the right numbers, without races, within its buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minitvm.codegen.cuda.backend import CudaBackend
from minitvm.codegen.cuda.bind import bind_plain, launch_of
from minitvm.codegen.cuda.emit import emit_cuda, function_name
from minitvm.codegen.cuda.machine import gpu_model
from minitvm.codegen.cuda.templates.implicit_conv import GpuConv
from minitvm.codegen.lower import lowering
from minitvm.codegen.problem import TEMPLATES, Choice, Problem, Template
from minitvm.codegen.simplify import simplify
from minitvm.driver.compile import optimize
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Expr, Function
from minitvm.ir.loop import Buffer, Kernel
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.ir.op import Op
from minitvm.ir.visitor import calls
from minitvm.testing import resnet
from simulated_gpu import HostKernels, host_image
from tests.compilers import PARTS, needs_compiler
from tests.gathered import Gathered

MACHINE = gpu_model("sm_90")
SAMPLED = 2
"""Choices of each problem, beside the one that is taken."""
NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}

CASES: list[tuple[Any, ...]] = [
    ("nn.matmul", (37, 29), (29, 43), {}),
    ("nn.matmul", (36, 40), (44, 36), {"transpose_a": True, "transpose_b": True}),
    ("nn.dense", (130, 70), (66, 70), {}),
    ("nn.batch_matmul", (3, 17, 20), (3, 33, 20), {"transpose_b": True}),
    ("nn.batch_matmul", (3, 17, 300), (1, 12, 300), {}),
    ("nn.conv2d", (2, 5, 9, 11), (7, 5, 3, 3), {"padding": (1, 1, 1, 1)}),
    ("nn.conv2d", (2, 8, 8, 8), (12, 8, 1, 1), {}),
    ("nn.conv2d", (1, 8, 9, 11), (12, 4, 3, 2), {"padding": (1, 0, 2, 1), "strides": (2, 1), "groups": 2}),
    ("nn.conv2d", (2, 9, 11, 8), (3, 3, 8, 12), {"padding": (1, 1, 1, 1), **NHWC}),
    ("nn.conv2d", (2, 9, 11, 8), (12, 3, 3, 8), {"dilation": (2, 3), **NHWC, "kernel_layout": "OHWI"}),
    ("nn.conv2d", (1, 2, 5, 5, 4), (12, 8, 3, 3), {"data_layout": "NCHW4c", "out_layout": "NCHW6c"}),
    ("nn.conv2d", (2, 9, 11, 8), (3, 3, 1, 8), {"groups": 8, "padding": (1, 1, 1, 1), **NHWC}),
    ("nn.conv2d", (1, 9, 10, 6), (3, 2, 1, 6), {"groups": 6, "strides": (2, 2), "dilation": (1, 2), **NHWC}),
    ("nn.conv2d", (2, 5, 9, 7), (5, 1, 3, 3), {"groups": 5, "padding": (1, 1, 1, 1)}),
    ("nn.conv1d", (2, 5, 30), (7, 5, 3), {"padding": (1, 2)}),
    ("nn.conv3d", (1, 4, 5, 6, 7), (6, 4, 3, 3, 2), {"padding": (1,) * 6}),
    ("nn.conv2d_transpose", (1, 6, 5, 7), (6, 5, 4, 3), {"padding": (1, 1, 1, 1), "strides": (2, 2)}),
    ("nn.conv2d_transpose", (1, 6, 5, 7), (6, 5, 2, 2), {"strides": (2, 2)}),
    ("nn.conv2d_transpose", (1, 3, 4, 5), (3, 5, 2, 2), {"strides": (3, 3)}),  # results that no tap reaches
    ("nn.conv2d_transpose", (1, 5, 7, 8), (3, 3, 4, 8), {"strides": (2, 1), **NHWC, "kernel_layout": "HWOI"}),
    ("nn.attention", (1, 37, 2, 8), (1, 70, 2, 8), (1, 70, 2, 12), {"scale": 0.3}),
    ("nn.attention", (2, 9, 1, 7), (2, 33, 1, 7), (2, 33, 1, 5), (2, 1, 1, 33), {"empty_rows": "zero"}),
    ("nn.attention", (1, 20, 1, 80), (1, 20, 1, 80), (1, 20, 1, 80), (20, 20), {"scale": 0.1}),
]


def made(case: int, dtype: str = "float32") -> tuple[Template, list[np.ndarray], np.ndarray]:
    """The template for a case, operands and the result of a reference in double precision."""
    name, *shapes, attributes = CASES[case]
    rng = np.random.default_rng(case)
    arrays = [rng.normal(size=shape).astype(dtype) for shape in shapes]
    call = call_op(name, *(var(f"p{i}", shape=s, dtype=dtype) for i, s in enumerate(shapes)), **attributes)
    assert isinstance(call, Call)
    assert not isinstance(call.op, str)
    problem = Problem.of(call)
    found = (template(problem, MACHINE) for template in TEMPLATES.find("cuda", call.op))
    first = next(template for template in found if template.refusal() is None)
    return first, arrays, call.op.reference(*(a.astype("float64") for a in arrays))


def kernel_of(template: Template, choice: Choice) -> Kernel:
    kernel = template.kernel(choice)
    assert isinstance(kernel, Kernel)
    verify_kernel(kernel)
    return simplify(kernel)


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda n: f"{CASES[n][0]}{n}")
def test_choices_give_the_right_numbers(case: int) -> None:
    template, arrays, expected = made(case)
    chosen = np.random.default_rng(case).integers(0, len(template.candidates), SAMPLED)
    for choice in [template.choice, *(template.candidates[n] for n in chosen)]:
        (result,) = run_kernel(kernel_of(template, choice), *arrays, check_races=True)
        assert np.abs(result - expected).max() < 1e-6 * np.abs(expected).max(), choice


@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-13), ("float16", 3e-2)])
def test_other_floats_are_summed_as_they_are_or_wider(dtype: str, limit: float) -> None:
    template, arrays, expected = made(3, dtype)
    (result,) = run_kernel(kernel_of(template, template.choice), *arrays)
    assert result.dtype == dtype
    assert np.abs(result - expected).max() < limit


def test_depth_in_parts_is_taken_where_there_are_few_tiles() -> None:
    x, w = var("x", shape=(1, 7, 7, 512), dtype="float32"), var("w", shape=(3, 3, 512, 512), dtype="float32")
    call = call_op("nn.conv2d", x, w, padding=(1, 1, 1, 1), **NHWC)
    assert isinstance(call, Call)
    *_, template = TEMPLATES.find(CudaBackend.kind, call.op)  # type: ignore[arg-type]
    assert template(Problem.of(call), MACHINE).choice.scheme == "depth in parts"


def poisoned(buffer: Buffer) -> np.ndarray:
    return np.full(buffer.shape, 77).astype(buffer.dtype)


def simulated(kernels: HostKernels, number: int, kernel: Kernel, arrays: list[np.ndarray], order: str) -> np.ndarray:
    """The result of the emitted CUDA C on the host; ``number`` of its source in the image."""
    memory = dict(zip(kernel.inputs, arrays, strict=True))
    for part in bind_plain(kernel):
        memory |= {b: poisoned(b) for b in part.params if b not in memory}
        launch = launch_of(part)
        name = f"{number}/{function_name(part)}"
        what = (launch.shared, launch.counters)
        kernels.launch(name, launch.grid, launch.block, [memory[b] for b in part.params], order, 0, *what)
    return memory[kernel.outputs[0]]


@needs_compiler
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("rank", [0, 7])
def test_the_cuda_c_of_every_case_gives_the_right_numbers(rank: int, part: int) -> None:
    """Of what is taken, and of another choice, threads in order and the other way round."""
    found = [
        (t, kernel_of(t, t.candidates[rank % len(t.candidates)]), a, e)
        for t, a, e in map(made, range(part, len(CASES), PARTS))
    ]
    kernels = HostKernels(host_image(*(emit_cuda(*bind_plain(kernel)) for _, kernel, _, _ in found)))
    each = Gathered()
    for number, (template, kernel, arrays, expected) in enumerate(found):
        choice = template.candidates[rank % len(template.candidates)]
        for order in ("forward", "reverse"):
            with each.case(f"{CASES[part + number * PARTS]}, {choice}, {order}"):
                error = np.abs(simulated(kernels, number, kernel, arrays, order) - expected).max()
                assert error < 1e-6 * np.abs(expected).max(), error / np.abs(expected).max()
    each.end()


def test_the_phases_of_a_transposed_convolution_are_one_launch() -> None:
    """Where the depth is in parts, too."""
    for case, (name, *_) in enumerate(CASES):
        if "transpose" not in name:
            continue
        template, _, _ = made(case)
        assert isinstance(template, GpuConv)
        for scheme in ("whole depth", "depth in parts"):
            for choice in [c for c in template.candidates if c.scheme == scheme][:1]:
                (kernel,) = bind_plain(kernel_of(template, choice))
                assert launch_of(kernel).grid[1] == len(template.parts)


# --- with what is fused around them ---------------------------------------------------------------------------------


def test_convolutions_of_resnet_take_their_neighbours_with_them() -> None:
    """One launch with bias, residual and ReLU, even where the depth is in parts."""
    module, params = resnet.get_workload(num_layers=18)
    main = optimize(module, MACHINE, dict(params), 3, schedules="cuda").main
    groups = [call.op for call in calls(main.body) if isinstance(call.op, Function)]
    found = [lowering(group, "kernel", MACHINE, "cuda") for group in groups]
    convolutions = [low for low in found if low.template is not None and isinstance(low.template, GpuConv)]
    assert len(convolutions) == 21
    assert all(len(bind_plain(low.kernel)) == 1 for low in convolutions)
    schemes = {low.template.choice.scheme for low in convolutions if low.template is not None}
    assert schemes == {"whole depth", "depth in parts"}
    fused = [tuple(c.op.name for c in calls(g.body) if isinstance(c.op, Op)) for g in groups]
    assert sum(names[:1] == ("nn.conv2d",) for names in fused) == 21
    assert ("nn.conv2d", "add", "nn.relu") in fused
    assert not any("layout_transform" in names and "nn.conv2d" not in names for names in fused)


def residual(x: Expr, w: Expr, bias: Expr, other: Expr) -> Expr:
    found = call_op("nn.conv2d", call_op("nn.relu", x), w, padding=(1, 1, 1, 1), **NHWC)
    return call_op("nn.relu", found + bias + other)


@pytest.mark.parametrize("scheme", ["whole depth", "depth in parts"])
def test_prologue_and_epilogue_are_part_of_them(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(1, 6, 7, 8), (3, 3, 8, 12), (12,), (1, 6, 7, 12)]
    params = [var(f"p{i}", shape=s, dtype="float32") for i, s in enumerate(shapes)]
    group, rng = function(residual(*params), params), np.random.default_rng(0)
    template = lowering(group, "kernel", MACHINE, "cuda").template
    assert isinstance(template, GpuConv)
    monkeypatch.setattr(GpuConv, "choices", lambda self: [c for c in template.candidates if c.scheme == scheme])
    kernel = simplify(lowering(group, "kernel", MACHINE, "cuda").kernel)
    assert len(bind_plain(kernel)) == 1
    arrays = [rng.normal(size=shape).astype("float32") for shape in shapes]
    (result,), expected = run_kernel(kernel, *arrays), evaluate(group, *arrays)
    assert np.abs(result - expected).max() < 2e-5
