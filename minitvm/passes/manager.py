"""Passes: pure functions from module to module, run one by one or as a ``Sequential``."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, overload, runtime_checkable

from minitvm.errors import PassError, is_own, place_of, user_code
from minitvm.ir.decision import Declined, Exactness, decide
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.visitor import as_function, held_functions, holds_functions, kinds_of, rewrite, sizes_of
from minitvm.passes.context import CONFIG_KEYS, KNOWN_PASSES, PassContext, closest, each, register_config, using
from minitvm.passes.instrument import PassInfo

__all__ = ["CONFIG_KEYS", "KNOWN_PASSES", "PASSES", "FunctionPass", "ModulePass", "Pass", "PassContext"]
__all__ += ["as_pass", "closest", "function_pass", "map_functions", "module_pass", "register_config", "using"]

Made = TypeVar("Made", Module, Function)

PASSES: dict[str, type[Pass]] = {}
"""Pass classes by name, for ``required``; the built-in ones and the user's."""
PREPARE: list[Callable[[Pass, list[Module]], None]] = []
"""What is called before a pass, with the box that has its module, and may put another one there."""


class Pass:
    """A named step ``Module -> Module``.  Calling it always runs it; only ``Sequential`` asks for its level.

    A subclass says ``class MyPass(FunctionPass, opt_level=1)`` (``name`` is the class's, ``required`` names
    passes to run before it in a ``Sequential``, ``rounds`` that numbers get fewer bits) and overrides
    ``transform_function`` or ``transform_module``.
    The module given is never changed; where there was nothing to do the same module comes back.
    """

    info: PassInfo
    needs: tuple[type, ...] = ()
    """Operator classes, and classes of nodes other than calls; none: anything."""
    at_least: int = 1
    """How many nodes of these classes."""
    only_open: bool = False
    """Whether it has nothing to do where all sizes are numbers."""
    option: str = ""
    """The option that asks for it; none: nothing has to."""

    def __init_subclass__(
        cls, opt_level: int = 0, name: str | None = None, required: Sequence[str] = (), **claims: Any
    ) -> None:
        cls.info = PassInfo(name or cls.__name__, opt_level, tuple(required), **claims)
        if cls.__module__ != __name__:  # the kinds of passes below are not passes themselves
            old = PASSES.get(cls.info.name)
            if old is not None and is_own(old) and not is_own(cls):
                raise PassError(f"pass {cls.info.name} is minitvm's own", hint=f"another name for {place_of(cls)}")
            PASSES[cls.info.name] = cls
            KNOWN_PASSES.add(cls.info.name)

    def transform(self, module: Module, context: PassContext) -> Module:
        raise NotImplementedError(self.info.name)

    def __call__(self, module: Module | Function) -> Module:
        if not isinstance(module, (Module, Function)):
            raise PassError(f"{self.info.name} takes a Module, not {type(module).__name__}")
        return self.consume([Module(module) if isinstance(module, Function) else module])

    def consume(self, box: list[Module]) -> Module:
        """Runs the pass as a call does, but takes the module out of ``box``: its weights may be freed as soon as new
        ones replace them."""
        for prepare in PREPARE:
            prepare(self, box)
        context, info, around = PassContext.current(), self.info, f" around pass {self.info.name}"
        instruments = context.instruments
        asked = () if info.name in context.required_pass else instruments
        if not all(each(asked, lambda i: i.should_run(box[-1], info), around)):
            return box.pop()
        each(instruments, lambda i: i.run_before_pass(box[-1], info), around)
        result = self._returned(self.transform(box.pop(), context), Module)
        each(instruments, lambda i: i.run_after_pass(result, info), around)
        return result

    @property
    def maker(self) -> object:
        """The function or class whose code it is: what errors name."""
        return type(self)

    def _returned(self, result: Made, kind: type[Made]) -> Made:
        if isinstance(result, kind):
            return result
        wrong = f"pass {self.info.name} returned {type(result).__name__} instead of a {kind.__name__}"
        raise PassError(wrong, hint="return what it was given where there is nothing to do")

    def nothing_to_do(self, function: Function, context: PassContext) -> Declined | None:
        """The reason why the pass need not be entered for a function."""
        if self.option and not context.option(self.option):
            return Declined(f"{self.option} asks for nothing")
        if self.only_open and not sizes_of(function):
            return Declined("all its sizes are numbers")
        kinds = kinds_of(function)
        count = sum(kinds[kind] for kind in kinds if issubclass(kind, self.needs))
        if not self.needs or count >= self.at_least:
            return None
        wanted = " or ".join(getattr(kind, "name", kind.__name__) for kind in self.needs)
        return Declined(f"of {wanted} there are {count} in it, not {self.at_least}" if count else f"no {wanted} in it")

    def _passes_by(self, function: Function, context: PassContext) -> bool:
        refusal = self.nothing_to_do(function, context)
        if refusal is not None:
            decide(self.info.name, "a function", refusal)
        return refusal is not None

    def __repr__(self) -> str:
        return f"<pass {self.info.name}, level {self.info.opt_level}>"


class ModulePass(Pass):
    """A pass over whole modules: override ``transform_module``.

    One that ``needs`` operators is not entered for a module of one function without them.
    """

    def transform_module(self, module: Module, context: PassContext) -> Module:
        raise NotImplementedError(self.info.name)

    def transform(self, module: Module, context: PassContext) -> Module:
        if len(module.functions) == 1 and all(self._passes_by(f, context) for f in module.functions.values()):
            return module
        with user_code(self.maker, f"pass {self.info.name}", caught_as_raised=True):
            return self.transform_module(module, context)


