"""Products whose pieces come by asynchronous copies: right in every order of threads, wide where they may be, GPUs that
have them only, and never of what is computed."""

from __future__ import annotations

import re

import numpy as np
import pytest
from nvrtc import needs_nvrtc
from test_cuda_templates import CASES, MACHINE, NHWC, kernel_of, made, simulated

from benchmarks.nvrtc import ptx
from minitvm.codegen.cuda.backend import compile_cubin
from minitvm.codegen.cuda.bind import bind_plain
from minitvm.codegen.cuda.emit import emit_cuda
from minitvm.codegen.cuda.machine import GpuModel, gpu_model
from minitvm.codegen.cuda.templates.tile import BlockTile
from minitvm.codegen.lower import lowering
from minitvm.codegen.problem import TEMPLATES, Choice, Problem, Template
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.expr import Call, Expr
from minitvm.ir.loop.interp import run_kernel
from minitvm.passes.manager import PassContext
from simulated_gpu import ORDERS, HostKernels, host_image
from tests.compilers import PARTS, needs_compiler
from tests.gathered import Gathered

COPIED = [(0, 2), (1, 3), (2, 3), (4, 2), (5, 3), (6, 3), (8, 2), (8, 3), (9, 3), (16, 3), (19, 2)]
"""Cases, and stages of each: lines and depth inside, vectors and single elements, padding."""
TENSOR = [(1, 2), (2, 3), (8, 3)]


def stages_of(choice: Choice) -> int:
    assert isinstance(choice.tile, BlockTile)
    return choice.tile.copied


def of_stages(template: Template, stages: int) -> Choice:
    """The first of so many stages, factors rounded where that is allowed."""
    able = [choice for choice in template.candidates if stages_of(choice) == stages]
    return next((c for c in able if getattr(c.tile, "products", 0) == 1), able[0])


def found() -> list[tuple[str, Template, Choice, list[np.ndarray], np.ndarray, float]]:
    cases = [("cuda.none", *pair, 1e-6) for pair in COPIED]
    cases += [
        (option, *pair, limit)
        for option, limit in (("cuda.allow_tf32", 2e-3), ("cuda.split_tf32", 1e-6))
        for pair in TENSOR
    ]
    made_of = []
    for option, case, stages, limit in cases:
        with PassContext(config={option: True} if option != "cuda.none" else {}):
            template, arrays, expected = made(case)
            made_of.append((f"{CASES[case]} {option}", template, of_stages(template, stages), arrays, expected, limit))
    return made_of


def test_pipelines_give_the_right_numbers() -> None:
    for name, template, choice, arrays, expected, limit in found():
        (result,) = run_kernel(kernel_of(template, choice), *arrays, check_races=True)
        assert np.abs(result - expected).max() < limit * np.abs(expected).max(), (name, choice)


@needs_compiler
@pytest.mark.parametrize("part", range(PARTS))
def test_the_cuda_c_gives_them_in_every_order_of_threads(part: int) -> None:
    cases = [(name, kernel_of(t, choice), *rest) for name, t, choice, *rest in found()[part::PARTS]]
    kernels = HostKernels(host_image(*(emit_cuda(*bind_plain(kernel)) for _, kernel, *_ in cases)))
    each = Gathered()
    for number, (name, kernel, arrays, expected, limit) in enumerate(cases):
        for order in ORDERS:
            with each.case(f"{name}, {order}"):
                error = np.abs(simulated(kernels, number, kernel, arrays, order) - expected).max()
                assert error < limit * np.abs(expected).max(), error / np.abs(expected).max()
    each.end()


def sources(machine: GpuModel, option: str = "") -> list[str]:
    """Of large products: what is taken, in two stages and in three."""
    x, w = var("x", shape=(512, 512), dtype="float32"), var("w", shape=(512, 512), dtype="float32")
    with PassContext(config={option: True} if option else {}):
        template = template_of(call_op("nn.dense", x, w), machine)
        return [emit_cuda(*bind_plain(kernel_of(template, of_stages(template, n)))) for n in (2, 3)]


def template_of(call: Expr, machine: GpuModel) -> Template:
    assert isinstance(call, Call) and not isinstance(call.op, str)
    *_, maker = TEMPLATES.find("cuda", call.op)  # type: ignore[arg-type]
    return maker(Problem.of(call), machine)


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_no_register_is_spilled(arch: str) -> None:
    for option in ("", "cuda.allow_tf32"):
        for source in sources(gpu_model(arch), option):
            assert "cp.async.commit_group" in source and f"cp_async<{16 if option else 4}>(" in source
            assert compile_cubin(source, arch).spills == 0


def test_older_gpus_have_none() -> None:
    x, w = var("x", shape=(64, 64), dtype="float32"), var("w", shape=(64, 64), dtype="float32")
    for arch, stages in {"sm_75": {0}, "sm_80": {0, 2, 3}}.items():
        template = template_of(call_op("nn.dense", x, w), gpu_model(arch))
        assert {stages_of(choice) for choice in template.candidates} == stages


def test_what_is_computed_goes_through_registers() -> None:
    x, w = var("x", shape=(64, 64), dtype="float32"), var("w", shape=(64, 64), dtype="float32")
    for data, copied in ((x, True), (call_op("nn.relu", x), False)):
        kernel = lowering(function(call_op("nn.dense", data, w), [x, w]), "kernel", MACHINE, "cuda").kernel
        assert ("commit copies" in str(kernel)) == copied


def window(weight_layout: str = "HWIO", **attributes: object) -> Expr:
    x, w = var("x", shape=(1, 14, 14, 64), dtype="float32"), var("w", shape=(3, 3, 64, 64), dtype="float32")
    return call_op("nn.conv2d", x, w, padding=(1, 1, 1, 1), **{**NHWC, "kernel_layout": weight_layout, **attributes})


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_windows_come_by_16_bytes_with_zeros_around(arch: str) -> None:
    """Strict float32, too: LDGSTS by vectors of channels, neither registers nor single elements."""
    template = template_of(window(), gpu_model(arch))
    assert stages_of(template.choice)
    for stages in (2, 3):
        source = emit_cuda(*bind_plain(kernel_of(template, of_stages(template, stages))))
        assert compile_cubin(source, arch).spills == 0
        found = re.findall(
            r"cp\.async\.c[ag]\.shared\.global \[[^]]+\], \[[^]]+\], (\d+)(, %r\d+)?;", ptx(source, arch)
        )
        assert {nbytes for nbytes, _ in found} == {"16"} and any(zeros for _, zeros in found)


def test_places_of_windows_are_worked_out_once_a_vector() -> None:
    """Copies to rows of lines of the right-hand factor bring single elements."""
    call = window(out_layout="NCHW")
    assert {stages_of(choice) for choice in template_of(call, MACHINE).candidates} == {0}
    with PassContext(config={"cuda.allow_tf32": True}):  # of so few elements TF32 is not predicted to save enough
        rounded = [c for c in template_of(call, MACHINE).candidates if getattr(c.tile, "products", 0) == 1]
    assert stages_of(min(rounded, key=lambda choice: choice.cycles)) == 3
