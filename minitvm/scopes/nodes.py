"""Nodes with scopes, which passes over graphs do not know: ``Let``, ``If`` as an expression, calls of values that are
functions, and names of a module's functions, which may call themselves.

They are built, walked and rewritten as all nodes are: ``children`` and ``rebuild`` know them.  A build never sees one:
``minitvm.scopes.lower`` makes graphs of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

from minitvm.errors import IRError, TypeInferenceError
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Var, unscoped
from minitvm.ir.loop import dependency_order
from minitvm.ir.node import checked_types
from minitvm.ir.parser import choice
from minitvm.ir.types import FuncType, Span, TensorType, Type, accepts, common
from minitvm.ir.visitor import _CHILDREN, held_functions, kinds_of, post_order


class Scoped(Expr):
    """A node that is made of ``parts``."""

    __slots__ = ("parts",)
    parts: tuple[Expr, ...]

    def __init_subclass__(cls) -> None:
        _CHILDREN[cls] = attrgetter("parts")

    def _made(self, parts: Sequence[Expr], type_: Type | None, span: Span | None) -> None:
        wrong = [one for one in parts if not isinstance(one, Expr)]
        if wrong:
            raise IRError(
                f"a {type(self).__name__} is made of expressions, not of a {type(wrong[0]).__name__}",
                hint="minitvm.relay.const(value)",
            )
        object.__setattr__(self, "parts", tuple(parts))
        self._init(type_, span)
        if not unscoped:
            _install()

    def over(self, parts: tuple[Expr, ...]) -> Expr:
        """The same node of other parts."""
        make: Any = type(self)
        made: Expr = make(*parts, span=self.span)
        return made

    @property
    def rest(self) -> tuple[Any, ...]:
        """What it is made of beside its parts."""
        return ()


class Let(Scoped):
    """``let var = value; body``: ``var`` stands for the value in the body, and in the value where that is a function,
    which may call itself."""

    __slots__ = ()

    def __init__(self, variable: Expr, value: Expr, body: Expr, span: Span | None = None) -> None:
        if not isinstance(variable, Var):
            raise IRError(f"a Let binds a variable, not a {type(variable).__name__}")
        self._made((variable, value, body), getattr(body, "checked_type", None), span)

    def check(self) -> None:
        """:class:`TypeInferenceError` where the value does not fit the variable."""
        wanted, given = self.var.checked_type, self.value.checked_type
        if wanted is not None and given is not None and not accepts(wanted, given):
            raise TypeInferenceError(f"variable %{self.var.name} is {wanted}, its value {given}")

    @property
    def var(self) -> Var:
        found = self.parts[0]
        assert isinstance(found, Var)
        return found

    @property
    def value(self) -> Expr:
        return self.parts[1]

    @property
    def body(self) -> Expr:
        return self.parts[2]


class If(Scoped):
    """``if (cond) { true_branch } else { false_branch }``, each a scope of its own.  While the type of one branch is
    open, it has the other's: a function that calls itself has the type of what ends it."""

    __slots__ = ()

    def __init__(self, cond: Expr, true_branch: Expr, false_branch: Expr, span: Span | None = None) -> None:
        self._made((cond, true_branch, false_branch), None, span)
        asked, a, b = (part.checked_type for part in self.parts)
        if asked is not None and not (isinstance(asked, TensorType) and asked.dtype == "bool"):
            raise TypeInferenceError(f"the condition is {asked}", hint="one bool decides")
        found = common(a, b) or (a if a == b else None) if a is not None and b is not None else a or b
        if found is None and a is not None:
            raise TypeInferenceError(f"the branches differ: {a} and {b}")
        object.__setattr__(self, "checked_type", found)

    def over(self, parts: tuple[Expr, ...]) -> Expr:
        """The same choice of other parts; of graphs the one that passes know."""
        cond, then, orelse = parts
        return conditional(cond, then, orelse, self.span)

    @property
    def cond(self) -> Expr:
        return self.parts[0]

    @property
    def true_branch(self) -> Expr:
        return self.parts[1]

    @property
    def false_branch(self) -> Expr:
        return self.parts[2]


