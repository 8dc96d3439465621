"""The kernels of two networks as ptxas sees them: nothing spills, all fit, and wide instructions are there.

``python -m benchmarks nvrtc`` writes the whole table, docs/cuda-kernels.md.
"""

from __future__ import annotations

import pathlib

import onnx
import pytest
from nvrtc import needs_nvrtc

import minitvm
from benchmarks.cuda_sim import PRECISIONS
from benchmarks.nvrtc import PAGE, needs, sources
from benchmarks.onnx_models import WORKLOADS, resnet
from minitvm.codegen.cuda.machine import REGISTERS, gpu_model
from minitvm.codegen.cuda.resources import registers
from minitvm.passes import PassContext
from simulated_gpu.device import simulated_target

pytestmark = needs_nvrtc


@pytest.mark.parametrize(("model", "arch"), [("resnet18", "sm_80"), ("bert_base_4layers_s128", "sm_90")])
def test_no_kernel_spills_all_fit_and_an_sm_holds_what_was_predicted(model: str, arch: str) -> None:
    machine = gpu_model(arch)
    with simulated_target():
        library = minitvm.compile(WORKLOADS[model].build(), f"simulated -arch={arch}")
    found = []
    for symbol, image in library.artifact.objects.items():
        rows = needs(bytes(image).decode(), arch, count=False)
        launches = library.report.compiler.backend.bind(library.report.kernel(symbol).legalized).kernels
        for row, launch in zip(rows, launches, strict=True):
            predicted = machine.occupancy(row.threads, registers(launch), row.shared)
            found.append((row.occupancy, predicted))
            assert row.spills == row.stack == 0, row
            assert row.registers <= 255 and row.registers * row.threads <= REGISTERS, row
            assert row.shared <= machine.block_shared and row.threads <= 1024, row
            assert row.occupancy >= 1 and row.share <= 1, row
            assert predicted <= row.occupancy <= max(predicted + 1, predicted * 4 // 3), (row, registers(launch))
    assert len(found) >= 6 and sum(held == predicted for held, predicted in found) > 0.75 * len(found)


TENSOR = [
    ("float16", "sm_90", ("wgmma_f16_lines<", "cp_async<16>(")),
    pytest.param("float16", "sm_80", ("mma_f16(", "ldmatrix_x4", "cp_async<16>("), marks=pytest.mark.more),
    ("tf32", "sm_80", ("mma_tf32(", "cp_async<16>(")),
]


@pytest.mark.parametrize(("precision", "arch", "words"), TENSOR)
def test_a_network_on_tensor_cores_spills_nothing(
    precision: str, arch: str, words: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    """Of so many images that most products are worth it."""
    machine, path = gpu_model(arch), tmp_path / "resnet18.onnx"
    onnx.save(resnet(18, 32), str(path))
    with PassContext(config=PRECISIONS[precision]):
        groups = sources(str(path), arch)
    assert sum(all(word in text for word in words) for text in groups.values()) >= 10
    for row in (row for text in groups.values() for row in needs(text, arch, count=False)):
        assert row.spills == row.stack == 0 and row.occupancy >= 1, row
        assert row.shared <= machine.block_shared and row.registers * row.threads <= REGISTERS, row


def test_products_and_what_moves_elements_use_wide_instructions() -> None:
    groups = sources("resnet18", "sm_90")
    for symbol in ("fused_nn_conv2d_add_nn_relu_2", "fused_nn_conv2d_add_add_nn_relu", "fused_nn_dense_add"):
        for row in needs(groups[symbol], "sm_90"):
            loads = row.marks.get("ld.v4", 0) + row.marks.get("cp.async", 0)
            assert loads >= 2 and row.marks["st.v4"] >= 1, row


def test_what_spills_is_counted() -> None:
    body = "".join(f"    float v{i} = x[{i} * n];\n" for i in range(90))
    total = " + ".join(f"v{i} * y[{i}]" for i in range(90))
    source = (
        '// launch {"function": "k", "grid": [3, 1, 1], "block": [1024, 1, 1], "shared": 0, "params": [0, 1]}\n'
        'extern "C" __global__ void __launch_bounds__(1024, 1)\nk(const volatile float *x, volatile float *y, int n)\n'
        f"{{\n{body}    y[n] = {total};\n    y[0] = v0 + v89 + {' + '.join(f'v{i}' for i in range(90))};\n}}\n"
    )
    (row,) = needs(source, "sm_80")
    assert row.spills > 0 and row.registers <= 64 and (row.blocks, row.threads, row.occupancy) == (3, 1024, 1)


def test_the_page_says_that_nothing_spills() -> None:
    rows = [
        line.split("|")[1:-1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| fused")
    ]
    assert len(rows) > 60 and {row[4].strip() for row in rows} == {"0"}