class FunctionPass(Pass):
    """A pass over functions: override ``transform_function``.

    It sees every function of the module but fused groups, and the branches of control-flow calls; but is not entered
    for functions without the operators that it ``needs``.
    """

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        raise NotImplementedError(self.info.name)

    def transform(self, module: Module, context: PassContext) -> Module:
        def visit(function: Function) -> Function:
            passed_by = self._passes_by(function, context)
            if passed_by:
                return function
            return self._returned(self.transform_function(function, module, context), Function)

        with user_code(self.maker, f"pass {self.info.name}", caught_as_raised=True):
            return map_functions(module, visit)


def map_functions(module: Module, transform: Callable[[Function], Function]) -> Module:
    """``module`` with ``transform`` applied to each of its functions, those that they call and those that control
    flow holds (branches, loop bodies), once each; not to fused groups."""
    mapper = _Mapper(transform)
    for name, function in module.functions.items():
        module = module.with_function(name, mapper.transformed(function))
    return module


class _Mapper:
    """:func:`map_functions`; a class, since functions that refer to each other would keep the old module, with all
    its weights, until Python's collector comes by."""

    def __init__(self, transform: Callable[[Function], Function]) -> None:
        self.transform = transform
        self.done: dict[Function, Function] = {}

    def transformed(self, function: Function) -> Function:
        if function.is_primitive:
            return function
        if function not in self.done:
            new = self.transform(function)
            self.done[function] = as_function(rewrite(new, self.visit)) if holds_functions(new) else new
        return self.done[function]

    def visit(self, _: Expr, new: Expr) -> Expr:
        """A call with the functions that it holds transformed."""
        held = held_functions(new) if isinstance(new, Call) else {}
        changed = {name: self.transformed(function) for name, function in held.items()}
        if not isinstance(new, Call) or changed == held:  # a node equals only itself
            return new
        op = changed[""] if isinstance(new.op, Function) else new.op.with_attributes(**changed)
        return Call(op, new.args, span=new.span)


# --- passes made of functions and rules -----------------------------------------------------------------------

Kind = TypeVar("Kind", bound=Pass, covariant=True)


class _Decorator(Protocol[Kind]):
    @overload
    def __call__(self, target: type) -> Callable[..., Kind]: ...
    @overload
    def __call__(self, target: Callable[..., Function | Module]) -> Kind: ...


def module_pass(
    opt_level: int = 0, name: str | None = None, required: Sequence[str] = (), **claims: Any
) -> _Decorator[ModulePass]:
    """Makes a pass of ``f(module, context) -> Module``, or of a class with such a ``transform_module``.

    A function becomes a pass object; a class becomes a pass class, to be called with its own arguments.  ``claims`` are
    ``exactness`` ("exact", "reassociating", ...), ``bound`` and ``rounds`` of :class:`PassInfo`.
    """
    return _decorator(ModulePass, "transform_module", opt_level, name, required, claims)


def function_pass(
    opt_level: int = 0, name: str | None = None, required: Sequence[str] = (), **claims: Any
) -> _Decorator[FunctionPass]:
    """The same of ``f(function, module, context) -> Function``, or of a class with ``transform_function``."""
    return _decorator(FunctionPass, "transform_function", opt_level, name, required, claims)


def _decorator(
    base: type[Kind], method: str, opt_level: int, name: str | None, required: Sequence[str], claims: Mapping[str, Any]
) -> _Decorator[Kind]:
    if "exactness" in claims:
        claims = {**claims, "exactness": Exactness(claims["exactness"])}

    def decorate(target: Any) -> Any:
        keywords = {"opt_level": opt_level, "name": name or target.__name__, "required": required, **claims}
        space: dict[str, Any] = {"__doc__": target.__doc__, "__module__": target.__module__}
        if isinstance(target, type):
            if not hasattr(target, method):
                raise PassError(f"class {target.__name__} has no {method}", hint=f"define {method} in it")
            return types.new_class(target.__name__, (target, base), keywords, lambda body: body.update(space))
        space[method] = staticmethod(target)
        return types.new_class(target.__name__, (base,), keywords, lambda body: body.update(space))()

    return decorate


@runtime_checkable
class MakesPass(Protocol):
    """What can stand for a pass: a rule."""

    def as_pass(self) -> Pass: ...


class OfFunction(ModulePass):
    """A function of modules as a pass of level 0, called as the function is."""

    def __init__(self, function: Callable[[Module], Module]) -> None:
        self.function = function
        self.info = PassInfo(getattr(function, "__name__", type(function).__name__))

    @property
    def maker(self) -> object:
        return self.function if hasattr(self.function, "__module__") else type(self.function)

    def transform_module(self, module: Module, context: PassContext) -> Module:
        return self.function(module)


def as_pass(given: Any) -> Pass:
    """A pass; or a rule, or a function of modules, as one.  :class:`PassError` for anything else."""
    if isinstance(given, Pass):
        return given
    if isinstance(given, type) and issubclass(given, Pass):
        raise PassError(f"{given.__name__} is a class of passes", hint=f"call it: {given.__name__}()")
    if isinstance(given, MakesPass) and not isinstance(given, type):
        return given.as_pass()
    if callable(given):
        return OfFunction(given)
    raise PassError(f"{given!r} is not a pass", hint="a pass, a rule, or a function from module to module")
