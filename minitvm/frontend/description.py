"""What goes into a model and what comes out, as ONNX Runtime describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minitvm.ir.types import MapType, SequenceType


@dataclass(frozen=True)
class ValueDescription:
    """An input or output as ONNX Runtime describes it: ``tensor(float)``, ``['batch', 3, None]``."""

    name: str
    type: str
    dtype: str
    shape: tuple[int | str | None, ...]
    has_rank: bool = True
    """False where the model does not even say how many dimensions there are; ``shape`` is then empty."""
    held: SequenceType | MapType | None = None
    """The type of a sequence, a map or an optional, which have neither dtype nor shape."""


@dataclass(frozen=True)
class ModelDescription:
    """What goes into a model and what comes out.  Weights are not inputs."""

    inputs: tuple[ValueDescription, ...]
    outputs: tuple[ValueDescription, ...]
    opset: int = 0
    operators: tuple[str, ...] = ()
    """The type of every node of the main graph, in order."""
    parameters: int = 0
    """Elements of all weights together, those of sub-graphs too."""
    inner_operators: tuple[str, ...] = ()
    """The type of every node of the model's functions, and of the branches and bodies of control flow, however deep."""
    overridable: tuple[ValueDescription, ...] = ()
    """Weights that are inputs as well, and so only defaults; none before version 4 of ONNX's format, where all are."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the file says of itself, by ONNX Runtime's names: ``producer_name``, ``custom_metadata_map``, ..."""
    buffers: Mapping[str, str] = field(default_factory=dict)
    """Inputs that may be longer than what is in use, with the outputs that are the same with new places written."""
    grown: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Inputs that are handed out with new places behind them, with those outputs and the axis of the places."""
    windows: Mapping[str, int] = field(default_factory=dict)
    """Inputs with rows for the last tokens alone, as many as the caller likes but at least so many."""

    @property
    def form(self) -> dict[str, Any]:
        """What a library keeps of it, as JSON."""
        values = {"inputs": self.inputs, "outputs": self.outputs}
        lists = {key: [[v.name, v.type, list(v.shape)] for v in found] for key, found in values.items()}
        return {**lists, "metadata": dict(self.metadata)}
