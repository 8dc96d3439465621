"""``Draw``: a graph under construction.  Operators' generators ask it for operands and give it their node."""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx
from onnx import helper, shape_inference

from minitvm.ir.dtypes import COMPUTED
from tests.fuzz.case import IR_VERSION, Arrays, Value, attributes, dtype_of, operator_name, tensor, value_info

SIZES = (1, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 100)
MOODS = ("plain", "plain", "plain", "plain", "plain", "plain", "special", "large", "small", "equal", "halves")
FLOAT_SPECIALS = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, 2.5, 1e-40, -1e-45, 6e-8, 1e4)
LARGE = {"float16": 6e4, "float32": 3e38, "float64": 1e308, "bfloat16": 3e38}
ELEMENTS = 1 << 13
"""The most elements of one tensor."""

AWKWARD_NAMES = (
    "key", "value", "self", "params", "kwargs", "name", "input:0", "input/0", "日本語", "é", "a b", " ", "%x",
    "%0", "p0", "p1", "x" * 300, "None", "0", "1x", "-", ".", "main", "lambda", "a,b", 'quo"te', "it's",
    "back\\slash", "new\nline", "{}", "{0}", "%s", "tab\t", "default", "entry", "out", "run", "T_add", "meta",
    "def", "@main", "[1]", "(a)", "A", "a", "data", "tvmgen", "fused_add", "workspace", "barrier", "thread",
    "threads", "__init__", "NaN", "😀", "\u202eabc",
)  # fmt: skip


def sizes(rng: random.Random, rank: int, budget: int = ELEMENTS, zero: float = 0.01) -> tuple[int, ...]:
    """A shape of some rank with at most ``budget`` elements; with probability ``zero`` each, a dimension is 0."""
    shape: list[int] = []
    for left in range(rank, 0, -1):
        most = max(1, int(budget ** (1 / left) * 3) if left > 1 else budget)
        size = rng.choice([s for s in SIZES if s <= most] or [1])
        if rng.random() < zero:
            size = 0
        shape.append(size)
        budget //= max(size, 1)
    rng.shuffle(shape)
    return tuple(shape)


def array(rng: random.Random, shape: Sequence[int], dtype: str, mood: str = "plain") -> np.ndarray:
    """Random elements.  ``plain`` ones are of everyday size; ``special`` has infinities, NaN, denormals and the
    extremes of integers sprinkled in, ``large`` and ``small`` are near the ends of the range, ``equal`` all one;
    ``halves`` lie between two integers, or on one; ``positive`` ones are scales that do not vanish."""
    draw = np.random.default_rng(rng.getrandbits(64))
    shape = tuple(shape)
    if dtype == "bool":
        return draw.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return _integers(draw, shape, dtype, mood)
    found = draw.normal(0.0, rng.choice((0.5, 1.0, 4.0)), shape)
    if mood == "equal":
        found = np.full(shape, rng.choice((0.0, -0.0, 1.0, 1.0, -1.0, 0.5, 3.0)))
    elif mood == "halves":
        found = np.round(4 * found) / 2
    elif mood == "positive":
        found = np.abs(found) + 0.1
    elif mood == "large":
        found = found * (LARGE.get(dtype, 100.0) * 10.0 ** -float(draw.integers(1, 6)))
    elif mood == "small":
        found = found * 10.0 ** -float(draw.integers(3, 42))
    elif mood == "special":
        found = np.where(draw.random(shape) < 0.2, draw.choice(FLOAT_SPECIALS, shape), found)
    with np.errstate(all="ignore"):
        return found.astype(dtype)


