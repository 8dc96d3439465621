"""ForwardFoldScaleAxis and BackwardFoldScaleAxis as Relay has them, where weights are no constants: the scale of
channels becomes a multiplication of the weights.

What is left after minitvm's own passes, which fold scales into constants, is done here on expressions: a plan says for
each node which axes of a scale it passes on, and whether that must be positive; then the scales move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minitvm.ir.expr import Call, Constant, Expr, Function, Module
from minitvm.ir.layout import Layout
from minitvm.ir.op import Op
from minitvm.ir.ops.elemwise import Add, Divide, Multiply, Subtract
from minitvm.ir.ops.nn_dense import BiasAdd
from minitvm.ir.ops.transform import ExpandDims, Repeat, Reshape, Squeeze
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import as_function, calls, post_order, rebuild, rebuild_over, use_counts, users
from minitvm.passes import fold_scale_axis
from minitvm.passes.manager import FunctionPass, Pass, PassContext

_PEELED = ("expand_dims", "reshape", "transpose", "squeeze", "repeat")
_LETS_THROUGH = ("nn.relu", "nn.leaky_relu")


@dataclass(frozen=True)
class Plan:
    """The axes along which a value's scale lies, and whether the scale has to be positive."""

    axes: tuple[int, ...]
    positive: bool = False


@dataclass(frozen=True)
class Scaled:
    """A value that stands for itself times a scale of these axes."""

    value: Expr
    scale: Expr
    axes: tuple[int, ...]


def _name(node: Expr) -> str:
    return node.op.name if isinstance(node, Call) and isinstance(node.op, Op) else ""


def _layers(node: Expr) -> tuple[Layout, Layout, Layout] | None:
    """The layouts of a layer whose weights are no constant, of one group or one filter a channel."""
    found = node.op.channel_layouts() if isinstance(node, Call) and isinstance(node.op, Op) else None
    if found is None or not isinstance(node, Call) or isinstance(node.args[1], Constant):
        return None
    fits = getattr(node.op, "groups", 1) == 1 or _is_depthwise(node)
    plain = found[0].is_blocked == found[1].is_blocked
    return found if fits and plain else None


def _is_depthwise(call: Call) -> bool:
    groups = getattr(call.op, "groups", 1)
    layouts = call.op.channel_layouts() if isinstance(call.op, Op) else None
    return bool(layouts and groups > 1 and layouts[0].primal_shape(call.args[0].tensor_type.shape)["C"] == groups)


def _dims(layout: Layout, axis: str) -> tuple[int, ...]:
    """The dimensions of an axis: itself, and its block."""
    return tuple(layout.index(name) for name in (axis, axis.lower()) if name in layout)


def _vector(big: TensorType, small: Expr, axes: Sequence[int]) -> Expr | None:
    """An operand that broadcasts along all axes but these, with these alone; ``None`` for another one."""
    shape = small.tensor_type.shape
    if not shape and len(axes) == 1 and isinstance(count := big.shape[axes[0]], int):
        return Call(Repeat(count, 0), (Call(ExpandDims(0, 1), (small,)),))
    base, ones = big.rank - len(shape), list[int]()
    for d in range(big.rank):
        if d in axes:
            if d < base or big.shape[d] != shape[d - base]:
                return None
        elif d >= base:
            if shape[d - base] != 1:
                return None
            ones.append(d - base)
    return Call(Squeeze(tuple(ones)), (small,)) if ones else small


def _beside(scale: Expr, shape: Sequence[Any], axes: Sequence[int]) -> Expr:
    """A scale of axes as it broadcasts to a tensor of that shape."""
    if len(axes) > 1:
        return Call(Reshape.to(tuple(size if d in axes else 1 for d, size in enumerate(shape))), (scale,))
    behind = len(shape) - axes[0] - 1
    return Call(ExpandDims(1, behind), (scale,)) if behind else scale


