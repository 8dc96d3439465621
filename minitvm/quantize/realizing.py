"""Realize: simulated quantization becomes integers, and what lies between is computed in them.

A value is an integer array and the scale that it stands for; shifts take the place of products where scales differ
by a power of two, products in fixed point elsewhere.  Where an operator has no rule, floats are made of it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from minitvm.errors import PassError
from minitvm.ir.builder import call_op
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple
from minitvm.ir.op import Op
from minitvm.ir.ops.simulated import CastHint, QAnnotateKind, SimulatedQuantize
from minitvm.ir.visitor import as_function, children, post_order, rebuild
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.quantize.config import QConfig, current_qconfig, simulated_kind


@dataclass(frozen=True)
class Scaled:
    """``data * scale`` is what is meant; ``data`` holds whole numbers, in ``float32`` while they are just rounded."""

    data: Expr
    scale: float

    @property
    def dtype(self) -> str:
        return str(self.data.tensor_type.dtype)

    def cast(self, dtype: str) -> Expr:
        return self.data if self.dtype == dtype else call_op("cast", self.data, dtype=dtype)


Realized: TypeAlias = "Expr | Scaled"
Rule: TypeAlias = "Callable[[Call, list[Realized], QConfig], Realized | None]"


def _number(value: float, dtype: str) -> Constant:
    return Constant(np.asarray(value, dtype))


def _times(one: float, other: float) -> float:
    """A product of scales, as float32 has it."""
    return float(np.float32(one) * np.float32(other))


def as_fixed_point(factor: float) -> tuple[int, int]:
    """``(m, s)`` with ``factor = m / 2**s`` as near as 31 bits of ``m`` are."""
    mantissa, exponent = math.frexp(factor)
    multiplier = round(mantissa * (1 << 31))
    return (multiplier >> 1, 30 - exponent) if multiplier == 1 << 31 else (multiplier, 31 - exponent)


def scaled_by(data: Expr, factor: float, rounding: str) -> Expr:
    """int64 integers times a number, to the nearest: halves upwards, or away from zero (``TONEAREST``)."""
    multiplier, shift = as_fixed_point(factor)
    product = call_op("multiply", data, _number(multiplier, "int64"))
    if shift <= 0:
        return call_op("left_shift", product, _number(-shift, "int64"))
    half: Expr = _number(1 << (shift - 1), "int64")
    if rounding == "TONEAREST":  # a half of what is negative goes down
        less = call_op("cast", call_op("less", product, _number(0, "int64")), dtype="int64")
        half = call_op("subtract", half, less)
    return call_op("right_shift", call_op("add", product, half), _number(shift, "int64"))


def _quantized(call: Call, operands: list[Realized], config: QConfig) -> Realized | None:
    """Simulated quantization of floats, and of integers of another scale."""
    scale, low, high = (float(_constant(arg, call)) for arg in call.args[1:])
    bounds: dict[str, Any] = {"a_min": low, "a_max": high}
    given = operands[0]
    if not isinstance(given, Scaled):
        steps = call_op("multiply", given, _number(1 / np.float32(scale), "float32"))
        return Scaled(call_op("clip", call_op("round", steps), **bounds), scale)
    if given.scale == scale:
        return Scaled(call_op("clip", given.data, **bounds), scale)
    wide = config.dtype_activation
    shift = math.log2(np.float32(scale) / np.float32(given.scale))
    if not shift.is_integer():
        data = scaled_by(given.cast("int64"), float(np.float32(given.scale) / np.float32(scale)), config.rounding)
        return Scaled(call_op("cast", call_op("clip", data, **bounds), dtype=wide), scale)
    return Scaled(call_op("clip", _shifted(given.cast(wide), int(shift), config), **bounds), scale)


def _constant(arg: Expr, call: Call) -> Any:
    if not isinstance(arg, Constant):
        raise PassError("simulated quantization without a scale", hint="calibrate() comes before realize()")
    return arg.value[()]


def _shifted(data: Expr, shift: int, config: QConfig) -> Expr:
    """Integers over two to the power of ``shift``, halves upwards where options say so, else towards less."""
    wide = config.dtype_activation
    if shift < 0:
        return call_op("left_shift", data, _number(-shift, wide))
    if config.round_for_shift:
        data = call_op("add", data, _number(1 << (shift - 1), wide))
    return call_op("right_shift", data, _number(shift, wide))


def _product(call: Call, operands: list[Realized], config: QConfig) -> Realized | None:
    """Products of inputs and weights, with sums in the dtype of activations."""
    data, weight = operands
    if not isinstance(data, Scaled) or not isinstance(weight, Scaled):
        return None
    assert isinstance(call.op, Op)
    args = [data.cast(config.dtype_input), weight.cast(_dtype_of(call.args[1], config))]
    op = call.op.with_attributes(out_dtype=config.dtype_activation)
    return Scaled(Call(op, args, span=call.span), _times(data.scale, weight.scale))


def _dtype_of(side: Expr, config: QConfig) -> str:
    """The dtype of the second side of a product: a weight's, or an input's."""
    return config.dtype_weight if simulated_kind(side) == QAnnotateKind.WEIGHT else config.dtype_input


def _multiply(call: Call, operands: list[Realized], config: QConfig) -> Realized | None:
    left, right = operands
    if not isinstance(left, Scaled) or not isinstance(right, Scaled):
        return None
    args = [side.cast(config.dtype_activation) for side in (left, right)]
    return Scaled(rebuild(call, args), _times(left.scale, right.scale))


def _of_one_scale(operands: Sequence[Scaled], config: QConfig) -> tuple[list[Expr], float]:
    """Operands in the dtype of activations, by the smallest of their scales."""
    smallest = min(one.scale for one in operands)
    return [_raised(one, smallest, config) for one in operands], smallest


def _raised(one: Scaled, scale: float, config: QConfig) -> Expr:
    """The same value by a smaller scale."""
    wide, factor = config.dtype_activation, float(np.float32(one.scale) / np.float32(scale))
    if factor == 1.0:
        return one.cast(wide)
    if math.log2(factor).is_integer():
        return call_op("left_shift", one.cast(wide), _number(math.log2(factor), wide))
    if factor.is_integer():
        return call_op("multiply", one.cast(wide), _number(factor, wide))
    return call_op("cast", scaled_by(one.cast("int64"), factor, config.rounding), dtype=wide)


def _add(call: Call, operands: list[Realized], config: QConfig) -> Realized | None:
    sides = [one for one in operands if isinstance(one, Scaled)]
    if len(sides) < 2:
        return None
    args, scale = _of_one_scale(sides, config)
    return Scaled(rebuild(call, args), scale)


def _concatenate(call: Call, operands: list[Realized], config: QConfig) -> Realized | None:
    joined = operands[0]
    fields = joined if isinstance(joined, tuple) else ()
    if not fields or not all(isinstance(one, Scaled) for one in fields):
        return None
    if len({(one.scale, one.dtype) for one in fields}) == 1:
        args, scale = [one.data for one in fields], fields[0].scale
    else:
        args, scale = _of_one_scale(fields, config)
    return Scaled(rebuild(call, [Tuple(args)]), scale)


def _clip(call: Call, operands: list[Realized], config: QConfig) -> Realized | None:
    data = operands[0]
    if not isinstance(data, Scaled):
        return None
    op: Any = call.op
    bounds: dict[str, Any] = {"a_min": op.a_min / data.scale, "a_max": op.a_max / data.scale}
    return Scaled(call_op("clip", data.data, **bounds), data.scale)


def _same(call: Call, operands: list[Realized], config: QConfig) -> Realized | None:
    data = operands[0]
    return Scaled(rebuild(call, [data.data]), data.scale) if isinstance(data, Scaled) else None


def _as_input(call: Call, operands: list[Realized], config: QConfig) -> Realized | None:
    """Pooling for the largest, in as few bits as inputs have."""
    data = operands[0]
    return Scaled(rebuild(call, [data.cast(config.dtype_input)]), data.scale) if isinstance(data, Scaled) else None


def _hinted(call: Call, operands: list[Realized], config: QConfig) -> Realized | None:
    data, op = operands[0], call.op
    assert isinstance(op, CastHint)
    return Scaled(data.cast(op.dtype), data.scale) if isinstance(data, Scaled) else data


RULES: dict[str, Rule] = {
    "annotation.simulated_quantize": _quantized,
    "annotation.cast_hint": _hinted,
    **dict.fromkeys(("nn.conv1d", "nn.conv2d", "nn.dense", "nn.batch_matmul"), _product),
    "multiply": _multiply,
    "add": _add,
    "concatenate": _concatenate,
    "clip": _clip,
    **dict.fromkeys(("nn.relu", "reshape", "transpose", "strided_slice", "nn.batch_flatten"), _same),
    "annotation.stop_fusion": _same,
    **dict.fromkeys(("nn.max_pool1d", "nn.max_pool2d"), _as_input),
}
"""By the operator's name: from a call and its operands to a value; ``None``: it is computed in floats."""


