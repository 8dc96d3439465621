"""Passes: pure functions from module to module, run one by one or as a ``Sequential``; and the context they run in."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, overload

from minitvm import config as environment
from minitvm.errors import ConfigError, PassError, did_you_mean, user_code
from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.visitor import as_function, held_functions, holds_functions, kinds_of, rewrite
from minitvm.passes.instrument import PassInfo, PassInstrument, PrintIR, Verify

T = TypeVar("T")
MAX_OPT_LEVEL = 3


@dataclass(frozen=True)
class ConfigKey:
    name: str
    type: type
    default: Any
    meaning: str


CONFIG_KEYS: dict[str, ConfigKey] = {}


def register_config(name: str, type_: type, default: Any, meaning: str) -> ConfigKey:
    """Make ``name`` an option of :class:`PassContext`; a pass registers its options beside itself."""
    CONFIG_KEYS[name] = ConfigKey(name, type_, default, meaning)
    return CONFIG_KEYS[name]


class PassContext:
    """The scope in which passes run; ``with PassContext(opt_level=3): ...``.  One stack per thread.

    ``opt_level`` 0 to 3 admits the passes of that level and below; ``required_pass`` admits by name whatever the
    level, ``disabled_pass`` refuses by name; ``instruments`` watch; ``config`` holds options of single passes.

    Raises :class:`ConfigError` for a level, option or option's type that does not exist, :class:`PassError` for an
    unknown pass.
    """

    def __init__(
        self,
        opt_level: int = 2,
        required_pass: Sequence[str] | None = None,
        disabled_pass: Sequence[str] | None = None,
        instruments: Sequence[PassInstrument] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(opt_level, bool) or not isinstance(opt_level, int) or not 0 <= opt_level <= MAX_OPT_LEVEL:
            raise ConfigError(f"opt_level is {opt_level!r}", hint=f"the levels are 0 to {MAX_OPT_LEVEL}")
        self.opt_level = opt_level
        self.required_pass = _checked_names("required_pass", required_pass)
        self.disabled_pass = _checked_names("disabled_pass", disabled_pass)
        self.config: Mapping[str, Any] = MappingProxyType(_checked_config(config or {}))
        self.given_instruments = _checked_instruments(instruments)
        self._tokens: list[Token[PassContext | None]] = []

    @staticmethod
    def current() -> PassContext:
        """The innermost context of this thread; one with the defaults outside of every ``with``."""
        return _current.get() or PassContext()

    @staticmethod
    def list_configs() -> dict[str, ConfigKey]:
        return dict(CONFIG_KEYS)

    @property
    def instruments(self) -> tuple[PassInstrument, ...]:
        """Those given, then those that ``MINITVM_PRINT_IR`` and ``MINITVM_VERIFY`` ask for."""
        asked = _instruments_for(environment.read("MINITVM_PRINT_IR"), environment.read_int("MINITVM_VERIFY"))
        return (*self.given_instruments, *asked)

    def option(self, name: str) -> Any:
        """The value of a registered option: as given, or its default."""
        return self.config.get(name, CONFIG_KEYS[name].default)

    def pass_enabled(self, info: PassInfo) -> bool:
        """Whether ``Sequential`` runs a pass here."""
        admitted = info.name in self.required_pass or self.opt_level >= info.opt_level
        return admitted and info.name not in self.disabled_pass

    def override_instruments(self, instruments: Sequence[PassInstrument]) -> None:
        """Exit the present instruments and enter others."""
        self._exit_instruments()
        self.given_instruments = tuple(instruments)
        self._enter_instruments()

    def __enter__(self) -> PassContext:
        self._enter_instruments()
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._tokens.pop())
        self._exit_instruments()

    def _enter_instruments(self) -> None:
        """All or none: where one fails, those that have entered exit, and no instrument stays."""
        try:
            with ExitStack() as entered:
                for instrument in self.given_instruments:
                    _each([instrument], lambda i: i.enter_pass_ctx())
                    entered.callback(instrument.exit_pass_ctx)
                entered.pop_all()
        except BaseException:
            self.given_instruments = ()
            raise

    def _exit_instruments(self) -> None:
        try:
            _each(self.given_instruments, lambda i: i.exit_pass_ctx())
        except BaseException:
            self.given_instruments = ()
            raise


_current: ContextVar[PassContext | None] = ContextVar("pass_context", default=None)


@contextmanager
def using(context: PassContext) -> Iterator[None]:
    """A context that was entered elsewhere as the current one, for another thread or a later question."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


@functools.lru_cache(maxsize=8)
def _instruments_for(print_after: str, verify: int) -> tuple[PassInstrument, ...]:
    names = [name for name in map(str.strip, print_after.split(",")) if name]
    return (*([PrintIR(after=names)] if names else []), *([Verify()] if verify else []))