def _is_positive(scale: Expr) -> bool:
    """True for a constant, in whatever shape, without a number below zero."""
    while isinstance(scale, Call) and _name(scale) in _PEELED:
        scale = scale.args[0]
    return isinstance(scale, Constant) and scale.value.dtype.kind in "fiu" and bool(np.all(scale.value >= 0))


def _split(call: Call, plan: Plan | None) -> tuple[Expr, Expr] | None:
    """The value and the scale, of those axes, of a multiplication."""
    if plan is None or not isinstance(call.op, Multiply):
        return None
    for value, scale in (call.args, call.args[::-1]):
        if value.checked_type != call.checked_type:
            continue
        vector = _vector(value.tensor_type, scale, plan.axes)
        if vector is not None and (not plan.positive or _is_positive(vector)):
            return value, vector
    return None


def _other(call: Call, axes: Sequence[int]) -> int | None:
    """The number of the operand of an addition that broadcasts along all axes but these."""
    pairs = ((call.args[0], call.args[1], 1), (call.args[1], call.args[0], 0))
    return next((i for big, small, i in pairs if _vector(big.tensor_type, small, axes) is not None), None)


# --- backward -------------------------------------------------------------------------------------------------


class _Backward:
    """Scales behind layers, handed down to the weights."""

    def __init__(self, function: Function) -> None:
        self.function, self.plans = function, dict[Expr, Plan]()
        uses = use_counts(function)
        for call in calls(function.body):
            plan = self._plan(call) if uses[call] == 1 else None
            if plan is not None:
                self.plans[call] = plan
        self.done: dict[Expr, Expr] = {}

    def _plan(self, call: Call) -> Plan | None:
        layouts, below = _layers(call), [self.plans.get(arg) for arg in call.args]
        if layouts is not None:
            return Plan(_dims(layouts[2], "C"))
        if _name(call) in _LETS_THROUGH:
            return below[0] and replace(below[0], positive=True)
        if isinstance(call.op, BiasAdd):
            return below[0] if below[0] and below[0].axes == (call.op.axis % call.tensor_type.rank,) else None
        if not isinstance(call.op, (Add, Subtract)):
            return None
        a, b = below
        if a and b:
            same = a.axes == b.axes and call.args[0].checked_type == call.args[1].checked_type
            return Plan(a.axes, a.positive or b.positive) if same else None
        plan, other = (a, 1) if a else (b, 0)
        return plan if plan and _other(call, plan.axes) == other else None

    def run(self) -> Function:
        for node in calls(self.function.body):
            self.done[node] = self._visit(node)
        return _over(self.function, self.done)

    def _visit(self, call: Call) -> Expr:
        for arg in call.args:
            found = _split(call, self.plans.get(arg))
            if found is not None and found[0] is arg:
                return self._scaled(arg, found[1])
        return _again(call, self.done)

    def _scaled(self, node: Expr, scale: Expr) -> Expr:
        """A planned node times a scale, without the multiplication."""
        plan, layouts = self.plans[node], _layers(node)
        assert isinstance(node, Call)
        args = [self.done.get(arg, arg) for arg in node.args]
        if layouts is not None:
            weight = _beside(scale, args[1].tensor_type.shape, _dims(layouts[1], "O"))
            args[1] = Call(Multiply(), (args[1], weight))
        elif isinstance(node.op, BiasAdd):
            args = [self._scaled(node.args[0], scale), Call(Multiply(), (args[1], scale))]
        else:
            for i, arg in enumerate(node.args):
                if arg in self.plans:
                    args[i] = self._scaled(arg, scale)
                else:
                    args[i] = Call(Multiply(), (args[i], _beside(scale, node.tensor_type.shape, plan.axes)))
        return rebuild(node, args)


# --- forward --------------------------------------------------------------------------------------------------


