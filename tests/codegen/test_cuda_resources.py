"""The kernels of two networks as ptxas sees them: nothing spills, all fit, and wide instructions are there.

``python -m benchmarks nvrtc`` writes the whole table, docs/cuda-kernels.md.
"""

from __future__ import annotations

import pytest
from nvrtc import needs_nvrtc

from benchmarks.nvrtc import PAGE, needs, sources
from minitvm.codegen.cuda.machine import gpu_model

pytestmark = needs_nvrtc
REGISTERS = 64 * 1024
"""Of an SM."""


@pytest.mark.parametrize(("model", "arch"), [("resnet18", "sm_90"), ("bert_base_4layers_s128", "sm_80")])
def test_no_kernel_spills_and_all_fit(model: str, arch: str) -> None:
    machine = gpu_model(arch)
    groups = sources(model, arch)
    found = [row for source in groups.values() for row in needs(source, arch, count=False)]
    assert len(found) >= len(groups) >= 10
    for row in found:
        assert row.spills == row.stack == 0, row
        assert row.registers <= 255 and row.registers * row.threads <= REGISTERS, row
        assert row.shared <= machine.block_shared and row.threads <= 1024, row
        assert row.occupancy >= 1 and row.share <= 1, row


def test_products_and_what_moves_elements_use_wide_instructions() -> None:
    groups = sources("resnet18", "sm_90")
    for symbol in ("fused_nn_conv2d_add_nn_relu_2", "fused_nn_conv2d_add_add_nn_relu", "fused_nn_dense_add"):
        for row in needs(groups[symbol], "sm_90"):
            assert row.marks["ld.v4"] >= 2 and row.marks["st.v4"] >= 1, row


def test_what_spills_is_counted() -> None:
    body = "".join(f"    float v{i} = x[{i} * n];\n" for i in range(90))
    total = " + ".join(f"v{i} * y[{i}]" for i in range(90))
    source = (
        '// launch {"function": "k", "grid": [3, 1, 1], "block": [1024, 1, 1], "shared": 0, "params": [0, 1]}\n'
        'extern "C" __global__ void __launch_bounds__(1024, 2)\nk(const volatile float *x, volatile float *y, int n)\n'
        f"{{\n{body}    y[n] = {total};\n    y[0] = v0 + v89 + {' + '.join(f'v{i}' for i in range(90))};\n}}\n"
    )
    (row,) = needs(source, "sm_80")
    assert row.spills > 0 and row.registers <= 32 and (row.blocks, row.threads, row.occupancy) == (3, 1024, 2)


def test_the_page_says_that_nothing_spills() -> None:
    rows = [
        line.split("|")[1:-1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| fused")
    ]
    assert len(rows) > 60 and {row[4].strip() for row in rows} == {"0"}
