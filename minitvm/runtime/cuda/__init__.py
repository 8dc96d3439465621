"""Runs an artefact's kernels on an NVIDIA GPU.  A driver is asked for when a device is used, not before."""

from minitvm.runtime.cuda.code import CudaArtifact
from minitvm.runtime.cuda.driver import present_arch
from minitvm.runtime.cuda.memory import memory_of

__all__ = ["CudaArtifact", "memory_of", "present_arch"]
