"""Passes: pure functions from module to module, run one by one or as a ``Sequential``."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, Protocol, cast, overload
from weakref import WeakKeyDictionary

from minitvm.errors import PassError, user_code
from minitvm.ir.attributes import attributes_of
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.op import Op
from minitvm.ir.visitor import as_function, calls, rewrite
from minitvm.passes.context import KNOWN_PASSES, PassContext, ask_instruments, closest, register_config, watching
from minitvm.passes.instrument import PassInfo

__all__ = [
    "FunctionPass",
    "ModulePass",
    "Pass",
    "PassContext",
    "PassInfo",
    "Sequential",
    "function_pass",
    "get_pass",
    "map_functions",
    "module_pass",
    "register_config",
]

P = ParamSpec("P")

PASSES: dict[str, type[Pass]] = {}
"""Pass classes by name, for ``required``; the built-in ones and the user's."""


class Pass:
    """A named step ``Module -> Module``.  Calling it always runs it; only ``Sequential`` asks for its level.

    A subclass says ``class MyPass(FunctionPass, opt_level=1)`` (``name`` is the class's, ``required`` names
    passes to run before it in a ``Sequential``) and overrides ``transform_function`` or ``transform_module``.
    The module given is never changed; where there was nothing to do the same module comes back.
    """

    info: PassInfo

    def __init_subclass__(cls, opt_level: int = 0, name: str | None = None, required: Sequence[str] = ()) -> None:
        cls.info = PassInfo(name or cls.__name__, opt_level, tuple(required))
        if cls.__module__ != __name__:  # the kinds of passes below are not passes themselves
            PASSES[cls.info.name] = cls
            KNOWN_PASSES.add(cls.info.name)

    def transform(self, module: Module, context: PassContext) -> Module:
        raise NotImplementedError(self.info.name)

    def __call__(self, module: Module | Function) -> Module:
        if not isinstance(module, (Module, Function)):
            raise PassError(f"{self.info.name} takes a Module, not {type(module).__name__}")
        return self.consume([Module(module) if isinstance(module, Function) else module])

    def consume(self, box: list[Module]) -> Module:
        """As a call, but takes the module out of ``box``: its weights may be freed as soon as new ones replace them."""
        context = PassContext.current()
        instruments = context.instruments
        if not ask_instruments(instruments, box[-1], self.info, context):
            return box.pop()
        for instrument in instruments:
            with watching(instrument, self.info):
                instrument.run_before_pass(box[-1], self.info)
        result = self.transform(box.pop(), context)
        if not isinstance(result, Module):
            raise PassError(f"{self.info.name} returned {type(result).__name__} instead of a Module")
        for instrument in instruments:
            with watching(instrument, self.info):
                instrument.run_after_pass(result, self.info)
        return result

    def __repr__(self) -> str:
        return f"<pass {self.info.name}, level {self.info.opt_level}>"


class ModulePass(Pass):
    """A pass over whole modules: override ``transform_module``."""

    def transform_module(self, module: Module, context: PassContext) -> Module:
        raise NotImplementedError(self.info.name)

    def transform(self, module: Module, context: PassContext) -> Module:
        with user_code(type(self), f"pass {self.info.name}"):
            return self.transform_module(module, context)


class FunctionPass(Pass):
    """A pass over functions: override ``transform_function``.

    It sees every function of the module but fused groups, and the branches of control-flow calls.
    """

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        raise NotImplementedError(self.info.name)

    def transform(self, module: Module, context: PassContext) -> Module:
        with user_code(type(self), f"pass {self.info.name}"):
            return map_functions(module, lambda function: self.transform_function(function, module, context))


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
            self.done[function] = as_function(rewrite(new, self.visit)) if _holds_functions(new) else new
        return self.done[function]

    def visit(self, _: Expr, new: Expr) -> Expr:
        return _with_functions(new, self.transformed) if isinstance(new, Call) else new


_holding: WeakKeyDictionary[Function, bool] = WeakKeyDictionary()
"""What :func:`_holds_functions` found: most passes leave most functions as they are."""


def _holds_functions(function: Function) -> bool:
    """Whether a call in the body holds a function."""
    if function not in _holding:
        _holding[function] = any(held_functions(call) for call in calls(function.body))
    return _holding[function]


def held_functions(call: Call) -> dict[str, Function]:
    """The functions that a call holds: the one it calls under ``""``, those in attributes by the attributes' names."""
    if isinstance(call.op, Function):
        return {"": call.op}
    names = _function_attributes(type(call.op))  # type: ignore[arg-type]  # mypy: a class hashes as its instances
    return {name: getattr(call.op, name) for name in names} if names else {}