def _each(instruments: Iterable[PassInstrument], tell: Callable[[PassInstrument], T], around: str = "") -> list[T]:
    """What every instrument answers; what one raises names it, and the pass that it watches."""
    answers = []
    for instrument in instruments:
        with user_code(type(instrument), f"instrument {type(instrument).__name__}{around}"):
            answers.append(tell(instrument))
    return answers


def _checked_names(argument: str, names: Sequence[str] | None) -> tuple[str, ...]:
    if not isinstance(names, (Iterable, type(None))):
        raise PassError(f"{argument} is {names!r}, not a list of passes' names")
    found = (names,) if isinstance(names, str) else tuple(names or ())
    for name in found:
        if name not in KNOWN_PASSES:
            raise PassError(f"{argument}: there is no pass {name!r}", hint=closest(name, sorted(KNOWN_PASSES)))
    return found


def _checked_instruments(given: Any) -> tuple[PassInstrument, ...]:
    found = tuple(given or ()) if isinstance(given, (Iterable, type(None))) else (given,)
    for instrument in found:
        if not isinstance(instrument, PassInstrument):
            wrong = f"instruments hold a {type(instrument).__name__}, which is no PassInstrument"
            raise ConfigError(wrong, hint="instruments=[minitvm.passes.PassTiming()]")
    return found


def _checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(config, Mapping):
        raise ConfigError(f"config is a {type(config).__name__}, not a dictionary of options")
    for name, value in config.items():
        if name not in CONFIG_KEYS:
            raise ConfigError(f"there is no option {name!r}", hint=closest(name, sorted(CONFIG_KEYS)))
        key = CONFIG_KEYS[name]
        if not isinstance(value, key.type) or (isinstance(value, bool) and key.type is not bool):
            wrong = f"option {name!r} takes {key.type.__name__}, not {type(value).__name__} {value!r}"
            raise ConfigError(wrong, hint=key.meaning)
    return dict(config)


def closest(name: str, known: Sequence[str]) -> str:
    """A hint: the nearest known name, or all of them."""
    return did_you_mean(name, known) or f"known: {', '.join(known)}"


# --- passes ---------------------------------------------------------------------------------------------------

PASSES: dict[str, type[Pass]] = {}
"""Pass classes by name, for ``required``; the built-in ones and the user's."""
KNOWN_PASSES: set[str] = set()
"""Names that ``required_pass`` and ``disabled_pass`` may hold: those above, and of ``Sequential`` objects."""


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
    option: str = ""
    """The option that asks for it; none: nothing has to."""

    def __init_subclass__(
        cls, opt_level: int = 0, name: str | None = None, required: Sequence[str] = (), rounds: bool = False
    ) -> None:
        cls.info = PassInfo(name or cls.__name__, opt_level, tuple(required), rounds)
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
        context, info, around = PassContext.current(), self.info, f" around pass {self.info.name}"
        instruments = context.instruments
        asked = () if info.name in context.required_pass else instruments
        if not all(_each(asked, lambda i: i.should_run(box[-1], info), around)):
            return box.pop()
        _each(instruments, lambda i: i.run_before_pass(box[-1], info), around)
        result = self.transform(box.pop(), context)
        if not isinstance(result, Module):
            raise PassError(f"{info.name} returned {type(result).__name__} instead of a Module")
        _each(instruments, lambda i: i.run_after_pass(result, info), around)
        return result

    def nothing_to_do(self, function: Function, context: PassContext) -> Declined | None:
        """Why the pass need not be entered for a function."""
        if self.option and not context.option(self.option):
            return Declined(f"{self.option} asks for nothing")
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
        with user_code(type(self), f"pass {self.info.name}"):
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
            return function if passed_by else self.transform_function(function, module, context)

        with user_code(type(self), f"pass {self.info.name}"):
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


# --- passes made of functions ---------------------------------------------------------------------------------

Kind = TypeVar("Kind", bound=Pass, covariant=True)


class _Decorator(Protocol[Kind]):
    @overload
    def __call__(self, target: type) -> Callable[..., Kind]: ...
    @overload
    def __call__(self, target: Callable[..., Function | Module]) -> Kind: ...


def module_pass(opt_level: int = 0, name: str | None = None, required: Sequence[str] = ()) -> _Decorator[ModulePass]:
    """Makes a pass of ``f(module, context) -> Module``, or of a class with such a ``transform_module``.

    A function becomes a pass object; a class becomes a pass class, to be called with its own arguments.
    """
    return _decorator(ModulePass, "transform_module", opt_level, name, required)


def function_pass(
    opt_level: int = 0, name: str | None = None, required: Sequence[str] = ()
) -> _Decorator[FunctionPass]:
    """Makes a pass of ``f(function, module, context) -> Function``, or of a class with ``transform_function``."""
    return _decorator(FunctionPass, "transform_function", opt_level, name, required)


def _decorator(
    base: type[Kind], method: str, opt_level: int, name: str | None, required: Sequence[str]
) -> _Decorator[Kind]:
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
