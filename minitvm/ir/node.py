"""The graph IR: immutable, typed, a DAG of shared nodes with Relay's vocabulary.

A node's type is found when it is built.  It stays open (``checked_type is None``) only below variables
without a type, until ``passes.InferType`` has solved them.  Nodes compare by identity;
``minitvm.ir.structural`` compares by structure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from minitvm.errors import IRError, MiniTVMError, TypeInferenceError, blame, listing, origin
from minitvm.ir.attributes import print_attributes
from minitvm.ir.dims import SymbolicDim, are_counted_on
from minitvm.ir.op import OPS, Op, signature
from minitvm.ir.types import (
    MOST_BYTES,
    FuncType,
    Span,
    TensorType,
    TupleType,
    Type,
    accepts,
    bindings,
    bound,
    leaves,
    require_types,
    type_of,
)
from minitvm.shown import Shown


def _unset(node: Any, *_: object) -> Any:
    raise NotImplementedError("minitvm.ir.expr is not imported")


printer: Callable[[Any, bool], str] = _unset
"""A node as text, large constants or not; ``minitvm.ir.expr`` sets it, since what prints nodes must know them."""
pickled: Callable[[Any], tuple[Any, ...]] = _unset
"""What ``pickle`` keeps of a node; ``minitvm.ir.expr`` sets it, too."""

_current_span: ContextVar[Span] = ContextVar("span", default=())


class span_scope:
    """Nodes built inside, and given no span of their own, come from ``span``."""

    __slots__ = ("span", "token")

    def __init__(self, span: Span) -> None:
        self.span = span

    def __enter__(self) -> span_scope:
        self.token = _current_span.set(self.span)
        return self

    def move(self, span: Span) -> None:
        """Sets the span that nodes come from, from here on: a walk enters one scope, not one for every node."""
        _current_span.set(span)

    def __exit__(self, *_: object) -> None:
        _current_span.reset(self.token)


def current_span() -> Span:
    """What the innermost :class:`span_scope` says."""
    return _current_span.get()


def merge_spans(*spans: Span) -> Span:
    return tuple(dict.fromkeys(name for span in spans for name in span))


def _arithmetic(name: str) -> tuple[Callable[[Any, Any], Expr], Callable[[Any, Any], Expr]]:
    """``x + y`` and the reflected ``y + x``: calls of an operator that is registered by the time they are used."""

    def call(like: Expr, lhs: Any, rhs: Any) -> Expr:
        dtype = like.dtype if like.checked_type is not None else "float32"
        return Call(OPS[name](), [_operand(x, dtype) for x in (lhs, rhs)])

    return lambda self, other: call(self, self, other), lambda self, other: call(self, other, self)


def _operand(value: Any, dtype: str) -> Expr:
    """An expression; a number, or what a dimension stands for, as one."""
    if isinstance(value, SymbolicDim):
        return Call(OPS["extent"].of({"size": value, "dtype": dtype}), ())
    return value if isinstance(value, Expr) else Constant(np.asarray(value, dtype))


class Expr(Shown):
    """A node of the graph.  Never mutated after construction."""

    __slots__ = ("__weakref__", "checked_type", "span")
    checked_type: Type | None
    span: Span

    def _init(self, checked_type: Type | None, span: Span | None) -> None:
        object.__setattr__(self, "checked_type", checked_type)
        object.__setattr__(self, "span", _current_span.get() if span is None else span)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; build a new node instead of setting {name!r}")

    @property
    def type(self) -> Type:
        """The node's type; raises :class:`IRError` while variables below it are untyped."""
        if self.checked_type is None:
            raise IRError(f"this {type(self).__name__} has no type yet", hint="run the pass InferType on the module")
        return self.checked_type

    @property
    def tensor_type(self) -> TensorType:
        """The node's type where it must be a tensor."""
        found = self.type
        if not isinstance(found, TensorType):
            raise IRError(f"expected a tensor, found {found}")
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor_type.extents if are_counted_on() else self.tensor_type.static_shape

    @property
    def dtype(self) -> str:
        return self.tensor_type.dtype

    def __getitem__(self, index: int) -> TupleGetItem:
        return TupleGetItem(self, index)

    def __iter__(self) -> Iterator[TupleGetItem]:
        if not isinstance(self.checked_type, TupleType):
            raise IRError(f"only a tuple can be unpacked, not {self.checked_type}")
        return (TupleGetItem(self, i) for i in range(len(self.checked_type.fields)))

    __add__, __radd__ = _arithmetic("add")
    __sub__, __rsub__ = _arithmetic("subtract")
    __mul__, __rmul__ = _arithmetic("multiply")
    __truediv__, __rtruediv__ = _arithmetic("divide")

    def __neg__(self) -> Expr:
        return Call(OPS["negative"](), (self,))

    def astext(self, show_meta_data: bool = True) -> str:
        """The expression as text; ``show_meta_data=False`` elides large constants."""
        return printer(self, show_meta_data)

    def show(self) -> None:
        """Prints it, large constants left out."""
        print(self.astext(show_meta_data=False))

    def __str__(self) -> str:
        return self.astext(show_meta_data=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{self._called}: {self.checked_type}>"

    @property
    def _called(self) -> str:
        """What ``repr`` says of it beside its type."""
        return ""

    def __copy__(self) -> Expr:
        return self  # immutable

    def __deepcopy__(self, _: object) -> Expr:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return pickled(self)


class Var(Expr):
    """A function parameter.  Without a type it is solved from its uses by ``InferType``."""

    __slots__ = ("name",)
    name: str

    def __init__(self, name: str, type_: Type | None = None, span: Span | None = None) -> None:
        if type_ is not None and type(type_) is not TensorType:
            require_types(f"variable %{name}", type_)
        object.__setattr__(self, "name", name)
        self._init(type_, span)

    @property
    def _called(self) -> str:
        return f" %{self.name}"


def _frozen(value: Any) -> np.ndarray:
    """``value`` as an array that nobody can write to; copied where somebody else could."""
    array = np.asarray(value)
    owner = array
    while isinstance(owner.base, np.ndarray) and not owner.flags.writeable:
        owner = owner.base
    if owner.flags.writeable and (owner is not array or array is value or array.base is not None):
        array = array.copy()
    array.setflags(write=False)
    return array


class Constant(Expr):
    """An array known at compile time; made read-only."""

    __slots__ = ("name", "value")
    value: np.ndarray
    name: str | None
    """The parameter's name in the model, kept for the reader; two constants may share one."""

    def __init__(self, value: Any, name: str | None = None, span: Span | None = None) -> None:
        array = _frozen(value)
        object.__setattr__(self, "value", array)
        object.__setattr__(self, "name", name)
        self._init(type_of(array), span)


class Call(Expr):
    """``op`` applied to ``args``: an operator, or a function (a fused group, a branch)."""

    __slots__ = ("args", "op")
    op: Op | Function
    args: tuple[Expr, ...]

    def __init__(self, op: Op | Function, args: Sequence[Expr], span: Span | None = None) -> None:
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "args", tuple(args))
        self._init(None, span)
        object.__setattr__(self, "checked_type", infer_call(self))

    @property
    def _called(self) -> str:
        return f" of {self.op.attrs.get('name', 'a function') if isinstance(self.op, Function) else self.op.name}"

    @property
    def attrs(self) -> Any:
        """The holder of the attributes, as in ``call.attrs.strides``: the operator; of a called function, its own."""
        return self.op.attrs if isinstance(self.op, Function) else self.op

    def over(self, args: tuple[Expr, ...], span: Span | None = None) -> Call:
        """The same call over other arguments, from ``span`` where given.  Its type is not inferred again where theirs
        are what they were."""
        span = self.span if span is None else span
        if [a.checked_type for a in args] != [a.checked_type for a in self.args]:
            return Call(self.op, args, span=span)
        made = object.__new__(Call)
        object.__setattr__(made, "op", self.op)
        object.__setattr__(made, "args", args)
        made._init(self.checked_type, span)
        return made


