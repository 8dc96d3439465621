"""Where the names of an ONNX graph are looked up: in the graph itself, then in those around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx

from minitvm.frontend.onnx.node import label_of
from minitvm.ir.expr import Constant, Expr, Var


class Scope:
    """The values of one graph by name.  In the body of a branch or loop (``is_body``), values from outside
    become its parameters: ``captured`` maps each to its variable.

    What a function is called with is all that it sees: its scope has no ``parent``, but the ``caller`` whose values
    its own follow from, operator sets of its own, and names that the call leaves out.
    """

    def __init__(
        self,
        parent: Scope | None = None,
        *,
        is_body: bool = False,
        caller: Scope | None = None,
        opsets: Mapping[str, int] | None = None,
        label_of: Callable[[onnx.NodeProto], str] = label_of,
    ) -> None:
        self.values: dict[str, Expr] = {}
        self.absent: set[str] = set()
        self.captured: dict[Expr, Var] = {}
        self.parent, self.is_body, self._caller = parent, is_body, caller
        around = parent or caller
        self.opsets: Mapping[str, int] = opsets if opsets is not None else around.opsets if around else {}
        self.label_of: Callable[[onnx.NodeProto], str] = parent.label_of if parent else label_of
        """The span of what a node becomes."""

    def lookup(self, name: str, known: dict[Expr, np.ndarray]) -> Expr | None:
        if name in self.values or self.parent is None:
            return self.values.get(name)
        outer = self.parent.lookup(name, known)
        if outer is None or isinstance(outer, Constant) or not self.is_body:
            return outer
        if outer not in self.captured:
            inner = self.captured[outer] = Var(name, outer.type)
            if outer in known:
                known[inner] = known[outer]
        return self.captured[outer]

    def lacks(self, name: str) -> bool:
        """True if a name is a parameter that the function's call leaves out."""
        return name in self.absent or (name not in self.values and self.parent is not None and self.parent.lacks(name))

    def outside(self) -> dict[Expr, Expr]:
        """What the variables of this body and of those around it stand for."""
        around = self.parent or self._caller
        return (around.outside() if around else {}) | {inner: outer for outer, inner in self.captured.items()}

    def names(self) -> set[str]:
        return set(self.values) | self.absent | (self.parent.names() if self.parent else set())