class _Forward:
    """Scales in front of layers, which all users of a value can take."""

    def __init__(self, function: Function) -> None:
        self.function, self.plans = function, dict[Expr, Plan]()
        self.users = users(function)
        wanted: dict[tuple[Expr, Expr], Plan] = {}
        for call in reversed(calls(function.body)):
            plan = self._agreed(call, wanted)
            if plan is not None:
                self.plans[call] = plan
            for arg, below in self._wanted(call, plan):
                wanted[call, arg] = below
        self.done: dict[Expr, Expr] = {}
        self.scaled: dict[Expr, Scaled] = {}

    def _agreed(self, call: Call, wanted: Mapping[tuple[Expr, Expr], Plan]) -> Plan | None:
        found = [wanted.get((user, call)) for user in self.users.get(call, [])]
        first = found[0] if found else None
        if first is None or any(one is None or one.axes != first.axes for one in found):
            return None
        return Plan(first.axes, any(one.positive for one in found if one))

    def _wanted(self, call: Call, plan: Plan | None) -> list[tuple[Expr, Plan]]:
        """What a call can take of its operands."""
        layouts = _layers(call)
        if layouts is not None:
            return [(call.args[0], Plan(_dims(layouts[0], "C")))]
        if plan is None:
            return []
        if _name(call) in _LETS_THROUGH:
            return [(call.args[0], replace(plan, positive=True))]
        if isinstance(call.op, (Add, Subtract)):
            other = _other(call, plan.axes)
            return [] if other is None else [(call.args[1 - other], plan)]
        return []

    def run(self) -> Function:
        for call in calls(self.function.body):
            self._visit(call)
        return _over(self.function, self.done)

    def _visit(self, call: Call) -> None:
        plan = self.plans.get(call)
        found = _split(call, plan)
        if plan is not None and found is not None:
            self.done[call] = self.done.get(found[0], found[0])
            self.scaled[call] = Scaled(self.done[call], found[1], plan.axes)
            return
        below = next((self.scaled[arg] for arg in call.args if arg in self.scaled), None)
        if below is None:
            self.done[call] = _again(call, self.done)
            return
        layouts, args = _layers(call), [self.done.get(arg, arg) for arg in call.args]
        if layouts is not None:
            axis = "O" if _is_depthwise(call) else "I"
            weight = _beside(below.scale, args[1].tensor_type.shape, _dims(layouts[1], axis))
            args[1] = Call(Multiply(), (args[1], weight))
        elif len(args) == 2:
            other = next(i for i, arg in enumerate(call.args) if arg not in self.scaled)
            args[other] = Call(Divide(), (args[other], _beside(below.scale, call.tensor_type.shape, below.axes)))
        self.done[call] = rebuild(call, args)
        if layouts is None:
            self.scaled[call] = replace(below, value=self.done[call])


def _again(call: Call, done: Mapping[Expr, Expr]) -> Expr:
    return rebuild(call, [done.get(arg, arg) for arg in call.args])


def _over(function: Function, done: dict[Expr, Expr]) -> Function:
    """The function over what its calls became."""
    for node in post_order(function):
        if node not in done:
            done[node] = rebuild_over(node, done)
    return as_function(done[function])


class _Folds(FunctionPass):
    """minitvm's own pass, then Relay's."""

    def __init__(self, own: Pass, rest: Callable[[Function], Any]) -> None:
        self.own, self.rest, self.info = own, rest, own.info

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        assert isinstance(self.own, FunctionPass)
        made = self.own.transform_function(function, module, context)
        found: Function = self.rest(made).run()
        return found


def BackwardFoldScaleAxis() -> Pass:
    """Relay's: scales behind layers go into their weights, which may be expressions."""
    return _Folds(fold_scale_axis.BackwardFoldScaleAxis(), _Backward)


def ForwardFoldScaleAxis() -> Pass:
    """Relay's: scales in front of layers go into their weights, which may be expressions."""
    return _Folds(fold_scale_axis.ForwardFoldScaleAxis(), _Forward)
