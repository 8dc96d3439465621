"""FakeQuantizationToInteger as Relay has it: what lies between dequantize and quantize computes with integers.

    quantize(f(dequantize(x, s, z)), t, v)  ->  requantize(f'(x), s', z', t, v)

Every operator on the way has a rule, which makes it of stored integers and says what these stand for
(:class:`Affine`); where one declines, all stays as it is.  ``use_qat`` also turns what no quantize follows, as far as
every argument is quantized.  Rules are exact but for one rounding, to a step of 1 / 256 of the result's or finer,
where scales differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from minitvm.errors import MiniTVMError, PassError
from minitvm.ir.decision import Declined, decide
from minitvm.ir.dtypes import limits
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, describe_call
from minitvm.ir.op import Op
from minitvm.ir.ops.quantize import Dequantize, Quantize
from minitvm.ir.types import TupleType
from minitvm.ir.visitor import as_function, children, post_order, rewrite
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.tvm.relay import operators
from minitvm.tvm.relay.composed import made
from minitvm.tvm.relay.registered import attribute, set_attribute

RULE = "FTVMFakeQuantizationToInteger"


class Refused(Exception):
    """A rule cannot make an operator of integers: why."""


@dataclass(frozen=True, eq=False)
class Affine:
    """What stored integers stand for: ``(values - zero) * scale``, of scalars, or vectors along ``axis``, which is
    counted from the end (so that broadcasting keeps it); ``most`` is the largest difference to the zero point."""

    scale: np.ndarray
    zero: np.ndarray
    dtype: str
    axis: int = -1
    most: int = 0
    narrow: Affine | None = None
    """Of a mean, which is held more finely: the bytes that it is as good as."""
    is_next: bool = False
    """True for what a result is quantized to at once: it may be made of it, where rounding keeps the order."""

    @classmethod
    def of(cls, scale: Expr, zero: Expr, dtype: str, axis: int, rank: int) -> Affine:
        if not isinstance(scale, Constant) or not isinstance(zero, Constant):
            raise Refused("its scale or zero point is no constant")
        parts = [p.value.reshape(()) if p.value.size == 1 else p.value for p in (scale, zero)]
        low, high = map(int, limits(dtype))
        points = parts[1].astype("int64")
        most = max(int(abs(high - points).max(initial=0)), int(abs(points - low).max(initial=0)))
        return cls(parts[0], parts[1], dtype, axis - rank if axis >= 0 else axis, most)

    @property
    def is_along(self) -> bool:
        return self.scale.ndim + self.zero.ndim > 0

    @property
    def is_wide(self) -> bool:
        return self.most > 2**16

    def same_as(self, other: Affine) -> bool:
        """True if the same integers stand for the same numbers; scales that differ by a rounding are one."""
        close = self.scale.shape == other.scale.shape and np.allclose(self.scale, other.scale, rtol=1e-6, atol=0)
        elsewhere = self.is_along and other.is_along and self.axis != other.axis
        return bool(close and not elsewhere and np.all(self.zero == other.zero))

    def steps(self, number: Any, rank: int) -> Expr:
        """A constant number as what is stored for it; kept within int32."""
        wide = np.rint(np.asarray(number, "float64") / self._spread(self.scale, rank)) + self._spread(self.zero, rank)
        low, high = limits("int32")
        return Constant(np.clip(wide, low, high).astype("int32"))

    def _spread(self, vector: np.ndarray, rank: int) -> np.ndarray:
        return vector.reshape([-1 if d == self.axis % rank else 1 for d in range(rank)]) if vector.ndim else vector


class Stored(NamedTuple):
    """Integers, and what they stand for."""

    values: Expr
    kind: Affine


Found: TypeAlias = "Stored | Constant | list[Any]"
"""Of a tensor, of one that is constant, and of a tuple's fields."""
Rule: TypeAlias = Callable[[Call, list[Any], "Affine | None"], Stored]
"""Makes a call of what its arguments became; the last is what the result is quantized to, ``None`` where nothing is."""

