"""Doors to what a library can do beyond running: files, parameters as TVM writes them, control flow without Python,
sizes that only a run knows, poisoned memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minitvm.doors import door, left_out
from minitvm.runtime.graph import Artifact, Graph, Host, Plan
from minitvm.runtime.instance import Instance
from minitvm.runtime.origin import Origin

if TYPE_CHECKING:
    from minitvm.runtime.bind import Binder
    from minitvm.runtime.bound import SizePlans
    from minitvm.runtime.signing import PrivateKey, PublicKey


@door
def binder(artifact: Artifact) -> Binder:
    """What makes the artefact for numbers of one for all sizes."""
    raise left_out("a library for all sizes")


@door
def size_plans(library: Any, binder: Binder, grows: bool = False) -> SizePlans:
    """The memory in which a library for all sizes runs."""
    raise left_out("a library for all sizes")


@door
def is_stage(host: Host) -> bool:
    """True if a call is of what follows from sizes that the data decide."""
    return False


@door
def staged(library: Any) -> Any:
    """The library of such a stage, which runs as long as nobody has told it to end."""
    raise left_out("a stage")


@door
def control_step(outer: Instance, index: int) -> Callable[[], None] | None:
    """What runs control flow without Python; ``None`` where Python does."""
    return None


@door
def written(artifact: Artifact, path: Path, key: PrivateKey | None) -> None:
    """Writes a library file."""
    raise left_out("a library's file")


@door
def read_trusted(path: Path, keys: Iterable[PublicKey] | None) -> tuple[Artifact, Origin]:
    """The artefact in a library file, and where it comes from."""
    raise left_out("a library's file")


@door
def to_bytes(artifact: Artifact) -> bytes:
    """The bytes of a library file."""
    raise left_out("a library's file")


@door
def from_bytes(data: bytes, name: str) -> Artifact:
    """The artefact in the bytes of a library file."""
    raise left_out("a library's file")


@door
def json_of(graph: Graph, plan: Plan) -> str:
    """The graph as TVM writes it."""
    raise left_out("TVM's JSON of a graph")


@door
def save_param_dict(params: Mapping[str, Any]) -> bytes:
    """Arrays by name as TVM writes them."""
    raise left_out("a file of parameters")


@door
def poisoned() -> type[Instance]:
    """What runs a library under ``MINITVM_POISON``."""
    raise left_out("MINITVM_POISON")


@door
def load_arrays(data: bytes | memoryview) -> dict[str, np.ndarray]:
    """Arrays by name as TVM writes them."""
    raise left_out("a file of parameters")
