"""What inputs an artefact is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minitvm.ir.types import Shape, shape_text
from minitvm.runtime.graph import Artifact


def shapes_of(artifact: Artifact) -> dict[str, Shape]:
    """The shapes of its inputs."""
    return {name: type_.shape for name, type_ in artifact.inputs.items()}


def shown(artifact: Artifact) -> str:
    """What inputs an artefact is for."""
    values = [f"{name} = {value.tolist()}" for name, value in artifact.values.items()]
    return ", ".join([*(f"{name} {shape_text(shape)}" for name, shape in shapes_of(artifact).items()), *values])


def fits(artifact: Artifact, shapes: Mapping[str, Shape], values: Mapping[str, Any]) -> bool:
    """True if it may be for these inputs, as far as is seen without binding."""
    for name, own in shapes_of(artifact).items():
        given = shapes.get(name, own)
        if len(given) != len(own) or any(isinstance(d, int) and d != e for d, e in zip(own, given, strict=True)):
            return False
    return all(name not in values or np.array_equal(values[name], own) for name, own in artifact.values.items())