class Apply(Scoped):
    """A call of a value that is a function: a variable, a name, what another call or an ``If`` gives."""

    __slots__ = ()

    def __init__(self, function: Expr, *args: Expr, span: Span | None = None) -> None:
        self._made((function, *args), None, span)
        found = function.checked_type
        if found is not None:
            object.__setattr__(self, "checked_type", _result(function, found, args))

    def over(self, parts: tuple[Expr, ...]) -> Expr:
        """The same call; of a function that is known, one that passes know."""
        return applied(parts[0], parts[1:], self.span)

    @property
    def op(self) -> Expr:
        return self.parts[0]

    @property
    def args(self) -> tuple[Expr, ...]:
        return self.parts[1:]

    @property
    def attrs(self) -> None:
        """None: it has no operator."""


def _result(function: Expr, type_: Type, args: Sequence[Expr]) -> Type:
    called = shown(function)
    if not isinstance(type_, FuncType):
        raise TypeInferenceError(f"{called} is called, and is no function: {type_}")
    if len(type_.params) != len(args):
        raise TypeInferenceError(f"{called} takes {len(type_.params)} arguments, {len(args)} given")
    for i, (param, arg) in enumerate(zip(type_.params, args, strict=True)):
        if arg.checked_type is not None and not accepts(param, arg.checked_type):
            raise TypeInferenceError(f"argument {i} of {called} is {arg.checked_type}, its parameter {param}")
    return type_.result


class Global(Scoped):
    """The name of a function of the module, which may be the one that it stands in."""

    __slots__ = ("name_hint",)
    name_hint: str

    def __init__(self, name_hint: str, type_: Type | None = None, span: Span | None = None) -> None:
        object.__setattr__(self, "name_hint", str(name_hint))
        self._made((), type_, span)

    def over(self, parts: tuple[Expr, ...]) -> Expr:
        return self

    @property
    def rest(self) -> tuple[Any, ...]:
        return self.name_hint, self.checked_type


def applied(function: Expr, args: Sequence[Expr], span: Span | None = None) -> Expr:
    """A call of a function: of one that is written there the call that passes know."""
    if isinstance(function, Function):
        return Call(function, args, span=span)
    return Apply(function, *args, span=span)


def shown(function: Expr) -> str:
    """What is called, for errors."""
    if isinstance(function, Var):
        return f"%{function.name}"
    return f"@{function.name_hint}" if isinstance(function, Global) else f"a {type(function).__name__}"


# --- walks ----------------------------------------------------------------------------------------------------


def below(node: Expr) -> tuple[Expr, ...]:
    """What lies below a node, with the function that it calls, unless that is a fused group."""
    if isinstance(node, Call) and isinstance(node.op, Function) and not node.op.is_primitive:
        return (node.op, *node.args)
    found = _CHILDREN.get(type(node))
    return () if found is None else found(node)


def everything(*roots: Expr) -> list[Expr]:
    """All nodes, operands before users, those of called functions, too."""
    return post_order(*roots, operands=below)


_plain: WeakKeyDictionary[Function, bool] = WeakKeyDictionary()
"""What :func:`is_plain` found."""


def is_plain(function: Function) -> bool:
    """True if passes over graphs know all that a function is made of."""
    if function not in _plain:
        kinds = kinds_of(function)
        found = not any(issubclass(kind, Scoped) for kind in kinds) and not _has_values(function)
        if found and Function in kinds:
            calls = (node for node in post_order(function.body) if isinstance(node, Call))
            found = all(is_plain(held) for call in calls for held in held_functions(call).values())
        _plain[function] = found
    return _plain[function]