def _exprs(given: Any, what: str) -> tuple[Any, ...]:
    """``given`` as a tuple of nodes."""
    found = tuple(given) if isinstance(given, Iterable) and not isinstance(given, Expr) else (given,)
    for node in found:
        if not isinstance(node, Expr):
            raise IRError(f"{what} are expressions, not {type(node).__name__}", hint="minitvm.relay.const(value)")
    return found


class Tuple(Expr):
    __slots__ = ("fields",)
    fields: tuple[Expr, ...]

    def __init__(self, fields: Sequence[Expr], span: Span | None = None) -> None:
        object.__setattr__(self, "fields", _exprs(fields, "a tuple's fields"))
        types = checked_types(self.fields)
        self._init(None if types is None else TupleType(types), span)


class TupleGetItem(Expr):
    __slots__ = ("index", "tuple")
    tuple: Expr
    index: int

    def __init__(self, tuple_: Expr, index: int, span: Span | None = None) -> None:
        object.__setattr__(self, "tuple", tuple_)
        object.__setattr__(self, "index", index)
        if not isinstance(index, int):
            raise TypeInferenceError(f"field {index!r} of a tuple", hint="fields are numbered: 0, 1, ...")
        found = tuple_.checked_type
        if found is not None and not isinstance(found, TupleType):
            raise TypeInferenceError(f"field {index} of a value that is not a tuple: {found}")
        if found is not None and not 0 <= index < len(found.fields):
            raise TypeInferenceError(f"field {index} of a tuple of {len(found.fields)}: {found}")
        self._init(None if found is None else found.fields[index], tuple_.span if span is None else span)


