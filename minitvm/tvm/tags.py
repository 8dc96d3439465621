"""TVM's tags: names of devices that stand for a target string, ``nvidia/geforce-rtx-3070`` for ``cuda -arch=sm_86``.

Here are those that minitvm compiles for.  What a tag of TVM's says of shared memory, threads and registers minitvm has
from the architecture; the CPU beside a GPU is the host.
"""

from __future__ import annotations

_GPUS = {
    "sm_75": "nvidia-t4 quadro-rtx-8000 quadro-rtx-6000 quadro-rtx-5000 quadro-rtx-4000 rtx-5000 rtx-4000 rtx-3000"
    " t2000 t1000 nvidia-titan-rtx geforce-rtx-2080-ti geforce-rtx-2080 geforce-rtx-2070 geforce-rtx-2060",
    "sm_80": "nvidia-a100 nvidia-a30",
    "sm_86": "nvidia-a40 nvidia-a10 nvidia-a10g nvidia-a16 nvidia-a2 rtx-a6000 geforce-rtx-3090-ti geforce-rtx-3090"
    " geforce-rtx-3080-ti geforce-rtx-3080 geforce-rtx-3070-ti geforce-rtx-3070 geforce-rtx-3060",
    "sm_87": "jetson-orin-nano jetson-agx-orin-32gb jetson-agx-orin-64gb",
    "sm_89": "geforce-rtx-4070-ti geforce-rtx-4090",
    "sm_90": "nvidia-h100",
}
_C5 = {"skylake-avx512": "large xlarge 2xlarge 4xlarge 9xlarge 18xlarge", "cascadelake": "12xlarge 24xlarge"}
TAGS = {
    "raspberry-pi/4b-aarch64": "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72 -mattr=+neon",
    **{f"nvidia/{name}": f"cuda -arch={arch}" for arch, names in _GPUS.items() for name in names.split()},
    **{f"aws/cpu/c5.{size}": f"llvm -mcpu={cpu}" for cpu, sizes in _C5.items() for size in sizes.split()},
}


def tagged(text: str) -> str:
    """The target string of a tag; the text itself where it is none."""
    return TAGS.get(text, text)