def _has_values(function: Function) -> bool:
    """True where a function is a parameter, an operand, or reads what is outside of it."""
    if any(isinstance(p.checked_type, FuncType) for p in function.params):
        return True
    if Function not in kinds_of(function):
        return False
    nodes = post_order(function.body)
    inner = [n.op for n in nodes if isinstance(n, Call) and isinstance(n.op, Function) and not n.op.is_primitive]
    return any(isinstance(n, Function) for n in nodes) or any(free_vars(one) for one in inner)


def is_graph(expr: Expr) -> bool:
    """True for an expression that passes know."""
    return is_plain(expr if isinstance(expr, Function) else Function((), expr))


def is_plain_module(module: Module) -> bool:
    return all(map(is_plain, module.functions.values()))


def conditional(cond: Expr, then: Expr, orelse: Expr, span: Any = None) -> Expr:
    """A choice: the call of ``control.if`` that passes know where all types are known and graphs have no scopes in
    them, else an :class:`If`."""
    parts = (cond, then, orelse)
    typed = all(node.checked_type is not None for node in everything(*parts) if not isinstance(node, Function))
    if typed and all(is_graph(part) and not isinstance(part, Function) for part in parts):
        made = choice(*parts)
        return made.over(made.args, span) if span else made
    return If(*parts, span=span)


# --- variables ------------------------------------------------------------------------------------------------


def bound_vars(*roots: Expr) -> list[Var]:
    """The variables that functions and ``Let`` bind, in post-order."""
    found: list[Var] = []
    for node in everything(*roots):
        found += node.params if isinstance(node, Function) else [node.var] if isinstance(node, Let) else []
    return found


def all_vars(*roots: Expr) -> list[Var]:
    """Every variable, in post-order."""
    return [node for node in everything(*roots) if isinstance(node, Var)]


def free_vars(*roots: Expr) -> list[Var]:
    """The variables that nothing binds, in post-order."""
    nodes, bound = everything(*roots), set[Var]()
    for node in nodes:
        bound.update(node.params if isinstance(node, Function) else [node.var] if isinstance(node, Let) else [])
    return [node for node in nodes if isinstance(node, Var) and node not in bound]


def is_atom(node: Expr) -> bool:
    """True for what needs no name: a variable, a constant, a function's name."""
    return isinstance(node, (Var, Constant, Global))


# --- bindings in order ----------------------------------------------------------------------------------------


class Binding:
    """Stands between the value of a ``Let`` and its body in :func:`in_order`."""

    __slots__ = ("let",)

    def __init__(self, let: Let) -> None:
        self.let = let


def in_order(root: Expr) -> list[Any]:
    """All nodes, operands before users; a :class:`Binding` behind the value of each ``Let`` and before its body."""
    bindings: dict[Let, Binding] = {}

    def operands(node: Any) -> tuple[Any, ...]:
        if isinstance(node, Binding):
            return (node.let.value,)
        if isinstance(node, Let):
            return bindings.setdefault(node, Binding(node)), node.body
        return below(node)

    return dependency_order((root,), operands)


declared: WeakKeyDictionary[Function, Type] = WeakKeyDictionary()
"""The result's type that a function was made with, while that of its body is open: of one that calls itself."""


def signature_of(function: Function) -> FuncType | None:
    """The type of a function, which what is declared of it may tell while that of its body is open."""
    if isinstance(function.checked_type, FuncType):
        return function.checked_type
    params, result = checked_types(function.params), declared.get(function)
    return None if params is None or result is None else FuncType(params, result)


def _as_graph(module: Module) -> Module:
    """What a build and the reference evaluator take: the module itself where it has no scopes."""
    return module if is_plain_module(module) else importlib.import_module("minitvm.scopes.lower").as_graph(module)


def _install() -> None:
    """Tells builds, the evaluator and comparisons of nodes with scopes, once there is one."""
    unscoped.append(_as_graph)
    importlib.import_module("minitvm.scopes.equal").install()
