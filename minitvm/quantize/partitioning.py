"""Partition: between a convolution with what follows it and the next one, a hint that few bits are to lie in memory.

What two such parts exchange is marked ``cast_hint`` and ``stop_fusion``, so that it is rounded before it is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.op import Op
from minitvm.ir.ops.checks import StopFusion
from minitvm.ir.ops.simulated import CastHint
from minitvm.ir.visitor import as_function, children, post_order, rebuild
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.quantize.annotating import is_constant
from minitvm.quantize.config import current_qconfig

_FOLLOWS = ("nn.relu", "nn.max_pool2d")
"""What belongs to the part in front of it."""


@dataclass
class _Parts:
    """What nodes became, and which of them are in a part that is still open."""

    dtype: str
    done: dict[Expr, Expr] = field(default_factory=dict)
    opened: set[Expr] = field(default_factory=set)
    ends: dict[Expr, Expr] = field(default_factory=dict)

    def node(self, node: Expr) -> Expr:
        call = node if isinstance(node, Call) and isinstance(node.op, Op) else None
        found, stays = (call and self._in_part(call)) or (rebuild(node, map(self._closed, self._below(node))), False)
        if stays:
            self.opened.add(found)
        return found

    def _below(self, node: Expr) -> list[Expr]:
        return [self.done[child] for child in children(node)]

    def _closed(self, expr: Expr) -> Expr:
        """A value, at the end of its part where it is in one."""
        return self._marked(expr) if expr in self.opened else expr

    def _marked(self, expr: Expr) -> Expr:
        if expr not in self.ends:
            hint = Call(CastHint(dtype=self.dtype), [expr], span=expr.span)
            self.ends[expr] = Call(StopFusion(), [hint], span=expr.span)
        return self.ends[expr]

    def _in_part(self, call: Call) -> tuple[Expr, bool] | None:
        """A call that is in a part, or ends one, and whether the part goes on; ``None`` for others."""
        name, args = getattr(call.op, "name", ""), self._below(call)
        inside = [arg in self.opened for arg in args]
        if name == "nn.conv2d":
            return rebuild(call, map(self._closed, args)), True
        if name == "nn.global_avg_pool2d":
            return rebuild(call, [self._marked(args[0])]), False
        if not any(inside):
            return None
        if name in _FOLLOWS or (name == "add" and inside[0] and is_constant(call.args[1])):
            return rebuild(call, args), True
        if name == "multiply" and all(inside):
            return rebuild(call, [self._marked(args[0]), args[1]]), True
        if name in ("clip", "multiply") or (name == "add" and all(inside)):
            return rebuild(call, map(self._closed, args)), True
        return None


class Partition(FunctionPass, name="QuantizePartition"):
    """Marks what parts of a network exchange, which is where integers of few bits pay."""

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        parts = _Parts(current_qconfig().dtype_input)
        for node in post_order(function.body):
            parts.done[node] = parts.node(node)
        return as_function(rebuild(function, (*function.params, parts._closed(parts.done[function.body]))))


def partition() -> Partition:
    """The pass that marks where what is computed in integers is rounded before it is stored."""
    return Partition()