RULES: dict[str, Rule] = {}
ON_DEMAND: set[str] = set()
"""What has a rule that is an approximation: used where ``optional_qnn_ops`` names it."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def requantized(stored: Stored, kind: Affine, dtype: str) -> Stored:
    """The same numbers as integers of another kind."""
    values, old = stored
    if old.same_as(kind) and values.dtype == dtype:
        return Stored(values, replace(kind, dtype=dtype))
    if old.same_as(kind) and dtype == "int32":
        return Stored(made("cast", values, dtype=dtype), replace(kind, dtype=dtype))
    parts = [Constant(np.asarray(p)) for p in (old.scale, old.zero, kind.scale, kind.zero)]
    axes = {one.axis for one in (old, kind) if one.is_along}
    if len(axes) > 1:
        raise Refused("its scales lie along different axes")
    axis = axes.pop() if axes else -1
    made_ = operators.function("qnn.op.requantize")(values, *parts, axis=axis, out_dtype=dtype)
    return Stored(made_, replace(kind, dtype=dtype))


def centred(stored: Stored) -> Stored:
    """The same numbers as int32 around a zero point of 0."""
    values, kind = stored
    values = values if values.dtype == "int32" else made("cast", values, dtype="int32")
    if kind.zero.any():
        values = made("subtract", values, Constant(kind._spread(kind.zero, values.tensor_type.rank).astype("int32")))
    return Stored(values, replace(kind, zero=np.zeros((), "int32"), dtype="int32"))


# --- the pass ---------------------------------------------------------------------------------------------------


def is_source(node: Expr) -> bool:
    return isinstance(node, Call) and isinstance(node.op, Dequantize)


class Subgraph:
    """What lies between dequantize and one quantize."""

    def __init__(self, out: Affine | None, optional: Iterable[str]) -> None:
        self.out, self.optional = out, set(optional)
        self.done: dict[Expr, Found] = {}

    def stored(self, root: Expr) -> Found:
        """The root made of integers; :class:`Refused` where it cannot be."""
        self.root = root
        for node in post_order(root, operands=lambda n: () if is_source(n) else children(n)):
            if node not in self.done:
                self.done[node] = self._visit(node)
        return self.done[root]

    def _visit(self, node: Expr) -> Found:
        if isinstance(node, Constant):
            return node
        if isinstance(node, Tuple):
            return [self.done[field] for field in node.fields]
        if isinstance(node, TupleGetItem):
            below = self.done[node.tuple]
            if isinstance(below, Stored):
                return Stored(below.values[node.index], below.kind)
            if not isinstance(below, list):
                raise Refused("a tuple that is constant")
            found: Found = below[node.index]
            return found
        if not isinstance(node, Call) or not isinstance(node.op, Op):
            raise Refused(f"{node} is not quantized")
        if is_source(node):
            return source(node)
        return self._called(node, node.op, [self.done[arg] for arg in node.args])

    def _called(self, call: Call, op: Op, found: list[Any]) -> Found:
        own = attribute(op.name, RULE)
        if own is not None:
            return _by_script(own, call, op, found)
        if op.name not in RULES or (op.name in ON_DEMAND and op.name not in self.optional):
            raise Refused(f"{op.name} has no rule")
        if found and all(isinstance(one, Constant) for one in found):
            raise Refused(f"{op.name} has constant arguments")
        try:
            return RULES[op.name](call, found, self.out and replace(self.out, is_next=call is self.root))
        except MiniTVMError as error:
            raise Refused(f"{op.name}: {error.message}") from error


def source(node: Call) -> Stored:
    values, scale, zero = node.args
    op: Any = node.op
    return Stored(values, Affine.of(scale, zero, values.dtype, op.axis, values.tensor_type.rank))


def _by_script(own: Any, call: Call, op: Op, found: list[Any]) -> Stored:
    """What a script registered: a function of a call and a map of its arguments' types."""
    args = [one.values if isinstance(one, Stored) else one for one in found]
    kinds = {arg: to_script(one.kind) for arg, one in zip(args, found, strict=True) if isinstance(one, Stored)}
    try:
        made_, kind = own(SimpleNamespace(op=op, args=args, attrs=op, checked_type=call.checked_type), kinds)
    except (PassError, NotImplementedError, AssertionError, LookupError, TypeError, ValueError) as error:
        raise Refused(f"what is registered for {op.name} raised {type(error).__name__}: {error}") from error
    if not isinstance(made_, Expr) or not isinstance(kind, TensorAffineType):
        raise PassError(f"what is registered for {op.name} gives [expression, TensorAffineType]")
    return Stored(made_, Affine.of(kind.scale, kind.zero_point, kind.dtype, kind.axis, made_.tensor_type.rank))


@dataclass(frozen=True, eq=False)
class TensorAffineType:
    """Relay's: what the integers of a tensor stand for, of constants."""

    scale: Expr
    zero_point: Expr
    dtype: str
    axis: int = -1


def to_script(kind: Affine) -> TensorAffineType:
    return TensorAffineType(Constant(kind.scale), Constant(kind.zero), kind.dtype, kind.axis)


def register_fake_quantization_to_integer(op_name: str, func: Any = None, level: int = 10) -> Any:
    """Registers a rule of a script's: ``func(expr, type_map)`` gives ``[expression, TensorAffineType]``."""
    if func is None:
        return partial(register_fake_quantization_to_integer, op_name, level=level)
    set_attribute(op_name, RULE, func, level)
    return func
