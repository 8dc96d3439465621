"""Public bug reports of other runtimes and exporters, rebuilt as small models: what ours says must be right.

A report is a function that returns its :class:`Case`; ``docs/known-bugs-of-others.md`` is the list of them all.

    python -m tests.known_bugs          writes the page anew
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import parser


@dataclass(frozen=True)
class Case:
    """A model, what it is fed, and what is right: arrays, or ``None`` where the model must be refused."""

    model: onnx.ModelProto
    feeds: Mapping[str, np.ndarray]
    want: tuple[np.ndarray, ...] | None
    within: float = 0.0
    """Relative tolerance; 0 compares bits (NaN is NaN)."""


@dataclass(frozen=True)
class Report:
    project: str
    number: int
    says: str
    """What went wrong there, in a line."""
    make: Callable[[], Case]

    @property
    def name(self) -> str:
        return f"{self.project.split('/')[-1]}-{self.number}-{self.make.__name__}"


REPORTS: list[Report] = []


def report(project: str, number: int, says: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Registers a case for a report of ``project`` (owner/name)."""

    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        REPORTS.append(Report(project, number, says, make))
        return make

    return register


def case(
    text: str, feeds: Mapping[str, Any], *want: Any, opset: int = 18, contrib: bool = False, within: float = 0.0
) -> Case:
    """A case of a graph in ONNX's textual form: ``(float[N] x) => (float[N] y) { y = Relu (x) }``."""
    domains = f'"" : {opset}' + (', "com.microsoft" : 1' if contrib else "")
    model = parser.parse_model(f"<ir_version: 8, opset_import: [{domains}]> g {text}")
    return Case(model, {k: np.asarray(v) for k, v in feeds.items()}, tuple(map(np.asarray, want)), within)


def refused(text: str, feeds: Mapping[str, Any], opset: int = 18) -> Case:
    """A case that must end in an error of ours, when the session is opened or run."""
    made = case(text, feeds, opset=opset)
    return Case(made.model, made.feeds, None)


def f32(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float32)


def i64(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.int64)
