"""Annotate: what products and sums read is rounded to few steps, in floats, so that it can be held in integers.

Each value has a kind: a sum of products (``ACTIVATION``), what is rounded (``INPUT``), or none.  An operator's rule
says what its operands have to be and what it gives; where an operator has no rule, quantization ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from minitvm.errors import PassError
from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Expr, Function, Module, Tuple, Var
from minitvm.ir.op import OPS, Op
from minitvm.ir.ops.simulated import QAnnotateKind, SimulatedQuantize
from minitvm.ir.types import TensorType
from minitvm.ir.visitor import as_function, children, is_made_of, post_order, rebuild, use_counts
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.quantize.config import QConfig, current_qconfig, simulated_kind

INPUT, WEIGHT, ACTIVATION = QAnnotateKind.INPUT, QAnnotateKind.WEIGHT, QAnnotateKind.ACTIVATION

Annotated: TypeAlias = "tuple[Expr, QAnnotateKind | None]"
"""A value, and its kind; no kind where it is not quantized."""
Rule: TypeAlias = "Callable[[Call, list[Annotated], Annotating], Annotated | None]"
"""From a call, its operands and what is known of the function to the call's value; ``None``: it stays in floats."""

RULES: dict[str, Rule] = {}
"""By the operator's name."""


@dataclass
class Annotating:
    """What is known while one function is annotated."""

    config: QConfig
    convolutions: int = 0
    stopped: bool = False
    attached: dict[tuple[Expr, QAnnotateKind], Expr] = field(default_factory=dict)
    done: dict[Expr, Annotated] = field(default_factory=dict)

    def skips(self, call: Call) -> bool:
        """True if a call stays as it is: behind the end of quantization, or a convolution that options name."""
        if self.stopped:
            return True
        skipped = self.config.skip_conv_layers
        if skipped is None or getattr(call.op, "name", "") != "nn.conv2d":
            return False
        self.convolutions += 1
        return self.convolutions - 1 in [*map(int, skipped)]

    def attach(self, data: Expr, kind: QAnnotateKind) -> Expr:
        """The value rounded, once for all who ask; scale and bounds are variables until they are known."""
        if simulated_kind(data) == kind:
            return data
        if (data, kind) not in self.attached:
            one = TensorType((), data.tensor_type.dtype)
            names = ("dom_scale", "clip_min", "clip_max")
            op = SimulatedQuantize(kind=int(kind))
            self.attached[data, kind] = Call(op, [data, *(Var(name, one) for name in names)], span=data.span)
        return self.attached[data, kind]

    def rounded(self, operand: Annotated) -> Expr:
        """An operand as an input, by what it is already."""
        expr, kind = operand
        return expr if kind == INPUT else self.attach(expr, INPUT)

    def node(self, node: Expr, uses: int) -> Annotated:
        found = self._by_rule(node) if isinstance(node, Call) else None
        if found is None:
            return rebuild(node, [self.done[child][0] for child in children(node)]), None
        expr, kind = found
        if kind == ACTIVATION and uses > 1:  # rounded once for all of its users
            return self.attach(expr, INPUT), INPUT
        return found

    def _by_rule(self, call: Call) -> Annotated | None:
        rule = RULES.get(call.op.name) if isinstance(call.op, Op) else None
        if rule is None or not self.config.guard(call):
            return None
        if self.skips(call):
            decide("QuantizeAnnotate", call, Declined("it is one of those that are left alone"))
            return None
        found = rule(call, [self.done[arg] for arg in call.args], self)
        if found is None:
            decide("QuantizeAnnotate", call, Declined("none of its operands is quantized"))
        return found


class Annotate(FunctionPass, name="QuantizeAnnotate", rounds=True):
    """Simulated quantization in front of what is to be computed in integers."""

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        state, uses = Annotating(current_qconfig()), use_counts(function)
        for node in post_order(function.body):
            state.done[node] = state.node(node, uses[node])
        return as_function(rebuild(function, (*function.params, state.done[function.body][0])))


def annotate() -> Annotate:
    """The pass that puts simulated quantization into a graph; scales are variables until ``calibrate`` binds them."""
    return Annotate()


def register_annotate_function(op_name: str, frewrite: Any = None, level: int = 10) -> Any:
    """Registers a rule for an operator: ``f(call, operands, state) -> (value, kind)``, or ``None`` to leave the call in
    floats; operands are such pairs, too, and ``state.attach(value, kind)`` rounds one.  A decorator without ``f``."""
    if op_name not in OPS:
        raise PassError(f"there is no operator {op_name!r} to annotate")

    def register(function: Any) -> Any:
        RULES[op_name] = function
        return function

    return register if frewrite is None else register(frewrite)


