"""``PassContext``: the level, the names and the options that passes run under."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from minitvm import config
from minitvm.errors import ConfigError, PassError, did_you_mean, user_code
from minitvm.ir.expr import Module
from minitvm.passes.instrument import PassInfo, PassInstrument, PrintIR
from minitvm.passes.verify import Verify

MAX_OPT_LEVEL = 3

KNOWN_PASSES: set[str] = set()
"""Names that ``required_pass`` and ``disabled_pass`` may hold; a pass adds its own when it is defined."""


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
        self.opt_level = _checked_level(opt_level)
        self.required_pass = _checked_names("required_pass", required_pass)
        self.disabled_pass = _checked_names("disabled_pass", disabled_pass)
        self.config: Mapping[str, Any] = MappingProxyType(_checked_config(config or {}))
        self._instruments: tuple[PassInstrument, ...] = _checked_instruments(instruments)
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
        """Those given, then those that the environment asks for."""
        return (*self._instruments, *_environment_instruments())

    @property
    def given_instruments(self) -> tuple[PassInstrument, ...]:
        """Those given, without those that the environment asks for."""
        return self._instruments

    def option(self, name: str) -> Any:
        """The value of a registered option: as given, or its default."""
        return self.config.get(name, CONFIG_KEYS[name].default)

    def pass_enabled(self, info: PassInfo) -> bool:
        """Whether ``Sequential`` runs a pass here."""
        if info.name in self.disabled_pass:
            return False
        return info.name in self.required_pass or self.opt_level >= info.opt_level

    def override_instruments(self, instruments: Sequence[PassInstrument]) -> None:
        """Exit the present instruments and enter others."""
        self._exit_instruments()
        self._instruments = tuple(instruments)
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
        entered: list[PassInstrument] = []
        try:
            for instrument in self._instruments:
                with watching(instrument):
                    instrument.enter_pass_ctx()
                entered.append(instrument)
        except BaseException:
            self._instruments = ()
            for instrument in entered:
                instrument.exit_pass_ctx()
            raise

    def _exit_instruments(self) -> None:
        try:
            for instrument in self._instruments:
                with watching(instrument):
                    instrument.exit_pass_ctx()
        except BaseException:
            self._instruments = ()
            raise


_current: ContextVar[PassContext | None] = ContextVar("pass_context", default=None)


def _checked_level(level: int) -> int:
    if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level <= MAX_OPT_LEVEL:
        raise ConfigError(f"opt_level is {level!r}", hint=f"the levels are 0 to {MAX_OPT_LEVEL}")
    return level


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
            raise ConfigError(
                f"instruments hold a {type(instrument).__name__}, which is no PassInstrument",
                hint="instruments=[minitvm.passes.PassTiming()]",
            )
    return found


def _checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(config, Mapping):
        raise ConfigError(f"config is a {type(config).__name__}, not a dictionary of options")
    for name, value in config.items():
        if name not in CONFIG_KEYS:
            raise ConfigError(f"there is no option {name!r}", hint=closest(name, sorted(CONFIG_KEYS)))
        expected = CONFIG_KEYS[name].type
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            raise ConfigError(
                f"option {name!r} takes {expected.__name__}, not {type(value).__name__} {value!r}",
                hint=CONFIG_KEYS[name].meaning,
            )
    return dict(config)


def closest(name: str, known: Sequence[str]) -> str:
    """A hint: the nearest known name, or all of them."""
    return did_you_mean(name, known) or f"known: {', '.join(known)}"


def ask_instruments(
    instruments: Sequence[PassInstrument], module: Module, info: PassInfo, context: PassContext
) -> bool:
    """Whether all instruments let the pass run; a required pass is not asked for."""
    if info.name in context.required_pass:
        return True
    answers = [_is_willing(instrument, module, info) for instrument in instruments]  # every one is asked
    return all(answers)


def _is_willing(instrument: PassInstrument, module: Module, info: PassInfo) -> bool:
    with watching(instrument, info):
        return instrument.should_run(module, info)


def watching(instrument: PassInstrument, info: PassInfo | None = None) -> user_code:
    """Around a call of an instrument: what it raises names it, and the pass that it watches."""
    around = f" around pass {info.name}" if info is not None else ""
    return user_code(type(instrument), f"instrument {type(instrument).__name__}{around}")


def _environment_instruments() -> tuple[PassInstrument, ...]:
    """What ``MINITVM_PRINT_IR`` and ``MINITVM_VERIFY`` ask for."""
    return _instruments_for(config.read("MINITVM_PRINT_IR"), config.read_int("MINITVM_VERIFY"))


@functools.lru_cache(maxsize=8)
def _instruments_for(print_after: str, verify: int) -> tuple[PassInstrument, ...]:
    names = tuple(name.strip() for name in print_after.split(",") if name.strip())
    printing: tuple[PassInstrument, ...] = (PrintIR(after=names),) if names else ()
    return (*printing, Verify()) if verify else printing