def _integers(draw: np.random.Generator, shape: tuple[int, ...], dtype: str, mood: str) -> np.ndarray:
    info = np.iinfo(dtype)
    low, high = max(info.min, -10), min(info.max, 10)
    found = draw.integers(low, high, shape, dtype=dtype, endpoint=True)
    if mood == "equal":
        return np.full(shape, draw.choice([0, 1, 1, 3]), dtype)
    if mood in ("large", "small"):
        return draw.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    if mood == "special":
        extremes = np.array([info.min, info.max, info.min + 1, info.max - 1, 0, info.max // 2], dtype)
        return np.where(draw.random(shape) < 0.2, draw.choice(extremes, shape), found)
    return found


def uniform(rng: random.Random, shape: Sequence[int], dtype: str, low: float, high: float) -> np.ndarray:
    """Elements of ``[low, high]``, of an integer or float dtype; ``low`` where that is empty."""
    high = max(low, high)
    draw = np.random.default_rng(rng.getrandbits(64))
    if np.dtype(dtype).kind in "iu":
        return draw.integers(int(low), int(high), tuple(shape), dtype=dtype, endpoint=True)
    return draw.uniform(low, high, tuple(shape)).astype(dtype)


T = TypeVar("T")
Shape: TypeAlias = tuple[int, ...]
Generator: TypeAlias = "Callable[[Draw], list[Value]]"

GENERATORS: dict[str, Generator] = {}
FLOATS = ("float32", "float32", "float32", "float16", "float64")


class Reject(Exception):
    """The operator cannot be drawn here: not in this opset, or its operands do not fit one another."""


def generates(*names: str) -> Callable[[Generator], Generator]:
    """Registers the generator of operators, by type, those of other domains as ``domain.type``."""

    def register(generator: Generator) -> Generator:
        for name in names:
            assert name not in GENERATORS, f"{name} has two generators"
            GENERATORS[name] = generator
        return generator

    return register


@lru_cache(maxsize=4096)
def schema_of(op_type: str, opset: int) -> Any:
    """The operator as ONNX defines it in an opset; ``None`` where it does not, or no longer."""
    try:
        found = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    return None if found.deprecated else found


@lru_cache(maxsize=4096)
def accepted(op_type: str, opset: int, parameter: int) -> tuple[str, ...]:
    """dtypes that ONNX allows for an operator's input, of those that minitvm computes with."""
    schema = schema_of(op_type, opset)
    if schema is None:
        raise Reject(f"no {op_type} in opset {opset}")
    names = {t.type_param_str: t.allowed_type_strs for t in schema.type_constraints}
    parameter = min(parameter, len(schema.inputs) - 1)
    type_str = schema.inputs[parameter].type_str
    found = [_numpy_name(t) for t in names.get(type_str, [type_str])]
    return tuple(d for d in COMPUTED if d in found)


def _numpy_name(type_str: str) -> str:
    name = type_str.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(name, name)


class Draw:
    """Values so far, and random choices.  Everything follows from ``rng``."""

    def __init__(self, rng: random.Random, opset: int) -> None:
        self.rng, self.opset = rng, opset
        self.mood = rng.choice(MOODS)
        self.awkward = rng.random() < 0.15
        self.op = ""
        self.follows = 0.0
        """How often an operand is one of ``latest``, where one fits."""
        self.latest: list[Value] = []
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: Arrays = {}
        self.constants: Arrays = {}
        self.literals: Arrays = {}
        """Arrays known while shapes are inferred: ``constants``, and what Constant nodes hold."""
        self.values: dict[str, Value] = {}
        self.names: set[str] = set()

    # --- choices ---

    def choice(self, options: Sequence[T]) -> T:
        return self.rng.choice(options)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def maybe(self, value: T, probability: float = 0.5) -> T | None:
        """The value, or ``None``: an attribute or operand that is left out."""
        return value if self.chance(probability) else None

    def between(self, low: int, high: int) -> int:
        return self.rng.randint(low, max(low, high))

    def some(self, options: Iterable[T], least: int = 0) -> list[T]:
        """A random part of the options, in random order."""
        pool = list(options)
        return self.rng.sample(pool, self.between(min(least, len(pool)), len(pool)))

    def real(self, *usual: float) -> float:
        """A float attribute, often a usual one."""
        chosen = self.choice([*usual, self.rng.uniform(-2, 2), 0.0, 1.0, 0.5, -1.0])
        return float(np.float32(chosen))

    def axis(self, rank: int) -> int:
        """An axis, from opset 11 on counted from either end; :class:`Reject` for a scalar."""
        if rank < 1:
            raise Reject("no axes")
        return self.rng.randrange(-rank if self.opset >= 11 else 0, rank)

    def axes(self, rank: int, least: int = 0) -> list[int]:
        chosen = self.some(range(rank), least)
        return [a - rank if self.chance(0.3) else a for a in chosen]

    def shape(self, least: int = 0, most: int = 5, budget: int = ELEMENTS) -> Shape:
        ranks = [r for r in (0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5) if least <= r <= most]
        return sizes(self.rng, self.choice(ranks), budget)

    def size(self, most: int = 100) -> int:
        return self.choice([s for s in SIZES if s <= most])

    def name(self) -> str:
        """A new name, an awkward one now and then."""
        found = f"v{len(self.names)}"
        if self.awkward and self.chance(0.5):
            found = self.choice([*AWKWARD_NAMES, *(n.swapcase() for n in self.names)])
        while found in self.names:
            found += "_"
        self.names.add(found)
        return found

    # --- operands ---

    def dtype(self, parameter: int = 0, only: Iterable[str] | None = None) -> str:
        """A dtype that ONNX allows for an input of the present operator; float32 half of the time."""
        found = accepted(self.op.rpartition(".")[2], self.opset, parameter)
        found = tuple(d for d in found if only is None or d in only)
        if not found:
            raise Reject("no dtype")
        return "float32" if "float32" in found and self.chance(0.5) else self.choice(found)

    def known(self, value: Value) -> Shape:
        if value.shape is None:
            raise Reject("a shape that depends on data")
        return value.shape

    def constant(self, array: np.ndarray, as_input: float = 0.0) -> Value:
        """An initializer or a Constant's output; with some probability an input instead."""
        array = np.asarray(array)
        value = self._value(array)
        if self.chance(as_input):
            self.inputs[value.name] = array
            return value
        self.literals[value.name] = array
        if self.chance(0.85):
            self.constants[value.name] = array
        else:
            self.nodes.append(helper.make_node("Constant", [], [value.name], value=tensor(array, "")))
        return value

    def ints(self, numbers: Sequence[int], dtype: str = "int64", as_input: float = 0.01) -> Value:
        """Axes, shapes, indices: nearly always constant."""
        return self.constant(np.array(list(numbers), dtype), as_input)

    def new(self, shape: Sequence[int], dtype: str, constant: float = 0.15, mood: str | None = None) -> Value:
        """A new operand, with some probability a constant."""
        return self.constant(array(self.rng, shape, dtype, mood or self.mood), 1 - constant)

    def within(self, shape: Sequence[int], dtype: str, low: float, high: float, constant: float = 0.5) -> Value:
        """A new operand with elements of ``[low, high]``."""
        return self.constant(uniform(self.rng, shape, dtype, low, high), 1 - constant)

    def like(self, shape: Shape, dtype: str, constant: float = 0.15) -> Value:
        """An operand of this very type: one that is there already, where there is one, or a new one."""
        there = [v for v in self.values.values() if (v.shape, v.dtype) == (shape, dtype)]
        latest = [v for v in there if v in self.latest]
        if latest and self.chance(self.follows / 2):
            return self.choice(latest)
        return self.choice(there) if there and self.chance(0.6) else self.new(shape, dtype, constant)

    def weight(self, shape: Sequence[int], dtype: str) -> Value:
        mood = self.choice(("plain", "plain", "plain", "plain", "positive", "positive", "equal", self.mood))
        return self.new(shape, dtype, 0.75 + self.follows / 5, mood)

    def operand(
        self, dtypes: Iterable[str] | None = None, least: int = 0, most: int = 5, budget: int = ELEMENTS
    ) -> Value:
        """An operand of a dtype the present operator accepts and a rank of ``least`` to ``most``: something that is
        there already where that is possible, mostly, or a new one."""
        allowed = set(accepted(self.op, self.opset, 0) if dtypes is None else dtypes)
        there = [
            v
            for v in self.values.values()
            if v.dtype in allowed and v.shape is not None and least <= v.rank <= most and math.prod(v.shape) <= budget
        ]
        latest = [v for v in there if v in self.latest]
        if latest and self.chance(self.follows):
            return self.choice(latest)
        if there and self.chance(0.75):
            return self.choice(there[-4:])
        dtype = self.dtype() if dtypes is None else self.choice(list(dtypes))
        return self.new(self.shape(least, most, budget), dtype)

    def partner(self, shape: Shape) -> Shape:
        """A shape that broadcasts with ``shape``: itself, one for each channel, a part of it, ..."""
        how = self.rng.random()
        if len(shape) > 2 and self.chance(0.05 + 0.3 * self.follows):
            return (shape[1], *[1] * (len(shape) - 2))
        if how < 0.5:
            return shape if how < 0.4 else ()
        kept = shape[self.between(0, len(shape)) :] if how < 0.8 else shape
        found = tuple(1 if self.chance(0.3) else size for size in kept)
        grows = len(found) == len(shape) < 4 and math.prod(shape) < 2000 and self.chance(0.2)
        return (self.choice((1, 2, 3)), *found) if grows else found

    def other(self, value: Value, dtype: str | None = None) -> Value:
        """An operand that broadcasts with another."""
        return self.like(self.partner(self.known(value)), dtype or value.dtype)

    # --- nodes ---

    def node(
        self,
        inputs: Sequence[Value | None],
        outputs: int = 1,
        types: Sequence[tuple[str, Shape | None]] | None = None,
        **given: Any,
    ) -> list[Value]:
        """Adds a node of the present operator; its outputs, with types as ONNX infers them where not given.

        Inputs and attributes that are ``None`` are left out.  :class:`Reject` where ONNX finds it malformed.
        """
        names = ["" if v is None else v.name for v in inputs]
        while names and not names[-1]:
            names.pop()
        domain, _, op_type = self.op.rpartition(".")
        produced = [self.name() for _ in range(outputs)]
        node = helper.make_node(op_type, names, produced, domain=domain)
        node.attribute.extend(_attribute(name, value) for name, value in given.items() if value is not None)
        found = self._inferred(node) if types is None else list(types)
        if any(shape is not None and math.prod(shape) > 8 * ELEMENTS for _, shape in found):
            raise Reject("too large")
        if any(min(shape or (0,)) < 0 for _, shape in found):
            raise Reject("less than nothing")
        self.nodes.append(node)
        results = [Value(name, *type_) for name, type_ in zip(produced, found, strict=True)]
        self.values.update({v.name: v for v in results})
        return results

    def again(self, node: onnx.NodeProto) -> list[Value]:
        """Another node with a node's attributes and operands; constant floats are drawn anew."""
        self.op = operator_name(node)
        inputs = [self._renewed(name) if name else None for name in node.input]
        same = [self.values[name] for name in node.output]
        return self.node(inputs, len(same), [(v.dtype, v.shape) for v in same], **attributes(node))

    def _renewed(self, name: str) -> Value:
        array = self.literals.get(name)
        if array is None or array.dtype.kind != "f":
            return self.values[name]
        return self.new(array.shape, array.dtype.name, 1.0, "plain")

    def _inferred(self, node: onnx.NodeProto) -> list[tuple[str, Shape | None]]:
        """The outputs' types by ONNX's shape inference."""
        schema = schema_of(node.op_type, self.opset)
        if schema is None:
            raise Reject(f"no {node.op_type} in opset {self.opset}")
        types = {name: value_info(name, v.dtype, v.shape).type for name, v in self.values.items() if name in node.input}
        data = {name: tensor(self.literals[name], "") for name in node.input if name in self.literals}
        imports = [helper.make_opsetid("", self.opset)]
        try:
            found = shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=imports, ir_version=IR_VERSION
            )
        except (shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError) as error:
            raise Reject(str(error)) from None
        return [_type_of(found[name]) if name in found else self._untyped() for name in node.output]

    def _untyped(self) -> tuple[str, Shape | None]:
        raise Reject("an output without a type")

    def _value(self, array: np.ndarray) -> Value:
        value = Value(self.name(), array.dtype.name, array.shape)
        self.values[value.name] = value
        return value


def _attribute(name: str, value: Any) -> onnx.AttributeProto:
    return helper.make_attribute(name, value, attr_type=onnx.AttributeProto.INTS if value == [] else None)


def _type_of(proto: onnx.TypeProto) -> tuple[str, Shape | None]:
    inner = proto.tensor_type
    known = inner.HasField("shape") and all(d.HasField("dim_value") for d in inner.shape.dim)
    shape = tuple(int(d.dim_value) for d in inner.shape.dim) if known else None
    return dtype_of(inner.elem_type), shape
