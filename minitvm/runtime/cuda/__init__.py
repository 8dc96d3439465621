"""Runs an artefact's kernels on an NVIDIA GPU.  A driver is asked for when a device is used, not before."""

from __future__ import annotations

from collections.abc import Callable

from minitvm.errors import TargetError
from minitvm.runtime.code import CODES, Code, Memory
from minitvm.runtime.graph import Artifact, CpuTag, Segment
from minitvm.runtime.ndarray import Device


class CudaArtifact(Code):
    """The images of an artefact."""

    memory = Memory()
    most_threads = 1
    device_kind = "cuda"

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact

    @staticmethod
    def check(made_for: CpuTag, name: str) -> None:
        """Anybody may load it: whether there is such a GPU is asked when a device is."""

    def on(self, device: Device) -> Code:
        raise TargetError("kernels are not run on a GPU yet")

    def step(self, what: Segment | int, slots: int, threads: int) -> Callable[[], None]:
        raise NotImplementedError


CODES["cuda"] = CudaArtifact