@dataclass
class _Realizing:
    config: QConfig
    done: dict[Expr, Any] = field(default_factory=dict)
    floats: dict[Scaled, Expr] = field(default_factory=dict)

    def node(self, node: Expr) -> Any:
        if isinstance(node, Tuple) and any(isinstance(self.done[f], Scaled) for f in node.fields):
            return tuple(self.done[field] for field in node.fields)
        found = self._by_rule(node) if isinstance(node, Call) and isinstance(node.op, Op) else None
        return rebuild(node, [self.as_float(self.done[child]) for child in children(node)]) if found is None else found

    def _by_rule(self, call: Call) -> Realized | None:
        rule = RULES.get(getattr(call.op, "name", ""))
        return rule(call, [self.done[arg] for arg in call.args], self.config) if rule else None

    def as_float(self, value: Any) -> Expr:
        """The value in floats; each is made once."""
        if isinstance(value, tuple):
            return Tuple([self.as_float(one) for one in value])
        if isinstance(value, Expr):
            return value
        assert isinstance(value, Scaled)
        if value not in self.floats:
            self.floats[value] = call_op("multiply", value.cast("float32"), _number(value.scale, "float32"))
        return self.floats[value]


class Realize(FunctionPass, name="QuantizeRealize", rounds=True):
    """Simulated quantization made real: integers between what is rounded and what needs floats."""

    needs = (SimulatedQuantize, CastHint)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        state = _Realizing(current_qconfig())
        for node in post_order(function.body):
            state.done[node] = state.node(node)
        return as_function(rebuild(function, (*function.params, state.as_float(state.done[function.body]))))


def realize() -> Realize:
    """The pass that makes integers of simulated quantization whose scales are known."""
    return Realize()
