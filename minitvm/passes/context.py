"""The context that passes run in: level, options, instruments, and what is placed among the passes of builds."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from minitvm import config as environment
from minitvm.doors import door, left_out
from minitvm.errors import ConfigError, PassError, did_you_mean, listing, user_code
from minitvm.ir.decision import Declined
from minitvm.passes.instrument import PassInfo, PassInstrument, PrintIR

T = TypeVar("T")
MAX_OPT_LEVEL = 3


@dataclass(frozen=True)
class ConfigKey:
    name: str
    type: type
    default: Any
    meaning: str


CONFIG_KEYS: dict[str, ConfigKey] = {}
_SHARED = ("FuseOps.max_depth", "ToMixedPrecision.keep_orig_output_dtype")
OPTIONS_OF_TVM = {f"relay.{name}": f"minitvm.{name}" for name in _SHARED}
"""Options by TVM's names, where they mean the same."""
KNOWN_PASSES: set[str] = set()
"""Names that ``required_pass`` and ``disabled_pass`` may hold: passes' and those of ``Sequential`` objects."""


def register_config(name: str, type_: type, default: Any, meaning: str) -> ConfigKey:
    """Make ``name`` an option of :class:`PassContext`; a pass registers its options beside itself."""
    CONFIG_KEYS[name] = ConfigKey(name, type_, default, meaning)
    return CONFIG_KEYS[name]


@dataclass(frozen=True)
class Placement:
    """A pass of a user's before or after one of the pipeline: ``FuseOps``, or ``FoldConstant#2``, its second run."""

    side: Literal["before", "after"]
    anchor: str
    step: Any


class PassContext:
    """The scope in which passes run; ``with PassContext(opt_level=3): ...``.  One stack per thread.

    ``opt_level`` 0 to 3 admits the passes of that level and below; ``required_pass`` admits by name whatever the
    level, ``disabled_pass`` refuses by name; ``instruments`` watch; ``config`` holds options of single passes.
    ``PassContext().before("FuseOps", my_pass)`` is one whose builds run one pass more.

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
        self.placements: tuple[Placement, ...] = ()
        self._tokens: list[Token[PassContext | None]] = []

    @staticmethod
    def current() -> PassContext:
        """The innermost context of this thread; outside of every ``with`` the thread's own, with the defaults."""
        found = _current.get()
        if found is None:
            found = PassContext()
            _current.set(found)
        return found

    @staticmethod
    def list_configs() -> dict[str, ConfigKey]:
        return dict(CONFIG_KEYS)

    @property
    def instruments(self) -> tuple[PassInstrument, ...]:
        """The instruments that were given, then those that ``MINITVM_PRINT_IR`` and ``MINITVM_VERIFY`` ask for."""
        asked = _instruments_for(environment.read("MINITVM_PRINT_IR"), environment.read_int("MINITVM_VERIFY"))
        return (*self.given_instruments, *asked)

    def before(self, anchor: str, step: Any) -> PassContext:
        """The same context, whose builds run ``step`` (a pass, a rule, a function of modules) before a pass.

        The first run of it, where it runs more than once; ``FoldConstant#2`` is the second one that runs at the level.
        A pass that the level does not admit still has its place.  :class:`PassError` for an unknown name.
        """
        return self._with(Placement("before", anchor, step))

    def after(self, anchor: str, step: Any) -> PassContext:
        """Places a step as :meth:`before` does, behind the anchor's last run where there are several."""
        return self._with(Placement("after", anchor, step))

    def _with(self, placement: Placement) -> PassContext:
        _checked_names(placement.side, [str(placement.anchor).partition("#")[0]])
        made = copy.copy(self)
        made.placements, made._tokens = (*self.placements, placement), []
        return made

    def option(self, name: str) -> Any:
        """The value of a registered option: as given, or its default."""
        return self.config.get(name, CONFIG_KEYS[name].default)

    def pass_enabled(self, info: PassInfo) -> bool:
        """True if ``Sequential`` runs a pass here."""
        admitted = info.name in self.required_pass or self.opt_level >= info.opt_level
        return admitted and info.name not in self.disabled_pass

    def why_not(self, info: PassInfo) -> Declined:
        """The reason why :meth:`pass_enabled` refuses a pass."""
        if info.name in self.disabled_pass:
            return Declined("disabled_pass names it")
        return Declined(f"it is of level {info.opt_level}, and the context of {self.opt_level}")

    def override_instruments(self, instruments: Sequence[PassInstrument] | None) -> None:
        """Exit the present instruments and enter others."""
        self._exit_instruments()
        self.given_instruments = tuple(instruments or ())
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
                    each([instrument], lambda i: i.enter_pass_ctx())
                    entered.callback(instrument.exit_pass_ctx)
                entered.pop_all()
        except BaseException:
            self.given_instruments = ()
            raise

    def _exit_instruments(self) -> None:
        try:
            each(self.given_instruments, lambda i: i.exit_pass_ctx())
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


@door
def verifier() -> PassInstrument:
    """What ``MINITVM_VERIFY`` asks for."""
    raise left_out("MINITVM_VERIFY")


@functools.lru_cache(maxsize=8)
def _instruments_for(print_after: str, verify: int) -> tuple[PassInstrument, ...]:
    names = [name for name in map(str.strip, print_after.split(",")) if name]
    _checked_names("MINITVM_PRINT_IR", [name for name in names if name != "*"])
    return (*([PrintIR(after=names)] if names else []), *([verifier()] if verify else []))


def each(instruments: Iterable[PassInstrument], tell: Callable[[PassInstrument], T], around: str = "") -> list[T]:
    """What every instrument answers; what one raises names it, and the pass that it watches."""
    answers = []
    for instrument in instruments:
        with user_code(type(instrument), f"instrument {type(instrument).__name__}{around}", caught_as_raised=True):
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
        if isinstance(instrument, PrintIR):
            _checked_names("PrintIR", sorted((instrument.before | instrument.after) - {"*"}))
    return found


def _checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(config, Mapping):
        raise ConfigError(f"config is a {type(config).__name__}, not a dictionary of options")
    config = {OPTIONS_OF_TVM.get(name, name): value for name, value in config.items()}
    for name, value in config.items():
        if name not in CONFIG_KEYS:
            raise ConfigError(f"there is no option {name!r}", hint=closest(name, sorted(CONFIG_KEYS)))
        key = CONFIG_KEYS[name]
        if not isinstance(value, key.type) or (isinstance(value, bool) and key.type is not bool):
            wrong = f"option {name!r} takes {key.type.__name__}, not {type(value).__name__} {value!r}"
            raise ConfigError(wrong, hint=key.meaning)
    return dict(config)


def closest(name: str, known: Sequence[str]) -> str:
    """A hint: the nearest known name, or the first of them."""
    return did_you_mean(name, known) or f"known: {listing(known, 50)}"
