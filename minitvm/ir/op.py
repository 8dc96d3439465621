"""What an operator is: one class per operator, holding all that depends on neither target nor opset."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from minitvm.errors import IRError, TypeInferenceError, is_own, place_of
from minitvm.ir.attributes import attributes_of, complete, waiting
from minitvm.ir.dims import Dim, SymbolicDim, symbols_of
from minitvm.ir.dtypes import STORED
from minitvm.ir.layout import Layout
from minitvm.ir.loop import Binary, Buffer, Const, LoopExpr, LoopVar, Reduce, Select, Stage, const, walk_exprs
from minitvm.ir.types import FuncType, TensorType, Type, leaves

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_: bool) -> Callable[[type], type]:
        return lambda base: base


AnyOp = TypeVar("AnyOp", bound="Op")

OPS: dict[str, type[Op]] = {}
"""Every operator class by name; a class registers itself when it is defined."""


class Fusion(IntEnum):
    """Relay's operator patterns (``OpPatternKind``); the order is what FuseOps compares."""

    ELEMWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    COMM_REDUCE = 3
    OUT_ELEMWISE_FUSABLE = 4
    TUPLE = 7
    OPAQUE = 8


class Precision(Enum):
    """What fewer bits mean for an operator of floats (ToMixedPrecision)."""

    SHORT = "worth it: its sums are kept in float32 all the same"
    FOLLOW = "as short as its operands"
    WIDE = "stays as it is: it sums, or small differences of operands become large ones"


class _Frozen:
    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot set {name!r}: operators never change")


