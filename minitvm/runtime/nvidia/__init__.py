"""Runs an artefact's kernels on an NVIDIA GPU.  A driver is asked for when a device is used, not before."""

from minitvm.runtime.nvidia.code import CudaArtifact
from minitvm.runtime.nvidia.driver import present_arch
from minitvm.runtime.nvidia.memory import memory_of

__all__ = ["CudaArtifact", "code_of", "memory_of", "present_arch"]


def code_of(kind: str) -> type[CudaArtifact] | None:
    """What runs code of a kind of target, where that is a GPU's."""
    return CudaArtifact if kind == "cuda" else None
