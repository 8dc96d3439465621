"""Large work on a large GPU: launches have threads enough for what they read and write."""

from __future__ import annotations

import math

import pytest
from cuda_kernels import group

from minitvm.codegen.backend import backend_of
from minitvm.codegen.cuda.bind import launch_of
from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.simplify import simplify
from minitvm.ir.builder import call_op
from minitvm.ir.loop import Kernel
from minitvm.target import Target

BACKEND = backend_of(Target.parse("cuda -arch=sm_90"), 1)
_EACH = 64
"""Elements that a thread may read or write one after the other."""
_MANY = 1 << 18
LARGE = [
    ("sum", {}, [(1024, 1024)]),
    ("sum", {"axis": (0,)}, [(_MANY, 4)]),
    ("sum", {"axis": (0,)}, [(16384, 64)]),
    ("max", {"axis": (1,)}, [(4, 1 << 20)]),
    ("min", {"axis": (1,)}, [(3, 50257)]),
    ("argmax", {"axis": (1,)}, [(4, _MANY)]),
    ("nn.softmax", {}, [(1, 1 << 17)]),
    ("nn.softmax", {"axis": 0}, [(_MANY, 4)]),
    ("nn.log_softmax", {}, [(8, 50257)]),
    ("nn.layer_norm", {}, [(4, _MANY), (_MANY,), (_MANY,)]),
    ("nn.instance_norm", {}, [(1, 16, 512, 512), (16,), (16,)]),
    ("nn.group_norm", {"num_groups": 4}, [(1, 16, 500, 500), (16,), (16,)]),
    ("nn.global_avg_pool2d", {}, [(1, 2048, 7, 7)]),
    ("nn.global_avg_pool2d", {}, [(1, 16, 512, 512)]),
    ("nn.global_avg_pool2d", {"layout": "NHWC"}, [(1, 512, 512, 16)]),
    ("nn.global_max_pool2d", {}, [(1, 24, 255, 255)]),
    ("cumsum", {"axis": 1}, [(4, _MANY)]),
    ("sort", {}, [(4, 1 << 16)]),
    ("topk", {"k": 5}, [(4, _MANY)]),
    ("transpose", {"axes": (1, 0)}, [(_MANY, 2)]),
    ("nonzero", {}, [(1 << 20,)]),
    ("nn.conv2d", {"padding": (1, 1)}, [(1, 3, 512, 512), (8, 3, 3, 3)]),
]


def idle(kernel: Kernel) -> str:
    """A launch of too few threads, while an eighth of the GPU would be busy at most."""
    assert isinstance(BACKEND.machine, GpuModel)
    launch, most = launch_of(kernel), max(buffer.size for buffer in kernel.params)
    threads, eighth = math.prod(launch.grid) * launch.threads, BACKEND.machine.sms * BACKEND.machine.warps * 32 / 8
    return f"{kernel.name}: {launch} for {most} elements" if threads < min(eighth, most / _EACH) else ""


@pytest.mark.parametrize(("name", "attributes", "shapes"), LARGE)
def test_launches_have_threads_for_their_work(
    name: str, attributes: dict[str, object], shapes: list[tuple[int, ...]]
) -> None:
    function = group(lambda *operands: call_op(name, *operands, **attributes), *shapes)
    launches = BACKEND.bind(simplify(BACKEND.lower(function, "k").kernel)).kernels
    assert not list(filter(None, map(idle, launches)))
