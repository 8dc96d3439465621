"""A node as rules see it: operands, result and attributes, and what it computes in double."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from minitvm.testing.fuzz.references import evaluator

Array = np.ndarray


@dataclass(frozen=True)
class Seen:
    """A node with its operands, ``None`` where one is left out, its first result and its attributes."""

    node: onnx.NodeProto
    x: Sequence[Array | None]
    y: Array
    attributes: Mapping[str, Any]
    opset: int = 0

    @property
    def first(self) -> Array:
        found = self.x[0]
        assert found is not None
        return found


Rule = Callable[[Seen], "Array | float"]
"""How far each element of a node's results may lie elsewhere: 0 where ONNX decides, infinity where it leaves the
element open.  Broadcasts with the result."""


def opened(elements: Any) -> Array:
    return np.where(elements, np.inf, 0.0)


def in_double(s: Seen, widened: Mapping[str, Callable[[Array], Array]]) -> Array:
    """The node over some operands in double, changed by a function, and others as they are."""
    names = [name for name in s.node.input if name]
    graph = onnx.helper.make_graph([s.node], "one", [], [])
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names))
    graph.output.add().name = s.node.output[0]
    imports = [onnx.helper.make_opsetid("", s.opset), onnx.helper.make_opsetid("com.microsoft", 1)]
    given = dict(zip(s.node.input, s.x, strict=False))
    feeds = {
        n: widened[n](a.astype(np.float64)) if n in widened else a for n, a in given.items() if n and a is not None
    }
    found: Any = evaluator(onnx.helper.make_model(graph, opset_imports=imports)).run(None, feeds)
    return np.asarray(found[0])
