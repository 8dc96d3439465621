"""Small expressions that a pattern may match: shapes, dtypes, attributes, layouts and constants drawn at random.

Every node is built by its operator, whose ``infer`` refuses what does not fit; what comes through is a case.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import random
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np

from minitvm.errors import MiniTVMError
from minitvm.ir.attributes import Attribute, attributes_of
from minitvm.ir.dtypes import DTYPES, carrier
from minitvm.ir.expr import Call, Constant, Expr, Tuple, TupleGetItem, Var
from minitvm.ir.layout import Layout
from minitvm.ir.op import OPS, Op
from minitvm.ir.ops.elemwise import Multiply
from minitvm.ir.ops.nn_dense import Dense
from minitvm.ir.ops.tensor import Full, Ones, Zeros
from minitvm.ir.pattern import (
    CallPattern,
    ConstPattern,
    EitherPattern,
    FilledPattern,
    GetItemPattern,
    Pattern,
    TuplePattern,
    Where,
    is_one_of,
)
from minitvm.ir.types import TensorType, TupleType
from minitvm.lab.layers import Layer, drawn

SIZES = (1, 2, 3, 2, 1, 3, 4, 0)
"""Extents of dimensions; the last ones are rarer."""
RANKS = (2, 1, 3, 4, 0, 5)
ELEMENTS = 512
"""The most of one tensor."""
NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5, -0.0, 3.0, -128.0, 127.0, 255.0, 6.0, 1e-5, math.inf, -math.inf)
PLAIN = ("float32", "float64", "float16", "int32", "int64", "int8", "uint8", "bool")
WHOLE = (0, 1, -1, 2, 3, -2, 4)
LAYOUTS = ("NCHW", "NHWC", "NCHW2c", "NCHW4c", "CHWN", "OIHW", "HWIO", "OIHW2i", "OIHW4o", "NCW", "NWC", "NC", "CN")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class NotDrawn(Exception):
    """What was begun fits nothing: another one is tried."""


class PredicateFailed(Exception):
    """A predicate of a pattern raised, on a node that is right otherwise."""

    def __init__(self, node: Expr, error: Exception) -> None:
        self.node, self.error = node, error


@dataclass
class Seen:
    """The parts of a pattern that cases had: which operator of which call, which alternative."""

    parts: set[tuple[int, Any]] = field(default_factory=set)


class Drawer:
    """Draws one expression; ``dtype`` and ``rank`` are those of most of its leaves."""

    def __init__(self, rng: random.Random, dtype: str, rank: int) -> None:
        self.rng, self.dtype = rng, dtype
        self.base = self._fresh(rank)
        other = "float32" if rng.random() < 0.5 else rng.choice(DTYPES)
        self.dtypes = (dtype, dtype, other) if rng.random() < 0.35 else (dtype,)
        """Those of leaves."""
        self.boldness = rng.choice((0.0, 0.15, 0.5, 0.8))
        """How many attributes are not at their defaults."""
        self.sharing = rng.choice((0.0, 0.0, 0.5, 0.9))
        """How many leaves are one that there is already, or a multiple of it."""
        self.hints: Layer | None = None
        """Attributes that go with the shapes of the next operator's operands."""
        self.layers: dict[type[Op], Layer] = {}
        self.given: dict[type[Op], dict[str, Any]] = {}
        """The last attributes of an operator, which siblings share."""
        self.shape: tuple[int, ...] | None = None
        """Of the next leaf, where an operator's operands have to go together."""
        self.layout = ""
        """The last one that was drawn: what follows often starts from it."""
        self.variables: list[Var] = []
        self.named: dict[str, Expr] = {}
        self.seen = Seen()

    # --- patterns ---

    def draw(self, pattern: Pattern) -> Expr:
        """:class:`NotDrawn` where operands do not fit, or a predicate says no."""
        if pattern.name is not None and pattern.name in self.named:
            return self.named[pattern.name]
        made = self._made(pattern)
        if not pattern.accepts(made) or (pattern.where is not None and not self._says(pattern.where, made)):
            raise NotDrawn
        if pattern.name is not None:
            self.named[pattern.name] = made
        return made

    def _says(self, where: Where, made: Expr) -> bool:
        try:
            return where(made)
        except Exception as error:
            raise PredicateFailed(made, error) from error

    def _made(self, pattern: Pattern) -> Expr:
        match pattern:
            case CallPattern():
                return self._call(pattern)
            case FilledPattern():
                return self._filled(pattern.number)
            case ConstPattern():
                given = self.shape
                made = self._constant(() if pattern.rank == 0 else self._shape(pattern.rank))
                return made if given is None else Constant(_finite(made.value))  # of a layer, which meets zeros
            case TuplePattern():
                return Tuple([self.draw(part) for part in pattern.fields])
            case GetItemPattern():
                return self._field(pattern)
            case EitherPattern():
                which = self.rng.randrange(len(pattern.alternatives))
                self.seen.parts.add((id(pattern), which))
                return self.draw(pattern.alternatives[which])
        return self._leaf()

    def _call(self, pattern: CallPattern) -> Expr:
        given = self.rng.choice(pattern.ops)
        self.seen.parts.add((id(pattern), given))
        key: Any = given
        kinds = _kinds(key, None if pattern.args is None else len(pattern.args), tuple(map(id, OPS.values())))
        if not kinds:
            raise NotDrawn
        kind = self.rng.choice(kinds)
        parts = pattern.args
        if parts is None:
            arity = _arity(kind)
            parts = (Pattern(),) * (2 if arity is None else arity)
        layer = drawn(self.rng, kind, self.layers.get(kind))
        args = self._operands(parts, layer.shapes if layer is not None else ())
        if layer is not None:
            self.hints = self.layers[kind] = layer
        swaps = kind.commutative if pattern.commutative is None else pattern.commutative
        if swaps and len(args) == 2 and self.rng.random() < 0.5:
            args.reverse()
        return self._build(kind, args)

    def _operands(self, parts: Sequence[Pattern], shapes: Sequence[tuple[int, ...]]) -> list[Expr]:
        """In order; where nothing else says what shapes they have, calls before leaves, which go with them."""
        found: dict[int, Expr] = {}
        for i in sorted(range(len(parts)), key=lambda i: not shapes and not isinstance(parts[i], CallPattern)):
            given = self.shape = shapes[i] if i < len(shapes) else self.shape
            found[i] = self.draw(parts[i])
            type_ = found[i].checked_type
            if isinstance(type_, TensorType) and type_.is_static and (given or isinstance(found[i], Call)):
                self.base = type_.static_shape
        return [found[i] for i in range(len(parts))]

    def _build(self, kind: type[Op], args: Sequence[Expr]) -> Expr:
        layer, self.hints = self.hints, None
        try:
            values = self._attributes(kind, args) | (layer.attributes if layer is not None else {})
            self.given[kind] = values
            return _small(Call(kind(**values), args))
        except (MiniTVMError, TypeError, ValueError, IndexError, OverflowError, ZeroDivisionError):
            raise NotDrawn from None

    def _field(self, pattern: GetItemPattern) -> Expr:
        inner = self.draw(pattern.inner)
        if not isinstance(inner.checked_type, TupleType) or not inner.checked_type.fields:
            raise NotDrawn
        count = len(inner.checked_type.fields)
        index = self.rng.randrange(count) if pattern.index is None else pattern.index
        if index >= count:
            raise NotDrawn
        return TupleGetItem(inner, index)

    # --- leaves ---

    def _leaf(self) -> Expr:
        """A variable mostly; a constant, or what a matrix product makes, which some rules look for."""
        how = self.rng.random()
        if self.shape is not None:
            return self._variable(self._shape(None))
        if self.variables and self.rng.random() < self.sharing * (1 if self.variables[1:] else 0.5):
            shared = self.rng.choice(self.variables)
            return shared if self.rng.random() < 0.7 else self._build(Multiply, [shared, self._constant(())])
        if how < 0.06:
            return self._constant(self._shape(None))
        if how < 0.12:
            return self._build(Multiply, [self._variable(self.base), self._constant(())])
        if how < 0.2 and self.base:
            rows, columns = self.base if len(self.base) == 2 else self._fresh(2)
            return self._build(Dense, [self._variable((rows, 3)), self._variable((columns, 3))])
        return self._variable(self._shape(None))

    def _variable(self, shape: tuple[int, ...]) -> Var:
        self.variables.append(Var(f"x{len(self.variables) + 1}", TensorType(shape, self._dtype())))
        return self.variables[-1]

    def _dtype(self) -> str:
        return self.rng.choice(self.dtypes)

    def _fresh(self, rank: int) -> tuple[int, ...]:
        """Of few elements; square often, where one axis can be mistaken for another."""
        if self.rng.random() < 0.3:
            return (self.rng.choice((2, 3)),) * rank
        while True:
            shape = tuple(self.rng.choice(SIZES) for _ in range(rank))
            if math.prod(shape) <= ELEMENTS:
                return shape

    def _shape(self, rank: int | None) -> tuple[int, ...]:
        """The base shape, one that is broadcast to it or that it is broadcast to, its axes in another order, or any."""
        if self.shape is not None:
            given, self.shape = self.shape, None
            return given
        how = self.rng.random()
        if rank is not None and rank != len(self.base):
            return self._fresh(rank)
        if how < max(0.45, self.sharing):
            return self.base
        if how < 0.6 and self.base:
            kept = self.rng.randrange(len(self.base))  # one for each place of an axis
            return (self.base[kept], *(1 for _ in self.base[kept + 1 :]))
        if how < 0.7:
            return tuple(1 if self.rng.random() < 0.4 else n for n in self.base)[self.rng.randint(0, 1) :]
        if how < 0.78:
            return tuple(self.rng.sample(self.base, len(self.base)))
        if how < 0.82:
            return self._fresh(1)
        return self._fresh(len(self.base)) if how < 0.95 else ()

    def _constant(self, shape: tuple[int, ...]) -> Constant:
        return Constant(self._content(shape, self._dtype()))

    def _content(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """All one number, a few kinds of numbers mixed, or plain ones."""
        how, draw = self.rng.random(), np.random.default_rng(self.rng.getrandbits(32))
        if how < 0.2:
            return _cast(np.full(shape, self.rng.choice(NUMBERS)), dtype)
        if how < 0.3:
            return _cast(draw.choice(NUMBERS, shape), dtype)
        plain = draw.normal(0, 2, shape) if how < 0.8 else draw.integers(-3, 6, shape)
        return _cast(np.abs(plain) if dtype.startswith("uint") else plain, dtype)

    def _filled(self, number: float) -> Expr:
        how, dtype = self.rng.random(), self._dtype()
        signed = -number if number == 0 and self.rng.random() < 0.5 else number
        if how < 0.7:
            shape = () if self.rng.random() < 0.3 else self._shape(None)
            return Constant(_cast(np.full(shape, signed), dtype))
        if how < 0.85 and number in (0, 1):
            return self._build(Zeros, []) if number == 0 else self._build(Ones, [])
        return self._build(Full, [Constant(_cast(np.asarray(signed), dtype))])

    # --- attributes ---

    def _gives(self, attribute: Attribute) -> bool:
        least = 0.5 if attribute.name == "axis" else 0.0
        return attribute.required or self.rng.random() < max(self.boldness, least)

    def _attributes(self, kind: type[Op], args: Sequence[Expr]) -> dict[str, Any]:
        """Those of the last call of this operator, maybe but for one; or new ones."""
        known, last = attributes_of(kind), self.given.get(kind)
        if last is None or self.rng.random() < 0.6:
            return {name: self._attribute(a, args) for name, a in known.items() if self._gives(a)}
        other = self.rng.choice(list(known)) if known and self.rng.random() < 0.4 else ""
        return last | ({other: self._attribute(known[other], args)} if other else {})

    def _attribute(self, attribute: Attribute, args: Sequence[Expr]) -> Any:
        """A value that the annotation allows, of those that mean something for operands of these shapes."""
        known = (a.checked_type for a in args)
        shape = next((t.static_shape for t in known if isinstance(t, TensorType) and t.is_static), self.base)
        return self._value(attribute.annotation, attribute.name, shape)

    def _value(self, annotation: Any, name: str, shape: tuple[int, ...]) -> Any:
        origin, parts = get_origin(annotation), get_args(annotation)
        if origin is Literal:
            return self.rng.choice(parts)
        if origin is Annotated:
            how, usual = self.rng.random(), [self.dtype, *(d for d in PLAIN if d in parts[1])]
            if how < 0.2 or self.dtype not in parts[1]:
                return self.rng.choice(parts[1])
            return self.dtype if how < 0.45 else self.rng.choice(usual)
        if origin in (Union, types.UnionType):
            return self._value(self.rng.choice(parts), name, shape)
        if origin is tuple:
            return self._tuple(name, shape, parts)
        scalars: dict[Any, Callable[[], Any]] = {
            bool: lambda: self.rng.random() < 0.5,
            int: lambda: self.rng.choice([*range(-len(shape), len(shape))] * 2 + [*WHOLE]),
            float: lambda: self.rng.choice(NUMBERS),
            str: lambda: self._text(name, len(shape)),
            type(None): lambda: None,
        }
        if annotation not in scalars:
            raise NotDrawn
        return scalars[annotation]()

    def _text(self, name: str, rank: int) -> str:
        if "layout" in name:
            self.layout = self.rng.choice(self._layouts(name, rank) or LAYOUTS)
            return self.layout
        return self.rng.choice((self.dtype, "a"))

    def _layouts(self, name: str, rank: int) -> list[str]:
        """Those that fit: a source has the tensor's rank, and is mostly what the last one ended in; a target the same
        axes as its source."""
        if name == "dst_layout":
            return [known for known in LAYOUTS if sorted(Layout(known).primal) == sorted(Layout(self.layout).primal)]
        if self.layout and Layout(self.layout).rank == rank and self.rng.random() < 0.8:
            return [self.layout]
        return [known for known in LAYOUTS if Layout(known).rank == rank]

    def _tuple(self, name: str, shape: tuple[int, ...], parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Axes in some order, a shape of as many elements, or small numbers for windows."""
        if name == "axes":
            return tuple(self.rng.sample(range(len(shape)), len(shape)))
        if name == "axis":
            ahead = self.rng.choice((0, 0, len(shape)))
            return tuple(a - ahead for a in self.rng.sample(range(len(shape)), self.rng.randint(0, len(shape))))
        if name in ("newshape", "shape"):
            return self._same_size(shape)
        if name == "pad_width":
            quiet = max(0, len(shape) - 2) if self.rng.random() < 0.7 else 0  # images are padded along rows and columns
            ends = [(self.rng.choice((0, 1, 1, 2)), self.rng.choice((0, 1, 1, 2))) for _ in shape]
            return tuple((0, 0) if axis < quiet else pair for axis, pair in enumerate(ends))
        if any(get_origin(part) is tuple for part in parts):
            raise NotDrawn
        least = 0 if name in ("padding", "output_padding", "begin") else 1
        count = self.rng.choice((1, 2, max(1, len(shape) - 2), 2 * max(1, len(shape) - 2)))
        return tuple(self.rng.randint(least, least + self.rng.choice((0, 1, 2))) for _ in range(count))

    def _same_size(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        how = self.rng.random()
        if how < 0.15:
            return self._shape(None)
        cut = sorted(self.rng.sample(range(len(shape) + 1), min(len(shape) + 1, 2)))
        merged = [math.prod(part) for part in (shape[: cut[0]], shape[cut[0] : cut[-1]], shape[cut[-1] :]) if part]
        if how < 0.4:
            merged = list(shape)
        for _ in range(self.rng.randint(0, 2)):
            merged.insert(self.rng.randint(0, len(merged)), 1)
        return tuple(-1 if how > 0.9 and i == 0 else n for i, n in enumerate(merged))


@functools.cache
def _kinds(given: Any, operands: int | None, _defined: tuple[int, ...]) -> tuple[type[Op], ...]:
    """The operators that a pattern may mean, of those that are defined now, which take so many operands."""
    found = (kind for kind in OPS.values() if is_one_of(kind, (given,)))
    return tuple(kind for kind in found if operands is None or _arity(kind) in (None, operands))


def _arity(kind: type[Op]) -> int | None:
    """How many operands its type rule takes; ``None``: any number."""
    if kind.infer is Op.infer:
        return None
    parameters = list(inspect.signature(kind.infer).parameters.values())[1:]
    return None if any(p.kind in _VARIADIC for p in parameters) else len(parameters)


def _small(call: Call) -> Call:
    """:class:`NotDrawn` where a result is untyped, or large."""
    leaves = call.checked_type.fields if isinstance(call.checked_type, TupleType) else (call.checked_type,)
    for leaf in leaves:
        if not isinstance(leaf, TensorType) or not leaf.is_static or leaf.size > 8 * ELEMENTS:
            raise NotDrawn
    return call


def _finite(values: np.ndarray) -> np.ndarray:
    """Without infinities, times which the zeros of a padding are no numbers."""
    return np.nan_to_num(values, posinf=3.0, neginf=-3.0) if values.dtype.kind == "f" else values


def _cast(values: np.ndarray, dtype: str) -> np.ndarray:
    """What a dtype has of some numbers: those out of an integer's range become 0."""
    held = np.dtype(carrier(dtype))
    if held.kind in "iu":
        info = np.iinfo(held)
        values = np.where(np.isfinite(values) & (values >= info.min) & (values <= info.max), values, 0)
    with np.errstate(all="ignore"):
        return np.asarray(np.asarray(values).astype(held).astype(dtype))


def strata() -> list[tuple[str, int]]:
    """Every dtype at every rank."""
    return list(itertools.product(DTYPES, RANKS))