class Function(Expr):
    """Parameters and a body.  ``attrs`` hold what a pass left for later ones: ``primitive`` marks a fused group."""

    __slots__ = ("attrs", "body", "params")
    params: tuple[Var, ...]
    body: Expr
    attrs: Mapping[str, Any]

    def __init__(
        self, params: Sequence[Var], body: Expr, attrs: Mapping[str, Any] | None = None, span: Span | None = None
    ) -> None:
        object.__setattr__(self, "params", _exprs(params, "a function's parameters"))
        object.__setattr__(self, "body", *_exprs((body,), "a function's body"))
        object.__setattr__(self, "attrs", MappingProxyType(dict(attrs or {})))
        types, result = checked_types(self.params), body.checked_type
        self._init(None if types is None or result is None else FuncType(types, result), span)

    def __repr__(self) -> str:
        return f"<Function of {listing((f'%{p.name}' for p in self.params), 4)}: {self.body.checked_type}>"

    @property
    def ret_type(self) -> Type:
        return self.body.type

    @property
    def type_params(self) -> tuple[Type, ...]:
        """None: functions are made for types."""
        return ()

    def __call__(self, *args: Expr) -> Call:
        return Call(self, args)

    @property
    def is_primitive(self) -> bool:
        """True for what passes on graphs do not look into: a fused group, which becomes one kernel, and what another
        compiler computes."""
        return bool(self.attrs.get("primitive") or self.attrs.get("Compiler"))


def checked_types(nodes: Sequence[Expr]) -> tuple[Type, ...] | None:
    """The types of nodes; ``None`` while one of them has none."""
    types = tuple(node.checked_type for node in nodes)
    known = tuple(t for t in types if t is not None)
    return known if len(known) == len(types) else None


def infer_call(call: Call) -> Type | None:
    """The type of a call from its arguments' types; ``None`` while one of them has none.

    Raises :class:`TypeInferenceError` that names the call, its arguments' types and its span.
    """
    types = [arg.checked_type for arg in call.args]
    if isinstance(call.op, Function):
        _check_arity(call, len(call.op.params), len(call.op.params))
        if None in types or call.op.checked_type is None:
            return None
        return _result_of(call, call.op, [arg.type for arg in call.args])
    expected = signature(type(call.op))
    _check_arity(call, expected.required, None if expected.variadic else len(expected.names))
    if None in types:
        return None
    try:
        return _bounded(call.op, call.op.typed(*(t for t in types if t is not None)))
    except MiniTVMError as error:
        error.where = error.where or tuple(describe_call(call))
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise _misused(call, types, error) from error
    except Exception as error:
        blame(error, type(call.op), f"infer of {call.op.name}", partial(describe_call, call))


def _result_of(call: Call, function: Function, types: Sequence[Type]) -> Type:
    """What a call of a function gives: its anonymous dimensions are those of the arguments, or new ones."""
    for param, given in zip(function.params, types, strict=True):
        if not accepts(param.type, given):
            raise TypeInferenceError(
                f"parameter %{param.name} is {param.type}, the argument is {given}", where=describe_call(call)
            )
    return bound(function.ret_type, bindings([p.type for p in function.params], types))


def _bounded(op: Op, result: Type) -> Type:
    if not isinstance(result, Type):
        raise op.reject(f"infer returned {result!r}, which is no type", hint="return a TensorType or a TupleType")
    for type_ in leaves(result) if not isinstance(result, FuncType) else ():
        if isinstance(type_, TensorType) and type_.is_static and type_.nbytes > MOST_BYTES:
            raise op.reject(f"the result, {type_}, would take {type_.nbytes:,} bytes", hint="is a size a mistake?")
    return result


def _misused(call: Call, types: Sequence[Type | None], error: Exception) -> TypeInferenceError:
    """What an operator's rule stumbled over: most often a tuple where it takes a tensor."""
    tuples = [str(t) for t in types if not isinstance(t, TensorType)]
    name = call.op.name if isinstance(call.op, Op) else "function"
    found = f"takes tensors, not {tuples[0]}" if tuples else f"has no type for these arguments: {error}"
    return TypeInferenceError(f"{name}: {found}", where=describe_call(call))


def _check_arity(call: Call, least: int, most: int | None) -> None:
    given = len(call.args)
    if given < least or (most is not None and given > most):
        name = call.op.name if isinstance(call.op, Op) else "function"
        expected = str(least) if least == most else f"at least {least}" if most is None else f"{least} to {most}"
        raise TypeInferenceError(
            f"{name}: takes {expected} {'argument' if most == 1 else 'arguments'}, {given} given",
            where=describe_call(call),
        )


def describe_call(call: Call) -> list[str]:
    """The call as a line of text, then a line per argument with its type."""
    op = call.op
    if isinstance(op, Function):
        name, names, attributes = op.attrs.get("name", "function"), [p.name for p in op.params], []
    else:
        name, names, attributes = op.name, list(signature(type(op)).names), print_attributes(op, lambda _: "fn")
    labels = [
        f"%{arg.name}" if isinstance(arg, Var) else f"%{names[i] if i < len(names) else i}"
        for i, arg in enumerate(call.args)
    ]
    text = f"{name}({', '.join([*labels, *attributes])})"
    first = f"{text}      {origin(call.span)}".rstrip()
    return [first, *(f"  {label}: {arg.checked_type}" for label, arg in zip(labels, call.args, strict=True))]