def _over(call: Call, *operands: Expr) -> Expr:
    return rebuild(call, operands)


def is_constant(expr: Expr) -> bool:
    """True if no variable is in it."""
    return is_made_of(expr, of=lambda node: not isinstance(node, Var))


def _fixed(operand: Annotated, state: Annotating) -> Expr:
    """An operand that is not quantized yet: constants as weights."""
    return state.attach(operand[0], WEIGHT if is_constant(operand[0]) else INPUT)


def _product(call: Call, operands: list[Annotated], state: Annotating) -> Annotated | None:
    """A convolution: of an input and a weight, to a sum."""
    data, (weight, kind) = operands
    if kind is not None:
        return None
    return _over(call, state.rounded(data), state.attach(weight, WEIGHT)), ACTIVATION


def _dense(call: Call, operands: list[Annotated], state: Annotating) -> Annotated | None:
    return None if state.config.skip_dense_layer else _product(call, operands, state)


def _batch_matmul(call: Call, operands: list[Annotated], state: Annotating) -> Annotated | None:
    sides = [o[0] if o[1] == INPUT else _fixed(o, state) for o in operands]
    return _over(call, *sides), ACTIVATION


def _multiply(call: Call, operands: list[Annotated], state: Annotating) -> Annotated | None:
    """Of something quantized and something else; of two that are quantized both are rounded."""
    if all(kind is None for _, kind in operands):
        return None
    sides = [_fixed(o, state) if o[1] is None else state.rounded(o) for o in operands]
    return _over(call, *sides), ACTIVATION


def _add(call: Call, operands: list[Annotated], state: Annotating) -> Annotated | None:
    """A sum needs a bit more than its operands, so that it is never an input as it stands, as it is in Relay."""
    (left, one), (right, other) = operands
    if one is None and other is None:
        return None
    if one is None:
        left = state.attach(left, INPUT)
    elif other is None:
        right = _fixed(operands[1], state)
    elif one == other == ACTIVATION:
        right = state.attach(right, INPUT)
    return _over(call, left, right), ACTIVATION


def _same(call: Call, operands: list[Annotated], state: Annotating) -> Annotated | None:
    """What only moves or bounds values leaves their kind."""
    (data, kind), *_ = operands
    return None if kind is None else (_over(call, data), kind)


def _mean(call: Call, operands: list[Annotated], state: Annotating) -> Annotated | None:
    """Means are computed in floats."""
    return None if operands[0][1] is None else (_over(call, operands[0][0]), ACTIVATION)


def _of_input(call: Call, operands: list[Annotated], state: Annotating) -> Annotated | None:
    """Pooling for the largest works on what is rounded."""
    return None if operands[0][1] is None else (_over(call, state.rounded(operands[0])), INPUT)


def _concatenate(call: Call, operands: list[Annotated], state: Annotating) -> Annotated | None:
    """Of several, some quantized: the others are rounded, too."""
    joined = call.args[0]
    fields = [state.done[f] for f in joined.fields] if isinstance(joined, Tuple) else []
    if all(kind is None for _, kind in fields):
        return None
    each = [state.attach(expr, INPUT) if kind is None else expr for expr, kind in fields]
    return _over(call, Tuple(each, span=joined.span)), ACTIVATION


def _stop(call: Call, operands: list[Annotated], state: Annotating) -> Annotated | None:
    """The mean of whole images is where quantization ends."""
    if operands[0][1] is None:
        return None
    state.stopped = True
    return _over(call, operands[0][0]), None


RULES |= {
    **dict.fromkeys(("nn.conv1d", "nn.conv2d"), _product),
    "nn.dense": _dense,
    "nn.batch_matmul": _batch_matmul,
    "multiply": _multiply,
    "add": _add,
    **dict.fromkeys(("clip", "nn.relu", "reshape", "transpose", "strided_slice", "nn.batch_flatten"), _same),
    "annotation.stop_fusion": _same,
    "nn.avg_pool2d": _mean,
    **dict.fromkeys(("nn.max_pool1d", "nn.max_pool2d", "annotation.cast_hint"), _of_input),
    "concatenate": _concatenate,
    "nn.global_avg_pool2d": _stop,
}