@dataclass_transform(frozen_default=True)
@dataclasses.dataclass(frozen=True)
class Op(_Frozen):
    """An operator with its attributes: every subclass is a frozen dataclass, an instance is what a call applies.

    A subclass sets ``name`` (Relay's) and ``fusion``, declares its attributes as dataclass fields
    with Relay's names, whose annotations say what they may be (``minitvm.ir.attributes``), and defines

    * ``infer(*types) -> Type``: shape and dtype of the result; ``raise self.reject(...)`` where the
      arguments do not fit.  The parameters' names are the operator's argument names.  A parameter with
      a default of ``None`` is an optional trailing argument; ``*name`` is a variable number of them.
      Operators over a list of tensors (``concatenate``) take one argument of tuple type, as in Relay.
    * ``reference(*arrays) -> array or tuple``: the meaning in numpy.  Never writes to its arguments.
    * ``compute(*buffers) -> Stage or tuple``: the meaning element by element (:func:`compute`).
      Operators without one are lowered by a template, or run as a visible host call.
    * ``statements(*buffers) -> Stmt`` (instead of ``compute``): loops that write the results, the last buffers, where
      an element is no expression of the operands: sorting, scattering, what one step leaves to the next.
    * ``relayout(site) -> Placement or Declined`` (optional): how it works on arguments in another layout.
    * ``solve(types) -> types`` (optional): fills in argument types that are still ``None``, from the
      attributes and the known ones (``weight`` from ``channels`` and ``kernel_size``).
    """

    name: ClassVar[str]
    fusion: ClassVar[Fusion]
    stateful: ClassVar[bool] = False
    """True where two calls with equal arguments may differ (random numbers): never folded or merged."""
    hosted: ClassVar[bool] = False
    """True where nobody asks for a kernel: control flow, what another library computes."""
    draws: ClassVar[bool] = False
    """True where such an operator draws numbers at random."""
    lowered_by_template: ClassVar[bool] = False
    """True where an operator without ``compute`` becomes a kernel all the same, by a template."""
    commutative: ClassVar[bool] = False
    """True where two arguments may stand in either order."""
    chooses: ClassVar[bool] = False
    """True where the first argument says which of the others is computed at all, element by element."""
    view: ClassVar[bool] = False
    """True where the result is the elements of the argument in their order, in another shape."""
    reads_in_place: ClassVar[bool] = False
    """True where an argument may be a part of another tensor, or one turned: it is read where it lies."""
    read_again: ClassVar[tuple[int, ...]] = ()
    """Arguments that are read anew for every few results, so that what has to be computed is so before."""
    affine: ClassVar[bool] = False
    """True where the result is elements of the argument, at steps of their own along each axis."""
    cuts: ClassVar[bool] = False
    """True where the result is the first argument as far as a value says, no more than an end to find."""
    homogeneous: ClassVar[bool] = False
    """True for ``f(s * x, ...) == s * f(x, ...)`` where s, which broadcasts to x, is greater than zero."""
    additive: ClassVar[bool] = False
    """True for ``f(s * x, s * y) == s * f(x, y)`` where s broadcasts to the result."""
    takes_stored: ClassVar[bool | None] = None
    """True where elements are moved or converted, so that dtypes that are only stored (``ir.dtypes.STORED``) will do;
    ``None``: for injective operators."""
    in_place: ClassVar[int | None] = None
    """The argument whose memory may be the result's, all of which is right then but what the operator changes."""
    looks_up: ClassVar[bool] = False
    """True where of the first argument no more elements are read than the result has: a table is not read whole."""
    fixed_from: ClassVar[int | None] = None
    """The first of the result's axes whose sizes have to be numbers before it is compiled; ``None``: there is none."""
    exact: ClassVar[bool | None] = None
    """True where IEEE 754 has one right result for each element (one operation, a choice, a comparison), so that nobody
    computes it otherwise; ``None``: where elements only move."""
    precision: ClassVar[Precision | None] = None
    """``None``: what moves elements follows its operands, all else stays wide (:meth:`wanted_precision`)."""
    outputs: ClassVar[int] = 0
    """Number of results of an operator that returns a tuple of known length; 0: a tensor, or by attribute."""

    def __init_subclass__(cls, **traits: Any) -> None:
        """Registers the class.  Its name and traits may stand in its header: ``class Relu(Op, name="nn.relu")``;
        functions there are no methods."""
        for trait, value in traits.items():
            if not any(trait in vars(base) or trait in vars(base).get("__annotations__", ()) for base in cls.__mro__):
                raise TypeError(f"{cls.__name__}: there is no trait {trait!r}")
            setattr(cls, trait, staticmethod(value) if callable(value) else value)
        if "__annotations__" in vars(cls):
            waiting.add(cls)
            if not is_own(cls):
                complete(cls)
        if "statements" in vars(cls):
            cls.lowered_by_template = True
        if "name" in vars(cls):
            _require_new(cls)
            OPS[cls.name] = cls

    def __new__(cls, *_: Any, **__: Any) -> Self:
        complete(cls)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Keep the attributes as their annotations have them; a subclass with checks of its own calls this first."""
        for attribute in attributes_of(type(self)).values():
            given = getattr(self, attribute.name)
            try:
                value = attribute.kind.read(given)
            except (TypeError, ValueError, OverflowError):
                expected = attribute.kind.expected
                raise self.reject(f"attribute {attribute.name!r} is {given!r}, expected {expected}") from None
            if value is not given:
                object.__setattr__(self, attribute.name, value)

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Self:
        """The operator with these attributes; rejects unknown ones, and says which is missing."""
        known = attributes_of(cls)
        wrong = [f"unknown attribute {name!r}" for name in attributes if name not in known]
        wrong += [f"attribute {a.name!r} is missing" for a in known.values() if a.required and a.name not in attributes]
        if wrong:
            usage = f"arguments: {', '.join(signature(cls).names) or 'none'}; attributes: {', '.join(known) or 'none'}"
            raise TypeInferenceError(f"{cls.name}: {wrong[0]}", hint=usage)
        return cls(**attributes)

    def infer(self, *types: Any) -> Type:
        raise NotImplementedError(self.name)

    def typed(self, *types: Type) -> Type:
        """:meth:`infer`; rejects what is only stored, among arguments and results, unless it is only moved."""
        self._check_stored(types)
        found = self.infer(*types)
        if isinstance(found, Type):
            self._check_stored((found,))
        return found

    def _check_stored(self, types: Sequence[Type]) -> None:
        if self.moves():
            return
        for type_ in types:
            for tensor in () if isinstance(type_, FuncType) else leaves(type_):
                if tensor.dtype in STORED:
                    raise self.reject(
                        f"{tensor.dtype} is for storage; nothing is computed in it",
                        hint=f"cast to {STORED[tensor.dtype]} and back",
                    )

    def reference(self, *arrays: Any) -> Any:
        raise NotImplementedError(self.name)

    def compute(self, *buffers: Any) -> Any:
        raise NotImplementedError(self.name)

    def statements(self, *buffers: Any) -> Any:
        raise NotImplementedError(self.name)

    def solve(self, types: list[Type | None]) -> list[Type | None]:
        return types

    def channel_layouts(self) -> tuple[Layout, Layout, Layout] | None:
        """Layouts of data, weight and result of a layer whose weights (axes O, I, ...) can take a scale of channels."""
        return None

    def batch_axes(self) -> tuple[Sequence[int | None], Sequence[int | None]] | None:
        """The axis of the images that it computes one by one, for each operand and each result (of weights none)."""
        return None

    def starts(self, *types: Any) -> tuple[int, ...] | None:
        """The element of its argument that each result begins at, where it cuts; the element of the result that each
        field begins at, where it joins a tuple.  ``None`` where parts are not one stretch of the whole each."""
        return None

    def relayout(self, site: Any) -> Any:
        """Answers how a call works on arguments in another layout (``minitvm.ir.relayout``); ``None``: as its fusion
        says."""
        return None

    def reject(self, message: str, hint: str | None = None) -> TypeInferenceError:
        """The error to raise from ``infer``; the call's text and span are added where it is caught."""
        return TypeInferenceError(f"{self.name}: {message}", hint=hint)

    @property
    def title(self) -> str:
        """The name of a call in reports."""
        return self.name

    def attributes(self) -> dict[str, Any]:
        """All attributes by name, in order of declaration."""
        return {name: getattr(self, name) for name in attributes_of(type(self))}

    @property
    def assumed_sizes(self) -> tuple[Sequence[str], ...]:
        """The names of sizes that are known in a run of its bodies, that it makes up, and that nobody else knows;
        nothing where it has none."""
        return ()

    @property
    def symbols(self) -> frozenset[str]:
        """The names of the symbols that its attributes are made with."""
        return symbols_of(d for d in _flat(tuple(self.attributes().values())) if isinstance(d, SymbolicDim))

    def with_attributes(self, **changes: Any) -> Self:
        """The same operator with other attributes."""
        return dataclasses.replace(self, **changes)

    def flops(self, args: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        """Operations of one call: one per element read by a reduction or written otherwise; moving is free."""
        if self.fusion is Fusion.COMM_REDUCE:
            return float(sum(t.size for t in args))
        counts = self.is_elementwise or self.fusion is Fusion.OUT_ELEMWISE_FUSABLE
        return float(sum(t.size for t in results)) if counts else 0.0

    @classmethod
    def moves(cls) -> bool:
        """True if it moves or converts elements, which may be of dtypes that are only stored."""
        return cls.fusion is Fusion.INJECTIVE if cls.takes_stored is None else cls.takes_stored

    @classmethod
    def is_exact(cls) -> bool:
        """:attr:`exact`, or the default; of anything else the last digits are open."""
        return cls.moves() if cls.exact is None else cls.exact

    @property
    def is_sum(self) -> bool:
        """True if it adds floats in an order of its own: layers, products, reductions."""
        return self.fusion in (Fusion.OUT_ELEMWISE_FUSABLE, Fusion.COMM_REDUCE) and not self.is_exact()

    @classmethod
    def wanted_precision(cls) -> Precision:
        """:attr:`precision`, or the default."""
        return cls.precision or (Precision.FOLLOW if cls.moves() and cls.fusion <= Fusion.INJECTIVE else Precision.WIDE)

    @property
    def is_elementwise(self) -> bool:
        """True if an element of the result needs one of each argument, which may be broadcast."""
        return self.fusion <= Fusion.BROADCAST

    def keeps_positions(self, arguments: int) -> bool:
        """True if an element of the result is made of those in its place, of arguments of one shape or broadcast."""
        return self.fusion is Fusion.ELEMWISE and arguments == 1

    @classmethod
    def has_compute(cls) -> bool:
        return cls.compute is not Op.compute

    @classmethod
    def has_statements(cls) -> bool:
        return cls.statements is not Op.statements

    @classmethod
    def has_reference(cls) -> bool:
        return cls.reference is not Op.reference


@dataclasses.dataclass(frozen=True)
class Signature:
    """An operator's arguments, read off ``infer``."""

    names: tuple[str, ...]
    required: int
    variadic: bool


_signatures: dict[type[Op], Signature] = {}


def signature(op: type[Op]) -> Signature:
    """Argument names of an operator class, how many are required, and whether more may follow."""
    if op not in _signatures:
        if not issubclass(op, Op):
            raise IRError(
                f"a {op.__name__} cannot be called",
                hint="operators are functions, relay.add(x, y); a function of a module is called as module[name](x)",
            )
        parameters = list(inspect.signature(op.infer).parameters.values())[1:]
        fixed = [p for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL]
        required = sum(p.default is inspect.Parameter.empty for p in fixed)
        _signatures[op] = Signature(tuple(p.name for p in fixed), required, len(fixed) != len(parameters))
    return _signatures[op]


def _require_new(cls: type[Op]) -> None:
    """A class that is decorated or run again in a notebook takes the first one's place; another one does not."""
    old = OPS.get(cls.name)
    if old is None or (old.__module__, old.__qualname__) == (cls.__module__, cls.__qualname__):
        return
    if is_own(old) or old.__qualname__ != cls.__qualname__:
        raise IRError(
            f"operator {cls.name!r} is defined in {place_of(old)} already, and again in {place_of(cls)}",
            hint="give it another name; a cell that is run again defines the same class anew",
        )


def _flat(value: Any) -> list[Any]:
    """What stands in nested tuples."""
    return [one for part in value for one in _flat(part)] if isinstance(value, tuple) else [value]


def define(base: type[AnyOp], name: str, meaning: str, **traits: Any) -> type[AnyOp]:
    """An operator of a family, without code of its own: ``define(Unary, "floor", "Rounds down.", ufunc=np.floor)``."""
    words = name.rpartition(".")[2].split("_")
    made: Any = types.new_class("".join(map(str.capitalize, words)), (base,), {"name": name, **traits})
    made.__doc__, made.__module__ = meaning, base.__module__
    return made  # type: ignore[no-any-return]


# --- compute rules ---------------------------------------------------------------------------------------------
#
#     compute((m, n), lambda i, j: sum_over(k, lambda r: x[i, r] * weight[j, r]))
#
# A rule may use several stages; a stage is indexed like any buffer.  Element functions see loop variables only, so
# they hold no state, and stages compose across operators: that is what makes fusion a substitution.

_AXES = "ijklmnopq"


def compute(shape: Sequence[Dim], element: Callable[..., Any], dtype: str | None = None, name: str = "t") -> Stage:
    """The tensor whose element at ``(i, j, ...)`` is ``element(i, j, ...)``.

    ``dtype`` is needed only where ``element`` returns a Python number.
    """
    axes = tuple(LoopVar(_AXES[d] if d < len(_AXES) else f"i{d}") for d in range(len(shape)))
    value = element(*axes)
    if not isinstance(value, LoopExpr):
        assert dtype is not None, "a constant element needs a dtype"
        value = const(value, dtype)
    assert dtype is None or value.dtype == dtype, f"element is {value.dtype}, not {dtype}"
    extents: Any = tuple(d if isinstance(d, SymbolicDim) else int(d) for d in shape)
    return Stage(name, extents, value.dtype, axes=axes, value=value)


def _reduce(kind: str, extents: int | Sequence[int], element: Callable[..., LoopExpr]) -> LoopExpr:
    sizes = (extents,) if isinstance(extents, (int, SymbolicDim)) else tuple(extents)
    axes = tuple(LoopVar("rstuvw"[d] if d < 6 else f"r{d}") for d in range(len(sizes)))
    value = element(*axes)
    if not sizes:
        return value
    return Reduce(kind, tuple(zip(axes, sizes, strict=True)), value)


def sum_over(extents: int | Sequence[int], element: Callable[..., LoopExpr]) -> LoopExpr:
    """Sum of ``element(r, ...)`` for ``r`` below each extent; 0 where an extent is 0.

    Where the element is a product of the rule's own, it is a ``"dot"``: multiplied and added with one rounding.
    """
    found = _reduce("sum", extents, element)
    return Reduce("dot", found.axes, found.value) if isinstance(found, Reduce) and is_product(found.value) else found


def is_product(value: LoopExpr) -> bool:
    """True if an expression is a product of floats, wherever it is not masked."""
    if isinstance(value, Select):
        return is_product(value.then) or is_product(value.orelse)
    return isinstance(value, Binary) and value.op == "mul" and value.dtype.startswith("float")


prod_over, max_over, min_over, largest_over = (partial(_reduce, kind) for kind in ("prod", "max", "min", "larger"))
"""Product, maximum, minimum; where an extent is 0 what :func:`identity_of` says.  The last one is a maximum for those
who know of NaN by other ways: one instruction in place of three, and NaN or not where there is one."""


def identity_of(kind: str, dtype: str) -> Const:
    """The neutral element of a reduction."""
    if kind in ("sum", "dot", "prod"):
        return const(1 if kind == "prod" else 0, dtype)
    if dtype == "bool":
        return const(kind == "min", dtype)
    if dtype.startswith("float"):
        return const(float("inf") if kind == "min" else float("-inf"), dtype)
    ends = np.iinfo(dtype)
    return const(ends.max if kind == "min" else ends.min, dtype)


def outer_reductions(value: LoopExpr) -> list[Reduce]:
    """The reductions below ``value`` that are not inside another, each once."""
    found = [node for node in walk_exprs(value) if isinstance(node, Reduce)]
    inner = {n for node in found for n in walk_exprs(node.value)}
    return [node for node in found if node not in inner]


def broadcast_index(buffer: Buffer, index: Sequence[LoopExpr]) -> tuple[LoopExpr, ...]:
    """The index into ``buffer`` for an element of the result that it is broadcast to (numpy's rule)."""
    tail = index[len(index) - len(buffer.shape) :]
    return tuple(Const(0) if extent == 1 else i for i, extent in zip(tail, buffer.shape, strict=True))


def compute_of(op: Op, *buffers: Buffer | tuple[Buffer, ...]) -> tuple[Buffer, ...]:
    """An operator's compute rule, always as a tuple of stages."""
    result = op.compute(*buffers)
    return result if isinstance(result, tuple) else (result,)