@functools.cache
def _function_attributes(op: type[Op]) -> tuple[str, ...]:
    """The attributes of an operator class that are functions, by their declared types."""
    return tuple(a.name for a in attributes_of(op).values() if a.annotation is Function)


def _with_functions(call: Call, transformed: Callable[[Function], Function]) -> Call:
    """A call with the functions that it holds transformed."""
    held = held_functions(call)
    changed = {name: transformed(function) for name, function in held.items()}
    if all(changed[name] is function for name, function in held.items()):
        return call
    if isinstance(call.op, Function):
        return Call(changed[""], call.args, span=call.span)
    return Call(call.op.with_attributes(**changed), call.args, span=call.span)


class Sequential(Pass):
    """Passes in order.  Runs those that the current ``PassContext`` enables, each after the passes it requires."""

    def __init__(
        self, passes: Sequence[Pass], opt_level: int = 0, name: str = "sequential", required: Sequence[str] = ()
    ) -> None:
        if not isinstance(passes, Iterable):
            raise PassError(f"{name}: {passes!r} is not a list of passes")
        for step in passes:
            if not isinstance(step, Pass):
                raise PassError(f"{name}: {step!r} is not a pass", hint="call the class: SimplifyInference()")
        self.passes = tuple(passes)
        self.info = PassInfo(name, opt_level, tuple(required))
        KNOWN_PASSES.add(name)

    def transform(self, module: Module, context: PassContext) -> Module:
        for step in self.passes:
            if context.pass_enabled(step.info):
                for name in step.info.required:
                    module = get_pass(name)(module)
                module = step(module)
        return module


def get_pass(name: str) -> Pass:
    """A pass by its name, built with its defaults; :class:`PassError` where there is none."""
    if name not in PASSES:
        raise PassError(f"there is no pass {name!r}", hint=closest(name, sorted(PASSES)))
    try:
        return PASSES[name]()
    except TypeError as error:
        raise PassError(f"pass {name} needs arguments, so it cannot be run by name", hint="call it") from error


ModuleTransform = Callable[[Module, PassContext], Module]
FunctionTransform = Callable[[Function, Module, PassContext], Function]


class _TransformsModule(Protocol):
    def transform_module(self, module: Module, context: PassContext) -> Module: ...


class _TransformsFunction(Protocol):
    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function: ...


class _ModuleDecorator(Protocol):
    @overload
    def __call__(self, target: Callable[P, _TransformsModule]) -> Callable[P, ModulePass]: ...
    @overload
    def __call__(self, target: ModuleTransform) -> ModulePass: ...


class _FunctionDecorator(Protocol):
    @overload
    def __call__(self, target: Callable[P, _TransformsFunction]) -> Callable[P, FunctionPass]: ...
    @overload
    def __call__(self, target: FunctionTransform) -> FunctionPass: ...


def module_pass(opt_level: int = 0, name: str | None = None, required: Sequence[str] = ()) -> _ModuleDecorator:
    """Makes a pass of ``f(module, context) -> Module``, or of a class with such a ``transform_module``.

    A function becomes a pass object; a class becomes a pass class, to be called with its own arguments.
    """
    return cast(_ModuleDecorator, _decorator(ModulePass, "transform_module", opt_level, name, required))


def function_pass(opt_level: int = 0, name: str | None = None, required: Sequence[str] = ()) -> _FunctionDecorator:
    """Makes a pass of ``f(function, module, context) -> Function``, or of a class with ``transform_function``."""
    return cast(_FunctionDecorator, _decorator(FunctionPass, "transform_function", opt_level, name, required))


def _decorator(
    base: type[Pass], method: str, opt_level: int, name: str | None, required: Sequence[str]
) -> Callable[[Any], Any]:
    def decorate(target: Any) -> Any:
        keywords = {"opt_level": opt_level, "name": name or target.__name__, "required": required}
        space: dict[str, Any] = {"__doc__": target.__doc__, "__module__": target.__module__}
        if isinstance(target, type):
            if not hasattr(target, method):
                raise PassError(f"class {target.__name__} has no {method}", hint=f"define {method} in it")
            return types.new_class(target.__name__, (target, base), keywords, lambda body: body.update(space))
        space[method] = staticmethod(target)
        return types.new_class(target.__name__, (base,), keywords, lambda body: body.update(space))()

    return decorate
